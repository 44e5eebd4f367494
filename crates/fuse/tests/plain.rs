//! A real mount of a plain view over its own directory: programs see what they would see without
//! it.
#![allow(clippy::unwrap_used)]

#[path = "../../vfs/tests/common/mod.rs"]
mod common;
mod guarded;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Host, acl_bytes, cases, difference, host_tree, op, populate, scratch, xattr_name};
use guarded::{Guarded, HANG, obstacle};
use proptest::prelude::*;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags,
};
use rustix::io::Errno;
use systx_fuse::wire::Opcode;
use systx_fuse::{Config, Transport};
use systx_guard::plain::{NoGate, Plain};
use systx_store::host_locks::{LockFile, LockRange};
use systx_store::io::Stat;

/// Runs a test on a guarded directory, over each transport that this machine has.
fn guarded(test: impl Fn(&Guarded)) {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    for transport in [Transport::DevFuse, Transport::IoUring] {
        let dir = scratch();
        let config = Config { transport, ..Config::default() };
        match Guarded::with(dir.path(), &config, usize::MAX / 2) {
            Ok(mount) => {
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

/// The same work on a guarded directory and on a native one; `look` is compared.
fn both<T: PartialEq + std::fmt::Debug>(work: impl Fn(&Path) -> T) {
    guarded(|m| {
        let native = scratch();
        populate(native.path()).unwrap();
        populate(&m.dir).unwrap();
        let (want, got) = (work(native.path()), work(&m.dir));
        assert_eq!(want, got);
        assert_eq!(difference(&host_tree(native.path()), &host_tree(&m.dir)), None);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_calls_do_what_they_do_natively(ops in proptest::collection::vec(op(), 1..40)) {
        if obstacle().is_some() {
            return Ok(());
        }
        let (dir, native) = (scratch(), scratch());
        populate(dir.path()).expect("populate");
        populate(native.path()).expect("populate");
        let mount = Guarded::over(dir.path()).expect("mount");
        let (host, ours) = (Host(native.path().into()), Host(mount.dir.clone()));
        for (i, op) in ops.iter().enumerate() {
            let (want, got) = (host.run(op), ours.run(op));
            prop_assert_eq!(want, got, "call {}: {:?}", i, op);
        }
        let want = host_tree(native.path());
        prop_assert_eq!(difference(&want, &host_tree(&mount.dir)), None);
        // And below, where it must have arrived.
        prop_assert_eq!(difference(&want, &host_tree(&mount.below(""))), None);
    }
}

#[test]
fn two_names_are_one_file() {
    guarded(|m| {
        fs::write(m.path("a"), b"one").unwrap();
        fs::hard_link(m.path("a"), m.path("b")).unwrap();
        // A third name made behind the kernel's back.
        fs::hard_link(m.below("a"), m.below("c")).unwrap();
        let a = File::open(m.path("a")).unwrap();
        fs::write(m.path("c"), b"another").unwrap();
        assert_eq!(fs::read(m.path("b")).unwrap(), b"another");
        let inos: BTreeSet<u64> =
            ["a", "b", "c"].map(|n| fs::metadata(m.path(n)).unwrap().ino()).into();
        assert_eq!(inos.len(), 1);
        assert_eq!(a.metadata().unwrap().nlink(), 3);
        assert_eq!(m.plain.size().0, 2, "the root and one file");
        fs::remove_file(m.path("a")).unwrap();
        assert_eq!(fs::metadata(m.path("b")).unwrap().nlink(), 2);
    });
}

#[test]
fn what_is_open_outlives_its_name() {
    guarded(|m| {
        let open = |name| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(m.path(name))
        };
        let mut a = open("a").unwrap();
        a.write_all(b"0123456789").unwrap();
        fs::remove_file(m.path("a")).unwrap();
        a.write_all(b"more").unwrap();
        a.sync_all().unwrap();
        a.set_len(12).unwrap();
        assert_eq!((a.metadata().unwrap().nlink(), a.metadata().unwrap().len()), (0, 12));
        a.seek(SeekFrom::Start(8)).unwrap();
        let mut rest = String::new();
        a.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "89mo");
        a.set_permissions(Permissions::from_mode(0o600)).unwrap();
        assert_eq!(a.metadata().unwrap().mode() & 0o7777, 0o600);
        // Replaced while it is open, and a directory that is somebody's place.
        let b = open("b").unwrap();
        b.write_at(b"old", 0).unwrap();
        fs::write(m.path("c"), b"new").unwrap();
        fs::rename(m.path("c"), m.path("b")).unwrap();
        let mut old = [0; 3];
        b.read_exact_at(&mut old, 0).unwrap();
        assert_eq!(&old, b"old");
        assert_eq!(fs::read(m.path("b")).unwrap(), b"new");
        fs::create_dir(m.path("d")).unwrap();
        let d = File::open(m.path("d")).unwrap();
        fs::remove_dir(m.path("d")).unwrap();
        assert_eq!(d.metadata().unwrap().nlink(), 0);
        let made = rustix::fs::mkdirat(&d, "x", Mode::RWXU);
        assert_eq!(made, Err(Errno::NOENT));
        drop((a, b, d));
    });
}

#[test]
fn nodes_go_when_the_kernel_forgets_them() {
    guarded(|m| {
        for i in 0..300 {
            fs::write(m.path(&format!("f{i}")), b"x").unwrap();
            fs::hard_link(m.path(&format!("f{i}")), m.path(&format!("l{i}"))).unwrap();
        }
        assert_eq!(m.plain.size().0, 301);
        let kept = File::open(m.path("f7")).unwrap();
        for i in 0..300 {
            fs::remove_file(m.path(&format!("f{i}"))).unwrap();
            assert_eq!(fs::metadata(m.path(&format!("l{i}"))).unwrap().nlink(), 1);
            fs::remove_file(m.path(&format!("l{i}"))).unwrap();
        }
        // FORGET and RELEASE come some time after.
        let settled = |n| {
            let until = Instant::now() + HANG;
            while m.plain.size().0 != n && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(m.plain.size().0, n);
        };
        settled(2);
        drop(kept);
        settled(1);
    });
}

#[test]
fn few_descriptors_are_enough_for_many_files() {
    if obstacle().is_some() {
        return;
    }
    let dir = scratch();
    let m = Guarded::with(dir.path(), &Config::default(), 32).unwrap();
    fs::create_dir(m.path("d")).unwrap();
    let open = File::options().create(true).append(true).open(m.path("open")).unwrap();
    for i in 0..500 {
        fs::write(m.path(&format!("d/f{i}")), format!("{i}")).unwrap();
        fs::hard_link(m.path(&format!("d/f{i}")), m.path(&format!("l{i}"))).unwrap();
    }
    let (nodes, held) = m.plain.size();
    assert_eq!(nodes, 503);
    if held > 40 {
        return eprintln!("skipped: no file handles here: {held} descriptors");
    }
    for i in 0..500 {
        assert_eq!(fs::read_to_string(m.path(&format!("l{i}"))).unwrap(), format!("{i}"));
    }
    // Removed when it had no descriptor, and still somebody's.
    let place = rustix::fs::open(m.path("d/f3"), OFlags::PATH, Mode::empty()).unwrap();
    for i in 0..500 {
        fs::remove_file(m.path(&format!("d/f{i}"))).unwrap();
    }
    fs::remove_file(m.path("l3")).unwrap();
    assert_eq!(rustix::fs::fstat(&place).unwrap().st_nlink, 0);
    assert_eq!(fs::read_dir(m.path("d")).unwrap().count(), 0);
    assert_eq!(fs::metadata(m.path("l499")).unwrap().nlink(), 1);
    // A number that is used again is another file.
    fs::write(m.path("again"), b"again").unwrap();
    fs::remove_file(m.below("l5")).unwrap();
    fs::write(m.below("l5"), b"other").unwrap();
    drop(open);
    drop(place);
}

#[test]
fn unnamed_files_get_a_name_or_none() {
    guarded(|m| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let open = |more| rustix::fs::open(&m.dir, flags | more, Mode::from_raw_mode(0o640));
        let fd = open(OFlags::empty()).unwrap();
        rustix::io::pwrite(&fd, b"unnamed", 0).unwrap();
        let link = |fd: &rustix::fd::OwnedFd| {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::linkat(CWD, path, CWD, m.path("n"), AtFlags::SYMLINK_FOLLOW)
        };
        link(&fd).unwrap();
        assert_eq!(fs::read(m.path("n")).unwrap(), b"unnamed");
        assert_eq!(fs::metadata(m.path("n")).unwrap().mode() & 0o7777, 0o640);
        fs::remove_file(m.path("n")).unwrap();
        assert_eq!(link(&open(OFlags::EXCL).unwrap()), Err(Errno::NOENT));
    });
}

#[test]
fn renames_keep_their_flags() {
    both(|dir| {
        let rename = |a: &str, b: &str, flags| {
            rustix::fs::renameat_with(CWD, dir.join(a), CWD, dir.join(b), flags)
        };
        let results = [
            rename("f", "d", RenameFlags::NOREPLACE),
            rename("f", "d/new", RenameFlags::NOREPLACE),
            rename("d/new", "d/s", RenameFlags::EXCHANGE),
            rename("d/s", "hole", RenameFlags::WHITEOUT),
            rename("d", "d/new", RenameFlags::empty()),
            rename("e", "d/new", RenameFlags::empty()),
            rename("none", "x", RenameFlags::empty()),
        ];
        (results, fs::symlink_metadata(dir.join("d/s")).unwrap().rdev())
    });
}

#[test]
fn holes_are_where_they_are_natively() {
    both(|dir| {
        let file =
            File::options().create_new(true).read(true).write(true).open(dir.join("s")).unwrap();
        file.write_at(b"far", 1 << 30).unwrap();
        file.write_at(&[7; 100_000], 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 8192, 65536).unwrap();
        let mut seen = Vec::new();
        for at in [0, 8192, 73728, 1 << 20, 1 << 30, (1 << 30) + 3] {
            use rustix::fs::SeekFrom::{Data, Hole};
            seen.push((rustix::fs::seek(&file, Data(at)), rustix::fs::seek(&file, Hole(at))));
        }
        for (flags, len) in [
            (FallocateFlags::COLLAPSE_RANGE, 4096),
            (FallocateFlags::INSERT_RANGE, 8192),
            (FallocateFlags::ZERO_RANGE, 5000),
            (FallocateFlags::COLLAPSE_RANGE, 5000),
        ] {
            seen.push((rustix::fs::fallocate(&file, flags, 4096, len).map(|()| 0), Ok(len)));
        }
        let (mut from, mut to) = (10, (1 << 30) + 8192);
        let copied =
            rustix::fs::copy_file_range(&file, Some(&mut from), &file, Some(&mut to), 5000);
        let meta = file.metadata().unwrap();
        (seen, copied, meta.len(), meta.blocks())
    });
}

#[test]
fn locks_exclude_those_outside_and_end_with_the_close() {
    guarded(|m| {
        fs::write(m.path("f"), b"x").unwrap();
        let open = |path| File::options().read(true).write(true).open(path).unwrap();
        let (ours, theirs) = (open(m.path("f")), open(m.below("f")));
        let (exclusive, free) =
            (FlockOperation::NonBlockingLockExclusive, FlockOperation::NonBlockingUnlock);
        rustix::fs::flock(&theirs, exclusive).unwrap();
        assert_eq!(rustix::fs::flock(&ours, exclusive), Err(Errno::AGAIN));
        rustix::fs::flock(&theirs, free).unwrap();
        rustix::fs::flock(&ours, exclusive).unwrap();
        assert_eq!(rustix::fs::flock(&theirs, exclusive), Err(Errno::AGAIN));
        let waiter = std::thread::spawn(move || {
            rustix::fs::flock(&theirs, FlockOperation::LockExclusive).unwrap();
        });
        drop(ours);
        waiter.join().unwrap();

        let ours = open(m.path("f"));
        let outside = LockFile::over(open(m.below("f"))).unwrap();
        let range = LockRange { start: 0, end: 99, exclusive: true };
        assert!(outside.set(range).unwrap());
        let whole = FlockOperation::NonBlockingLockExclusive;
        assert!(rustix::fs::fcntl_lock(&ours, whole).is_err());
        outside.clear(0, 99).unwrap();
        rustix::fs::fcntl_lock(&ours, whole).unwrap();
        assert!(!outside.set(range).unwrap());
        assert_eq!(outside.test(range).unwrap().map(|(r, _)| r.start), Some(0));
        // The first close by the owner ends it, whatever else is open.
        let until = Instant::now() + HANG;
        drop(open(m.path("f")));
        while !outside.set(range).unwrap() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Waiting, until an outsider lets go.
        let waiter = std::thread::spawn(move || {
            rustix::fs::fcntl_lock(&ours, FlockOperation::LockExclusive).unwrap();
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        drop(outside);
        waiter.join().unwrap();
    });
}

/// A process that only opens a file and closes it holds nothing, and nothing of others ends with
/// that.
#[test]
fn locks_outlive_the_opens_of_others() {
    guarded(|m| {
        let open = |path| File::options().read(true).write(true).open(path).unwrap();
        let below = |name| LockFile::over(open(m.below(name))).unwrap();
        ["f", "g"].iter().for_each(|name| fs::write(m.path(name), b"x").unwrap());
        // The three kinds of holders: a process, an open by `F_OFD_SETLK`, an open by flock(2).
        let (process, whole) = (open(m.path("f")), open(m.path("f")));
        let description = LockFile::over(open(m.path("g"))).unwrap();
        let range = LockRange { start: 0, end: 9, exclusive: true };
        rustix::fs::fcntl_lock(&process, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(description.set(range).unwrap());
        rustix::fs::flock(&whole, FlockOperation::NonBlockingLockExclusive).unwrap();
        let released = || m.connection().stats().count(Opcode::Release);
        for how in ["<", "<>", ">>"] {
            let before = released();
            let script = format!("exec 8{how}f 9{how}g; exec 8>&- 9>&-");
            let mut sh = Command::new("sh");
            assert!(sh.args(["-c", &script]).current_dir(&m.dir).status().unwrap().success());
            while released() < before + 2 {
                std::thread::yield_now();
            }
            assert!(!below("f").set(range).unwrap(), "of the process: {how}");
            assert!(!below("g").set(range).unwrap(), "of the description: {how}");
            assert!(!below("f").flock(Some(false)).unwrap(), "by flock(2): {how}");
        }
    });
}

/// Runs a script as an ordinary user; what it prints, and how it ends.
fn as_user(dir: &Path, script: &str) -> (Option<i32>, String) {
    let mut sh = Command::new("sh");
    sh.args(["-c", script]).current_dir(dir).uid(12345).gid(12346);
    let out = sh.output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn an_ordinary_user_owns_what_he_makes() {
    both(|dir| {
        for (name, mode) in [("open", 0o777), ("group", 0o2777), ("listed", 0o777)] {
            fs::create_dir(dir.join(name)).unwrap();
            std::os::unix::fs::chown(dir.join(name), Some(0), Some(77)).unwrap();
            fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let acl = acl_bytes([7, 5, 7, 7, 0]);
        rustix::fs::setxattr(dir.join("listed"), xattr_name(3), &acl, XattrFlags::empty()).unwrap();
        let script = "umask 027; for d in open group listed; do \
             echo x > $d/f; mkdir $d/d; mkfifo $d/p; ln -s t $d/l; ln $d/f $d/h; done; \
             cat open/f; chmod 6755 open/f group/f; chgrp 77 open/f; rm -f d/s/f; echo y > f; \
             ls -ln open group listed | awk '{print $1, $3, $4, $9}'";
        as_user(dir, script)
    });
}

#[test]
fn privileges_end_where_they_end_natively() {
    both(|dir| {
        let file = |name: &str, mode| {
            fs::write(dir.join(name), b"program").unwrap();
            fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        };
        file("a", 0o6777);
        // Not 0o2767: that the group's bit stays without the right to execute depends on the groups
        // of the writer, which the kernel does not tell.
        file("b", 0o2777);
        file("c", 0o6777);
        file("t", 0o4777);
        file("k", 0o777);
        file("o", 0o6777);
        // Version 2, no rights: enough to be there.
        let caps = [&0x0200_0000u32.to_le_bytes()[..], &[0; 16]].concat();
        let key = "security.capability";
        rustix::fs::setxattr(dir.join("k"), key, &caps, XattrFlags::empty()).unwrap();
        let done = as_user(dir, "echo x > a; echo x >> b; : > t; echo x >> k");
        fs::write(dir.join("c"), b"by root").unwrap();
        std::os::unix::fs::chown(dir.join("o"), Some(5), Some(6)).unwrap();
        let mut value = [0u8; 64];
        let left = rustix::fs::getxattr(dir.join("k"), key, &mut value[..]);
        let modes = ["a", "b", "c", "t", "k", "o"]
            .map(|n| fs::metadata(dir.join(n)).unwrap().mode() & 0o7777);
        (done, modes, left)
    });
}

#[test]
fn listings_go_on_while_names_go() {
    guarded(|m| {
        fs::create_dir(m.path("d")).unwrap();
        for i in 0..2000 {
            fs::write(m.path(&format!("d/a-name-of-some-length-{i}")), b"").unwrap();
        }
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(m.path("d")).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(
                entry.metadata().unwrap().ino(),
                entry.path().symlink_metadata().unwrap().ino()
            );
            assert!(seen.insert(entry.file_name()), "twice: {entry:?}");
            fs::remove_file(entry.path()).unwrap();
        }
        assert_eq!(seen.len(), 2000);
        assert_eq!(fs::read_dir(m.path("d")).unwrap().count(), 0);
        fs::remove_dir(m.path("d")).unwrap();
    });
}

#[test]
fn opens_are_known_and_keep_what_is_cached() {
    guarded(|m| {
        fs::write(m.path("f"), vec![1; 50_000]).unwrap();
        for _ in 0..5 {
            assert_eq!(fs::read(m.path("f")).unwrap().len(), 50_000);
        }
        let stats = m.connection().stats();
        assert_eq!(stats.count(Opcode::Open), 5);
        let first_reads = stats.count(Opcode::Read);
        fs::read(m.path("f")).unwrap();
        assert_eq!(m.connection().stats().count(Opcode::Read), first_reads);
        let file = OpenOptions::new().write(true).truncate(true).open(m.path("f")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(fs::metadata(m.below("f")).unwrap().len(), 0);
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        assert_eq!(m.connection().stats().count(Opcode::Fsync), 2);
    });
}

#[test]
fn a_tree_that_was_walked_is_walked_again_without_messages() {
    guarded(|m| {
        for i in 0..20 {
            fs::create_dir(m.path(&format!("d{i}"))).unwrap();
            fs::write(m.path(&format!("d{i}/f")), b"x").unwrap();
        }
        let walk = || {
            let dirs = fs::read_dir(&m.dir).unwrap().map(|d| d.unwrap().path());
            let files = dirs.flat_map(|d| fs::read_dir(d).unwrap());
            files.map(|f| f.unwrap().metadata().unwrap().len()).sum::<u64>()
        };
        assert_eq!(walk(), 20);
        let before = m.connection().stats();
        assert_eq!(walk(), 20);
        let after = m.connection().stats();
        // That the directories were read changes their access times, which the kernel asks for.
        let but_times = |s: &systx_fuse::Stats| s.requests - s.count(Opcode::Getattr);
        assert_eq!(but_times(&after), but_times(&before), "{before:?} {after:?}");
        // What the kernel keeps is not what is there after a change.
        fs::remove_file(m.path("d3/f")).unwrap();
        fs::write(m.path("d4/g"), b"yz").unwrap();
        assert_eq!(walk(), 21);
        // flock(2) of directories is the kernel's own.
        let (a, b) = (File::open(m.path("d1")).unwrap(), File::open(m.path("d1")).unwrap());
        rustix::fs::flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
        let busy = rustix::fs::flock(&b, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(busy, Err(Errno::AGAIN));
        drop(a);
        rustix::fs::flock(&b, FlockOperation::NonBlockingLockExclusive).unwrap();
    });
}

#[test]
fn more_listings_are_under_way_than_descriptors_are_kept_for() {
    guarded(|m| {
        let name = |d: usize, i: usize| format!("d{d}/a-name-of-some-length-{i}");
        for d in 0..100 {
            fs::create_dir(m.path(&format!("d{d}"))).unwrap();
            (0..100).for_each(|i| drop(File::create(m.path(&name(d, i))).unwrap()));
        }
        let mut listings: Vec<_> =
            (0..100).map(|d| fs::read_dir(m.path(&format!("d{d}"))).unwrap()).collect();
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            for listing in &mut listings {
                assert!(seen.insert(listing.next().unwrap().unwrap().path()));
            }
        }
        assert!(listings.iter_mut().all(|listing| listing.next().is_none()));
        assert_eq!(seen.len(), 10_000);
        // Of a directory that is gone nothing is left to list, natively, too.
        let mut gone = rustix::fs::Dir::new(File::open(m.path("d0")).unwrap()).unwrap();
        fs::remove_dir_all(m.path("d0")).unwrap();
        assert!(gone.all(|entry| {
            let name = entry.unwrap().file_name().to_bytes().to_vec();
            name == b"." || name == b".."
        }));
    });
}

#[test]
fn the_rest_is_that_of_the_backing_file_system() {
    guarded(|m| {
        let (ours, theirs) = (rustix::fs::statfs(&m.dir), rustix::fs::fstatfs(m.below_fd()));
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        assert_eq!((ours.f_blocks, ours.f_files), (theirs.f_blocks, theirs.f_files));
        assert_eq!(ours.f_namelen, theirs.f_namelen);
        symlink("a/target", m.path("l")).unwrap();
        assert_eq!(fs::read_link(m.path("l")).unwrap(), Path::new("a/target"));
        let long = "x".repeat(256);
        let error = fs::write(m.path(&long), b"").unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NAMETOOLONG));
        let file = File::create(m.path("f")).unwrap();
        let flags = rustix::fs::ioctl_getflags(&file).unwrap();
        let below = File::open(m.below("f")).unwrap();
        assert_eq!(flags, rustix::fs::ioctl_getflags(below).unwrap());
    });
}

#[test]
fn the_store_has_no_name() {
    if obstacle().is_some() {
        return;
    }
    let dir = scratch();
    fs::create_dir(dir.path().join("store")).unwrap();
    fs::write(dir.path().join("store/f"), b"x").unwrap();
    let told = rustix::fs::statx(CWD, dir.path().join("store"), AtFlags::empty(), Stat::WANTED);
    let hidden = [Stat::told(&told.unwrap()).unwrap().id].into();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let open = || rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
    let plain = Arc::new(Plain::new(open(), hidden, Arc::new(NoGate)).unwrap());
    let m = Guarded::serving(dir.path(), open(), plain, &Config::default()).unwrap();
    assert_eq!(fs::read_dir(&m.dir).unwrap().count(), 0);
    assert_eq!(fs::metadata(m.path("store")).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(fs::rename(m.path("store"), m.path("x")).is_err());
    assert!(fs::remove_dir(m.path("store")).is_err());
    fs::create_dir(m.path("d")).unwrap();
    let swap = |a: &str, b: &str| {
        rustix::fs::renameat_with(CWD, m.path(a), CWD, m.path(b), RenameFlags::EXCHANGE)
    };
    assert_eq!(swap("d", "store"), Err(Errno::NOENT));
    assert_eq!(fs::read(m.below("store/f")).unwrap(), b"x");
}
