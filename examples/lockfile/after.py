"""A mailing list, two files that have to agree: PROGRAM DIR subscribe|unsubscribe ADDRESS, or PROGRAM DIR check"""
import pathlib
import sys

import systx

directory = pathlib.Path(sys.argv[1])


def write(name, text):
    (directory / name).write_text(text)


@systx.atomic(directory)
def main():
    members = (directory / "members").read_text().split()
    if len(members) != int((directory / "count").read_text()):
        sys.exit("members and count do not agree")
    if sys.argv[2] == "subscribe":
        members.append(sys.argv[3])
    elif sys.argv[2] == "unsubscribe":
        members.remove(sys.argv[3])
    if sys.argv[2] != "check":
        write("members", "".join(m + "\n" for m in members))
        write("count", str(len(members)))


main()
