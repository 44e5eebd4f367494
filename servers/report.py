"""How the tests of servers tell what they have found: a line for each, the counts at the end."""

import signal
import sys
import time
import unittest


class Result(unittest.TextTestResult):
    running = "no test"

    def startTest(self, test):
        Result.running = test.id()
        self.begun = time.monotonic()
        unittest.TestResult.startTest(self, test)

    def addSuccess(self, test):
        took = time.monotonic() - self.begun
        print(f"ok {test.id().split('.', 1)[1]} ({took:.1f} s)", flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"SKIPPED: {test.id()}: {reason}", flush=True)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        failed(test, error)

    def addError(self, test, error):
        super().addError(test, error)
        failed(test, error)


def failed(test, error):
    """With the beginning of the reason: of a long log a reader may have no more than these lines."""
    reason = " | ".join(str(error[1]).split("\n"))
    print(f"FAILED {test.id()}\n  {error[0].__name__}: {reason[:1000]}", flush=True)


def end(*_):
    # unittest goes on after any other one.
    raise KeyboardInterrupt


def run(passed=0, failed=0):
    """Runs the tests of the program; ends it.  What was counted elsewhere counts as well.

    A limit (`timeout`) sends its signal to the servers under test as well, which end.  The first
    process of a namespace would not even get it, and blame them."""
    signal.signal(signal.SIGTERM, end)
    try:
        program = unittest.main(exit=False, testRunner=unittest.TextTestRunner(
            stream=sys.stdout, resultclass=Result, verbosity=0))
    except KeyboardInterrupt:
        print(f"FAILED {Result.running}: ended from outside, by a limit of time or by hand")
        sys.exit(1)
    result = program.result
    lost = len(result.failures) + len(result.errors)
    skipped = len(result.skipped)
    passed += result.testsRun - lost - skipped
    failed += lost
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)
