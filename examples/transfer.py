"""Moves 1 from file a to file b of a guarded directory, N times: transfer.py DIR N"""
import pathlib
import sys

import systx

directory = pathlib.Path(sys.argv[1])


def add(name, n):
    path = directory / name
    path.write_text(str(int(path.read_text()) + n))


@systx.atomic(directory)
def transfer():
    add("a", -1)
    add("b", 1)


for _ in range(int(sys.argv[2])):
    transfer()
