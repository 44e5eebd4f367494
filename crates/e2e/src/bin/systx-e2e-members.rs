//! A program whose transactions others take part in, threads and processes, for the suite
//! `members`: each case is checked here, where it happens, and ends with a panic if something is
//! wrong.
//!
//! `systx-e2e-members CASE DIR`, with DIR guarded and empty.

#![deny(unsafe_code)]

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;
use systx::{Flags, State};
use systx_e2e::cases::{Asked, asked, errno, eventually, outside, read};

const PLAIN: Flags = Flags::from_bits(0);

fn main() {
    let Asked { case, dir, .. } = asked();
    let dir = dir.as_path();
    match case.as_str() {
        "children" => children(dir),
        "orphans" => orphans(dir),
        "impatient" => impatient(dir),
        "killed" => killed(dir),
        "killed-late" => killed_late(dir),
        "threads" => threads(dir),
        "paused" => paused(dir),
        "aborted" => aborted(dir),
        "left" => left(dir),
        other => panic!("no case {other}"),
    }
    println!("ok");
}

/// A shell in the directory, which says that it is there before it goes on.
fn shell(dir: &Path, script: &str) -> (Child, ChildStdin) {
    let script = format!("echo here; {script}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(dir);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    let stdin = child.stdin.take().unwrap();
    (child, stdin)
}

/// Ends the transaction of this thread; `then` is done by a thread that is in none, once the end
/// waits.
fn end_and_meanwhile(
    begin: impl FnOnce() -> ChildStdin,
    then: impl FnOnce(ChildStdin) + Send,
) -> io::Result<()> {
    let tid = rustix::thread::gettid().as_raw_nonzero();
    let waits = move || {
        let call = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap();
        // ioctl(2), by which the end is asked for.
        call.starts_with("16 ")
    };
    let (say, hear) = mpsc::channel();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        // Made before the transaction begins.
        let done = &done;
        s.spawn(move || {
            let stdin = hear.recv().unwrap();
            // Not the begin, which is over.
            eventually("the end waits, or is over", || waits() || done.load(SeqCst));
            then(stdin);
        });
        say.send(begin()).unwrap();
        let ended = systx::xend();
        done.store(true, SeqCst);
        ended
    })
}

/// The end waits for a child that has something left to do.
fn children(dir: &Path) {
    let mut child = None;
    let begin = || {
        systx::xbegin(Some(dir), PLAIN).unwrap();
        let (started, stdin) = shell(dir, "read line; echo $line > answer");
        child = Some(started);
        stdin
    };
    let go_on = |mut stdin: ChildStdin| stdin.write_all(b"done\n").unwrap();
    end_and_meanwhile(begin, go_on).unwrap();
    assert_eq!(read(dir.join("answer")), "done\n");
    assert!(child.unwrap().wait().unwrap().success());
    assert_eq!(systx::xstatus().unwrap().state, State::Committed);
}

/// The same for a process whose parent has ended, and that is nobody's child here any more.
fn orphans(dir: &Path) {
    let begin = || {
        systx::xbegin(Some(dir), PLAIN).unwrap();
        let script = "exec 3<&0; { read line <&3; echo $line > answer; } &";
        let (mut child, stdin) = shell(dir, script);
        assert!(child.wait().unwrap().success());
        stdin
    };
    let go_on = |mut stdin: ChildStdin| stdin.write_all(b"done\n").unwrap();
    end_and_meanwhile(begin, go_on).unwrap();
    assert_eq!(read(dir.join("answer")), "done\n");
}

/// Who does not want to wait longer, or at all, has the transaction still open, and is told whom it
/// waits for.
fn impatient(dir: &Path) {
    for flags in [PLAIN, Flags::NONBLOCK] {
        let answer = dir.join("answer");
        let _ = fs::remove_file(&answer);
        eventually("it begins", || systx::xbegin(Some(dir), flags).is_ok());
        let (mut child, mut stdin) = shell(dir, "read line; echo $line > answer");
        let long = flags == PLAIN;
        systx::set_patience(Duration::from_millis(if long { 300 } else { 1 << 30 }));
        let want = if long { libc::ETIMEDOUT } else { libc::EBUSY };
        assert_eq!(errno(systx::xend()), Some(want));
        let status = systx::xstatus().unwrap();
        let name = format!("process {} (sh)", child.id());
        assert!(status.state == State::Open && status.words.contains(&name), "{status:?}");
        stdin.write_all(b"done\n").unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!((read(&answer), outside(&answer)), ("done\n".into(), None));
        systx::set_patience(Duration::from_secs(60));
        systx::xend().unwrap();
        assert_eq!(outside(&answer).as_deref(), Some("done\n"));
    }
}

/// Whether the kernel remembers how a process ended that its parent has waited for.
fn remembers() -> bool {
    systx_e2e::kernel_is(6, 15)
}

/// A process that was killed has the transaction dropped; one that failed has not.
fn killed(dir: &Path) {
    let file = dir.join("file");
    for (script, wait, commits) in [
        ("echo x > file; kill -KILL $$", true, false),
        ("echo x > file; kill -KILL $$", false, false),
        ("echo x > file; kill -SEGV $$", true, false),
        ("echo x > file; exit 3", true, true),
        ("echo x > file; kill -PIPE $$", true, true),
    ] {
        if wait && !commits && !remembers() {
            continue;
        }
        systx::xbegin(Some(dir), PLAIN).unwrap();
        let (mut child, _stdin) = shell(dir, script);
        if wait {
            child.wait().unwrap();
        } else {
            eventually("it is dead", || {
                let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
                stat.contains(") Z ")
            });
        }
        let ended = errno(systx::xend());
        let status = systx::xstatus().unwrap();
        if commits {
            assert_eq!(
                (ended, status.state, read(&file)),
                (None, State::Committed, "x\n".into()),
                "{script}"
            );
            fs::remove_file(&file).unwrap();
        } else {
            assert_eq!((ended, status.state), (Some(libc::ECANCELED), State::Aborted), "{script}");
            let told = format!(
                "process {}, which was in the transaction, was killed by signal",
                child.id()
            );
            assert!(status.words.contains(&told), "{status:?}");
            assert!(!file.exists(), "{script}");
        }
        child.wait().unwrap();
    }
}

/// One that is killed while the end waits for it, and is nobody's child.
fn killed_late(dir: &Path) {
    if !remembers() {
        println!("SKIPPED: the kernel does not remember how processes ended");
        return;
    }
    let begin = || {
        systx::xbegin(Some(dir), PLAIN).unwrap();
        fs::write(dir.join("file"), "x").unwrap();
        let script = "exec 3<&0; sh -c 'echo x > half; read line; kill -KILL $$' <&3 &";
        let (mut child, stdin) = shell(dir, script);
        assert!(child.wait().unwrap().success());
        stdin
    };
    let go_on = |mut stdin: ChildStdin| stdin.write_all(b"done\n").unwrap();
    assert_eq!(errno(end_and_meanwhile(begin, go_on)), Some(libc::ECANCELED));
    assert_eq!(systx::xstatus().unwrap().state, State::Aborted);
    assert!(!dir.join("file").exists() && !dir.join("half").exists());
}

/// A thread that was made inside takes part, steps out and in by itself, and the end waits for its
/// end.
fn threads(dir: &Path) {
    let (a, late) = (dir.join("a"), dir.join("late"));
    fs::write(&a, "plain").unwrap();
    let tid = rustix::thread::gettid().as_raw_nonzero();
    systx::xbegin(Some(dir), PLAIN).unwrap();
    let id = systx::xid();
    fs::write(&a, "inside").unwrap();
    std::thread::scope(|s| {
        let (stepped, go_on) = (mpsc::channel(), mpsc::channel());
        let (a, late) = (&a, &late);
        s.spawn(move || {
            assert_eq!((systx::xid(), read(a)), (id, "inside".into()));
            assert_eq!(errno(systx::xresume(id)), Some(libc::EINVAL), "it is inside");
            assert_eq!(systx::xpause().unwrap(), id);
            assert_eq!(read(a), "plain");
            assert_eq!(errno(systx::xpause()), Some(libc::EINVAL));
            assert_eq!(errno(systx::xbegin(None, PLAIN)), Some(libc::EBUSY));
            assert_eq!(errno(systx::xresume(id + 1)), Some(libc::EPERM));
            systx::xresume(id).unwrap();
            assert_eq!(read(a), "inside");
            // Neither its pause nor its end is that of others.
            assert_eq!(errno(systx::xend()), Some(libc::EPERM));
            assert_eq!(errno(systx::xabort()), Some(libc::EPERM));
            stepped.0.send(()).unwrap();
            go_on.1.recv().unwrap();
            eventually("the end waits", || {
                let call = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap();
                call.starts_with("16 ")
            });
            fs::write(late, "late").unwrap();
        });
        stepped.1.recv().unwrap();
        assert_eq!(read(a), "inside", "only that thread was outside");
        go_on.0.send(()).unwrap();
        systx::xend().unwrap();
    });
    assert_eq!((read(&a), read(&late)), ("inside".into(), "late".into()));
}

/// A thread that has stepped out is not waited for, and cannot go back after the end; it has its
/// own transactions then.
fn paused(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "plain").unwrap();
    systx::xbegin(Some(dir), PLAIN).unwrap();
    fs::write(&a, "inside").unwrap();
    std::thread::scope(|s| {
        let (out, over) = (mpsc::channel(), mpsc::channel());
        let a = &a;
        s.spawn(move || {
            let id = systx::xpause().unwrap();
            out.0.send(()).unwrap();
            over.1.recv().unwrap();
            assert_eq!(systx::xstatus().unwrap().state, State::Committed);
            assert_eq!(errno(systx::xresume(id)), Some(libc::ECANCELED));
            assert_eq!(read(a), "inside");
            let tx = systx::begin(dir, PLAIN).unwrap();
            fs::write(a, "of its own").unwrap();
            assert_eq!(outside(a).as_deref(), Some("inside"));
            tx.commit().unwrap();
        });
        out.1.recv().unwrap();
        systx::xend().unwrap();
        over.0.send(()).unwrap();
    });
    assert_eq!(read(&a), "of its own");
}

/// An abort waits for nobody. A thread that is still inside is told how it gets out, and is not in
/// the next transaction.
fn aborted(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "plain").unwrap();
    systx::xbegin(Some(dir), PLAIN).unwrap();
    std::thread::scope(|s| {
        let (inside, over) = (mpsc::channel(), mpsc::channel());
        let a = &a;
        let thread = s.spawn(move || {
            assert_eq!(read(a), "plain");
            inside.0.send(()).unwrap();
            over.1.recv().unwrap();
            assert_eq!(errno(fs::write(a, "of nobody")), Some(libc::ECANCELED));
            assert_eq!(errno(systx::xbegin(Some(dir), PLAIN)), Some(libc::ECANCELED));
            let status = systx::xstatus().unwrap();
            assert!(
                status.state == State::Aborted && status.words.contains("xpause()"),
                "{status:?}"
            );
            let id = systx::xpause().unwrap();
            assert_eq!(read(a), "plain");
            assert_eq!(errno(systx::xresume(id)), Some(libc::ECANCELED));
            systx::begin(dir, PLAIN).unwrap().commit().unwrap();
        });
        inside.1.recv().unwrap();
        systx::xabort().unwrap();
        let tx = systx::begin(dir, PLAIN).unwrap();
        over.0.send(()).unwrap();
        thread.join().unwrap();
        fs::write(a, "next").unwrap();
        tx.commit().unwrap();
    });
    assert_eq!(read(&a), "next");
}

/// A process that is left behind by a lost transaction is not in the next attempt, which is as old
/// as ever.
fn left(dir: &Path) {
    let (a, late) = (dir.join("a"), dir.join("late"));
    fs::write(&a, "plain").unwrap();
    systx::xbegin(Some(dir), PLAIN).unwrap();
    assert_eq!(read(&a), "plain");
    let (mut child, mut stdin) = shell(dir, "read line; echo $line > late");
    let id = systx::xpause().unwrap();
    fs::write(&a, "from outside").unwrap();
    systx::xresume(id).unwrap();
    assert_eq!(errno(systx::xend()), Some(libc::ECANCELED));
    systx::xbegin(Some(dir), Flags::RETRY).unwrap();
    assert_eq!(systx::xstatus().unwrap().retries, 1);
    assert_eq!(read(&a), "from outside");
    stdin.write_all(b"late\n").unwrap();
    assert!(!child.wait().unwrap().success(), "it cannot write there any more");
    systx::xend().unwrap();
    assert!(!late.exists());
}
