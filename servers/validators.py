"""Four validators on one machine, for the checks: each with a CometBFT, an application and an
address of its own, in a network that only the checks have."""

import ctypes
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = "0.38.17"
NEWNET = 0x40000000


def until(happened, what, limit=600):
    """Waits for what is bound to happen, on however slow a machine; `what` may be a function, which
    is asked when it has not."""
    end = time.monotonic() + limit
    while not happened():
        if time.monotonic() > end:
            raise AssertionError(f"never happened: {what() if callable(what) else what}")
        time.sleep(0.05)


def client_class():
    loader = importlib.machinery.SourceFileLoader("client", f"{HERE}/graph/client")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("client", loader))
    loader.exec_module(module)
    return module.Client


Client = client_class()


class Missing(Exception):
    """Why the engine or the crates cannot be had."""


def engine(target):
    """The program of the engine, which is built if it is not there."""
    where = f"{target}/cometbft-{VERSION}"
    program = f"{where}/cometbft"
    if os.path.exists(program):
        return program
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not os.path.exists(go):
        raise Missing("no Go to build CometBFT with")
    package = f"github.com/cometbft/cometbft/cmd/cometbft@v{VERSION}"
    try:
        done = subprocess.run([go, "install", package], env=dict(os.environ, GOBIN=where),
                              text=True, capture_output=True, timeout=1200)
    except subprocess.TimeoutExpired:
        raise Missing(f"{package} is not built in 20 minutes")
    if done.returncode:
        raise Missing(f"{package}: {done.stderr.strip().splitlines()[-1:]}")
    return program


def application(target, where, program, release=False):
    """The program of an application, whose crate is in this directory."""
    cargo = ["cargo", "fetch", "-q", "--locked"]
    if subprocess.run(cargo, cwd=f"{HERE}/{where}", capture_output=True).returncode:
        raise Missing("the crates of the application cannot be fetched")
    build = ["cargo", "build", "-q", "--locked", "--target-dir", target]
    build += ["--release"] if release else []
    subprocess.run(build, cwd=f"{HERE}/{where}", check=True)
    return f"{target}/{'release' if release else 'debug'}/{program}"


def own_network():
    """For this thread and the processes that it starts."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEWNET):
        raise Missing("no network of its own: " + os.strerror(ctypes.get_errno()))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def same(every, end):
    """Whether all have the same hash after each block up to this one that they still have."""
    all_ = [one.hashes(1, end) for one in every]
    common = set.intersection(*map(set, all_))
    assert end in common, all_
    return all(each[height] == all_[0][height] for each in all_ for height in common)


class Validator:
    """One of them."""

    def __init__(self, test, number, comet, application, home, options=()):
        """`application`: from an address to the command; `options`: of the engine."""
        self.test, self.home, self.comet = test, home, comet
        self.address = f"127.0.0.{number + 2}"
        self.name = f"{test.site.base}/validator{number}"
        self.client = Client(f"http://{self.address}:26657")
        self.application = application(self.address)
        self.processes = []
        self.configure(options)

    def configure(self, options):
        path = f"{self.home}/config/config.toml"
        with open(path) as file:
            text = file.read()
        at = f"tcp://{self.address}"
        for key, value in (("proxy_app", f'"{at}:26658"'), ("pprof_laddr", '""'),
                           ("addr_book_strict", "false"), ("allow_duplicate_ip", "true"),
                           ("pex", "false"), ("timeout_commit", '"100ms"'),
                           ("timeout_propose", '"1s"'),
                           ("log_level", '"error"'), *options):
            text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
            assert count == 1, key
        for port in (26656, 26657):
            text, count = re.subn(rf'"tcp://(0\.0\.0\.0|127\.0\.0\.1):{port}"',
                                  f'"{at}:{port}"', text)
            assert count == 1, port
        with open(path, "w") as file:
            file.write(text)

    def syncs_from(self, others):
        """The engine of a new one begins with a snapshot of theirs, not with the first block."""
        first = others[0].client
        block = first.call("block", height=str(first.height()))
        servers = ",".join(f"{one.address}:26657" for one in others)
        path = f"{self.home}/config/config.toml"
        with open(path) as file:
            text = file.read()
        for key, value in (("enable", "true"), ("rpc_servers", f'"{servers}"'),
                           ("trust_height", block["block"]["header"]["height"]),
                           ("trust_hash", f'"{block["block_id"]["hash"]}"'),
                           ("discovery_time", '"5s"')):
            text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
            assert count == 1, key
        with open(path, "w") as file:
            file.write(text)

    def held(self, step):
        """Starts it with a snapshot to come, and returns when its application waits at a step of
        that, until the file is gone whose name this is."""
        hold = f"{self.name}.hold"
        self.start(SYSTX_HOLD=f"{step}:{hold}")
        until(lambda: os.path.exists(hold), lambda: f"step {step} of a snapshot; {self.log()}", 240)
        return hold

    def keeps_no_more(self):
        """Started again with the snapshots that it has, to which no further ones come."""
        self.kill()
        while self.application[-1] == "prune":
            self.application.pop()
        self.application[-1] = str(10 ** 9)
        self.start()

    def node(self):
        """How others name it."""
        command = [self.comet, "show-node-id", "--home", self.home]
        return subprocess.run(command, check=True, text=True, capture_output=True).stdout.strip()

    def hashes(self, begin, end):
        """After each block but the last one, as the next one has them: of those of these blocks
        that its engine still has."""
        found = {}
        for height in range(max(begin, self.earliest()), end + 1):
            try:
                block = self.client.call("block", height=str(height))["block"]
            except RuntimeError:
                # An engine drops blocks at any time, also when no more come.
                if self.earliest() <= height:
                    raise
                continue
            found[height] = block["header"]["app_hash"]
        return found

    def earliest(self):
        """The first block that it has."""
        return int(self.client.call("status")["sync_info"]["earliest_block_height"])

    def spawn(self, *command, **environment):
        with open(f"{self.name}.log", "a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                       env=dict(self.test.site.environment, **environment))
        self.processes.append(process)
        return process

    def start_application(self, **environment):
        return self.spawn(*self.application, **environment)

    def start(self, **environment):
        # The engine asks its application again and again until that is there.
        self.start_application(**environment)
        self.spawn(self.comet, "node", "--home", self.home)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes = []

    def height(self):
        """-1: it does not answer."""
        try:
            return self.client.height()
        except (OSError, RuntimeError, ValueError):
            return -1

    def whole_log(self):
        with open(f"{self.name}.log", errors="replace") as log:
            return log.read()

    def log(self):
        """Which of its processes have ended, why if it is a panic, and what they said at last: an
        engine that ends leaves hundreds of lines of its stacks."""
        names = [(os.path.basename(one.args[0]), one.poll()) for one in self.processes]
        ended = [f"{name} has ended: {code}" for name, code in names if code is not None]
        lines = [line[:300] for line in self.whole_log().splitlines()]
        why = [n for n, line in enumerate(lines) if line.startswith(("panic", "fatal error"))]
        said = [line for n in why for line in lines[n:n + 12]]
        return "\n".join([f"{self.address}:", *ended, *said, *lines[-20:]])
