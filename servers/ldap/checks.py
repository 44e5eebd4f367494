"""What the README promises, shown with stock clients against stock slapd.  Started by ./test."""

import base64
import collections
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import unittest

import ldap
import ldap.modlist
from ldap import dn as names

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import report  # noqa: E402
from site_ import ADMIN, LIMIT, PASSWORD, SUFFIX, Site, until  # noqa: E402

LONG = bool(os.environ.get("SYSTX_LONG"))
PEOPLE = f"ou=people,{SUFFIX}"
BASE = f"""dn: {SUFFIX}
objectClass: dcObject
objectClass: organization
dc: example
o: Example

dn: {PEOPLE}
objectClass: organizationalUnit
ou: people
"""
# What a client hears while slapd, the daemon or the commit cannot do it: try again.
REFUSED = (ldap.BUSY, ldap.SERVER_DOWN, ldap.OTHER, ldap.UNAVAILABLE, ldap.CONNECT_ERROR,
           ldap.TIMEOUT, ldap.UNWILLING_TO_PERFORM)


def connect(server):
    connection = ldap.initialize(server.url)
    connection.set_option(ldap.OPT_NETWORK_TIMEOUT, LIMIT)
    connection.set_option(ldap.OPT_TIMEOUT, LIMIT)
    connection.simple_bind_s(ADMIN, PASSWORD)
    return connection


def person(name, description="0"):
    return [("objectClass", [b"person"]), ("cn", [name.encode()]), ("sn", [b"s"]),
            ("description", [description.encode()])]


def dn_of(name, parent=PEOPLE):
    return f"cn={names.escape_dn_chars(name)},{parent}"


def entries(ldif):
    """The entries of slapcat's output: what was asked for, by name."""
    found = {}
    for block in ldif.strip().split("\n\n"):
        values = collections.defaultdict(list)
        for line in filter(None, block.split("\n")):
            key, _, value = line.partition(": ")
            if key.endswith(":"):
                key, value = key[:-1], base64.b64decode(value).decode()
            values[key].append(value)
        if "dn" in values:
            found[values["dn"][0]] = values.get("description", [""])[0]
    return found


def files(tree):
    return sorted(os.path.relpath(os.path.join(at, name), tree)
                  for at, _, all_files in os.walk(tree) for name in all_files)


class Guarded(unittest.TestCase):
    """With one slapd on a guarded tree."""

    INJECT = None
    SERVERS = 1

    def setUp(self):
        self.site = Site(inject=self.INJECT)
        self.addCleanup(self.site.close)
        self.tree = self.site.tree("tree")
        self.all = [self.site.slapd(f"slapd{n}", self.tree).start() for n in range(self.SERVERS)]
        self.slapd = self.all[0]
        if not self.INJECT:
            self.load(self.slapd)

    def load(self, server):
        done = server.tool("ldapadd", text=BASE)
        self.assertEqual(done.returncode, 0, done.stderr)

    def commits(self):
        log = self.site.systx("log", "--json", "-C", self.tree).stdout
        return json.loads(log)["log"]

    def nothing_half(self, server=None):
        """Only whole entries: no temporary file, no directory without its entry; all is read."""
        for at, directories, all_files in os.walk(self.tree):
            self.assertEqual([f for f in all_files if not f.endswith(".ldif")], [], at)
            if at != self.tree:
                for name in directories:
                    self.assertIn(f"{name}.ldif", all_files, at)
        server = server or self.slapd
        found = connect(server).search_s(SUFFIX, ldap.SCOPE_SUBTREE, attrlist=["description"])
        searched = {dn: v.get("description", [b""])[0].decode() for dn, v in found}
        self.assertEqual(entries(server.slapcat()), searched)
        return searched

    def nothing_open(self):
        open_ones = json.loads(self.site.systx("list", "--json").stdout)["transactions"]
        self.assertEqual(open_ones, [])


NAMES = ["a.b", "c/d", "e:f", "g, h", "Ünï", "back\\slash", "{1}x", "i;j", "n" * 200]


class Clients(Guarded):
    def test_stock_clients_find_what_they_have_changed(self):
        text = f"dn: {dn_of('ann')}\nobjectClass: person\ncn: ann\nsn: a\n"
        steps = [
            ("ldapadd", [], text, 0),
            ("ldapadd", [], text, 68),
            ("ldapmodify", [], f"dn: {dn_of('ann')}\nchangetype: modify\nadd: description\n"
             "description: 1\n", 0),
            ("ldapmodify", [], f"dn: {dn_of('bob')}\nchangetype: modify\nadd: description\n"
             "description: 1\n", 32),
            ("ldapmodrdn", ["-r", dn_of("ann"), "cn=Anna"], "", 0),
            ("ldapcompare", [dn_of("anna"), "description:1"], "", 6),
            ("ldapdelete", [PEOPLE], "", 66),
            ("ldapmodrdn", ["-r", PEOPLE, "ou=staff"], "", 0),
        ]
        for program, arguments, text, code in steps:
            done = self.slapd.tool(program, *arguments, text=text)
            self.assertEqual(done.returncode, code, f"{program} {arguments}: {done.stderr}")
        moved = f"cn=Anna,ou=staff,{SUFFIX}"
        found = self.slapd.tool("ldapsearch", "-LLL", "-b", SUFFIX, "(description=1)", "dn")
        self.assertEqual(found.stdout.strip(), f"dn: {moved}")
        self.assertEqual(self.slapd.tool("ldapdelete", moved).returncode, 0)
        self.assertEqual(self.slapd.tool("ldapdelete", moved).returncode, 32)
        self.assertEqual(sorted(self.nothing_half()), [SUFFIX, f"ou=staff,{SUFFIX}"])
        self.nothing_open()
        # The base's two entries, and what succeeded: of a refusal nothing is committed.
        self.assertEqual(len(self.commits()), 2 + 5)

    def test_python_ldap_changes_entries_of_any_name(self):
        connection, model = connect(self.slapd), {}
        for n, name in enumerate(NAMES):
            connection.add_s(dn_of(name), person(name))
            connection.modify_s(dn_of(name), [(ldap.MOD_REPLACE, "description", [b"%d" % n])])
            connection.rename_s(dn_of(name), f"cn={names.escape_dn_chars(name + '.')}", delold=1)
            model[name + "."] = str(n)
        connection.delete_s(dn_of("a.b."))
        del model["a.b."]
        found = connection.search_s(PEOPLE, ldap.SCOPE_ONELEVEL, attrlist=["cn", "description"])
        have = {v["cn"][0].decode(): v["description"][0].decode() for _, v in found}
        self.assertEqual(have, model)
        self.nothing_half()

    def test_each_update_is_one_commit_of_all_its_files(self):
        connection = connect(self.slapd)
        connection.add_s(dn_of("boss"), person("boss"))
        for n in range(3):
            connection.add_s(dn_of(str(n), dn_of("boss")), person(str(n)))
        before = {commit["id"] for commit in self.commits()}
        connection.rename_s(dn_of("boss"), "cn=chief", delold=1)
        new = [commit for commit in self.commits() if commit["id"] not in before]
        self.assertEqual(len(new), 1, "a rename is one transaction")
        # So it can be taken back as a whole, under the running server.
        self.site.systx("undo", new[0]["id"], "-C", self.tree)
        found = connection.search_s(dn_of("boss"), ldap.SCOPE_SUBTREE, attrlist=["cn"])
        self.assertEqual(len(found), 4)
        self.assertNotIn(dn_of("chief"), self.nothing_half())

    def test_an_update_that_fails_halfway_leaves_nothing(self):
        """The back end makes the parent's directory first; then the name of its temporary file,
        which is longer than the entry's, is too long."""
        connection = connect(self.slapd)
        connection.add_s(dn_of("leaf"), person("leaf"))
        for length in (249, 300):
            name = "n" * (length - len("cn="))
            with self.assertRaises((ldap.OTHER, ldap.UNWILLING_TO_PERFORM)):
                connection.add_s(dn_of(name, dn_of("leaf")), person(name))
            self.assertFalse(os.path.exists(f"{self.tree}/{SUFFIX}/ou=people/cn=leaf"), length)
        connection.delete_s(dn_of("leaf"))
        self.nothing_half()
        self.nothing_open()

    def test_an_abandoned_update_leaves_nothing_open(self):
        """A client that goes away, or gives its request up, holds nobody up."""
        server, other = self.slapd, connect(self.slapd)
        for round_ in range(40):
            name = f"gone{round_}"
            connection = connect(server)
            request = connection.add_ext(dn_of(name), person(name))
            if round_ % 2:
                connection.abandon_ext(request)
            del connection
            # Its scope is free again, whether it was done or not.
            try:
                other.add_s(dn_of(name), person(name, "other"))
            except ldap.ALREADY_EXISTS:
                other.delete_s(dn_of(name))
        self.nothing_half()
        self.nothing_open()


def worker(number, url, seed, model, doubtful, stop, refused):
    """Changes its own entries at random until it is told to stop.  `model` has what was
    acknowledged; `doubtful` what the entry under way may be as well."""
    server = type("Server", (), {"url": url})
    chance, connection = random.Random(seed), None
    while not stop.is_set():
        name = f"w{number}-{chance.randrange(8)}"
        try:
            connection = connection or connect(server)
            # First it is asked what became of the one that no answer came to.
            if number in doubtful:
                model_of(connection, number, model, doubtful)
            new = change(chance, model.get(name))
            doubtful[number] = (name, new)
            apply(connection, name, model.get(name), new)
            put(model, name, new)
            del doubtful[number]
        except REFUSED as error:
            refused.append(type(error).__name__)
            connection = None
            time.sleep(0.01)


def change(chance, now):
    return str(chance.randrange(1 << 30)) if now is None or chance.random() < 0.6 else None


def apply(connection, name, old, new):
    if old is None:
        connection.add_s(dn_of(name), person(name, new))
    elif new is None:
        connection.delete_s(dn_of(name))
    else:
        swap = [(ldap.MOD_DELETE, "description", [old.encode()]),
                (ldap.MOD_ADD, "description", [new.encode()])]
        connection.modify_s(dn_of(name), swap)


def put(model, name, value):
    if value is None:
        model.pop(name, None)
    else:
        model[name] = value


def model_of(connection, number, model, doubtful):
    """Looks what became of the change in doubt: it was done or it was not."""
    name, wanted = doubtful[number]
    try:
        found = connection.search_s(dn_of(name), ldap.SCOPE_BASE, attrlist=["description"])
        now = found[0][1]["description"][0].decode()
    except ldap.NO_SUCH_OBJECT:
        now = None
    if now not in (model.get(name), wanted):
        raise AssertionError(f"{name} is {now!r}: neither {model.get(name)!r} nor {wanted!r}")
    put(model, name, now)
    del doubtful[number]


class Load:
    """Four clients that work until the end of the block."""

    def __init__(self, test, servers, seed):
        self.test, self.servers, self.seed = test, servers, seed
        self.model, self.doubtful, self.refused, self.failed = {}, {}, [], []
        self.stop = threading.Event()

    def run(self, number):
        url = self.servers[number % len(self.servers)].url
        try:
            worker(number, url, self.seed + number, self.model, self.doubtful, self.stop,
                   self.refused)
        except Exception as error:  # told at the end of the block
            self.failed.append(f"client {number}: {error!r}")

    def __enter__(self):
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(4)]
        for thread in self.threads:
            thread.start()
        return self

    def goes_on(self, much=40):
        """Waits until this much more is acknowledged and in the tree."""
        begun = len(self.test.commits())
        until(lambda: self.failed or len(self.test.commits()) >= begun + much, "the load goes on")

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        told = f"seed {self.seed}\n{self.test.site.daemon_log()}"
        self.test.assertEqual(self.failed, [], told)

    def check(self):
        """What was acknowledged is there; of what was not, all or nothing; and nothing else."""
        connection = connect(self.servers[0])
        for number in list(self.doubtful):
            model_of(connection, number, self.model, self.doubtful)
        have = self.test.nothing_half(self.servers[0])
        want = {dn_of(name): value for name, value in self.model.items()}
        have = {dn: value for dn, value in have.items() if dn.startswith("cn=w")}
        self.test.assertEqual(have, want, f"seed {self.seed}")
        self.test.nothing_open()


class Killed(Guarded):
    ROUNDS = 20 if LONG else 3

    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("SYSTX_SEED") or random.randrange(1 << 30))

    def test_what_was_acknowledged_outlives_a_killed_slapd(self):
        with Load(self, self.all, self.seed) as load:
            for _ in range(self.ROUNDS):
                load.goes_on()
                self.slapd.kill()
                self.slapd.start()
        load.check()
        self.assertLessEqual(set(load.refused), {"SERVER_DOWN", "CONNECT_ERROR"})

    def test_what_was_acknowledged_outlives_a_killed_daemon(self):
        with Load(self, self.all, self.seed) as load:
            for _ in range(self.ROUNDS):
                load.goes_on()
                self.site.kill_daemon()
        load.check()

    def test_what_was_acknowledged_outlives_both(self):
        with Load(self, self.all, self.seed) as load:
            for _ in range(self.ROUNDS):
                load.goes_on()
                self.slapd.kill()
                self.site.kill_daemon()
                self.slapd.start()
        load.check()

    def test_a_rename_that_is_killed_is_done_or_not(self):
        connection = connect(self.slapd)
        connection.add_s(dn_of("a"), person("a"))
        for n in range(3):
            connection.add_s(dn_of(str(n), dn_of("a")), person(str(n)))
        for round_ in range(4 * self.ROUNDS):
            stop = threading.Event()
            renamer = threading.Thread(target=rename_until_down, args=(self.slapd, stop))
            renamer.start()
            begun = len(self.commits())
            until(lambda: len(self.commits()) > begun + round_ % 3, "it renames")
            self.slapd.kill()
            renamer.join()
            self.slapd.start()
            have = self.nothing_half()
            tops = [name for name in ("a", "b") if dn_of(name) in have]
            self.assertEqual(len(tops), 1, have)
            self.assertEqual(sum(f"cn={tops[0]}," in dn for dn in have), 4, have)


def rename_until_down(server, stop):
    try:
        connection = connect(server)
        while not stop.is_set():
            for old, new in (("a", "b"), ("b", "a")):
                try:
                    connection.rename_s(dn_of(old), f"cn={new}", delold=1)
                except ldap.NO_SUCH_OBJECT:
                    pass
    except REFUSED:
        pass


def count(url, times, done, busy):
    """Counts one entry up, from whatever it is, and says how often that was acknowledged."""
    connection = connect(type("Server", (), {"url": url}))
    n = 0
    while n < times:
        found = connection.search_s(dn_of("count"), ldap.SCOPE_BASE, attrlist=["description"])
        old = found[0][1]["description"][0]
        swap = [(ldap.MOD_DELETE, "description", [old]),
                (ldap.MOD_ADD, "description", [b"%d" % (int(old) + 1)])]
        try:
            connection.modify_s(dn_of("count"), swap)
            n += 1
        except ldap.NO_SUCH_ATTRIBUTE:
            pass  # somebody was faster
        except ldap.BUSY:
            with busy.get_lock():
                busy.value += 1
    with done.get_lock():
        done.value += n


class TwoServers(Guarded):
    SERVERS = 2

    def test_no_update_is_lost_between_two_servers(self):
        connect(self.slapd).add_s(dn_of("count"), person("count"))
        times = 200 if LONG else 30
        done, busy = multiprocessing.Value("i"), multiprocessing.Value("i")
        urls = [server.url for server in self.all] * 2
        clients = [multiprocessing.Process(target=count, args=(url, times, done, busy))
                   for url in urls]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.assertEqual(done.value, 4 * times)
        self.assertEqual(self.nothing_half(self.all[1])[dn_of("count")], str(done.value))
        self.assertEqual(busy.value, 0, "each waits for its turn")

    def test_two_servers_show_what_either_has_acknowledged(self):
        with Load(self, self.all, random.randrange(1 << 30)) as load:
            load.goes_on(300 if LONG else 80)
        load.check()
        self.assertEqual(self.nothing_half(self.all[0]), self.nothing_half(self.all[1]))
        self.assertEqual(load.refused, [])


class Bulk(Guarded):
    def test_a_bad_bulk_load_is_taken_back_as_one(self):
        connection = connect(self.slapd)
        connection.add_s(dn_of("before"), person("before"))
        bad = "\n".join(f"dn: {dn_of(f'bad{n}')}\nobjectClass: person\ncn: bad{n}\nsn: b\n"
                        for n in range(100))
        load = ["run", "-C", self.tree, "--", "/usr/sbin/slapadd", "-f", self.slapd.conf]
        self.site.systx(*load, text=bad)
        found = connection.search_s(PEOPLE, ldap.SCOPE_ONELEVEL, attrlist=["cn"])
        self.assertEqual(len(found), 101)
        bulk = self.commits()[0]["id"]
        # Life goes on before somebody notices.
        connection.add_s(dn_of("since"), person("since"))
        connection.modify_s(dn_of("before"), [(ldap.MOD_REPLACE, "description", [b"new"])])
        self.site.systx("undo", bulk, "-C", self.tree)
        have = {dn: value for dn, value in self.nothing_half().items() if dn.startswith("cn=")}
        self.assertEqual(have, {dn_of("since"): "0", dn_of("before"): "new"})

    def test_a_bulk_load_that_fails_leaves_nothing(self):
        names_before = files(self.tree)
        bad = f"dn: {dn_of('one')}\nobjectClass: person\ncn: one\nsn: b\n\ndn: {dn_of('two')}\n" \
              "objectClass: person\ncn: two\n"
        load = ["run", "-C", self.tree, "--", "/usr/sbin/slapadd", "-f", self.slapd.conf]
        done = self.site.systx(*load, text=bad, check=False)
        self.assertIn("two", done.stderr)
        self.assertEqual(files(self.tree), names_before)


class Failing(Guarded):
    """By a daemon some of whose transactions lose without an opponent."""

    INJECT = "20111"

    def test_a_commit_that_fails_is_told_as_busy_and_changes_nothing(self):
        base = [BASE.split("\n\n")[0] + "\n", BASE.split("\n\n")[1]]
        added, busy = 0, 0
        # The numbers of transactions decide which ones lose, and the daemon takes some for itself:
        # of 22 none may lose. So entries are added until some have lost.
        while added < len(base) + 20 or busy < 3:
            self.assertLess(added, 1000, f"{busy} of so many transactions have lost")
            cn = added - len(base)
            text = (base[added] if added < len(base) else
                    f"dn: {dn_of(str(cn))}\nobjectClass: person\ncn: {cn}\nsn: s\n")
            while (done := self.slapd.tool("ldapadd", text=text)).returncode:
                self.assertEqual(done.returncode, 51, done.stderr)
                self.assertRegex(done.stderr, "not (committed|begun)")
                self.assertEqual(len(files(self.tree)), added)
                busy += 1
            added += 1
        self.assertEqual(len(self.nothing_half()), added)
        self.nothing_open()


class OtherSetUps(Guarded):
    def test_the_plugin_is_configured_in_cn_config_too(self):
        server = self.site.slapd("config", self.tree).in_cn_config().start()
        connect(server).add_s(dn_of("one"), person("one"))
        self.assertIn(dn_of("one"), self.nothing_half(server))
        self.assertEqual(len(self.commits()), 3)

    def test_a_database_of_another_kind_is_as_before(self):
        path = f"{self.site.volume}/mdb"
        os.mkdir(path)
        other = ["modulepath /usr/lib/ldap", "moduleload back_mdb", "database mdb",
                 'suffix "o=other"', f"directory {path}", 'rootdn "cn=admin,o=other"',
                 f"rootpw {PASSWORD}"]
        server = self.site.slapd("both", self.tree, options=other).start()
        connection = ldap.initialize(server.url)
        connection.simple_bind_s("cn=admin,o=other", PASSWORD)
        connection.add_s("o=other", [("objectClass", [b"organization"]), ("o", [b"other"])])
        self.assertEqual(len(self.commits()), 2)


class Without(unittest.TestCase):
    """Stock slapd on the same files: that these checks see what they look for."""

    def setUp(self):
        self.site = Site()
        self.addCleanup(self.site.close)
        self.tree = self.site.tree("plain", guard=False)

    def test_two_servers_lose_updates(self):
        servers = [self.site.slapd(f"s{n}", self.tree, plugin=False).start() for n in range(2)]
        servers[0].tool("ldapadd", text=BASE)
        connect(servers[0]).add_s(dn_of("count"), person("count"))
        for _ in range(50):
            done, busy = multiprocessing.Value("i"), multiprocessing.Value("i")
            clients = [multiprocessing.Process(target=count, args=(s.url, 100, done, busy))
                       for s in servers]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            if int(entries(servers[0].slapcat())[dn_of("count")]) < done.value:
                return
            anew = [(ldap.MOD_REPLACE, "description", [b"0"])]
            connect(servers[0]).modify_s(dn_of("count"), anew)
        self.fail("no update was lost")


if not LONG:
    del Without


class Refused(unittest.TestCase):
    def setUp(self):
        self.site = Site(megabytes=40)
        self.addCleanup(self.site.close)

    def add(self, server):
        return server.tool("ldapadd", text=BASE)

    def test_without_a_guard_nothing_is_changed(self):
        tree = self.site.tree("plain", guard=False)
        done = self.add(self.site.slapd("slapd", tree).start())
        self.assertEqual(done.returncode, 53)
        self.assertIn(f"systx mount {tree}", done.stderr)
        self.assertEqual(files(tree), [])

    def test_a_full_disk_is_busy_and_changes_nothing(self):
        tree = self.site.tree("tree")
        server = self.site.slapd("slapd", tree).start()
        self.assertEqual(self.add(server).returncode, 0)
        before = files(tree)
        filler = f"{self.site.volume}/filler"
        with open(filler, "wb", buffering=0) as full:
            try:
                while full.write(bytes(4096)):
                    pass
            except OSError:
                pass
        big = person("big", "x" * 300000)
        connection = connect(server)
        with self.assertRaises((ldap.BUSY, ldap.OTHER)):
            connection.add_s(dn_of("big"), big)
        self.assertEqual(files(tree), before)
        os.unlink(filler)
        connection.add_s(dn_of("big"), big)

    def test_an_unprivileged_slapd_says_how_to_be_started(self):
        tree = self.site.tree("tree")
        os.chown(tree, *OPENLDAP)
        drop = ["setpriv", f"--reuid={OPENLDAP[0]}", f"--regid={OPENLDAP[1]}", "--clear-groups"]
        os.chmod(self.site.base, 0o777)
        done = self.add(self.site.slapd("slapd", tree, before=drop).start())
        self.assertEqual(done.returncode, 53)
        self.assertIn("systx exec", done.stderr)
        # A copy, since the user may not get at what root has built.
        shutil.copy(self.site.systx_binary, f"{self.site.base}/systx")
        launched = [*drop, f"{self.site.base}/systx", "exec", "--"]
        done = self.add(self.site.slapd("launched", tree, before=launched).start())
        self.assertEqual(done.returncode, 0, done.stderr)
        # As a service with AmbientCapabilities=.
        capable = [*drop, "--inh-caps=+sys_admin,+sys_chroot",
                   "--ambient-caps=+sys_admin,+sys_chroot"]
        done = self.site.slapd("capable", tree, before=capable).start().tool("ldapdelete", PEOPLE)
        self.assertEqual(done.returncode, 0, done.stderr)
        owners = {os.stat(f"{tree}/{name}").st_uid for name in files(tree)}
        self.assertEqual(owners, {OPENLDAP[0]})


def user_of_slapd():
    import pwd
    entry = pwd.getpwnam("openldap")
    return entry.pw_uid, entry.pw_gid


OPENLDAP = user_of_slapd()


if __name__ == "__main__":
    report.run()
