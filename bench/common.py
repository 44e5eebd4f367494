"""What the benchmarks of guarded directories share: the volume, the sides in interleaved rounds, and what is written of them.

All sides of a row run within seconds of each other on one ext4 image on the disk, in an order that turns with
each round; what counts is the ratio of medians.  Needs root.
"""

import argparse, csv, datetime, gc, json, os, platform, re, shutil, sqlite3, statistics, subprocess, sys, textwrap, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)


def build(*what):
    """Builds each of these, arguments of cargo, as it is installed; the directory with the results."""
    for words in what:
        subprocess.run(["cargo", "build", "-q", "--profile", "dist", *words], cwd=TOP, check=True)
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target")), "dist")


class Bench:
    PARTS = {}      # names of parts, and of the methods that measure them
    EXAMPLES = []   # of crates/lib, built beside the binary
    MARKS = ()      # in docs/BENCHMARKS.md
    TITLE = ""      # there
    NAME = ""       # of the result directory, and of the program

    def __init__(self, o):
        self.o, self.rows, self.tables = o, [], []
        self.binary = os.path.abspath(o.binary) if o.binary else self.build()
        self.results = os.path.join(HERE, "results", f"{datetime.date.today().isoformat()}-{o.name}")
        if o.results:
            self.results = os.path.abspath(o.results)
        self.base = f"{os.path.abspath(o.dir or '/var/tmp')}/systx-bench.{os.getpid()}"
        self.volume, runtime = f"{self.base}/volume", f"{self.base}/run"
        os.makedirs(self.volume)
        os.mkdir(runtime, 0o700)
        self.guarded, self.disk = [], None
        if o.dir:
            runtime = os.environ.get("SYSTX_RUNTIME_DIR", runtime)
        self.environment = dict(os.environ, SYSTX_RUNTIME_DIR=runtime, LC_ALL="C.UTF-8")
        if o.dir:
            return
        image = f"{self.base}/image"
        if o.flush_ms:
            image = self.slow_disk(o.flush_ms)
        else:
            with open(image, "wb") as f:
                f.truncate(3 << 30)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, self.volume], check=True)

    def slow_disk(self, flush_ms):
        """The file of a disk in memory each of whose flushes takes so long."""
        program = os.path.join(build(["-p", "systx-sim", "--example", "slow-disk"]), "examples/slow-disk")
        where = f"{self.base}/disk"
        os.mkdir(where)
        self.disk = subprocess.Popen([program, where, "2048", str(flush_ms)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self.disk.stdout.readline().strip()

    def build(self):
        examples = (["-p", "libsystx", "--example", e] for e in self.EXAMPLES)
        return os.path.join(build(["-p", "systx", "--bin", "systx"], ["-p", "libsystx", "--lib"], *examples), "systx")

    def library(self):
        """The Python package over the libsystx beside the binary; None if there is none."""
        path = os.path.join(os.path.dirname(self.binary), "libsystx.so")
        if not os.path.exists(path):
            return None
        os.environ["SYSTX_LIBRARY"] = path
        # Of the tree that the binary was built in: another version may have another library.
        own = os.path.join(os.path.dirname(self.binary), "../../bindings/python")
        sys.path.insert(0, own if os.path.isdir(own) else os.path.join(TOP, "bindings/python"))
        import systx
        return systx

    def close(self):
        # An LMDB environment is open, with its files, as long as a closure has it that has itself.
        gc.collect()
        for place in self.guarded:
            self.systx("umount", place, check=False)
        for _ in range(100):
            if self.o.dir or subprocess.run(["umount", self.volume], stderr=subprocess.DEVNULL).returncode == 0:
                if self.disk:
                    self.disk.communicate()
                shutil.rmtree(self.base, ignore_errors=True)
                return
            time.sleep(0.1)
        print("left behind:", self.base, file=sys.stderr)

    def sh(self, script, cwd, check=True):
        done = subprocess.run(["sh", "-c", script], cwd=cwd, env=self.environment, text=True, capture_output=True)
        if check and done.returncode:
            raise SystemExit(f"{script[:200]!r} in {cwd} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done

    def systx(self, *args, cwd=None, check=True):
        done = subprocess.run([self.binary, *args], cwd=cwd or self.volume, env=self.environment, text=True, capture_output=True)
        if check and done.returncode:
            raise SystemExit(f"systx {' '.join(args)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def place(self, name, guard, *how):
        place = os.path.join(self.volume, name)
        os.mkdir(place)
        if guard:
            self.systx("mount", *how, place)
            self.guarded.append(place)
        return place

    def example(self, name):
        """The path of a built example of crates/lib; None if there is none beside the binary."""
        program = os.path.join(os.path.dirname(self.binary), "examples", name)
        if os.path.exists(program):
            return program
        print(f"left out: no examples/{name} beside the binary", file=sys.stderr)
        return None

    def begin(self, place):
        begun = json.loads(self.systx("begin", "--json", place))["begun"]
        return begun["id"], begun["path"]

    def same_priority(self):
        """The daemon has a session of its own, and with it a share of the processor of its own: the
        same as that of the servers, whatever this was started with."""
        sys.path.insert(0, os.path.join(TOP, "servers"))
        from volume import processes_of
        try:
            with open("/proc/self/autogroup") as mine:
                nice = mine.read().rpartition("nice")[2].strip()
        except OSError:
            return
        for pid, _ in processes_of(self.environment["SYSTX_RUNTIME_DIR"]):
            # The kernel lets through one such change in a while.
            for _ in range(50):
                try:
                    with open(f"/proc/{pid}/autogroup", "w") as its:
                        its.write(nice)
                    break
                except BlockingIOError:
                    time.sleep(0.1)

    def note(self, part, row, side, round_, value):
        self.rows.append(dict(part=part, row=row, side=side, round=round_, value=f"{value:.3f}"))
        # What was measured stays, also if the rest never is.
        self.write_raw()

    def median(self, part, row, side):
        values = [float(r["value"]) for r in self.rows if (r["part"], r["row"], r["side"]) == (part, row, side) and r["round"] >= 0]
        return statistics.median(values) if values else None

    def rounds(self, sides, normal, quick=2):
        """Rounds from -1, which warms up and does not count; each with the sides in another order."""
        for r in range(-1, self.o.rounds or (quick if self.o.quick else normal)):
            turn = (r + 1) % len(sides)
            yield r, [*sides[turn:], *sides[:turn]]

    def table(self, title, head, rows):
        lines = [textwrap.fill(f"**{title}**", 100), "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
        self.tables += lines
        print("\n".join(lines), flush=True)

    def run(self):
        wanted = self.o.only.split(",") if self.o.only else list(self.PARTS)
        for part in wanted:
            if part not in self.PARTS:
                raise SystemExit(f"no part {part!r}: {', '.join(self.PARTS)}")
        for part in wanted:
            getattr(self, self.PARTS[part])()
        self.write()

    def machine(self):
        def read(path):
            try:
                return open(path).read().strip()
            except OSError:
                return "?"
        cpu = re.search(r"model name\s*:\s*(.*)", read("/proc/cpuinfo"))
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TOP, text=True, capture_output=True).stdout.strip()
        machine = [f"date: {datetime.datetime.now().isoformat(timespec='minutes')}", f"commit: {commit}", f"kernel: {platform.release()}",
                   f"cpu: {cpu.group(1) if cpu else '?'} x {os.cpu_count()}", f"load at the end: {read('/proc/loadavg')}",
                   f"volume: {self.o.dir or 'ext4 image, loop-mounted, on ' + (f'a disk in memory each of whose flushes takes {self.o.flush_ms} ms' if self.o.flush_ms else 'the disk')}", f"FUSE over io_uring: {read('/sys/module/fuse/parameters/enable_uring')}",
                   *(["quick: few rounds, small numbers"] if self.o.quick else [])]
        return machine

    def write_raw(self):
        os.makedirs(self.results, exist_ok=True)
        with open(os.path.join(self.results, "raw.csv"), "w", newline="") as f:
            writer = csv.DictWriter(f, ["part", "row", "side", "round", "value"])
            writer.writeheader()
            writer.writerows(self.rows)

    def write(self):
        machine = self.machine()
        self.write_raw()
        for name, lines in (("machine.txt", machine), ("table.md", self.tables)):
            with open(os.path.join(self.results, name), "w") as f:
                f.write("\n".join(lines) + "\n")
        if self.o.docs:
            path = os.path.join(TOP, "docs", "BENCHMARKS.md")
            text = open(path).read()
            where = os.path.relpath(self.results, TOP)
            told = f"Made by `bench/{self.NAME} --docs`; raw data in [`{where}`](../{where}). {'; '.join(machine)}"
            told = textwrap.fill(told, 100, break_long_words=False, break_on_hyphens=False)
            made = f"{self.MARKS[0]}\n## {self.TITLE}\n{told}\n\n" + "\n".join(self.tables) + self.MARKS[1]
            if self.MARKS[0] in text:
                text = text[:text.index(self.MARKS[0])] + made + text[text.index(self.MARKS[1]) + len(self.MARKS[1]):]
            else:
                text = text.rstrip() + "\n\n" + made + "\n"
            with open(path, "w") as f:
                f.write(text)
        print("results in", os.path.relpath(self.results, TOP))


def in_threads_of_python(client, n, seconds):
    """How often each of n threads of this process gets through in the time, together per second."""
    done, stop = [0] * n, time.perf_counter() + seconds
    failed = []
    def run(k):
        step, end = client(k)
        try:
            while time.perf_counter() < stop:
                step(done[k])
                done[k] += 1
        except Exception as e:
            failed.append(e)
        finally:
            end()
    begun = time.perf_counter()
    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if failed:
        raise failed[0]
    return sum(done) / (time.perf_counter() - begun)


def in_processes_of_python(client, n, seconds):
    """The same of n processes."""
    ready, go = os.pipe()
    def child(k, out):
        os.close(go)
        step, end = client(k)
        step(0)
        os.write(out, b"r")
        os.read(ready, 1)
        done, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + seconds:
            done += 1
            step(done)
        os.write(out, f"{done} {time.perf_counter() - begun}".encode())
        end()
    children = []
    for k in range(n):
        told, out = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(k, out)
                code = 0
            except BaseException as e:
                print(f"client {k}: {e!r}", file=sys.stderr)
            finally:
                os._exit(code)
        os.close(out)
        children.append((pid, told))
    [os.read(told, 1) for _, told in children]
    os.close(ready)
    os.close(go)
    rates = []
    for pid, told in children:
        text = os.read(told, 100).decode().split()
        os.close(told)
        if os.waitpid(pid, 0)[1] != 0 or len(text) != 2:
            raise SystemExit("a client has failed")
        rates.append((int(text[0]), float(text[1])))
    return sum(done for done, _ in rates) / max(took for _, took in rates)


def import_lmdb():
    try:
        import lmdb
        return lmdb
    except ImportError:
        print("left out: LMDB (no Python package lmdb)", file=sys.stderr)
        return None


def with_sqlite(path, sync, rows=1):
    """Clients that replace so many rows of their own in each transaction."""
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS t(k INTEGER PRIMARY KEY, v TEXT)")
    db.close()
    def client(k):
        db = sqlite3.connect(path, timeout=120, isolation_level=None)
        db.execute(f"PRAGMA synchronous={sync}")
        put = lambda n, i: db.execute("INSERT OR REPLACE INTO t VALUES(?, ?)", (k * rows + n, str(i)))
        def several(i):
            db.execute("BEGIN IMMEDIATE")
            for n in range(rows):
                put(n, i)
            db.execute("COMMIT")
        return (several if rows > 1 else lambda i: put(0, i)), db.close
    return client


def with_lmdb(lmdb, path, sync, rows=1):
    envs = {}
    def client(k):
        # One for all threads of a process, and none that was opened before a fork.
        if os.getpid() not in envs:
            envs[os.getpid()] = lmdb.open(path, map_size=1 << 28, sync=sync, metasync=sync)
        env = envs[os.getpid()]
        def step(i):
            with env.begin(write=True) as txn:
                for n in range(rows):
                    txn.put(str(k * rows + n).encode(), str(i).encode())
        return step, lambda: None
    return client


def main(bench, doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="few rounds, small numbers")
    p.add_argument("--rounds", type=int, help="instead of each part's own number")
    p.add_argument("--name", default=bench.NAME, help="of the result directory")
    p.add_argument("--results", help="the result directory, instead of one of today below bench/results")
    p.add_argument("--flush-ms", type=int, help="on a disk in memory each of whose flushes takes so many milliseconds")
    p.add_argument("--dir", help="work below this directory, instead of in an image of its own")
    p.add_argument("--only", help="these parts")
    p.add_argument("--binary", help="a built systx, with the library and the examples beside it, instead of building them")
    p.add_argument("--docs", action="store_true", help="rewrite the tables in docs/BENCHMARKS.md")
    o = p.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("only root can guard a directory")
    running = bench(o)
    try:
        running.run()
    finally:
        running.close()
