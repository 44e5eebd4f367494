//! Programs of others that look closely at a file system, each on the host, in a guarded directory,
//! inside a transaction that commits and inside one that aborts ([`systx_e2e::places`]). pjdfstest
//! and fsx, which are fetched, are in the suites `conformance` and `guarded`.

use std::path::Path;
use systx_e2e::others::{assert_pjdfstest_as_on_the_host, crate_program, pjdfstest, postgres};
use systx_e2e::places::{Place, Work};
use systx_e2e::{Fs, lab, long, needs, skip};

#[test]
fn pjdfstest_in_a_transaction_that_commits_is_as_on_the_host() {
    let lab = lab!();
    let script = match pjdfstest(&lab) {
        Ok(script) => script,
        Err(why) => skip!("pjdfstest cannot be had: {why}"),
    };
    let work = Work::new(&lab).any_output().limit(120);
    let script = format!("{script}; rm -rf p");
    let (host, left) = work.visit(Place::Host, &script);
    let (ours, committed) = work.visit(Place::Committed, &script);
    assert_pjdfstest_as_on_the_host(&host, &ours);
    left.assert_same(&committed, "host against committed");
}

#[test]
fn fsx_everywhere() {
    let lab = lab!();
    let program = match crate_program("fsx", "0.3.2") {
        Ok(program) => program,
        Err(why) => skip!("fsx cannot be had: {why}"),
    };
    let ops = if long() { 20_000 } else { 2000 };
    let program = program.display();
    let script = format!(
        "for seed in 31 32; do {program} -q -N {ops} -S $seed f$seed || exit 1; done; cksum f*"
    );
    Work::new(&lab).check(&script).expect("passes on the host");
}

/// File system stressors that need neither other mounts nor /proc, in two parts that run side by
/// side.
const STRESSORS: [&str; 2] = [
    "access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fiemap filename flock fpunch \
     fstat hdd iomix lease",
    "link locka lockf lockofd metamix mknod mmapfork open readahead rename revio seek sendfile symlink sync-file \
     touch unlink utime verity xattr",
];

/// Their files are a gigabyte otherwise, more than the labs have; and where a mount is served by a
/// process, the space of a removed file comes back a moment after its last close.
const SMALL: &str = "--hdd-bytes 4M --iomix-bytes 4M --readahead-bytes 8M --sync-file-bytes 8M \
    --fallocate-bytes 16M --fiemap-bytes 8M --dirdeep-inodes 500";

fn stress(stressors: &str) {
    let lab = lab!();
    needs!("stress-ng");
    let seconds = if long() { 10 } else { 1 };
    // One after the other, all in one transaction; those that fail are named, and what they say
    // further is in lines that begin with no name of one. Some leave a file behind now and then,
    // natively, too.
    let script = format!(
        "mkdir s; for s in {stressors}; do \
         out=$(stress-ng --$s 1 --timeout {seconds} --verify --temp-path s {SMALL} -q 2>&1) || echo \"$s: $? $out\"; done; rm -rf s stress-*"
    );
    let work = Work::new(&lab).any_output().limit(100 * seconds);
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let known = |line: &&str| stressors.split_whitespace().any(|s| name(line) == s);
    let (host, left) = work.visit(Place::Host, &script);
    let excused: Vec<String> = host.out.lines().filter(known).map(name).collect();
    // Or this shows nothing.
    assert!(excused.len() < 5, "hardly any stressor passes on the host: {host}");
    for place in [Place::Guarded, Place::Committed, Place::Aborted] {
        let (ours, tree) = work.visit(place, &script);
        assert_eq!(ours.code, 0, "{place:?}\n{ours}");
        let worse: Vec<&str> = (ours.out.lines().filter(known))
            .filter(|line| !excused.contains(&name(line)))
            .collect();
        assert!(worse.is_empty(), "{place:?}: pass on the host, not here: {worse:#?}\n{ours}");
        left.assert_same(&tree, &format!("host against {place:?}"));
    }
}

#[test]
fn stress_ng_with_verify_everywhere_first_part() {
    stress(STRESSORS[0]);
}

#[test]
fn stress_ng_with_verify_everywhere_second_part() {
    stress(STRESSORS[1]);
}

#[test]
fn fio_with_verify_everywhere() {
    let lab = lab!();
    needs!("fio");
    let (size, loops) = if long() { ("64m", 8) } else { ("4m", 1) };
    let common = format!(
        "--size={size} --loops={loops} --verify=crc32c --verify_fatal=1 --verify_state_save=0 --randrepeat=1 \
         --fallocate=none --output=/dev/null"
    );
    // The bytes of a file are as random as the seed, which is fixed; the verification header has no
    // clock in it.
    let jobs = [
        "--rw=randwrite --bs=4k --ioengine=psync",
        "--rw=randwrite --bsrange=1k-16k --ioengine=psync --fsync=16",
        "--rw=write --bs=64k --ioengine=pvsync2",
        "--rw=randwrite --bs=4k --ioengine=mmap",
        "--rw=randrw --bs=8k --ioengine=libaio --iodepth=8",
        "--rw=randwrite --bs=4k --ioengine=io_uring --iodepth=8 --sqthread_poll=0",
    ];
    for (i, job) in jobs.iter().enumerate() {
        let script = format!(
            "fio --name=job{i} {job} {common} >&2 || exit 1; stat -c %n,%s job{i}*; rm job{i}*; exit 0"
        );
        if let Err(why) = Work::new(&lab).check(&script) {
            eprintln!("left out: {job}: {why}");
        }
    }
}

#[test]
fn dbench_everywhere() {
    let lab = lab!();
    needs!("dbench");
    let loads = "/usr/share/dbench/client.txt";
    if !Path::new(loads).exists() {
        skip!("no load file of dbench at {loads}");
    }
    let seconds = if long() { 60 } else { 4 };
    // It ends with 0 also after failed calls, which it names.  It goes on without its semaphore.
    let script = format!(
        "dbench -D . -c {loads} -t {seconds} 4 >out 2>&1 || {{ cat out; exit 1; }}; \
         if grep -v 'barrier semaphore' out | grep -iE 'failed|error|expected'; then exit 1; fi; rm -rf out clients; ls -A"
    );
    Work::new(&lab).limit(seconds * 3 + 30).check(&script).expect("passes on the host");
}

#[test]
fn git_everywhere() {
    let lab = lab!();
    needs!("git");
    let files = if long() { 5000 } else { 400 };
    let script = format!(
        "set -e; umask 022; export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE='1000000000 +0000' \
           GIT_COMMITTER_DATE='1000000000 +0000'; \
         git config --global user.email a@b.c; git config --global user.name n; git config --global pack.threads 1; \
         git config --global gc.autoDetach false; git config --global init.defaultBranch main; \
         git init -q r; cd r; mkdir -p d/e; for i in $(seq {files}); do seq $i > d/f$i; done; \
         git add -A; git commit -qm one; git checkout -qb side; for i in $(seq 50); do echo $i >> d/f$i; done; \
         git mv d/f60 d/e/moved; git commit -qam two; git checkout -q main; git rm -q d/f70; git commit -qm three; \
         git merge -q side -m four; git stash list; git gc -q --prune=now; git fsck --strict --no-progress; \
         git status --porcelain; git log --format='%h %s'; git clone -q . ../c; git -C ../c fsck; git -C ../c log -1 --format=%H"
    );
    // The index and what is made from it hold inode numbers and times; a clone's log, its own path
    // and time.
    let work = Work::new(&lab).ignoring(|path| path.ends_with(".git/index"));
    work.limit(120).check(&script).expect("passes on the host");
}

/// Several writers of one database with a log that they share through a mapping.
const THREADS: &str = r#"
import sqlite3, threading
def work(n):
    db = sqlite3.connect('WAL.FULL.db', timeout=60)
    for i in range(30):
        with db: db.execute('INSERT INTO t(b) VALUES (?)', (f'{n}-{i}',))
    db.close()
all = [threading.Thread(target=work, args=(n,)) for n in range(3)]
[t.start() for t in all]; [t.join() for t in all]
db = sqlite3.connect('WAL.FULL.db')
print(db.execute('PRAGMA integrity_check').fetchall(), db.execute('SELECT count(*) FROM t').fetchall())
db.close()
"#;

#[test]
fn sqlite_in_all_journal_modes_everywhere() {
    let lab = lab!();
    needs!("sqlite3");
    let rows = if long() { 100_000 } else { 3000 };
    let script = format!(
        "set -e; for mode in DELETE TRUNCATE PERSIST MEMORY WAL OFF; do for sync in OFF FULL; do \
           sqlite3 $mode.$sync.db \"PRAGMA journal_mode=$mode; PRAGMA synchronous=$sync; \
             CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c BLOB); CREATE INDEX i ON t(b); \
             WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x<{rows}) \
             INSERT INTO t SELECT x, 'row '||(x*7919%{rows}), zeroblob(x%300) FROM n;\"; \
           sqlite3 $mode.$sync.db \"PRAGMA synchronous=$sync; BEGIN; DELETE FROM t WHERE a%3=0; \
             UPDATE t SET b=b||'!' WHERE a%5=0; COMMIT; BEGIN; DELETE FROM t; ROLLBACK;\" || [ $mode = OFF ]; \
         done; done; \
         for mode in DELETE TRUNCATE PERSIST MEMORY WAL; do for sync in OFF FULL; do \
           sqlite3 $mode.$sync.db 'PRAGMA integrity_check; SELECT count(*), sum(length(b)), sum(length(c)) FROM t'; \
           sqlite3 $mode.$sync.db .dump | cksum; done; done; \
         python3 -c \"{THREADS}\"; ls"
    );
    // Threads insert in any order, and a rollback without a journal leaves anything.
    let any = |path: &Path| {
        path.to_string_lossy().starts_with("WAL.FULL.db")
            || path.to_string_lossy().starts_with("OFF")
    };
    Work::new(&lab).ignoring(any).limit(120).check(&script).expect("passes on the host");
}

#[test]
fn postgres_everywhere() {
    let lab = lab!();
    let Some(bin) = postgres() else { skip!("no PostgreSQL server below /usr/lib/postgresql") };
    let count = if long() { 2000 } else { 40 };
    // It refuses to be root, and whoever has no name: the package brings an account. It keeps its
    // socket, its shared memory and its log in the directory.
    let inner = format!(
        "set -e; export PATH={}:$PATH LC_ALL=C PGHOST=$PWD PGUSER=me; \
         initdb -D d -U me -A trust >log 2>&1 || {{ cat log; exit 1; }}; \
         printf \"listen_addresses=''\\nunix_socket_directories='$PWD'\\ndynamic_shared_memory_type=mmap\\n\
           shared_buffers=16MB\\nmax_connections=20\\n\" >> d/postgresql.conf; \
         start() {{ pg_ctl -D d -w -t 120 -l serverlog start >/dev/null || {{ cat serverlog; exit 1; }}; }}; \
         start; createdb b; pgbench -q -i -s 1 b >log 2>&1; pgbench -n -c 4 -j 2 -t {count} b >log 2>&1 || {{ cat log; exit 1; }}; \
         sum() {{ psql -XAt b -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history), \
           (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers), count(*) FROM pgbench_history'; }}; \
         sum; psql -XAtq b -c 'VACUUM FULL' -c 'CHECKPOINT'; sum; \
         pg_ctl -D d -w -m immediate stop >/dev/null; start; sum; pg_ctl -D d -w -m fast stop >/dev/null; \
         pg_controldata d | grep -i 'cluster state'; grep -E 'PANIC|FATAL: .*(sync|read|write)' serverlog || true; rm log serverlog",
        bin.display()
    );
    let script = format!(
        "mkdir pg && chown postgres:postgres pg && cd pg && \
         exec setpriv --reuid=postgres --regid=postgres --clear-groups -- sh -c '{}'",
        inner.replace('\'', r"'\''")
    );
    // A cluster has a random identity, times and counters everywhere.
    let work = Work::new(&lab).ignoring(|path| path.starts_with("pg/d")).limit(150);
    match work.check(&script) {
        Ok(done) => assert_eq!(done.out.matches("t|t|").count(), 3, "{done}"),
        Err(why) => skip!("PostgreSQL: {why}"),
    }
}

#[test]
fn copies_that_keep_everything_everywhere() {
    let lab = lab!();
    needs!("tar", "rsync", "setfattr", "setfacl");
    let files = if long() { 3000 } else { 250 };
    let prepare = format!(
        "set -e; umask 022; mkdir -p a/b/c a/empty; for i in $(seq {files}); do seq $i > a/b/f$i; done; \
         ln a/b/f1 a/hard; ln -s b/f2 a/soft; ln -s nowhere a/dangling; mkfifo a/fifo; mknod a/null c 1 3; \
         chmod 4755 a/b/f3; chmod 2770 a/b/c; chown 12:34 a/b/f4; chown -h 12:34 a/soft; \
         setfattr -n user.x -v value a/b/f5; setfacl -m u:12:rw a/b/f6; setfacl -d -m g:34:rx a/b/c || true; \
         truncate -s 3M a/sparse; printf x | dd of=a/sparse bs=1 seek=1000000 conv=notrunc status=none; \
         printf 'odd\\n' > \"a/b/$(printf 'a\\nb \\303\\244')\"; mkdir -p a/$(printf %0200d 0); \
         find a -depth -exec touch -hd @1000000000 {{}} +"
    );
    // XFS lists access lists as attributes of its own, too, which a view does not have; rsync finds
    // them to differ.
    let rsync = if lab.fs == Fs::Xfs { "| grep -v '^[.][fd][.]*x ' || true" } else { "" };
    let script = format!(
        "set -e; cp -a a cp; tar --xattrs --acls -cpf t.tar --sort=name a; mkdir t; \
         tar --xattrs --acls -xpf t.tar -C t; rm t.tar; mkdir r; rsync -aHAXS a/ r/; rsync -aHAXS --itemize-changes a/ r/; \
         rsync -aHAXn --checksum --itemize-changes a/ cp/ {rsync}; \
         diff -r --no-dereference a/b cp/b; diff -r --no-dereference a/b t/a/b; diff -r --no-dereference a/b r/b; \
         stat -c '%n %a %u %g %h %F %Y' cp/* cp/b/f* t/a/* r/* | grep -v directory; mv a/b/c cp; rm a/hard; rm -r a/b; \
         find . -type f | sort | xargs -d '\\n' cksum | cksum"
    );
    let work = Work::new(&lab).prepared(&prepare);
    work.limit(120).check(&script).expect("passes on the host");
}

/// Locks of open file descriptions, set-id bits, limits, long names, signals to those who wait.
const EDGES: &str = r#"
import ctypes, errno, fcntl, os, resource, signal, stat, struct, subprocess, sys, time
def tell(what, call):
    try: print(what, call())
    except OSError as e: print(what, errno.errorcode[e.errno])
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
def flock(kind, start, length): return struct.pack('hhqqi4x', kind, 0, start, length, 0)
def ofd(fd, kind, start, length): return fcntl.fcntl(fd, F_OFD_SETLK, flock(kind, start, length)) and None
def child(call):
    pid = os.fork()
    if pid == 0:
        try: call(); os._exit(0)
        except OSError as e: os._exit(e.errno)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
open('f', 'w').write('x' * 100)
a, b = os.open('f', os.O_RDWR), os.open('f', os.O_RDWR)
tell('ofd write', lambda: ofd(a, fcntl.F_WRLCK, 0, 10))
tell('ofd other', lambda: ofd(b, fcntl.F_WRLCK, 5, 10))
tell('ofd beside', lambda: ofd(b, fcntl.F_WRLCK, 10, 10))
tell('ofd get', lambda: struct.unpack('hhqqi4x', fcntl.fcntl(b, F_OFD_GETLK, flock(fcntl.F_WRLCK, 0, 4)))[0])
tell('posix against ofd', lambda: fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 0, 0))
# The description is shared: its locks are, too.
tell('ofd inherited', lambda: child(lambda: ofd(a, fcntl.F_WRLCK, 0, 10)))
os.close(b); os.close(a)
tell('ofd freed by close', lambda: child(lambda: ofd(os.open('f', os.O_RDWR), fcntl.F_WRLCK, 0, 10)))

def unprivileged(script):
    def become(): os.setgroups([]); os.setgid(12021); os.setuid(12021)
    done = subprocess.run(['sh', '-c', script], preexec_fn=become, capture_output=True, text=True)
    return done.returncode
os.chmod('.', 0o777)
for mode in (0o6777, 0o2767, 0o4755, 0o2777):
    for what, script in (('write', 'echo y >> s'), ('chown', 'chown 12021 s'), ('cut', ': > s'), ('chgrp', 'chgrp 12021 s'),
                         ('keep', 'touch s')):
        if os.path.exists('s'): os.unlink('s')
        open('s', 'w').write('x'); os.chown('s', 12021 if what in ('chown', 'chgrp') else 0, 12021 if what == 'chgrp' else 0); os.chmod('s', mode)
        print('set-id', oct(mode), what, unprivileged(script), oct(os.stat('s').st_mode))
for what, call in (('chown by root', lambda: os.chown('s', 1, 1)), ('write by root', lambda: open('s', 'a').write('z')),
                   ('cut by root', lambda: os.truncate('s', 1))):
    os.chmod('s', 0o6777); call(); print(what, oct(os.stat('s').st_mode))

pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGXFSZ, lambda *_: print('SIGXFSZ', flush=True))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
    fd = os.open('limited', os.O_CREAT | os.O_RDWR)
    tell('within', lambda: os.pwrite(fd, b'x' * 9000, 0)); tell('across', lambda: os.pwrite(fd, b'x' * 9000, 5000))
    tell('beyond', lambda: os.pwrite(fd, b'x', 10000)); tell('truncate', lambda: os.ftruncate(fd, 10001))
    tell('allocate', lambda: os.posix_fallocate(fd, 0, 20000)); print(os.fstat(fd).st_size, flush=True); os._exit(0)
os.waitpid(pid, 0)
fd = os.open('large', os.O_CREAT | os.O_RDWR)
tell('largest offset', lambda: os.pwrite(fd, b'x', 2**63 - 2)); tell('beyond any', lambda: os.ftruncate(fd, 2**63 - 1))
tell('negative', lambda: os.ftruncate(fd, -1)); os.close(fd); os.unlink('large')

for n in (254, 255, 256):
    tell(f'name of {n}', lambda: os.close(os.open('n' * n, os.O_CREAT | os.O_WRONLY)))
    tell(f'umlauts of {n}', lambda: os.mkdir(b'\303\244' * (n // 2) + b'n' * (n % 2)))
    tell(f'rename to {n}', lambda: os.rename('f', 'm' * n) or os.rename('m' * n, 'f'))
    tell(f'symlink of {n}', lambda: os.symlink('t', 'l' * n))
for n in (4094, 4095, 4096):
    tell(f'target of {n}', lambda: os.symlink('t' * n, f'target{n}')); tell('read', lambda: len(os.readlink(f'target{n}')))
    tell(f'path of {n}', lambda: os.stat(('./' * n)[:n - 1] + 'f'))if n > 4095 else None
tell('xattr name', lambda: os.setxattr('f', 'user.' + 'x' * 250, b'1')); tell('xattr name', lambda: os.setxattr('f', 'user.' + 'x' * 251, b'1'))
tell('xattr value', lambda: os.setxattr('f', 'user.big', b'v' * 65537))

# A signal reaches who waits for a lock.
class Woken(Exception): pass
def wake(*_): signal.setitimer(signal.ITIMER_REAL, 0); raise Woken
# (Of another file: a view knows only that a process has closed all of a file, not which of its descriptions.)
holder, waiter = os.open('held', os.O_CREAT | os.O_RDWR), os.open('held', os.O_RDWR)
for what, hold, wait in (('flock', lambda: fcntl.flock(holder, fcntl.LOCK_EX), lambda: fcntl.flock(waiter, fcntl.LOCK_EX)),
                         ('ofd', lambda: ofd(holder, fcntl.F_WRLCK, 0, 0), lambda: fcntl.fcntl(waiter, F_OFD_SETLKW, flock(fcntl.F_WRLCK, 0, 0)))):
    hold(); signal.signal(signal.SIGALRM, wake)
    # Until it is taken: the first one may come just before it waits.
    try: signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2); wait(); print(what, 'granted')
    except Woken: print(what, 'interrupted')
    signal.setitimer(signal.ITIMER_REAL, 0)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL); wait(); os._exit(7)
    time.sleep(0.2); os.kill(pid, signal.SIGKILL); print(what, 'killed', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
fcntl.flock(holder, fcntl.LOCK_UN); tell('free again', lambda: child(lambda: fcntl.flock(os.open('held', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)))
os.close(holder); os.close(waiter)
"#;

#[test]
fn edges_everywhere() {
    let lab = lab!();
    let script = format!("umask 022; exec /usr/bin/python3 - <<'SYSTX_END'\n{EDGES}\nSYSTX_END\n");
    Work::new(&lab).check(&script).expect("passes on the host");
}
