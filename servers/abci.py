"""An engine for the checks of one application: it orders what it is told to, and gives snapshots
that are true or not.  It speaks ABCI 0.38 by itself, so no engine has to be built for it."""

import base64
import collections
import hashlib
import http.server
import json
import socket
import subprocess
import threading
import time

from volume import LIMIT, die_with_parent

CHUNK = 256 << 10
# Results of an offer, and of a chunk.
ACCEPT, REJECT, REJECT_FORMAT = 1, 3, 4
RETRY, REJECT_SNAPSHOT = 3, 5

Snapshot = collections.namedtuple("Snapshot", "height format chunks hash metadata bytes")


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(**fields):
    """`n3=...` is field 3: a number, bytes, or a list of these."""
    out = b""
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            key = int(name[1:]) << 3
            if isinstance(value, int):
                out += varint(key) + varint(value)
            else:
                out += varint(key | 2) + varint(len(value)) + value
    return out


def fields(data):
    """Field numbers and their values, in lists."""
    found, at = collections.defaultdict(list), 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        found[key >> 3].append(value)
    return found


def first(found, number, otherwise=0):
    return found[number][0] if found[number] else otherwise


def snapshot_of(height, content, kept=1):
    """One that has this content, with the hashes of its chunks."""
    parts = [content[at:at + CHUNK] for at in range(0, len(content), CHUNK)]
    sums = b"".join(hashlib.sha256(part).digest() for part in parts)
    return Snapshot(height, kept, len(parts), hashlib.sha256(sums).digest(), sums, content)


class Application:
    """One that runs, with this in place of its engine."""

    def __init__(self, site, command, address, name, **environment):
        self.site, self.address, self.log_at = site, address, f"{site.base}/{name}.log"
        with open(self.log_at, "a") as log:
            self.begun = log.tell()
            self.process = subprocess.Popen(
                command, env=dict(site.environment, **environment), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        end = time.monotonic() + LIMIT
        while f"answers at {address}" not in self.log():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(f"{command} does not answer: {self.log()}")
            time.sleep(0.01)
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=4 * LIMIT)
        self.answers, self.lock = self.socket.makefile("rb"), threading.Lock()

    def log(self):
        """What it has said since it was started."""
        with open(self.log_at, errors="replace") as log:
            log.seek(self.begun)
            return log.read()

    def kill(self):
        self.process.kill()
        self.process.wait()
        if hasattr(self, "socket"):
            self.socket.close()

    def call(self, number, answer, **words):
        """The number of the request, and of the response; what is in this."""
        with self.lock:
            request = message(**{f"n{number}": message(**words)})
            self.socket.sendall(varint(len(request)) + request)
            return fields(fields(self.receive())[answer][0])

    def receive(self):
        length = shift = 0
        while True:
            byte = self.answers.read(1)
            if not byte:
                raise EOFError(f"the application is gone: {self.log()}")
            length |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
        said = self.answers.read(length)
        if len(said) < length:
            raise EOFError(f"the application is gone: {self.log()}")
        return said

    def info(self):
        """Height and hash."""
        told = self.call(3, 4)
        return first(told, 4), bytes(first(told, 5, b""))

    def block(self, height, requests):
        """Executes and commits one; the hash after it."""
        done = self.call(20, 21, n1=list(requests), n5=height)
        self.call(11, 12)
        return bytes(first(done, 5, b""))

    def ask(self, query):
        """The answer to a request that only reads."""
        return bytes(first(self.call(6, 7, n1=query.encode()), 7, b""))

    def kept(self, height):
        """The snapshot of that height, when it is there."""
        end = time.monotonic() + LIMIT
        while True:
            for one in map(fields, self.call(12, 13)[1]):
                if first(one, 1) == height:
                    what = [first(one, n) for n in (1, 2, 3)]
                    parts = [self.part(height, n) for n in range(what[2])]
                    return Snapshot(*what, first(one, 4), first(one, 5), b"".join(parts))
            if time.monotonic() > end:
                raise AssertionError(f"no snapshot of {height}: {self.log()}")
            time.sleep(0.01)

    def part(self, height, chunk):
        return first(self.call(14, 15, n1=height, n2=1, n3=chunk), 1, b"")

    def offer(self, snapshot, root):
        words = message(n1=snapshot.height, n2=snapshot.format, n3=snapshot.chunks,
                        n4=snapshot.hash, n5=snapshot.metadata)
        return first(self.call(13, 14, n1=words, n2=root), 1)

    def chunk(self, index, content, sender="liar"):
        """The result, and whom it wants nothing of any more."""
        told = self.call(15, 16, n1=index, n2=content, n3=sender.encode())
        return first(told, 1), [who.decode() for who in told[3]]

    def take(self, snapshot, root, spoil=lambda part: part):
        """What became of the offer and of each chunk, up to the first that is not accepted."""
        results = [self.offer(snapshot, root)]
        at = range(0, len(snapshot.bytes), CHUNK)
        for index, part in enumerate(snapshot.bytes[n:n + CHUNK] for n in at):
            if results[-1] != ACCEPT:
                break
            result, refused = self.chunk(index, spoil(part))
            results.append(result)
            if result == RETRY:
                assert refused == ["liar"], refused
        return results


class Orders(http.server.ThreadingHTTPServer):
    """Takes requests at an address as an engine does, and makes each one a block of its own."""

    daemon_threads = True

    def __init__(self, address):
        host, port = address.split(":")
        super().__init__((host, int(port)), Taken)
        self.application, self.height, self.lock = None, 0, threading.Lock()
        self.requests, self.hashes = {}, {}  # by heights
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def order(self, request):
        with self.lock:
            self.height += 1
            self.requests[self.height] = request
            self.hashes[self.height] = self.application.block(self.height, [request])

    def end(self):
        self.shutdown()
        self.server_close()


class Taken(http.server.BaseHTTPRequestHandler):
    """One request; it has an answer before it has a block."""

    def do_POST(self):
        words = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = b'{"jsonrpc":"2.0","id":1,"result":{"code":0}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
        self.wfile.flush()
        self.server.order(base64.b64decode(words["params"]["tx"]))

    def log_message(self, *_):
        pass
