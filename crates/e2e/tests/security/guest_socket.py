"""Sends root's daemon, over the guests' socket, what no client would: `guest_socket.py SEED ROUNDS`.

Ends with 0 if every answer is one that a guest may get; what the daemon is like afterwards, the test asks.
"""

import array, json, os, random, socket, struct, sys, tempfile

SEED, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
rand = random.Random(SEED)
guests = os.environ["SYSTX_GUESTS_DIR"]
where = os.path.join(guests, [n for n in os.listdir(guests) if n.endswith(".sock")][0])

# Everything that the protocol has and a guest may not ask for.
FOREIGN = [
    "begin", "attach", "finish", "doom", "wait_for", "top", "enter", "leave", "log", "deferred",
    "settle", "undo", "redo", "recover", "gc", "inspect", "mount", "umount", "guarded", "progress",
    "shutdown",
]
OWN = ["begin_open", "list", "status", "diff", "content", "commit", "abort"]


def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect(where)
    return s


def frame(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<II", len(text), 0) + text


def receive(s):
    """An answer; None if the connection has ended."""
    def exactly(n):
        data = b""
        while len(data) < n:
            more = s.recv(n - len(data))
            if not more:
                return None
            data += more
        return data

    try:
        header = exactly(8)
        if header is None:
            return None
        text, blob = struct.unpack("<II", header)
        answer = exactly(text)
        return None if answer is None or exactly(blob) is None else json.loads(answer)
    except (ConnectionResetError, BrokenPipeError):
        return None


def hello(version):
    return {"request": "hello", "args": {"version": version, "release": "x"}}


def greeted():
    while True:
        s = connect()
        try:
            s.sendall(frame(hello(VERSION)))
        except (ConnectionResetError, BrokenPipeError):
            s.close()
            continue
        # Beyond the bound of connections there is no answer.
        if receive(s) is not None:
            return s
        s.close()


def descriptors():
    """Of all kinds, to be closed by who sends them."""
    kinds = [
        lambda: [os.open("/", os.O_RDONLY)],
        lambda: [os.open("/", os.O_PATH)],
        lambda: [os.open("g", os.O_RDONLY)],
        lambda: [os.open("/proc/self", os.O_RDONLY)],
        lambda: [os.open("/dev/null", os.O_RDWR)],
        lambda: list(os.pipe()),
        lambda: [x.detach() for x in socket.socketpair()],
        lambda: [os.memfd_create("m")],
    ]

    def removed():
        path = tempfile.mkdtemp()
        fd = os.open(path, os.O_RDONLY)
        os.rmdir(path)
        return [fd]

    kinds.append(removed)
    fds = []
    for _ in range(rand.choice([0, 1, 1, 2, 4, 5, 60])):
        fds += rand.choice(kinds)()
    return fds[:200]


def some(depth=0):
    kinds = [
        lambda: None, lambda: rand.choice([True, False]), lambda: rand.randrange(-9, 1 << 70),
        lambda: "".join(chr(rand.randrange(1, 1200)) for _ in range(rand.randrange(40))),
        lambda: "/" + "x" * rand.choice([1, 300, 5000]), lambda: 1e308,
    ]
    if depth < 4:
        kinds += [
            lambda: [some(depth + 1) for _ in range(rand.randrange(4))],
            lambda: {rand.choice(NAMES): some(depth + 1) for _ in range(rand.randrange(5))},
        ]
    return rand.choice(kinds)()


NAMES = [
    "place", "cwd", "root", "store", "isolation", "read_only", "nice", "transport", "retry", "id",
    "paths", "path", "target", "open", "committed", "version", "limit", "force", "dir",
]


def begin():
    """Right but for what is changed of it."""
    text = {"cwd": "/", "root": None, "store": None}
    args = {
        "place": text, "isolation": "serializable", "read_only": False, "nice": -20,
        "transport": "auto", "retry": None,
    }
    if rand.random() < 0.5:
        args[rand.choice(list(args))] = some()
    return {"request": "begin_open", "args": args}


def request():
    kind = rand.randrange(6)
    if kind == 0:
        return {"request": rand.choice(FOREIGN), "args": some()}
    if kind == 1:
        return {"request": rand.choice(FOREIGN)}
    if kind == 2:
        return {"request": rand.choice(OWN), "args": some()}
    if kind == 3:
        target = {"open": {"id": "%08x" % rand.randrange(1 << 32)}}
        return {"request": "diff", "args": {"target": target, "paths": []}}
    if kind == 4:
        return {"request": rand.choice(["status", "commit", "abort"]),
                "args": {"id": "%08x" % rand.randrange(1 << 32), "paths": []}}
    return begin()


def send(s, data, fds=()):
    space = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = s.sendmsg([data], space)
    s.sendall(data[sent:])


def check(answer):
    """Nothing of others, and nothing done that is not a guest's."""
    if answer is None:
        return
    name = answer.get("reply")
    if name not in ("failed", "list", "begun_open", "hello", "changes", "status", "outcome"):
        sys.exit("an answer that no guest gets: %r" % answer)
    if name == "list" and answer["value"]:
        sys.exit("a list with something in it: %r" % answer)


s = connect()
s.sendall(frame(hello(0)))
VERSION = receive(s)["value"]["version"]
s.close()


def broken(n):
    """A connection that is not understood from some byte on."""
    s = connect()
    try:
        kind = n % 8
        if kind == 0:
            s.sendall(rand.randbytes(rand.randrange(1, 9000)))
        elif kind == 1:
            s.sendall(struct.pack("<II", rand.choice([65537, 1 << 20, 0xFFFFFFFF]), 0))
        elif kind == 2:
            s.sendall(struct.pack("<II", 2, rand.choice([1, 0xFFFFFFFF])) + b"{}")
        elif kind == 3:
            s.sendall(frame(hello(VERSION))[: rand.randrange(1, 30)])
        elif kind == 4:
            s.sendall(frame(b"[" * 60000))
        elif kind == 5:
            s.sendall(frame(b'{"request":"hello","args":{"version":' + b"9" * 50000 + b"}}"))
        elif kind == 6:
            text = bytearray(frame(hello(VERSION)) + frame(begin()))
            for _ in range(rand.randrange(1, 6)):
                text[rand.randrange(len(text))] = rand.randrange(256)
            s.sendall(bytes(text))
        else:
            fds = descriptors()
            for byte in frame(hello(VERSION)):
                send(s, bytes([byte]), fds if rand.random() < 0.2 else ())
            for fd in fds:
                os.close(fd)
        if rand.random() < 0.5:
            s.shutdown(socket.SHUT_WR)
            check(receive(s))
    except (ConnectionResetError, BrokenPipeError):
        pass
    s.close()


begun = []


def asked():
    s = greeted()
    try:
        for _ in range(rand.randrange(1, 12)):
            fds = descriptors()
            try:
                send(s, frame(request()), fds)
            finally:
                for fd in fds:
                    os.close(fd)
            answer = receive(s)
            check(answer)
            if answer is None:
                break
            if answer["reply"] == "begun_open":
                # With one descriptor, of what is guarded, that is right.
                begun.append(answer["value"]["id"])
                send(s, frame({"request": "abort", "args": {"id": begun[-1]}}))
                check(receive(s))
    except (ConnectionResetError, BrokenPipeError):
        pass
    s.close()


for n in range(ROUNDS):
    if rand.random() < 0.5:
        broken(n)
    else:
        asked()

# As many as there may be, and more: those that write slowly, and those that do not read.
many = []
for n in range(100):
    s = connect()
    try:
        s.sendall(frame(hello(VERSION)))
        s.sendall(b"\x05" if n % 2 else frame({"request": "list"}) * 400)
    except (ConnectionResetError, BrokenPipeError):
        pass
    many.append(s)
print("here", flush=True)
sys.stdin.read()
