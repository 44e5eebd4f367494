"""A slapd on a guarded directory of its own, for the checks, the demo and the benchmark.

Everything lives below one directory: an ext4 image, the daemon of systx, the configurations and
sockets of slapd.  Needs root and a mount namespace that ends with the caller.
"""

import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
SUFFIX = "dc=example,dc=com"
ADMIN = f"cn=admin,{SUFFIX}"
PASSWORD = "secret"
SCHEMAS = ["core", "cosine", "inetorgperson"]
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


def processes_of(runtime):
    """Those that have this runtime directory in their environment, as pid and words."""
    mine, found = f"SYSTX_RUNTIME_DIR={runtime}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mine not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found.append((int(pid), file.read().split(b"\0")))
        except OSError:
            continue
    return [one for one in found if one[0] != os.getpid()]


def is_guarded(tree):
    with open("/proc/self/mountinfo") as table:
        return any(line.split()[4] == tree and " fuse.systx " in line for line in table)


class Slapd:
    """One server of a site."""

    def __init__(self, site, name, tree, backend="ldif", plugin=True, options=(), before=()):
        self.site, self.name, self.backend = site, name, backend
        self.before, self.process = list(before), None
        self.conf, self.socket = f"{site.base}/{name}.conf", f"{site.base}/{name}.sock"
        self.configuration = ["-f", self.conf]
        self.url = "ldapi://" + urllib.parse.quote(self.socket, safe="")
        lines = [f"include /etc/ldap/schema/{schema}.schema" for schema in SCHEMAS]
        lines += [f"pidfile {site.base}/{name}.pid", "threads 8", "writetimeout 60"]
        if backend == "mdb":
            lines += ["modulepath /usr/lib/ldap", "moduleload back_mdb"]
        lines += [f"database {backend}", f'suffix "{SUFFIX}"', f'rootdn "{ADMIN}"',
                  f"rootpw {PASSWORD}", f"directory {tree}"]
        if plugin:
            lines += [f'plugin preoperation {site.plugin} systx_init {tree} "{SUFFIX}"']
        with open(self.conf, "w") as conf:
            conf.write("\n".join([*lines, *options]) + "\n")

    def in_cn_config(self):
        """From now on by the configuration that slapd makes of the file."""
        self.configuration = ["-F", f"{self.site.base}/{self.name}.d"]
        os.mkdir(self.configuration[1])
        done = subprocess.run(["/usr/sbin/slaptest", "-f", self.conf, *self.configuration],
                              env=self.site.environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return self

    def start(self):
        log, nothing = open(f"{self.site.base}/{self.name}.log", "a"), subprocess.DEVNULL
        command = [*self.before, "/usr/sbin/slapd", *self.configuration]
        command += ["-h", self.url, "-d", "0"]
        self.process = subprocess.Popen(command, env=self.site.environment, stdin=nothing,
                                        stdout=log, stderr=log, preexec_fn=die_with_parent)
        until(self.answers, f"{self.name} answers; {self.log()}")
        return self

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}: {self.log()}")
        who = ["ldapwhoami", "-x", "-H", self.url]
        return subprocess.run(who, capture_output=True).returncode == 0

    def log(self):
        with open(f"{self.site.base}/{self.name}.log", errors="replace") as log:
            return log.read()[-3000:]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                self.kill()

    def tool(self, program, *arguments, text=""):
        """A stock client as the administrator."""
        command = [program, "-x", "-H", self.url, "-D", ADMIN, "-w", PASSWORD, *arguments]
        return subprocess.run(command, input=text, text=True, capture_output=True, timeout=LIMIT)

    def slapcat(self):
        """The whole database as the stock tool prints it."""
        command = ["/usr/sbin/slapcat", *self.configuration, "-b", SUFFIX, "-o", "ldif-wrap=no"]
        done = subprocess.run(command, env=self.site.environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


class Site:
    """See the module."""

    def __init__(self, inject=None, megabytes=400):
        self.base = tempfile.mkdtemp(prefix="systx-ldap.", dir="/var/tmp")
        os.chmod(self.base, 0o755)
        self.volume, self.runtime = f"{self.base}/volume", f"{self.base}/run"
        self.target = os.path.abspath(os.environ.get("SYSTX_BUILT", f"{TOP}/target/debug"))
        self.systx_binary = f"{self.target}/systx"
        self.plugin = f"{self.target}/slapi_systx.so"
        self.environment = dict(os.environ, SYSTX_RUNTIME_DIR=self.runtime, LC_ALL="C.UTF-8",
                                LD_LIBRARY_PATH=self.target, SYSTX_ONE_FILE_SYSTEM="1")
        if inject:
            self.environment["SYSTX_INJECT_ABORTS"] = inject
        self.servers, self.guarded, self.mounted = [], [], False
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
            self.systx("mount", path)
            self.guarded.append(path)
        return path

    def slapd(self, name, tree, **how):
        server = Slapd(self, name, tree, **how)
        self.servers.append(server)
        return server

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
                self.systx("mount", tree)

    def close(self):
        atexit.unregister(self.close)
        for server in self.servers:
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
