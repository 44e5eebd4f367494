# Calls, one by one: what each answers, and what is seen of it.  The same lines are expected wherever
# this runs.  Numbers that differ by nature are told as what holds for them.
import ctypes, errno, mmap, os, stat, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)


def answer(call, *args, **named):
    try:
        done = call(*args, **named)
    except OSError as e:
        return errno.errorcode[e.errno]
    return 'ok' if done is None else done


def made(name, mode=0o644, content=b'one\n'):
    with open(name, 'wb') as f:
        f.write(content)
    os.chmod(name, mode)
    return name


def renamed(a, b, flags):
    done = libc.renameat2(-100, a.encode(), -100, b.encode(), flags)
    return 'ok' if done == 0 else errno.errorcode[ctypes.get_errno()]


def kind(name):
    try:
        return stat.filemode(os.lstat(name).st_mode)[0]
    except OSError as e:
        return errno.errorcode[e.errno]


def mode(name):
    return oct(os.stat(name).st_mode & 0o7777)


def born(name):
    """Seconds since the birth that statx(2) tells, or that it tells none."""
    field = ctypes.create_string_buffer(256)
    STATX_BTIME, at = 0x800, -100
    if libc.statx(at, name.encode(), 0, 0xfff, field) != 0:
        return errno.errorcode[ctypes.get_errno()]
    mask, = struct.unpack_from('I', field, 0)
    secs, = struct.unpack_from('q', field, 80)
    return int(time.time() - secs) // 3600 if mask & STATX_BTIME else 'none'


old = 'old' if os.path.exists('old') else made('old')

# What the file system cannot hold: it holds the nearest that it can.
for at in [0, 1, -1, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**32, 2**33, 2**34, 2**35, 2**40, -2**40,
           2**60, -2**60]:
    for name in old, made('new'):
        called = answer(os.utime, name, ns=None, times=(at, at)) if abs(at) > 2**60 else None
        nanos = at * 10**9 + 123456789
        if abs(nanos) < 2**63:
            called = answer(os.utime, name, ns=(nanos, nanos))
        else:
            times = struct.pack('qqqq', at, 123456789, at, 123456789)
            done = libc.utimensat(-100, name.encode(), times, 0)
            called = 'ok' if done == 0 else errno.errorcode[ctypes.get_errno()]
        is_ = os.stat(name)
        print('time', at, name, called, is_.st_mtime_ns, is_.st_atime_ns)
os.utime(old), os.utime('new')

# Owners.
me, my = os.getuid(), os.getgid()
os.mkdir('dir')
os.symlink('nowhere', 'link')
for name in 'old', 'new', 'dir', 'absent', 'old/x':
    for to in [(-1, -1), (me, my), (me, -1), (-1, my), (me + 1, -1), (-1, my + 1), (1, 1), (2**31, -1)]:
        if me:
            print('chown', name, [to[0] - me, to[1] - my], answer(os.chown, name, *to))
for to in [(me, my), (me + 1, my)]:
    if me:
        print('lchown', [to[0] - me, to[1] - my], answer(os.lchown, 'link', *to))
        with open('new') as f:
            print('fchown', [to[0] - me, to[1] - my], answer(os.fchown, f.fileno(), *to))
        print('fchown closed', answer(os.fchown, 999, *to))
        d = os.open('.', os.O_PATH)
        print('fchownat', answer(os.chown, 'new', *to, dir_fd=d), answer(os.fchown, d, *to))
        print('fchownat .', answer(os.chown, '.', *to, dir_fd=d))

# Set-id bits and file capabilities, which go with changes.
caps = bytes.fromhex('0100000200200000000000000000000000000000')
for name in old, 'new':
    for bits in 0o6755, 0o2644, 0o4711:
        os.chmod(name, bits)
        print('chown(-1,-1)', name, oct(bits), answer(os.chown, name, -1, -1), mode(name))
        os.chmod(name, bits)
        # A member of the group keeps the bit that means locking, and a run cannot tell who is one.
        if not (me and bits == 0o2644):
            print('write', name, oct(bits), answer(os.truncate, name, 2), mode(name))
        os.chmod(name, bits)
        before = os.stat(name).st_ctime_ns
        answer(os.chown, name, -1, -1)
        print('changed', os.stat(name).st_ctime_ns > before)
    os.chmod('dir', 0o6755)
    print('chown(-1,-1) of a directory', answer(os.chown, 'dir', -1, -1), mode('dir'))
    os.chmod(name, 0o755)
    for how in 'mapping', 'write', 'truncate', 'chown':
        if me:
            break
        with open(name, 'wb') as f:
            f.write(b'x' * 8192)
        print('caps', answer(os.setxattr, name, 'security.capability', caps))
        if how == 'mapping':
            with open(name, 'r+b') as f, mmap.mmap(f.fileno(), 8192) as m:
                m[5000] = 65
                m.flush()
        elif how == 'write':
            with open(name, 'r+b') as f:
                f.write(b'y')
        elif how == 'truncate':
            os.truncate(name, 5)
        else:
            os.chown(name, -1, -1)
        print('caps after', how, name, answer(os.getxattr, name, 'security.capability'))

    # Who may keep set-id bits keeps them also where the write takes capabilities.
    if not me:
        os.chmod(name, 0o6755)
        print('caps', answer(os.setxattr, name, 'security.capability', caps))
        with open(name, 'r+b') as f:
            f.write(b'z')
        print('set-id beside caps', name, mode(name), answer(os.getxattr, name, 'security.capability'))
# What a commit has to leave alone.
for name in ['stored'] + ['stored old'] * os.path.exists('stored old'):
    with open(name, 'wb') as f:
        f.write(b'x' * 8192)
    if not me:
        os.setxattr(name, 'security.capability', caps)
    with open(name, 'r+b') as f, mmap.mmap(f.fileno(), 8192) as m:
        m[5000] = 65
        m.flush()
if os.path.exists('stored later'):
    with open('stored later', 'r+b') as f, mmap.mmap(f.fileno(), 8192) as m:
        m[5000] = 65

# Renames with flags.
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
for flags in range(16):
    for to in 'to', 'free':
        for name in 'from', 'to', 'free':
            if os.path.lexists(name):
                os.unlink(name)
        made('from'), made('to')
        print('rename', flags, to, renamed('from', to, flags), *map(kind, ['from', 'to', 'free']))

# Attributes of kinds that there are, and are not.
for name in old, 'new', 'dir':
    for key in 'user.x', 'com.apple.x', 'none.x', 'x', 'user.', 'trusted.x', 'security.x':
        for call, more in [(os.getxattr, ()), (os.setxattr, (b'1',)), (os.removexattr, ())]:
            if me and key in ('trusted.x', 'security.x'):
                continue
            print('xattr', name, key, call.__name__, answer(call, name, key, *more))

# When it was born.
print('born', born(old), born('new'), born('dir'), born('.'), born('absent'))

# Numbers, for programs that were built for 32 bits.
numbers = [os.lstat(name).st_ino for name in (old, "new", "dir", "link", ".")]
print('numbers', [n < 2**32 for n in numbers], len(set(numbers)))
