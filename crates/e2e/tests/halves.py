"""Looks at what commits change together, until its input ends: `x` and `y`, of which each commit
makes both the same number, and `names`, where each commit replaces the one name by the next.

    halves.py names|descriptors|mappings|listing

Says `looked` after the first look, and at the end `all of them`, or what was half of a commit
(exit code 1)."""

import mmap, os, sys, threading

over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
how = sys.argv[1]


def opened(name):
    return os.open(name, os.O_RDWR)


def mapped(name):
    return mmap.mmap(opened(name), 8)


def stable(of):
    # A number may change between two of its bytes, but only upwards.
    while True:
        first, second = bytes(of[:7]), bytes(of[:7])
        if first == second:
            return first


def by_name(name):
    with open(name, 'rb') as file:
        return file.read()


both = {
    'names': lambda: [by_name('x'), by_name('y')],
    'descriptors': lambda fds=[opened(n) for n in 'xy']: [os.pread(fd, 8, 0) for fd in fds],
    'mappings': lambda maps=[mapped(n) for n in 'xy']: [stable(m) for m in maps],
}
said = False
while not over.is_set():
    if how == 'listing':
        seen = os.listdir('names')
        fits = len(seen) == 1
    else:
        seen = [int(n) for n in both[how]()]
        fits = seen[0] <= seen[1]
    if not fits:
        print('half of a commit:', seen, flush=True)
        sys.exit(1)
    if not said:
        print('looked', flush=True)
        said = True
print('all of them', flush=True)
