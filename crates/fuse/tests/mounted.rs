//! A real mount over both transports: what programs see, and what the view is asked.
#![allow(clippy::unwrap_used)]

mod memfs;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memfs::Mount;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use systx_base::NodeId;
use systx_fuse::wire::Opcode;
use systx_fuse::{Config, FileLocks, Readdirplus, Transport};
use systx_vfs::api::{Calls, Lock, LockKind, Requests};

/// Runs a test on a fresh mount over each transport that this machine has.
fn over_both(config: &Config, test: impl Fn(&Mount)) {
    if let Some(why) = memfs::obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    for transport in [Transport::DevFuse, Transport::IoUring] {
        match Mount::new(Config { transport, ..config.clone() }) {
            Ok(mount) => {
                assert_eq!(mount.connection().transport(), transport);
                test(&mount);
                let stats = mount.connection().stats();
                assert_eq!((stats.malformed, stats.panicked), (0, 0), "{stats:?}");
            }
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                eprintln!("skipped: {transport:?}: {e}");
            }
            Err(e) => panic!("{transport:?}: {e}"),
        }
    }
}

fn remote_locks() -> Config {
    Config { locks: FileLocks::ViewToldOfClose, ..Config::default() }
}

fn uncached() -> Config {
    let zero = Duration::ZERO;
    Config { entry_timeout: zero, attr_timeout: zero, negative_timeout: zero, ..Config::default() }
}

#[test]
fn files_are_created_written_and_read() {
    over_both(&Config::default(), |m| {
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(m.path("a"), &data).unwrap();
        assert_eq!(std::fs::read(m.path("a")).unwrap(), data);
        assert_eq!(std::fs::metadata(m.path("a")).unwrap().len(), data.len() as u64);
        // Also from the view, past the kernel's cache: a fresh view of the same content.
        let mut seen = vec![0; data.len()];
        let ino = std::fs::metadata(m.path("a")).unwrap().ino();
        m.fs.read(NodeId(ino), 0, &mut seen).unwrap();
        assert_eq!(seen, data);
    });
}

#[test]
fn small_buffers_carry_large_files() {
    over_both(&Config { max_write: 8192, ..Config::default() }, |m| {
        let data: Vec<u8> = (0..300_001u32).map(|i| (i % 241) as u8).collect();
        std::fs::write(m.path("a"), &data).unwrap();
        m.connection().invalidate_inode(NodeId(2), Some((0, 0))).unwrap();
        assert_eq!(std::fs::read(m.path("a")).unwrap(), data);
        assert!(m.connection().stats().count(Opcode::Read) > 10);
    });
}

#[test]
fn opens_of_cached_files_cost_no_messages_and_o_trunc_is_not_lost() {
    over_both(&Config::default(), |m| {
        std::fs::write(m.path("a"), b"content").unwrap();
        for _ in 0..10 {
            assert_eq!(std::fs::read(m.path("a")).unwrap(), b"content");
        }
        let stats = m.connection().stats();
        assert_eq!(stats.count(Opcode::Open), 1, "{stats:?}");
        assert!(stats.count(Opcode::Flush) <= 1, "{stats:?}");
        let file = OpenOptions::new().write(true).truncate(true).open(m.path("a")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(m.fs.getattr(NodeId(2)).unwrap().size, 0);
        file.sync_all().unwrap();
    });
}

#[test]
fn after_the_first_open_files_are_created_without_a_message_at_their_close() {
    over_both(&Config::default(), |m| {
        let probe = m.path(systx_base::FIRST_OPEN);
        drop(File::open(&probe).unwrap());
        assert_eq!(File::open(&probe).unwrap_err().kind(), ErrorKind::NotFound, "only once");
        assert_eq!(std::fs::read_dir(&m.dir).unwrap().count(), 0, "and never listed");
        (0..10).for_each(|i| std::fs::write(m.path(&format!("f{i}")), b"x").unwrap());
        // A message that was sent at a close is there before a request that came later is answered.
        std::fs::create_dir(m.path("d")).unwrap();
        let stats = m.connection().stats();
        assert_eq!((stats.count(Opcode::Open), stats.count(Opcode::Release)), (1, 0), "{stats:?}");
        std::fs::write(&probe, b"mine").unwrap();
        assert_eq!(std::fs::read(&probe).unwrap(), b"mine", "from then on it is a name as any");
    });
}

#[test]
fn names_attributes_and_absence_are_cached() {
    over_both(&Config::default(), |m| {
        std::fs::create_dir(m.path("d")).unwrap();
        std::fs::write(m.path("d/f"), b"x").unwrap();
        let ask = || {
            std::fs::metadata(m.path("d/f")).unwrap();
            assert_eq!(std::fs::metadata(m.path("none")).unwrap_err().kind(), ErrorKind::NotFound);
        };
        ask();
        // Not all requests: the RELEASE of the file written above may still be on its way.
        let asked = || {
            let stats = m.connection().stats();
            (stats.count(Opcode::Lookup), stats.count(Opcode::Getattr) + stats.count(Opcode::Statx))
        };
        let before = asked();
        for _ in 0..100 {
            ask();
        }
        assert_eq!(asked(), before);
    });
    over_both(&uncached(), |m| {
        std::fs::write(m.path("f"), b"x").unwrap();
        let before = m.connection().stats().count(Opcode::Lookup);
        for _ in 0..10 {
            std::fs::metadata(m.path("f")).unwrap();
        }
        assert!(m.connection().stats().count(Opcode::Lookup) >= before + 10);
    });
}

#[test]
fn a_view_may_say_that_an_answer_does_not_hold() {
    over_both(&Config::default(), |m| {
        std::fs::write(m.path("brief"), b"x").unwrap();
        std::fs::write(m.path("long"), b"x").unwrap();
        let lookups = |name: &str| {
            let before = m.connection().stats().count(Opcode::Lookup);
            for _ in 0..10 {
                let _ = std::fs::metadata(m.path(name));
            }
            m.connection().stats().count(Opcode::Lookup) - before
        };
        // Asked again every time, whether it is there or not.
        assert!(lookups("brief") >= 10);
        assert!(lookups("brief-absent") >= 10);
        assert!(lookups("long") <= 1);
        assert!(lookups("long-absent") <= 1);
    });
}

#[test]
fn a_listing_brings_attributes_along() {
    over_both(&Config::default(), |m| {
        std::fs::create_dir(m.path("d")).unwrap();
        for i in 0..3000 {
            // Made behind the kernel's back, so that it knows none of them.
            let caller = systx_vfs::api::Caller { uid: 0, gid: 0, tid: 0 };
            let new = systx_vfs::api::NewAttr { mode: 0o644, umask: 0 };
            let name = format!("a-name-of-some-length-{i}");
            let e = m.fs.create(caller, NodeId(2), name.as_bytes(), new, true).unwrap();
            m.fs.forget(e.node, 1);
        }
        let before = m.connection().stats();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(m.path("d")).unwrap() {
            let entry = entry.unwrap();
            // `metadata` would ask for the birth, of which a listing has nothing to tell.
            let stat = rustix::fs::stat(entry.path()).unwrap();
            assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFREG);
            names.push(entry.file_name().into_string().unwrap());
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3000);
        let after = m.connection().stats();
        assert_eq!(after.count(Opcode::Lookup), before.count(Opcode::Lookup));
        // One for the directory itself.
        assert!(after.count(Opcode::Getattr) <= before.count(Opcode::Getattr) + 1);
        assert_eq!(after.count(Opcode::Statx), before.count(Opcode::Statx));
    });
    over_both(&Config { readdirplus: Readdirplus::Auto, ..Config::default() }, |m| {
        (0..500).for_each(|i| std::fs::write(m.path(&format!("f{i}")), b"").unwrap());
        assert_eq!(std::fs::read_dir(&m.dir).unwrap().count(), 500);
    });
}

#[test]
fn a_worn_listing_is_made_anew_and_settles_the_attributes_of_files_that_were_read() {
    over_both(&Config::default(), |m| {
        std::fs::create_dir(m.path("d")).unwrap();
        (0..100).for_each(|i| {
            let caller = systx_vfs::api::Caller { uid: 0, gid: 0, tid: 0 };
            let new = systx_vfs::api::NewAttr { mode: 0o644, umask: 0 };
            let e = m.fs.create(caller, NodeId(2), format!("f{i}").as_bytes(), new, true).unwrap();
            m.fs.write(e.node, 0, b"content", false).unwrap();
            m.fs.forget(e.node, 1);
        });
        // `metadata` asks for the birth as well.
        let asked = || {
            let stats = m.connection().stats();
            stats.count(Opcode::Getattr) + stats.count(Opcode::Statx)
        };
        // Lists, looks at every file, and reads it.
        let pass = || {
            let before = asked();
            let names: Vec<_> = std::fs::read_dir(m.path("d")).unwrap().collect();
            for entry in names {
                let path = entry.unwrap().path();
                assert_eq!(std::fs::metadata(&path).unwrap().len(), 7);
                let mut read = String::new();
                // Not fs::read, which looks at the file once more.
                let mut file = std::fs::File::open(&path).unwrap().take(8);
                file.read_to_string(&mut read).unwrap();
                assert_eq!(read, "content");
            }
            asked() - before
        };
        // Pages are dropped, so that files are read again.
        let drop_pages = || {
            for file in 0..100 {
                m.connection().invalidate_inode(NodeId(3 + file), Some((0, 0))).unwrap();
            }
        };
        // The first listing is not kept: the directory changed behind the kernel's back.
        pass();
        pass();
        drop_pages();
        pass();
        // Without help the kernel asks for every file that was read.
        assert!(pass() >= 100);
        drop_pages();
        *m.fs.worn.lock().unwrap() = Some(NodeId(2));
        pass();
        let asked = pass();
        assert!(asked <= 2, "{asked} for a directory of 100 files");
    });
}

#[test]
fn a_read_only_file_is_created_and_written_by_its_owner() {
    over_both(&Config::default(), |m| {
        std::fs::create_dir(m.path("d")).unwrap();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(m.path("d"), open).unwrap();
        let script = "umask 0222 && echo hello > f";
        let mut sh = Command::new("sh");
        sh.args(["-c", script]).current_dir(m.path("d")).uid(12345).gid(12345);
        match sh.status() {
            Ok(status) => assert!(status.success()),
            // In a user namespace without that id.
            Err(e) => return eprintln!("skipped: setuid: {e}"),
        }
        let meta = std::fs::metadata(m.path("d/f")).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (12345, 12345, 0o444));
        assert_eq!(std::fs::read(m.path("d/f")).unwrap(), b"hello\n");
        assert_eq!(m.connection().stats().count(Opcode::Mknod), 0);
    });
}

#[test]
fn the_umask_reaches_the_view() {
    over_both(&Config::default(), |m| {
        let sh = |script: &str| {
            let ok = Command::new("sh").args(["-c", script]).current_dir(&m.dir).status().unwrap();
            assert!(ok.success(), "{script}");
        };
        sh("umask 027; : > f; mkdir d; mkfifo p; ln -s f l; [ \"$(readlink l)\" = f ]");
        let mode = |name: &str| std::fs::symlink_metadata(m.path(name)).unwrap().mode();
        assert_eq!(mode("f"), 0o100640);
        assert_eq!(mode("d"), 0o040750);
        assert_eq!(mode("p"), 0o010640);
        assert_eq!(mode("l"), 0o120777);
    });
}

#[test]
fn renames_and_links() {
    over_both(&Config::default(), |m| {
        std::fs::write(m.path("a"), b"a").unwrap();
        std::fs::write(m.path("b"), b"b").unwrap();
        std::fs::create_dir(m.path("d")).unwrap();
        let rename = |from: &str, to: &str, flags| {
            rustix::fs::renameat_with(CWD, m.path(from), CWD, m.path(to), flags)
        };
        assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename("a", "b", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(std::fs::read(m.path("a")).unwrap(), b"b");
        rename("a", "d/c", RenameFlags::empty()).unwrap();
        assert_eq!(std::fs::read(m.path("d/c")).unwrap(), b"b");
        assert!(!m.path("a").exists());
        std::fs::hard_link(m.path("d/c"), m.path("e")).unwrap();
        assert_eq!(std::fs::metadata(m.path("e")).unwrap().nlink(), 2);
        std::fs::remove_file(m.path("d/c")).unwrap();
        std::fs::remove_dir(m.path("d")).unwrap();
        assert_eq!(std::fs::metadata(m.path("e")).unwrap().nlink(), 1);
    });
}

#[test]
fn an_unlinked_file_lives_while_it_is_open_and_is_forgotten_after() {
    over_both(&Config::default(), |m| {
        std::fs::write(m.path("a"), b"kept").unwrap();
        let mut file = File::open(m.path("a")).unwrap();
        std::fs::remove_file(m.path("a")).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
        assert_eq!(m.fs.nodes(), 2);
        drop(file);
        // FORGET is sent some time after close(2).
        while m.fs.nodes() > 1 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn rare_calls_reach_the_view() {
    over_both(&Config::default(), |m| {
        let path = m.path("a");
        let mut file =
            OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
        file.write_all(b"0123456789").unwrap();
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 10);
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(3)), Ok(10));
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(10)), Err(Errno::NXIO));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 2, 3).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 12).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"01\0\0\x0056789\0\0");
        let copy = File::create(m.path("copy")).unwrap();
        let n = rustix::fs::copy_file_range(&file, Some(&mut 5), &copy, Some(&mut 0), 5);
        assert_eq!(n, Ok(5));
        assert_eq!(std::fs::read(m.path("copy")).unwrap(), b"56789");
        let flags = rustix::fs::ioctl_getflags(&file).unwrap();
        assert_eq!(flags.bits(), 0x10);
        let st = rustix::fs::statvfs(&path).unwrap();
        assert_eq!((st.f_blocks, st.f_bfree, st.f_namemax), (1 << 20, 1 << 19, 255));
        rustix::fs::syncfs(&file).unwrap();

        let none = XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.k", b"value", none).unwrap();
        let again = rustix::fs::setxattr(&path, "user.k", b"v", XattrFlags::CREATE);
        assert_eq!(again, Err(Errno::EXIST));
        let mut buf = [0u8; 16];
        assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut buf), Ok(5));
        assert_eq!(&buf[..5], b"value");
        assert_eq!(rustix::fs::getxattr_query(&path, "user.k"), Ok(5));
        assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut [0u8; 3][..]), Err(Errno::RANGE));
        assert_eq!(rustix::fs::listxattr(&path, &mut buf), Ok(7));
        rustix::fs::removexattr(&path, "user.k").unwrap();
        assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut buf), Err(Errno::NODATA));

        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let tmp = rustix::fs::open(&m.dir, flags, Mode::from_raw_mode(0o600)).unwrap();
        rustix::io::write(&tmp, b"tmp").unwrap();
        assert_eq!(rustix::fs::fstat(&tmp).unwrap().st_nlink, 0);

        let stat = rustix::fs::statx(CWD, &path, AtFlags::empty(), rustix::fs::StatxFlags::ALL);
        assert_eq!(stat.unwrap().stx_size, 12);
        let old = rustix::fs::Timespec { tv_sec: -5, tv_nsec: 1 };
        let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
        rustix::fs::futimens(&file, &times).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (-5, 1));
    });
}

#[test]
fn long_and_odd_names() {
    over_both(&Config::default(), |m| {
        let long = "x".repeat(255);
        std::fs::write(m.path(&long), b"").unwrap();
        std::fs::write(m.path("new\nline \u{1}"), b"").unwrap();
        assert_eq!(std::fs::read_dir(&m.dir).unwrap().count(), 2);
        let longer = std::fs::write(m.path(&"x".repeat(256)), b"").unwrap_err();
        assert_eq!(longer.raw_os_error(), Some(libc::ENAMETOOLONG));
    });
}

#[test]
fn a_panicking_view_costs_one_request() {
    if let Some(why) = memfs::obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    for transport in [Transport::DevFuse, Transport::IoUring] {
        let Ok(m) = Mount::new(Config { transport, ..Config::default() }) else { continue };
        for i in 0..5 {
            let e = std::fs::metadata(m.path(&format!("panic{i}"))).unwrap_err();
            assert_eq!(e.raw_os_error(), Some(libc::EIO));
        }
        std::fs::write(m.path("a"), b"x").unwrap();
        assert_eq!(m.connection().stats().panicked, 5);
    }
}

/// Names in separate directories, since a held mkdir(2) holds its parent's lock.
fn gate(m: &Mount, i: usize) -> std::path::PathBuf {
    m.path(&format!("d{i}/gate"))
}

#[test]
fn many_held_requests_do_not_hold_others() {
    const HELD: usize = 40;
    over_both(&Config::default(), |m| {
        (0..HELD).for_each(|i| std::fs::create_dir(m.path(&format!("d{i}"))).unwrap());
        m.fs.gate.close();
        std::thread::scope(|s| {
            for i in 0..HELD {
                s.spawn(move || std::fs::create_dir(gate(m, i)).unwrap());
                m.fs.gate.wait_held(i + 1);
                let f = m.path(&format!("f{i}"));
                std::fs::write(&f, b"served").unwrap();
                assert_eq!(std::fs::read(&f).unwrap(), b"served");
            }
            assert!(m.connection().stats().grown > 0);
            m.fs.gate.open();
        });
        assert!((0..HELD).all(|i| gate(m, i).is_dir()));
    });
}

#[test]
fn a_client_killed_in_a_held_request_leaves_the_connection_alive() {
    over_both(&Config::default(), |m| {
        std::fs::create_dir(m.path("d0")).unwrap();
        m.fs.gate.close();
        let mut child = Command::new("mkdir").arg(gate(m, 0)).spawn().unwrap();
        m.fs.gate.wait_held(1);
        child.kill().unwrap();
        std::fs::write(m.path("other"), b"x").unwrap();
        m.fs.gate.open();
        assert!(!child.wait().unwrap().success());
        std::fs::write(m.path("d0/after"), b"x").unwrap();
    });
}

fn exclusive(owner: u64, kind: LockKind, flock: bool) -> Lock {
    Lock { owner, pid: 0, start: 0, end: i64::MAX as u64, kind, flock, description: false }
}

/// util-linux flock(1), waiting for a lock on `file`.
fn flock(m: &Mount, script: &str) -> Child {
    Command::new("flock").arg(m.path("lock")).args(["sh", "-c", script]).spawn().unwrap()
}

fn wait_for_setlkw(m: &Mount, n: u64) {
    while m.connection().stats().count(Opcode::Setlkw) < n {
        assert!(m.connection().stats().threads > 0, "the mount was aborted");
        std::thread::yield_now();
    }
}

#[test]
fn waiting_for_a_lock_can_be_killed_and_is_granted_when_others_release() {
    over_both(&remote_locks(), |m| {
        std::fs::write(m.path("lock"), b"").unwrap();
        let node = std::fs::metadata(m.path("lock")).unwrap().ino();
        m.fs.lock_outside(node, exclusive(99, LockKind::Exclusive, true)).unwrap();
        let mut killed = flock(m, "true");
        wait_for_setlkw(m, 1);
        killed.kill().unwrap();
        assert!(!killed.wait().unwrap().success());

        let mut granted = flock(m, "true");
        wait_for_setlkw(m, 2);
        assert_eq!(granted.try_wait().unwrap(), None);
        m.fs.lock_outside(node, exclusive(99, LockKind::Unlock, true)).unwrap();
        assert!(granted.wait().unwrap().success());
        // The lock of a process that ended is gone, RELEASE being asynchronous.
        while m.fs.lock_outside(node, exclusive(99, LockKind::Exclusive, true)).is_err() {
            std::thread::yield_now();
        }
    });
}

/// Beside io_uring FORGETs are taken in batches, and who is interrupted is told of on the same way.
#[test]
fn waiting_for_a_lock_can_be_killed_while_files_are_removed_without_pause() {
    const FILES: usize = 300;
    over_both(&remote_locks(), |m| {
        std::fs::write(m.path("lock"), b"").unwrap();
        let node = std::fs::metadata(m.path("lock")).unwrap().ino();
        m.fs.lock_outside(node, exclusive(99, LockKind::Exclusive, true)).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    File::create(m.path("f")).unwrap();
                    std::fs::remove_file(m.path("f")).unwrap();
                }
            });
            for round in 1..4 {
                let mut killed = flock(m, "true");
                wait_for_setlkw(m, round);
                let begun = Instant::now();
                killed.kill().unwrap();
                assert!(!killed.wait().unwrap().success());
                assert!(begun.elapsed() < Duration::from_secs(20), "it was not told of");
            }
            over.store(true, Ordering::Relaxed);
        });
        // And nothing of what was removed is kept.
        let names = || (0..FILES).map(|i| m.path(&format!("g{i}")));
        names().for_each(|name| drop(File::create(name).unwrap()));
        let known = m.fs.nodes();
        names().for_each(|name| std::fs::remove_file(name).unwrap());
        while m.fs.nodes() > known - FILES {
            std::thread::yield_now();
        }
    });
}

#[test]
fn many_waiters_for_locks_leave_entries_for_the_holder() {
    const WAITERS: u64 = 30;
    over_both(&remote_locks(), |m| {
        let holder = File::create(m.path("lock")).unwrap();
        rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut all: Vec<Child> = (0..WAITERS)
            .map(|i| flock(m, &format!("echo {i} >> {}", m.path("log").display())))
            .collect();
        wait_for_setlkw(m, WAITERS);
        std::fs::write(m.path("free"), b"yes").unwrap();
        drop(holder);
        assert!(all.iter_mut().all(|c| c.wait().unwrap().success()));
        let log = std::fs::read_to_string(m.path("log")).unwrap();
        assert_eq!(log.lines().count() as u64, WAITERS);
    });
}

#[test]
fn record_locks_end_with_close() {
    over_both(&remote_locks(), |m| {
        let file = File::create(m.path("lock")).unwrap();
        let node = file.metadata().unwrap().ino();
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .unwrap();
        let asked = exclusive(99, LockKind::Shared, false);
        let found = m.fs.getlk(NodeId(node), asked).unwrap().unwrap();
        assert_eq!(found.pid, std::process::id());
        assert_eq!(m.fs.lock_outside(node, asked), Err(Errno::AGAIN));
        drop(file);
        assert_eq!(m.fs.lock_outside(node, asked), Ok(()));
        let file = OpenOptions::new().write(true).open(m.path("lock")).unwrap();
        let op = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        assert_eq!(rustix::fs::fcntl_lock(&file, op), Err(Errno::AGAIN));
    });
}

#[test]
fn locks_stay_in_the_kernel_unless_asked_for() {
    over_both(&Config::default(), |m| {
        let a = File::create(m.path("lock")).unwrap();
        let b = File::open(m.path("lock")).unwrap();
        rustix::fs::flock(&a, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let op = rustix::fs::FlockOperation::NonBlockingLockShared;
        assert_eq!(rustix::fs::flock(&b, op), Err(Errno::AGAIN));
        drop(a);
        rustix::fs::flock(&b, op).unwrap();
        assert_eq!(m.connection().stats().count(Opcode::Setlk), 0);
    });
}

#[test]
fn notifications_make_changes_behind_the_kernel_visible() {
    over_both(&Config::default(), |m| {
        std::fs::write(m.path("a"), b"old").unwrap();
        let file = File::open(m.path("a")).unwrap();
        let node = NodeId(file.metadata().unwrap().ino());
        let read = || {
            let mut buf = [0; 3];
            file.read_exact_at(&mut buf, 0).unwrap();
            buf
        };
        assert_eq!(&read(), b"old");
        m.fs.write(node, 0, b"new!", false).unwrap();
        assert_eq!(&read(), b"old", "nobody told the kernel");
        let c = m.connection();
        c.invalidate_inode(node, None).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4);
        c.invalidate_inode(node, Some((0, 0))).unwrap();
        assert_eq!(&read(), b"new");

        let root = systx_vfs::api::Caller { uid: 0, gid: 0, tid: 0 };
        m.fs.unlink(root, NodeId::ROOT, b"a").unwrap();
        assert!(m.path("a").exists(), "nobody told the kernel");
        c.invalidate_entry(NodeId::ROOT, b"a", false).unwrap();
        assert!(!m.path("a").exists());
        assert_eq!(
            c.invalidate_entry(NodeId::ROOT, b"never", true).unwrap_err().kind(),
            ErrorKind::NotFound
        );

        std::fs::write(m.path("b"), b"").unwrap();
        m.fs.unlink(root, NodeId::ROOT, b"b").unwrap();
        match c.invalidate_all_names() {
            Ok(()) => assert!(!m.path("b").exists()),
            Err(e) => eprintln!("no INC_EPOCH here: {e}"),
        }
        if let Err(e) = c.prune(&[node]) {
            eprintln!("no PRUNE here: {e}");
        }
    });
}

#[test]
fn a_stopped_connection_fails_its_clients() {
    if let Some(why) = memfs::obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    for transport in [Transport::DevFuse, Transport::IoUring] {
        let Ok(mut m) = Mount::new(Config { transport, ..Config::default() }) else { continue };
        std::fs::write(m.path("a"), b"x").unwrap();
        m.connection().stop();
        assert_eq!(m.connection().stats().threads, 0);
        m.connection = None;
        // Until the kernel has closed the last descriptor it may answer otherwise, but it answers.
        while std::fs::read_dir(&m.dir).unwrap_err().raw_os_error() != Some(libc::ENOTCONN) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_descriptor_that_is_not_mounted_is_refused() {
    if let Some(why) = memfs::obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    let dev = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let view = std::sync::Arc::new(memfs::Memfs::default());
    let refused = systx_fuse::serve(dev.into(), view, Config::default());
    assert_eq!(refused.err().unwrap().kind(), ErrorKind::PermissionDenied);
}
