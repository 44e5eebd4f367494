//! Signals, to others and from others; and the races of handlers.

use crate::{begin, read};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Barrier, OnceLock};
use systx::Flags;
use systx_e2e::signals::{self, raise, seen};

/// A program that tells which signals come, until the last one, which the kernel gives after all
/// others.
pub fn listen() {
    let last = signals::real_time(9);
    let all = [libc::SIGUSR1, libc::SIGUSR2, signals::real_time(1), signals::real_time(2), last];
    signals::block(&all);
    println!("ready");
    loop {
        let (signal, value) = signals::wait_for(&all);
        if signal == last {
            return;
        }
        println!("{signal} {value}");
    }
}

pub fn listener(dir: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new("/proc/self/exe");
    let mut child = child.arg("listen").arg(dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, out)
}

/// All that it told.
pub fn heard(mut child: Child, mut out: BufReader<ChildStdout>) -> Vec<String> {
    signals::queue(child.id(), signals::real_time(9), 0).unwrap();
    let mut all = String::new();
    out.read_to_string(&mut all).unwrap();
    assert!(child.wait().unwrap().success());
    all.lines().filter(|line| *line != "ok").map(str::to_owned).collect()
}

/// Signals to others wait for the commit.
pub fn held(dir: &Path) {
    let (one, two) = (signals::real_time(1), signals::real_time(2));
    let flags = Flags::SIGNALS_HELD | Flags::DESCRIPTORS;
    let kill = |child: &Child, signal| {
        let pid = rustix::process::Pid::from_child(child);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    for commit in [true, false] {
        let (child, out) = listener(dir);
        let tx = systx::begin(dir, flags).unwrap();
        let pid = child.id();
        for value in 1..=5 {
            signals::queue(pid, one, value).unwrap();
        }
        signals::send_by_pidfd(pid, two);
        kill(&child, libc::SIGUSR1);
        // One that is not sent in the transaction comes first.
        let id = systx::xpause().unwrap();
        signals::queue(pid, one, 100).unwrap();
        systx::xresume(id).unwrap();
        // What cannot be sent is told at once.
        assert_eq!(signals::queue(0x3fff_fff0, libc::SIGUSR1, 1), Err(libc::ESRCH));
        if commit {
            tx.commit().unwrap();
        } else {
            tx.abort().unwrap();
        }
        let told = heard(child, out);
        let position = |what: &str| told.iter().position(|line| line == what);
        let ones: Vec<_> =
            told.iter().filter(|line| line.starts_with(&format!("{one} "))).cloned().collect();
        let all = [100, 1, 2, 3, 4, 5].map(|value| format!("{one} {value}"));
        if commit {
            assert_eq!(ones, all);
            assert!(position(&format!("{two} 0")).is_some(), "{told:?}");
            assert!(position(&format!("{} 0", libc::SIGUSR1)).is_some(), "{told:?}");
        } else {
            assert_eq!(told, all[..1]);
        }
    }
    // Those from inside, and the program itself, have theirs at once.
    signals::record_all(&[libc::SIGUSR2]);
    let tx = systx::begin(dir, flags).unwrap();
    let (child, out) = listener(dir);
    kill(&child, libc::SIGUSR1);
    assert_eq!(heard(child, out), [format!("{} 0", libc::SIGUSR1)]);
    raise(libc::SIGUSR2);
    signals::queue(std::process::id(), libc::SIGUSR2, 7).unwrap();
    assert_eq!(seen(), [libc::SIGUSR2, libc::SIGUSR2 + 7000]);
    tx.commit().unwrap();
    // A sibling thread is outside.
    let here = Barrier::new(2);
    let sibling = OnceLock::new();
    std::thread::scope(|s| {
        s.spawn(|| {
            signals::block(&[libc::SIGUSR1, one]);
            sibling.get_or_init(signals::Thread::this);
            here.wait();
            assert_eq!(signals::wait_for(&[libc::SIGUSR1, one]).0, one, "sent later, not held");
            here.wait();
            assert_eq!(signals::wait_for(&[libc::SIGUSR1, one]).0, libc::SIGUSR1);
        });
        here.wait();
        let sibling = sibling.get().unwrap();
        let tx = systx::begin(dir, flags).unwrap();
        sibling.send(libc::SIGUSR1);
        let id = systx::xpause().unwrap();
        sibling.send(one);
        systx::xresume(id).unwrap();
        here.wait();
        tx.commit().unwrap();
    });
}

/// Signals that come in wait for the end, in their order, and none is lost.
pub fn deferred(dir: &Path) {
    let [a, b, c] = [libc::SIGUSR2, libc::SIGUSR1, signals::real_time(1)];
    signals::record_all(&[a, b, c]);
    let me = std::process::id();
    for commit in [true, false] {
        let tx = systx::begin(dir, Flags::SIGNALS_DEFERRED).unwrap();
        raise(a);
        raise(b);
        signals::queue(me, c, 1).unwrap();
        raise(a);
        signals::queue(me, c, 2).unwrap();
        // A handler that is set inside, too.
        signals::record_all(&[libc::SIGALRM, b]);
        raise(libc::SIGALRM);
        fs::write(dir.join("a"), "a").unwrap();
        // In a pause the transaction is still open.
        let id = systx::xpause().unwrap();
        raise(b);
        systx::xresume(id).unwrap();
        assert!(seen().is_empty());
        if commit {
            tx.commit().unwrap();
        } else {
            tx.abort().unwrap();
        }
        assert_eq!(seen(), [a, b, c + 1000, a, c + 2000, libc::SIGALRM, b]);
        raise(b);
        assert_eq!(seen(), [b], "as ever outside");
    }
    // More than there is room for; from another process.
    let tx = systx::begin(dir, Flags::SIGNALS_DEFERRED).unwrap();
    (1..=600).for_each(|value| signals::queue(me, c, value).unwrap());
    assert!(seen().is_empty());
    tx.commit().unwrap();
    assert_eq!(seen(), (1..=600).map(|value| c + 1000 * value).collect::<Vec<_>>());
    // A sibling takes its own while this thread does not.
    std::thread::scope(|s| {
        let tx = systx::begin(dir, Flags::SIGNALS_DEFERRED).unwrap();
        s.spawn(|| {
            raise(a);
            assert_eq!(seen(), [a]);
        })
        .join()
        .unwrap();
        tx.commit().unwrap();
        assert!(seen().is_empty());
    });
    // Those that end a program do so afterwards, and those that cannot be deferred at once.
    for (signal, kept) in [(libc::SIGTERM, "kept"), (libc::SIGKILL, "")] {
        use std::os::unix::process::ExitStatusExt;
        let ended = dir.join("ended");
        fs::write(&ended, "").unwrap();
        let mut child = Command::new("/proc/self/exe");
        let child = child.arg("ended").arg(dir).env("SIGNAL", signal.to_string()).status().unwrap();
        assert_eq!((child.signal(), read(&ended).as_str()), (Some(signal), kept));
    }
}

pub fn ended(dir: &Path) {
    let signal = std::env::var("SIGNAL").unwrap().parse().unwrap();
    if signal != libc::SIGKILL {
        signals::default(signal);
    }
    let tx = systx::begin(dir, Flags::SIGNALS_DEFERRED).unwrap();
    raise(signal);
    fs::write(dir.join("ended"), "kept").unwrap();
    tx.commit().unwrap();
    panic!("still here");
}

/// Signals that are taken at once come again after an abort.
pub fn speculative(dir: &Path) {
    let [a, b] = [libc::SIGUSR2, libc::SIGUSR1];
    signals::record_all(&[a, b]);
    for commit in [true, false] {
        let tx = systx::begin(dir, Flags::SIGNALS_SPECULATIVE).unwrap();
        raise(a);
        raise(b);
        assert_eq!(seen(), [a, b]);
        if commit {
            tx.commit().unwrap();
            assert!(seen().is_empty());
        } else {
            tx.abort().unwrap();
            assert_eq!(seen(), [a, b]);
        }
    }
}

/// How often signals of [`flooded`] were handled: from the side, and of the thread itself.
static FLOOD: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

extern "C" fn from_the_side(_: i32) {
    FLOOD[0].fetch_add(1, Ordering::SeqCst);
}

extern "C" fn of_itself(_: i32) {
    FLOOD[1].fetch_add(1, Ordering::SeqCst);
}

/// Each signal is noted down once, also where one comes while another is being noted down: after an
/// abort all that were taken at once come again, and deferred ones come.
pub fn flooded(dir: &Path) {
    const EACH: i32 = 100;
    let [side, own] = [signals::real_time(1), signals::real_time(2)];
    signals::on(side, from_the_side);
    signals::on(own, of_itself);
    let me = signals::Thread::this();
    for round in 0..1000 {
        let (flags, times) = match round % 2 {
            0 => (Flags::SIGNALS_SPECULATIVE, 2),
            _ => (Flags::SIGNALS_DEFERRED, 1),
        };
        let tx = systx::begin(dir, flags).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| (0..EACH).for_each(|_| me.send(side)));
            (0..EACH).for_each(|_| raise(own));
        });
        tx.abort().unwrap();
        let handled = [0, 1].map(|n| FLOOD[n].swap(0, Ordering::SeqCst));
        assert_eq!(handled, [times * EACH; 2], "round {round}, {flags:?}");
    }
}

/// Programs block and wait for signals as ever, SIGSYS among them.
pub fn masks(dir: &Path) {
    signals::record_all(&[libc::SIGUSR1]);
    let tx = begin(dir);
    signals::with_all_blocked(|| {
        fs::write(dir.join("a"), "blocked").unwrap();
        raise(libc::SIGUSR1);
        assert!(seen().is_empty());
    });
    assert_eq!(seen(), [libc::SIGUSR1]);
    signals::waits_with_masks(libc::SIGUSR1);
    assert_eq!(seen(), [libc::SIGUSR1; 3]);
    tx.commit().unwrap();
    assert_eq!(read(dir.join("a")), "blocked");
}

/// How often [`wide`] came to its end.
static WIDE: AtomicI32 = AtomicI32::new(0);

/// A handler for the ordinary stack, with calls of its own.
extern "C" fn wide(_: i32) {
    let mut room = [1_u8; 64 << 10];
    std::hint::black_box(&mut room);
    let path = PLACE.get().unwrap().join("wide");
    fs::write(path, "x".repeat(usize::from(room[room.len() / 2]))).unwrap();
    WIDE.fetch_add(1, Ordering::SeqCst);
}

/// While a call waits, handlers have the room that they have elsewhere, though the thread has an
/// alternate stack of a few pages, as a Rust program does. Which it has again afterwards.
pub fn room(dir: &Path) {
    PLACE.set(dir.to_owned()).unwrap();
    let before = signals::alternate_stack();
    assert!(before.is_some_and(|(_, size)| size < 32 << 10), "nothing to show: {before:?}");
    signals::on(libc::SIGUSR1, wide);
    for (round, commit) in [true, false, true].into_iter().enumerate() {
        let tx = begin(dir);
        signals::waits_with_masks(libc::SIGUSR1);
        assert_eq!(WIDE.swap(0, Ordering::SeqCst), 3, "round {round}");
        let id = systx::xpause().unwrap();
        assert_eq!(signals::alternate_stack(), before, "in a pause");
        systx::xresume(id).unwrap();
        if commit {
            tx.commit().unwrap();
        } else {
            tx.abort().unwrap();
        }
        assert_eq!(signals::alternate_stack(), before, "round {round}");
    }
    assert_eq!(read(dir.join("wide")), "x");
}

/// Where the handlers below work, and whether in a transaction.
static PLACE: OnceLock<PathBuf> = OnceLock::new();
static WRAPPED: AtomicBool = AtomicBool::new(false);
/// What is allocated: 1 from the allocation to the release.
static ALLOCATED: AtomicI32 = AtomicI32::new(0);
static POINTER: AtomicBool = AtomicBool::new(false);

fn in_handler(work: impl FnOnce()) {
    if !WRAPPED.load(Ordering::SeqCst) {
        return work();
    }
    let tx = systx::begin(PLACE.get().unwrap(), Flags::SIGNALS_DEFERRED).unwrap();
    work();
    tx.commit().unwrap();
}

/// As in a mail server once: it says why it ends, and frees what it has. While it says so, the
/// other signal comes.
extern "C" fn say_and_free(signal: i32) {
    in_handler(|| {
        let log = PLACE.get().unwrap().join("log");
        let mut log = File::options().append(true).create(true).open(log).unwrap();
        writeln!(log, "signal {signal}").unwrap();
        if POINTER.load(Ordering::SeqCst) {
            ALLOCATED.fetch_sub(1, Ordering::SeqCst);
            if signal == libc::SIGHUP {
                raise(libc::SIGTERM);
            }
            POINTER.store(false, Ordering::SeqCst);
        }
    });
}

/// The same handler for two signals, entered again between free() and the note that it was freed.
pub fn freed_twice(dir: &Path) {
    PLACE.set(dir.to_owned()).unwrap();
    signals::on(libc::SIGHUP, say_and_free);
    signals::on(libc::SIGTERM, say_and_free);
    for (wrapped, left) in [(false, -1), (true, 0)] {
        WRAPPED.store(wrapped, Ordering::SeqCst);
        ALLOCATED.store(1, Ordering::SeqCst);
        POINTER.store(true, Ordering::SeqCst);
        raise(libc::SIGHUP);
        assert_eq!(ALLOCATED.load(Ordering::SeqCst), left, "wrapped: {wrapped}");
        assert_eq!(read(dir.join("log")).lines().count(), 2, "both were handled");
        fs::remove_file(dir.join("log")).unwrap();
    }
}

/// As in a terminal multiplexer once: a handler that takes a socket's name away and gives its file
/// another owner, in two steps. In between somebody else looks, and the other handler.
extern "C" fn two_steps(_: i32) {
    in_handler(|| {
        let place = PLACE.get().unwrap();
        fs::write(place.join("owner"), "user").unwrap();
        LOOK.0.wait();
        LOOK.1.wait();
        raise(libc::SIGUSR2);
        fs::write(place.join("mode"), "user").unwrap();
    });
}

extern "C" fn act(_: i32) {
    in_handler(|| {
        let place = PLACE.get().unwrap();
        let seen = (read(place.join("owner")), read(place.join("mode")));
        TORN.store(seen.0 != seen.1, Ordering::SeqCst);
    });
}

static LOOK: std::sync::LazyLock<(Barrier, Barrier)> =
    std::sync::LazyLock::new(|| (Barrier::new(2), Barrier::new(2)));
static TORN: AtomicBool = AtomicBool::new(false);

/// A handler that is not atomic: neither for another handler, which sigaction(2) could mend, nor
/// for another thread.
pub fn half_done(dir: &Path) {
    PLACE.set(dir.to_owned()).unwrap();
    signals::on(libc::SIGUSR1, two_steps);
    signals::on(libc::SIGUSR2, act);
    for wrapped in [false, true] {
        WRAPPED.store(wrapped, Ordering::SeqCst);
        for name in ["owner", "mode"] {
            fs::write(dir.join(name), "root").unwrap();
        }
        TORN.store(true, Ordering::SeqCst);
        let torn = std::thread::scope(|s| {
            let other = s.spawn(|| {
                signals::block(&[libc::SIGUSR1, libc::SIGUSR2]);
                LOOK.0.wait();
                let torn = read(dir.join("owner")) != read(dir.join("mode"));
                LOOK.1.wait();
                torn
            });
            raise(libc::SIGUSR1);
            other.join().unwrap()
        });
        let both = (torn, TORN.load(Ordering::SeqCst));
        assert_eq!(both, (!wrapped, !wrapped), "seen by another thread, and by another handler");
        assert_eq!(
            (read(dir.join("owner")), read(dir.join("mode"))),
            ("user".into(), "user".into())
        );
    }
}
