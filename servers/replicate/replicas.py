"""Four replicas on one machine, for the checks, the demo and the benchmark: each with a guarded
directory or a log-structured volume, an engine and an address of its own, in a network that only
they have."""

import collections
import os
import stat
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import validators  # noqa: E402

# Blocks are made when there is something to be in them.
OPTIONS = [("create_empty_blocks", "false"), ("timeout_commit", '"0s"'),
           ("timeout_propose", '"1s"'), ("skip_timeout_commit", "true"),
           ("peer_gossip_sleep_duration", '"5ms"'), ("flush_throttle_timeout", '"5ms"')]


Found = collections.namedtuple("Found", "mode owner xattrs content names")


class Place:
    """A directory that is one of several, and what certifies there."""

    def __init__(self, site, name, is_volume):
        self.site, self.name, self.tree = site, name, f"{site.volume}/{name}"
        self.image = f"{site.base}/{name}.img" if is_volume else None
        self.socket, self.size = f"{site.base}/{name}.sock", "64M"

    def command(self, address, snapshots, every, *more):
        """Its application, which keeps snapshots if it is said where."""
        keeps = [snapshots, str(every), *more] if every else []
        return [f"{self.site.target}/systx-replicate", self.tree, self.socket, f"{address}:26658",
                f"{address}:26657", *keeps]

    def guard(self):
        """Its directory with the certifier."""
        what = ["--threads", self.image, self.tree] if self.image else [self.tree]
        self.site.guard(self.tree, *what, "--certifier", self.socket)

    def make(self):
        os.mkdir(self.tree, 0o755)
        if self.image:
            self.site.systx("mkfs", self.image, "--size", self.size)
        self.guard()

    def remove(self):
        self.site.unguard(self.tree)
        subprocess.run(["rm", "-rf", self.tree, *filter(None, [self.image])], check=True)

    def run(self, script, *options, cwd=None):
        """A transaction of a program at this replica."""
        words = ["run", "-q", *options, "--root", self.tree, "-C", cwd or self.tree, "--", "sh",
                 "-c", script]
        return self.site.systx(*words, check=False)

    def files(self):
        """What is there, without what the replica keeps for itself."""
        found, names = {}, {}
        for at, dirs, files in os.walk(self.tree):
            if at == self.tree:
                dirs[:] = [name for name in dirs if name != ".replicate"]
            for name in dirs + files:
                path = f"{at}/{name}"
                meta = os.lstat(path)
                content = None
                if os.path.islink(path):
                    content = os.readlink(path)
                elif os.path.isfile(path):
                    with open(path, "rb") as file:
                        content = file.read()
                name = os.path.relpath(path, self.tree)
                same = names.setdefault((meta.st_dev, meta.st_ino), [])
                same.append(name)
                xattrs = {key: os.getxattr(path, key, follow_symlinks=False)
                          for key in os.listxattr(path, follow_symlinks=False)}
                owner = (meta.st_uid, meta.st_gid, meta.st_rdev)
                found[name] = Found(stat.filemode(meta.st_mode), owner, xattrs, content, same)
        return {name: one._replace(names=tuple(sorted(one.names))) for name, one in found.items()}


class Replica(Place, validators.Validator):
    """One of them, with its engine."""

    def __init__(self, site, number, comet, home, is_volume, every):
        Place.__init__(self, site, f"r{number}", is_volume)
        self.snapshots = f"{site.base}/snapshots{number}"
        command = lambda address: self.command(  # noqa: E731
            address, self.snapshots, every, "prune")
        validators.Validator.__init__(self, Holder(site), number, comet, command, home, OPTIONS)

    def start(self, **environment):
        if not os.path.exists(self.tree):
            self.make()
        super().start(**environment)

    def forget(self):
        """Another machine in its place: an empty directory, and an engine that knows no blocks."""
        self.remove()
        command = [self.comet, "comet", "unsafe-reset-all", "--home", self.home]
        if subprocess.run(command, capture_output=True).returncode:
            command = [self.comet, "unsafe-reset-all", "--home", self.home]
            subprocess.run(command, check=True, capture_output=True)

    def in_place(self):
        """The last block that the replica has installed; -1: it does not answer."""
        try:
            told = self.client.call("abci_info")["response"]
        except (OSError, RuntimeError, ValueError):
            return -1
        return int(told.get("last_block_height", 0))


class Holder:
    """What a validator asks of its test."""

    def __init__(self, site):
        self.site = site


def replicas(site, volumes=(), every=None):
    """Four that run, those with these numbers on volumes, with a snapshot after every so many
    blocks; Missing if the engine cannot be had."""
    comet = validators.engine(os.path.dirname(site.target))
    validators.own_network()
    made = f"{site.base}/nodes"
    subprocess.run([comet, "testnet", "--v", "4", "--o", made, "--starting-ip-address",
                    "127.0.0.2", "--populate-persistent-peers"], check=True, capture_output=True)
    all_ = [Replica(site, n, comet, f"{made}/node{n}", n in volumes, every) for n in range(4)]
    for one in all_:
        one.start()
    for one in all_:
        validators.until(lambda: one.height() >= 1, lambda: f"it has a block; {one.log()}", 60)
    return all_


def until_equal(every):
    """Waits until all have the same blocks, and have them in place; that height."""
    def same():
        # The engine has a block before the replica has installed it.
        heights = {height for one in every for height in (one.height(), one.in_place())}
        return len(heights) == 1 and -1 not in heights
    validators.until(same, "all have the same blocks", 120)
    return every[0].height()


BASE = """dn: dc=example,dc=com
objectClass: organization
objectClass: dcObject
o: example
dc: example
"""


def person(n):
    return f"dn: cn=p{n},dc=example,dc=com\nobjectClass: person\ncn: p{n}\nsn: s\n"


def directory(site, every):
    """A slapd for each of these replicas, with the plugin of servers/ldap."""
    sys.path.insert(0, f"{os.path.dirname(HERE)}/ldap")
    from site_ import Slapd
    site.plugin = f"{site.target}/slapi_systx.so"
    servers = [Slapd(site, f"slapd{n}", one.tree) for n, one in enumerate(every)]
    site.servers += servers
    return [server.start() for server in servers]
