//! What happens between the moment at which the kernel checks a caller's rights over what it knows
//! under a name and the call: another object has the name by then.  Nobody gets, removes or moves
//! one that was not checked.

#![allow(clippy::unwrap_used)]

#[path = "../../vfs/tests/common/mod.rs"]
mod common;

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use systx_base::NodeId;
use systx_guard::plain::{Change, Gate, NoGate, Plain};
use systx_guard::retired::Lasting;
use systx_guard::shared::SharedVolume;
use systx_store::real::RealIo;
use systx_txn::{BeginOptions, ObjectRef};
use systx_vfs::api::*;
use systx_vfs::freeze::Everything;
use systx_vfs::neighbours::Neighbours as _;
use systx_vfs::volume::Volume;

/// A user that no machine has.
const ANN: u32 = 12031;
/// Nobody can tell what else than a user this caller is.
const BY_ANN: Caller = Caller { uid: ANN, gid: ANN, tid: 0 };
const BY_ROOT: Caller = Caller { uid: 0, gid: 0, tid: 1 };
const NEW: NewAttr = NewAttr { mode: 0o644, umask: 0o022 };

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: needs root");
    }
    root
}

/// A directory `s` of root with the sticky bit, where everybody may make names.
struct Sticky {
    dir: tempfile::TempDir,
}

impl Sticky {
    fn new() -> Sticky {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("s")).unwrap();
        fs::set_permissions(dir.path().join("s"), Permissions::from_mode(0o1777)).unwrap();
        Sticky { dir }
    }
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("s").join(name)
    }
    /// Puts a file there, with its owner's name in it.
    fn put(&self, name: &str, owner: u32, mode: u32) {
        let _ = fs::remove_file(self.at(name));
        let _ = fs::remove_dir_all(self.at(name));
        fs::write(self.at(name), owner.to_string()).unwrap();
        chown(self.at(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(self.at(name), Permissions::from_mode(mode)).unwrap();
    }
    fn put_dir(&self, name: &str, owner: u32) {
        let _ = fs::remove_file(self.at(name));
        let _ = fs::remove_dir_all(self.at(name));
        fs::create_dir(self.at(name)).unwrap();
        chown(self.at(name), Some(owner), Some(owner)).unwrap();
    }
    fn owner(&self, name: &str) -> Option<u32> {
        fs::symlink_metadata(self.at(name)).ok().map(|meta| meta.uid())
    }
    /// The views that serve plain or committed state.
    fn views(&self) -> Vec<(&'static str, Arc<dyn Requests>, NodeId)> {
        let open = || File::open(self.dir.path()).unwrap().into();
        let plain = || Plain::new(open(), HashSet::new(), Arc::new(NoGate)).unwrap();
        let views: Vec<(_, Arc<dyn Requests>)> = vec![
            ("view 0", Arc::new(plain())),
            ("fast-open", Arc::new(plain().untold())),
            ("retired", retired(self.dir.path())),
        ];
        let with_dir = views.into_iter().map(|(name, view)| {
            let dir = view.lookup(BY_ANN, NodeId::ROOT, b"s").unwrap().unwrap().node;
            (name, view, dir)
        });
        with_dir.collect()
    }
}

/// A view that outlived its commit.
fn retired(dir: &Path) -> Arc<dyn Requests> {
    let io = Arc::new(RealIo::open(dir).unwrap());
    let vol = Volume::new(io.clone(), Vec::new(), HashSet::new()).unwrap().with_locks(io);
    let vol = Arc::new(SharedVolume::over(vol));
    let view = common::new_view(vol.volume(), 1, BeginOptions::default(), false);
    let lasting = Arc::new(Lasting::new(view.clone(), vol.clone()));
    let mut pause = lasting.pause();
    pause.pin(false);
    view.freeze(&Everything);
    vol.engine.decide(view.txn()).unwrap();
    vol.engine.installed(view.txn());
    pause.landed();
    pause.retire().unwrap();
    lasting
}

#[test]
fn an_existing_object_that_was_not_checked_does_not_answer_a_creation() {
    if !is_root() {
        return;
    }
    let s = Sticky::new();
    for (kind, view, dir) in s.views() {
        let create = |name: &str, put: &dyn Fn()| {
            let _ = fs::remove_file(s.at(name));
            let absent = view.lookup(BY_ANN, dir, name.as_bytes()).unwrap();
            assert!(absent.is_none(), "{kind}");
            put();
            view.create(BY_ANN, dir, name.as_bytes(), NEW, false).map(|made| made.attr.uid)
        };
        for mode in [0o600, 0o644, 0o666] {
            assert_eq!(create("n", &|| s.put("n", 0, mode)), Err(Errno::STALE), "{kind} {mode:o}");
        }
        assert_eq!(create("n", &|| s.put("n", ANN, 0o400)), Err(Errno::STALE), "{kind}");
        assert_eq!(create("n", &|| s.put("n", ANN, 0o600)), Ok(ANN), "{kind}");
        let link = || symlink("elsewhere", s.at("n")).unwrap();
        assert_eq!(create("n", &link), Err(Errno::STALE), "{kind}");
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let fifo = rustix::fs::FileType::Fifo;
        let fifo = || rustix::fs::mknodat(rustix::fs::CWD, s.at("n"), fifo, mode, 0).unwrap();
        assert_eq!(create("n", &fifo), Err(Errno::STALE), "{kind}");
        // Nothing was opened by any of that, and what the kernel finds when it looks again is
        // checked by it.
        s.put("n", 0, 0o600);
        let found = view.lookup(BY_ANN, dir, b"n").unwrap().unwrap().attr;
        assert_eq!((found.uid, found.mode), (0, 0o600), "{kind}");
        assert_eq!(view.create(BY_ANN, dir, b"n", NEW, true), Err(Errno::EXIST), "{kind}");
        // Also what is not there for the kernel only: root's rights are not asked for by the view.
        s.put("n", ANN, 0o600);
        assert_eq!(view.create(BY_ROOT, dir, b"n", NEW, false).map(drop), Err(Errno::STALE));
        let _ = fs::remove_file(s.at("n"));
    }
}

#[test]
fn an_existing_object_does_not_answer_a_creation_in_a_transaction_either() {
    if !is_root() {
        return;
    }
    let s = Sticky::new();
    s.put("roots", 0, 0o600);
    s.put("own", ANN, 0o600);
    let io = Arc::new(RealIo::open(s.dir.path()).unwrap());
    let vol = Arc::new(Volume::new(io, Vec::new(), HashSet::new()).unwrap());
    let view = common::new_view(&vol, 1, BeginOptions::default(), false);
    let dir = view.lookup(BY_ANN, NodeId::ROOT, b"s").unwrap().unwrap().node;
    let create = |name: &[u8]| view.create(BY_ANN, dir, name, NEW, false).map(|e| e.attr.uid);
    assert_eq!(create(b"roots"), Err(Errno::STALE));
    assert_eq!(create(b"own"), Ok(ANN));
    assert_eq!((create(b"new"), create(b"new")), (Ok(ANN), Ok(ANN)), "made by itself");
}

/// A way to take names away, in the directory; `n` is what the race is about.
type Takes = fn(&dyn Requests, Caller, NodeId) -> Reply<()>;

const FILES: [(&str, Takes); 6] = [
    ("unlink", |v, by, d| v.unlink(by, d, b"n")),
    ("rename", |v, by, d| v.rename(by, (d, b"n"), (d, b"to"), RenameHow::Replace)),
    ("rename over it", |v, by, d| v.rename(by, (d, b"own"), (d, b"n"), RenameHow::Replace)),
    ("exchange", |v, by, d| v.rename(by, (d, b"n"), (d, b"own"), RenameHow::Exchange)),
    ("exchange with it", |v, by, d| v.rename(by, (d, b"own"), (d, b"n"), RenameHow::Exchange)),
    ("no replace", |v, by, d| v.rename(by, (d, b"n"), (d, b"to"), RenameHow::NoReplace)),
];

#[test]
fn what_was_not_checked_is_neither_removed_nor_renamed() {
    if !is_root() {
        return;
    }
    let s = Sticky::new();
    for (kind, view, dir) in s.views() {
        let lookup = |name: &str| view.lookup(BY_ANN, dir, name.as_bytes()).unwrap();
        for (call, takes) in FILES {
            s.put("n", ANN, 0o600);
            s.put("own", ANN, 0o600);
            assert!(lookup("n").is_some() && lookup("own").is_some() && lookup("to").is_none());
            s.put("n", 0, 0o600);
            assert_eq!(takes(&*view, BY_ANN, dir), Err(Errno::PERM), "{kind}: {call}");
            assert_eq!((s.owner("n"), s.owner("own"), s.owner("to")), (Some(0), Some(ANN), None));
            // The same with what is the caller's own.
            s.put("n", ANN, 0o600);
            assert_eq!(takes(&*view, BY_ANN, dir), Ok(()), "{kind}: {call}");
            let _ = fs::remove_file(s.at("to"));
            // Root may.
            s.put("n", ANN, 0o600);
            s.put("own", ANN, 0o600);
            assert_eq!(takes(&*view, BY_ROOT, dir), Ok(()), "{kind}: {call} by root");
            let _ = fs::remove_file(s.at("to"));
        }
        s.put_dir("n", ANN);
        assert!(lookup("n").is_some());
        s.put_dir("n", 0);
        assert_eq!(view.rmdir(BY_ANN, dir, b"n"), Err(Errno::PERM), "{kind}");
        s.put_dir("n", ANN);
        assert_eq!(view.rmdir(BY_ANN, dir, b"n"), Ok(()), "{kind}");
        // A whiteout is in the place of what was moved away, or nothing is done.
        s.put("n", 0, 0o600);
        let whiteout = |by| view.rename(by, (dir, b"n"), (dir, b"to"), RenameHow::Whiteout);
        assert_eq!(whiteout(BY_ANN), Err(Errno::PERM), "{kind}");
        assert_eq!((s.owner("n"), s.owner("to")), (Some(0), None));
        fs::remove_file(s.at("n")).unwrap();
    }
}

#[test]
fn the_owner_of_a_sticky_directory_removes_what_others_have_there() {
    if !is_root() {
        return;
    }
    let s = Sticky::new();
    chown(s.at(""), Some(ANN), Some(ANN)).unwrap();
    for (kind, view, dir) in s.views() {
        for (call, takes) in FILES {
            s.put("n", 0, 0o600);
            s.put("own", ANN, 0o600);
            assert_eq!(takes(&*view, BY_ANN, dir), Ok(()), "{kind}: {call}");
            let _ = fs::remove_file(s.at("to"));
        }
    }
    // Without the bit, whoever may write the directory does.
    chown(s.at(""), Some(0), Some(0)).unwrap();
    fs::set_permissions(s.at(""), Permissions::from_mode(0o777)).unwrap();
    for (kind, view, dir) in s.views() {
        s.put("n", 0, 0o600);
        assert_eq!(view.unlink(BY_ANN, dir, b"n"), Ok(()), "{kind}");
    }
}

/// Does something when a change has passed every check and is about to be made.
struct AtTheLastMoment(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Gate for AtTheLastMoment {
    fn read(&self, _: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        act()
    }
    fn mutate(&self, _: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        if let Some(meanwhile) = self.0.lock().unwrap().take() {
            meanwhile();
        }
        act()
    }
}

#[test]
fn a_replacement_at_the_last_moment_is_noticed() {
    if !is_root() {
        return;
    }
    let s = Arc::new(Sticky::new());
    let gate = Arc::new(AtTheLastMoment(Mutex::new(None)));
    let root = File::open(s.dir.path()).unwrap().into();
    let view = Plain::new(root, HashSet::new(), gate.clone()).unwrap();
    let dir = view.lookup(BY_ANN, NodeId::ROOT, b"s").unwrap().unwrap().node;
    let roots_comes = || {
        let s = s.clone();
        *gate.0.lock().unwrap() = Some(Box::new(move || s.put("n", 0, 0o600)));
    };
    for (call, takes) in FILES {
        s.put("n", ANN, 0o600);
        s.put("own", ANN, 0o600);
        roots_comes();
        assert_eq!(takes(&view, BY_ANN, dir), Err(Errno::PERM), "{call}");
        assert_eq!(s.owner("n"), Some(0), "{call}");
    }
    fs::remove_file(s.at("n")).unwrap();
    roots_comes();
    assert_eq!(view.create(BY_ANN, dir, b"n", NEW, false).map(drop), Err(Errno::STALE));
    assert_eq!(fs::read(s.at("n")).unwrap(), b"0");
}

/// A process that only exists; ended when dropped.
struct Idle(Child);

impl Idle {
    fn start(command: &mut Command) -> Idle {
        Idle(command.spawn().unwrap())
    }
    fn caller(&self) -> Caller {
        Caller { tid: self.0.id(), ..BY_ANN }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_privilege_over_others_files_counts_as_far_as_it_goes() {
    if !is_root() {
        return;
    }
    let s = Sticky::new();
    // The user's id with all rights, and a process of that user without any.
    let with = Caller { tid: std::process::id(), ..BY_ANN };
    let without = Idle::start(Command::new("sleep").arg("600").uid(ANN).gid(ANN));
    for (kind, view, dir) in s.views() {
        for (call, takes) in FILES {
            s.put("n", 0, 0o600);
            s.put("own", ANN, 0o600);
            let refused = Err(Errno::PERM);
            assert_eq!(takes(&*view, without.caller(), dir), refused, "{kind}: {call}");
            assert_eq!(takes(&*view, with, dir), Ok(()), "{kind}: {call}");
            let _ = fs::remove_file(s.at("to"));
        }
    }
    // Root in a user namespace of its own: all rights there, which do not reach beyond its ids.
    let mut unshare = Command::new("unshare");
    let inside = Idle::start(unshare.args(["-r", "sleep", "600"]).uid(ANN).gid(ANN));
    let map = format!("/proc/{}/uid_map", inside.0.id());
    let entered = || fs::read_to_string(&map).is_ok_and(|map| map.contains("12031"));
    let late = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !entered() {
        if std::time::Instant::now() > late {
            eprintln!("SKIPPED: no user namespaces for ordinary users, or no unshare");
            return;
        }
        std::thread::yield_now();
    }
    for (kind, view, dir) in s.views() {
        s.put("n", 0, 0o600);
        assert_eq!(view.unlink(inside.caller(), dir, b"n"), Err(Errno::PERM), "{kind}");
        s.put("n", ANN, 0o600);
        assert_eq!(view.unlink(inside.caller(), dir, b"n"), Ok(()), "{kind}");
    }
}
