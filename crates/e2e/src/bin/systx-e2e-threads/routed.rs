//! Cases of a directory whose daemon routes requests by the number of the thread.

use crate::{SERIALIZABLE, plain_write};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use systx::{Flags, State};
use systx_e2e::cases::{errno, eventually, outside, read};
use systx_e2e::mapped::Mapped;

/// How long a thread or process is waited for that has to do something at once.
const SOON: Duration = Duration::from_secs(60);

pub fn case(case: &str, dir: &Path) {
    match case {
        "places" => places(dir),
        "names" => names(dir),
        "mapped" => mapped(dir),
        "made-inside" => made_inside(dir),
        "executed" => executed(dir),
        "rights" => rights(dir),
        "unsupported" => unsupported(dir),
        "unprivileged" => unprivileged(dir),
        other => panic!("no case {other}"),
    }
}

fn sorted(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn open_dir(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn write_at(dir: impl AsFd, name: &str, text: &str) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).unwrap();
    File::from(file).write_all(text.as_bytes()).unwrap();
}

/// Directories that were opened before, and the working directory, are in the transaction; files
/// that were are not.
fn places(dir: &Path) {
    let deep = dir.join("sub/deep");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f"), "old").unwrap();
    let (top, low) = (open_dir(dir), open_dir(&deep));
    let file = File::open(deep.join("f")).unwrap();
    std::env::set_current_dir(&deep).unwrap();
    let ids = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let want = ids(fs::metadata(&deep).unwrap());
    for commits in [false, true] {
        systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
        write_at(&top, "by top", "1");
        write_at(&low, "by low", "2");
        fs::write("by cwd", "3").unwrap();
        fs::write("f", "new").unwrap();
        assert_eq!(ids(fs::metadata(".").unwrap()), want);
        assert_eq!(ids(fs::metadata(&deep).unwrap()), want);
        // What others have asked about the same directory is not what the thread is told.
        let changed = || fs::metadata(".").and_then(|meta| meta.modified()).unwrap();
        let own = changed();
        let id = systx::xpause().unwrap();
        assert_ne!(changed(), own);
        systx::xresume(id).unwrap();
        assert_eq!(changed(), own);
        // All ways are one place.
        for name in ["by low", "by cwd", "f"] {
            let one = read(deep.join(name));
            assert_eq!((read(name), one.is_empty()), (one, false), "{name}");
        }
        assert_eq!(sorted(Path::new(".")), ["by cwd", "by low", "f"]);
        assert_eq!(sorted(dir), ["by top", "sub"]);
        let mut text = [0; 3];
        assert_eq!(file.read_at(&mut text, 0).unwrap(), 3);
        assert_eq!(&text, b"old", "what was opened before is outside");
        for path in [dir.join("by top"), deep.join("by low"), deep.join("by cwd")] {
            assert_eq!(outside(&path), None, "{path:?}");
        }
        if commits { systx::xend() } else { systx::xabort() }.unwrap();
        let there = deep.join("by cwd").exists();
        assert_eq!(
            (there, read(deep.join("f"))),
            (commits, if commits { "new" } else { "old" }.into())
        );
        assert_eq!(read("f"), read(deep.join("f")));
        // Who looked at the path has found the same directory again.
        assert_eq!(std::env::current_dir().unwrap(), deep);
    }
    // A directory that has another name in the transaction, and one that is not there any more.
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    fs::write("first", "x").unwrap();
    fs::rename(&deep, dir.join("moved")).unwrap();
    fs::write("second", "y").unwrap();
    assert_eq!(sorted(&dir.join("moved")), ["by cwd", "by low", "f", "first", "second"]);
    tx.commit().unwrap();
    assert_eq!(read(dir.join("moved/second")), "y");
    std::env::set_current_dir("/").unwrap();
}

/// Names that come, go and change, on all levels, before everybody's eyes and before one's own.
fn names(dir: &Path) {
    fs::create_dir_all(dir.join("a/b")).unwrap();
    for name in ["one", "a/two", "a/b/three"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let (ask, asked) = channel::<()>();
    let (tell, told) = channel();
    std::thread::scope(|s| {
        // Looks at the same names all the time in between, so that what the kernel remembers is now
        // the one's, now the other's.
        s.spawn(move || {
            let look = |path: &str| fs::read_to_string(dir.join(path)).ok();
            for () in asked {
                let seen = ["one", "uno", "a/two", "a/b/three", "z/b/three", "made/new"].map(look);
                let names = (sorted(dir), sorted(&dir.join("a")));
                if tell.send((seen, names)).is_err() {
                    return;
                }
            }
        });
        let others = || {
            ask.send(()).unwrap();
            told.recv_timeout(SOON).expect("the other thread")
        };
        let before = others();
        assert_eq!(before.1.0, ["a", "one"]);
        for round in 0..3 {
            let changed = fs::metadata(dir).and_then(|meta| meta.modified()).unwrap();
            let tx = systx::begin(dir, SERIALIZABLE).unwrap();
            let own = |path: &str| fs::read_to_string(dir.join(path)).ok();
            assert_eq!(others(), before);
            fs::rename(dir.join("one"), dir.join("uno")).unwrap();
            assert_eq!(others(), before);
            assert_eq!((own("one"), own("uno").as_deref()), (None, Some("one")));
            fs::create_dir(dir.join("made")).unwrap();
            fs::write(dir.join("made/new"), "new").unwrap();
            fs::remove_file(dir.join("a/two")).unwrap();
            assert_eq!(others(), before);
            fs::rename(dir.join("a"), dir.join("z")).unwrap();
            assert_eq!(others(), before);
            assert_eq!((own("a/b/three"), own("z/b/three").as_deref()), (None, Some("a/b/three")));
            // By the time of its change nobody could tell one listing from the other.
            let as_before = fs::FileTimes::new().set_modified(changed);
            File::open(dir).unwrap().set_times(as_before).unwrap();
            for _ in 0..3 {
                assert_eq!(sorted(dir), ["made", "uno", "z"]);
                assert_eq!(others(), before);
            }
            assert_eq!(sorted(&dir.join("z")), ["b"]);
            fs::write(dir.join("z/b/three"), "3").unwrap();
            fs::hard_link(dir.join("uno"), dir.join("z/link")).unwrap();
            std::os::unix::fs::symlink("uno", dir.join("sym")).unwrap();
            assert_eq!(
                (own("sym").as_deref(), own("z/link").as_deref()),
                (Some("one"), Some("one"))
            );
            assert_eq!(others(), before);
            assert_eq!(
                (own("uno").as_deref(), own("z/b/three").as_deref()),
                (Some("one"), Some("3"))
            );
            fs::remove_file(dir.join("sym")).unwrap();
            if round == 2 {
                tx.commit().unwrap();
            } else {
                tx.abort().unwrap();
                assert_eq!(others(), before, "round {round}");
                assert_eq!(
                    (sorted(dir), read(dir.join("a/two"))),
                    (before.1.0.clone(), "a/two".into())
                );
            }
        }
        fs::rename(dir.join("z"), dir.join("a")).unwrap();
        let now = others();
        assert_eq!(
            now.1,
            (vec!["a".into(), "made".into(), "uno".into()], vec!["b".into(), "link".into()])
        );
        let text = |t: &str| Some(String::from(t));
        assert_eq!(now.0, [None, text("one"), None, text("3"), None, text("new")]);
        drop(ask);
    });
}

/// A file that is mapped in the transaction is the transaction's, page for page.
fn mapped(dir: &Path) {
    let path = dir.join("f");
    fs::write(&path, vec![b'o'; 3 * 4096]).unwrap();
    let before =
        Mapped::shared(&File::options().read(true).write(true).open(&path).unwrap(), 3 * 4096);
    for commits in [false, true] {
        systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let inside = Mapped::shared(&file, 3 * 4096);
        inside.set(4096, b'N');
        assert_eq!((inside.get(4096), before.get(4096)), (b'N', b'o'));
        assert_eq!(fs::read(&path).unwrap()[4096], b'N');
        drop(inside);
        drop(file);
        if commits { systx::xend() } else { systx::xabort() }.unwrap();
        let want = if commits { b'N' } else { b'o' };
        assert_eq!((fs::read(&path).unwrap()[4096], before.get(4096)), (want, want));
    }
}

/// Threads and processes that are made inside are outside, nobody waits for them, and they may
/// begin their own.
fn made_inside(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::write(&a, "old").unwrap();
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    fs::write(&a, "new").unwrap();
    std::thread::scope(|s| {
        let other = s.spawn(|| {
            assert_eq!((read(&a), systx::xid()), ("old".into(), 0));
            systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
            fs::write(&b, "another one's").unwrap();
            systx::xend().unwrap();
        });
        other.join().unwrap();
    });
    let mut child = Command::new("sh");
    child.arg("-c").arg("cat a; echo plain > c; echo; read line").current_dir(dir);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    eventually("the child has written", || outside(&dir.join("c")).as_deref() == Some("plain\n"));
    assert_eq!(read(&b), "another one's");
    systx::xend().unwrap();
    assert_eq!(read(&a), "new");
    drop(child.stdin.take());
    let seen = child.wait_with_output().unwrap();
    assert_eq!(seen.stdout, b"old\n");
}

/// What is executed by the thread of a transaction is not in it, and the transaction is gone.
fn executed(dir: &Path) {
    let a = dir.join("a");
    fs::write(&a, "old").unwrap();
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    fs::write(&a, "new").unwrap();
    // Nor if somebody keeps what the transaction ends with.
    let control = fs::read_dir("/proc/self/fd").unwrap().find_map(|fd| {
        let fd = fd.unwrap();
        let is_it = fs::read_link(fd.path())
            .is_ok_and(|to| to.as_os_str().as_encoded_bytes().ends_with(b".control"));
        is_it.then(|| fd.file_name().into_string().unwrap().parse::<i32>().unwrap())
    });
    let again = format!("/proc/self/fd/{}", control.expect("a control file"));
    std::mem::forget(rustix::fs::open(again, OFlags::RDONLY, Mode::empty()).unwrap());
    let script = "read seen <a; echo $seen; test $seen = old && echo ok";
    let failed = Command::new("sh").args(["-c", script]).current_dir(dir).exec();
    panic!("{failed}");
}

/// Whose the directory is, and what may be done in it, no transaction changes; of what is in it, it
/// does.
fn rights(dir: &Path) {
    let sub = dir.join("sub");
    fs::create_dir(&sub).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let (top, before) = (open_dir(&sub), mode(dir));
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    let to = |mode| fs::Permissions::from_mode(mode);
    assert_eq!(errno(fs::set_permissions(dir, to(0o700))), Some(libc::EOPNOTSUPP));
    fs::set_permissions(&sub, to(0o711)).unwrap();
    assert_eq!((mode(&sub), mode(dir)), (0o711, before));
    // By the older descriptor it is the inode that all share.
    let seen = rustix::fs::fstat(&top).unwrap().st_mode & 0o7777;
    assert_ne!(seen, 0o711);
    let refused = rustix::fs::fchmod(&top, Mode::from_raw_mode(0o700));
    assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    systx::xend().unwrap();
    assert_eq!((mode(&sub), mode(dir)), (0o711, before));
}

/// What needs more than routing is refused, and leaves nothing behind.
fn unsupported(dir: &Path) {
    for flags in [Flags::DESCRIPTORS, Flags::SIGNALS_HELD, Flags::OUTPUT_HELD] {
        assert_eq!(errno(systx::xbegin(Some(dir), flags)), Some(libc::EOPNOTSUPP));
        assert_eq!(systx::xid(), 0);
    }
    systx::begin(dir, SERIALIZABLE).unwrap().commit().unwrap();
    let a = dir.join("a");
    fs::write(&a, "old").unwrap();
    let tx = systx::begin(dir, SERIALIZABLE).unwrap();
    assert_eq!(read(&a), "old");
    plain_write(&a, "plain");
    assert_eq!(errno(tx.commit()), Some(libc::ECANCELED));
    assert_eq!(systx::xstatus().unwrap().state, State::Lost);
}

/// Without a privilege there are no transactions where the daemon does not route.
fn unprivileged(dir: &Path) {
    assert_eq!(errno(systx::xbegin(Some(dir), SERIALIZABLE)), Some(libc::EPERM));
    assert_eq!(systx::xid(), 0);
    fs::write(dir.join("plain"), "plain").unwrap();
}
