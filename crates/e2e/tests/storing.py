"""Stores numbers in a mapping of `stored`, and says after each one in `log`, by write(2), that it
did; the next one when something was committed to `seen`, so that nobody loses for ever. Until its
input ends: then prints the last one."""

import mmap, os, sys, threading

over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
page = mmap.mmap(os.open('stored', os.O_RDWR), 8)
log = os.open('log', os.O_WRONLY | os.O_APPEND)
number = 0
while not over.is_set():
    number += 1
    before = os.stat('seen').st_size
    page[:7] = b'%07d' % number
    os.write(log, b'plain %07d\n' % number)
    if number == 1:
        print('stores', flush=True)
    while os.stat('seen').st_size == before and not over.wait(0.002):
        pass
print('last', number, flush=True)
