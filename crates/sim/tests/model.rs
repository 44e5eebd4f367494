//! The simulated file system against the kernel: random calls with the same results on [`SimFs`]
//! and on `RealIo` over a directory in tmpfs (another directory: `SYSTX_SIM_MODEL_DIR`), errno for
//! errno, and the same tree at the end. A simulator that is wrong about the kernel proves nothing.
//!
//! Needs to be root, as the simulated caller is; says so and passes otherwise.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use systx_base::{Kind, Time};
use systx_sim::{Profile, SimFs, tree};
use systx_store::io::{Handle, Io, Open, Rename, Stat};
use systx_store::real::RealIo;

const NAMES: [&str; 5] = ["a", "b", "c", "d", ""];
const KEYS: [&str; 5] = ["user.k", "trusted.k", "user.", "unknown.k", "system.nothing"];

#[derive(Clone, Debug)]
enum Call {
    OpenDir(usize, usize),
    OpenFile(usize, usize, bool),
    CloseFile(usize),
    Create(usize, usize, u32),
    StatAt(usize, usize),
    Stat(usize),
    List(usize),
    ReadLink(usize, usize),
    GetXattr(usize, usize, usize),
    Read(usize, u64, usize),
    Write(usize, u64, usize, u8),
    WriteDurable(usize, u64, u8),
    SetLen(usize, u64),
    Punch(usize, u64, u64),
    Allocate(usize, u64, u64),
    NextData(usize, u64),
    Copy(usize, u64, usize, u64, u64),
    Mkdir(usize, usize, u32),
    Symlink(usize, usize, usize),
    Mknod(usize, usize, u8),
    Link(usize, usize, usize, usize),
    Rename(usize, usize, usize, usize, u8),
    Unlink(usize, usize),
    Rmdir(usize, usize),
    SetMode(usize, usize, u32),
    SetOwner(usize, usize, u32, u32),
    SetTimes(usize, usize, Option<i64>, Option<i64>),
    SetXattr(usize, usize, usize, usize),
    RemoveXattr(usize, usize, usize),
    Sync(usize, u8),
}

fn call() -> impl Strategy<Value = Call> {
    use Call::*;
    let h = 0..8usize;
    // The empty name comes up less often than the others.
    let n = || prop_oneof![12 => 0..4usize, 1 => Just(4usize)];
    let at = || prop_oneof![Just(0u64), 0..20_000u64, (0..5u64).prop_map(|p| p * 4096)];
    let mode = 0..0o7777u32;
    let f = || 0..6usize;
    let names = prop_oneof![
        4 => (h.clone(), n()).prop_map(|(a, b)| OpenDir(a, b)),
        3 => (h.clone(), n(), any::<bool>()).prop_map(|(a, b, w)| OpenFile(a, b, w)),
        4 => (h.clone(), n(), mode.clone()).prop_map(|(a, b, m)| Create(a, b, m)),
        3 => (h.clone(), n(), mode.clone()).prop_map(|(a, b, m)| Mkdir(a, b, m)),
        1 => (h.clone(), n(), n()).prop_map(|(a, b, t)| Symlink(a, b, t)),
        1 => (h.clone(), n(), 0..5u8).prop_map(|(a, b, k)| Mknod(a, b, k)),
        4 => (h.clone(), n(), h.clone(), n()).prop_map(|(a, b, c, d)| Link(a, b, c, d)),
        9 => (h.clone(), n(), h.clone(), n(), 0..3u8)
            .prop_map(|(a, b, c, d, e)| Rename(a, b, c, d, e)),
        3 => (h.clone(), n()).prop_map(|(a, b)| Unlink(a, b)),
        3 => (h.clone(), n()).prop_map(|(a, b)| Rmdir(a, b)),
    ];
    let attrs = prop_oneof![
        (h.clone(), n()).prop_map(|(a, b)| StatAt(a, b)),
        f().prop_map(Stat),
        h.clone().prop_map(List),
        (h.clone(), n()).prop_map(|(a, b)| ReadLink(a, b)),
        (h.clone(), n(), 0..KEYS.len()).prop_map(|(a, b, k)| GetXattr(a, b, k)),
        (h.clone(), n(), mode).prop_map(|(a, b, m)| SetMode(a, b, m)),
        (h.clone(), n(), 0..3u32, 0..3u32).prop_map(|(a, b, u, g)| SetOwner(a, b, u, g)),
        (h.clone(), n(), any::<Option<u32>>(), any::<Option<u32>>())
            .prop_map(|(a, b, x, y)| { SetTimes(a, b, x.map(i64::from), y.map(i64::from)) }),
        (h.clone(), n(), 0..KEYS.len(), 0..300usize).prop_map(|(a, b, k, v)| SetXattr(a, b, k, v)),
        (h, n(), 0..KEYS.len()).prop_map(|(a, b, k)| RemoveXattr(a, b, k)),
    ];
    let data = prop_oneof![
        f().prop_map(CloseFile),
        (f(), at(), 0..9000usize).prop_map(|(a, o, l)| Read(a, o, l)),
        (f(), at(), 0..9000usize, any::<u8>()).prop_map(|(a, o, l, b)| Write(a, o, l, b)),
        (f(), 0..5u64, any::<u8>()).prop_map(|(a, p, b)| WriteDurable(a, p, b)),
        (f(), at()).prop_map(|(a, l)| SetLen(a, l)),
        (f(), at(), at()).prop_map(|(a, o, l)| Punch(a, o, l)),
        (f(), at(), at()).prop_map(|(a, o, l)| Allocate(a, o, l)),
        (f(), at()).prop_map(|(a, o)| NextData(a, o)),
        (f(), at(), f(), at(), at()).prop_map(|(a, b, c, d, l)| Copy(a, b, c, d, l)),
        (f(), 0..3u8).prop_map(|(a, k)| Sync(a, k)),
    ];
    prop_oneof![5 => names, 3 => attrs, 4 => data]
}

/// One side: its open directories and files.
struct Side<'a> {
    io: &'a dyn Io,
    dirs: Vec<Handle>,
    files: Vec<Handle>,
    writable: Vec<bool>,
    /// Blocks were allocated ahead or copied: what counts as a hole is the kernel's choice then.
    holes_vary: bool,
}

/// A result that can be compared.
fn show<T: Debug>(r: io::Result<T>) -> String {
    match r {
        Ok(v) => format!("{v:?}"),
        Err(e) => match e.raw_os_error() {
            Some(code) => format!("errno {code}"),
            None => format!("{:?}", e.kind()),
        },
    }
}

fn stat_text(s: Stat) -> String {
    let size = if s.kind == Kind::Dir { 0 } else { s.size };
    format!("{:?} {:o} {}:{} {} {size} {}", s.kind, s.mode, s.uid, s.gid, s.nlink, s.rdev)
}

impl<'a> Side<'a> {
    fn new(io: &'a dyn Io) -> Self {
        Side {
            io,
            dirs: vec![io.root()],
            files: Vec::new(),
            writable: Vec::new(),
            holes_vary: false,
        }
    }

    fn dir(&self, n: usize) -> &Handle {
        // Half of the numbers mean the root, so that calls meet.
        if n < 4 { &self.dirs[0] } else { &self.dirs[n % self.dirs.len()] }
    }

    fn keep(list: &mut Vec<Handle>, r: io::Result<Handle>) -> String {
        let text = show(r.as_ref().map(|_| ()).map_err(|e| match e.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::from(e.kind()),
        }));
        if let Ok(h) = r {
            list.push(h);
        }
        text
    }

    /// Makes the call and tells what came out.
    fn run(&mut self, call: &Call) -> String {
        use Call::*;
        let io = self.io;
        let name = |n: &usize| NAMES[*n].as_bytes();
        let key = |n: &usize| KEYS[*n].as_bytes();
        match call {
            OpenDir(d, n) => {
                let r =
                    io.open_dir(self.dir(*d), if NAMES[*n].is_empty() { b"e" } else { name(n) });
                return Side::keep(&mut self.dirs, r);
            }
            OpenFile(d, n, w) => {
                let (dir, name) = (self.dir(*d), if NAMES[*n].is_empty() { b"e" } else { name(n) });
                let r = if *w {
                    io.open_to_write(dir, name)
                } else {
                    io.open_file(dir, name, Open::Read)
                };
                self.writable.extend(r.is_ok().then_some(*w));
                return Side::keep(&mut self.files, r);
            }
            Create(d, n, m) => {
                let r = io.create_file(self.dir(*d), name(n), *m);
                self.writable.extend(r.is_ok().then_some(true));
                return Side::keep(&mut self.files, r);
            }
            CloseFile(f) => {
                if !self.files.is_empty() {
                    let f = f % self.files.len();
                    self.files.remove(f);
                    self.writable.remove(f);
                }
                return String::new();
            }
            StatAt(d, n) => return show(io.stat_at(self.dir(*d), name(n)).map(stat_text)),
            List(d) => {
                let mut names = Vec::new();
                let r = io.list(self.dir(*d), &mut |i| {
                    names.push((i.name.to_vec(), i.kind));
                    true
                });
                names.sort();
                return show(r.map(|()| names));
            }
            ReadLink(d, n) => return show(io.read_link(self.dir(*d), name(n))),
            GetXattr(d, n, k) => return show(io.get_xattr(self.dir(*d), name(n), key(k))),
            Mkdir(d, n, m) => return show(io.mkdir(self.dir(*d), name(n), *m)),
            Symlink(d, n, t) => return show(io.symlink(name(t), self.dir(*d), name(n))),
            Mknod(d, n, k) => {
                let kinds = [Kind::Fifo, Kind::Socket, Kind::CharDev, Kind::BlockDev, Kind::File];
                let kind = kinds[*k as usize];
                return show(io.mknod(self.dir(*d), name(n), kind, 0o640, 0x103));
            }
            Link(a, b, c, d) => {
                return show(io.link(self.dir(*a), name(b), self.dir(*c), name(d)));
            }
            Rename(a, b, c, d, how) => {
                let how = [self::Rename::Replace, self::Rename::NoReplace, self::Rename::Exchange]
                    [*how as usize];
                return show(io.rename(self.dir(*a), name(b), self.dir(*c), name(d), how));
            }
            Unlink(d, n) => return show(io.unlink(self.dir(*d), name(n))),
            Rmdir(d, n) => return show(io.rmdir(self.dir(*d), name(n))),
            SetMode(d, n, m) => return show(io.set_mode(self.dir(*d), name(n), *m)),
            SetOwner(d, n, u, g) => return show(io.set_owner(self.dir(*d), name(n), *u, *g)),
            SetTimes(d, n, a, m) => {
                let time = |t: &Option<i64>| t.map(|secs| Time { secs, nanos: 5 });
                return show(io.set_times(self.dir(*d), name(n), time(a), time(m)));
            }
            SetXattr(d, n, k, v) => {
                return show(io.set_xattr(self.dir(*d), name(n), key(k), &vec![7; *v]));
            }
            RemoveXattr(d, n, k) => return show(io.remove_xattr(self.dir(*d), name(n), key(k))),
            _ => {}
        }
        if self.files.is_empty() { String::new() } else { self.run_file(call) }
    }

    fn run_file(&mut self, call: &Call) -> String {
        use Call::*;
        let io = self.io;
        self.holes_vary |= matches!(call, Allocate(..) | Copy(..));
        let file = |f: &usize| &self.files[f % self.files.len()];
        match call {
            Stat(f) => show(io.stat(file(f)).map(stat_text)),
            Read(f, at, len) => {
                let mut buf = vec![1; *len];
                show(io.read_at(file(f), &mut buf, *at).map(|n| buf[..n].to_vec()))
            }
            Write(f, at, len, b) => show(io.write_at(file(f), &vec![*b; *len], *at)),
            // Only ever asked of handles opened for writing.
            WriteDurable(f, ..) if !self.writable[f % self.files.len()] => String::new(),
            WriteDurable(f, p, b) => show(io.write_durable(file(f), &[*b; 4096], p * 4096)),
            SetLen(f, len) => show(io.set_len(file(f), *len)),
            Punch(f, at, len) => show(io.punch_hole(file(f), *at, *len)),
            Allocate(f, at, len) => show(io.allocate(file(f), *at, *len)),
            NextData(..) if self.holes_vary => String::new(),
            NextData(f, at) => show(io.next_data(file(f), *at)),
            Copy(f, at, t, to, len) => {
                // Both ends in one file may overlap, which the kernel refuses and nobody asks for.
                if f % self.files.len() == t % self.files.len() {
                    return String::new();
                }
                let (f, t) = (file(f), file(t));
                if io.stat(f).map(|s| s.id).ok() == io.stat(t).map(|s| s.id).ok() {
                    return String::new();
                }
                show(io.copy_range(f, *at, t, *to, *len))
            }
            Sync(f, k) => show(match k {
                0 => io.sync_data(file(f)),
                1 => io.sync_all(file(f)),
                _ => io.sync_all(&self.dirs[0]),
            }),
            _ => String::new(),
        }
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = std::env::var("SYSTX_SIM_MODEL_DIR").unwrap_or_else(|_| "/dev/shm".into());
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(base).join(format!("systx-sim-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn same(calls: &[Call]) -> Result<(), TestCaseError> {
    let scratch = Scratch::new();
    let real = RealIo::open(&scratch.0).unwrap();
    // As the scratch directory is: tmpfs gives no sticky bit to a plain mkdir.
    let sim = SimFs::new(Profile::STRONG);
    let (mut a, mut b) = (Side::new(&sim), Side::new(&real));
    a.io.set_mode(&a.dirs[0], b"", 0o755).unwrap();
    b.io.set_mode(&b.dirs[0], b"", 0o755).unwrap();
    for (n, call) in calls.iter().enumerate() {
        let (left, right) = (a.run(call), b.run(call));
        prop_assert_eq!(&left, &right, "call {}: {:?}: simulated, then real", n, call);
    }
    let trees = [&sim as &dyn Io, &real].map(|io| {
        let mut tree = tree::read(io, &|_| false).unwrap();
        for node in tree.values_mut() {
            node.mtime = Time::default();
        }
        tree
    });
    prop_assert!(trees[0] == trees[1], "{}", tree::diff(&trees[0], &trees[1]));
    Ok(())
}

#[test]
fn simulated_calls_answer_as_the_kernel_does() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the simulated caller is root, and this one is not");
        return;
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    let config = ProptestConfig { cases: cases(), failure_persistence: None, ..Default::default() };
    proptest!(config, |(calls in prop::collection::vec(call(), 1..80))| same(&calls)?);
}

fn cases() -> u32 {
    let factor = std::env::var("SYSTX_SIM_BUDGET").ok().and_then(|b| b.parse().ok()).unwrap_or(1);
    1500u32.saturating_mul(factor)
}
