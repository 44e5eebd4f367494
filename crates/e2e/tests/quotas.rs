//! At the limit of a quota: that of a quota group of btrfs, which binds root as well, and counts
//! tree blocks. What others keep to is here refused *before* the decision: afterwards nothing may
//! fail for lack of it.
//!
//! How much there is to use nothing tells but an attempt; so nothing here depends on it to the
//! byte.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Instant;
use systx_e2e::cases::{Guarded, line, started};
use systx_e2e::lab::{USER, executable, find_program, one};
use systx_e2e::open::Open;
use systx_e2e::run::{HANG, Limits, Running, finish, wait_readable};
use systx_e2e::stop::Stop;
use systx_e2e::stores::wait_until_closed;
use systx_e2e::{Finished, Lab, Tree, skip};

/// Megabytes of most labs here.
const LIMIT: u64 = 24;

macro_rules! limited {
    ($megabytes:expr) => {
        match Lab::limited($megabytes) {
            Ok(lab) => lab,
            Err(why) => skip!("{why}"),
        }
    };
    () => {
        limited!(LIMIT)
    };
}

/// What a program meets at the limit, call by call, and afterwards.
const PLAIN: &str = r#"
import ctypes, errno, os, sys, time
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
volume = os.open(sys.argv[2], os.O_RDONLY)
def sync(): assert libc.syncfs(volume) == 0
def fallocate(name, at, n):
    f = os.open(name, os.O_RDWR)
    try:
        if libc.fallocate(f, 0, ctypes.c_long(at), ctypes.c_long(n)): raise OSError(ctypes.get_errno(), '')
    finally: os.close(f)
def put(name, data, flags=os.O_WRONLY, at=None):
    f = os.open(name, flags)
    try:
        os.write(f, data) if at is None else os.pwrite(f, data, at)
        os.fsync(f)
    finally: os.close(f)
def fill(size):
    try:
        while True: put('fill', b'x' * size, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError as e: print('fill', errno.errorcode[e.errno])
def attempt(what, call):
    try: call(); print(what, 'ok')
    except OSError as e: print(what, errno.errorcode[e.errno])
for name in 'abcdefgh': put(name, b'o' * 8192, os.O_WRONLY | os.O_CREAT)
os.mkdir('sub'); put('sub/x', b'x', os.O_WRONLY | os.O_CREAT)
fill(1 << 18); sync(); fill(1 << 12); sync(); fill(1 << 12); sync()
attempt('append', lambda: put('a', b'y' * 4096, os.O_WRONLY | os.O_APPEND))
attempt('overwrite', lambda: put('b', b'y' * 4096, at=0))
attempt('beyond', lambda: put('c', b'y' * 4096, at=1 << 20))
attempt('fallocate', lambda: fallocate('d', 8192, 65536))
attempt('create', lambda: put('new', b'', os.O_WRONLY | os.O_CREAT | os.O_EXCL))
attempt('mkdir', lambda: os.mkdir('dir'))
attempt('symlink', lambda: os.symlink('x', 'symlink'))
attempt('mkfifo', lambda: os.mkfifo('fifo'))
attempt('link', lambda: os.link('e', 'hard'))
attempt('rename', lambda: os.rename('e', 'moved'))
attempt('rename over', lambda: os.rename('f', 'g'))
attempt('chmod', lambda: os.chmod('e', 0o600))
attempt('utime', lambda: os.utime('e', (1, 1)))
attempt('setxattr', lambda: os.setxattr('e', 'user.a', b'x' * 1000))
attempt('truncate up', lambda: os.truncate('e', 1 << 20))
attempt('truncate down', lambda: os.truncate('e', 100))
attempt('O_TRUNC', lambda: put('h', b'', os.O_WRONLY | os.O_TRUNC))
attempt('then write', lambda: put('h', b'z' * 100, at=0))
for name in sorted(set(os.listdir()) - {'fill', 'sub'}):
    print(name, oct(os.stat(name).st_mode), os.stat(name).st_size, os.stat(name).st_nlink, sorted(set(open(name, 'rb').read())))
attempt('rmdir', lambda: (os.unlink('sub/x'), os.rmdir('sub')))
attempt('unlink', lambda: os.unlink('fill'))
# In a guarded directory the room is free when the kernel has told that it forgets the file.
for _ in range(20000):
    sync()
    try: put('b', b'z' * 4096, at=0); break
    except OSError as e: assert e.errno == errno.EDQUOT; time.sleep(.002)
attempt('append', lambda: put('a', b'y' * 4096, os.O_WRONLY | os.O_APPEND))
attempt('overwrite', lambda: put('b', b'y' * 4096, at=0))
attempt('create', lambda: put('new', b'n', os.O_WRONLY | os.O_CREAT | os.O_EXCL))
attempt('fallocate', lambda: fallocate('d', 8192, 65536))
attempt('rename', lambda: os.rename('e', 'moved'))
attempt('O_TRUNC', lambda: put('h', b'z', os.O_WRONLY | os.O_TRUNC))
"#;

/// `PROGRAM DIR VOLUME`, by a user.
fn python(lab: &Lab, program: &Path, dir: &str, uid: u32) -> Finished {
    let mut command = lab.command("setpriv");
    command
        .args([format!("--reuid={uid}"), format!("--regid={uid}")])
        .args(["--clear-groups", "--", "python3"])
        .args([program, &lab.path(dir), &lab.root()])
        // Not one that only root can get at.
        .env("PATH", "/usr/bin:/bin");
    finish(command, Limits::default(), lab).ok()
}

#[test]
fn a_plain_program_meets_the_limit_in_a_guarded_directory_where_it_does_natively() {
    if find_program("python3").is_none() || find_program("setpriv").is_none() {
        skip!("there is no python3, or no setpriv (package util-linux)");
    }
    let lab = limited!(12);
    let program = lab.outside().join("plain.py");
    executable(&program, PLAIN);
    for uid in [0, USER] {
        lab.native(&format!("rm -rf n g; mkdir n g; chown {uid}:{uid} n g")).ok();
        lab.left_of_quota();
        let native = python(&lab, &program, "n", uid).out;
        lab.native("rm -rf n").ok();
        lab.left_of_quota();
        lab.do_systx(["mount", "g"]).ok();
        let guarded = python(&lab, &program, "g", uid).out;
        assert!(native.matches("EDQUOT").count() >= 15, "{native}");
        assert_eq!(native, guarded, "user {uid}: natively, and in a guarded directory");
        let blocks = |dir: &str| rustix::fs::statvfs(lab.path(dir)).expect("it is there").f_blocks;
        assert_eq!(blocks("."), blocks("g"), "that of the file system, not of the quota");
        let there = Tree::capture(lab.path("g"));
        lab.do_systx(["umount", "g"]).ok();
        there.assert_same(&Tree::capture(lab.path("g")), "below the mount");
    }
}

/// Natively such a store is a SIGBUS, since a page has room before it is changed.
#[test]
fn a_store_to_a_mapping_that_a_quota_has_no_room_for_is_told_by_msync() {
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    let lab = limited!(12);
    lab.native("mkdir g; head -c 65536 /dev/zero | tr '\\0' o > g/mapped").ok();
    lab.do_systx(["mount", "g"]).ok();
    let program = lab.outside().join("mapped.py");
    executable(
        &program,
        "import errno, mmap, os, sys\nos.chdir(sys.argv[1])\n\
         m = mmap.mmap(os.open('mapped', os.O_RDWR), 65536)\n\
         def flush():\n    try: m.flush(); print('ok', flush=True)\n    \
         except OSError as e: print(errno.errorcode[e.errno], flush=True)\n\
         print(m[0], flush=True); input(); m[5000] = 65; flush(); input(); m[5000] = 66; flush()\n",
    );
    let mut command = lab.command("python3");
    command.args([&program, &lab.path("g")]);
    let (mut child, mut out) = started(command);
    assert_eq!(line(&mut out), "111");
    lab.fill(0);
    tell(&mut child);
    assert_eq!(line(&mut out), "EDQUOT");
    let below = |lab: &Lab| lab.do_systx(["run", "--", "cat", "g/mapped"]).ok().out;
    assert!(below(&lab).bytes().all(|b| b == b'o'), "nothing of it is there");
    lab.make_room();
    tell(&mut child);
    assert_eq!(line(&mut out), "ok");
    assert_eq!(&below(&lab)[4999..5002], "oBo");
    assert!(child.wait().unwrap().success());
}

fn tell(child: &mut std::process::Child) {
    child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it reads");
}

/// That it is refused for a quota, with a sentence that says so.
#[track_caller]
fn refused(done: Finished) -> Finished {
    assert_ne!(done.code, 0, "{done}");
    done.says("quota exceeded").says("nothing was committed")
}

/// Bytes that the store's staging slots hold.
fn staged(lab: &Lab) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let slots = fs::read_dir(lab.path(".systx/s")).expect("root's store");
    slots.map(|slot| slot.unwrap().metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn a_commit_that_a_quota_has_no_room_for_is_refused_whole_and_made_when_there_is_some() {
    let lab = limited!();
    lab.write("g/old", "old\n");
    lab.write("outside", "old\n");
    lab.write("other", "other\n");
    lab.do_systx(["mount", "g"]).ok();
    lab.run(&[], "echo first > g/first").ok();
    let log = lab.logged_ids();
    let open = Open::begin(&lab, "g", &[]);
    open.sh("echo new > old; mkdir dir; echo made > dir/made; mv first dir/moved").ok();
    lab.run(&["--on-exit=keep"], "echo new > outside; echo kept > kept").ok();
    let kept = lab.open_ids().into_iter().find(|id| *id != open.id).expect("it was kept");
    lab.fill(0);
    let before = lab.tree();
    for _ in 0..2 {
        refused(open.systx("commit"));
        refused(lab.do_systx(["commit", &kept]));
        let run = lab.run(&[], "echo z > g/z");
        assert_ne!(run.code, 0, "{run}");
        run.says("quota exceeded");
        before.assert_same(&lab.tree(), "refused");
    }
    assert_eq!(lab.open_ids().len(), 2);
    assert_eq!(lab.logged_ids(), log);
    assert_eq!(staged(&lab), 0, "what was held is free again");
    // What changes nothing needs no room, and what goes on is there.
    lab.run(&[], "cat other; echo inside > other; cat other; false").expect(1);
    lab.run(&[], "cat other").ok();
    assert_eq!(open.sh("cat old dir/made dir/moved").ok().out, "new\nmade\nfirst\n");
    lab.make_room();
    open.systx("commit").ok();
    lab.do_systx(["commit", &kept]).ok();
    assert_eq!(
        lab.native("cat g/old g/dir/made g/dir/moved outside kept").ok().out,
        "new\nmade\nfirst\nnew\nkept\n"
    );
    assert_eq!((lab.has("g/first"), lab.has("g/z")), (false, false));

    // Taking something back is a transaction like any other.
    let after = lab.tree();
    lab.fill(0);
    let (full, last) = (lab.tree(), lab.logged_ids()[0].clone());
    refused(lab.do_systx(["undo", &last]));
    full.assert_same(&lab.tree(), "not undone");
    lab.make_room();
    lab.do_systx(["undo", &last]).ok();
    assert_eq!(lab.read("outside"), "old\n");
    lab.do_systx(["redo"]).ok();
    after.assert_same(&lab.tree(), "undone and redone");
}

#[test]
fn a_thread_is_told_that_it_is_the_quota() {
    let lab = limited!();
    let guarded = Guarded::new(&lab, env!("CARGO_BIN_EXE_systx-e2e-threads"));
    let (mut child, mut out) = started(guarded.program("quota", 0));
    for _ in 0..2 {
        assert_eq!(line(&mut out), "ready");
        lab.fill(0);
        tell(&mut child);
        assert_eq!(line(&mut out), "refused");
        assert_eq!(lab.read("guarded/a"), "before");
        lab.make_room();
        tell(&mut child);
    }
    assert_eq!(line(&mut out), "ok");
    assert!(child.wait().unwrap().success());
}

/// Everything that a commit does, in little room: new files and directories, one that is staged,
/// pages, names, attributes.
const PREPARE: &str = "rm -rf w; mkdir w; cd w; for i in $(seq 30); do echo old $i > old.$i; done; mkdir sub; echo s > sub/s; \
    head -c 300000 /dev/zero | tr '\\0' p > pages; echo same > same; ln same hard";
const WORK: &str = "set -e; cd w; mkdir new; for i in $(seq 40); do echo new $i > new/$i; done; head -c 400000 /dev/zero | tr '\\0' s > staged; \
    for i in $(seq 10); do echo changed > old.$i; done; for i in $(seq 11 20); do mv old.$i sub/moved.$i; done; rm old.2?; \
    printf X | dd of=pages bs=1 seek=100000 conv=notrunc 2>/dev/null; mv sub renamed; ln same third; chmod 700 renamed; echo more >> same";

#[test]
fn a_commit_is_whole_or_refused_whatever_a_quota_leaves() {
    let lab = limited!();
    lab.native(PREPARE).ok();
    let before = Tree::capture(lab.path("w"));
    lab.native(WORK).ok();
    let after = Tree::capture(lab.path("w"));
    lab.native(PREPARE).ok();
    lab.run(&[], "echo first > first").ok();
    let mut committed = Vec::new();
    for leave in [0, 1, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64] {
        lab.fill(leave << 17);
        let done = lab.run(&[], WORK);
        let found = Tree::capture(lab.path("w"));
        let what = format!("{} KiB left: {done}\n{}", leave << 7, lab.daemon_log());
        assert!(!lab.daemon_log().contains("the store stops"), "{what}");
        if done.code == 0 {
            after.assert_same(&found, &what);
            committed.push(leave);
            // There may be room for the way back or not.
            let undo = lab.do_systx(["undo"]);
            if undo.code != 0 {
                refused(undo);
                after.assert_same(&Tree::capture(lab.path("w")), &what);
                lab.make_room();
                lab.do_systx(["undo"]).ok();
            }
            before.assert_same(&Tree::capture(lab.path("w")), &what);
        } else {
            assert!(done.err.to_lowercase().contains("quota exceeded"), "{what}");
            before.assert_same(&found, &what);
        }
        if lab.has("fill") {
            lab.make_room();
        }
        lab.do_systx(["gc", "--keep", "0"]);
    }
    assert!(!committed.contains(&0) && committed.contains(&64), "{committed:?}");
}

/// The call that makes a record durable.
const RECORD: &str = "pwritev2";

/// A run that the daemon does not survive: it dies at its `n`-th call from the record on.  Returns
/// the calls.
fn die(lab: &Lab, n: Option<usize>) -> Vec<&'static str> {
    let fifo = |name: &str| lab.outside().join(name);
    let [done, go] = ["done", "go"].map(fifo);
    let script =
        format!("({WORK}) || exit 9; echo > {}; read -r _ < {}", done.display(), go.display());
    let open = |path: &Path| fs::File::options().read(true).write(true).open(path).unwrap();
    let (done, mut go) = (open(&done), open(&go));
    let mut run =
        Running::start(lab.systx(["run", "-q", "--", "sh", "-c", &script]), Limits::default());
    let mut line = String::new();
    assert!(wait_readable(&done, Instant::now() + HANG) || run.ended());
    BufReader::new(&done).read_line(&mut line).unwrap();
    let daemon = i32::try_from(one(lab.daemons())).unwrap();
    // What the commit before has left to be done is no part of this one.
    wait_until_closed(&lab.root().join(".systx"));
    let stop = Stop::from_call(rustix::process::Pid::from_raw(daemon).unwrap(), RECORD, n);
    go.write_all(b"\n").unwrap();
    run.finish(lab);
    if n.is_none() {
        // Also what follows the answer: until the journal has let go of it.
        lab.do_systx(["log"]).ok();
    }
    lab.kill_daemon();
    stop.wait()
}

#[test]
fn recovery_finishes_what_was_decided_at_the_limit() {
    let lab = limited!();
    lab.native(&format!("{PREPARE}; mkfifo {0}/done {0}/go", lab.outside().display())).ok();
    let before = Tree::capture(lab.path("w"));
    lab.native(WORK).ok();
    let after = Tree::capture(lab.path("w"));
    let prepare = || {
        lab.native(PREPARE).ok();
        lab.left_of_quota();
    };
    prepare();
    lab.run(&[], "echo first > first").ok();
    let all = die(&lab, None);
    prepare();
    assert!(all.len() > 20, "{all:?}");
    // The record is the first.
    let some = [1, 2, 3, 11, all.len() * 3 / 4, all.len()];
    let mut finished = 0;
    for n in some {
        lab.run(&[], "echo another > first").ok();
        die(&lab, Some(n));
        lab.fill(0);
        let recovered = lab.do_systx(["recover"]);
        let found = Tree::capture(lab.path("w"));
        let what = format!("killed at call {n} of {all:?}\n{recovered}");
        assert_eq!(recovered.code, 0, "{what}");
        if !found.differences(&after).is_empty() {
            before.assert_same(&found, &what);
            assert_eq!(n, 1, "{what}");
        } else {
            finished += 1;
        }
        lab.make_room();
        lab.run(&[], "echo goes on > first").ok();
        prepare();
    }
    assert!(finished >= some.len() - 2, "{finished}");
}

#[test]
fn a_guarded_directory_comes_back_at_the_limit() {
    let lab = limited!();
    lab.write("g/file", "old\n");
    lab.do_systx(["mount", "g"]).ok();
    lab.run(&[], "echo new > g/file; echo made > g/made").ok();
    lab.fill(0);
    lab.kill_and_come_back();
    assert_eq!(lab.native("cat g/file g/made").ok().out, "new\nmade\n");
    refused(lab.run(&[], "echo again > g/file"));
    // What is in the way can be removed in there.
    lab.make_room();
    lab.run(&[], "echo again > g/file").ok();
    assert_eq!(lab.native("cat g/file g/made").ok().out, "again\nmade\n");
}

/// Nothing can be moved into it from the store of the mount that it is in.
#[test]
fn a_subvolume_that_is_not_mounted_by_itself_is_refused_by_name() {
    let lab = limited!();
    lab.native("btrfs subvolume create inner >/dev/null && mkdir inner/g").ok();
    let inner = lab.path("inner");
    for arguments in [&["run", "--", "true"][..], &["mount", "g"], &["begin", "g"]] {
        let mut command = lab.systx(arguments);
        command.current_dir(&inner);
        let refused = finish(command, Limits::default(), &lab);
        assert_ne!(refused.code, 0, "{refused}");
        refused.says("a subvolume").says("not mounted by itself");
    }
    // Beside it everything goes on.
    lab.run(&[], "echo new > file").ok();
    lab.native("btrfs subvolume delete inner >/dev/null").ok();
}
