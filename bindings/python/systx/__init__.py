"""System transactions for the threads of a program, on directories that ``systx mount`` guards.

    with systx.transaction("/srv/accounts"):
        ...

    @systx.atomic("/srv/accounts")
    def transfer(): ...

``transaction`` raises ``Conflict`` if it has lost; ``atomic`` runs the function again until it has not, so what
it does beside the guarded directory has to bear that.  A transaction is of its thread: all tasks of an event loop
are in one that is open across an ``await``.  Needs libsystx.so (``scripts/install-lib``), or its path in the
environment variable SYSTX_LIBRARY.  See docs/LIBRARY.md for what each errno means.
"""

import contextlib
import ctypes
import errno
import functools
import inspect
import os
import threading

READ_ONLY, SNAPSHOT, RETRY, NONBLOCK, RELAXED = 1, 2, 4, 8, 64
# Errors after which the transaction is still open, and those of a begin of which status() tells more.
_OPEN = (errno.EBUSY, errno.ETIMEDOUT, errno.EDEADLK)
_TOLD = (*_OPEN, errno.EEXIST, errno.EOPNOTSUPP)
NONE, OPEN, LOST, COMMITTED, ABORTED, FAILED = range(6)


class _Status(ctypes.Structure):
    _fields_ = [
        ("state", ctypes.c_uint32),
        ("retries", ctypes.c_uint32),
        ("id", ctypes.c_uint64),
        ("opponent", ctypes.c_uint64),
        ("path", ctypes.c_char * 1032),
        ("words", ctypes.c_char * 496),
    ]


class _Path(ctypes.Structure):
    _fields_ = [("path", ctypes.c_char_p), ("access", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


class _Begin(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint32),
        ("paths", ctypes.c_uint32),
        ("order", ctypes.c_char_p),
        ("number", ctypes.c_uint64),
        ("scope", ctypes.POINTER(_Path)),
    ]


class read:
    """A path in a scope that is only read."""

    def __init__(self, path):
        self.path = path


class Conflict(OSError):
    """The transaction has lost a conflict: nothing was committed."""


_lib = ctypes.CDLL(os.environ.get("SYSTX_LIBRARY", "libsystx.so.0"), use_errno=True)
_lib.systx_begin_at.argtypes = [ctypes.c_char_p, ctypes.c_uint]
_lib.xpause.restype = _lib.xid.restype = ctypes.c_uint64
_lib.xresume.argtypes = [ctypes.c_uint64]
_lib.systx_reset_order.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
_lib.systx_next_order.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)]
_lib.systx_patience.argtypes = [ctypes.c_uint]


def _conflict():
    found = status()
    what = os.fsdecode(found.words)
    if found.path:
        what = f"conflict on {os.fsdecode(found.path)} with {what}"
    return Conflict(errno.ECANCELED, what)


def _check(result, ends=False):
    if result == 0:
        return
    number = ctypes.get_errno()
    if number == errno.ECANCELED:
        raise _conflict()
    # What is told when nothing was begun may be of another transaction.
    found = _Status()
    about = ends or number in _TOLD
    words = found.words if about and _lib.xstatus(ctypes.byref(found)) == 0 else b""
    raise OSError(number, ": ".join(filter(None, [os.strerror(number), os.fsdecode(words)])))


def _declared(path):
    reads = isinstance(path, read)
    return _Path(os.fsencode(path.path if reads else path), int(reads), 0)


def _place(directory):
    return None if directory is None else os.fsencode(directory)


def begin(directory=None, flags=0, order=None, scope=None):
    """Begins a transaction of this thread; inside one it only counts.

    ``order``: a name and a number.  Transactions of one name commit with rising numbers, from 0 on.
    ``scope``: paths that it will write, make or remove, or read (``systx.read(path)``).  It waits until nobody else
    has declared them, and loses to no transaction there: for callers that cannot try again.
    """
    name, number = (None, 0) if order is None else (os.fsencode(order[0]), order[1])
    if isinstance(scope, (str, bytes)):
        raise TypeError("a scope is a list of paths")
    scope = [] if scope is None else list(scope)
    paths = (_Path * len(scope))(*map(_declared, scope))
    how = _Begin(flags, len(scope), name, number, paths)
    _check(_lib.systx_begin_with(_place(directory), ctypes.byref(how)))


def next_order(name, directory=None):
    """Which number of that order comes next: all lower ones are committed."""
    following = ctypes.c_uint64()
    _check(_lib.systx_next_order(_place(directory), os.fsencode(name), ctypes.byref(following)))
    return following.value


def reset_order(name, following, directory=None):
    """From now on ``following`` is the number of that order that comes next; 0 ends the order."""
    _check(_lib.systx_reset_order(_place(directory), os.fsencode(name), following))


def patience(seconds):
    """How long ends wait for lower numbers, and begins for their scope, in all threads; at first 30 seconds."""
    _check(_lib.systx_patience(int(seconds * 1000)))


def end():
    """Commits, if it is the outermost end."""
    _check(_lib.xend(), ends=True)


def abort():
    """Drops the transaction."""
    _check(_lib.xabort())


def xid():
    """The id of this thread's transaction; 0 if there is none."""
    return _lib.xid()


def status():
    """This thread's transaction, or its last one: state, retries, id, opponent, path, words."""
    found = _Status()
    if _lib.xstatus(ctypes.byref(found)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


@contextlib.contextmanager
def paused():
    """What is inside is outside of the transaction: logs, answers to clients."""
    number = _lib.xpause()
    if number == 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield
    finally:
        _check(_lib.xresume(number))


class _Blocks(threading.local):
    """The blocks of this thread: whether an inner one was left by an exception."""

    failed = False


_blocks = _Blocks()


def _here():
    return os.getpid(), threading.get_ident()


@contextlib.contextmanager
def transaction(directory=None, flags=0, order=None, scope=None):
    """Commits at the end of the block; an exception drops it.

    Inside another block it is part of that one: an exception drops the whole, when the outermost one ends.
    """
    inner = xid() != 0
    begin(directory, flags, order, scope)
    owner = _here()
    if not inner:
        _blocks.failed = False
    try:
        yield
    except BaseException:
        # A child that was forked inside takes part by what it has done; its end is its exit.
        if _here() == owner and _drop(inner):
            # What a transaction does that has lost means nothing.
            raise _conflict() from None
        raise
    if _here() != owner:
        raise RuntimeError("the transaction of another thread or process")
    if not inner and _blocks.failed:
        if _drop(inner):
            raise _conflict()
        raise OSError(errno.ECANCELED, "an inner transaction was left by an exception: nothing is committed")
    try:
        end()
    except OSError as e:
        if e.errno in _OPEN and xid():
            abort()
        raise


def _drop(inner):
    """Drops the transaction, an inner one with the outermost: until then nothing gets outside. Whether it has lost."""
    found = _Status()
    lost = _lib.xstatus(ctypes.byref(found)) == 0 and found.state == LOST
    if inner:
        _blocks.failed = True
        _lib.xend()
    elif xid():
        # EPERM: of the program that started this one, which decides.
        if _lib.xabort() != 0 and ctypes.get_errno() != errno.EPERM:
            _check(-1)
    return lost


def atomic(directory=None, flags=0, order=None, scope=None):
    """Runs the decorated function as a transaction, and again as long as that loses.

    Inside another transaction of the thread it is part of that one, which tries again, and is dropped as a whole if
    the function fails.
    """

    def decorate(function):
        for later in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
            if later(function):
                raise TypeError(f"{function.__name__} does its work after it has returned, outside of the transaction")

        @functools.wraps(function)
        def run(*args, **kwargs):
            if xid():
                with transaction(directory):
                    return function(*args, **kwargs)
            attempt = flags
            while True:
                try:
                    with transaction(directory, attempt, order, scope):
                        return function(*args, **kwargs)
                except Conflict:
                    if status().state == ABORTED and status().words:
                        raise
                    attempt = flags | RETRY

        return run

    return decorate
