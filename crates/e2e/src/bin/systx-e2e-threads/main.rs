//! A program with transactions in its threads, for the suite `threads`: each case is checked here,
//! where it happens, and ends with a panic if something is wrong.
//!
//! `systx-e2e-threads CASE DIR`, with DIR guarded and empty. Those of a directory that routes by
//! thread number only are in `routed`.

#![deny(unsafe_code)]

mod driven;
mod held;
mod losing;
mod nesting;
mod quota;
mod routed;
mod special;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use systx::{Flags, State};
use systx_e2e::cases::{Asked, asked, errno, eventually, outside, read};

const SERIALIZABLE: Flags = Flags::from_bits(0);

fn main() {
    let Asked { case, dir, number: rounds } = asked();
    let dir = dir.as_path();
    match case.as_str() {
        "siblings" => siblings(dir),
        "abort" => abort(dir),
        "nesting" => nesting::case(dir),
        "unasked" => nesting::unasked(dir),
        "pause" => pause(dir),
        "children" => children(dir),
        "threads-inside" => threads_inside(dir),
        "death" => death(dir),
        "hang" => hang(dir),
        "daemon" => daemon(dir, rounds),
        "contend" => contend(dir, rounds),
        "read-only" => read_only(dir),
        "conflict" => conflict(dir),
        "nonblock" => nonblock(dir),
        "descriptors" => descriptors(dir),
        "refused" => refused(dir),
        "flat" => flat(dir, rounds, 0),
        "flat-open" => flat(dir, rounds, 3),
        "cwd" => cwd(dir),
        "joined" => joined(dir),
        "way-back" => way_back(dir),
        "told" => told(dir),
        "top" => top(dir),
        "special" => special::case(dir, rounds == 0),
        "relaxed" => relaxed(dir),
        "relaxed-stream" => relaxed_stream(dir),
        "relaxed-failure" => relaxed_failure(dir),
        "quota" => quota::case(dir),
        "driven" => driven::case(dir),
        "held" => held::counted(dir),
        "crowd" => held::crowd(dir),
        "losing" => losing::driven(dir),
        "listed" => losing::listed(dir),
        "counts" => losing::counts(dir, rounds),
        other => routed::case(other, dir),
    }
    println!("ok");
}

/// The next line from whoever drives this.
fn told_to_go_on() {
    io::stdin().lines().next().unwrap().unwrap();
}

fn rewrite(path: &Path, text: &str, flags: Flags) -> io::Result<()> {
    systx::xbegin(path.parent(), flags)?;
    fs::write(path, text)?;
    systx::xend()
}

/// What an end that does not wait for the disk leaves to others, who wait: for a disk that takes
/// nothing for now.
fn relaxed(dir: &Path) {
    let [a, b, c] = ["a", "b", "c"].map(|name| dir.join(name));
    for path in [&a, &b, &c] {
        fs::write(path, "old").unwrap();
        rewrite(path, "before", SERIALIZABLE).unwrap();
    }
    println!("ready");
    told_to_go_on();
    rewrite(&a, "after", Flags::RELAXED).unwrap();
    rewrite(&b, "after", Flags::RELAXED).unwrap();
    assert_eq!(systx::xstatus().unwrap().state, State::Committed);
    println!("committed");
    std::thread::scope(|s| {
        s.spawn(|| {
            assert_eq!(read(&a), "after");
            println!("read");
        });
        s.spawn(|| {
            File::open(dir).unwrap().sync_all().unwrap();
            println!("synced");
        });
        s.spawn(|| {
            rewrite(&c, "after", SERIALIZABLE).unwrap();
            println!("durable");
        });
    });
    assert_eq!(["a", "b", "c"].map(|name| read(dir.join(name))), ["after"; 3]);
}

/// Counts in eight files in turn, every tenth time durably, and says how far it is, until the
/// daemon is gone.
fn relaxed_stream(dir: &Path) {
    let files: Vec<_> = (0..8).map(|n| dir.join(format!("count-{n}"))).collect();
    for file in &files {
        fs::write(file, "0").unwrap();
    }
    for n in 1_u64.. {
        let (flags, word) =
            if n % 10 == 0 { (SERIALIZABLE, "durable") } else { (Flags::RELAXED, "relaxed") };
        if let Err(error) = rewrite(&files[n as usize % files.len()], &n.to_string(), flags) {
            let gone = [libc::ENOTCONN, libc::ECANCELED, libc::ECONNABORTED, libc::EIO];
            assert!(error.raw_os_error().is_some_and(|e| gone.contains(&e)), "{n}: {error}");
            if systx::xid() != 0 {
                systx::xabort().unwrap();
            }
            return;
        }
        println!("{n} {word}");
    }
}

/// A commit that cannot be made durable after its end: told once, by the next begin.
fn relaxed_failure(dir: &Path) {
    let a = dir.join("a");
    println!("ready");
    told_to_go_on();
    rewrite(&a, "after", Flags::RELAXED).unwrap();
    let status = systx::xstatus().unwrap();
    let id = status.id;
    assert_eq!(status.state, State::Committed);
    // Nobody sees anything of it; what became of it is known a moment after that.
    assert_eq!(read(&a), "before");
    eventually("a begin tells of it", || {
        let begun = errno(systx::xbegin(Some(dir), SERIALIZABLE));
        if begun.is_none() {
            systx::xabort().unwrap();
        }
        begun == Some(libc::EIO)
    });
    let status = systx::xstatus().unwrap();
    assert_eq!((status.state, status.id), (State::Failed, id), "{status:?}");
    // Its record could not be written, or could: nobody knows before the next daemon.
    assert!(
        status.words.contains("is not in place") && status.words.contains("in doubt"),
        "{status:?}"
    );
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    systx::xabort().unwrap();
    println!("told");
}

/// What the kernel remembers of the guarded directory itself is not what an earlier transaction
/// saw, whatever that asked for.
fn top(dir: &Path) {
    let look = || {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        let meta = fs::metadata(dir).unwrap();
        (names, meta.mode(), meta.mtime(), meta.mtime_nsec())
    };
    for round in 0..6_u32 {
        fs::write(dir.join(format!("file {round}")), "").unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700 | round)).unwrap();
        let now = look();
        systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
        assert_eq!(look(), now, "round {round}");
        if round % 2 == 0 { systx::xend() } else { systx::xabort() }.unwrap();
        for _ in 0..round % 3 {
            systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
            systx::xend().unwrap();
        }
        assert_eq!(look(), now, "round {round}");
    }
}

/// Says what it is told about those that it loses to, once for each line that it reads.
fn told(dir: &Path) {
    let mut lines = io::stdin().lines();
    println!("ready");
    while let Some(Ok(_)) = lines.next() {
        systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
        // It loses by this, or by what is written then.
        let _ = fs::read(dir.join("a"));
        println!("read");
        lines.next().unwrap().unwrap();
        assert_eq!(errno(systx::xend()), Some(libc::ECANCELED));
        let status = systx::xstatus().unwrap();
        assert_eq!(status.state, State::Lost);
        println!("{} {}", status.opponent, status.words);
    }
}

/// A transaction ends as it is told to, also where the thread cannot go back to its working
/// directory.
fn way_back(dir: &Path) {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let (a, elsewhere) = (dir.join("a"), dir.with_file_name("elsewhere"));
    let bits = |mode| fs::set_permissions(&elsewhere, fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::chown(&elsewhere, Some(12021), Some(12021)).unwrap();
    let mut caps = capabilities(None).unwrap();
    caps.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    set_capabilities(None, caps).unwrap();
    let begin = |text: &str| {
        bits(0o711);
        std::env::set_current_dir(&elsewhere).unwrap();
        systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
        fs::write(&a, text).unwrap();
        bits(0o700);
    };
    begin("committed");
    assert_eq!(errno(systx::xend()), Some(libc::ESTALE));
    assert_eq!((systx::xstatus().unwrap().state, systx::xid()), (State::Committed, 0));
    assert_eq!(std::env::current_dir().unwrap(), Path::new("/"));
    assert_eq!(read(&a), "committed");
    begin("dropped");
    assert_eq!(errno(systx::xabort()), Some(libc::EACCES));
    assert_eq!((systx::xstatus().unwrap().state, systx::xid()), (State::Aborted, 0));
    assert_eq!(read(&a), "committed");
    // The thread is out all the same.
    begin("paused");
    assert_eq!(errno(systx::xpause()), Some(libc::EACCES));
    assert_eq!(read(&a), "committed");
    systx::xresume(systx::xid()).unwrap();
    assert_eq!(read(&a), "paused");
    bits(0o711);
    std::env::set_current_dir(&elsewhere).unwrap();
    systx::xabort().unwrap();
}

/// Nothing shows before the commit to sibling threads, and all of it after; identities are the
/// same.
fn siblings(dir: &Path) {
    let (a, b, new) = (dir.join("a"), dir.join("b"), dir.join("sub/new"));
    fs::write(&a, "old a").unwrap();
    fs::write(&b, "old b").unwrap();
    // The sibling exists before the seat is made, and looks all the time.
    let (begun, done) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            begun.wait();
            let mut seen = Vec::new();
            loop {
                let look = (read(&a), b.exists(), new.exists());
                if done.load(Ordering::SeqCst) {
                    break;
                }
                seen.push(look);
            }
            let before = (String::from("old a"), true, false);
            assert!(seen.iter().all(|s| *s == before), "{seen:?}");
        });
        let ids = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).unwrap();
        let want = (ids(dir), ids(&a));
        begun.wait();
        let tx = systx::begin(dir, SERIALIZABLE).unwrap();
        assert_eq!((ids(dir), ids(&a)), want, "the same inside as outside");
        assert_eq!(read(&a), "old a");
        fs::write(&a, "new a").unwrap();
        fs::remove_file(&b).unwrap();
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(&new, "new").unwrap();
        assert_eq!((read(&a), b.exists(), read(&new)), ("new a".into(), false, "new".into()));
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a", "sub"]);
        assert_eq!(outside(&a).as_deref(), Some("old a"));
        done.store(true, Ordering::SeqCst);
        assert_ne!(tx.id(), 0);
        tx.commit().unwrap();
    });
    assert_eq!((read(&a), b.exists(), read(&new)), ("new a".into(), false, "new".into()));
    assert_eq!(outside(&new).as_deref(), Some("new"));
    assert_eq!(systx::xstatus().unwrap().state, State::Committed);
    assert_eq!(systx::xid(), 0);
}

/// What was dropped is nowhere, and the next transaction of the same thread does not see it.
fn abort(dir: &Path) {
    let (a, made) = (dir.join("a"), dir.join("made"));
    fs::write(&a, "first").unwrap();
    for round in 0..3 {
        let tx = systx::begin(dir, SERIALIZABLE).unwrap();
        assert_eq!(read(&a), "first", "round {round}");
        assert!(!made.exists(), "round {round}");
        fs::write(&a, format!("dropped {round}")).unwrap();
        fs::write(&made, "dropped").unwrap();
        assert_eq!(read(&a), format!("dropped {round}"));
        if round == 1 {
            drop(tx);
        } else {
            tx.abort().unwrap();
        }
        assert_eq!((read(&a), made.exists()), ("first".into(), false));
        // A plain change in between is what the next one sees.
        assert_eq!(systx::xstatus().unwrap().state, State::Aborted);
    }
    fs::write(&a, "second").unwrap();
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    assert_eq!(read(&a), "second");
    tx.commit().unwrap();
}

fn pause(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "plain").unwrap();
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    fs::write(&a, "inside").unwrap();
    let id = systx::xpause().unwrap();
    assert_eq!(id, systx::xid());
    assert_eq!(read(&a), "plain");
    fs::write(dir.join("log"), "written while paused").unwrap();
    assert_eq!(errno(systx::xpause()), Some(libc::EINVAL));
    assert_eq!(errno(systx::xbegin(Some(dir), SERIALIZABLE)), Some(libc::EBUSY));
    assert_eq!(errno(systx::xresume(id + 1)), Some(libc::EPERM));
    let stranger = std::thread::scope(|s| s.spawn(|| errno(systx::xresume(id))).join().unwrap());
    assert_eq!(stranger, Some(libc::EINVAL), "another thread has none");
    systx::xresume(id).unwrap();
    assert_eq!(read(&a), "inside");
    systx::xabort().unwrap();
    assert_eq!((read(&a), read(dir.join("log"))), ("plain".into(), "written while paused".into()));
}

/// A child joins; the transaction does not end before it has.
fn children(dir: &Path) {
    let tx = systx::begin(dir, Flags::NONBLOCK).unwrap();
    fs::write(dir.join("from parent"), "p").unwrap();
    let script =
        "cat 'from parent' > 'from child'; mkdir made; read line; echo $line > made/answer";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    while !dir.join("made").exists() {
        std::thread::yield_now();
    }
    assert_eq!(errno(systx::xend()), Some(libc::EBUSY), "the child is in it");
    assert_eq!(read(dir.join("from child")), "p");
    assert_eq!(outside(&dir.join("from child")), None);
    child.stdin.take().unwrap().write_all(b"done\n").unwrap();
    assert!(child.wait().unwrap().success());
    tx.commit().unwrap();
    assert_eq!(outside(&dir.join("made/answer")).as_deref(), Some("done\n"));
}

/// Threads that are made inside join, too; those that were there before do not.
fn threads_inside(dir: &Path) {
    for round in 0..3 {
        let a = dir.join(format!("a{round}"));
        let tx = systx::begin(dir, SERIALIZABLE).unwrap();
        fs::write(&a, "inside").unwrap();
        let seen = std::thread::scope(|s| s.spawn(|| fs::read_to_string(&a)).join().unwrap());
        assert_eq!(seen.unwrap(), "inside", "made inside");
        assert_eq!(outside(&a), None);
        tx.commit().unwrap();
        assert_eq!(outside(&a).as_deref(), Some("inside"));
    }
}

/// A thread that ends drops what it has open, at once, whichever way it ends.
fn death(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "before").unwrap();
    for _ in 0..20 {
        std::thread::scope(|s| {
            let thread = s.spawn(|| {
                systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
                fs::write(&a, "of a dead thread").unwrap();
            });
            // Also waits for what the thread does at its end.
            thread.join().unwrap();
        });
        assert_eq!(read(&a), "before");
        // Nobody is in the way any more.
        let tx = systx::begin(dir, SERIALIZABLE).unwrap();
        fs::write(&a, "before").unwrap();
        tx.commit().unwrap();
    }
}

/// Waits in a transaction to be killed.
fn hang(dir: &Path) {
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    fs::write(dir.join("a"), "never").unwrap();
    println!("open");
    io::stdout().flush().unwrap();
    let _ = io::stdin().read(&mut [0]);
}

/// The daemon is killed while this thread is inside, once for each way out, from outside of the
/// directory and from within it unless `outside_only`: the thread comes out, is where it was, and
/// the next transaction is as any other.
fn daemon(dir: &Path, outside_only: u64) {
    let start = std::env::current_dir().unwrap();
    let within = if outside_only == 0 { dir } else { &start };
    for (from, ends) in [(start.as_path(), true), (&start, false), (within, true), (within, false)]
    {
        std::env::set_current_dir(from).unwrap();
        systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
        fs::write(dir.join("never"), "never").unwrap();
        println!("open");
        io::stdout().flush().unwrap();
        io::stdin().read_exact(&mut [0]).unwrap();
        // The others: it was on its way when the daemon, or then the connection, ended.
        let ended = [libc::ENOTCONN, libc::ECANCELED, libc::ECONNABORTED].map(Some);
        let gone = errno(fs::write(dir.join("never"), "at all"));
        assert!(ended.contains(&gone), "{gone:?}");
        let status = systx::xstatus().unwrap();
        assert_eq!(status.state, State::Aborted, "{status:?}");
        assert_eq!(status.id, systx::xid());
        assert!(status.words.contains("daemon has ended"), "{status:?}");
        match ends {
            true => assert_eq!(errno(systx::xend()), Some(libc::ENOTCONN)),
            false => systx::xabort().unwrap(),
        }
        assert_eq!((systx::xid(), systx::xstatus().unwrap().state), (0, State::Aborted));
        assert_eq!(std::env::current_dir().unwrap(), from);
        if ends {
            // Whatever is asked first finds the next daemon.
            eventually("the order is reset", || systx::reset_order(Some(dir), "n", 1).is_ok());
        }
        eventually("the directory is back", || systx::xbegin(Some(dir), SERIALIZABLE).is_ok());
        assert!(!dir.join("never").exists());
        fs::write(dir.join("again"), "again").unwrap();
        assert_eq!(outside(&dir.join("again")), None);
        systx::xend().unwrap();
        assert_eq!(read(dir.join("again")), "again");
        fs::remove_file(dir.join("again")).unwrap();
        // What plain programs do in a volume a daemon that is killed may take along.
        File::open(dir).unwrap().sync_all().unwrap();
    }
}

/// Threads that move amounts between two files, and others that only look: no update is lost, and
/// nobody, in whatever attempt, sees two moments in one transaction.
fn contend(dir: &Path, rounds: u64) {
    const THREADS: u64 = 4;
    let (a, b) = (dir.join("a"), dir.join("b"));
    let number = |path: &Path| -> io::Result<i64> {
        let text = fs::read_to_string(path)?;
        text.trim().parse().map_err(|_| io::Error::other(format!("{path:?}: {text:?}")))
    };
    fs::write(&a, "1000").unwrap();
    fs::write(&b, "0").unwrap();
    let lost = AtomicU64::new(0);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (lost, a, b) = (&lost, &a, &b);
            s.spawn(move || {
                for round in 0..rounds {
                    let looks = thread == THREADS - 1;
                    let flags =
                        if looks && round % 2 == 0 { Flags::READ_ONLY } else { SERIALIZABLE };
                    let mut attempts = 0;
                    systx::atomic(dir, flags, |_| {
                        attempts += 1;
                        let (x, y) = (number(a)?, number(b)?);
                        if x + y != 1000 {
                            let status = systx::xstatus()?;
                            panic!("torn in round {round}: {x} + {y}, {status:?}");
                        }
                        if !looks {
                            // One is rewritten, the other one changed in place.
                            fs::write(a, (x - 1).to_string())?;
                            let file = File::options().write(true).open(b)?;
                            file.write_all_at(format!("{:<8}", y + 1).as_bytes(), 0)?;
                        }
                        Ok(())
                    })
                    .unwrap_or_else(|e| panic!("thread {thread}, round {round}: {e}"));
                    lost.fetch_add(attempts - 1, Ordering::Relaxed);
                }
            });
        }
    });
    let moved = i64::try_from(rounds * (THREADS - 1)).unwrap();
    assert_eq!((number(&a).unwrap(), number(&b).unwrap()), (1000 - moved, moved));
    println!("{} attempts lost", lost.load(Ordering::Relaxed));
}

fn read_only(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "plain").unwrap();
    let tx = systx::begin(dir, Flags::READ_ONLY).unwrap();
    assert_eq!(read(&a), "plain");
    let _ = fs::write(&a, "never");
    tx.commit().unwrap();
    assert_eq!(read(&a), "plain");
    // All that is read is of one moment.
    let b = dir.join("b");
    fs::write(&b, "plain").unwrap();
    let tx = systx::begin(dir, Flags::READ_ONLY).unwrap();
    assert_eq!(read(&a), "plain");
    plain_write(&a, "changed");
    plain_write(&b, "changed");
    assert_eq!((read(&a), read(&b)), ("plain".into(), "plain".into()));
    tx.commit().unwrap();
    assert_eq!((read(&a), read(&b)), ("changed".into(), "changed".into()));
}

/// By a process that is in no transaction: it is started by a thread that was made before.
fn plain_write(path: &Path, text: &str) {
    let id = systx::xpause().unwrap();
    fs::write(path, text).unwrap();
    systx::xresume(id).unwrap();
}

/// A lost conflict names the path and the opponent; what follows is refused; a retry wins.
fn conflict(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "one").unwrap();
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    let id = tx.id();
    assert_eq!(read(&a), "one");
    plain_write(&a, "two");
    let status = systx::xstatus().unwrap();
    assert_eq!((status.state, status.id), (State::Lost, id), "{status:?}");
    assert_eq!(errno(fs::write(dir.join("b"), "x")), Some(libc::ECANCELED));
    assert_eq!(errno(tx.commit()), Some(libc::ECANCELED));
    let status = systx::xstatus().unwrap();
    assert_eq!((status.state, status.retries, status.opponent), (State::Lost, 1, 0), "{status:?}");
    assert_eq!(status.path, a.as_os_str().as_encoded_bytes());
    assert!(status.words.contains("systx-e2e-threa"), "{status:?}");
    systx::xbegin(Some(dir), Flags::RETRY).unwrap();
    assert_eq!(systx::xstatus().unwrap().retries, 1);
    assert_eq!(read(&a), "two");
    systx::xend().unwrap();
    // Against another transaction: the younger one loses, and is told to whom.
    let (first, over) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            let tx = systx::begin(dir, SERIALIZABLE).unwrap();
            fs::write(&a, "older").unwrap();
            first.wait();
            // If it slept it would lose.
            while !over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            tx.commit().unwrap();
        });
        first.wait();
        let tx = systx::begin(dir, SERIALIZABLE).unwrap();
        assert_eq!(errno(fs::write(&a, "younger")), Some(libc::ECANCELED));
        let status = systx::xstatus().unwrap();
        assert!(status.state == State::Lost && status.opponent != 0, "{status:?}");
        assert_eq!(errno(tx.commit()), Some(libc::ECANCELED));
        over.store(true, Ordering::SeqCst);
    });
    assert_eq!(read(&a), "older");
}

/// A begin that must not wait fails where it would, leaves nothing behind, and works when nothing
/// is in the way.
fn nonblock(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "one").unwrap();
    let begin = |flags: Flags| errno(systx::xbegin(Some(dir), flags | Flags::NONBLOCK));
    // What the kernel still has to say about a file that was closed is a change from outside under
    // way.
    let soon = |flags: Flags| {
        eventually("nothing is in the way", || match begin(flags) {
            None => true,
            Some(errno) => {
                assert_eq!((errno, systx::xid()), (libc::EAGAIN, 0));
                false
            }
        });
    };
    soon(SERIALIZABLE);
    fs::write(&a, "two").unwrap();
    systx::xend().unwrap();
    assert_eq!(outside(&a).as_deref(), Some("two"));
    // Another attempt, while what it lost to is open.
    let (wrote, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut held, hold) = io::pipe().unwrap();
    std::thread::scope(|s| {
        // Closed when a check in here fails, which ends the other thread.
        let mut hold = hold;
        let other = s.spawn({
            let (wrote, over, a) = (&wrote, &over, &a);
            move || {
                let tx = systx::begin(dir, SERIALIZABLE).unwrap();
                fs::write(a, "older").unwrap();
                wrote.store(true, Ordering::SeqCst);
                // If it slept it would lose.
                while !over.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                assert_eq!(held.read(&mut [0]).unwrap(), 1);
                tx.commit().unwrap();
            }
        });
        while !wrote.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
        assert_eq!(errno(fs::write(&a, "younger")), Some(libc::ECANCELED));
        assert_eq!(errno(systx::xend()), Some(libc::ECANCELED));
        over.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            assert_eq!((begin(Flags::RETRY), systx::xid()), (Some(libc::EAGAIN), 0));
            let status = systx::xstatus().unwrap();
            assert!(status.state == State::Lost && status.opponent != 0, "{status:?}");
        }
        hold.write_all(b".").unwrap();
        other.join().unwrap();
        soon(Flags::RETRY);
        assert_eq!(systx::xstatus().unwrap().retries, 1, "refused begins are no attempts");
        assert_eq!(read(&a), "older");
        fs::write(&a, "younger").unwrap();
        systx::xend().unwrap();
    });
    assert_eq!(outside(&a).as_deref(), Some("younger"));
    // A snapshot, while somebody may have stored something in a mapping.
    let writes = File::options().write(true).open(&a).unwrap();
    assert_eq!((begin(Flags::READ_ONLY), systx::xid()), (Some(libc::EAGAIN), 0));
    drop(writes);
    soon(Flags::READ_ONLY);
    assert_eq!(read(&a), "younger");
    systx::xend().unwrap();
}

/// What was opened inside is the committed file afterwards.
fn descriptors(dir: &Path) {
    let (a, new) = (dir.join("a"), dir.join("new"));
    fs::write(&a, "first version").unwrap();
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    let rw = |path: &Path| {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let (mut old, mut made) = (rw(&a), rw(&new));
    old.write_all(b"SECOND").unwrap();
    made.write_all(b"made inside").unwrap();
    tx.commit().unwrap();
    let all = |file: &mut File| {
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!((all(&mut old), all(&mut made)), ("SECONDversion".into(), "made inside".into()));
    made.write_all(b", written after").unwrap();
    made.sync_all().unwrap();
    assert_eq!(read(&new), "made inside, written after");
    // Who has read it by its path has it cached by now, and still sees what comes by the
    // descriptor.
    for more in 0..20 {
        let before = read(&new);
        write!(made, ", {more}").unwrap();
        made.set_permissions(fs::Permissions::from_mode(0o600 + more)).unwrap();
        assert_eq!(read(&new), format!("{before}, {more}"));
        assert_eq!(fs::metadata(&new).unwrap().mode() & 0o777, 0o600 + more);
    }
    made.set_len(4).unwrap();
    assert_eq!(read(&new), "made");
    let ino = |m: io::Result<fs::Metadata>| m.map(|m| (m.dev(), m.ino())).unwrap();
    assert_eq!(ino(made.metadata()), ino(fs::metadata(&new)));
    fs::write(&a, "by its name").unwrap();
    // The kernel drops the pages of the old view's inode a moment later, when the change is
    // noticed.
    eventually("the pages are dropped", || all(&mut old) == "by its name");
    // After an abort, what was opened inside can be read as it was, and not changed.
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    let mut file = rw(&a);
    assert_eq!(all(&mut file), "by its name");
    tx.abort().unwrap();
    assert_eq!(all(&mut file), "by its name");
    assert_eq!(errno(file.write_all(b"x")), Some(libc::ECANCELED));
}

fn refused(dir: &Path) {
    let beside = dir.parent().unwrap();
    assert_eq!(errno(systx::xbegin(Some(beside), SERIALIZABLE)), Some(libc::ENOTTY));
    assert_eq!(errno(systx::xbegin(Some(&dir.join("absent")), SERIALIZABLE)), Some(libc::ENOENT));
    assert_eq!(errno(systx::xbegin(Some(dir), Flags::from_bits(1 << 30))), Some(libc::EINVAL));
    assert_eq!(errno(systx::xend()), Some(libc::EINVAL));
    assert_eq!(systx::xid(), 0);
    // Nothing of that is in the way.
    systx::begin(dir, SERIALIZABLE).unwrap().commit().unwrap();
}

/// Many rounds leave as many descriptors and threads as a few. A file, and a directory, of each
/// stay open over its end, until there are so many of them.
fn flat(dir: &Path, rounds: u64, open: usize) {
    let count = |of: &str| fs::read_dir(format!("/proc/self/{of}")).unwrap().count();
    let sub = dir.join("sub/deeper");
    fs::create_dir_all(&sub).unwrap();
    let mut kept = std::collections::VecDeque::new();
    let mut round = |n: u64| {
        let done = systx::atomic(dir, SERIALIZABLE, |_| {
            fs::write(dir.join(format!("f{}", n % 7)), n.to_string())?;
            fs::read_dir(dir)?.count();
            kept.push_back((File::create(sub.join(format!("f{}", n % 5)))?, File::open(&sub)?));
            if n.is_multiple_of(3) { Err(io::Error::other("dropped")) } else { Ok(()) }
        });
        kept.drain(..kept.len().saturating_sub(open));
        done
    };
    (1..20).for_each(|n| drop(round(n)));
    let before = (count("fd"), count("task"));
    println!("warm");
    io::stdout().flush().unwrap();
    let _ = io::stdin().read(&mut [0]);
    (20..20 + rounds).for_each(|n| drop(round(n)));
    assert_eq!((count("fd"), count("task")), before);
    println!("done");
    io::stdout().flush().unwrap();
    let _ = io::stdin().read(&mut [0]);
}

/// The working directory is inside while the transaction is, and back afterwards.
fn cwd(dir: &Path) {
    let here = || std::env::current_dir().unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    for (start, name) in
        [(dir.to_owned(), "a"), (dir.join("sub"), "a"), (dir.parent().unwrap().to_owned(), "")]
    {
        std::env::set_current_dir(&start).unwrap();
        let tx = systx::begin(dir, SERIALIZABLE).unwrap();
        assert_eq!(here(), start);
        let relative = if name.is_empty() {
            Path::new(dir.file_name().unwrap()).join("sub/b")
        } else {
            name.into()
        };
        fs::write(&relative, "relative").unwrap();
        assert_eq!(outside(&start.join(&relative)), None);
        tx.commit().unwrap();
        assert_eq!(here(), start);
        assert_eq!(read(&relative), "relative");
    }
    // Where it went inside, it is after the commit; after an abort it is back.
    std::env::set_current_dir(dir).unwrap();
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    fs::create_dir("made").unwrap();
    std::env::set_current_dir("made").unwrap();
    tx.commit().unwrap();
    assert_eq!(here(), dir.join("made"));
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    std::env::set_current_dir("../sub").unwrap();
    tx.abort().unwrap();
    assert_eq!(here(), dir.join("made"));
    std::env::set_current_dir("/").unwrap();
}

/// A program that is executed inside joins: its own begin and end only count.
fn joined(dir: &Path) {
    if systx::xid() == 0 && std::env::var_os("SYSTX_E2E_INNER").is_some() {
        systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
        assert_eq!(read(dir.join("a")), "outer");
        fs::write(dir.join("b"), "inner").unwrap();
        systx::xend().unwrap();
        return;
    }
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    fs::write(dir.join("a"), "outer").unwrap();
    let me = std::env::current_exe().unwrap();
    let inner = Command::new(me).arg("joined").arg(dir).env("SYSTX_E2E_INNER", "1").status();
    assert!(inner.unwrap().success());
    assert_eq!(read(dir.join("b")), "inner");
    assert_eq!(outside(&dir.join("b")), None);
    tx.commit().unwrap();
    assert_eq!(read(dir.join("b")), "inner");
}
