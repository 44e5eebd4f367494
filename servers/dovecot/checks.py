"""What the README promises, shown with stock clients against stock Dovecot.  Started by ./test."""

import errno
import imaplib
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import report  # noqa: E402
from load import GONE, Client, Deliveries, all_of, message, noted, together  # noqa: E402
from site_ import LDA, LIMIT, MAIL, SHIM, TOP, Site, until  # noqa: E402

LONG = bool(os.environ.get("SYSTX_LONG"))
SEED = int(os.environ.get("SYSTX_SEED") or random.randrange(1 << 32))


class Mail(unittest.TestCase):
    """With a Dovecot, or several, on one guarded tree."""

    SERVERS = 1
    OPTIONS = ""

    def setUp(self):
        self.site = Site()
        self.addCleanup(self.site.close)
        self.tree = self.site.mail("mail")
        self.history = []  # of what was done to the servers
        self.all = [self.site.dovecot(f"d{n}", self.tree, options=self.OPTIONS).start()
                    for n in range(self.SERVERS)]
        self.server = self.all[0]
        self.home = f"{self.tree}/ann/Maildir"
        self.visit()

    def workers(self, clients, forgiving=False):
        servers = [self.all[n % len(self.all)] for n in range(clients + 2)]
        made = [Client(servers[n], n, f"{SEED} {n}", forgiving) for n in range(clients)]
        made.append(Deliveries(servers[clients], clients, True, forgiving))
        made.append(Deliveries(servers[-1], clients + 1, False, forgiving))
        return made

    def no_complaints(self, but="^$"):
        for server in self.all:
            lines = [line for line in server.complaints() if not re.search(but, line)]
            self.assertEqual(lines[:20], [], f"seed {SEED}")

    def sessions_end(self):
        """A client that has said goodbye, or is gone, does not wait for its session's end."""
        until(lambda: not any(server.children("imap") for server in self.all),
              "the sessions end")

    def nothing_open(self):
        said = self.site.systx("list", "--json").stdout
        self.assertIn('"transactions":[]', said.replace(" ", "").replace("\n", ""))

    def visit(self, readonly=False):
        """A session that looks at all there is; unless it only reads it takes what is in new/."""
        client = self.server.connect()
        client.select(readonly=readonly)
        found = all_of(client)
        client.logout()
        return found

    def in_mailbox(self):
        return self.visit(readonly=True)

    def in_the_middle(self, meanwhile):
        """What a session answers that flags 600 messages, when something happens in the middle."""
        for n in range(600):
            path = f"{self.home}/cur/{n}.x:2,"
            with open(path, "wb") as file:
                file.write(message(f"m{n}"))
            os.chown(path, MAIL, MAIL)
        client, answers = self.server.connect(), []
        client.select()

        def store():
            try:
                answers.append(client.uid("STORE", "1:*", "+FLAGS.SILENT", "(\\Flagged)")[0])
            except GONE:
                answers.append("gone")

        until(lambda: len(self.server.children("imap")) == 1, "the session before has ended")
        [pid] = self.server.children("imap")
        storing = threading.Thread(target=store)
        storing.start()
        # Of 600 renames some are done, and far more are to come than the question takes.
        until(lambda: "renamed" in self.site.systx("status").stdout, "the session renames")
        os.kill(pid, signal.SIGSTOP)
        meanwhile()
        os.kill(pid, signal.SIGCONT)
        storing.join(LIMIT)
        return answers

    def all_there(self, known):
        """What was acknowledged, and nothing that nobody has asked for."""
        self.sessions_end()
        self.visit()
        found = self.in_mailbox()
        must, may = set(), set()
        for one in known:
            must |= set(one.mine) if isinstance(one, Client) else one.done
            may |= one.maybe
        gone = {name for one in known if isinstance(one, Client) for name in one.deleted}
        said = f"seed {SEED}\n{self.story(known)}"
        self.assertEqual(must - set(found), set(), f"lost, {said}")
        self.assertEqual(gone & set(found), set(), f"came back, {said}")
        self.assertEqual(set(found) - must - may, set(), said)
        for one in known:
            if not isinstance(one, Client):
                continue
            for name, uid in one.mine.items():
                self.assertEqual(found[name][0], uid, f"{name} has another UID, {said}")
            have = {uid: one.word in flags for uid, flags in found.values()}
            wrong = {uid: there for uid, there in one.flags.items()
                     if uid in have and uid not in one.unsure and have[uid] != there}
            self.assertEqual(wrong, {}, f"flags of {one.word}, {said}")
        self.files_agree(found)
        self.sessions_end()
        return found

    def story(self, known):
        """Who did what when, and what Dovecot complained of."""
        lines = [line for one in known if isinstance(one, Client) for line in one.history]
        return "\n".join([*sorted(self.history + lines), *self.server.complaints()])

    def files_agree(self, found):
        """The directory alone tells the same as the index files do."""
        files = os.listdir(f"{self.home}/cur") + os.listdir(f"{self.home}/new")
        self.assertEqual(len(files), len(found))
        self.assertEqual(len({name.split(":")[0] for name in files}), len(files))
        with open(f"{self.home}/dovecot-uidlist") as file:
            head, *lines = file.read().splitlines()
        uids = [int(line.split()[0]) for line in lines]
        self.assertEqual(uids, sorted(set(uids)))
        self.assertGreaterEqual(set(uids), {uid for uid, _ in found.values()})
        for name in os.listdir(self.home):
            if name.startswith("dovecot.index"):
                os.unlink(f"{self.home}/{name}")
        self.assertEqual(self.in_mailbox(), found)


class Clients(Mail):
    def test_a_stock_client_finds_what_it_has_changed(self):
        client = self.server.connect()
        client.select()
        for n in range(3):
            done, said = client.append("INBOX", "(\\Flagged word)", None, message(f"m{n}"))
            self.assertEqual(done, "OK", said)
        client.noop()
        client.store("1", "+FLAGS", "(\\Seen)")
        client.store("2", "+FLAGS", "(\\Deleted)")
        self.assertEqual(client.expunge()[1], [b"2"])
        self.assertEqual(client.create("Other")[0], "OK")
        self.assertEqual(client.copy("1", "Other")[0], "OK")
        self.assertEqual(client.rename("Other", "Else")[0], "OK")
        client.select("Else")
        self.assertEqual(sorted(all_of(client)), ["m0"])
        self.assertEqual(client.delete("Else")[0], "OK")
        client.logout()
        found = self.in_mailbox()
        self.assertEqual({name: flags for name, (_, flags) in found.items()},
                         {"m0": {"\\Flagged", "word", "\\Seen"}, "m2": {"\\Flagged", "word"}})
        self.files_agree(found)
        self.assertEqual(self.server.deliver(message("lda")).returncode, 0)
        self.assertIn("lda", self.in_mailbox())
        self.no_complaints()
        self.nothing_open()
        owners = {(st.st_uid, st.st_gid) for st in
                  (os.stat(os.path.join(at, n)) for at, ds, fs in os.walk(self.tree)
                   for n in ds + fs)}
        self.assertEqual(owners, {(MAIL, MAIL)})

    def test_a_command_is_one_transaction(self):
        def commits():
            return len(self.site.systx("log").stdout.splitlines())

        client = self.server.connect()
        client.select()
        client.append("INBOX", None, None, message("first"))  # makes the cache file
        # One of a program that knows nothing of locks is waiting; it is not lost from sight.
        with open(f"{self.home}/new/plain", "wb") as file:
            file.write(message("plain"))
        os.chown(f"{self.home}/new/plain", MAIL, MAIL)
        for command in (lambda: client.append("INBOX", None, None, message("second")),
                        lambda: client.store("1", "+FLAGS", "(\\Deleted)"),
                        lambda: client.expunge()):
            before = commits()
            done, said = command()
            self.assertEqual((done, commits() - before), ("OK", 1), said)
        self.assertEqual(os.listdir(f"{self.home}/new"), [])
        found = self.in_mailbox()
        self.assertEqual(sorted(found), ["plain", "second"])
        self.files_agree(found)
        self.no_complaints()

    def test_lock_files_mean_nothing(self):
        os.mkdir(f"{self.home}/dovecot-uidlist.lock")
        client = self.server.connect()
        client.select()
        self.assertEqual(client.append("INBOX", None, None, message("one"))[0], "OK")
        self.no_complaints()

    def test_mail_processes_have_two_capabilities(self):
        client = self.server.connect()
        client.select()
        [pid] = self.server.children("imap")
        with open(f"/proc/{pid}/status") as file:
            lines = [line for line in file if line.startswith(("Cap", "Uid"))]
        said = dict(line.strip().split(":\t") for line in lines)
        self.assertEqual(said["Uid"].split(), [str(MAIL)] * 4)
        sets = {said[name].lstrip("0") for name in ("CapEff", "CapPrm")}
        self.assertEqual(sets, {f"{1 << 21 | 1 << 18:x}"})  # SYS_ADMIN, SYS_CHROOT
        self.assertEqual({said[name].strip("0") for name in ("CapInh", "CapAmb")}, {""})


    def test_a_delivery_by_another_user_is_started_by_systx_exec(self):
        for name in ("systx", "libsystx_dovecot.so", "libsystx.so.0"):
            # Copies, since the user may not get at what root has built.
            shutil.copy(f"{self.site.target}/{name}", f"{self.site.base}/{name}")
        os.chmod(f"{self.server.base}/log", 0o666)
        base, before = self.site.base, len(self.server.complaints())
        environment = dict(self.site.environment, USER="ann", HOME=f"{self.tree}/ann",
                           LD_LIBRARY_PATH=base, SYSTX_MAIL=self.tree)
        del environment["SYSTX_RUNTIME_DIR"]
        drop = ["setpriv", f"--reuid={MAIL}", f"--regid={MAIL}", "--clear-groups"]
        deliver = ["env", f"LD_PRELOAD={base}/libsystx_dovecot.so", LDA, "-c",
                   f"{self.server.base}/conf"]
        for how, code in (([], 75), ([f"{base}/systx", "exec", "--"], 0)):
            done = subprocess.run([*drop, *how, *deliver], input=message(f"m{code}"), cwd="/",
                                  env=environment, capture_output=True)
            self.assertEqual(done.returncode, code, done)
        self.assertEqual(list(self.in_mailbox()), ["m0"])
        self.assertIn("systx exec", "".join(self.server.complaints()[before:]))


class Stress(Mail):
    # Logs are replaced all the time, under sessions that have them open.
    OPTIONS = "mail_index_log_rotate_min_age = 1s\nmail_index_log_rotate_min_size = 1k\n"

    def test_nothing_is_lost(self):
        known = together(self.workers(8), 60 if LONG else 6)
        found = self.all_there(known)
        done = sum(one.made for one in known)
        print(f"  {done} messages made, {len(found)} there", flush=True)
        self.no_complaints()
        self.nothing_open()


class TwoServers(Stress):
    SERVERS = 2


class Killed(Mail):
    def test_a_killed_imap_process_takes_only_its_own_transaction_along(self):
        killed, chance = [], random.Random(SEED)

        def kill():
            # Dovecot starts no new ones for a while after some were killed.
            alive = self.server.children("imap")
            if len(alive) > 3:
                pid = chance.choice(alive)
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                self.history.append(noted(f"imap process {pid} is killed"))

        known = together(self.workers(6, forgiving=True), 60 if LONG else 5, kill,
                         lambda: len(killed) >= 6)
        self.all_there(known)
        self.assertGreaterEqual(len(killed), 6)
        print(f"  {len(killed)} killed", flush=True)
        self.no_complaints(but="killed with signal 9|throttling|Remote closed connection")
        self.nothing_open()

    def test_a_killed_daemon_has_what_was_acknowledged(self):
        begun, kills = time.monotonic(), []

        def kill():
            if time.monotonic() - begun > 1.5 * (len(kills) + 1) and len(kills) < 3:
                self.history.append(noted("the daemon is killed"))
                self.site.kill_daemon()
                self.history.append(noted("the next one serves"))
                kills.append(time.monotonic())

        known = together(self.workers(6, forgiving=True), 5, kill, lambda: len(kills) == 3)
        self.assertEqual(len(kills), 3)
        self.all_there(known)
        before = len(self.server.complaints())
        known = together(self.workers_that_go_on(), 2)
        self.assertEqual(self.server.complaints()[before:], [])
        self.nothing_open()

    def test_what_the_daemon_takes_along_is_not_acknowledged(self):
        answers = self.in_the_middle(self.site.kill_daemon)
        self.assertEqual(answers, ["gone"], "\n".join(self.server.complaints()[-5:]))
        found = self.in_mailbox()
        self.assertEqual(len(found), 600)
        self.assertEqual({word for _, flags in found.values() for word in flags}, set())
        self.files_agree(found)
        self.nothing_open()

    def test_an_acknowledged_change_is_there_after_the_daemon_was_killed(self):
        for n in range(6):
            client = self.server.connect()
            client.select()
            for name in (f"kept{n}", f"gone{n}"):
                self.assertEqual(client.append("INBOX", None, None, message(name))[0], "OK")
            last = len(all_of(client))
            self.assertEqual(client.store(str(last - 1), "+FLAGS", "(\\Flagged)")[0], "OK")
            client.store(str(last), "+FLAGS", "(\\Deleted)")
            self.assertEqual(client.expunge(), ("OK", [str(last).encode()]))
            self.site.kill_daemon()
            client.shutdown()
            found = self.in_mailbox()
            self.assertEqual({name: flags for name, (_, flags) in found.items()},
                             {f"kept{k}": {"\\Flagged"} for k in range(n + 1)})
        self.files_agree(found)
        self.nothing_open()

    def workers_that_go_on(self):
        return [Client(self.server, 10 + n, f"{SEED} on {n}", False) for n in range(4)]


class Refused(Mail):
    """Commits that fail: who has asked is not told OK, and the next one finds a whole mailbox."""

    def flags(self, found):
        return {frozenset(flags) for _, flags in found.values()}

    def test_a_plain_program_changes_what_a_session_has_read(self):
        def marks():
            for name in os.listdir(f"{self.home}/cur"):
                os.rename(f"{self.home}/cur/{name}", f"{self.home}/cur/{name}S")

        answers = self.in_the_middle(marks)
        self.assertEqual(answers, ["gone"], self.server.complaints()[-5:])
        self.assertRegex("".join(self.server.complaints()), "systx: not committed")
        found = self.in_mailbox()
        self.assertEqual((len(found), self.flags(found)), (600, {frozenset(["\\Seen"])}))
        client = self.server.connect()
        client.select()
        self.assertEqual(client.store("1:*", "+FLAGS.SILENT", "(\\Flagged)")[0], "OK")
        found = self.in_mailbox()
        self.assertEqual(self.flags(found), {frozenset(["\\Seen", "\\Flagged"])})
        self.files_agree(found)
        self.nothing_open()

    def fill(self):
        """A file that takes all room there is, also that of root."""
        path, size = f"{self.site.volume}/filler", 1 << 28
        with open(path, "xb") as file:
            while size >= 1024:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENOSPC)
                    size //= 2
        return path

    def told(self, command):
        """What a new session is told of a command."""
        try:
            client = self.server.connect()
            client.select()
            return command(client)[0]
        except (imaplib.IMAP4.error, OSError):
            return "gone"

    def test_a_full_disk_is_told_and_changes_nothing(self):
        client = self.server.connect()
        client.select()
        for n in range(4):
            client.append("INBOX", None, None, message(f"m{n}"))
        before, filler = self.in_mailbox(), self.fill()
        commands = (lambda c: c.append("INBOX", None, None, message("small")),
                    lambda c: c.append("INBOX", None, None, message("large") + b"x" * (4 << 20)),
                    lambda c: c.store("1", "+FLAGS", "(\\Seen)"),
                    lambda c: c.copy("2", "INBOX"),
                    lambda c: c.create("Other"))
        for command in commands:
            self.assertNotEqual(self.told(command), "OK", self.server.complaints()[-5:])
        # A session from before, too.
        with self.assertRaises(GONE):
            client.store("4", "+FLAGS", "(\\Deleted)")
        self.assertEqual(self.server.deliver(message("lda")).returncode, 75)
        os.unlink(filler)
        self.assertEqual(self.in_mailbox(), before)
        self.files_agree(before)
        for command in commands:
            self.assertEqual(self.told(command), "OK", self.server.complaints()[-5:])
        self.assertEqual(self.server.deliver(message("lda")).returncode, 0)
        self.nothing_open()


class MadeUp(Mail):
    """Conflicts that nobody has caused, at one of sixteen files that a transaction meets."""

    def made_up(self, conflicts):
        self.server.stop()
        self.site.another_daemon(conflicts)
        self.server.start()

    def test_sessions_that_lose_are_told(self):
        self.made_up(str(SEED))
        known = together(self.workers(6, forgiving=True), 60 if LONG else 6)
        # An index that is made anew meets all messages, and would lose each time.
        self.made_up(None)
        self.all_there(known)
        lost = sum(one.lost_sessions for one in known)
        self.assertGreater(lost, 0)
        print(f"  {lost} sessions ended", flush=True)
        self.nothing_open()


def mark(directory, ready, until_set):
    """What another client does: marks each message as read, and again as unread."""
    os.chdir(directory)
    while not until_set.is_set():
        for name in os.listdir("."):
            base, _, flags = name.partition(":2,")
            os.rename(name, f"{base}:2,{'' if flags else 'S'}")
            if until_set.is_set():
                break
        ready.set()


class Anomaly(unittest.TestCase):
    """A message vanishes from a listing while another client marks it as read."""

    MESSAGES = 1500

    def setUp(self):
        self.site = Site()
        self.addCleanup(self.site.close)

    def marked(self, guard):
        """A directory of messages in which a program marks, without transactions."""
        tree = self.site.mail("mail", guard)
        for n in range(self.MESSAGES):
            open(f"{tree}/{n}.x:2,", "x").close()
        ready, enough = multiprocessing.Event(), multiprocessing.Event()
        marker = multiprocessing.Process(target=mark, args=(tree, ready, enough), daemon=True)
        marker.start()
        self.addCleanup(lambda: (enough.set(), marker.join()))
        ready.wait(60)
        return tree

    def test_plain_listings_miss_messages(self):
        tree, end = self.marked(guard=False), time.monotonic() + 60
        while len({name.split(":")[0] for name in os.listdir(tree)}) == self.MESSAGES:
            self.assertLess(time.monotonic(), end, "no message has vanished")

    def test_transactions_list_all(self):
        tree = self.marked(guard=True)
        program = (f"import os, time, systx\nend = time.monotonic() + {20 if LONG else 3}\n"
                   "while time.monotonic() < end:\n"
                   "    with systx.transaction(flags=systx.READ_ONLY):\n"
                   "        names = {n.split(':')[0] for n in os.listdir('.')}\n"
                   f"    assert len(names) == {self.MESSAGES}, len(names)\n"
                   "    print('listed')\n")
        environment = dict(self.site.environment, PYTHONPATH=f"{TOP}/bindings/python")
        done = subprocess.run([sys.executable, "-B", "-c", program], cwd=tree, env=environment,
                              text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        print(f"  {done.stdout.count('listed')} listings", flush=True)

    def marked_by_dovecot(self, preload, guard, seconds, enough=lambda said: True):
        """Sessions that mark all messages, and others that list: what these miss, and the log.
        They go on until that is enough."""
        tree = self.site.mail("mail", guard)
        os.makedirs(f"{tree}/ann/Maildir/cur")
        for sub in ("new", "tmp"):
            os.mkdir(f"{tree}/ann/Maildir/{sub}")
        for n in range(self.MESSAGES):
            with open(f"{tree}/ann/Maildir/cur/{n}.x:2,", "wb") as file:
                file.write(message(str(n)))
        for at, _, files in os.walk(f"{tree}/ann"):
            for name in [at, *(os.path.join(at, name) for name in files)]:
                os.chown(name, MAIL, MAIL)
        marking = self.site.dovecot("marking", tree, preload=preload).start()
        # Without index files each look is at the directory.
        where = "mail_location = maildir:~/Maildir:INDEX=MEMORY"
        listing = self.site.dovecot("listing", tree, preload=preload, options=where).start()
        client = marking.connect()
        client.select()
        uids = set(client.uid("SEARCH", "ALL")[1][0].split())
        self.assertEqual(len(uids), self.MESSAGES)
        known, end = [], time.monotonic() + LIMIT
        while True:
            workers = [Marker(marking, n, uids) for n in range(2)]
            workers += [Lister(listing, n, uids) for n in range(2, 4)]
            known += together(workers, seconds)
            missed = [text for one in known for text in one.missed]
            log = marking.complaints() + listing.complaints()
            if enough(missed + log) or time.monotonic() > end:
                return missed, log, known

    def test_sessions_with_transactions_list_all(self):
        missed, log, known = self.marked_by_dovecot(SHIM, True, 20 if LONG else 5)
        self.assertEqual((missed, log), ([], []))
        done = [sum(one.done for one in known if type(one) is kind) for kind in (Marker, Lister)]
        print(f"  {done[0]} times 50 messages marked, {done[1]} listings", flush=True)
        self.assertGreater(min(done), 3)

    def test_sessions_without_locks_and_transactions_miss_messages(self):
        def anomalies(said):
            return [text for text in said if re.search("missing [1-9]|reappeared", text)]

        missed, log, _ = self.marked_by_dovecot("dovecot_without.so", False, 4, anomalies)
        said = anomalies(missed + log)
        self.assertNotEqual(said, [], "\n".join((missed + log)[:20]) or "nothing was missed")
        print(f"  {len(said)} times, such as: {said[0]}", flush=True)


class Marker:
    """A session that marks messages as read, and as unread again."""

    def __init__(self, server, number, uids):
        self.server, self.number, self.uids = server, number, uids
        self.client, self.missed, self.done = None, [], 0

    def step(self):
        try:
            self.client = self.client or self.server.connect()
            self.client.select()
            self.once()
            self.done += 1
        except (imaplib.IMAP4.error, OSError) as error:
            self.missed.append(str(error))
            self.client = None

    def once(self):
        how, first = "-" if self.done % 2 else "+", self.done // 2 * 50 % len(self.uids) + 1
        word = ("\\Seen", "\\Flagged")[self.number % 2]
        chosen = f"{first}:{first + 49}"
        self.expect(self.client.store(chosen, f"{how}FLAGS.SILENT", f"({word})"))

    def expect(self, answer):
        if answer[0] != "OK":
            self.missed.append(f"{answer}")
        return answer[1]

    def result(self):
        self.server = self.client = self.uids = None
        return self


class Lister(Marker):
    """A session that looks which messages there are."""

    def once(self):
        found = set(self.expect(self.client.uid("SEARCH", "ALL"))[0].split())
        if found != self.uids:
            self.missed.append(f"missing {len(self.uids - found)}, new {len(found - self.uids)}")


class Unguarded(unittest.TestCase):
    def test_without_a_guard_nothing_is_changed(self):
        site = Site()
        self.addCleanup(site.close)
        tree = site.mail("plain", guard=False)
        server = site.dovecot("dovecot", tree).start()
        client = server.connect()
        self.assertEqual(client.append("INBOX", None, None, message("one"))[0], "NO")
        self.assertNotEqual(server.deliver(message("two")).returncode, 0)
        self.assertIn(f"systx mount {tree}", server.log())
        messages = [name for at, _, files in os.walk(tree) for name in files
                    if os.path.basename(at) in ("new", "cur")]
        self.assertEqual(messages, [])


if __name__ == "__main__":
    report.run()
