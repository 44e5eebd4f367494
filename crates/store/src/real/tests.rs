use super::*;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

/// A directory that is gone at the end, also after a failure.
struct Scratch(PathBuf);

impl Scratch {
    fn on(base: &str) -> (Scratch, RealIo) {
        use std::sync::atomic::AtomicU32;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("{base}/systx-real-{}-{n}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let io = RealIo::open(&path).unwrap();
        (Scratch(path), io)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const BASES: [&str; 2] = ["/dev/shm", "/tmp"];

fn each(test: impl Fn(&Scratch, &RealIo)) {
    for base in BASES {
        let (scratch, io) = Scratch::on(base);
        test(&scratch, &io);
    }
}

fn code<T>(r: Result<T>) -> Option<i32> {
    r.err().and_then(|e| e.raw_os_error())
}

#[test]
fn files_are_made_written_and_read_back() {
    each(|scratch, io| {
        let root = io.root();
        let f = io.create_file(&root, b"f", 0o600).unwrap();
        io.write_at(&f, b"hello", 3).unwrap();
        assert_eq!(fs::read(scratch.0.join("f")).unwrap(), b"\0\0\0hello");
        let mut buf = [0; 16];
        assert_eq!(io.read_at(&f, &mut buf, 1).unwrap(), 7);
        assert_eq!(&buf[..7], b"\0\0hello");
        assert_eq!(code(io.create_file(&root, b"f", 0o600)), Some(libc::EEXIST));
        let stat = io.stat_at(&root, b"f").unwrap();
        assert_eq!(stat, io.stat(&f).unwrap());
        assert_eq!(stat.size, 8);
        assert_eq!(stat.kind, Kind::File);
        assert_ne!(stat.id.btime, Time::default());
        assert_eq!(stat.dev, fs::metadata(&scratch.0).unwrap().dev());
        assert_eq!(io.stat_at(&root, b"").unwrap().kind, Kind::Dir);
    });
}

#[test]
fn durable_writes_take_any_memory_alignment() {
    each(|_, io| {
        let f = io.create_file(&io.root(), b"j", 0o600).unwrap();
        io.write_at(&f, &[0; 16384], 0).unwrap();
        let bytes: Vec<u8> = (0..8193u32).map(|i| i as u8).collect();
        io.write_durable(&f, &bytes[1..], 4096).unwrap();
        let mut back = vec![0; 8192];
        assert_eq!(io.read_at(&f, &mut back, 4096).unwrap(), 8192);
        assert_eq!(back, bytes[1..]);
        assert_eq!(code(io.write_durable(&f, &[1, 2], 0)), Some(libc::EINVAL));
    });
}

#[test]
fn no_call_follows_a_link_or_opens_a_fifo() {
    each(|scratch, io| {
        let root = io.root();
        fs::create_dir(scratch.0.join("d")).unwrap();
        fs::write(scratch.0.join("file"), b"x").unwrap();
        io.symlink(b"d", &root, b"to-dir").unwrap();
        io.symlink(b"file", &root, b"to-file").unwrap();
        io.mknod(&root, b"fifo", Kind::Fifo, 0o600, 0).unwrap();
        assert!(fs::metadata(scratch.0.join("fifo")).unwrap().file_type().is_fifo());
        assert_eq!(code(io.open_dir(&root, b"to-dir")), Some(libc::ENOTDIR));
        assert_eq!(code(io.open_dir(&root, b"file")), Some(libc::ENOTDIR));
        assert_eq!(code(io.open_file(&root, b"to-file", Open::Read)), Some(libc::EINVAL));
        assert_eq!(code(io.open_file(&root, b"fifo", Open::Read)), Some(libc::EINVAL));
        assert_eq!(code(io.open_file(&root, b"d", Open::Read)), Some(libc::EINVAL));
        assert_eq!(code(io.open_file(&root, b"to-file", Open::ReadOwn)), Some(libc::ELOOP));
        assert_eq!(code(io.open_file(&root, b"fifo", Open::ReadOwn)), Some(libc::EINVAL));
        assert_eq!(code(io.open_file(&root, b"d", Open::ReadOwn)), Some(libc::EINVAL));
        let own = io.open_file(&root, b"file", Open::ReadOwn).unwrap();
        assert_eq!(io.stat(&own).unwrap(), io.stat_at(&root, b"file").unwrap());
        assert_eq!(code(io.open_dir(&root, b"..")), Some(libc::EXDEV));
        assert_eq!(io.read_link(&root, b"to-dir").unwrap(), b"d");
        assert_eq!(io.stat_at(&root, b"to-file").unwrap().kind, Kind::Symlink);
        assert_eq!(code(io.set_mode(&root, b"to-file", 0o777)), Some(libc::EOPNOTSUPP));
        io.set_times(&root, b"to-file", None, Some(Time { secs: 5, nanos: 6 })).unwrap();
        assert_eq!(io.stat_at(&root, b"to-file").unwrap().mtime, Time { secs: 5, nanos: 6 });
        assert_ne!(io.stat_at(&root, b"file").unwrap().mtime.secs, 5);
    });
}

#[test]
fn attributes_of_entries_and_of_handles() {
    each(|scratch, io| {
        let root = io.root();
        io.mkdir(&root, b"d", 0o700).unwrap();
        let d = io.open_dir(&root, b"d").unwrap();
        io.set_mode(&d, b"", 0o751).unwrap();
        io.set_times(&d, b"", Some(Time { secs: 1, nanos: 2 }), Some(Time { secs: -3, nanos: 4 }))
            .unwrap();
        io.set_xattr(&d, b"", b"user.k", b"v").unwrap();
        let stat = io.stat_at(&root, b"d").unwrap();
        assert_eq!((stat.mode, stat.atime.secs, stat.mtime.secs), (0o751, 1, -3));
        assert_eq!(io.get_xattr(&root, b"d", b"user.k").unwrap(), b"v");
        let long = vec![b'x'; 3000];
        io.set_xattr(&root, b"d", b"user.long", &long).unwrap();
        assert_eq!(io.get_xattr(&d, b"", b"user.long").unwrap(), long);
        let mut keys = io.list_xattr(&root, b"d").unwrap();
        keys.sort();
        assert_eq!(keys, [b"user.k".to_vec(), b"user.long".to_vec()]);
        io.remove_xattr(&root, b"d", b"user.k").unwrap();
        assert_eq!(code(io.remove_xattr(&d, b"", b"user.k")), Some(libc::ENODATA));
        assert_eq!(code(io.get_xattr(&d, b"", b"user.k")), Some(libc::ENODATA));
        io.create_file(&d, b"f", 0o600).unwrap();
        io.set_mode(&d, b"f", 0o4755).unwrap();
        let mode = fs::metadata(scratch.0.join("d/f")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o4755);
    });
}

#[test]
fn renames_links_and_listings() {
    each(|_, io| {
        let root = io.root();
        io.create_file(&root, b"a", 0o600).unwrap();
        io.link(&root, b"a", &root, b"b").unwrap();
        assert_eq!(code(io.link(&root, b"a", &root, b"b")), Some(libc::EEXIST));
        io.create_file(&root, b"c", 0o600).unwrap();
        assert_eq!(
            code(io.rename(&root, b"a", &root, b"c", Rename::NoReplace)),
            Some(libc::EEXIST)
        );
        let (a, c) = (io.stat_at(&root, b"a").unwrap(), io.stat_at(&root, b"c").unwrap());
        assert_eq!(a.nlink, 2);
        io.rename(&root, b"a", &root, b"c", Rename::Exchange).unwrap();
        assert_eq!(io.stat_at(&root, b"a").unwrap().id, c.id);
        assert_eq!(io.stat_at(&root, b"c").unwrap().id, a.id);
        io.rename(&root, b"a", &root, b"c", Rename::Replace).unwrap();
        let mut names = Vec::new();
        io.list(&root, &mut |item| {
            names.push((item.name.to_vec(), item.ino));
            true
        })
        .unwrap();
        names.sort();
        assert_eq!(names, [(b"b".to_vec(), a.id.ino), (b"c".to_vec(), c.id.ino)]);
        io.unlink(&root, b"b").unwrap();
        io.mkdir(&root, b"d", 0o700).unwrap();
        io.rmdir(&root, b"d").unwrap();
        assert_eq!(code(io.stat_at(&root, b"d")), Some(libc::ENOENT));
    });
}

#[test]
fn holes_and_copies() {
    each(|_, io| {
        let root = io.root();
        let f = io.create_file(&root, b"f", 0o600).unwrap();
        io.write_at(&f, &vec![7; 65536], 0).unwrap();
        io.write_at(&f, &[8; 4096], 1 << 20).unwrap();
        io.punch_hole(&f, 4096, 4096).unwrap();
        assert_eq!(io.next_data(&f, 0).unwrap(), Some((0, 4096)));
        assert_eq!(io.next_data(&f, 4096).unwrap().map(|r| r.0), Some(8192));
        assert_eq!(io.next_data(&f, (1 << 20) + 4096).unwrap(), None);
        let g = io.create_file(&root, b"g", 0o600).unwrap();
        io.copy_range(&f, 8192, &g, 100, 5000).unwrap();
        let mut back = vec![0; 6000];
        assert_eq!(io.read_at(&g, &mut back, 0).unwrap(), 5100);
        assert!(back[..100].iter().all(|b| *b == 0) && back[100..5100].iter().all(|b| *b == 7));
        let h = io.create_file(&root, b"h", 0o600).unwrap();
        assert!(io.copy_range(&f, 0, &h, 0, 2 << 20).is_err(), "past the end of the source");
        io.allocate(&g, 0, 1 << 20).unwrap();
        assert_eq!(io.stat(&g).unwrap().size, 5100);
        io.set_len(&g, 10).unwrap();
        assert_eq!(io.stat(&g).unwrap().size, 10);
        for h in [&f, &g, &root] {
            io.sync_data(h).unwrap();
            io.sync_all(h).unwrap();
        }
    });
}

#[test]
fn other_openers_are_seen() {
    each(|scratch, io| {
        let root = io.root();
        fs::write(scratch.0.join("f"), b"x").unwrap();
        let f = io.open_file(&root, b"f", Open::Read).unwrap();
        assert_eq!(io.openers(&f).unwrap(), Openers::None);
        let reader = fs::File::open(scratch.0.join("f")).unwrap();
        assert_eq!(io.openers(&f).unwrap(), Openers::Readers);
        let writer = fs::OpenOptions::new().write(true).open(scratch.0.join("f")).unwrap();
        assert_eq!(io.openers(&f).unwrap(), Openers::Writers);
        drop((reader, writer));
        assert_eq!(io.openers(&f).unwrap(), Openers::None);
        drop(f);
        let f = io.open_to_write(&root, b"f").unwrap();
        assert_eq!(io.openers(&f).unwrap(), Openers::None);
    });
}

#[test]
fn what_changed_before_the_last_sync_is_settled() {
    each(|scratch, io| {
        let (now, stamp) = (io.now(), io.stat(&io.root()).unwrap().stamp());
        let ago = |secs: i64| Stamp { ctime: Time { secs: now.secs - secs, ..now }, ..stamp };
        assert!(!io.is_settled(&ago(1_000_000)), "nothing was synced yet");
        io.sync_fs().unwrap();
        let here = rustix::fs::statfs(&scratch.0).unwrap();
        assert_eq!(io.is_settled(&ago(10)), class::settles(here.f_type as u64));
        assert!(!io.is_settled(&ago(0)) && !io.is_settled(&ago(1)), "in doubt it is not");
    });
}

#[test]
fn a_lock_excludes_another_description() {
    each(|_, io| {
        let root = io.root();
        let a = io.create_file(&root, b"lock", 0o600).unwrap();
        let b = io.open_to_write(&root, b"lock").unwrap();
        assert!(io.try_lock(&a).unwrap());
        assert!(!io.try_lock(&b).unwrap());
        drop(a);
        assert!(io.try_lock(&b).unwrap());
    });
}

#[test]
fn other_file_systems_are_out_of_reach() {
    let io = RealIo::open("/").unwrap();
    let root = io.root();
    assert_eq!(code(io.open_dir(&root, b"proc")), Some(libc::EXDEV));
    assert_eq!(code(io.stat_at(&root, b"proc")), Some(libc::EXDEV));
    assert!(io.open_dir(&root, b"etc").is_ok());
    assert_eq!(
        RealIo::open("/dev/shm").unwrap().fs_info().unwrap().class,
        crate::io::Class::Memory
    );
}
