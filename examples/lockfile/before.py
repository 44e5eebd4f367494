"""A mailing list, two files that have to agree: PROGRAM DIR subscribe|unsubscribe ADDRESS, or PROGRAM DIR check"""
import os
import pathlib
import sys
import time

directory = pathlib.Path(sys.argv[1])
lock = directory / "lock"


def acquire():
    while True:
        try:
            return os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            # Whoever is killed with the lock leaves it behind, for somebody to remove.
            time.sleep(0.01)


def write(name, text):
    with open(directory / (name + ".new"), "w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.rename(directory / (name + ".new"), directory / name)


def main():
    members = (directory / "members").read_text().split()
    if len(members) != int((directory / "count").read_text()):
        sys.exit("members and count do not agree")
    if sys.argv[2] == "subscribe":
        members.append(sys.argv[3])
    elif sys.argv[2] == "unsubscribe":
        members.remove(sys.argv[3])
    if sys.argv[2] != "check":
        # A crash between these two leaves files that do not agree.
        write("members", "".join(m + "\n" for m in members))
        write("count", str(len(members)))


acquire()
try:
    main()
finally:
    lock.unlink()
