"""A guest's own words on the guests' socket of root's daemon."""

import json, os, socket, struct

_dir = os.environ["SYSTX_GUESTS_DIR"]
_where = os.path.join(_dir, [n for n in os.listdir(_dir) if n.endswith(".sock")][0])


def send(s, value):
    text = json.dumps(value).encode()
    s.sendall(struct.pack("<II", len(text), 0) + text)


def exactly(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def receive(s):
    """An answer and what comes with it."""
    text, blob = struct.unpack("<II", exactly(s, 8))
    return json.loads(exactly(s, text)), exactly(s, blob)


def connect():
    """A connection that has been greeted."""
    version = 0
    while True:
        s = socket.socket(socket.AF_UNIX)
        s.connect(_where)
        send(s, {"request": "hello", "args": {"version": version, "release": "x"}})
        theirs = receive(s)[0]["value"]["version"]
        if theirs == version:
            return s
        version = theirs


def content(id, path, version):
    target = {"open": {"id": id}}
    args = {"target": target, "path": path, "version": version, "limit": 1 << 40}
    return {"request": "content", "args": args}
