"""What is promised of snapshots that come from others, for the checks of each server: none that is
false is taken, and one that is taken is there as a whole or not at all."""

import os
import re
import threading

import abci
import validators
from volume import until

FLIPPED = lambda part: bytes([part[0] ^ 1]) + part[1:]  # noqa: E731


def no_more_chunks(snapshot):
    return snapshot._replace(chunks=5000, metadata=bytes(32 * 5000))


def lies(true, at, elsewhere, earlier):
    """Snapshots that nobody has, by name: what is offered, what becomes of the chunks on the way,
    and what the application answers and says. `at`: of which byte the hash is."""
    own = lambda content: abci.snapshot_of(true.height, content)  # noqa: E731
    keep = lambda part: part  # noqa: E731
    yield "its hash", true._replace(hash=bytes(32)), keep, [abci.REJECT], "are not those"
    yield "its format", true._replace(format=2), keep, [abci.REJECT_FORMAT], "its format is 2"
    yield ("more than can be", no_more_chunks(true), keep, [abci.REJECT], "more than 1 GiB")
    yield ("fewer chunks", true._replace(chunks=true.chunks + 1), keep, [abci.REJECT],
           "not the hashes of its chunks")
    for what, spoil in [("a byte of a chunk", FLIPPED),
                        ("a chunk is short", lambda part: part[:-1]),
                        ("a chunk is long", lambda part: part + b"x"),
                        ("a chunk is empty", lambda _: b"")]:
        yield what, true, spoil, [abci.ACCEPT, abci.RETRY], f"chunk 0 of liar .* {true.height}"
    for what, content in [("a byte of the whole", true.bytes[:at] + FLIPPED(true.bytes[at:])),
                          ("less", true.bytes[:at]), ("more", true.bytes + bytes(100)),
                          ("another place", elsewhere.bytes), ("another time", earlier.bytes)]:
        snapshot = own(content)
        yield (what, snapshot, keep, [abci.ACCEPT] * snapshot.chunks + [abci.REJECT_SNAPSHOT],
               f"snapshot of height {true.height} is not taken: ")


class Taking(threading.Thread):
    """An application that is given a snapshot, and held at a step of it."""

    def __init__(self, test, place, step, snapshot, root):
        super().__init__(daemon=True)
        self.hold = f"{test.site.base}/hold"
        self.application = place.start(SYSTX_HOLD=f"{step}:{self.hold}")
        self.what, self.results = (snapshot, root), None
        self.start()

    def run(self):
        try:
            self.results = self.application.take(*self.what)
        except (OSError, EOFError):
            pass  # it was killed

    def is_held(self):
        """Waits for the step; false: there is none."""
        until(lambda: os.path.exists(self.hold) or not self.is_alive(), "it is held, or done")
        return os.path.exists(self.hold)

    def kill(self):
        self.application.kill()
        self.join()
        if os.path.exists(self.hold):
            os.unlink(self.hold)

    def goes_on(self):
        os.unlink(self.hold)
        self.join()
        return self.results


class Syncing:
    """For a test case with a `site`, which has

    place(name): a directory, which can be emptied (`anew`), has `content()`, for a comparison, and
    `start()`, its application;
    work(place, application, number, other): makes the next block, which changes something, or
    something else; the hash after it, and its request;
    at(content): where a snapshot has a byte that the hash is of.
    """

    STRIDE = 1  # each such step is tried, and the last ones

    def begin(self):
        """One has four blocks, and snapshots of some of them."""
        place = self.place("source")
        application, self.hashes = place.start(), {}
        for number in (1, 2, 3, 4):
            if number == 4:
                self.content = place.content()
            self.hashes[number], self.next = self.work(place, application, number)
        self.snapshots = {height: application.kept(height) for height in (2, 3)}
        application.kill()

    def has(self, application, place, height):
        self.assertEqual(application.info(), (height, self.hashes[height]), application.log())
        if height == 3:
            self.assertEqual(place.content(), self.content)

    def taken(self, height):
        return [abci.ACCEPT] * (1 + self.snapshots[height].chunks)

    def test_a_false_snapshot_is_refused_by_name_and_a_true_one_is_taken(self):
        self.begin()
        place = self.place("elsewhere")
        application = place.start()
        for number in (1, 2, 3):
            self.work(place, application, number, other=True)
        false = application.kept(3)
        application.kill()
        place = self.place("new")
        application = place.start()
        before, content = application.info(), place.content()
        true = self.snapshots[3]
        for lie in lies(true, self.at(true.bytes), false, self.snapshots[2]):
            what, snapshot, spoil, answers, words = lie
            begun = len(application.log())
            self.assertEqual(application.take(snapshot, self.hashes[3], spoil), answers, what)
            self.assertRegex(application.log()[begun:], words, what)
            self.assertEqual((application.info(), place.content()), (before, content), what)
        self.assertEqual(application.take(self.snapshots[3], self.hashes[3]), self.taken(3))
        self.has(application, place, 3)
        application.kill()

    def test_a_crash_at_each_step_leaves_what_was_there_or_all_that_is_new(self):
        self.begin()
        place = self.place("new")
        # None of its own: one that is just read is open while its application is killed.
        place.keeps = []
        for old in (0, 2):
            found, step = {}, 1
            while self.is_ended_at(place, old, step, found):
                step += self.STRIDE
            last = max(found)
            while self.is_ended_at(place, old, last + 1, found):
                last += 1
            # Nothing of it is there before its end.
            self.assertGreater(last, 5)
            self.assertEqual(found, {step: old for step in found} | {last: 3})
            if old == 0:
                # It has further blocks now, and what comes is older than these.
                self.goes_on_without_daemon(place, last // 2, 2)
        for step in (3, last - 1, last):
            self.become(place, 2)
            self.goes_on_without_daemon(place, step, 3)

    def become(self, place, height):
        if height == 0:
            place.anew()
            return
        application = place.start()
        snapshot, root = self.snapshots[height], self.hashes[height]
        self.assertEqual(application.take(snapshot, root), self.taken(height), application.log())
        self.has(application, place, height)
        application.kill()

    def is_ended_at(self, place, old, step, found):
        """The application is killed at this step of taking a snapshot; false: there is none."""
        self.become(place, old)
        taking = Taking(self, place, step, self.snapshots[3], self.hashes[3])
        is_held = taking.is_held()
        taking.kill()
        application = place.start()
        height = application.info()[0]
        if height:
            self.has(application, place, height)
        if is_held:
            found[step] = height
        # Whatever was left, it is gone on with.
        results = application.take(self.snapshots[3], self.hashes[3])
        self.assertEqual(results, self.taken(3), application.log())
        self.has(application, place, 3)
        self.goes_on(application)
        application.kill()
        return is_held

    def goes_on_without_daemon(self, place, step, height):
        """The daemon is killed at this step, and what is taken is there all the same."""
        taking = Taking(self, place, step, self.snapshots[height], self.hashes[height])
        self.assertTrue(taking.is_held(), step)
        self.site.kill_daemon()
        self.assertEqual(taking.goes_on(), self.taken(height), taking.application.log())
        self.has(taking.application, place, height)
        taking.kill()
        application = place.start()
        self.has(application, place, height)
        if height == 3:
            self.goes_on(application)
        application.kill()

    def goes_on(self, application):
        """The next block leaves there what it leaves elsewhere."""
        self.assertEqual(application.block(4, [self.next]), self.hashes[4], application.log())


class Lying:
    """For a test case with four validators (`all`), which has

    go_on(blocks): makes so many more, at least, of which the first one changes something;
    forget(one): it has nothing any more;
    elsewhere(height): the bytes of a snapshot of that height that is one of another place;
    at(content): where a snapshot has a byte that the hash is of;
    all_agree(): all of them have the same, and go on.
    """

    def put(self, one, height, content, sums=None):
        with open(f"{one.snapshots}/{height}", "wb") as file:
            file.write(content)
        with open(f"{one.snapshots}/{height}.sums", "wb") as file:
            file.write(abci.snapshot_of(height, content).metadata if sums is None else sums)

    def aside(self):
        """What they keep is put away, and no more comes to it: what the first one has had."""
        kept = self.all[0].snapshots
        heights = lambda: sorted(  # noqa: E731
            int(name[:-5]) for name in os.listdir(kept) if name.endswith(".sums"))
        while len(heights()) < 3:
            self.go_on(2)
        for one in self.all[:3]:
            one.keeps_no_more()
            validators.until(lambda: one.height() > 0, lambda: f"it is back; {one.log()}")
        found = {}
        for height in heights():
            with open(f"{kept}/{height}", "rb") as file:
                found[height] = file.read()
        for one in self.all[:3]:
            for name in os.listdir(one.snapshots):
                os.unlink(f"{one.snapshots}/{name}")
        return found

    def test_peers_that_lie_are_refused_by_name_and_an_honest_one_is_begun_with(self):
        honest, chunks, states, one = self.all
        true = self.aside()
        last, content = max(true.items())
        self.go_on(12)
        one.kill()
        height = min(other.height() for other in self.all[:3]) - 3
        at, expected = self.at(content), []
        lies = [("more than 1 GiB", b"", bytes(32 * 5000)),
                ("", content[:at] + FLIPPED(content[at:]), None), ("", content[:at], None),
                ("", self.elsewhere(height - 3), None), ("", true[min(true)], None)]
        for n, (words, lie, sums) in enumerate(lies):
            self.put(states, height - n, lie, sums)
            expected.append(f"the snapshot of height {height - n} is not taken: .*{words}")
        # It has the hashes of the true chunks, and other chunks.
        lied = height - len(lies)
        self.put(chunks, lied, FLIPPED(content), abci.snapshot_of(last, content).metadata)
        expected.append(f"chunk 0 of {chunks.node()} is not the one of the snapshot of height"
                        f" {lied}:")
        self.forget(one)
        one.syncs_from([honest, chunks])
        one.start()
        for words in expected:
            validators.until(lambda: re.search(words, one.whole_log()),
                             lambda: f"{words}; {one.log()}", 240)
        # Nobody else has that one's chunks: the engine waits for them for two minutes.
        self.put(honest, last, content)
        validators.until(lambda: one.height() > last, lambda: f"it has begun; {one.log()}")
        self.assertIn(f"takes a snapshot of height {last}\n", one.whole_log())
        self.assertGreaterEqual(one.earliest(), last)
        self.all_agree()
