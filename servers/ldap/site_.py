"""A slapd on a guarded directory of its own, for the checks, the demo and the benchmark.

Everything lives below one directory, with the configurations and sockets of slapd.
"""

import os
import subprocess
import sys
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from volume import LIMIT, Volume, die_with_parent, until  # noqa: E402

SUFFIX = "dc=example,dc=com"
ADMIN = f"cn=admin,{SUFFIX}"
PASSWORD = "secret"
SCHEMAS = ["core", "cosine", "inetorgperson"]


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


class Site(Volume):
    """See the module."""

    def __init__(self, inject=None, megabytes=400):
        super().__init__("ldap", inject, megabytes)
        self.plugin = f"{self.target}/slapi_systx.so"

    def slapd(self, name, tree, **how):
        server = Slapd(self, name, tree, **how)
        self.servers.append(server)
        return server
