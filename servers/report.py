"""How the tests of servers tell what they have found: a line for each, and the counts at the end."""

import sys
import time
import unittest


class Result(unittest.TextTestResult):
    def startTest(self, test):
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
        print(f"FAILED {test.id()}", flush=True)

    def addError(self, test, error):
        super().addError(test, error)
        print(f"FAILED {test.id()}", flush=True)


def run(passed=0, failed=0):
    """Runs the tests of the program; ends it.  What was counted elsewhere counts as well."""
    program = unittest.main(exit=False, testRunner=unittest.TextTestRunner(
        stream=sys.stdout, resultclass=Result, verbosity=0))
    result = program.result
    lost = len(result.failures) + len(result.errors)
    skipped = len(result.skipped)
    passed += result.testsRun - lost - skipped
    failed += lost
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)
