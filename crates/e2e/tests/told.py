"""What goes wrong is told by its reason: told.py DIR"""
import os
import pathlib
import sys
import threading

import systx

directory = pathlib.Path(sys.argv[1])
file = directory / "file"
file.write_text("old")


def told(kind, words, run):
    try:
        run()
    except BaseException as e:
        assert type(e) is kind and words in str(e), (run, e)
    else:
        raise AssertionError(f"{run} goes well")


# What does its work later would do it outside.
async def later():
    file.write_text("new")


def piecemeal():
    yield file.write_text("new")


async def both():
    yield file.write_text("new")


for function in later, piecemeal, both:
    told(TypeError, function.__name__, lambda: systx.atomic(directory)(function))
told(TypeError, "list of paths", lambda: systx.begin(directory, scope=str(file)))


# A conflict that shows in a call inside is told as one that shows at the end.
def lost(again):
    with systx.transaction(directory):
        file.read_text()
        with systx.paused():
            file.write_text("changed")
        if again:
            file.write_text("again")


for again in False, True:
    told(systx.Conflict, f"conflict on {file} with a program outside", lambda: lost(again))


# The number is not there, which an end says of itself.
def never():
    with systx.transaction(directory, order=("order", 5)):
        pass


systx.patience(0.1)
told(TimeoutError, "waits for number 0", never)
systx.patience(30)


# A forked child leaves by its own exception, which drops nothing of the parent's.
def children():
    with systx.transaction(directory):
        for inner in False, True:
            child = os.fork()
            if child == 0:
                if inner:
                    with systx.transaction(directory):
                        raise KeyError("inner")
                raise KeyError("outer")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        file.write_text("of the parent")


parent = os.getpid()
try:
    children()
except BaseException as e:
    if os.getpid() != parent:
        os._exit(0 if type(e) is KeyError else 1)
    raise
assert file.read_text() == "of the parent"

# A block that another thread leaves: that is told, and nothing happens to this one's.
block = systx.transaction(directory)
block.__enter__()
thread = threading.Thread(target=lambda: told(RuntimeError, "another thread", lambda: block.__exit__(None, None, None)))
with systx.paused():
    thread.start()
    thread.join()
assert systx.xid() != 0
systx.abort()
