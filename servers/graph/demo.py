"""What ./demo shows."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from volume import Volume, die_with_parent  # noqa: E402

SHAPE = ["--vertices", "2180", "--edges", "6236"]
site = Volume("graph")
program = f"{site.target}/systx-graph"


def run(*words, fails=False):
    print("$ systx-graph", *(word.replace(site.base, "") for word in words), flush=True)
    done = subprocess.run([program, *words], env=site.environment, text=True, capture_output=True)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout.splitlines() or done.stderr.splitlines()


def show(lines):
    for line in lines:
        print("  ", " ".join(word[:16] for word in line.replace(site.base, "").split()))


blocks = f"{site.base}/blocks"
made = run("blocks", "--vertices", "2180", "--blocks", "30", "--size", "60", "--writes", "50")
with open(blocks, "w") as file:
    file.write("\n".join(made) + "\n")
print("\nOne thread without transactions, two threads with: height, graph and answers.")
trees = {guard: site.tree(name, guard) for guard, name in ((False, "plain"), (True, "guarded"))}
for tree in trees.values():
    run("create", tree, *SHAPE)
want = run("run", trees[False], blocks, "--serial", "at-once")
show(want[-2:])
found = run("run", trees[True], blocks, "--threads", "2")
show(found[-2:])
assert found == want

print("\nkill -9 in the middle of a block, and of the daemon, too.")
tree = site.tree("killed")
run("create", tree, *SHAPE)
server = subprocess.Popen([program, "run", tree, blocks], env=site.environment, text=True,
                          stdout=subprocess.PIPE, preexec_fn=die_with_parent)
for _ in range(7):
    server.stdout.readline()
server.kill()
server.wait()
site.kill_daemon()
height, root = run("check", tree)[0].split()
assert want[int(height) - 1].split()[1] == root
print(f"   whole: {height} blocks. The rest follows:")
rest = run("run", tree, blocks)
show(rest[-1:])
assert rest[-1] == want[-1]

print("\nA bit that changes behind the server's back.")
with open(f"{tree}/graph", "r+b") as file:
    file.seek(9999)
    byte = file.read(1)
    file.seek(9999)
    file.write(bytes([byte[0] ^ 1]))
print("  ", *run("check", tree, fails=True))
site.close()
