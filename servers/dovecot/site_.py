"""A Dovecot on a guarded directory of its own, for the checks, the demo and the benchmark.

Everything lives below one directory, with the configuration, the sockets and the log of Dovecot.
Mail belongs to a user without an account.
"""

import imaplib
import os
import re
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from volume import LIMIT, TOP, Volume, die_with_parent, runs, until  # noqa: E402

MAIL = 5000  # user and group of the mail
PASSWORD = "secret"
SHIM = "libsystx_dovecot.so"
LDA = "/usr/lib/dovecot/dovecot-lda"
CONFIGURATION = """
base_dir = {base}/run
state_dir = {base}/state
log_path = {base}/log
log_timestamp = "%Y-%m-%d %H:%M:%S "
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
default_process_limit = 64
mail_max_userip_connections = 64
passdb {{
  driver = passwd-file
  args = {base}/users
}}
userdb {{
  driver = static
  args = uid={mail} gid={mail} home={tree}/%u
}}
first_valid_uid = {mail}
mail_location = maildir:~/Maildir
namespace inbox {{
  inbox = yes
}}
service imap-login {{
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
  service_count = 0
  process_min_avail = 1
}}
service imap {{
  client_limit = 1
  process_limit = 64
}}
service stats {{
  unix_listener stats-writer {{
    mode = 0666
  }}
}}
postmaster_address = postmaster@example.com
{more}
"""
SYSTX = """
mmap_disable = yes
import_environment = TZ LD_LIBRARY_PATH={built} LD_PRELOAD={preload} {rest}
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Dovecot:
    """One server of a site."""

    def __init__(self, site, name, tree, preload=SHIM, options="", rest=""):
        self.site, self.name, self.tree, self.process = site, name, tree, None
        self.base, self.port = f"{site.base}/{name}", free_port()
        self.preload = preload and f"{site.target}/{preload}"
        os.mkdir(self.base, 0o755)
        os.mkdir(f"{self.base}/state", 0o755)
        more = options
        if preload:
            rest += f" SYSTX_MAIL={tree} SYSTX_RUNTIME_DIR={site.runtime}"
            more += SYSTX.format(built=site.target, preload=self.preload, rest=rest)
        with open(f"{self.base}/conf", "w") as conf:
            conf.write(CONFIGURATION.format(base=self.base, tree=tree, port=self.port, mail=MAIL,
                                            more=more))
        with open(f"{self.base}/users", "w") as users:
            for user in ("ann", "bob"):
                users.write(f"{user}:{{PLAIN}}{PASSWORD}::::::\n")
        os.chmod(f"{self.base}/users", 0o644)

    def start(self):
        command = ["/usr/sbin/dovecot", "-F", "-c", f"{self.base}/conf"]
        out = open(f"{self.base}/out", "a")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                        env=self.site.environment, preexec_fn=die_with_parent)
        until(self.answers, f"{self.name} answers")
        return self

    def answers(self):
        if self.process.poll() is not None:
            with open(f"{self.base}/out") as out:
                raise AssertionError(f"{self.name} ended: {out.read()}{self.log()}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), LIMIT) as one:
                return one.recv(4).startswith(b"* OK")
        except OSError:
            return False

    def connect(self, user="ann"):
        client = imaplib.IMAP4("127.0.0.1", self.port, timeout=LIMIT)
        client.login(user, PASSWORD)
        return client

    def deliver(self, message, user="ann"):
        """By Dovecot's own delivery agent, as the user of the mail."""
        environment = dict(self.site.environment, USER=user)
        if self.preload:
            environment.update(LD_LIBRARY_PATH=self.site.target, SYSTX_MAIL=self.tree,
                               LD_PRELOAD=self.preload)
        command = [LDA, "-c", f"{self.base}/conf", "-d", user]
        return subprocess.run(command, input=message, capture_output=True, timeout=LIMIT,
                              env=environment, cwd="/")

    def log(self):
        try:
            with open(f"{self.base}/log", errors="replace") as log:
                return log.read()
        except FileNotFoundError:
            return ""

    def complaints(self):
        """Lines of the log that are no information."""
        bad = re.compile(r"(Error|Warning|Fatal|Panic): ")
        return [line for line in self.log().splitlines() if bad.search(line)]

    def children(self, name):
        """Processes of this server that execute the program `name`."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    words = file.read().split("\0")
                with open(f"/proc/{pid}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if words[0] == f"dovecot/{name}" and parent == self.process.pid:
                found.append(int(pid))
        return found

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Site(Volume):
    """See the module."""

    def __init__(self, inject=None, megabytes=400):
        super().__init__("dovecot", inject, megabytes)
        os.chmod(self.runtime, 0o700)

    def mail(self, name, guard=True):
        """A directory of mail users' homes."""
        path = self.tree(name, guard)
        os.chown(path, MAIL, MAIL)
        return path

    def dovecot(self, name, tree, **how):
        server = Dovecot(self, name, tree, **how)
        self.servers.append(server)
        return server


__all__ = ["LDA", "LIMIT", "MAIL", "PASSWORD", "SHIM", "TOP", "Dovecot", "Site", "die_with_parent",
           "runs", "until"]
