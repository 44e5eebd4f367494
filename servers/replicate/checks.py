"""What the README promises, shown on four replicas.  Started by ./test."""

import base64
import os
import random
import re
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]
import abci  # noqa: E402
import report  # noqa: E402
import replicas  # noqa: E402
import syncing  # noqa: E402
import validators  # noqa: E402
from volume import LIMIT, Volume, die_with_parent, until  # noqa: E402

LONG = bool(os.environ.get("SYSTX_LONG"))
NAMED = any(not word.startswith("-") for word in sys.argv[1:])
SEED = int(os.environ.get("SYSTX_SEED") or 1)
FILES = ["a", "b", "c", "d/a", "d/b", "e/a"]


class Replicas(unittest.TestCase):
    VOLUMES = ()  # which of them are on volumes
    EVERY = None  # so many blocks a snapshot is kept

    def setUp(self):
        target = os.path.dirname(os.environ["SYSTX_BUILT"])
        built = os.path.exists(f"{target}/cometbft-{validators.VERSION}/cometbft")
        if not (LONG or NAMED or built):
            self.skipTest("SYSTX_LONG=1 has it, or the name of the class: it builds CometBFT")
        self.site = Volume("replicate")
        self.addCleanup(self.site.close)
        self.all = []
        self.addCleanup(lambda: [one.kill() for one in self.all])
        try:
            self.all = replicas.replicas(self.site, self.VOLUMES, self.EVERY)
        except validators.Missing as why:
            self.skipTest(str(why))
        self.acknowledged, self.chance = set(), random.Random(SEED)

    def told(self):
        return f"seed {SEED}; {[one.log() for one in self.all]}; {self.site.daemon_log()}"

    def done(self, at, script):
        done = at.run(script)
        self.assertEqual(done.returncode, 0, (script, done.stderr, self.told()))

    def agree(self, every=None):
        """All have the same hash after each block, and the same files; what these are."""
        every = every or self.all
        end = replicas.until_equal(every)
        self.assertTrue(validators.same(every, end), self.told())
        found = every[0].files()
        for other in every[1:]:
            self.assertEqual(other.files(), found, self.told())
        return found

    def accepted(self):
        """The numbers of the scripts that are in blocks and accepted, in that order."""
        client, numbers = self.all[0].client, []
        for height in range(1, client.height() + 1):
            txs = client.call("block", height=str(height))["block"]["data"]["txs"] or []
            results = client.call("block_results", height=str(height))["txs_results"] or []
            for tx, result in zip(txs, results):
                found = re.search(rb"ops/(\d+)", base64.b64decode(tx))
                if found and not result.get("code"):
                    numbers.append(int(found[1]))
        return numbers


def script(chance, number):
    """One change, and a file by which it is known."""
    one, two = chance.sample(FILES, 2)
    do = chance.choice([f"echo {number} >> {one}", f"echo {number} > {one}",
                        f"cat {one} >> {two} 2>/dev/null", f"mv {one} {two} 2>/dev/null",
                        f"rm -f {one}", f"ls -R a b c d e > {two} 2>/dev/null",
                        f"cp {one} {two} 2>/dev/null", "mv d f; mv e d; mv f e",
                        f"chmod {chance.choice(['600', '755'])} {one} 2>/dev/null",
                        f"ln -f {one} {two} 2>/dev/null", f"ln -sfn {number} l",
                        "rm p 2>/dev/null || mkfifo p"])
    return f"{do}\necho {number} > ops/{number}"


class Load:
    """Scripts at all replicas, side by side, until it is left."""

    def __init__(self, test, every):
        self.test, self.every, self.stop = test, every, threading.Event()
        self.scripts, self.told, self.lock = {}, [], threading.Lock()

    def work(self, at, seed):
        chance = random.Random(seed)
        while not self.stop.is_set():
            with self.lock:
                number = len(self.scripts)
                self.scripts[number] = script(chance, number)
            done = at.run(self.scripts[number])
            with self.lock:
                self.told.append((number, done.returncode, done.stderr))

    def __enter__(self):
        self.threads = [threading.Thread(target=self.work, args=(at, SEED * 100 + n))
                        for n, at in enumerate(self.every)]
        for thread in self.threads:
            thread.start()
        return self

    def goes_on(self, more):
        """Waits until this much more is acknowledged."""
        begun = len(self.done())
        validators.until(lambda: len(self.done()) >= begun + more, "the load goes on", 240)

    def done(self):
        with self.lock:
            return [number for number, code, _ in self.told if code == 0]

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


class Compared(Replicas):
    def check(self, load):
        """What was acknowledged is in the order, and the order's scripts in a plain directory, one
        after another, leave what the replicas have."""
        have = self.agree()
        order = self.accepted()
        self.assertEqual(len(order), len(set(order)))
        self.assertLessEqual(set(load.done()), set(order), self.told())
        refused = {number for number, code, _ in load.told if code == 75}
        self.assertFalse(refused & set(order), "one that was told a conflict is in no block")
        plain = replicas.Place(self.site, "serial", False)
        plain.tree = f"{self.site.base}/serial"
        os.mkdir(plain.tree)
        for text in ["mkdir d e ops; touch a b c", *(load.scripts[number] for number in order)]:
            subprocess.run(["sh", "-c", text], cwd=plain.tree, check=True)
        self.assertEqual(have, plain.files(), f"seed {SEED}")

    def begin(self):
        self.done(self.all[0], "mkdir d e ops; touch a b c")
        replicas.until_equal(self.all)

    def killed_and_replaced(self):
        self.begin()
        with Load(self, self.all[:3]) as load:
            for _ in range(4 if LONG else 1):
                load.goes_on(6)
                self.all[3].kill()
                load.goes_on(6)
                self.all[3].start()
            load.goes_on(6)
            # All of them have the same daemon here.
            self.site.kill_daemon()
            load.goes_on(6)
        replicas.until_equal(self.all)
        self.all[3].kill()
        self.all[3].forget()
        self.done(self.all[0], "echo meanwhile > meanwhile; rm meanwhile")
        self.all[3].start()
        self.check(load)


class Same(Compared):
    def test_random_requests_at_all_replicas_are_those_of_a_serial_execution(self):
        self.begin()
        with Load(self, self.all) as load:
            load.goes_on(200 if LONG else 24)
        self.check(load)

    def test_one_is_killed_under_load_and_comes_back_and_one_is_replaced(self):
        self.killed_and_replaced()


class Snapshots(Compared):
    """Nobody has the first blocks any more."""

    VOLUMES = (1, 3)
    EVERY = 4

    def test_one_that_is_replaced_begins_with_a_snapshot_also_if_it_is_killed_meanwhile(self):
        self.begin()
        self.done(self.all[0], "ln a second; mkfifo p; ln -s nowhere l; chmod 640 b")
        one, others = self.all[3], self.all[:3]
        with Load(self, others) as load:
            load.goes_on(6)
            one.kill()
            validators.until(lambda: min(other.earliest() for other in others) > 1,
                             "they have no first blocks any more", 240)
            one.forget()
            one.syncs_from(others)
            # In the middle of its transaction it is killed, and then the daemon.
            hold = one.held(5)
            one.kill()
            os.unlink(hold)
            hold = one.held(5)
            self.site.kill_daemon()
            os.unlink(hold)
            validators.until(lambda: one.in_place() > 0 and one.height() > 0,
                             "it has a snapshot", 240)
        self.agree()
        self.assertGreater(one.earliest(), 1)
        self.done(one, "echo here > here")
        # The next start reads all, and has the blocks after the snapshot.
        one.kill()
        self.done(others[0], "echo there > there")
        one.start()
        have = self.agree()
        self.assertEqual((have["here"].content, have["there"].content), (b"here\n", b"there\n"))


class Lies(syncing.Lying, Compared):
    VOLUMES = (1, 3)
    EVERY = 4

    def setUp(self):
        if not (LONG or NAMED):
            self.skipTest("SYSTX_LONG=1 has it, or the name of the class")
        super().setUp()
        self.begin()

    def at(self, content):
        return content.index(b"0\n1\n")

    def go_on(self, blocks):
        for n in range(blocks):
            self.done(self.all[0], f"echo {n} >> a")

    def forget(self, one):
        one.forget()
        one.make()

    def elsewhere(self, height):
        place = Place(self.site, "elsewhere", 9, False)
        self.addCleanup(place.orders.end)
        application, place.orders.height = place.start(), height - 1
        place.run("echo else > where")
        found = application.kept(height).bytes
        application.kill()
        return found

    def all_agree(self):
        self.agree()
        self.done(self.all[3], "echo here > here")
        self.agree()


class Place(replicas.Place):
    """With its application and no engine, for `syncing`."""

    def __init__(self, site, name, number, is_volume):
        super().__init__(site, name, is_volume)
        self.address = f"127.0.0.{number + 2}"
        self.orders, self.keeps = abci.Orders(f"{self.address}:26657"), 1
        self.make()

    def anew(self):
        self.remove()
        self.make()

    def content(self):
        return self.files()

    def start(self, **environment):
        command = self.command(self.address, f"{self.site.base}/kept-{self.name}", self.keeps)
        address = f"{self.address}:26658"
        application = abci.Application(self.site, command, address, self.name, **environment)
        self.orders.application = application
        return application


class Taken(syncing.Syncing, unittest.TestCase):
    """Snapshots that come from others, without an engine."""

    VOLUME = False
    STRIDE = 1 if LONG else 4

    def setUp(self):
        validators.own_network()
        self.site = Volume("replicate")
        self.addCleanup(self.site.close)
        self.places = 0

    def place(self, name):
        self.places += 1
        place = Place(self.site, name, self.places, self.VOLUME)
        self.addCleanup(place.orders.end)
        return place

    def at(self, content):
        return content.index(b"one\n")

    def work(self, place, application, number, other=False):
        texts = ["mkdir d; echo 1 > d/a; ln d/a b", "echo 2 >> b; mkfifo p", "mv d e; rm p",
                 "echo 4 > f; chmod 640 e/a"]
        done = place.run(f"{texts[number - 1]}; echo {'other' if other else 'one'} > c")
        self.assertEqual(done.returncode, 0, (done.stderr, application.log()))
        until(lambda: number in place.orders.hashes, "the block is committed")
        return place.orders.hashes[number], place.orders.requests[number]


class TakenByVolume(Taken):
    VOLUME = True

    def setUp(self):
        if not (LONG or NAMED):
            self.skipTest("SYSTX_LONG=1 has it, or the name of the class")
        super().setUp()


class Small(Compared):
    """One is on a volume that has no room for what the others take."""

    VOLUMES = (3,)

    def test_one_without_room_says_so_and_ends_and_the_others_go_on(self):
        one, others = self.all[3], self.all[:3]
        one.kill()
        one.forget()
        one.size = "8M"
        one.start()
        replicas.until_equal(self.all)
        application = one.processes[0]
        for n in range(16):
            self.done(others[0], f"head -c 600000 /dev/urandom > f{n}")
        validators.until(lambda: application.poll() is not None, "it ends", 120)
        self.assertEqual(application.poll(), 1)
        self.assertRegex(one.whole_log(), r"block \d+ cannot be put in its place in .*, at .*: No "
                         "space left on device")
        have = self.agree(others)
        one.kill()
        one.forget()
        one.size = "64M"
        one.start()
        self.assertEqual(self.agree(), have)


# What a shell has no word for.
ODD = """
import os, socket
socket.socket(socket.AF_UNIX).bind("s")
os.symlink("nowhere", "l")
os.setxattr("l", "trusted.about", b"a link", follow_symlinks=False)
os.setxattr("n", "user.about", b"a file")
"""


class Volumes(Compared):
    """Two on guarded directories, and two on log-structured volumes, one of which is killed."""

    VOLUMES = (1, 3)

    def test_what_is_no_plain_file_and_has_several_names_is_replicated(self):
        with open(f"{self.site.base}/odd.py", "w") as file:
            file.write(ODD)
        self.done(self.all[0], "mkdir d; echo 1 > d/m; ln d/m n; mkfifo p; mknod c c 1 3;"
                  f" {sys.executable} {self.site.base}/odd.py")
        for at, text in [(1, "echo 2 >> n; mv d e"), (2, "ln e/m o; ln p q; ln l k; rm n"),
                         (3, "echo 3 >> o; chmod 640 e/m; mv p d")]:
            replicas.until_equal(self.all)
            self.done(self.all[at], text)
        have = self.agree()
        self.assertEqual(have["o"], have["e/m"])
        self.assertEqual((have["o"].content, have["o"].names), (b"1\n2\n3\n", ("e/m", "o")))
        self.assertEqual((have["k"].content, have["k"].names), ("nowhere", ("k", "l")))
        self.assertEqual(have["k"].xattrs, {"trusted.about": b"a link"})
        self.assertEqual(have["o"].xattrs, {"user.about": b"a file"})
        self.assertEqual([have[name].mode[0] for name in "dsc"], ["p", "s", "c"])
        for one in self.all[:2]:
            # It reads all that is there, and compares.
            one.kill()
            one.start()
        replicas.until_equal(self.all)
        self.assertEqual(self.agree(), have)

    def test_one_is_killed_under_load_and_comes_back_and_one_is_replaced(self):
        self.killed_and_replaced()


class Certified(Replicas):
    VOLUMES = (1,)

    def test_of_two_that_meet_one_commits_and_the_other_is_told_a_conflict(self):
        self.done(self.all[0], "echo 0 > a")
        for round_ in range(10 if LONG else 3):
            replicas.until_equal(self.all)
            text = 'read old < a; echo ready; read go; echo "$((old + 1))" > a'
            both = []
            for at in self.all[:2]:
                words = ["run", "-q", "--root", at.tree, "-C", at.tree, "--", "sh", "-c", text]
                both.append(subprocess.Popen(
                    [self.site.systx_binary, *words], env=self.site.environment, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    preexec_fn=die_with_parent))
            for one in both:
                self.assertEqual(one.stdout.readline(), "ready\n")
            for one in both:
                one.stdin.write("go\n")
                one.stdin.flush()
            said = [one.communicate(timeout=2 * LIMIT)[1] for one in both]
            self.assertEqual(sorted(one.returncode for one in both), [0, 75], (said, self.told()))
            self.assertIn("/a", "".join(said))
            self.assertEqual(self.agree()["a"].content, f"{round_ + 1}\n".encode())

    def test_nothing_is_changed_past_the_order(self):
        one = self.all[0]
        self.done(one, "echo 0 > a")
        for change in (lambda: open(f"{one.tree}/a", "w"), lambda: os.mkdir(f"{one.tree}/d"),
                       lambda: os.unlink(f"{one.tree}/a"), lambda: os.chmod(f"{one.tree}/a", 0)):
            with self.assertRaises(OSError) as raised:
                change()
            self.assertEqual(raised.exception.errno, 30)
        undo = self.site.systx("undo", "-C", one.tree, check=False)
        self.assertIn("certifier", undo.stderr)
        one.kill()
        done = one.run("echo 1 > a")
        self.assertEqual(done.returncode, 125)
        self.assertIn("certifier", done.stderr)
        one.start()
        self.assertEqual(self.agree()["a"].content, b"0\n")

    def test_a_replica_that_was_changed_past_the_guard_does_not_start(self):
        self.done(self.all[0], "echo 0 > a")
        self.agree()
        one = self.all[1]
        one.kill()
        self.site.systx("umount", one.tree)
        if one.image:
            self.site.systx("mount", one.image, one.tree)
        with open(f"{one.tree}/a", "w") as file:
            file.write("1\n")
        if one.image:
            self.site.systx("umount", one.tree)
        one.guard()
        self.assertEqual(one.start_application().wait(LIMIT), 1)
        self.assertIn("is not what block", one.log())
        one.kill()
        one.forget()
        one.start()
        self.assertEqual(self.agree()["a"].content, b"0\n")


class Directory(Replicas):
    """Stock slapd with the plugin of servers/ldap, on two replicas."""

    def setUp(self):
        if not os.path.exists(f"{os.environ['SYSTX_BUILT']}/slapi_systx.so"):
            self.skipTest("slapd and what its plugin needs are not installed: servers/ldap/test")
        super().setUp()
        self.servers = replicas.directory(self.site, self.all[:2])

    def search(self, server):
        found = server.tool("ldapsearch", "-LLL", "-b", "dc=example,dc=com", "description")
        self.assertEqual(found.returncode, 0, found.stderr)
        return found.stdout

    def test_an_entry_that_is_added_on_one_machine_is_found_on_another(self):
        first, second = self.servers
        self.assertEqual(first.tool("ldapadd", text=replicas.BASE).returncode, 0)
        for n, server in enumerate([first, second, first]):
            replicas.until_equal(self.all)
            added = server.tool("ldapadd", text=replicas.person(n))
            self.assertEqual(added.returncode, 0, (added.stderr, self.told()))
            replicas.until_equal(self.all)
            for other in self.servers:
                self.assertIn(f"dn: cn=p{n},", self.search(other))
        move = second.tool("ldapmodrdn", "-r", "cn=p0,dc=example,dc=com", "cn=moved")
        self.assertEqual(move.returncode, 0, move.stderr)
        self.assertEqual(second.tool("ldapdelete", "cn=p1,dc=example,dc=com").returncode, 0)
        replicas.until_equal(self.all)
        found = self.search(first)
        self.assertIn("dn: cn=moved,", found)
        self.assertNotIn("dn: cn=p1,", found)
        self.agree()


if __name__ == "__main__":
    report.run(int(os.environ.get("MODEL_PASSED") or 0), int(os.environ.get("MODEL_FAILED") or 0))
