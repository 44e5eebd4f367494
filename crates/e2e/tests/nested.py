"""Moves 1 from a to b N times, where b is another transaction's, inside: nested.py DIR N"""
import pathlib
import sys

import systx

directory = pathlib.Path(sys.argv[1])


def add(name, n):
    path = directory / name
    path.write_text(str(int(path.read_text()) + n))


@systx.atomic(directory)
def inner(fails=False):
    if fails:
        (directory / "inner").touch()
        raise KeyError("failed")
    add("b", 1)


@systx.atomic(directory)
def outer():
    add("a", -1)
    inner()


@systx.atomic(directory)
def swallowed():
    try:
        inner(fails=True)
    except KeyError:
        (directory / "outer").touch()


try:
    swallowed()
    raise SystemExit("it is committed")
except OSError as e:
    assert "an inner transaction was left by an exception" in str(e), e
assert not (directory / "inner").exists() and not (directory / "outer").exists()
for _ in range(int(sys.argv[2])):
    outer()
