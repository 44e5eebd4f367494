"""Random histories of one directory by two processes: stores to shared mappings, also behind the end of a file, writes,
lengths, holes, copies.  What is read anywhere has to be what a model of the file says.

    mapped.py DIRECTORY SEED OPERATIONS [transaction|alone]

Prints the checksum of each file as it has to be at the end, when nobody has it mapped any more.  In a `transaction`
all of it is done by one of libsystx; if `alone`, too, and by one thread, since nobody else takes part in it."""

import ctypes, ctypes.util, errno, hashlib, json, mmap, os, random, subprocess, sys

PAGE, LONGEST = 4096, 24 * 4096
FILES = ['a', 'b']
KEEP, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][:2]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def checked(result):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Worker:
    """What one process does; each call of `FILE` by its own descriptor and mapping."""

    def __init__(self):
        self.open = {}

    def of(self, name):
        if name not in self.open:
            fd = os.open(name, os.O_RDWR)
            at = libc.mmap(None, LONGEST, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
            self.open[name] = (fd, at)
        return self.open[name]

    def again(self, name):
        fd, at = self.of(name)
        libc.munmap(at, LONGEST)
        os.close(fd)
        del self.open[name]

    def store(self, name, at, text):
        ctypes.memmove(self.of(name)[1] + at, text.encode(), len(text))

    def loaded(self, name, size):
        return ctypes.string_at(self.of(name)[1], size).hex()

    def write(self, name, at, text):
        assert os.pwrite(self.of(name)[0], text.encode(), at) == len(text)

    def append(self, name, text):
        fd = os.open(name, os.O_WRONLY | os.O_APPEND)
        assert os.write(fd, text.encode()) == len(text)
        os.close(fd)

    def truncate(self, name, size, by_path):
        os.truncate(name, size) if by_path else os.ftruncate(self.of(name)[0], size)

    def fallocate(self, name, mode, at, size):
        checked(libc.fallocate(self.of(name)[0], mode, at, size))

    def copy_range(self, source, target, at_in, at_out, size):
        done = 0
        while done < size:
            n = os.copy_file_range(self.of(source)[0], self.of(target)[0], size - done, at_in + done, at_out + done)
            if n == 0:
                break
            done += n
        return done

    def read(self, name):
        return os.pread(self.of(name)[0], LONGEST + 1, 0).hex()

    def read_direct(self, name):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, LONGEST + PAGE)
        n = os.preadv(fd, [buffer], 0)
        os.close(fd)
        return buffer[:n].hex()

    def drop(self, name):
        fd, at = self.of(name)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def msync(self, name):
        checked(libc.msync(self.of(name)[1], LONGEST, 4))

    def stat(self, name):
        now = os.stat(name)
        return [now.st_size, now.st_blocks]

    def holes(self, name):
        fd, found, at = os.open(name, os.O_RDONLY), [], 0
        while True:
            try:
                data = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as e:
                if e.errno != errno.ENXIO: raise
                break
            found.append([at, data])
            at = os.lseek(fd, data, os.SEEK_HOLE)
        size = os.fstat(fd).st_size
        os.close(fd)
        return found + [[at, size]]

    def program(self, name, how):
        os.path.exists('copy') and os.unlink('copy')
        script = {'cp': 'cp %s copy', 'sparse': 'cp --sparse=always %s copy', 'cat': 'cat %s > copy',
                  'tar': 'tar -cSf t %s && mkdir x && tar -xSf t -C x && mv x/* copy && rmdir x && rm t'}[how]
        subprocess.run(['sh', '-ec', script % name], check=True)
        data = open('copy', 'rb').read()
        os.unlink('copy')
        return data.hex()


def serve(requests, answers):
    worker = Worker()
    for line in requests:
        call, *arguments = json.loads(line)
        if call == 'end':
            # With all that is dirty.
            os._exit(0)
        try:
            answer = [getattr(worker, call)(*arguments), 0]
        except OSError as e:
            answer = [str(e), e.errno]
        print(json.dumps(answer), file=answers, flush=True)


class Process:
    def __init__(self):
        (theirs, mine), (answers, done) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(mine), os.close(answers)
            serve(os.fdopen(theirs), os.fdopen(done, 'w'))
            # Nobody is there any more who would say what has failed.
            os._exit(1)
        os.close(theirs), os.close(done)
        self.requests, self.answers = os.fdopen(mine, 'w'), os.fdopen(answers)

    def __call__(self, *request, may=()):
        print(json.dumps(request), file=self.requests, flush=True)
        answer, error = json.loads(self.answers.readline())
        if error and error not in may:
            sys.exit(f'{request}: {answer}')
        return answer, error

    def end(self):
        print('["end"]', file=self.requests, flush=True)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Alone(Worker):
    """A process that is the same one."""

    def __call__(self, call, *arguments, may=()):
        try:
            return getattr(self, call)(*arguments), 0
        except OSError as e:
            if e.errno not in may: raise
            return str(e), e.errno

    def end(self):
        for name in list(self.open): self.again(name)
        return 0


class History:
    def __init__(self, seed, process):
        self.seed, self.dice, self.model, self.log = seed, random.Random(seed), {}, []
        for name in FILES:
            open(name, 'w').close()
            self.model[name] = bytearray()
        # Descriptors of one process do not reach the other.
        self.processes = [process(), process()]

    def text(self):
        return self.dice.choice('defghij') * self.dice.choice([1, 3, 40, 700, 5000])

    def at(self, size, least=0):
        """An offset, mostly close to the end or to the edge of a page."""
        size = max(size, 1)
        at = self.dice.choice([self.dice.randrange(size), size - self.dice.randrange(1, 60), size // PAGE * PAGE,
                               self.dice.randrange(0, LONGEST // 2)])
        return max(least, min(at, LONGEST - 8192))

    def grow(self, name, to):
        data = self.model[name]
        data.extend(bytes(max(0, to - len(data))))

    def put(self, name, at, text):
        self.grow(name, at)
        self.model[name][at:at + len(text)] = text if isinstance(text, (bytes, bytearray)) else text.encode()

    def step(self):
        dice, process, name = self.dice, self.dice.choice(self.processes), self.dice.choice(FILES)
        data = self.model[name]
        size = len(data)
        mapped = -(-size // PAGE) * PAGE
        kind = dice.choice(['store'] * 5 + ['behind'] * 5 + ['write'] * 3 + ['truncate'] * 3 + ['fallocate'] * 3 +
                           ['append', 'range', 'look', 'look', 'look', 'copy', 'msync', 'drop', 'again'])
        self.log.append((kind, self.processes.index(process), name, size))
        if kind == 'store' and size:
            at = min(self.at(size), size - 1)
            text = self.text()[:size - at]
            process('store', name, at, text)
            self.put(name, at, text)
        elif kind == 'behind' and size < mapped:
            at = dice.randrange(size, mapped)
            process('store', name, at, self.text()[:mapped - at].upper())
        elif kind == 'write':
            at, text = self.at(size), self.text()
            process('write', name, at, text)
            self.put(name, at, text)
        elif kind == 'append':
            text = self.text()
            if size + len(text) <= LONGEST:
                process('append', name, text)
                self.put(name, size, text)
        elif kind == 'truncate':
            to = self.at(size)
            process('truncate', name, to, dice.random() < 0.3)
            self.grow(name, to)
            del data[to:]
        elif kind == 'fallocate':
            self.fallocate(process, name)
        elif kind == 'range':
            self.range(process, name)
        elif kind == 'copy' and isinstance(process, Process):
            self.same(name, process('program', name, dice.choice(['cp', 'sparse', 'tar', 'cat']))[0])
        elif kind == 'look':
            self.look(process, name)
        elif kind in ('msync', 'drop', 'again') and size:
            process(kind, name)

    def fallocate(self, process, name):
        data, size = self.model[name], len(self.model[name])
        mode = self.dice.choice([0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP, COLLAPSE, INSERT])
        at, count = self.at(size), self.dice.choice([1, 50, PAGE, 9000])
        if mode in (COLLAPSE, INSERT):
            at, count = at // PAGE * PAGE, PAGE
            if mode == INSERT and size + count > LONGEST: return
        unsupported = (errno.EOPNOTSUPP, errno.EINVAL)
        if process('fallocate', name, mode, at, count, may=unsupported)[1]:
            return
        if mode in (0, ZERO):
            self.grow(name, at + count)
        if mode & (PUNCH | ZERO):
            to = min(at + count, len(data))
            if at < to: data[at:to] = bytes(to - at)
        if mode == COLLAPSE:
            del data[at:at + count]
        if mode == INSERT:
            data[at:at] = bytes(count)

    def range(self, process, source):
        target = self.dice.choice(FILES)
        size = len(self.model[source])
        if not size or target == source:
            return
        at_in, at_out = min(self.at(size), size - 1), self.at(len(self.model[target]))
        count = min(self.dice.choice([1, 700, 6000]), size - at_in)
        bytes_in = bytes(self.model[source][at_in:at_in + count])
        done = process('copy_range', source, target, at_in, at_out, count)[0]
        assert done == count, (done, count)
        self.put(target, at_out, bytes_in)

    def same(self, name, got):
        got, want = bytes.fromhex(got), bytes(self.model[name])
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            sys.exit(f'seed {self.seed}: {name}: {len(got)} bytes, not {len(want)}, differ at {at}: '
                     f'{got[at:at + 20]!r}, not {want[at:at + 20]!r}; last: {self.log[-12:]}')

    def look(self, process, name):
        want = bytes(self.model[name])
        how = self.dice.choice(['read', 'loaded', 'read_direct', 'stat', 'holes'])
        if how == 'stat':
            size, blocks = process('stat', name)[0]
            if size != len(want) or (blocks == 0 and any(want)):
                sys.exit(f'seed {self.seed}: {name}: {size} bytes, {blocks} blocks, not {len(want)}; {self.log[-12:]}')
        elif how == 'holes':
            for start, end in process('holes', name)[0]:
                if any(want[start:end]):
                    sys.exit(f'seed {self.seed}: {name}: no hole: {start} to {end}; last: {self.log[-12:]}')
        elif how == 'loaded':
            self.same(name, process('loaded', name, len(want))[0])
        else:
            got, error = process(how, name, may=(errno.EINVAL,))
            error or self.same(name, got)

    def run(self, operations):
        for _ in range(operations):
            self.step()
        for name in FILES:
            self.same(name, self.processes[0]('read', name)[0])
        for process in self.processes:
            assert process.end() == 0
        for name in FILES:
            print(f'{hashlib.sha256(self.model[name]).hexdigest()}  {os.path.basename(os.getcwd())}/{name}')


def main(directory, seed, operations, transaction=None):
    if transaction:
        import systx
        systx.begin(directory)
    os.chdir(directory)
    History(int(seed), Alone if transaction == 'alone' else Process).run(int(operations))
    if transaction:
        systx.end()


main(*sys.argv[1:])
