//! Processes that are made inside: what they do before they execute a program is intercepted, too.

use crate::{at, begin, errno, next, open, outside, put, read};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use systx::{Flags, State};
use systx_e2e::processes::{Made, copied, fork, lent, shell};
use systx_e2e::signals::{self, raise, seen};

/// A way to make a process.
type Way = fn(&mut dyn FnMut() -> i32) -> Made;
const WAYS: [Way; 3] = [fork, copied, lent];

fn ok(status: ExitStatus) {
    assert!(status.success(), "{status}");
}

/// Whatever way a process is made, files that the program has open, and the process does not use,
/// are nothing to the transaction.
pub fn others(dir: &Path) {
    let (ours, theirs) = (dir.join("ours"), dir.join("theirs"));
    fs::write(&theirs, "").unwrap();
    let plain = open(&theirs);
    for (n, way) in WAYS.iter().enumerate() {
        fs::write(&ours, "before").unwrap();
        let file = open(&ours);
        let tx = begin(dir);
        ok(way(&mut || file.write_at(b"inside", 0).map_or(1, |_| 0)).wait());
        ok(way(&mut || shell(c"exit 0")).wait());
        ok(Command::new("true").status().unwrap());
        assert_eq!((read(&ours), outside(&ours).as_deref()), ("inside".into(), Some("before")));
        // It grows outside, by the very descriptor.
        let id = systx::xpause().unwrap();
        plain.write_at(b"plain", 5 * n as u64).unwrap();
        systx::xresume(id).unwrap();
        ok(way(&mut || shell(c"exit 0")).wait());
        tx.commit().unwrap();
        assert_eq!((read(&ours), read(&theirs)), ("inside".into(), "plain".repeat(n + 1)));
    }
}

/// An open file has one offset, in whichever process it is used first.
pub fn offsets(dir: &Path) {
    let a = dir.join("a");
    for (way, commit) in WAYS.iter().flat_map(|way| [(way, true), (way, false)]) {
        fs::write(&a, "").unwrap();
        let file = open(&a);
        let (mut go, mut says) = (io::pipe().unwrap(), io::pipe().unwrap());
        let tx = begin(dir);
        // One that was made before anybody used it, and goes on afterwards.
        let early = fork(&mut || {
            let told = go.0.read_exact(&mut [0]).is_ok();
            put(&file, "three ");
            i32::from(!told || says.1.write_all(b"x").is_err())
        });
        let mut to = &file;
        ok(way(&mut || to.write_all(b"one ").map_or(1, |()| 0)).wait());
        put(&file, "two ");
        go.1.write_all(b"x").unwrap();
        ok(early.wait());
        says.0.read_exact(&mut [0]).unwrap();
        // A program, too, by a descriptor that it is given.
        let out = file.try_clone().unwrap();
        ok(Command::new("printf").arg("four ").stdout(out).status().unwrap());
        put(&file, "five");
        assert_eq!(read(&a), "one two three four five");
        assert_eq!((at(&file), outside(&a).as_deref()), (23, Some("")));
        if commit {
            tx.commit().unwrap();
            assert_eq!((read(&a), at(&file)), ("one two three four five".into(), 23));
        } else {
            tx.abort().unwrap();
            assert_eq!((read(&a), at(&file)), (String::new(), 0));
        }
    }
    // Nobody but a program has used it.
    fs::write(&a, "").unwrap();
    let file = open(&a);
    let tx = begin(dir);
    let out = file.try_clone().unwrap();
    ok(Command::new("printf").arg("alone").stdout(out).status().unwrap());
    tx.commit().unwrap();
    assert_eq!((at(&file), read(&a)), (5, "alone".into()));
}

/// What a process does to its own descriptors is nothing to the thread.
pub fn own(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    for way in WAYS {
        fs::write(&a, "0123456789").unwrap();
        fs::write(&b, "b").unwrap();
        let early = open(&a);
        let tx = begin(dir);
        let inside = File::open(&b).unwrap().into_raw_fd();
        ok(way(&mut || {
            // Closed there, and the number is another's.
            let closed = systx_e2e::processes::close(inside);
            let again = open(&b).into_raw_fd();
            let more = open(&b).into_raw_fd();
            i32::from(closed != 0 || again != inside || more == inside || next(&early, 3) != "012")
        })
        .wait());
        assert_eq!(next(&early, 3), "345");
        assert!(crate::is_open(inside));
        tx.abort().unwrap();
        assert!(!crate::is_open(inside), "made inside, by the thread");
        assert_eq!(next(&early, 3), "012");
    }
}

/// What processes send to others waits for the commit.
pub fn sent(dir: &Path) {
    let flags = Flags::SIGNALS_HELD | Flags::DESCRIPTORS;
    signals::record_all(&[libc::SIGUSR2]);
    let one = signals::real_time(1);
    for (way, commit) in WAYS.iter().flat_map(|way| [(way, true), (way, false)]) {
        let (child, out) = crate::sent::listener(dir);
        let pid = child.id();
        let tx = systx::begin(dir, flags).unwrap();
        signals::queue(pid, one, 1).unwrap();
        ok(way(&mut || signals::queue(pid, one, 2).map_or(1, |()| 0)).wait());
        signals::queue(pid, one, 3).unwrap();
        ok(way(&mut || {
            signals::send_by_pidfd(pid, libc::SIGUSR1);
            // The program gets its own at once, and so does the process.
            let program = std::os::unix::process::parent_id();
            signals::queue(program, libc::SIGUSR2, 7).map_or(1, |()| 0)
        })
        .wait());
        assert_eq!(seen(), [libc::SIGUSR2 + 7000]);
        let id = systx::xpause().unwrap();
        signals::queue(pid, one, 100).unwrap();
        systx::xresume(id).unwrap();
        if commit {
            tx.commit().unwrap();
        } else {
            tx.abort().unwrap();
        }
        let told = crate::sent::heard(child, out);
        let ones: Vec<_> =
            told.iter().filter(|line| line.starts_with(&format!("{one} "))).cloned().collect();
        let all = [100, 1, 2, 3].map(|value| format!("{one} {value}"));
        assert_eq!(ones, if commit { &all[..] } else { &all[..1] });
        let other = format!("{} 0", libc::SIGUSR1);
        assert_eq!(told.contains(&other), commit, "{told:?}");
    }
}

/// Handlers are in a process what they are for the program, whatever the thread does with signals.
pub fn handlers(dir: &Path) {
    let a = libc::SIGUSR1;
    signals::record_all(&[a]);
    for way in [fork as Way, copied] {
        let tx = systx::begin(dir, Flags::SIGNALS_DEFERRED).unwrap();
        raise(a);
        ok(way(&mut || {
            raise(a);
            i32::from(seen() != [a])
        })
        .wait());
        assert!(seen().is_empty());
        tx.commit().unwrap();
        assert_eq!(seen(), [a]);
    }
}

/// A call that can neither wait nor be undone is one for the transaction, whoever makes it.
pub fn refused(dir: &Path) {
    let send = || {
        let (left, _right) = std::os::unix::net::UnixStream::pair()?;
        rustix::net::send(&left, b"x", rustix::net::SendFlags::empty()).map_err(io::Error::from)
    };
    for way in WAYS {
        let tx = systx::begin(dir, Flags::UNSUPPORTED_ERROR).unwrap();
        ok(way(&mut || i32::from(errno(send()) != Some(libc::EOPNOTSUPP))).wait());
        tx.commit().unwrap();
        let tx = systx::begin(dir, Flags::UNSUPPORTED_ABORT).unwrap();
        fs::write(dir.join("a"), "never").unwrap();
        ok(way(&mut || i32::from(errno(send()) != Some(libc::ECANCELED))).wait());
        assert_eq!(errno(tx.commit()), Some(libc::ECANCELED));
        assert_eq!(systx::xstatus().unwrap().state, State::Aborted);
        assert!(!dir.join("a").exists());
    }
}

/// A program gets the view's file in the place of an earlier descriptor, in a process that has
/// changed its name before, too.
pub fn programs(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    for way in WAYS {
        fs::write(&a, "outside").unwrap();
        let file = open(&a);
        // Where a program finds it.
        let mut given = std::os::fd::OwnedFd::from(file.try_clone().unwrap());
        assert!(given.as_raw_fd() != 0);
        let stdin = io::stdin();
        let before = rustix::io::dup(&stdin).unwrap();
        rustix::stdio::dup2_stdin(&given).unwrap();
        let tx = begin(dir);
        fs::write(&a, "inside").unwrap();
        ok(way(&mut || {
            if fs::rename(&a, &b).is_err() {
                return 1;
            }
            shell(c"test \"$(cat)\" = inside")
        })
        .wait());
        assert_eq!(next(&file, 9), "", "read to the end");
        put(&file, "!");
        assert_eq!(read(&b), "inside!");
        tx.abort().unwrap();
        rustix::stdio::dup2_stdin(&before).unwrap();
        rustix::io::fcntl_setfd(&mut given, rustix::io::FdFlags::CLOEXEC).unwrap();
    }
}

/// Of a transaction that has lost, processes are made as ever; what they would have had of it they
/// are refused.
pub fn lost(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    for way in WAYS {
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        let file = open(&b);
        let tx = begin(dir);
        assert_eq!(read(&a), "a");
        let id = systx::xpause().unwrap();
        fs::write(&a, "changed").unwrap();
        systx::xresume(id).unwrap();
        ok(way(&mut || i32::from(errno(file.write_at(b"x", 0)) != Some(libc::ECANCELED))).wait());
        ok(way(&mut || shell(c"exit 0")).wait());
        let out = file.try_clone().unwrap();
        let refused = Command::new("true").stdout(Stdio::from(out)).status();
        assert_eq!(errno(refused), Some(libc::ECANCELED));
        assert_eq!(errno(tx.commit()), Some(libc::ECANCELED));
        assert_eq!((read(&a), read(&b)), ("changed".into(), "b".into()));
    }
}
