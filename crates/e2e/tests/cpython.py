"""Runs test modules of Python in the working directory, within a transaction of it if asked to, and writes what came of
each test: cpython.py OUTPUT plain|transaction MODULE-OR-TEST..."""
import json
import os
import sys
import tempfile
import unittest

import test.support

out, how, modules = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
# Nothing that needs the network, or much room or time.
test.support.use_resources = []
tempfile.tempdir = os.getcwd()


class Result(unittest.TextTestResult):
    """Keeps one word for each test; what a subtest says counts for the whole."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.came = {}

    def say(self, test, word):
        name = test.id() if hasattr(test, "id") else str(test)
        name = getattr(test, "test_case", test).id()
        if self.came.get(name) in (None, "ok"):
            self.came[name] = word

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say(test, "ok")

    def addError(self, test, err):
        super().addError(test, err)
        self.say(test, "error")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say(test, "failure")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say(test, "skipped")

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.say(test, "expected failure")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.say(test, "unexpected success")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.say(test, "failure")


def run():
    tests = unittest.defaultTestLoader.loadTestsFromNames(modules)
    return unittest.TextTestRunner(verbosity=1, resultclass=Result).run(tests).came


if how == "transaction":
    import systx
    try:
        with systx.transaction("."):
            came = run()
    except systx.Conflict as lost:
        # Some tests kill processes of theirs, which is the end of the transaction they are in.
        if "which was in the transaction, was killed by signal" not in str(lost):
            raise
else:
    came = run()
with open(out, "w") as f:
    json.dump(came, f, indent=0, sort_keys=True)
