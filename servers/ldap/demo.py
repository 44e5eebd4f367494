"""Started by ./demo."""

from checks import BASE, PEOPLE, connect, dn_of, entries, person
from site_ import SUFFIX, Site


def say(text):
    print(f"\n== {text}", flush=True)


def show(text):
    print("   " + text.rstrip().replace("\n", "\n   "), flush=True)


def main():
    site = Site()
    try:
        run(site)
    finally:
        site.close()


def run(site):
    tree = site.tree("tree")
    one = site.slapd("one", tree).start()
    two = site.slapd("two", tree).start()
    say("Two stock slapd serve one guarded directory of plain files.")
    assert one.tool("ldapadd", text=BASE).returncode == 0
    first, second = connect(one), connect(two)
    first.add_s(dn_of("boss"), person("boss"))
    for name in ("ann", "bob"):
        second.add_s(dn_of(name, dn_of("boss")), person(name))
    show("\n".join(sorted(entries(one.slapcat()))))

    say("A rename of a subtree is one transaction.")
    first.rename_s(dn_of("boss"), "cn=chief", delold=1)
    show(site.systx("log", "-C", tree).stdout)
    show(site.systx("show", latest(site, tree), "-C", tree).stdout)

    say("kill -9 of a server and of the daemon: what was acknowledged is there.")
    one.kill()
    site.kill_daemon()
    one.start()
    after = entries(one.slapcat())
    assert dn_of("chief") in after and dn_of("boss") not in after and len(after) == 5, after
    show(f"{len(after)} entries, as before")

    say("A bulk load that nobody wanted, beside the running servers.")
    bad = "\n".join(f"dn: cn=spam{n},{PEOPLE}\nobjectClass: person\ncn: spam{n}\nsn: s\n"
                    for n in range(500))
    site.systx("run", "-C", tree, "--", "/usr/sbin/slapadd", "-f", one.conf, text=bad)
    show(f"{len(entries(two.slapcat()))} entries")
    bulk = latest(site, tree)
    connect(two).add_s(f"cn=meanwhile,{SUFFIX}", person("meanwhile"))

    say("systx undo takes it back, and leaves what came after it.")
    show(site.systx("undo", bulk, "-C", tree).stderr)
    left = entries(two.slapcat())
    assert f"cn=meanwhile,{SUFFIX}" in left and len(left) == 6, left
    show("\n".join(sorted(left)))


def latest(site, tree):
    return site.systx("log", "-C", tree).stdout.split()[0]


main()
