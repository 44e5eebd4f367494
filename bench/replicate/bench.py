"""Commits per second and latency of four replicas, and of an etcd of four members: values of one
size, by clients that are spread over all, in interleaved rounds.  Started by ./run."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [f"{TOP}/servers", f"{TOP}/servers/replicate"]
import replicas  # noqa: E402
from volume import Volume, die_with_parent  # noqa: E402


class Etcd:
    """Four members, on the same file system as the replicas."""

    def __init__(self, site, program):
        self.hosts = [f"127.0.0.{n + 2}" for n in range(4)]
        every = ",".join(f"m{n}=http://{host}:2380" for n, host in enumerate(self.hosts))
        self.processes = []
        for n, host in enumerate(self.hosts):
            words = [program, "--name", f"m{n}", "--data-dir", f"{site.volume}/etcd{n}",
                     "--listen-client-urls", f"http://{host}:2379",
                     "--advertise-client-urls", f"http://{host}:2379",
                     "--listen-peer-urls", f"http://{host}:2380",
                     "--initial-advertise-peer-urls", f"http://{host}:2380",
                     "--initial-cluster", every, "--log-level", "error"]
            self.processes.append(subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, preexec_fn=die_with_parent))

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def clients(site, what, places, count, size, seconds, name):
    """How long each commit took, of all clients."""
    every = []
    for n in range(count):
        words = [sys.executable, f"{HERE}/client.py", what, places[n % len(places)], str(size),
                 str(seconds), f"{name}-{n}"]
        every.append(subprocess.Popen(words, env=site.environment, text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      preexec_fn=die_with_parent))
    for one in every:
        assert one.stdout.readline() == "ready\n", what
    for one in every:
        one.stdin.write("go\n")
        one.stdin.flush()
    return [took for one in every for took in json.loads(one.communicate()[0])]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--etcd", default=shutil.which("etcd"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--results", required=True)
    o = parser.parse_args()
    if not o.etcd:
        sys.exit("no etcd: Debian's package etcd-server has it, or --etcd PROGRAM")
    site = Volume("bench", megabytes=2000)
    try:
        every = replicas.replicas(site)
        other = Etcd(site, o.etcd)
        measure(o, site, every, other)
        other.stop()
        replicas.until_equal(every)
        assert all(one.files() == every[0].files() for one in every)
        for one in every:
            one.kill()
    finally:
        site.close()


def measure(o, site, every, other):
    sides = {"etcd": other.hosts, "replicate": [one.tree for one in every]}
    rows = []
    for round_ in range(o.rounds):
        for count in o.clients:
            for what in sorted(sides, reverse=round_ % 2):
                name = f"{round_}-{count}"
                took = clients(site, what, sides[what], count, o.size, o.seconds, name)
                rate = len(took) / o.seconds
                rows.append((round_, what, count, rate, statistics.median(took) * 1000,
                             max(took) * 1000))
                print(*rows[-1], open("/proc/loadavg").read().split()[0], flush=True)
    os.makedirs(o.results, exist_ok=True)
    with open(f"{o.results}/rounds.csv", "w") as file:
        file.write("round,side,clients,commits_per_second,median_ms,longest_ms\n")
        for row in rows:
            file.write(",".join(f"{w:.3f}" if isinstance(w, float) else str(w) for w in row) + "\n")
    lines = [f"Values of {o.size} bytes, medians of {o.rounds} rounds of {o.seconds} s.", "",
             "| clients | etcd: commits/s | median ms | replicate: commits/s | median ms | ratio |",
             "|---|---|---|---|---|---|"]
    for count in o.clients:
        of = lambda what, at: statistics.median(  # noqa: E731
            row[at] for row in rows if row[1:3] == (what, count))
        lines.append(f"| {count} | {of('etcd', 3):.1f} | {of('etcd', 4):.1f} | "
                     f"{of('replicate', 3):.1f} | {of('replicate', 4):.1f} | "
                     f"{of('replicate', 3) / of('etcd', 3):.3f} |")
    with open(f"{o.results}/summary.md", "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
