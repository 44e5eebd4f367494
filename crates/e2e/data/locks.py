"""Random lock calls of several processes, one at a time; prints each call and its answer.

    locks.py SEED STEPS [seen]

What is printed does not depend on the file system, nor on which processes have which numbers.  With `seen` nobody
closes a descriptor that was not there when it got a lock of that file, as long as it has that lock: where opens make
no messages, that does not end it.
"""
import errno, fcntl, os, random, signal, struct, sys

FILES, WORKERS, BYTES = 2, 3, 12
SETLK, GETLK = {'process': fcntl.F_SETLK, 'open': 37}, fcntl.F_GETLK
FLOCK = 'hhqqi4x'
TYPES = {'read': fcntl.F_RDLCK, 'write': fcntl.F_WRLCK, 'none': fcntl.F_UNLCK}
NAMES = {number: name for name, number in TYPES.items()}

def answer(call):
    try:
        return call()
    except OSError as e:
        return errno.errorcode[e.errno]

class Hand:
    """What a worker does when it is told to."""
    def __init__(self):
        self.fds, self.heirs = {}, {}
    def open(self, slot, file):
        self.fds[slot] = os.open(f'f{file}', os.O_RDWR)
    def dup(self, slot, new):
        self.fds[new] = os.dup(self.fds[slot])
    def close(self, slot):
        os.close(self.fds.pop(slot))
    def set(self, slot, by, kind, start, length):
        lock = struct.pack(FLOCK, TYPES[kind], 0, start, length, 0)
        fcntl.fcntl(self.fds[slot], SETLK[by], lock)
    def get(self, slot, kind, start, length):
        lock = struct.pack(FLOCK, TYPES[kind], 0, start, length, 0)
        kind, _, start, length, pid = struct.unpack(FLOCK, fcntl.fcntl(self.fds[slot], GETLK, lock))
        return (NAMES[kind], start, length, pid) if kind != fcntl.F_UNLCK else 'free'
    def flock(self, slot, how):
        fcntl.flock(self.fds[slot], how)
    def heir(self, number):
        """A child that has all descriptors, until it is told to end."""
        end, stop = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(stop)
            for _, other in self.heirs.values():
                os.close(other)
            os.read(end, 1)
            os._exit(0)
        os.close(end)
        self.heirs[number] = pid, stop
    def buried(self, number):
        pid, stop = self.heirs.pop(number)
        os.close(stop)
        os.waitpid(pid, 0)
    def serve(self, orders, answers):
        for line in orders:
            name, *arguments = eval(line)
            said = answer(lambda: getattr(self, name)(*arguments))
            print(repr(said), file=answers, flush=True)

class Worker:
    """A process, as the one knows it that tells it what to do."""
    def __init__(self):
        told, orders = os.pipe()
        answers, said = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(orders)
            os.close(answers)
            for other in ALL:
                other.orders.close()
                other.answers.close()
            Hand().serve(os.fdopen(told), os.fdopen(said, 'w'))
            os._exit(0)
        os.close(told)
        os.close(said)
        self.orders, self.answers = os.fdopen(orders, 'w'), os.fdopen(answers)
        # Slots by file; those that were there at the last grant; what the process itself may hold; heirs.
        self.slots, self.there, self.locked, self.heirs, self.next = {}, {}, set(), [], 0
    def do(self, *order):
        print(repr(order), file=self.orders, flush=True)
        return eval(self.answers.readline())
    def end(self):
        for heir in self.heirs:
            self.do('buried', heir)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

ALL = []

def step(n, dice, seen):
    worker = ALL[n]
    slots = sorted(worker.slots)
    choice = dice.choices(['open', 'dup', 'close', 'set', 'get', 'flock', 'heir', 'buried', 'killed'],
                          [10, 4, 12, 40, 12, 14, 3, 3, 2])[0]
    if choice == 'killed':
        worker.end()
        ALL[n] = None
        ALL.pop(n)
        ALL.insert(n, Worker())
        return choice, None
    if choice == 'heir' and len(worker.heirs) < 2:
        worker.next += 1
        worker.heirs.append(worker.next)
        return choice, worker.do('heir', worker.next)
    if choice == 'buried' and worker.heirs:
        return choice, worker.do('buried', worker.heirs.pop(0))
    if choice == 'open' and len(slots) < 5 or not slots:
        worker.next += 1
        worker.slots[worker.next] = file = dice.randrange(FILES)
        return f'open {file}', worker.do('open', worker.next, file)
    slot = dice.choice(slots)
    file = worker.slots[slot]
    if choice == 'dup' and len(slots) < 5:
        worker.next += 1
        worker.slots[worker.next] = file
        return f'dup {file}', worker.do('dup', slot, worker.next)
    if choice == 'close':
        if seen and file in worker.locked and slot not in worker.there.get(file, ()):
            return 'kept', None
        del worker.slots[slot]
        worker.locked.discard(file)
        return f'close {file}', worker.do('close', slot)
    start, length = dice.randrange(BYTES), dice.randrange(5)
    if choice == 'get':
        kind = dice.choice(['read', 'write'])
        said = worker.do('get', slot, kind, start, length)
        if isinstance(said, tuple):
            # Of an open file description no process is told, in ways that differ.
            whose = [i for i, other in enumerate(ALL) if other.pid == said[3]]
            said = (*said[:3], whose[0] if whose else 'nobody')
        return f'get {file} {kind} {start} {length}', said
    if choice == 'flock':
        how = dice.choice([fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN])
        return f'flock {file} {how}', worker.do('flock', slot, how | fcntl.LOCK_NB)
    by, kind = dice.choice(['process', 'process', 'open']), dice.choice(['read', 'write', 'write', 'none'])
    said = worker.do('set', slot, by, kind, start, length)
    if said is None and kind != 'none':
        worker.there[file] = [slot for slot, of in worker.slots.items() if of == file]
        if by == 'process':
            worker.locked.add(file)
    return f'set {file} {by} {kind} {start} {length}', said

def main():
    dice, seen = random.Random(int(sys.argv[1])), 'seen' in sys.argv[3:]
    for file in range(FILES):
        os.close(os.open(f'f{file}', os.O_RDWR | os.O_CREAT, 0o666))
    for _ in range(WORKERS):
        ALL.append(Worker())
    for number in range(int(sys.argv[2])):
        n = dice.randrange(WORKERS)
        what, said = step(n, dice, seen)
        print(number, n, what, said)
    for worker in ALL:
        worker.end()

main()
