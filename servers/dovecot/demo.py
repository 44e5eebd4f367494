"""What ./demo shows."""

import os
import signal

from load import Client, Deliveries, all_of, message, together
from site_ import Site


def mailbox(server):
    client = server.connect()
    client.select()
    found = all_of(client)
    client.logout()
    return found


site = Site()
try:
    tree = site.mail("mail")
    servers = [site.dovecot(f"dovecot{n}", tree).start() for n in range(2)]
    client = servers[0].connect()
    client.select()
    print("One message saved, one by dovecot-lda, one put into new/ by a plain program:")
    assert client.append("INBOX", None, None, message("saved"))[0] == "OK"
    assert servers[1].deliver(message("delivered")).returncode == 0
    Deliveries(servers[0], 0, False, False).plain("plain")
    for name, (uid, _) in mailbox(servers[1]).items():
        print(f"   UID {uid}: {name}")

    print("Four sessions of two servers, and deliveries, all at once, for three seconds:")
    workers = [Client(servers[n % 2], n, f"demo {n}", False) for n in range(4)]
    workers.append(Deliveries(servers[0], 4, True, False))
    known = together(workers, 3)
    must = {name for one in known for name in (one.mine if isinstance(one, Client) else one.done)}
    found = mailbox(servers[0])
    assert must | {"saved", "delivered", "plain"} == set(found), must ^ set(found)
    assert not any(server.complaints() for server in servers)
    print(f"   {len(found)} messages, all that were acknowledged; no complaint in a log")

    print("A mail process is killed; nobody waits for a lock of it:")
    for pid in servers[0].children("imap"):
        os.kill(pid, signal.SIGKILL)
    locks = [name for name in os.listdir(f"{tree}/ann/Maildir") if name.endswith(".lock")]
    assert locks == [] and len(mailbox(servers[1])) == len(found)
    print(f"   {len(found)} messages, no lock file")
    print("The last commits:")
    for line in site.systx("log", "-C", tree).stdout.splitlines()[1:4]:
        print("  ", line)
finally:
    site.close()
