"""Started by ./demo."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import replicas  # noqa: E402
from volume import Volume  # noqa: E402


def say(text):
    print(f"\n== {text}", flush=True)


def show(text):
    print("   " + text.rstrip().replace("\n", "\n   "), flush=True)


def find(server, what):
    found = server.tool("ldapsearch", "-LLL", "-b", "dc=example,dc=com", f"(cn={what})", "cn")
    assert found.returncode == 0, found.stderr
    return found.stdout


def add(server, text):
    added = server.tool("ldapadd", text=text)
    assert added.returncode == 0, added.stderr


def main(site, every):
    every += replicas.replicas(site)
    servers = replicas.directory(site, [every[0], every[3]])
    say(f"Replicas at {', '.join(one.address for one in every)}, a slapd on the first and last.")
    add(servers[0], replicas.BASE)
    replicas.until_equal(every)

    say("An entry that is added at the first is found at the last, and the other way round.")
    add(servers[0], replicas.person(1))
    replicas.until_equal(every)
    show(find(servers[1], "p1"))
    add(servers[1], replicas.person(2))
    replicas.until_equal(every)
    show(find(servers[0], "p2"))

    say("The third is killed, and an empty directory takes its place.")
    every[2].kill()
    add(servers[0], replicas.person(3))
    every[2].forget()
    every[2].start()
    height = replicas.until_equal(every)
    assert every[2].files() == every[0].files()
    show(f"{len(every[2].files())} files at height {height}, as at the others")

    say("A command at the third is a transaction of all.")
    done = every[2].run("grep -l p1 dc=example,dc=com/* > found")
    assert done.returncode == 0, done.stderr
    replicas.until_equal(every)
    show(every[0].files()["found"].content.decode())


if __name__ == "__main__":
    place, running = Volume("replicate"), []
    try:
        main(place, running)
    finally:
        for server in place.servers:
            server.stop()
        for replica in running:
            replica.kill()
        place.close()
