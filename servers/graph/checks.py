"""What the README promises, shown on guarded directories.  Started by ./test."""

import base64
import os
import random
import signal
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import abci  # noqa: E402
import report  # noqa: E402
import syncing  # noqa: E402
import validators  # noqa: E402
from volume import LIMIT, Volume, die_with_parent, until  # noqa: E402

LONG = bool(os.environ.get("SYSTX_LONG"))
PROGRAM = f"{os.environ['SYSTX_BUILT']}/systx-graph"
SEED = int(os.environ.get("SYSTX_SEED") or 1)
# Vertices and edges, as in TxOS+ (EuroSys'12) or like that.
SPARSE = (10900, 31180) if LONG else (2180, 6236)
DENSE = (5000, 3174615) if LONG else (500, 31746)


class Graph(unittest.TestCase):
    INJECT = None

    def setUp(self):
        self.site = Volume("graph", inject=self.INJECT)
        self.addCleanup(self.site.close)

    def graph(self, *arguments, check=True):
        done = subprocess.run([PROGRAM, *map(str, arguments)], env=self.site.environment,
                              text=True, capture_output=True)
        if check and done.returncode:
            said = done.stdout + done.stderr + self.site.daemon_log()
            raise AssertionError(f"{arguments} of seed {SEED}: {done.returncode}: {said}")
        return done

    def tree(self, name, shape, guard=True):
        tree = self.site.tree(name, guard)
        self.graph("create", tree, "--vertices", shape[0], "--edges", shape[1], "--seed", SEED)
        return tree

    def blocks(self, shape, blocks, size, writes, exists=20):
        path = f"{self.site.base}/blocks"
        made = self.graph("blocks", "--vertices", shape[0], "--blocks", blocks, "--size", size,
                          "--writes", writes, "--exists", exists, "--seed", SEED)
        with open(path, "w") as file:
            file.write(made.stdout)
        return path

    def serial(self, shape, blocks):
        """What heights, hashes and answers there are without transactions and threads."""
        tree = self.tree("serial", shape, guard=False)
        return self.graph("run", tree, blocks, "--serial", "at-once").stdout.splitlines()

    def height(self, tree):
        return self.graph("check", tree).stdout.split()


class Threads(Graph):
    def test_threads_do_what_one_does(self):
        for name, shape, writes in [("sparse", SPARSE, 50), ("dense", DENSE, 50),
                                    ("reads", DENSE, 0), ("writes", SPARSE, 100)]:
            blocks = self.blocks(shape, 4, 100, writes)
            tree = self.site.tree(f"{name}-serial", guard=False)
            same = ["--vertices", shape[0], "--edges", shape[1], "--seed", SEED]
            self.graph("create", tree, *same)
            want = self.graph("run", tree, blocks, "--serial", "synced", "--answers").stdout
            for threads in (1, 2, 4):
                tree = self.tree(f"{name}{threads}", shape)
                found = self.graph("run", tree, blocks, "--threads", threads, "--answers")
                self.assertEqual(found.stdout, want, f"{name}, {threads} threads, seed {SEED}")
                self.assertEqual(self.height(tree), want_of(want, 4))

    def test_one_thread_is_followed_by_four(self):
        """The numbers of the order go on, however many each block has used."""
        blocks = self.blocks(DENSE, 8, 30, 30)
        want = self.serial(DENSE, blocks)
        tree, found = self.tree("tree", DENSE), []
        with open(blocks) as file:
            text = file.read()
        for end, threads in ((2, 1), (5, 4), (6, 1), (8, 2)):
            some = f"{self.site.base}/some"
            with open(some, "w") as file:
                file.write("\n\n".join(text.split("\n\n")[:end]) + "\n\n")
            done = self.graph("run", tree, some, "--threads", threads)
            found += done.stdout.splitlines()
        self.assertEqual(found, want)

    def test_two_programs_execute_a_block_once(self):
        blocks = self.blocks(DENSE, 10, 30, 50)
        want = self.serial(DENSE, blocks)
        tree = self.tree("tree", DENSE)
        both = [subprocess.Popen([PROGRAM, "run", tree, blocks], env=self.site.environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 preexec_fn=die_with_parent) for _ in range(2)]
        said = [program.communicate(timeout=4 * LIMIT) for program in both]
        # Whatever one of them has said is so; one may have met the other's, and given up.
        for out, _ in said:
            self.assertLessEqual(set(out.splitlines()), set(want), said)
        self.graph("run", tree, blocks)
        self.assertEqual(self.height(tree), want[-1].split()[:2])

    def test_what_was_changed_by_others_is_found(self):
        blocks = self.blocks(DENSE, 2, 20, 50)
        tree = self.tree("tree", DENSE)
        want = self.graph("run", tree, blocks).stdout.splitlines()[-1].split()[:2]
        with open(f"{tree}/graph", "r+b") as file:
            file.seek(4096 + 7)
            byte = file.read(1)
            file.seek(4096 + 7)
            file.write(bytes([byte[0] ^ 4]))
        for command in (["check", tree], ["run", tree, blocks]):
            done = self.graph(*command, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("the state is damaged", done.stderr)
        with open(f"{tree}/graph", "r+b") as file:
            file.seek(4096 + 7)
            file.write(byte)
        self.assertEqual(self.height(tree), want)

    def test_without_a_guard_nothing_is_executed(self):
        tree = self.tree("tree", DENSE, guard=False)
        done = self.graph("run", tree, self.blocks(DENSE, 1, 10, 50), check=False)
        self.assertEqual((done.returncode, self.height(tree)[0]), (1, "0"))
        self.assertIn("systx mount", done.stderr)


def want_of(lines, height):
    """Height and hash in the output of `run --answers`."""
    words = [line.split() for line in lines.splitlines()]
    return [w[:2] for w in words if len(w) == 3 and len(w[1]) == 64 and w[0] == str(height)][0]


class Lost(Graph):
    """With aborts that the daemon makes up."""

    INJECT = "5"

    def test_a_part_that_loses_is_executed_again(self):
        blocks = self.blocks(DENSE, 6, 40, 50)
        want = self.serial(DENSE, blocks)
        done = self.graph("run", self.tree("tree", DENSE), blocks, "--threads", 3, "--time")
        self.assertEqual(done.stdout.splitlines(), want)
        self.assertNotIn(" 0 lost", done.stderr)


class Killed(Graph):
    """The height and the hash are those of a whole block at any time, and the rest follows."""

    ROUNDS = 12 if LONG else 3
    BLOCKS = 400 if LONG else 40

    def setUp(self):
        super().setUp()
        self.chance = random.Random(SEED)
        self.recorded = self.blocks(DENSE, self.BLOCKS, 60, 60)
        self.want = self.serial(DENSE, self.recorded)
        self.guarded = self.tree("tree", DENSE)
        self.program = None

    def start(self):
        self.program = subprocess.Popen(
            [PROGRAM, "run", self.guarded, self.recorded, "--threads", "2"],
            env=self.site.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=die_with_parent)

    def goes_on(self):
        """Waits for some blocks, and then some more time."""
        for _ in range(self.chance.randrange(1, self.BLOCKS // 10)):
            line = self.program.stdout.readline().rstrip("\n")
            if line:
                self.assertIn(line, self.want)
        time.sleep(self.chance.random() * 0.02)

    def kill(self):
        self.program.kill()
        for line in self.program.communicate()[0].splitlines(keepends=True):
            # The last one may be a half.
            self.assertTrue(not line.endswith("\n") or line.rstrip("\n") in self.want, line)

    def is_whole(self):
        height, root = self.height(self.guarded)
        if height != "0":
            self.assertEqual(self.want[int(height) - 1].split()[:2], [height, root])
        return int(height)

    def ends(self):
        """What is left is executed, and ends where it should."""
        out, err = self.program.communicate(timeout=4 * LIMIT)
        self.assertEqual((self.program.returncode, err), (0, ""), self.site.daemon_log())
        self.assertLessEqual(set(out.splitlines()), set(self.want))
        self.assertEqual(self.is_whole(), self.BLOCKS)

    def test_a_killed_program_leaves_whole_blocks(self):
        before = 0
        for _ in range(self.ROUNDS):
            self.start()
            self.goes_on()
            self.kill()
            height = self.is_whole()
            self.assertGreaterEqual(height, before)
            before = height
        self.start()
        self.ends()

    def test_a_killed_daemon_leaves_whole_blocks_and_the_program_goes_on(self):
        self.start()
        for _ in range(self.ROUNDS):
            self.goes_on()
            self.site.kill_daemon()
            self.is_whole()
        self.ends()

    def test_both_are_killed(self):
        for _ in range(self.ROUNDS):
            self.start()
            self.goes_on()
            self.kill()
            self.site.kill_daemon()
            self.is_whole()
        self.start()
        self.ends()


class Place:
    """A graph and its application, for `syncing`."""

    def __init__(self, test, name, number, shape):
        self.test, self.name, self.shape = test, name, shape
        self.address = f"127.0.0.{number + 2}:26658"
        self.tree = test.tree(name, shape)
        self.keeps = [f"{test.site.base}/kept-{name}", "1"]

    def anew(self):
        os.unlink(f"{self.tree}/graph")
        self.test.graph("create", self.tree, "--vertices", self.shape[0], "--edges", self.shape[1],
                        "--seed", SEED)

    def content(self):
        """The edges: what heads them has numbers of its own."""
        with open(f"{self.tree}/graph", "rb") as file:
            return file.read()[4096:]

    def start(self, **environment):
        command = [self.test.program, self.tree, self.address, "2", *self.keeps]
        return abci.Application(self.test.site, command, self.address, self.name, **environment)


class Taken(syncing.Syncing, Graph):
    """Snapshots that come from others, without an engine."""

    SHAPE = (2180, 6236)  # of three chunks

    def setUp(self):
        target = os.path.dirname(os.environ["SYSTX_BUILT"])
        try:
            self.program = validators.application(target, "graph/abci", "systx-graph-abci")
            validators.own_network()
        except validators.Missing as why:
            self.skipTest(str(why))
        super().setUp()
        self.places = 0

    def place(self, name):
        self.places += 1
        return Place(self, name, self.places, self.SHAPE)

    def at(self, content):
        return len(content) // 2

    def work(self, place, application, number, other=False):
        # One of the two changes something, whatever is there.
        ends = f"{number} {number + (5 if other else 9)}"
        word = "delete" if application.ask(f"exists {ends}") == b"yes" else "add"
        request = f"{word} {ends}".encode()
        return application.block(number, [request]), request


class Agreed(Graph):
    """Four validators on one machine, which agree on blocks by CometBFT."""

    EVERY = None  # after so many blocks each keeps a snapshot, and its engine drops what is before

    def setUp(self):
        if not LONG and type(self).__name__ not in " ".join(sys.argv):
            self.skipTest("SYSTX_LONG=1 has it, or the name of the class: it builds CometBFT")
        target = os.path.dirname(os.environ["SYSTX_BUILT"])
        try:
            comet = validators.engine(target)
            abci = validators.application(target, "graph/abci", "systx-graph-abci")
            validators.own_network()
        except validators.Missing as why:
            self.skipTest(str(why))
        super().setUp()
        made = f"{self.site.base}/nodes"
        subprocess.run([comet, "testnet", "--v", "4", "--o", made, "--starting-ip-address",
                        "127.0.0.2", "--populate-persistent-peers"], check=True,
                       capture_output=True)
        self.all = [self.validator(n, comet, abci, f"{made}/node{n}") for n in range(4)]
        self.addCleanup(lambda: [one.kill() for one in self.all])
        self.chance, self.sent = random.Random(SEED), 0
        for one in self.all:
            one.start()
        self.reach(2)

    def validator(self, number, comet, abci, home):
        tree = self.tree(f"tree{number}", DENSE)
        keeps = ["2", f"{self.site.base}/snapshots{number}", str(self.EVERY), "prune"]
        command = lambda address: [abci, tree, f"{address}:26658",  # noqa: E731
                                   *(keeps if self.EVERY else [])]
        one = validators.Validator(self, number, comet, command, home)
        one.tree, one.snapshots = tree, f"{self.site.base}/snapshots{number}"
        return one

    def reach(self, height, which=None):
        for one in which or self.all:
            validators.until(lambda: one.height() >= height,
                             lambda: f"height {height}, not {one.height()}; {one.log()}")

    def request(self):
        ends = self.chance.sample(range(DENSE[0]), 2)
        word = self.chance.choice(["add", "add", "delete", "exists", "path"])
        return f"{word} {ends[0]} {ends[1]}"

    def send(self, count, to=None):
        """Random requests; returns when they are in blocks everywhere."""
        self.send_these([self.request() for _ in range(count)], to or self.all)

    def send_these(self, requests, to):
        """To the validators in turn."""
        for request in requests:
            self.sent += 1
            to[self.sent % len(to)].client.send(f"{request} {self.sent}")
        for one in to:
            validators.until(lambda: one.client.call("num_unconfirmed_txs")["total"] == "0",
                             f"all of {one.address} are in blocks")
        # What a block did is in the head of the next one.
        self.reach(max(one.height() for one in to) + 2, to)

    def make_anew(self, one):
        """The graph of a validator, from its first state and all blocks."""
        one.kill()
        self.make_first(one)
        one.start()
        self.reach(max(other.height() for other in self.all), [one])

    def make_first(self, one):
        os.unlink(f"{one.tree}/graph")
        self.graph("create", one.tree, "--vertices", DENSE[0], "--edges", DENSE[1], "--seed", SEED)

    def all_agree(self):
        """After each block that all of them have."""
        self.send(20)
        end = min(each.height() for each in self.all)
        self.assertTrue(validators.same(self.all, end))


class Snapshots(Agreed):
    EVERY = 15

    def first_block(self, which):
        """That any of these has."""
        try:
            return min(one.earliest() for one in which)
        except OSError as error:
            logs = "\n".join(one.log() for one in which)
            raise AssertionError(f"{error}: {logs}\n{self.site.daemon_log()}") from error

    def test_a_new_one_begins_with_a_snapshot_where_nobody_has_the_first_blocks(self):
        one, others = self.all[3], self.all[:3]
        self.send(40)
        one.kill()
        validators.until(lambda: self.first_block(others) > 1, "they have no first block any more")
        self.make_first(one)
        forget = [one.comet, "unsafe-reset-all", "--home", one.home]
        subprocess.run(forget, check=True, capture_output=True)
        one.syncs_from(others)
        # In the middle of its transaction the graph and its engine are killed, and then the daemon.
        hold = one.held(4)
        one.kill()
        os.unlink(hold)
        hold = one.held(4)
        self.site.kill_daemon()
        os.unlink(hold)
        self.reach(max(other.height() for other in others), [one])
        self.assertGreater(one.earliest(), 1)
        self.all_agree()


class Lies(syncing.Lying, Agreed):
    EVERY = 15

    def at(self, content):
        return len(content) // 2

    def go_on(self, blocks):
        # Each time with another graph than ever before: an edge more or less, and not that again.
        ends = f"0 {1 + self.sent}"
        there = self.all[0].client.ask(f"exists {ends}") == "yes"
        self.send_these([f"{'delete' if there else 'add'} {ends}"], self.all)
        self.reach(max(one.height() for one in self.all) + blocks)

    def forget(self, one):
        self.make_first(one)
        forget = [one.comet, "unsafe-reset-all", "--home", one.home]
        subprocess.run(forget, check=True, capture_output=True)

    def elsewhere(self, _):
        tree = self.site.tree("elsewhere", guard=False)
        self.graph("create", tree, "--vertices", DENSE[0], "--edges", DENSE[1], "--seed", SEED + 1)
        with open(f"{tree}/graph", "rb") as file:
            return file.read()


class Validators(Agreed):
    def hashes(self, one, end):
        """Of the graph after each block, as the next block has it, and what was in the block."""
        roots, text = [], ""
        for height in range(1, end + 1):
            block = one.client.call("block", height=str(height))["block"]
            roots.append(block["header"]["app_hash"].lower())
            lines = [base64.b64decode(tx).decode() for tx in block["data"]["txs"] or []]
            text += "".join(line + "\n" for line in lines) + "\n"
        return roots, text

    def agree(self):
        """All have the same hash at every height, and it is the one of a serial execution."""
        end = min(one.height() for one in self.all)
        roots, text = self.hashes(self.all[0], end)
        for one in self.all[1:]:
            self.assertEqual(self.hashes(one, end), (roots, text), one.address)
        self.assertEqual(sum(bool(line) for line in text.split("\n")), self.sent)
        blocks = f"{self.site.base}/agreed"
        with open(blocks, "w") as file:
            file.write(text)
        want = [line.split()[1] for line in self.serial(DENSE, blocks)]
        self.assertEqual(roots[1:], want[:-1])

    def test_who_was_away_catches_up_and_all_agree(self):
        self.send(60)
        self.all[3].kill()
        self.send(60, self.all[:3])
        self.all[3].start()
        self.reach(max(one.height() for one in self.all), [self.all[3]])
        # All of them have the same daemon here.
        self.site.kill_daemon()
        self.send(40)
        # The graph alone is killed; its engine ends by itself, or does not: both are started.
        self.all[1].processes[0].kill()
        self.send(40, [self.all[0], *self.all[2:]])
        self.all[1].kill()
        self.all[1].start()
        self.reach(max(one.height() for one in self.all), [self.all[1]])
        self.send(20)
        self.agree()

    def test_a_damaged_state_is_found_and_made_again_from_the_blocks(self):
        self.send(60)
        one = self.all[2]
        one.kill()
        with open(f"{one.tree}/graph", "r+b") as file:
            file.seek(3 * 4096 + 5)
            byte = file.read(1)
            file.seek(3 * 4096 + 5)
            file.write(bytes([byte[0] ^ 1]))
        self.assertEqual(one.start_application().wait(LIMIT), 1)
        self.assertIn("the state is damaged", one.log())
        self.send(30, [other for other in self.all if other is not one])
        self.make_anew(one)
        self.agree()

    def test_a_validator_that_says_something_else_is_not_followed(self):
        self.send(20)
        one, others = self.all[1], [self.all[0], *self.all[2:]]
        # Behind its back: it has the page's hash in memory, and finds another one when it changes
        # the page. So it signs blocks, and tells clients, what no other one does.
        with open(f"{one.tree}/graph", "r+b") as file:
            file.seek(4096 + 1)
            byte = file.read(1)
            file.seek(4096 + 1)
            file.write(bytes([byte[0] ^ 1]))
        self.assertNotEqual(one.client("exists 0 8"), others[0].client("exists 0 8"))
        self.send_these(["add 0 9", "delete 0 9"], others)
        self.send(40, others)
        validators.until(lambda: "AppHash" in one.whole_log(), "its engine says that it differs")
        self.assertLess(one.height(), min(other.height() for other in others))
        # The engine has written down what it was told: it forgets that, too, and gets the blocks
        # from the others.
        one.kill()
        forget = [one.comet, "reset-state", "--home", one.home]
        subprocess.run(forget, check=True, capture_output=True)
        self.make_anew(one)
        self.send(20)
        self.agree()

    def test_validators_that_hear_nothing(self):
        def all_of(which, what):
            for process in which.processes:
                process.send_signal(what)

        self.send(20)
        all_of(self.all[3], signal.SIGSTOP)
        self.send(40, self.all[:3])
        # Two of four are not enough: what they are asked for is done when the others are back.
        all_of(self.all[2], signal.SIGSTOP)
        before = self.all[0].height()
        for n in range(20):
            self.sent += 1
            self.all[n % 2].client.send(f"{self.request()} {self.sent}")
        time.sleep(5)
        self.assertLessEqual(self.all[0].height(), before + 1)
        for one in self.all[2:]:
            all_of(one, signal.SIGCONT)
        self.send(20)
        self.agree()

    def test_clients_are_answered(self):
        ends = "3 4"
        first, other = self.all[0].client, self.all[1].client
        there = first(f"exists {ends}") == "yes"
        self.assertEqual(first(f"add {ends}"), "no" if there else "yes")
        self.assertEqual(first(f"add {ends}"), "no")
        self.assertEqual(first(f"path {ends}"), ends)
        command = [f"{HERE}/client", other.url, f"delete {ends}"]
        done = subprocess.run(command, text=True, capture_output=True)
        self.assertEqual((done.stdout, done.returncode), ("yes\n", 0), done.stderr)
        self.assertEqual(other(f"exists {ends}"), "no")
        for words in ("add 3 3", "nonsense"):
            done = subprocess.run([*command[:2], words], text=True, capture_output=True)
            self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    # Those of the model, which ./test has run.
    report.run(int(os.environ.get("MODEL_PASSED") or 0), int(os.environ.get("MODEL_FAILED") or 0))
