"""Clients that know what they were told, and whether all of it is there."""

import imaplib
import multiprocessing
import os
import queue
import random
import re
import signal
import socket
import time
import traceback

from site_ import LIMIT, MAIL, die_with_parent

# What a client hears when its session or the server ends: it connects again.
GONE = (imaplib.IMAP4.abort, OSError)


def message(name):
    return (f"From: a@example.com\r\nTo: b@example.com\r\nSubject: {name}\r\n"
            f"Message-ID: <{name}@example.com>\r\n\r\n{name}\r\n" + "x" * 500 + "\r\n").encode()


def noted(text):
    """A line of a history."""
    return f"{time.monotonic():11.3f} {text}"


def listed(answer):
    """UID, name and flags of each message, of an answer to FETCH."""
    found, line = [], b""
    for part in answer:
        if part is None:
            continue
        head = part[0] if isinstance(part, tuple) else part
        line += head
        if isinstance(part, tuple):
            line += b" " + part[1]
            continue
        uid = re.search(rb"UID (\d+)", line)
        name = re.search(rb"Subject: (\S+)", line)
        flags = re.search(rb"FLAGS \(([^)]*)\)", line)
        if uid and name and flags:
            kept = set(flags[1].decode().split()) - {"\\Recent"}
            found.append((int(uid[1]), name[1].decode(), kept))
        line = b""
    return found


def all_of(client):
    """What is in the mailbox, by name; UIDs rise, and no name comes twice."""
    done, answer = client.uid("FETCH", "1:*", "(UID FLAGS BODY.PEEK[HEADER.FIELDS (SUBJECT)])")
    assert done == "OK", answer
    found = listed(answer)
    uids = [uid for uid, _, _ in found]
    assert uids == sorted(set(uids)), f"UIDs do not rise: {uids}"
    names = [name for _, name, _ in found]
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) \
        else set()
    assert not twice, f"there twice: {twice}"
    return {name: (uid, flags) for uid, name, flags in found}


class Client:
    """Does random things to one mailbox; what it says is its own is changed by nobody else: its
    messages' being there, and its keyword on any message."""

    def __init__(self, server, number, seed, forgiving):
        self.server, self.number, self.random = server, number, random.Random(seed)
        self.forgiving, self.word, self.client = forgiving, f"k{number}", None
        self.mine, self.flags = {}, {}     # UID by name; whether the keyword is there, by UID
        self.maybe, self.unsure = set(), set()  # names and UIDs about which no answer came
        self.deleted, self.validity, self.next = set(), None, 0
        self.made = self.lost_sessions = 0
        self.history = []  # of its changes and sessions, for who finds something else

    def note(self, text):
        who = f"client {self.number}, session {self.lost_sessions}"
        self.history.append(noted(f"{who}: {text}"))

    def ready(self):
        if self.client is None:
            self.client = self.server.connect()
            self.note("is there")
            self.select()
        return self.client

    def expect(self, answer):
        done, data = answer
        assert done == "OK", f"client {self.number}: {done} {data}"
        return data

    def select(self):
        self.expect(self.client.select())
        validity = self.client.response("UIDVALIDITY")[1][0]
        following = int(self.client.response("UIDNEXT")[1][0])
        assert self.validity in (None, validity), "UIDVALIDITY has changed"
        assert following >= self.next, f"UIDNEXT went from {self.next} to {following}"
        self.validity, self.next = validity, following

    def append(self):
        name = f"c{self.number}-{self.made}"
        self.made += 1
        self.maybe.add(name)
        self.note(f"APPEND {name}")
        data = self.expect(self.client.append("INBOX", None, None, message(name)))
        validity, uid = re.search(rb"APPENDUID (\d+) (\d+)", data[0]).groups()
        assert validity == self.validity and int(uid) >= self.next, data
        self.note(f"OK, UID {int(uid)}")
        self.maybe.discard(name)
        self.mine[name], self.next = int(uid), int(uid) + 1

    def store(self):
        uids = self.search()
        if not uids:
            return
        chosen = self.random.sample(uids, min(len(uids), self.random.choice((1, 1, 3, 20))))
        there = self.random.random() < 0.6
        self.unsure |= set(chosen)
        how = "+FLAGS.SILENT" if there else "-FLAGS.SILENT"
        which = ",".join(map(str, chosen))
        self.note(f"STORE {which} {how} ({self.word})")
        self.expect(self.client.uid("STORE", which, how, f"({self.word})"))
        self.note("OK")
        self.unsure -= set(chosen)
        self.flags.update(dict.fromkeys(chosen, there))

    def expunge(self):
        if len(self.mine) < 2:
            return self.append()
        name = self.random.choice(sorted(self.mine))
        uid = str(self.mine.pop(name))
        self.maybe.add(name)
        self.note(f"EXPUNGE {uid}, {name}")
        self.expect(self.client.uid("STORE", uid, "+FLAGS.SILENT", "(\\Deleted)"))
        self.expect(self.client.uid("EXPUNGE", uid))
        self.note("OK")
        self.maybe.discard(name)
        self.deleted.add(name)

    def search(self):
        """All that this client knows to be there is."""
        self.expect(self.client.noop())
        uids = list(map(int, self.expect(self.client.uid("SEARCH", "ALL"))[0].split()))
        assert uids == sorted(set(uids)), uids
        missing = set(self.mine.values()) - set(uids)
        assert not missing, f"client {self.number}: not listed: {missing}"
        return uids

    def step(self):
        choices = (self.append, self.append, self.store, self.store, self.store, self.expunge,
                   self.expunge, self.search, self.select)
        try:
            self.ready()
            self.random.choice(choices)()
        except GONE as error:
            if not self.forgiving:
                raise
            self.lost(error)
        except AssertionError as error:
            if not self.forgiving or "[SERVERBUG]" not in str(error):
                raise
            self.lost(error)  # the daemon is away

    def lost(self, error):
        self.note(f"ended: {error!r}")
        self.lost_sessions += 1
        try:
            self.client and self.client.shutdown()
        except OSError:
            pass
        self.client = None
        time.sleep(0.05)  # a server that is away is not asked without pause

    def result(self):
        for name in ("client", "server", "random"):
            delattr(self, name)
        return self


class Deliveries:
    """Messages by the delivery agent, or by a program that knows nothing but Maildir."""

    def __init__(self, server, number, agent, forgiving):
        self.server, self.number, self.agent, self.made = server, number, agent, 0
        self.forgiving, self.done, self.maybe, self.lost_sessions = forgiving, set(), set(), 0

    def step(self):
        name = f"d{self.number}-{self.made}"
        self.made += 1
        self.maybe.add(name)
        if self.agent:
            done = self.server.deliver(message(name))
            # 75: the caller keeps the message, and tries again. So it does after an assertion of
            # Dovecot's own, in the middle of what it does after a write that failed.
            log = self.server.complaints()
            given_up = done.returncode == 75 or (
                done.returncode == -signal.SIGABRT and any("Panic: " in line for line in log))
            assert done.returncode == 0 or self.forgiving and given_up, (done, log[-8:])
            if done.returncode:
                return
        else:
            try:
                self.plain(name)
            except OSError:
                if not self.forgiving:
                    raise
                time.sleep(0.05)
                return
            time.sleep(0.02)
        self.maybe.discard(name)
        self.done.add(name)

    def plain(self, name):
        home = f"{self.server.tree}/ann/Maildir"
        unique = f"{int(time.time())}.{name}.{socket.gethostname()}"
        with open(f"{home}/tmp/{unique}", "wb") as file:
            file.write(message(name).replace(b"\r\n", b"\n"))
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{home}/tmp/{unique}", f"{home}/new/{unique}")
        for sub in ("new", "tmp"):
            fd = os.open(f"{home}/{sub}", os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    def result(self):
        self.server = None
        return self


def work(what, until, results):
    die_with_parent()
    try:
        if isinstance(what, Deliveries) and not what.agent:
            os.setgid(MAIL)
            os.setuid(MAIL)
        while not until.is_set():
            what.step()
        results.put(what.result())
    except BaseException:
        results.put(f"{type(what).__name__} {what.number}: {traceback.format_exc()}")


def together(workers, seconds, meanwhile=lambda: None, enough=lambda: True):
    """All of them at once, for that long and until it is enough; what they know in the end."""
    until, results = multiprocessing.Event(), multiprocessing.Queue()
    processes = [multiprocessing.Process(target=work, args=(w, until, results)) for w in workers]
    for process in processes:
        process.start()
    end, known = time.monotonic() + seconds, []
    while time.monotonic() < end or not enough() and time.monotonic() < end + LIMIT:
        meanwhile()
        try:
            known.append(results.get(timeout=0.05))
            break  # one has ended before its time
        except queue.Empty:
            pass
    until.set()
    while len(known) < len(workers):
        known.append(results.get(timeout=LIMIT))
    for process in processes:
        process.join()
    wrong = [one for one in known if isinstance(one, str)]
    assert not wrong, "\n".join(wrong)
    return known
