"""Counts in one file of a guarded directory, for as many milliseconds: counting.py DIR MS"""
import pathlib
import sys
import time

import systx

directory = pathlib.Path(sys.argv[1])
path, attempts, done = directory / "count", 0, 0


@systx.atomic(directory)
def count():
    global attempts
    attempts += 1
    path.write_text(str(int(path.read_text()) + 1))


print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + int(sys.argv[2]) / 1000
while time.monotonic() < until:
    count()
    done += 1
print(done, attempts, flush=True)
