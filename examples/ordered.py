"""Appends FIRST, FIRST + STEP, ... below END to a log; all programs' numbers come in order.
ordered.py DIR FIRST STEP END"""
import pathlib
import sys

import systx

directory = pathlib.Path(sys.argv[1])
first, step, end = map(int, sys.argv[2:])

for number in range(first, end, step):

    @systx.atomic(directory, order=("log", number))
    def note():
        with open(directory / "log", "a") as log:
            print(number, file=log)

    note()
