"""Moves 1 from file a to file b of a guarded directory, N times, and never has to try again: scoped.py DIR N"""
import pathlib
import sys

import systx

directory = pathlib.Path(sys.argv[1])
a, b = directory / "a", directory / "b"


def add(path, n):
    path.write_text(str(int(path.read_text()) + n))


for _ in range(int(sys.argv[2])):
    with systx.transaction(directory, scope=[a, b]):
        add(a, -1)
        add(b, 1)
