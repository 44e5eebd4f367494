//! Where random cases run, a directory with a store and another one like it; and calls by path, in
//! such a directory and in a view.
#![allow(clippy::unwrap_used)]

use super::hooked::Hooked;
use super::{CALLER, STATE, Twin, open_view};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systx_base::{Kind, Time, TxnId};
use systx_store::io::{Class, Io, Stamp};
use systx_store::overlay::Overlay;
use systx_store::real::RealIo;
use systx_store::writeset::WriteSet;
use systx_store::{CommitMeta, Config, Instance, Store, TxnKind};
use systx_txn::Isolation;
use systx_vfs::api::{Calls, NewAttr, RenameHow, SetAttr};
use systx_vfs::volume::Volume;

/// A call.  Paths are below the root, without a leading slash.
#[derive(Clone, Debug)]
pub enum Act {
    Mkdir(String),
    File(String, u8),
    Symlink(String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameHow),
    Write(String, u8),
    Chmod(String, u32),
}

impl Act {
    pub fn paths(&self) -> [&str; 2] {
        match self {
            Act::Link(a, b) | Act::Rename(a, b, _) => [a, b],
            Act::Mkdir(p) | Act::File(p, _) | Act::Symlink(p) | Act::Unlink(p) | Act::Rmdir(p) => {
                [p, p]
            }
            Act::Write(p, _) | Act::Chmod(p, _) => [p, p],
        }
    }

    pub fn on_host(&self, root: &Path) -> Result<(), Errno> {
        let raw = |e: std::io::Error| Errno::from_io_error(&e).unwrap();
        let at = |path: &str| root.join(path);
        for path in self.paths() {
            for (slash, _) in path.match_indices('/') {
                let above = std::fs::symlink_metadata(at(&path[..slash])).map_err(raw)?;
                if !above.is_dir() {
                    return Err(Errno::NOTDIR);
                }
            }
        }
        match self {
            Act::Mkdir(p) => std::fs::create_dir(at(p)).map_err(raw),
            Act::File(p, fill) => {
                let mut file = std::fs::File::create_new(at(p)).map_err(raw)?;
                std::io::Write::write_all(&mut file, &[*fill; 9]).map_err(raw)
            }
            Act::Symlink(p) => std::os::unix::fs::symlink("target", at(p)).map_err(raw),
            Act::Link(a, b) => std::fs::hard_link(at(a), at(b)).map_err(raw),
            Act::Unlink(p) => rustix::fs::unlink(at(p)),
            Act::Rmdir(p) => rustix::fs::rmdir(at(p)),
            Act::Rename(a, b, how) => {
                let flags = match how {
                    RenameHow::NoReplace => RenameFlags::NOREPLACE,
                    RenameHow::Exchange => RenameFlags::EXCHANGE,
                    RenameHow::Whiteout => RenameFlags::WHITEOUT,
                    RenameHow::WhiteoutNoReplace => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
                    RenameHow::Replace => RenameFlags::empty(),
                };
                rustix::fs::renameat_with(CWD, at(a), CWD, at(b), flags)
            }
            Act::Write(p, fill) => {
                let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NOFOLLOW;
                let file = rustix::fs::open(at(p), flags, rustix::fs::Mode::empty())?;
                rustix::io::pwrite(&file, &[*fill; 5], 6).map(drop)
            }
            Act::Chmod(p, mode) => {
                if std::fs::symlink_metadata(at(p)).map_err(raw)?.is_symlink() {
                    return Err(Errno::LOOP);
                }
                rustix::fs::chmod(at(p), rustix::fs::Mode::from_raw_mode(*mode))
            }
        }
    }

    pub fn in_view(&self, twin: &Twin) -> Result<(), Errno> {
        let v = &twin.0;
        let new = |mode| NewAttr { mode, umask: 0o022 };
        for path in self.paths() {
            twin.parent(path)?;
        }
        let (up, name) = twin.parent(self.paths()[0])?;
        match self {
            Act::Mkdir(_) => v.mkdir(CALLER, up, name, new(0o777)).map(drop),
            Act::File(_, fill) => {
                let file = v.create(CALLER, up, name, new(0o666), true)?;
                v.write(file.node, 0, &[*fill; 9], false).map(drop)
            }
            Act::Symlink(_) => v.symlink(CALLER, up, name, b"target").map(drop),
            Act::Link(a, b) => {
                let node = twin.walk(a)?.node;
                let (up, name) = twin.parent(b)?;
                if v.lookup(CALLER, up, name)?.is_some() {
                    return Err(Errno::EXIST);
                }
                v.link(CALLER, node, up, name).map(drop)
            }
            Act::Unlink(_) => v.unlink(CALLER, up, name),
            Act::Rmdir(_) => v.rmdir(CALLER, up, name),
            Act::Rename(_, b, how) => v.rename(CALLER, (up, name), twin.parent(b)?, *how),
            Act::Write(p, fill) => {
                let entry = twin.walk(p)?;
                match entry.attr.kind {
                    Kind::File => v.write(entry.node, 6, &[*fill; 5], false).map(drop),
                    Kind::Dir => Err(Errno::ISDIR),
                    Kind::Symlink => Err(Errno::LOOP),
                    _ => Err(Errno::NXIO),
                }
            }
            Act::Chmod(p, mode) => {
                let entry = twin.walk(p)?;
                if entry.attr.kind == Kind::Symlink {
                    return Err(Errno::LOOP);
                }
                let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                v.setattr(CALLER, entry.node, set).map(drop)
            }
        }
    }
}

/// splitmix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }

    pub fn of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        if list.is_empty() { None } else { Some(&list[self.below(list.len())]) }
    }
}

/// Where cases are run.
#[derive(Clone, Copy, Debug)]
pub enum Bed {
    /// A directory on what is said to be such a file system.
    Dir(Class),
    /// An overlay with these options.
    Overlay(&'static str),
}

/// Two like directories.
pub struct Ground {
    scratch: tempfile::TempDir,
    mounted: bool,
}

impl Ground {
    pub fn new(bed: Bed, lower: &[Act]) -> Option<Ground> {
        let at = std::env::var_os("SYSTX_MOVES_DIR").map(PathBuf::from);
        let scratch = match at {
            Some(at) => tempfile::Builder::new().prefix("systx-moves-").tempdir_in(at).unwrap(),
            None => super::scratch(),
        };
        let path = |name: &str| scratch.path().join(name);
        let mut lowest = path("top");
        std::fs::create_dir(&lowest).unwrap();
        if let Bed::Overlay(_) = bed {
            lowest = path("lower");
            for layer in ["lower", "upper", "work"] {
                std::fs::create_dir(path(layer)).unwrap();
            }
        }
        for side in ["in", "native"] {
            let side = lowest.join(side);
            std::fs::create_dir(&side).unwrap();
            lower.iter().for_each(|act| _ = act.on_host(&side));
        }
        let mut mounted = false;
        if let Bed::Overlay(more) = bed {
            let layer = |name: &str| path(name).display().to_string();
            let (lower, upper, work) = (layer("lower"), layer("upper"), layer("work"));
            let options = format!("lowerdir={lower},upperdir={upper},workdir={work}{more}");
            let options = std::ffi::CString::new(options).unwrap();
            let flags = MountFlags::empty();
            match mount("overlay", path("top"), "overlay", flags, options.as_c_str()) {
                Ok(()) => mounted = true,
                Err(Errno::PERM | Errno::NODEV) => return None,
                Err(e) => panic!("no overlay: {e}"),
            }
        }
        Some(Ground { scratch, mounted })
    }

    pub fn inside(&self) -> PathBuf {
        self.scratch.path().join("top/in")
    }

    pub fn native(&self) -> PathBuf {
        self.scratch.path().join("top/native")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.mounted {
            unmount(self.scratch.path().join("top"), UnmountFlags::DETACH).unwrap();
        }
    }
}

/// An open store.
pub struct Open {
    pub io: Arc<Hooked>,
    pub store: Arc<dyn Store>,
    pub overlay: Option<Overlay>,
}

impl Open {
    pub fn new(root: &Path, bed: Bed, boot: u8) -> Result<Open, String> {
        let class = match bed {
            Bed::Dir(class) => Some(class),
            Bed::Overlay(_) => None,
        };
        let io = Hooked::of_class(RealIo::open(root).unwrap(), class);
        let instance = Instance { boot: [boot; 16], mount: 1 };
        let config = Config { segment_bytes: 64 << 10, instance, ..Config::new(STATE) };
        let (store, report) = systx_store::open(config, io.clone()).unwrap();
        same(&Vec::new(), &report.outside)?;
        let below: Arc<dyn Io> = io.clone();
        let overlay = systx_store::overlay_of(&below, STATE.as_bytes()).unwrap();
        Ok(Open { io, store, overlay })
    }

    pub fn view(&self) -> (Arc<Volume>, Twin) {
        let hidden = HashSet::from_iter(self.store.own_object());
        let vol = Volume::new(self.io.clone(), Vec::new(), hidden).unwrap();
        let vol = Arc::new(vol.with_overlay(self.overlay.clone()));
        let twin = Twin(open_view(&vol, 7, Isolation::Serializable));
        (vol, twin)
    }

    /// Commits and installs, as far as the file system lets it: whether it was committed, and, if
    /// it was installed, the version of each object.
    pub fn commit(&self, writes: &WriteSet, txn: u64, kind: TxnKind) -> Result<Done, String> {
        let now = Time::default();
        let (argv, cwd) = (vec![b"test".to_vec()], b"/".to_vec());
        let txn = TxnId(txn);
        let (started, finished, told, order) = (now, now, None, None);
        let meta = CommitMeta { txn, kind, argv, cwd, uid: 0, started, finished, told, order };
        let Ok(room) = self.store.reserve(writes) else { return Ok((false, None)) };
        let Ok(committed) = self.store.commit(room, writes.clone(), meta) else {
            return Ok((false, None));
        };
        let Ok(report) = self.store.apply(committed.lsn) else { return Ok((true, None)) };
        same(&Vec::new(), &report.outside)?;
        Ok((true, Some(report.stamps)))
    }
}

pub type Done = (bool, Option<Vec<Option<Stamp>>>);

pub fn same<T: std::fmt::Debug + PartialEq>(want: &T, got: &T) -> Result<(), String> {
    if want == got { Ok(()) } else { Err(format!("want {want:?}, got {got:?}")) }
}
