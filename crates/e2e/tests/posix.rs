//! What programs do with files, natively and inside a run: same output, same tree; and nothing
//! left after an abort.

use systx_e2e::lab::find_program;
use systx_e2e::tree::{Detail, identity};
use systx_e2e::twin::Twin;
use systx_e2e::{Fs, Lab, Tree, lab, skip};

/// A Python program as a shell command.
fn python(program: &str) -> String {
    format!(
        "/usr/bin/python3 - <<'SYSTX_END'\nimport ctypes, errno, fcntl, mmap, os, socket, stat, struct, subprocess, sys\n{program}\nSYSTX_END\n"
    )
}

fn check(lab: &Lab, prepare: &str, script: &str) {
    let done = Twin::new(lab).check(prepare, script);
    assert_eq!(done.code, 0, "{done}");
}

fn check_python(prepare: &str, program: &str) {
    let lab = lab!();
    if !std::path::Path::new("/usr/bin/python3").exists() {
        skip!("no /usr/bin/python3");
    }
    check(&lab, prepare, &python(program));
}

#[test]
fn renames() {
    check_python(
        "mkdir -p a/b/c d e; echo 1 > a/1; echo 2 > a/b/2; echo 3 > a/b/c/3; echo x > x; echo y > y; \
         ln -s x sx; mkdir -p full/x; ln x hardx",
        r#"
libc = ctypes.CDLL(None, use_errno=True)
def rename2(a, b, flags):
    r = libc.renameat2(-100, a.encode(), -100, b.encode(), flags)
    return 'ok' if r == 0 else errno.errorcode[ctypes.get_errno()]
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
def attempt(f, *a):
    try: f(*a); return 'ok'
    except OSError as e: return errno.errorcode[e.errno]
print(rename2('x', 'y', NOREPLACE), rename2('x', 'new', NOREPLACE))
print(rename2('new', 'y', EXCHANGE), open('new').read(), open('y').read())
print(rename2('new', 'absent', EXCHANGE))
print(rename2('a/b', 'd', EXCHANGE), sorted(os.listdir('d')), sorted(os.listdir('a/b')))
print(attempt(os.rename, 'a', 'a/b/inside'))           # into itself
# Of a directory that is not empty POSIX lets either be said (XFS says EEXIST).
print(attempt(os.rename, 'e', 'full').replace('EEXIST', 'ENOTEMPTY'), attempt(os.rename, 'e', 'y'), attempt(os.rename, 'y', 'e'))
print(attempt(os.rename, 'd', 'e'), sorted(os.listdir('e')))   # over an empty directory
print(attempt(os.rename, 'e/c', 'c'), open('c/3').read())
print(attempt(os.rename, 'sx', 'moved-link'), os.readlink('moved-link'))
print(attempt(os.rename, 'hardx', 'y'), os.stat('y').st_nlink)
print(attempt(os.rename, 'y', 'y'))
print(rename2('y', 'z', NOREPLACE | EXCHANGE))
os.mkdir('deep'); p = 'deep'
for i in range(40):
    p += '/d%d' % i
    os.mkdir(p)
open(p + '/leaf', 'w').write('leaf')
os.rename('deep/d0/d1', 'lifted'); os.rename('deep', 'lifted/d2/deep')
print(sum(len(f) for _, _, f in os.walk('lifted')))
# rename chains: a cycle of three through a temporary name
for n in 'pqr': open(n, 'w').write(n)
os.rename('p', 't'); os.rename('q', 'p'); os.rename('r', 'q'); os.rename('t', 'r')
print(open('p').read(), open('q').read(), open('r').read())
"#,
    );
}

#[test]
fn hard_links() {
    check_python(
        "echo one > one; ln one two; mkdir d; ln one d/three; echo alone > alone; ln -s one s",
        r#"
print(os.stat('one').st_nlink, os.stat('d/three').st_ino == os.stat('one').st_ino)
open('two', 'a').write('more\n'); print(open('d/three').read(), end='')
os.unlink('one'); print(os.stat('two').st_nlink)
os.link('d/three', 'four'); os.link('alone', 'd/alone2'); os.link('s', 's2', follow_symlinks=False)
os.chmod('four', 0o640); print(oct(os.stat('two').st_mode))
open('fresh', 'w').write('fresh'); os.link('fresh', 'd/fresh2'); os.link('fresh', 'fresh3')
print(os.stat('fresh').st_nlink)
os.rename('fresh', 'd/fresh2'); print(os.path.exists('fresh'))   # same file: nothing happens
os.unlink('fresh3')
try: os.link('d', 'dirlink')
except OSError as e: print(errno.errorcode[e.errno])
try: os.link('alone', 'd/alone2')
except OSError as e: print(errno.errorcode[e.errno])
"#,
    );
}

#[test]
fn special_files_modes_and_owners() {
    check_python(
        "echo x > x; mkfifo fifo0; mkdir d; chmod 1777 d",
        r#"
os.mkfifo('fifo', 0o640)
os.mknod('null', stat.S_IFCHR | 0o666, os.makedev(1, 3))
os.mknod('blk', stat.S_IFBLK | 0o600, os.makedev(7, 200))
os.chmod('null', 0o666)
s = socket.socket(socket.AF_UNIX); s.bind('sock'); s.listen(1)
c = socket.socket(socket.AF_UNIX); c.connect('sock'); a, _ = s.accept(); a.send(b'hi'); print(c.recv(2))
r = os.open('fifo', os.O_RDONLY | os.O_NONBLOCK); w = os.open('fifo', os.O_WRONLY)
os.write(w, b'through'); print(os.read(r, 100)); os.close(r); os.close(w)
print(open('null', 'rb').read())
os.chmod('x', 0o4755); os.chown('x', 12, 34); print(oct(os.stat('x').st_mode))
os.chmod('x', 0o6755); open('x', 'a').write('y'); print(oct(os.stat('x').st_mode))
os.mkdir('g'); os.chown('g', 0, 77); os.chmod('g', 0o2775); open('g/f', 'w'); os.mkdir('g/sub')
print(os.stat('g/f').st_gid, oct(os.stat('g/sub').st_mode))
os.symlink('no/where', 'dangling'); os.lchown('dangling', 5, 6)
try: os.symlink('x' * 3000, 'long')
except OSError as e: print(errno.errorcode[e.errno])   # XFS takes 1023
os.symlink('x' * 1000, 'shorter')
os.umask(0o027); open('masked', 'w'); os.mkdir('maskeddir'); print(oct(os.stat('masked').st_mode))
os.utime('x', ns=(1_000_000_007, 2_000_000_009)); print(os.stat('x').st_mtime_ns)
os.chmod('d', 0o755)
"#,
    );
}

#[test]
fn explicit_times_survive_the_commit() {
    let lab = lab!();
    Twin::new(&lab).detail(Detail { times: true, holes: false }).check(
        "echo a > a; echo b > b; touch -d @1000 a; touch -d @2000 b",
        "touch -d '1999-12-31 23:59:58.123456789' a; cp -p b c; mkdir d; mv b d/; echo n > n; \
         touch -d @5 n; ln -s x l; touch -h -d @77 l",
    );
}

#[test]
fn extended_attributes_and_acls() {
    let lab = lab!();
    if lab.fs == systx_e2e::Fs::Tmpfs {
        skip!("user xattrs depend on the kernel's tmpfs");
    }
    for tool in ["setfattr", "setfacl"] {
        if find_program(tool).is_none() {
            skip!("no {tool}");
        }
    }
    check(
        &lab,
        "echo f > f; setfattr -n user.old -v 1 f; setfattr -n user.gone -v 2 f; mkdir d; \
         setfacl -d -m u:1234:rwx d; echo g > g; setfacl -m u:99:r g; echo h > h",
        "getfattr -d f; setfattr -n user.old -v changed f; setfattr -x user.gone f; \
         setfattr -n user.new -v 0x00ff00 f; setfattr -n trusted.t -v root f; \
         setfattr -x user.absent f 2>&1; getfattr -m - -d f; \
         setfacl -m u:42:rw,g:43:r,m::rwx h; getfacl -cn h; echo in > d/inherits; getfacl -cn d/inherits; \
         mkdir d/sub; getfacl -cn d/sub; setfacl -b g; getfacl -cn g; setfacl -k d; \
         mv f f2; getfattr -d f2; cp -a f2 f3; ln f2 f4; rm f2; getfattr -d f4; \
         setfattr -n user.big -v $(head -c 2000 /dev/zero | tr '\\0' x) f4; setfattr -n user.d -v d d",
    );
}

#[test]
fn file_capabilities_stay_and_are_dropped_by_a_write() {
    let lab = lab!();
    if find_program("setcap").is_none() {
        skip!("no setcap");
    }
    check(
        &lab,
        "cp /bin/true a; cp /bin/true b; setcap cap_net_raw+ep a; setcap cap_net_raw+ep b",
        "getcap a b; echo >> b; getcap a b; cp /bin/true c; setcap cap_net_admin=ep c; getcap c",
    );
}

#[test]
fn sparse_files_and_fallocate() {
    let lab = lab!();
    if lab.fs == systx_e2e::Fs::Btrfs {
        skip!("btrfs decides by itself where it keeps holes");
    }
    let done = Twin::new(&lab).detail(Detail { times: false, holes: true }).check(
        "truncate -s 8M hole; printf x | dd of=hole bs=1 seek=4M conv=notrunc 2>/dev/null; \
         head -c 1M /dev/zero | tr '\\0' a > full; sync -f .",
        "cat hole | wc -c; printf y | dd of=hole bs=1 seek=6M conv=notrunc 2>/dev/null; \
         truncate -s 16M new; printf z | dd of=new bs=1 seek=12M conv=notrunc 2>/dev/null; \
         fallocate -p -o 64K -l 128K full; tr -d '\\0' < full | wc -c; truncate -s 300000 full; \
         tail -c 10 full | od -An -tx1; cp --sparse=always new copy; sync -f .",
    );
    assert_eq!(done.code, 0, "{done}");
}

#[test]
fn fallocate_modes() {
    // A view zeroes ranges everywhere; tmpfs does not, so there is nothing to compare with.
    let zeroes = if Fs::default_for_suites() == Fs::Tmpfs { "False" } else { "True" };
    check_python(
        "head -c 65536 /dev/zero | tr '\\0' a > f; head -c 65536 /dev/zero | tr '\\0' b > g; echo x > h",
        &r#"
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
def fallocate(fd, mode, off, n):
    return 'ok' if libc.fallocate(fd, mode, off, n) == 0 else errno.errorcode[ctypes.get_errno()]
KEEP, PUNCH, ZERO = 1, 2, 16
with open('f', 'r+b') as f:
    print(fallocate(f.fileno(), PUNCH | KEEP, 4096, 8192), f.read().count(b'\0'))
    print(fallocate(f.fileno(), PUNCH | KEEP, 100, 50)); f.seek(0); print(f.read(300).count(b'\0'))
    print(fallocate(f.fileno(), KEEP, 65536, 65536), os.fstat(f.fileno()).st_size)
    print(fallocate(f.fileno(), 0, 65536, 1000), os.fstat(f.fileno()).st_size)
if ZEROES:
  with open('g', 'r+b') as g:
    print(fallocate(g.fileno(), ZERO, 0, 4096), fallocate(g.fileno(), ZERO, 65000, 1000), os.fstat(g.fileno()).st_size)
    print(fallocate(g.fileno(), ZERO | KEEP, 70000, 1000), os.fstat(g.fileno()).st_size)
with open('h', 'r+b') as h:
    print(fallocate(h.fileno(), 0, 0, -1), fallocate(h.fileno(), 0, 0, 10), h.read())
with open('fresh', 'w+b') as n:
    os.posix_fallocate(n.fileno(), 0, 10000); n.seek(5); n.write(b'q'); n.seek(0); print(len(n.read()))
"#
        .replace("ZEROES", zeroes),
    );
}

#[test]
fn unnamed_and_unlinked_files() {
    check_python(
        "echo old > victim; mkdir d; echo y > d/y",
        r#"
libc = ctypes.CDLL(None, use_errno=True)
def give_name(fd, name):
    r = libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, name, 0x400)
    return 'ok' if r == 0 else errno.errorcode[ctypes.get_errno()]
fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o644)
os.write(fd, b'born nameless'); print(give_name(fd, b'd/named'))
print(os.fstat(fd).st_nlink); os.write(fd, b', grew'); os.close(fd)
fd = os.open('d', os.O_TMPFILE | os.O_RDWR, 0o600); os.write(fd, b'x' * 100000); os.close(fd)   # dies
fd = os.open('.', os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
print(give_name(fd, b'never')); os.close(fd)
f = open('victim', 'r+'); os.unlink('victim'); print(f.read(), os.fstat(f.fileno()).st_nlink)
f.write('still here'); f.seek(0); print(f.read()); os.fsync(f.fileno())
open('victim', 'w').write('another'); f.close(); print(open('victim').read())
g = open('fresh', 'w+'); g.write('a' * 5000); os.unlink('fresh'); g.seek(4990); print(len(g.read())); g.close()
h = open('d/y'); os.unlink('d/y'); os.rename('d', 'e'); print(h.read())
d = os.open('e', os.O_RDONLY); os.mkdir('gone'); g = os.open('gone', os.O_RDONLY); os.rmdir('gone')
print(os.listdir(g), os.fstat(g).st_nlink)
try: os.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=g)
except OSError as e: print(errno.errorcode[e.errno])
print(sorted(os.listdir(d)))
"#,
    );
}

#[test]
fn memory_maps() {
    check_python(
        "head -c 300000 /dev/zero | tr '\\0' m > old",
        r#"
f = open('old', 'r+b'); m = mmap.mmap(f.fileno(), 0)
m[0:5] = b'first'; m[150000] = 33; m[299999] = 34; print(m[0:6], m[150000])
f2 = open('old', 'rb'); print(f2.read(5)); f2.seek(150000); print(f2.read(1))
m.flush(); os.pwrite(f.fileno(), b'written', 4096); print(m[4096:4103]); m.close()
n = open('new', 'w+b'); n.truncate(100000); m = mmap.mmap(n.fileno(), 0); m[50000:50003] = b'abc'
os.rename('new', 'renamed'); m[60000:60003] = b'def'; os.unlink('old'); del m
m = mmap.mmap(f2.fileno(), 0, prot=mmap.PROT_READ); print(m[0:5]); del m
p = mmap.mmap(n.fileno(), 0, flags=mmap.MAP_PRIVATE); p[0:4] = b'priv'; print(open('renamed', 'rb').read(4)); p.close()
# written through a map that lives until the process ends, never synced
z = open('late', 'w+b'); z.truncate(20000); mz = mmap.mmap(z.fileno(), 0); z.close(); mz[0:4] = b'late'; mz[19999] = 65
os._exit(0)
"#,
    );
}

#[test]
fn reading_and_writing_in_all_ways() {
    check_python(
        "seq 20000 > text; echo src > src; head -c 1M /dev/zero | tr '\\0' s > big",
        r#"
fd = os.open('text', os.O_RDWR | os.O_APPEND); os.write(fd, b'appended\n'); os.lseek(fd, 0, 0); print(os.read(fd, 4))
os.pwrite(fd, b'anywhere\n', 0); print(os.fstat(fd).st_size)      # O_APPEND wins over the offset
os.close(fd)
a, b = os.open('big', os.O_RDONLY), os.open('copy', os.O_CREAT | os.O_RDWR, 0o644)
print(os.copy_file_range(a, b, 300000, 100, 5), os.fstat(b).st_size)
print(os.sendfile(b, a, 0, 5000)); print(os.pread(b, 3, 0), os.pread(b, 10, 300000))
print(os.copy_file_range(b, b, 10, 0, 400000)); os.close(a)
os.ftruncate(b, 200000); print(os.pread(b, 100, 199990)); os.ftruncate(b, 0); os.close(b)
fd = os.open('v', os.O_CREAT | os.O_RDWR); print(os.writev(fd, [b'one', b'two', b'three'])); os.pwritev(fd, [b'X', b'Y'], 1)
bufs = [bytearray(4), bytearray(20)]; print(os.preadv(fd, bufs, 0), bufs); os.close(fd)
fd = os.open('src', os.O_WRONLY | os.O_TRUNC); print(os.fstat(fd).st_size); os.write(fd, b'trunc'); os.close(fd)
fd = os.open('past', os.O_CREAT | os.O_WRONLY); os.pwrite(fd, b'end', 1 << 20); os.close(fd); print(open('past', 'rb').read(10))
for flags in (os.O_CREAT | os.O_EXCL, os.O_DIRECTORY, os.O_NOFOLLOW):
    try: os.close(os.open('src', flags | os.O_RDWR)); print('ok')
    except OSError as e: print(errno.errorcode[e.errno])
f = open('locked', 'w'); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX, 10, 0); f.write('l'); f.close()
f = open('synced', 'w'); f.write('s'); f.flush(); os.fdatasync(f.fileno()); os.fsync(f.fileno()); subprocess.check_call(['sync', '-f', '.'])
for i in range(300): os.pwrite(f.fileno(), b'%03d' % i, (i * 7919) % 90000)
f.close(); print(os.statvfs('.').f_namemax)
"#,
    );
}

#[test]
fn names_and_paths_at_their_limits() {
    check_python(
        "true",
        r#"
def attempt(f, *a):
    try: f(*a); return 'ok'
    except OSError as e: return errno.errorcode[e.errno]
print(attempt(os.mkdir, 'n' * 255), attempt(os.mkdir, 'n' * 256), attempt(os.mkdir, ''), attempt(os.mkdir, 'x/y'))
print(attempt(os.mkdir, b'\xff\x01\n*'), attempt(open, 'p' * 200 + '/' + 'q', 'w'))
print(attempt(os.symlink, 't' * 4095, 'longest'), attempt(os.symlink, 't' * 4096, 'too-long'))
os.symlink('loop', 'loop'); print(attempt(os.stat, 'loop'), attempt(os.stat, 'x' * 5000))
top = os.getcwd()
for i in range(20): os.mkdir('L' * 250); os.chdir('L' * 250)
open('deep', 'w').write('below PATH_MAX'); print(open('deep').read()); os.chdir(top)
print(attempt(os.rmdir, '.'), attempt(os.rmdir, 'n' * 255 + '/..'), attempt(os.unlink, 'n' * 255))
print(attempt(os.rename, '.', 'x'), attempt(os.mkdir, 'n' * 255), attempt(os.rmdir, 'absent'))
"#,
    );
}

#[test]
fn permissions_are_checked_inside_as_outside() {
    let lab = lab!();
    check(
        &lab,
        "mkdir -m 700 closed; echo s > closed/secret; mkdir -m 755 open; echo r > open/readable; \
         chmod 600 closed/secret; mkdir -m 1777 sticky; echo r > sticky/roots; mkdir -m 777 free",
        "as() { setpriv --reuid=4321 --regid=4321 --clear-groups sh -c \"$1\" 2>&1 | sed 's/^sh: [0-9]*: //'; }; \
         as 'cat closed/secret'; as 'cat open/readable'; as 'echo x > open/new'; as 'echo x >> open/readable'; \
         as 'rm -f sticky/roots'; as 'echo mine > sticky/mine; ls sticky'; as 'mkdir free/d; chmod 700 free/d; id -u'; \
         as 'chown 1 free/d'; as 'chmod 777 open'; as 'ln open/readable free/l' >/dev/null; ls -ln sticky free | awk '{print $1,$3,$4}'",
    );
}

#[test]
fn one_byte_in_a_big_file() {
    let lab = lab!();
    lab.native("head -c 64M /dev/zero | tr '\\0' B > big; ln big second-name").ok();
    let same_file = identity(&lab.path("big"));
    let before = lab.tree();
    let script = "printf X | dd of=big bs=1 seek=33333333 conv=notrunc 2>/dev/null";
    lab.run(&["--on-exit=abort"], script).ok();
    before.assert_same(&lab.tree(), "aborted");
    lab.run(&[], script).ok();
    lab.native(
        "[ $(stat -c %s big) = 67108864 ] && [ $(tr -d B < big) = X ] && cmp big second-name",
    )
    .ok();
    assert_eq!(identity(&lab.path("big")), same_file, "it is still the same file");
    lab.do_systx(["undo"]).ok();
    before.assert_same(&lab.tree(), "undone");
}

#[test]
fn more_data_than_fits_in_memory_is_spilled() {
    let lab = lab!();
    // Far more than a transaction keeps in memory, in one file and in many.
    Twin::new(&lab).check(
        "echo x > x",
        "head -c 150M /dev/zero | tr '\\0' Z > huge; printf Y | dd of=huge bs=1 seek=77777777 conv=notrunc 2>/dev/null; \
         mkdir many; for i in $(seq 64); do head -c 1M /dev/zero | tr '\\0' $((i % 10)) > many/$i; done; \
         cksum huge; cat many/* | cksum; truncate -s 100M huge; cksum huge; rm many/1*; mv many moved",
    );
}

#[test]
fn a_large_directory_that_changes_while_it_is_read() {
    check_python(
        "mkdir big; cd big; seq -f 'file-%05.0f' 10000 | xargs touch",
        r#"
seen = set()
with os.scandir('big') as it:
    for n, e in enumerate(it):
        assert e.name not in seen, e.name
        seen.add(e.name)
        if n % 10 == 0: os.unlink('big/' + e.name)                 # one that was returned
        if n % 10 == 1: os.rename('big/' + e.name, 'big/renamed-' + e.name[5:])
        if n < 2000: open('big/added-%05d' % n, 'w').close()
# What was there all the time is returned exactly once; the rest may be.
stayed = [n for n in ('file-%05d' % i for i in range(1, 10001)) if os.path.exists('big/' + n)]
print(len(stayed) > 7000, len(stayed) == sum(n in seen for n in stayed))
names = os.listdir('big'); print(len(names) == len(set(names)))
# Which files were unlinked depends on the order of the listing: make both trees equal.
for n in names: os.unlink('big/' + n)
open('big/last', 'w').close()
# seekdir
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
for f in ('readdir', 'telldir', 'closedir', 'rewinddir'): getattr(libc, f).argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
os.mkdir('seek')
for i in range(500): open('seek/%d' % i, 'w').close()
def name(e): return ctypes.string_at(e + 19)
d = libc.opendir(b'seek'); places = []
while True:
    at = libc.telldir(d); e = libc.readdir(d)
    if not e: break
    places.append((at, name(e)))
ok = 0
for at, n in places[::37]:
    libc.seekdir(d, at); ok += name(libc.readdir(d)) == n
print(len(places), ok)
"#,
    );
}

#[test]
fn many_small_files_and_deep_removal() {
    let lab = lab!();
    check(
        &lab,
        "mkdir -p old; cd old; for d in $(seq 40); do mkdir $d; for f in $(seq 25); do echo $d.$f > $d/$f; done; done",
        "cp -a old new; find old -name '1*' -type f -exec rm {} +; rm -r old/2*; find new -type f | wc -l; \
         mv old/30 new/from-old; rm -rf old; mkdir old; echo again > old/40; find . | sort | cksum",
    );
}

#[test]
fn inode_numbers_are_stable_and_distinct() {
    let lab = lab!();
    lab.write("a", "1");
    lab.write("b", "2");
    let done = lab.run(
        &["--on-exit=abort"],
        "before=$(stat -c %d:%i a); echo x >> a; mv a c; [ $(stat -c %d:%i c) = $before ]; echo n > n; \
         stat -c %d:%i b c n . | sort -u | wc -l; i=$(stat -c %i n); ln n m; mv n o; [ $(stat -c %i m) = $i ]",
    );
    assert_eq!(done.ok().out, "4\n");
}

#[test]
fn locks_exclude_programs_outside() {
    let lab = lab!();
    lab.write("lockfile", "");
    let mut shell = lab.shell(&[]);
    shell.eval("exec 9<lockfile; flock -n 9");
    let code = lab.native("flock -n lockfile true").code;
    assert_eq!(code, 1, "the lock taken in the run holds outside");
    shell.exit(0).ok();
    lab.native("flock -n lockfile true").ok();
}

/// flock(2) locks end with the last descriptor of their description, which its owner's children may
/// have.
#[test]
fn a_lock_ends_with_its_description() {
    let lab = lab!();
    lab.write("lockfile", "");
    let done = lab.run(
        &[],
        "for i in $(seq 50); do flock -n lockfile true || echo still locked; done; \
         exec 8<lockfile; flock -n lockfile true || echo who has it open is no owner; mkfifo ready stop; \
         (exec 9<lockfile; flock -n 9; sh -c 'echo > ready; read x < stop' &) ; read x < ready; \
         flock -n lockfile true && echo an inherited lock was lost; \
         flock -n 8 && echo an inherited lock was lost to who had it open; \
         exec 8<&-; echo > stop; flock lockfile true; \
         exec 8<lockfile; flock -n 8 && ! flock -n lockfile true && echo done; rm ready stop",
    );
    assert_eq!(done.ok().out, "done\n");
}

#[test]
fn executables_made_inside_run_inside() {
    let lab = lab!();
    let done = lab.run(
        &[],
        "cp /bin/echo ./mine; ./mine direct; printf '#!/bin/sh\\necho script $0\\n' > s; chmod +x s; ./s; \
         cp /bin/sleep busy; ./busy 1000 & until [ $(cat /proc/$!/comm) = busy ]; do :; done; (echo x > busy) 2>&1 | grep -c 'busy'; kill $!; wait; rm busy",
    );
    assert_eq!(done.ok().out, "direct\nscript ./s\n1\n");
    assert_eq!(lab.native("./mine again").ok().out, "again\n");
}

#[test]
fn tree_comparison_itself_sees_every_kind_of_difference() {
    let lab = lab!();
    let prepare = "rm -rf t; mkdir t; cd t; echo x > f; ln f g; ln -s f l; mkfifo p; mkdir d; truncate -s 9000 s";
    lab.native(prepare).ok();
    let before = Tree::capture(lab.path("t"));
    let changes = [
        "echo y > t/f",
        "chmod 600 t/f",
        "chown 5 t/f",
        "rm t/g",
        "rm t/g; cp t/f t/g",
        "rm t/l; ln -s g t/l",
        "rm t/p; touch t/p",
        "touch t/new",
        "rmdir t/d",
        "chmod 700 t/d",
        "chmod 700 t",
        "printf y | dd of=t/s bs=1 seek=8999 conv=notrunc",
        "truncate -s 9001 t/s",
    ];
    for change in changes {
        lab.native(prepare).ok();
        before.assert_same(&Tree::capture(lab.path("t")), "unchanged");
        lab.native(change).ok();
        let after = Tree::capture(lab.path("t"));
        assert!(!before.differences(&after).is_empty(), "{change} was not seen");
    }
}

/// Nobody tells the daemon of a close in a run: who waits for a lock gets it all the same when its
/// holder has ended, and not while another process has inherited it.
#[test]
fn a_lock_by_flock_goes_to_who_waits_when_its_holder_ends() {
    let lab = lab!();
    let script = "echo > f; flock f sh -c 'echo held; sleep 0.5' & \
         while ! grep -q . held; do sleep 0.01; done; \
         for i in 1 2 3; do flock f echo got & done; wait; \
         exec 9>f; flock 9; (read line <pipe; echo inherited) & exec 9>&-; \
         flock -n f echo early; (flock f echo late; echo done >after) & \
         sleep 0.3; echo >pipe; wait; cat after";
    let script = script.replace("echo held;", "echo held >held;");
    let script = format!("mkfifo pipe; : > held; {script}");
    let native = lab.native(&script).ok();
    lab.native("rm -f f held pipe after").ok();
    let inside = lab.run(&["--on-exit=abort"], &script).ok();
    assert_eq!(native.out, "got\ngot\ngot\ninherited\nlate\ndone\n");
    assert_eq!(inside.out, native.out);
}

/// What nobody may change (chattr(1)) is refused when it is tried, as on the host, and not found at
/// the commit.
#[test]
fn what_chattr_has_fixed_is_refused_at_once() {
    let lab = lab!();
    if find_program("chattr").is_none() {
        skip!("no chattr (package e2fsprogs)");
    }
    lab.native(
        "for f in i a di/f da/f; do mkdir -p $(dirname $f); echo old > $f; done; echo free > free",
    )
    .ok();
    let fixed = lab.native("chattr +i i di && chattr +a a da");
    if fixed.code != 0 {
        skip!("chattr cannot be had on {}: {}", lab.fs.name(), fixed.err);
    }
    // Each says what it is refused, or that it is not.
    let refused = "t() { if out=$(\"$@\" 2>&1); then echo \"$* is allowed\"; \
        else case $out in *'not permitted'*) echo \"$*: EPERM\";; *) echo \"$*: $out\";; esac; fi; }; \
        for f in i a; do t dd if=free of=$f conv=notrunc bs=1; t truncate -s 1 $f; t chmod 600 $f; t chown 1 $f; \
        t touch -d 2001-01-01 $f; t rm -f $f; t mv $f moved; t mv free $f; t ln $f linked; done; \
        t touch i; t fallocate -l 9999 i; \
        t touch di/new; t mkdir di/new; t ln free di/new; t rm -f di/f; t mv di/f f; t mv free di/new; t rm -rf di; t mv di d; \
        t chmod 700 di; t rm -f da/f; t mv da/f f; t mv free da/f; t mv da d; t chmod 700 da; cat i a di/f da/f;";
    let native = lab.native(refused).ok().out;
    assert_eq!((native.matches(": EPERM").count(), native.lines().count()), (34, 38), "{native}");
    let run = lab.run(&[], &format!("{refused} echo changed > free"));
    assert_eq!(run.clone().ok().out, native);
    // Also of what had been met before.
    let run = lab.run(&[], "cat i >/dev/null; chmod 600 i; rm -f a; echo x > i; cat i");
    assert_eq!(run.out, "old\n", "{run}");
    assert_eq!(lab.read("free"), "changed\n");
    // What may only grow cannot be written to at all: a commit sets its times.
    let run = lab.run(&[], "touch a; echo more >> a; cat a");
    assert!(run.out == "old\n" && run.err.contains("not permitted"), "{run}");
    // Names may be added where nothing may go.
    lab.run(&[], "echo new > da/new; mkdir da/sub; mv free da/moved").ok();
    assert_eq!(lab.native("ls da").ok().out, "f\nmoved\nnew\nsub\n");
    lab.native("chattr -i i di; chattr -a a da").ok();
}
