"""A file system with guarded directories, for the checks, demos and benchmarks of servers.

Everything lives below one directory: an ext4 image, the daemon of systx, and what a server adds.
Needs root and a mount namespace that ends with the caller.
"""

import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
LIMIT = 60  # seconds, for what is bound to happen


def die_with_parent():
    """In a child: whatever happens to this program, the child does not stay."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def until(happened, what):
    end = time.monotonic() + LIMIT
    while not happened():
        if time.monotonic() > end:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.005)


def runs(pid):
    """Not also one whose end nobody has asked for yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def served(tree):
    """What the kernel remembers of a directory is no sign that somebody serves it."""
    try:
        return os.statvfs(tree) and os.listdir(tree) is not None
    except OSError:
        return False


def environment(pid):
    """Of a process.  While it executes a program the kernel shows none, though it has one."""
    limit = time.monotonic() + 1
    while True:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = file.read()
        # A thread of the kernel has no program: that is an OSError.
        if found or not os.readlink(f"/proc/{pid}/exe") or time.monotonic() > limit:
            return found


def processes_of(runtime):
    """Those that have this runtime directory in their environment, as pid and words."""
    mine, found = f"SYSTX_RUNTIME_DIR={runtime}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mine not in environment(pid).split(b"\0"):
                continue
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found.append((int(pid), file.read().split(b"\0")))
        except OSError:
            continue
    return [one for one in found if one[0] != os.getpid()]


def is_guarded(tree):
    with open("/proc/self/mountinfo") as table:
        return any(line.split()[4] == tree and " fuse.systx " in line for line in table)


class Volume:
    """See the module."""

    def __init__(self, name, inject=None, megabytes=400):
        self.base = tempfile.mkdtemp(prefix=f"systx-{name}.", dir="/var/tmp")
        os.chmod(self.base, 0o755)
        self.volume, self.runtime = f"{self.base}/volume", f"{self.base}/run"
        self.target = os.path.abspath(os.environ.get("SYSTX_BUILT", f"{TOP}/target/debug"))
        self.systx_binary = f"{self.target}/systx"
        self.environment = dict(os.environ, SYSTX_RUNTIME_DIR=self.runtime, LC_ALL="C.UTF-8",
                                LD_LIBRARY_PATH=self.target, SYSTX_ONE_FILE_SYSTEM="1")
        if inject:
            self.environment["SYSTX_INJECT_ABORTS"] = inject
        self.servers, self.guarded, self.mounted = [], [], False
        self.how = {}  # of what is not guarded by `systx mount TREE`
        atexit.register(self.close)
        os.mkdir(self.volume)
        os.mkdir(self.runtime, 0o700)
        image = f"{self.base}/image"
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", image],
                       check=True)
        subprocess.run(["mount", "-o", "loop", image, self.volume], check=True)
        self.mounted = True

    def tree(self, name, guard=True):
        path = f"{self.volume}/{name}"
        os.mkdir(path, 0o755)
        if guard:
            self.guard(path)
        return path

    def guard(self, tree, *how):
        """`how`: the words after `systx mount`, if they are not just the directory."""
        if how:
            self.how[tree] = how
        self.systx("mount", *self.how.get(tree, [tree]))
        if tree not in self.guarded:
            self.guarded.append(tree)

    def unguard(self, tree):
        self.systx("umount", tree)
        self.guarded.remove(tree)

    def systx(self, *arguments, check=True, text=None, cwd=None):
        done = subprocess.run([self.systx_binary, *arguments], env=self.environment, text=True,
                              input=text, capture_output=True, cwd=cwd or self.volume)
        if check and done.returncode:
            said = done.stdout + done.stderr
            raise AssertionError(f"systx {arguments}: {done.returncode}: {said}")
        return done

    def daemon_log(self):
        """What the daemons had to say at last."""
        text = ""
        for name in os.listdir(self.runtime):
            if name.endswith(".log"):
                with open(f"{self.runtime}/{name}", errors="replace") as log:
                    text += log.read()[-6000:]
        return text

    def kill_daemon(self):
        """kill -9 of the daemon; its keeper starts the next one.  Returns when that is there."""
        pids = [pid for pid, words in processes_of(self.runtime) if b"--serve" in words]
        assert pids, "there is no daemon"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(runs, pids)), "the daemon is gone")
        until(lambda: all(map(served, self.guarded)), "the next daemon serves the tree")
        for tree in self.guarded:
            # A daemon that dies again and again guards nothing any more until somebody wants it to.
            if not is_guarded(tree):
                self.guard(tree)

    def another_daemon(self, inject):
        """Is to serve all of it, and to make up conflicts, or none."""
        for tree in self.guarded:
            self.systx("umount", tree)
        served = [pid for pid, _ in processes_of(self.runtime)]
        for pid in served:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(runs, served)), "the daemon is gone")
        self.environment.pop("SYSTX_INJECT_ABORTS", None)
        if inject:
            self.environment["SYSTX_INJECT_ABORTS"] = inject
        for tree in self.guarded:
            self.guard(tree)

    def close(self):
        atexit.unregister(self.close)
        for server in self.servers:  # what a site has added
            server.stop()
        for tree in self.guarded:
            self.systx("umount", tree, check=False)
        for pid, _ in processes_of(self.runtime):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.mounted:
            for tree in self.guarded:
                subprocess.run(["umount", "-l", tree], stderr=subprocess.DEVNULL)
            subprocess.run(["umount", "-l", self.volume], check=False)
        shutil.rmtree(self.base, ignore_errors=True)
