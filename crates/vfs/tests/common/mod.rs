//! What the tests of views share: random calls, the host side that makes them on a plain directory,
//! the view side that makes them as the kernel would, and trees to compare.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod bed;
pub mod hooked;
mod scratch;
#[allow(unused_imports)] // not every suite has random cases
pub use scratch::{cases, scratch};
pub mod model;

use proptest::prelude::*;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systx_base::{Kind, NodeId, Time, TxnId};
use systx_store::io::Io;
use systx_store::real::RealIo;
use systx_store::writeset::{Origin, WriteSet};
use systx_txn::{BeginOptions, Isolation};
use systx_vfs::api::*;
use systx_vfs::content::{Budget, Slot, Spill};
use systx_vfs::freeze::Selection;
use systx_vfs::neighbours::{Neighbours, Nobody};
use systx_vfs::view::{Ids, View, ViewConfig};
use systx_vfs::volume::Volume;

/// Files in these tests are small: nothing is ever spilled.
pub struct NoSpill;

impl Spill for NoSpill {
    fn stage(&self) -> io::Result<Slot> {
        Err(Errno::NOSPC.into())
    }
}

pub const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1 };

#[derive(Clone, Debug)]
pub enum Op {
    Create(usize, u32),
    Mkdir(usize, u32),
    Symlink(usize),
    Fifo(usize),
    Link(usize, usize),
    Unlink(usize),
    Rmdir(usize),
    Rename(usize, usize, RenameHow),
    Write(usize, u16, Vec<u8>),
    Truncate(usize, u16),
    Chmod(usize, u32),
    Chown(usize, u32, u32),
    SetXattr(usize, u8, Vec<u8>),
    RemoveXattr(usize, u8),
    Punch(usize, u16, u16),
    List(usize),
    Stat(usize),
    /// Sets the modification time to so many seconds, long ago.
    SetTime(usize, u32),
    Device(usize),
    /// Allocates; the flag keeps the size.
    Allocate(usize, u16, u16, bool),
    /// Copies a range of the first file to an offset of the second.
    Copy(usize, u16, usize, u16, u16),
    /// Makes a file without a name, writes to it, and links it.
    Unnamed(usize, u32, Vec<u8>),
    /// Sets an access or (the flag) default ACL with these permissions.
    SetAcl(usize, bool, [u8; 5]),
}

impl Op {
    pub fn paths(&self) -> (usize, Option<usize>) {
        match self {
            Op::Link(a, b) | Op::Rename(a, b, _) | Op::Copy(a, _, b, ..) => (*a, Some(*b)),
            Op::Create(p, _) | Op::Mkdir(p, _) | Op::Symlink(p) | Op::Fifo(p) => (*p, None),
            Op::Unlink(p) | Op::Rmdir(p) | Op::Write(p, ..) | Op::Truncate(p, _) => (*p, None),
            Op::Chmod(p, _) | Op::Chown(p, ..) | Op::SetXattr(p, ..) => (*p, None),
            Op::RemoveXattr(p, _) | Op::Punch(p, ..) | Op::List(p) | Op::Stat(p) => (*p, None),
            Op::SetTime(p, _) | Op::Device(p) | Op::Allocate(p, ..) => (*p, None),
            Op::Unnamed(p, ..) | Op::SetAcl(p, ..) => (*p, None),
        }
    }
}

/// Paths: some exist at the start, some do not, directories among them.
pub const PATHS: [&str; 15] = [
    "f", "g", "d", "e", "d/f", "d/g", "d/s", "e/f", "d/s/f", "e/n", "n", "l", "n/d", "d/s/d", "n/f",
];

/// Calls that move directories about: into each other, over each other, into what was below them,
/// with files that are changed and have several names.
pub fn move_op() -> impl Strategy<Value = Op> {
    let p = || 0..PATHS.len();
    let dir = || prop_oneof![Just(2usize), Just(3), Just(6), Just(10), Just(12), Just(13), Just(9)];
    let file = || prop_oneof![Just(0usize), Just(4), Just(7), Just(8), Just(14)];
    let bytes = || proptest::collection::vec(any::<u8>(), 1..40);
    let how = prop_oneof![3 => Just(RenameHow::Replace), 1 => Just(RenameHow::Exchange)];
    prop_oneof![
        6 => (dir(), dir(), how).prop_map(|(a, b, h)| Op::Rename(a, b, h)),
        2 => dir().prop_map(|p| Op::Mkdir(p, 0o755)),
        1 => dir().prop_map(Op::Rmdir),
        3 => file().prop_map(Op::Unlink),
        2 => (file(), file()).prop_map(|(a, b)| Op::Link(a, b)),
        2 => (file(), p()).prop_map(|(a, b)| Op::Rename(a, b, RenameHow::Replace)),
        2 => (file(), 0u16..9_000, bytes()).prop_map(|(p, o, d)| Op::Write(p, o, d)),
        1 => (file(), 0u32..0o1000).prop_map(|(p, m)| Op::Chmod(p, m)),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let p = || 0..PATHS.len();
    let how = prop_oneof![
        4 => Just(RenameHow::Replace),
        1 => Just(RenameHow::NoReplace),
        1 => Just(RenameHow::Exchange),
        1 => Just(RenameHow::Whiteout),
        1 => Just(RenameHow::WhiteoutNoReplace)
    ];
    let bytes = || proptest::collection::vec(any::<u8>(), 1..40);
    prop_oneof![
        3 => (p(), 0u32..0o10000).prop_map(|(p, m)| Op::Create(p, m)),
        2 => (p(), 0u32..0o2000).prop_map(|(p, m)| Op::Mkdir(p, m)),
        1 => p().prop_map(Op::Symlink),
        1 => p().prop_map(Op::Fifo),
        2 => (p(), p()).prop_map(|(a, b)| Op::Link(a, b)),
        3 => p().prop_map(Op::Unlink),
        2 => p().prop_map(Op::Rmdir),
        5 => (p(), p(), how).prop_map(|(a, b, h)| Op::Rename(a, b, h)),
        4 => (p(), 0u16..20_000, bytes()).prop_map(|(p, o, d)| Op::Write(p, o, d)),
        2 => (p(), 0u16..20_000).prop_map(|(p, l)| Op::Truncate(p, l)),
        2 => (p(), 0u32..0o10000).prop_map(|(p, m)| Op::Chmod(p, m)),
        1 => (p(), 0u32..3, 0u32..3).prop_map(|(p, u, g)| Op::Chown(p, u, g)),
        1 => (p(), 0u8..2, bytes()).prop_map(|(p, k, v)| Op::SetXattr(p, k, v)),
        1 => (p(), 0u8..4).prop_map(|(p, k)| Op::RemoveXattr(p, k)),
        1 => (p(), 0u16..20_000, 1u16..9_000).prop_map(|(p, o, l)| Op::Punch(p, o, l)),
        1 => p().prop_map(Op::List),
        1 => p().prop_map(Op::Stat),
        1 => (p(), 1u32..1000).prop_map(|(p, t)| Op::SetTime(p, t)),
        1 => p().prop_map(Op::Device),
        1 => (p(), 0u16..20_000, 1u16..9_000, any::<bool>())
            .prop_map(|(p, o, l, k)| Op::Allocate(p, o, l, k)),
        1 => (p(), 0u16..10_000, p(), 0u16..10_000, 1u16..9_000)
            .prop_map(|(a, o, b, t, l)| Op::Copy(a, o, b, t, l)),
        1 => (p(), 0u32..0o10000, bytes()).prop_map(|(p, m, d)| Op::Unnamed(p, m, d)),
        1 => (p(), any::<bool>(), proptest::array::uniform5(0u8..8))
            .prop_map(|(p, d, a)| Op::SetAcl(p, d, a)),
    ]
}

/// Where tests with a store keep it; no tree shows it.
pub const STATE: &str = ".systx";

/// Modification times of what is there at the start, in seconds; later ones are below it.
pub const STARTED: i64 = 2000;

/// What both sides start with.
pub fn populate(root: &Path) -> io::Result<()> {
    let write = |name: &str, data: &[u8], mode: u32| {
        let path = root.join(name);
        std::fs::write(&path, data)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
    };
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?;
    for dir in ["d", "e", "d/s"] {
        std::fs::create_dir(root.join(dir))?;
    }
    write("f", b"first", 0o644)?;
    write("d/f", &[b'x'; 9000], 0o4755)?;
    write("d/s/f", b"", 0o600)?;
    std::fs::hard_link(root.join("d/f"), root.join("e/f"))?;
    std::os::unix::fs::symlink("d/f", root.join("l"))?;
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    for (secs, name) in (STARTED..).zip(["f", "d/f", "d/s/f", "l", "d/s", "d", "e"]) {
        let to = Timespec { tv_sec: secs, tv_nsec: 3 };
        let times = Timestamps { last_access: omit, last_modification: to };
        rustix::fs::utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

pub fn xattr_name(k: u8) -> &'static str {
    ["user.a", "user.b", "system.posix_acl_access", "system.posix_acl_default"][usize::from(k)]
}

/// An ACL as extended attribute: owner, user 5, owning group, mask, others.
pub fn acl_bytes(perms: [u8; 5]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let ids = [u32::MAX, 5, u32::MAX, u32::MAX, u32::MAX];
    for ((tag, perm), id) in [0x01u16, 0x02, 0x04, 0x10, 0x20].iter().zip(perms).zip(ids) {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&u16::from(perm).to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Modification times before this were set by a test, others come from the clock.
const LONG_AGO: i64 = 1_000_000_000;

pub fn explicit(secs: i64) -> Option<i64> {
    (secs < LONG_AGO).then_some(secs)
}

/// The calls on the host.
pub struct Host(pub PathBuf);

impl Host {
    pub fn run(&self, op: &Op) -> Result<(), Errno> {
        let at = |i: usize| self.0.join(PATHS[i]);
        let raw = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let (first, second) = op.paths();
        self.check_parents(first)?;
        if let Some(second) = second {
            self.check_parents(second)?;
        }
        match op {
            Op::Create(p, mode) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
                rustix::fs::open(at(*p), flags, Mode::from_raw_mode(*mode)).map(drop)
            }
            Op::Mkdir(p, mode) => rustix::fs::mkdir(at(*p), Mode::from_raw_mode(*mode)),
            Op::Symlink(p) => rustix::fs::symlink("target", at(*p)),
            Op::Fifo(p) => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(CWD, at(*p), kind, Mode::from_raw_mode(0o640), 0)
            }
            Op::Link(a, b) => rustix::fs::linkat(CWD, at(*a), CWD, at(*b), AtFlags::empty()),
            Op::Unlink(p) => rustix::fs::unlink(at(*p)),
            Op::Rmdir(p) => rustix::fs::rmdir(at(*p)),
            Op::Rename(a, b, how) => {
                let flags = match how {
                    RenameHow::NoReplace => RenameFlags::NOREPLACE,
                    RenameHow::Exchange => RenameFlags::EXCHANGE,
                    RenameHow::Whiteout => RenameFlags::WHITEOUT,
                    RenameHow::WhiteoutNoReplace => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
                    RenameHow::Replace => RenameFlags::empty(),
                };
                rustix::fs::renameat_with(CWD, at(*a), CWD, at(*b), flags)
            }
            Op::Write(p, offset, data) => {
                let fd = self.open(*p)?;
                rustix::io::pwrite(&fd, data, u64::from(*offset)).map(drop)
            }
            Op::Truncate(p, len) => rustix::fs::ftruncate(self.open(*p)?, u64::from(*len)),
            Op::Punch(p, offset, len) => {
                let flags =
                    rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(self.open(*p)?, flags, (*offset).into(), (*len).into())
            }
            Op::Chmod(p, mode) => {
                self.not_a_link(*p)?;
                rustix::fs::chmod(at(*p), Mode::from_raw_mode(*mode))
            }
            Op::Chown(p, uid, gid) => {
                std::os::unix::fs::lchown(at(*p), Some(*uid), Some(*gid)).map_err(raw)
            }
            Op::SetXattr(p, k, v) => {
                rustix::fs::lsetxattr(at(*p), xattr_name(*k), v, XattrFlags::empty())
            }
            Op::RemoveXattr(p, k) => {
                self.not_for_acl(*p, *k)?;
                rustix::fs::lremovexattr(at(*p), xattr_name(*k))
            }
            Op::List(p) => std::fs::read_dir(self.dir(*p)?).map(drop).map_err(raw),
            Op::Stat(p) => std::fs::symlink_metadata(at(*p)).map(drop).map_err(raw),
            Op::SetTime(p, secs) => {
                let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
                let to = Timespec { tv_sec: i64::from(*secs), tv_nsec: 7 };
                let times = Timestamps { last_access: omit, last_modification: to };
                rustix::fs::utimensat(CWD, at(*p), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::Device(p) => {
                let (kind, dev) =
                    (rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
                rustix::fs::mknodat(CWD, at(*p), kind, Mode::from_raw_mode(0o640), dev)
            }
            Op::Allocate(p, offset, len, keep) => {
                let flags = if *keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                rustix::fs::fallocate(self.open(*p)?, flags, (*offset).into(), (*len).into())
            }
            Op::Copy(a, from, b, to, len) => {
                let (source, target) = (self.open(*a)?, self.open(*b)?);
                let (one, two) = (rustix::fs::fstat(&source)?, rustix::fs::fstat(&target)?);
                if one.st_ino == two.st_ino {
                    return Err(Errno::INVAL);
                }
                let mut buf = vec![0; usize::from(*len)];
                let n = rustix::io::pread(&source, &mut buf, u64::from(*from))?;
                rustix::io::pwrite(&target, &buf[..n], u64::from(*to)).map(drop)
            }
            Op::Unnamed(p, mode, data) => {
                let (path, mode) = (at(*p), Mode::from_raw_mode(*mode));
                let dir = path.parent().expect("below the root");
                let fd = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, mode)?;
                rustix::io::pwrite(&fd, data, 0)?;
                let fd = format!("/proc/self/fd/{}", fd.as_raw_fd());
                rustix::fs::linkat(CWD, fd, CWD, path, AtFlags::SYMLINK_FOLLOW)
            }
            Op::SetAcl(p, default, perms) => {
                let k = 2 + u8::from(*default);
                self.not_for_acl(*p, k)?;
                let value = acl_bytes(*perms);
                rustix::fs::lsetxattr(at(*p), xattr_name(k), &value, XattrFlags::empty())
            }
        }
    }
    /// ACLs of anything but files and directories are answered by the kernel alone.
    fn not_for_acl(&self, p: usize, k: u8) -> Result<(), Errno> {
        let raw = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let meta = std::fs::symlink_metadata(self.0.join(PATHS[p])).map_err(raw)?;
        acl_allowed(Kind::from_mode(meta.mode()).expect("kind"), k)
    }
    /// Symbolic links on the way are not followed in these tests.
    fn check_parents(&self, p: usize) -> Result<(), Errno> {
        let raw = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let mut at = self.0.clone();
        let names: Vec<_> = PATHS[p].split('/').collect();
        for name in &names[..names.len() - 1] {
            at.push(name);
            if !std::fs::symlink_metadata(&at).map_err(raw)?.is_dir() {
                return Err(Errno::NOTDIR);
            }
        }
        Ok(())
    }
    fn not_a_link(&self, p: usize) -> Result<std::fs::Metadata, Errno> {
        let raw = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let meta = std::fs::symlink_metadata(self.0.join(PATHS[p])).map_err(raw)?;
        if meta.is_symlink() { Err(Errno::LOOP) } else { Ok(meta) }
    }
    fn dir(&self, p: usize) -> Result<PathBuf, Errno> {
        if self.not_a_link(p)?.is_dir() { Ok(self.0.join(PATHS[p])) } else { Err(Errno::NOTDIR) }
    }
    /// Only regular files, so that a FIFO never blocks.
    fn open(&self, p: usize) -> Result<rustix::fd::OwnedFd, Errno> {
        if !self.not_a_link(p)?.is_file() {
            return Err(Errno::INVAL);
        }
        rustix::fs::open(self.0.join(PATHS[p]), OFlags::RDWR, Mode::empty())
    }
}

/// What the kernel checks before it asks a file system about ACLs.
fn acl_allowed(kind: Kind, k: u8) -> Result<(), Errno> {
    match (k, kind) {
        (0 | 1, _) | (2, Kind::File | Kind::Dir) | (3, Kind::Dir) => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// A view of a new transaction, which learns of its loss as in the daemon.
pub fn open_view(vol: &Arc<Volume>, txn: u64, isolation: Isolation) -> Arc<View> {
    new_view(vol, txn, BeginOptions { isolation, ..BeginOptions::default() }, false)
}

pub fn new_view(vol: &Arc<Volume>, txn: u64, options: BeginOptions, opaque: bool) -> Arc<View> {
    view_beside(Arc::new(Nobody(vol.clone())), txn, options, opaque)
}

/// A view beside others that work on the volume.
pub fn view_beside(
    others: Arc<dyn Neighbours>,
    txn: u64,
    options: BeginOptions,
    opaque: bool,
) -> Arc<View> {
    let vol = Arc::clone(others.volume());
    let txn = TxnId(txn);
    let isolation = options.isolation;
    vol.engine.begin(txn, options);
    let config = ViewConfig {
        txn,
        isolation,
        ids: Ids::Faithful,
        spill: Arc::new(NoSpill),
        budget: Budget::new(64 << 20),
        mount_points: Vec::new(),
        opaque,
    };
    let view = Arc::new(View::new(others, config).expect("view"));
    let lost = Arc::downgrade(&view);
    vol.engine.on_doom(txn, move |_, _| {
        if let Some(view) = lost.upgrade() {
            view.cancel();
        }
    });
    view
}

/// A volume over a directory.
pub fn open_volume(root: &Path) -> Arc<Volume> {
    let io: Arc<dyn Io> = Arc::new(RealIo::open(root).expect("backing directory"));
    Arc::new(Volume::new(io, Vec::new(), HashSet::new()).expect("volume"))
}

/// The calls on the view, with the checks that the kernel would make before it asks.
pub struct Twin<V: Requests = View>(pub Arc<V>);

impl Twin {
    pub fn over(root: &Path) -> Twin {
        Twin(open_view(&open_volume(root), 7, Isolation::Serializable))
    }
}

impl<V: Requests> Twin<V> {
    pub fn walk(&self, path: &str) -> Result<Entry, Errno> {
        let mut at = self.0.root()?;
        for name in path.split('/') {
            if at.attr.kind != Kind::Dir {
                return Err(Errno::NOTDIR);
            }
            at = self.0.lookup(CALLER, at.node, name.as_bytes())?.ok_or(Errno::NOENT)?;
        }
        Ok(at)
    }

    /// The directory of a path, and the last name.
    pub fn parent<'a>(&self, path: &'a str) -> Result<(NodeId, &'a [u8]), Errno> {
        let Some((dir, name)) = path.rsplit_once('/') else {
            return Ok((NodeId::ROOT, path.as_bytes()));
        };
        let up = self.walk(dir)?;
        if up.attr.kind != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        Ok((up.node, name.as_bytes()))
    }

    pub fn file(&self, p: usize) -> Result<NodeId, Errno> {
        let entry = self.walk(PATHS[p])?;
        match entry.attr.kind {
            Kind::File => Ok(entry.node),
            Kind::Symlink => Err(Errno::LOOP),
            _ => Err(Errno::INVAL),
        }
    }

    pub fn run(&self, op: &Op) -> Result<(), Errno> {
        let v = &self.0;
        match op {
            Op::Create(p, mode) => {
                let (up, name) = self.parent(PATHS[*p])?;
                let new = NewAttr { mode: *mode, umask: 0o022 };
                v.create(CALLER, up, name, new, true).map(drop)
            }
            Op::Mkdir(p, mode) => {
                let (up, name) = self.parent(PATHS[*p])?;
                v.mkdir(CALLER, up, name, NewAttr { mode: *mode, umask: 0o022 }).map(drop)
            }
            Op::Symlink(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                v.symlink(CALLER, up, name, b"target").map(drop)
            }
            Op::Fifo(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                let new = NewAttr { mode: 0o640, umask: 0o022 };
                v.mknod(CALLER, up, name, Kind::Fifo, new, 0).map(drop)
            }
            Op::Link(a, b) => {
                self.parent(PATHS[*a])?;
                let (up, name) = self.parent(PATHS[*b])?;
                let node = self.walk(PATHS[*a])?;
                if v.lookup(CALLER, up, name)?.is_some() {
                    return Err(Errno::EXIST);
                }
                v.link(CALLER, node.node, up, name).map(drop)
            }
            Op::Unlink(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                v.unlink(CALLER, up, name)
            }
            Op::Rmdir(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                v.rmdir(CALLER, up, name)
            }
            Op::Rename(a, b, how) => {
                let from = self.parent(PATHS[*a])?;
                let to = self.parent(PATHS[*b])?;
                v.rename(CALLER, from, to, *how)
            }
            Op::Write(p, offset, data) => {
                v.write(self.file(*p)?, u64::from(*offset), data, false).map(drop)
            }
            Op::Truncate(p, len) => {
                let set = SetAttr { size: Some(u64::from(*len)), ..SetAttr::default() };
                v.setattr(CALLER, self.file(*p)?, set).map(drop)
            }
            Op::Punch(p, offset, len) => {
                v.fallocate(self.file(*p)?, Fallocate::PunchHole, (*offset).into(), (*len).into())
            }
            Op::Chmod(p, mode) => {
                let entry = self.walk(PATHS[*p])?;
                if entry.attr.kind == Kind::Symlink {
                    return Err(Errno::LOOP);
                }
                let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                v.setattr(CALLER, entry.node, set).map(drop)
            }
            Op::Chown(p, uid, gid) => {
                let node = self.walk(PATHS[*p])?.node;
                let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
                v.setattr(CALLER, node, set).map(drop)
            }
            Op::SetXattr(p, k, value) => {
                let node = self.walk(PATHS[*p])?.node;
                let key = xattr_name(*k).as_bytes();
                v.setxattr(CALLER, node, key, value, SetXattr::Any, false)
            }
            Op::RemoveXattr(p, k) => {
                let node = self.walk(PATHS[*p])?;
                acl_allowed(node.attr.kind, *k)?;
                let special = !matches!(node.attr.kind, Kind::File | Kind::Dir);
                if special {
                    // The kernel answers this one itself (fs/xattr.c `xattr_permission`).
                    return Err(Errno::PERM);
                }
                v.removexattr(CALLER, node.node, xattr_name(*k).as_bytes())
            }
            Op::List(p) => {
                let entry = self.walk(PATHS[*p])?;
                match entry.attr.kind {
                    Kind::Dir => v.readdir(entry.node, 0, true, &mut |_| true),
                    Kind::Symlink => Err(Errno::LOOP),
                    _ => Err(Errno::NOTDIR),
                }
            }
            Op::Stat(p) => self.walk(PATHS[*p]).map(drop),
            Op::SetTime(p, secs) => {
                let node = self.walk(PATHS[*p])?.node;
                let to = SetTime::To(Time { secs: i64::from(*secs), nanos: 7 });
                v.setattr(CALLER, node, SetAttr { mtime: Some(to), ..SetAttr::default() }).map(drop)
            }
            Op::Device(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                let new = NewAttr { mode: 0o640, umask: 0o022 };
                let dev = rustix::fs::makedev(1, 3);
                v.mknod(CALLER, up, name, Kind::CharDev, new, dev).map(drop)
            }
            Op::Allocate(p, offset, len, keep) => {
                let how = if *keep { Fallocate::KeepSize } else { Fallocate::Allocate };
                v.fallocate(self.file(*p)?, how, (*offset).into(), (*len).into())
            }
            Op::Copy(a, from, b, to, len) => {
                self.parent(PATHS[*a])?;
                self.parent(PATHS[*b])?;
                let (source, target) = (self.file(*a)?, self.file(*b)?);
                if source == target {
                    return Err(Errno::INVAL);
                }
                let (from, to) = ((source, u64::from(*from)), (target, u64::from(*to)));
                v.copy_file_range(from, to, u64::from(*len)).map(drop)
            }
            Op::Unnamed(p, mode, data) => {
                let (up, name) = self.parent(PATHS[*p])?;
                let file = v.tmpfile(CALLER, up, NewAttr { mode: *mode, umask: 0o022 })?.node;
                v.write(file, 0, data, false)?;
                if v.lookup(CALLER, up, name)?.is_some() {
                    return Err(Errno::EXIST);
                }
                v.link(CALLER, file, up, name).map(drop)
            }
            Op::SetAcl(p, default, perms) => {
                let node = self.walk(PATHS[*p])?;
                let k = 2 + u8::from(*default);
                acl_allowed(node.attr.kind, k)?;
                let key = xattr_name(k).as_bytes();
                v.setxattr(CALLER, node.node, key, &acl_bytes(*perms), SetXattr::Any, false)
            }
        }
    }
}

/// One object as the comparison sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u64,
    pub data: Bytes,
    pub xattrs: BTreeMap<String, Bytes>,
    /// If it was set by a call.
    pub mtime: Option<i64>,
    /// The first name of the same file, where it has several.
    pub twin: Option<String>,
}

/// Bytes that print short.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = &self.0[..self.0.len().min(12)];
        write!(f, "{} bytes {head:?}", self.0.len())
    }
}

/// Path (with a leading slash) → object; the root itself is left out.
pub type Tree = BTreeMap<String, Seen>;

/// Fills in `twin`; `inos` has one number for each object.
pub fn find_twins(tree: &mut Tree, inos: &BTreeMap<String, u64>) {
    let mut first: BTreeMap<u64, String> = BTreeMap::new();
    for (path, seen) in tree.iter_mut().filter(|(_, seen)| seen.kind != Kind::Dir) {
        match first.get(&inos[path]) {
            Some(other) => seen.twin = Some(other.clone()),
            None => drop(first.insert(inos[path], path.clone())),
        }
    }
}

fn host_xattrs(path: &Path) -> BTreeMap<String, Bytes> {
    let mut names = vec![0; 4096];
    let n = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut out = BTreeMap::new();
    for key in names[..n].split(|b| *b == 0).filter(|key| !key.is_empty()) {
        let mut value = vec![0; 65_536];
        let n = rustix::fs::lgetxattr(path, key, &mut value[..]).expect("value");
        value.truncate(n);
        out.insert(String::from_utf8_lossy(key).into_owned(), Bytes(value));
    }
    out
}

pub fn host_tree(root: &Path) -> Tree {
    fn go(dir: &Path, prefix: &str, out: &mut Tree, inos: &mut BTreeMap<String, u64>) {
        for item in std::fs::read_dir(dir).expect("list") {
            let item = item.expect("entry");
            let path = item.path();
            let name = format!("{prefix}/{}", item.file_name().to_string_lossy());
            if name == format!("/{STATE}") {
                continue;
            }
            let meta = std::fs::symlink_metadata(&path).expect("stat");
            let kind = Kind::from_mode(meta.mode()).expect("kind");
            let data = match kind {
                Kind::File => std::fs::read(&path).expect("read"),
                Kind::Symlink => {
                    std::fs::read_link(&path).expect("link").into_os_string().into_encoded_bytes()
                }
                _ => Vec::new(),
            };
            let seen = Seen {
                kind,
                mode: meta.mode() & 0o7777,
                uid: meta.uid(),
                gid: meta.gid(),
                nlink: meta.nlink() as u32,
                rdev: meta.rdev(),
                data: Bytes(data),
                xattrs: host_xattrs(&path),
                mtime: explicit(meta.mtime()),
                twin: None,
            };
            out.insert(name.clone(), seen);
            inos.insert(name.clone(), meta.ino());
            if kind == Kind::Dir {
                go(&path, &name, out, inos);
            }
        }
    }
    let (mut out, mut inos) = (Tree::new(), BTreeMap::new());
    go(root, "", &mut out, &mut inos);
    find_twins(&mut out, &inos);
    out
}

pub fn view_tree(view: &Arc<impl Requests>) -> Tree {
    type Inos = BTreeMap<String, u64>;
    fn go(view: &impl Requests, dir: NodeId, prefix: &str, out: &mut Tree, inos: &mut Inos) {
        let mut found = Vec::new();
        view.readdir(dir, 0, true, &mut |e| {
            if let Some(entry) = e.entry {
                assert_eq!((e.ino, e.kind), (entry.attr.ino, entry.attr.kind));
            }
            if e.name != b"." && e.name != b".." {
                found.push((e.name.to_vec(), e.kind, e.entry));
            }
            true
        })
        .expect("readdir");
        for (name, kind, entry) in found {
            // As the kernel does for a program that uses it.
            let look = || view.lookup(CALLER, dir, &name).expect("lookup").expect("it is listed");
            let entry = entry.unwrap_or_else(look);
            assert_eq!(entry.attr.kind, kind);
            let name = String::from_utf8_lossy(&name).into_owned();
            let a = entry.attr;
            let data = match a.kind {
                Kind::File => {
                    let mut buf = vec![0; a.size as usize];
                    let n = view.read(entry.node, 0, &mut buf).expect("read");
                    assert_eq!(n, buf.len());
                    buf
                }
                Kind::Symlink => view.readlink(entry.node).expect("readlink"),
                _ => Vec::new(),
            };
            let mut xattrs = BTreeMap::new();
            let keys = view.listxattr(entry.node).expect("listxattr");
            for key in keys.split(|b| *b == 0).filter(|key| !key.is_empty()) {
                let value = view.getxattr(entry.node, key).expect("a listed attribute");
                xattrs.insert(String::from_utf8_lossy(key).into_owned(), Bytes(value));
            }
            let name = format!("{prefix}/{name}");
            let seen = Seen {
                kind: a.kind,
                mode: a.mode,
                uid: a.uid,
                gid: a.gid,
                nlink: a.nlink,
                rdev: a.rdev,
                data: Bytes(data),
                xattrs,
                mtime: explicit(a.mtime.secs),
                twin: None,
            };
            out.insert(name.clone(), seen);
            inos.insert(name.clone(), entry.node.0);
            if a.kind == Kind::Dir {
                go(view, entry.node, &name, out, inos);
            }
        }
    }
    let (mut out, mut inos) = (Tree::new(), BTreeMap::new());
    go(&**view, NodeId::ROOT, "", &mut out, &mut inos);
    find_twins(&mut out, &inos);
    out
}

/// What the first difference of two trees is, in one line.
pub fn difference(want: &Tree, got: &Tree) -> Option<String> {
    let paths: std::collections::BTreeSet<_> = want.keys().chain(got.keys()).collect();
    paths
        .into_iter()
        .find(|p| want.get(*p) != got.get(*p))
        .map(|path| format!("{path}\n  want {:?}\n  got  {:?}", want.get(path), got.get(path)))
}

/// What lies at or below some paths, as a user asks for it.
pub struct Below<'a>(pub &'a BTreeSet<usize>);

impl Selection for Below<'_> {
    fn takes(&self, path: &[u8]) -> bool {
        self.0.iter().any(|p| {
            let rest = path.strip_prefix(PATHS[*p].as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
    }
}

/// Whether two trees are equal, times of directories aside that nobody set: they are made when the
/// commit is installed, and stay as they were if there is nothing to install.
pub fn differ(want: &Tree, got: &Tree) -> Option<String> {
    let mut got = got.clone();
    for (path, seen) in got.iter_mut().filter(|(_, s)| s.kind == Kind::Dir) {
        let wanted = want.get(path).and_then(|s| s.mtime);
        if wanted.is_none() {
            seen.mtime = None;
        }
    }
    difference(want, &got)
}

/// A write set that can be read.
pub fn brief(writes: &WriteSet) -> String {
    let mut out = String::new();
    for (i, object) in writes.objects.iter().enumerate() {
        let origin = match &object.origin {
            Origin::Host { parent, name, .. } => {
                format!("{} {}", parent.0, String::from_utf8_lossy(name))
            }
            other => format!("{other:?}"),
        };
        out += &format!("  {i}: {origin} {:?}\n", object.attrs);
    }
    for bind in &writes.binds {
        let name = String::from_utf8_lossy(&bind.name);
        out += &format!("  {} {name} = {:?} was {:?}\n", bind.dir.0, bind.target, bind.displaces);
    }
    out
}

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: chown needs root");
    }
    root
}
