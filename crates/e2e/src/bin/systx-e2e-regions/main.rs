//! A program with transactions whose system calls are intercepted, for the suite `regions`: each
//! case is checked here, where it happens, and ends with a panic if something is wrong.
//!
//! `systx-e2e-regions CASE DIR`, with DIR guarded and empty.

#![deny(unsafe_code)]

mod children;
mod sent;
mod streams;
mod stress;

use rustix::fs::{FlockOperation, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use systx::{Flags, State};
use systx_e2e::cases::{Asked, asked, errno, outside, read};

fn main() {
    let Asked { case, dir, number } = asked();
    let dir = dir.as_path();
    match case.as_str() {
        "earlier-commit" => earlier_commit(dir),
        "earlier-abort" => earlier_abort(dir),
        "earlier-names" => earlier_names(dir),
        "earlier-below" => earlier_below(dir),
        "earlier-others" => earlier_others(dir),
        "earlier-directory" => earlier_directory(dir),
        "earlier-children" => earlier_children(dir),
        "earlier-paused" => earlier_paused(dir),
        "earlier-threads" => earlier_threads(dir),
        "earlier-again" => earlier_again(dir),
        "made" => made(dir),
        "closed" => closed(dir),
        "refused" => refused(dir),
        "process" => process(dir),
        "privilege" => privilege(dir),
        "written" => streams::written(dir),
        "taken" => streams::taken(dir),
        "output" => streams::output(dir),
        "listen" => sent::listen(),
        "held" => sent::held(dir),
        "deferred" => sent::deferred(dir),
        "speculative" => sent::speculative(dir),
        "flooded" => sent::flooded(dir),
        "ended" => sent::ended(dir),
        "masks" => sent::masks(dir),
        "room" => sent::room(dir),
        "freed-twice" => sent::freed_twice(dir),
        "children-others" => children::others(dir),
        "children-offsets" => children::offsets(dir),
        "children-own" => children::own(dir),
        "children-sent" => children::sent(dir),
        "children-handlers" => children::handlers(dir),
        "children-refused" => children::refused(dir),
        "children-programs" => children::programs(dir),
        "children-lost" => children::lost(dir),
        "stress" => stress::stress(dir, number),
        "half-done" => sent::half_done(dir),
        other => panic!("no case {other}"),
    }
    println!("ok");
}

fn begin(dir: &Path) -> systx::Transaction {
    systx::begin(dir, Flags::DESCRIPTORS).unwrap()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn at(file: &File) -> u64 {
    let mut file = file;
    file.stream_position().unwrap()
}

fn next(file: &File, n: usize) -> String {
    let (mut file, mut bytes) = (file, vec![0; n]);
    let got = file.read(&mut bytes).unwrap();
    String::from_utf8(bytes[..got].to_vec()).unwrap()
}

fn put(file: &File, text: &str) {
    let mut file = file;
    file.write_all(text.as_bytes()).unwrap();
}

/// A file, a second open of it in append mode, both read and written through what was opened
/// before.
fn earlier(dir: &Path, commit: bool) {
    let (a, log) = (dir.join("a"), dir.join("log"));
    fs::write(&a, "0123456789").unwrap();
    fs::write(&log, "first\n").unwrap();
    let file = open(&a);
    let append = OpenOptions::new().append(true).open(&log).unwrap();
    let copy = file.try_clone().unwrap();
    assert_eq!(next(&file, 3), "012");
    let id = file.metadata().map(|m| (m.dev(), m.ino())).unwrap();

    let tx = begin(dir);
    assert_eq!((at(&file), at(&copy)), (3, 3));
    assert_eq!(next(&file, 2), "34");
    put(&copy, "FIVE");
    assert_eq!(at(&file), 9, "copies have one offset");
    put(&append, "second\n");
    file.write_at(b"X", 0).unwrap();
    file.set_len(12).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 12);
    assert_eq!(file.metadata().map(|m| (m.dev(), m.ino())).unwrap(), id);
    assert_eq!(read(&a), "X1234FIVE9\0\0", "what the path shows");
    assert_eq!(read(&log), "first\nsecond\n");
    // Nobody else has seen anything.
    assert_eq!(outside(&a).as_deref(), Some("0123456789"));
    assert_eq!(outside(&log).as_deref(), Some("first\n"));
    // What was written by path is there by descriptor.
    fs::write(&log, "other\n").unwrap();
    put(&append, "third\n");
    assert_eq!(read(&log), "other\nthird\n");
    file.sync_all().unwrap();
    if commit {
        tx.commit().unwrap();
        assert_eq!(read(&a), "X1234FIVE9\0\0");
        assert_eq!(read(&log), "other\nthird\n");
        assert_eq!((at(&file), at(&copy)), (9, 9));
        assert_eq!(next(&file, 9), "9\0\0");
        put(&append, "plain\n");
        assert_eq!(read(&log), "other\nthird\nplain\n");
    } else {
        tx.abort().unwrap();
        assert_eq!((read(&a), read(&log)), ("0123456789".into(), "first\n".into()));
        assert_eq!((at(&file), at(&copy)), (3, 3));
        assert_eq!(next(&file, 3), "345");
        put(&append, "plain\n");
        assert_eq!(read(&log), "first\nplain\n");
    }
    assert_eq!(file.metadata().map(|m| (m.dev(), m.ino())).unwrap(), id);
}

fn earlier_commit(dir: &Path) {
    earlier(dir, true);
}

fn earlier_abort(dir: &Path) {
    earlier(dir, false);
}

/// A descriptor follows its file whatever the transaction does to the names, as ever.
fn earlier_names(dir: &Path) {
    for commit in [false, true] {
        let (a, b, c) = (dir.join("a"), dir.join("b"), dir.join("c"));
        for (path, text) in [(&a, "a"), (&b, "b"), (&c, "c")] {
            fs::write(path, text).unwrap();
        }
        let (of_a, of_b, of_c) = (open(&a), open(&b), open(&c));
        let tx = begin(dir);
        fs::rename(&a, &b).unwrap();
        fs::remove_file(&c).unwrap();
        fs::write(&c, "another c").unwrap();
        put(&of_a, "A");
        put(&of_b, "B");
        put(&of_c, "C");
        assert_eq!((read(&b), a.exists(), read(&c)), ("A".into(), false, "another c".into()));
        if commit {
            tx.commit().unwrap();
            assert_eq!((read(&b), a.exists(), read(&c)), ("A".into(), false, "another c".into()));
        } else {
            tx.abort().unwrap();
            assert_eq!((read(&a), read(&b), read(&c)), ("a".into(), "b".into(), "c".into()));
        }
    }
}

/// The same below directories that change their names, whatever way the names are told.
fn earlier_below(dir: &Path) {
    let (sub, other) = (dir.join("sub"), dir.join("other"));
    let inner = sub.join("in").join("file");
    fs::create_dir_all(sub.join("in")).unwrap();
    fs::create_dir(&other).unwrap();
    for (path, text) in
        [(&inner, "inner"), (&other.join("file"), "other"), (&dir.join("sub2"), "2")]
    {
        fs::write(path, text).unwrap();
    }
    for commit in [false, true] {
        let (file, of_dir) = (open(&inner), File::open(sub.join("in")).unwrap());
        let (beside, alike) = (open(&other.join("file")), open(&dir.join("sub2")));
        let root = File::open(dir).unwrap();
        std::env::set_current_dir(dir).unwrap();
        let tx = begin(dir);
        // Relative to a descriptor, with a way round, and exchanged.
        rustix::fs::renameat_with(
            &root,
            "other/../sub",
            rustix::fs::CWD,
            "other",
            rustix::fs::RenameFlags::EXCHANGE,
        )
        .unwrap();
        fs::rename(other.join("in"), dir.join("up")).unwrap();
        for (file, text) in [(&file, "INNER"), (&beside, "OTHER"), (&alike, "3")] {
            put(file, text);
        }
        assert_eq!(read(dir.join("up/file")), "INNER");
        assert_eq!((read(sub.join("file")), read(dir.join("sub2"))), ("OTHER".into(), "3".into()));
        // A second change of what has moved already, and a removal.
        fs::rename(dir.join("up"), dir.join("top")).unwrap();
        rustix::fs::unlinkat(&of_dir, "file", rustix::fs::AtFlags::empty()).unwrap();
        assert_eq!(fs::read_dir(dir.join("top")).unwrap().count(), 0);
        assert_eq!(file.metadata().unwrap().len(), 5);
        if commit {
            tx.commit().unwrap();
            assert_eq!(
                (read(sub.join("file")), dir.join("top/file").exists()),
                ("OTHER".into(), false)
            );
        } else {
            tx.abort().unwrap();
            assert_eq!((read(&inner), read(other.join("file"))), ("inner".into(), "other".into()));
        }
        std::env::set_current_dir("/").unwrap();
    }
}

/// Names change, and others who write at the same time what the program has open are not in the
/// way.
fn earlier_others(dir: &Path) {
    let [a, b, c, of_thread] = ["a", "b", "c", "thread"].map(|name| dir.join(name));
    fs::create_dir(dir.join("sub")).unwrap();
    for path in [&a, &b, &c, &of_thread] {
        fs::write(path, "before").unwrap();
    }
    let files = [&a, &b, &of_thread].map(|path| open(path));
    let here = std::sync::Barrier::new(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            here.wait();
            files[2].write_at(b"plainly", 0).unwrap();
            here.wait();
            let tx = begin(dir);
            files[2].write_at(b"inside of its own", 0).unwrap();
            tx.commit().unwrap();
            here.wait();
        });
        let tx = begin(dir);
        fs::rename(&a, &b).unwrap();
        fs::remove_file(&c).unwrap();
        fs::remove_dir(dir.join("sub")).unwrap();
        for _ in 0..3 {
            here.wait();
        }
        put(&files[0], "after!");
        tx.commit().unwrap();
    });
    assert_eq!((read(&b), read(&of_thread)), ("after!".into(), "inside of its own".into()));
    assert!(!a.exists() && !c.exists() && !dir.join("sub").exists());
}

/// Names below an earlier descriptor of a directory, and the working directory, are those of the
/// view.
fn earlier_directory(dir: &Path) {
    let sub = dir.join("sub");
    fs::create_dir(&sub).unwrap();
    fs::write(sub.join("old"), "old").unwrap();
    let fd = File::open(&sub).unwrap();
    let flags = OFlags::CREATE | OFlags::RDWR;
    let create = |name: &str| {
        let made = rustix::fs::openat(&fd, name, flags, rustix::fs::Mode::from_raw_mode(0o600));
        File::from(made.unwrap())
    };
    std::env::set_current_dir(&sub).unwrap();
    let tx = begin(dir);
    put(&create("new"), "by descriptor");
    rustix::fs::renameat(&fd, "old", &fd, "older").unwrap();
    rustix::fs::mkdirat(&fd, "made", rustix::fs::Mode::from_raw_mode(0o700)).unwrap();
    assert_eq!(read("new"), "by descriptor", "the working directory is the view's");
    assert_eq!(read(sub.join("older")), "old");
    let names = |fd: &File| {
        let entries = rustix::fs::Dir::read_from(fd).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().to_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&fd), [".", "..", "made", "new", "older"]);
    assert_eq!(outside(&sub.join("new")), None);
    // Into it by descriptor, and somewhere else.
    rustix::process::fchdir(&fd).unwrap();
    assert_eq!(read("new"), "by descriptor");
    std::env::set_current_dir("made").unwrap();
    tx.abort().unwrap();
    assert_eq!(std::env::current_dir().unwrap(), sub.canonicalize().unwrap());
    assert_eq!(names(&fd), [".", "..", "old"]);
    assert_eq!(errno(fs::read("new")), Some(libc::ENOENT));
    let tx = begin(dir);
    put(&create("new"), "again");
    tx.commit().unwrap();
    assert_eq!(read(sub.join("new")), "again");
    std::env::set_current_dir("/").unwrap();
}

/// A child's standard streams, which were opened before, are the view's files.
fn earlier_children(dir: &Path) {
    let (from, to) = (dir.join("from"), dir.join("to"));
    fs::write(&from, "skipped, line\n").unwrap();
    fs::write(&to, "").unwrap();
    for commit in [false, true] {
        let (mut input, output) = (File::open(&from).unwrap(), open(&to));
        input.seek(SeekFrom::Start(9)).unwrap();
        let tx = begin(dir);
        let out = output.try_clone().unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", "cat; echo told >&2"]).stdin(input).stdout(out).stderr(output);
        assert!(child.status().unwrap().success());
        drop(child);
        assert_eq!(read(&to), "line\ntold\n");
        assert_eq!(outside(&to).as_deref(), Some(""));
        if commit {
            tx.commit().unwrap();
        } else {
            tx.abort().unwrap();
        }
        assert_eq!(read(&to), if commit { "line\ntold\n" } else { "" });
    }
}

/// While it is paused, descriptors are what they were.
fn earlier_paused(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "before").unwrap();
    let file = open(&a);
    let tx = begin(dir);
    put(&file, "inside");
    let id = systx::xpause().unwrap();
    assert_eq!((at(&file), next(&file, 6)), (0, "before".into()));
    systx::xresume(id).unwrap();
    assert_eq!(at(&file), 6);
    tx.abort().unwrap();
    assert_eq!((at(&file), read(&a)), (6, "before".into()), "what was read in the pause was read");
}

/// Other threads use the same descriptors at the same time, outside.
fn earlier_threads(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "before").unwrap();
    let file = open(&a);
    let here = std::sync::Barrier::new(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            here.wait();
            let mut bytes = [0; 6];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"before");
            here.wait();
            here.wait();
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"inside");
        });
        let tx = begin(dir);
        put(&file, "inside");
        here.wait();
        here.wait();
        tx.commit().unwrap();
        here.wait();
    });
}

/// What was opened in a committed transaction is an earlier descriptor in the next one.
fn earlier_again(dir: &Path) {
    let (old, new) = (dir.join("old"), dir.join("new"));
    fs::write(&old, "old").unwrap();
    let tx = begin(dir);
    let of_old = open(&old);
    let of_new =
        File::options().create(true).read(true).write(true).truncate(true).open(&new).unwrap();
    put(&of_new, "one ");
    tx.commit().unwrap();
    for commit in [false, true] {
        let tx = begin(dir);
        put(&of_new, "two");
        of_old.write_at(b"O", 0).unwrap();
        assert_eq!((read(&new), read(&old)), ("one two".into(), "Old".into()));
        assert_eq!(outside(&new).as_deref(), Some("one "));
        assert_eq!(outside(&old).as_deref(), Some("old"));
        if commit {
            tx.commit().unwrap();
        } else {
            tx.abort().unwrap();
            assert_eq!((read(&new), read(&old)), ("one ".into(), "old".into()));
            assert_eq!(at(&of_new), 4);
        }
    }
    assert_eq!((read(&new), read(&old)), ("one two".into(), "Old".into()));
    assert_eq!(at(&of_new), 7);
}

fn is_open(fd: i32) -> bool {
    fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok()
}

/// Descriptors from inside stay after a commit, and are closed by an abort.
fn made(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "a").unwrap();
    for commit in [true, false] {
        let tx = begin(dir);
        let file = File::open(&a).unwrap();
        let copy = file.try_clone().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        let elsewhere = File::open("/").unwrap();
        let all: Vec<OwnedFd> = vec![
            file.into(),
            copy.into(),
            reader.into(),
            writer.into(),
            left.into(),
            right.into(),
            elsewhere.into(),
        ];
        let dropped = File::open(&a).unwrap().as_raw_fd();
        assert!(!is_open(dropped));
        if commit {
            tx.commit().unwrap();
            assert!(all.iter().all(|fd| is_open(fd.as_raw_fd())));
            drop(all);
        } else {
            tx.abort().unwrap();
            // Their owners must not close what may be others' by now.
            let numbers: Vec<_> =
                all.into_iter().map(std::os::fd::IntoRawFd::into_raw_fd).collect();
            assert!(numbers.iter().all(|fd| !is_open(*fd)), "{numbers:?}");
        }
    }
}

/// Earlier descriptors that were closed or replaced inside are back after an abort.
fn closed(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::write(&a, "0123456789").unwrap();
    fs::write(&b, "b").unwrap();
    for commit in [false, true] {
        let file = open(&a);
        let mut replaced = OwnedFd::from(open(&a));
        assert_eq!(next(&file, 3), "012");
        let number = file.as_raw_fd();
        let tx = begin(dir);
        assert_eq!(next(&file, 3), "345");
        drop(file);
        assert!(!is_open(number));
        rustix::io::dup2(File::open(&b).unwrap(), &mut replaced).unwrap();
        let replaced = File::from(replaced);
        assert_eq!(next(&replaced, 9), "b");
        if commit {
            tx.commit().unwrap();
            assert!(!is_open(number));
            assert_eq!(replaced.metadata().unwrap().len(), 1);
        } else {
            tx.abort().unwrap();
            assert_eq!(read(format!("/proc/self/fd/{number}")), "0123456789");
            let told = read(format!("/proc/self/fdinfo/{number}"));
            assert!(told.starts_with("pos:\t3\n"), "{told}");
            assert_eq!(replaced.metadata().unwrap().len(), 10);
        }
    }
}

/// Calls that can neither wait nor be undone.
fn refused(dir: &Path) {
    let a = dir.join("a");
    let send = || {
        let (left, _right) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::send(&left, b"x", rustix::net::SendFlags::empty()).map_err(io::Error::from)
    };
    let tx = systx::begin(dir, Flags::UNSUPPORTED_ERROR).unwrap();
    assert_eq!(errno(send()), Some(libc::EOPNOTSUPP));
    fs::write(&a, "error").unwrap();
    tx.commit().unwrap();
    assert_eq!(read(&a), "error");

    let tx = systx::begin(dir, Flags::UNSUPPORTED_WARN).unwrap();
    send().unwrap();
    send().unwrap();
    fs::write(&a, "warn").unwrap();
    tx.commit().unwrap();
    assert_eq!(read(&a), "warn");

    let tx = systx::begin(dir, Flags::UNSUPPORTED_ABORT).unwrap();
    fs::write(&a, "abort").unwrap();
    assert_eq!(errno(send()), Some(libc::ECANCELED));
    assert_eq!(errno(tx.commit()), Some(libc::ECANCELED));
    assert_eq!(systx::xstatus().unwrap().state, State::Aborted);
    assert_eq!(read(&a), "warn");
    // Without a flag they are made.
    let tx = begin(dir);
    send().unwrap();
    tx.commit().unwrap();
    // Nor can a bit be set that means nothing.
    assert_eq!(errno(systx::begin(dir, Flags::from_bits(1 << 31))), Some(libc::EINVAL));
}

/// What programs do otherwise works as ever: threads, processes, locks, masks, memory.
fn process(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "a").unwrap();
    let file = open(&a);
    for _ in 0..3 {
        let tx = begin(dir);
        let sum = std::thread::spawn(|| (0..1000u64).sum::<u64>()).join().unwrap();
        assert_eq!(sum, 499_500);
        let told = Command::new("sh").args(["-c", "echo $((6 * 7)); exit 3"]).output().unwrap();
        assert_eq!((told.stdout.as_slice(), told.status.code()), (&b"42\n"[..], Some(3)));
        assert!(Command::new("/nonexistent").output().is_err());
        let big = vec![1u8; 64 << 20];
        assert_eq!(big.iter().map(|b| u64::from(*b)).sum::<u64>(), 64 << 20);
        rustix::fs::flock(file.as_fd(), FlockOperation::LockExclusive).unwrap();
        rustix::fs::flock(file.as_fd(), FlockOperation::Unlock).unwrap();
        let opened = File::options().custom_flags(libc::O_DIRECTORY).read(true).open(&a);
        assert_eq!(errno(opened), Some(libc::ENOTDIR));
        put(&file, "b");
        tx.commit().unwrap();
    }
    assert_eq!(read(&a), "bbb");
}

/// A launched program has the two capabilities, in a namespace of its own, and can do nothing with
/// them to others.
fn privilege(dir: &Path) {
    use rustix::thread::{CapabilitySet, capabilities};
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_CHROOT;
    assert_eq!(capabilities(None).unwrap().permitted, needed);
    assert_ne!(rustix::process::getuid().as_raw(), 0);
    let host = rustix::system::sethostname(b"other");
    assert_eq!(host, Err(rustix::io::Errno::PERM));
    assert_eq!(errno(fs::write("/proc/sys/kernel/hostname", "other")), Some(libc::EACCES));
    let tx = begin(dir);
    fs::write(dir.join("a"), "a").unwrap();
    tx.commit().unwrap();
    assert_eq!(fs::metadata(dir.join("a")).unwrap().uid(), rustix::process::getuid().as_raw());
}
