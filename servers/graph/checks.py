"""What the README promises, shown on guarded directories.  Started by ./test."""

import os
import random
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "ldap"))
from site_ import LIMIT, Site, die_with_parent, until  # noqa: E402

LONG = bool(os.environ.get("SYSTX_LONG"))
PROGRAM = f"{os.environ['SYSTX_BUILT']}/systx-graph"
SEED = int(os.environ.get("SYSTX_SEED") or 1)
# Vertices and edges, as in TxOS+ (EuroSys'12) or like that.
SPARSE = (10900, 31180) if LONG else (2180, 6236)
DENSE = (5000, 3174615) if LONG else (500, 31746)


class Graph(unittest.TestCase):
    INJECT = None

    def setUp(self):
        self.site = Site(inject=self.INJECT)
        self.addCleanup(self.site.close)

    def graph(self, *arguments, check=True):
        done = subprocess.run([PROGRAM, *map(str, arguments)], env=self.site.environment,
                              text=True, capture_output=True)
        if check and done.returncode:
            said = done.stdout + done.stderr + self.site.daemon_log()
            raise AssertionError(f"{arguments} of seed {SEED}: {done.returncode}: {said}")
        return done

    def tree(self, name, shape, guard=True):
        tree = self.site.tree(name, guard)
        self.graph("create", tree, "--vertices", shape[0], "--edges", shape[1], "--seed", SEED)
        return tree

    def blocks(self, shape, blocks, size, writes, exists=20):
        path = f"{self.site.base}/blocks"
        made = self.graph("blocks", "--vertices", shape[0], "--blocks", blocks, "--size", size,
                          "--writes", writes, "--exists", exists, "--seed", SEED)
        with open(path, "w") as file:
            file.write(made.stdout)
        return path

    def serial(self, shape, blocks):
        """What heights, hashes and answers there are without transactions and threads."""
        tree = self.tree("serial", shape, guard=False)
        return self.graph("run", tree, blocks, "--serial", "at-once").stdout.splitlines()

    def height(self, tree):
        return self.graph("check", tree).stdout.split()


class Threads(Graph):
    def test_threads_do_what_one_does(self):
        for name, shape, writes in [("sparse", SPARSE, 50), ("dense", DENSE, 50),
                                    ("reads", DENSE, 0), ("writes", SPARSE, 100)]:
            blocks = self.blocks(shape, 4, 100, writes)
            tree = self.site.tree(f"{name}-serial", guard=False)
            same = ["--vertices", shape[0], "--edges", shape[1], "--seed", SEED]
            self.graph("create", tree, *same)
            want = self.graph("run", tree, blocks, "--serial", "synced", "--answers").stdout
            for threads in (1, 2, 4):
                tree = self.tree(f"{name}{threads}", shape)
                found = self.graph("run", tree, blocks, "--threads", threads, "--answers")
                self.assertEqual(found.stdout, want, f"{name}, {threads} threads, seed {SEED}")
                self.assertEqual(self.height(tree), want_of(want, 4))

    def test_one_thread_is_followed_by_four(self):
        """The numbers of the order go on, however many each block has used."""
        blocks = self.blocks(DENSE, 8, 30, 30)
        want = self.serial(DENSE, blocks)
        tree, found = self.tree("tree", DENSE), []
        with open(blocks) as file:
            text = file.read()
        for end, threads in ((2, 1), (5, 4), (6, 1), (8, 2)):
            some = f"{self.site.base}/some"
            with open(some, "w") as file:
                file.write("\n\n".join(text.split("\n\n")[:end]) + "\n\n")
            done = self.graph("run", tree, some, "--threads", threads)
            found += done.stdout.splitlines()
        self.assertEqual(found, want)

    def test_two_programs_execute_a_block_once(self):
        blocks = self.blocks(DENSE, 10, 30, 50)
        want = self.serial(DENSE, blocks)
        tree = self.tree("tree", DENSE)
        both = [subprocess.Popen([PROGRAM, "run", tree, blocks], env=self.site.environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 preexec_fn=die_with_parent) for _ in range(2)]
        said = [program.communicate(timeout=4 * LIMIT) for program in both]
        # Whatever one of them has said is so; one may have met the other's, and given up.
        for out, _ in said:
            self.assertLessEqual(set(out.splitlines()), set(want), said)
        self.graph("run", tree, blocks)
        self.assertEqual(self.height(tree), want[-1].split()[:2])

    def test_what_was_changed_by_others_is_found(self):
        blocks = self.blocks(DENSE, 2, 20, 50)
        tree = self.tree("tree", DENSE)
        want = self.graph("run", tree, blocks).stdout.splitlines()[-1].split()[:2]
        with open(f"{tree}/graph", "r+b") as file:
            file.seek(4096 + 7)
            byte = file.read(1)
            file.seek(4096 + 7)
            file.write(bytes([byte[0] ^ 4]))
        for command in (["check", tree], ["run", tree, blocks]):
            done = self.graph(*command, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("the state is damaged", done.stderr)
        with open(f"{tree}/graph", "r+b") as file:
            file.seek(4096 + 7)
            file.write(byte)
        self.assertEqual(self.height(tree), want)

    def test_without_a_guard_nothing_is_executed(self):
        tree = self.tree("tree", DENSE, guard=False)
        done = self.graph("run", tree, self.blocks(DENSE, 1, 10, 50), check=False)
        self.assertEqual((done.returncode, self.height(tree)[0]), (1, "0"))
        self.assertIn("systx mount", done.stderr)


def want_of(lines, height):
    """Height and hash in the output of `run --answers`."""
    words = [line.split() for line in lines.splitlines()]
    return [w[:2] for w in words if len(w) == 3 and len(w[1]) == 64 and w[0] == str(height)][0]


class Lost(Graph):
    """With aborts that the daemon makes up."""

    INJECT = "5"

    def test_a_part_that_loses_is_executed_again(self):
        blocks = self.blocks(DENSE, 6, 40, 50)
        want = self.serial(DENSE, blocks)
        done = self.graph("run", self.tree("tree", DENSE), blocks, "--threads", 3, "--time")
        self.assertEqual(done.stdout.splitlines(), want)
        self.assertNotIn(" 0 lost", done.stderr)


class Killed(Graph):
    """The height and the hash are those of a whole block at any time, and the rest follows."""

    ROUNDS = 12 if LONG else 3
    BLOCKS = 400 if LONG else 40

    def setUp(self):
        super().setUp()
        self.chance = random.Random(SEED)
        self.recorded = self.blocks(DENSE, self.BLOCKS, 60, 60)
        self.want = self.serial(DENSE, self.recorded)
        self.guarded = self.tree("tree", DENSE)
        self.program = None

    def start(self):
        self.program = subprocess.Popen(
            [PROGRAM, "run", self.guarded, self.recorded, "--threads", "2"],
            env=self.site.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=die_with_parent)

    def goes_on(self):
        """Waits for some blocks, and then some more time."""
        for _ in range(self.chance.randrange(1, self.BLOCKS // 10)):
            line = self.program.stdout.readline().rstrip("\n")
            if line:
                self.assertIn(line, self.want)
        time.sleep(self.chance.random() * 0.02)

    def kill(self):
        self.program.kill()
        for line in self.program.communicate()[0].splitlines(keepends=True):
            # The last one may be a half.
            self.assertTrue(not line.endswith("\n") or line.rstrip("\n") in self.want, line)

    def is_whole(self):
        height, root = self.height(self.guarded)
        if height != "0":
            self.assertEqual(self.want[int(height) - 1].split()[:2], [height, root])
        return int(height)

    def ends(self):
        """What is left is executed, and ends where it should."""
        out, err = self.program.communicate(timeout=4 * LIMIT)
        self.assertEqual((self.program.returncode, err), (0, ""), self.site.daemon_log())
        self.assertLessEqual(set(out.splitlines()), set(self.want))
        self.assertEqual(self.is_whole(), self.BLOCKS)

    def test_a_killed_program_leaves_whole_blocks(self):
        before = 0
        for _ in range(self.ROUNDS):
            self.start()
            self.goes_on()
            self.kill()
            height = self.is_whole()
            self.assertGreaterEqual(height, before)
            before = height
        self.start()
        self.ends()

    def test_a_killed_daemon_leaves_whole_blocks_and_the_program_goes_on(self):
        self.start()
        for _ in range(self.ROUNDS):
            self.goes_on()
            self.site.kill_daemon()
            self.is_whole()
        self.ends()

    def test_both_are_killed(self):
        for _ in range(self.ROUNDS):
            self.start()
            self.goes_on()
            self.kill()
            self.site.kill_daemon()
            self.is_whole()
        self.start()
        self.ends()


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


if __name__ == "__main__":
    program = unittest.main(exit=False, testRunner=unittest.TextTestRunner(
        stream=sys.stdout, resultclass=Result, verbosity=0))
    result = program.result
    failed = len(result.failures) + len(result.errors)
    passed = result.testsRun - failed - len(result.skipped)
    # Those of the model, which ./test has run.
    passed += int(os.environ.get("MODEL_PASSED") or 0)
    failed += int(os.environ.get("MODEL_FAILED") or 0)
    print(f"{passed} passed, {failed} failed, {len(result.skipped)} skipped")
    sys.exit(1 if failed else 0)
