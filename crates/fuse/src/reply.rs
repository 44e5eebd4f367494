//! From a view's answer to the bytes of a reply.

use std::time::Duration;

use rustix::fs::FileType;
use rustix::io::Errno;
use systx_base::{Kind, NodeId, Time};
use systx_vfs::api::{Attr, DirEntry, Entry, Lock, LockKind, StatFs, Valid};
use zerocopy::IntoBytes;

use crate::config::Config;
use crate::mapped::is_hollow;
use crate::wire;

/// A time to live as the kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ttl {
    secs: u64,
    nanos: u32,
}

impl From<Duration> for Ttl {
    fn from(d: Duration) -> Self {
        // 136 years are for ever, and far from where the kernel's arithmetic could overflow.
        let secs = d.as_secs().min(u64::from(u32::MAX));
        Ttl { secs, nanos: d.subsec_nanos() }
    }
}

/// How long the kernel may keep what it is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ttls {
    entry: Ttl,
    attr: Ttl,
    dir_attr: Ttl,
    negative: Ttl,
}

impl From<&Config> for Ttls {
    fn from(c: &Config) -> Self {
        Ttls {
            entry: c.entry_timeout.into(),
            attr: c.attr_timeout.into(),
            dir_attr: c.attr_timeout.into(),
            negative: c.negative_timeout.into(),
        }
    }
}

/// An answer with a body, except those that are written in place (READ, listings).
#[derive(Debug)]
pub(crate) enum Answer {
    Empty,
    Entry(wire::EntryOut),
    Attr(wire::AttrOut),
    Statx(Box<wire::StatxOut>),
    Open(wire::OpenOut),
    Create(wire::EntryOut, wire::OpenOut),
    Written(u32),
    Copied(u64),
    Seek(u64),
    Statfs(wire::StatfsOut),
    Lock(wire::LkOut),
    /// The value of an attribute, or only its length if the caller gave no space.
    Value {
        value: Vec<u8>,
        space: u32,
    },
    Bytes(Vec<u8>),
    Ioctl(u32),
    IoctlXattr(wire::FsXattr),
    IoctlBytes(Vec<u8>),
}

impl Answer {
    /// The directory whose attributes it has, of a request about `node`.
    pub fn directory(&self, node: NodeId) -> Option<NodeId> {
        let (told, mode) = match self {
            Answer::Entry(entry) => (NodeId(entry.nodeid), entry.attr.mode),
            Answer::Attr(attr) => (node, attr.attr.mode),
            Answer::Statx(statx) => (node, statx.mode.into()),
            _ => return None,
        };
        (FileType::from_raw_mode(mode) == FileType::Directory).then_some(told)
    }

    /// Writes the body to the start of `payload` and returns its length.
    pub fn encode(&self, payload: &mut [u8]) -> Result<usize, Errno> {
        let ioctl = wire::IoctlOut::default();
        match self {
            Answer::Empty => Ok(0),
            Answer::Entry(entry) => put(payload, &[entry.as_bytes()]),
            Answer::Attr(attr) => put(payload, &[attr.as_bytes()]),
            Answer::Statx(statx) => put(payload, &[statx.as_bytes()]),
            Answer::Open(open) => put(payload, &[open.as_bytes()]),
            Answer::Create(entry, open) => put(payload, &[entry.as_bytes(), open.as_bytes()]),
            Answer::Written(size) => {
                put(payload, &[wire::WriteOut { size: *size, padding: 0 }.as_bytes()])
            }
            Answer::Copied(n) => put(payload, &[wire::CopyOut { bytes_copied: *n }.as_bytes()]),
            Answer::Seek(offset) => put(payload, &[wire::LseekOut { offset: *offset }.as_bytes()]),
            Answer::Statfs(st) => put(payload, &[st.as_bytes()]),
            Answer::Lock(lock) => put(payload, &[lock.as_bytes()]),
            Answer::Value { value, space: 0 } => {
                let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
                put(payload, &[wire::GetxattrOut { size, padding: 0 }.as_bytes()])
            }
            Answer::Value { value, space } if value.len() > *space as usize => Err(Errno::RANGE),
            Answer::Value { value, .. } | Answer::Bytes(value) => put(payload, &[value]),
            Answer::Ioctl(flags) => put(payload, &[ioctl.as_bytes(), flags.as_bytes()]),
            Answer::IoctlXattr(data) => put(payload, &[ioctl.as_bytes(), data.as_bytes()]),
            Answer::IoctlBytes(data) => put(payload, &[ioctl.as_bytes(), data]),
        }
    }
}

fn put(payload: &mut [u8], parts: &[&[u8]]) -> Result<usize, Errno> {
    let mut at = 0;
    for part in parts {
        let to = payload.get_mut(at..at + part.len()).ok_or(Errno::OVERFLOW)?;
        to.copy_from_slice(part);
        at += part.len();
    }
    Ok(at)
}

impl Ttls {
    /// These, where the view does not say otherwise.
    pub fn but(self, valid: Valid) -> Ttls {
        Ttls {
            entry: valid.name.map_or(self.entry, Ttl::from),
            attr: valid.attr.map_or(self.attr, Ttl::from),
            dir_attr: valid.dir_attr.or(valid.attr).map_or(self.dir_attr, Ttl::from),
            negative: valid.name.map_or(self.negative, Ttl::from),
        }
    }

    fn valid(&self, a: &Attr) -> Ttl {
        match a.kind {
            Kind::Dir => self.dir_attr,
            // A store to a mapping may be all that there is in it.
            _ if is_hollow(a) => Duration::ZERO.into(),
            _ => self.attr,
        }
    }

    pub fn entry(&self, e: &Entry) -> wire::EntryOut {
        let valid = self.valid(&e.attr);
        wire::EntryOut {
            nodeid: e.node.0,
            generation: e.generation,
            entry_valid: self.entry.secs,
            entry_valid_nsec: self.entry.nanos,
            attr_valid: valid.secs,
            attr_valid_nsec: valid.nanos,
            attr: attr(&e.attr),
        }
    }

    /// "There is no such name, and you may remember that."
    pub fn absent(&self) -> wire::EntryOut {
        wire::EntryOut {
            entry_valid: self.negative.secs,
            entry_valid_nsec: self.negative.nanos,
            ..wire::EntryOut::default()
        }
    }

    pub fn attr(&self, a: &Attr) -> wire::AttrOut {
        let valid = self.valid(a);
        wire::AttrOut {
            attr_valid: valid.secs,
            attr_valid_nsec: valid.nanos,
            dummy: 0,
            attr: attr(a),
        }
    }

    /// As [`Ttls::attr`], with the time of birth.
    pub fn statx(&self, a: &Attr, born: Option<Time>) -> wire::StatxOut {
        let valid = self.valid(a);
        let time = |t: Time| wire::StatxTime { secs: t.secs, nanos: t.nanos, reserved: 0 };
        let basic = attr(a);
        wire::StatxOut {
            attr_valid: valid.secs,
            attr_valid_nsec: valid.nanos,
            mask: wire::STATX_BASIC | born.map_or(0, |_| wire::STATX_BTIME),
            blksize: basic.blksize,
            nlink: basic.nlink,
            uid: basic.uid,
            gid: basic.gid,
            mode: basic.mode as u16, // S_IFMT and the 12 bits below it
            ino: basic.ino,
            size: basic.size,
            blocks: basic.blocks,
            atime: time(a.atime),
            btime: time(born.unwrap_or_default()),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: rustix::fs::major(u64::from(basic.rdev)),
            rdev_minor: rustix::fs::minor(u64::from(basic.rdev)),
            ..wire::StatxOut::default()
        }
    }
}

fn attr(a: &Attr) -> wire::AttrWire {
    wire::AttrWire {
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.secs as u64, // two's complement on the wire
        mtime: a.mtime.secs as u64,
        ctime: a.ctime.secs as u64,
        atimensec: a.atime.nanos,
        mtimensec: a.mtime.nanos,
        ctimensec: a.ctime.nanos,
        mode: a.kind.mode_bits() | (a.mode & 0o7777),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: match a.kind {
            // `makedev` and the kernel's 32-bit encoding agree for majors below 4096, and Linux
            // has no others.
            Kind::CharDev | Kind::BlockDev => a.rdev as u32,
            _ => 0,
        },
        blksize: a.blksize,
        flags: 0,
    }
}

pub(crate) fn statfs(s: &StatFs) -> wire::StatfsOut {
    wire::StatfsOut {
        blocks: s.blocks,
        bfree: s.bfree,
        bavail: s.bavail,
        files: s.files,
        ffree: s.ffree,
        bsize: s.bsize,
        namelen: s.namelen,
        frsize: s.frsize,
        ..wire::StatfsOut::default()
    }
}

pub(crate) fn lock(found: Option<Lock>, asked: &Lock) -> wire::LkOut {
    let lock = found.unwrap_or(Lock { kind: LockKind::Unlock, ..*asked });
    let kind = match lock.kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    // The kernel answers EIO to an end beyond OFFSET_MAX.
    let end = lock.end.min(i64::MAX as u64);
    wire::LkOut { lk: wire::FileLock { start: lock.start, end, kind: kind as u32, pid: lock.pid } }
}

/// `FS_*_FL` flags of FS_IOC_GETFLAGS as the `FS_XFLAG_*` of FS_IOC_FSGETXATTR.
pub(crate) fn xflags(flags: u32) -> u32 {
    // (FS_SYNC_FL, IMMUTABLE, APPEND, NODUMP, NOATIME, PROJINHERIT, DAX)
    const MAP: [(u32, u32); 7] = [
        (0x0000_0008, 0x0000_0020),
        (0x0000_0010, 0x0000_0008),
        (0x0000_0020, 0x0000_0010),
        (0x0000_0040, 0x0000_0080),
        (0x0000_0080, 0x0000_0040),
        (0x2000_0000, 0x0000_0200),
        (0x0200_0000, 0x0000_8000),
    ];
    MAP.iter().filter(|(fl, _)| flags & fl != 0).fold(0, |all, (_, xflag)| all | xflag)
}

/// Packs a listing into a payload.
pub(crate) struct Listing<'a> {
    buffer: &'a mut [u8],
    len: usize,
    ttls: Option<Ttls>,
}

impl<'a> Listing<'a> {
    /// `ttls`: with attributes (READDIRPLUS).
    pub fn new(buffer: &'a mut [u8], ttls: Option<Ttls>) -> Self {
        Listing { buffer, len: 0, ttls }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends an entry; false if it does not fit.
    pub fn push(&mut self, e: &DirEntry<'_>) -> bool {
        let Ok(namelen) = u32::try_from(e.name.len()) else { return false };
        let kind = e.kind.dirent_type();
        let dirent = wire::DirentOut { ino: e.ino, off: e.next, namelen, kind };
        let entry = self.ttls.map(|ttls| {
            // A node id of 0 says that attributes are not included.
            e.entry.as_ref().map_or_else(wire::EntryOut::default, |entry| ttls.entry(entry))
        });
        let head: &[u8] = entry.as_ref().map_or(&[], IntoBytes::as_bytes);
        let used = head.len() + size_of::<wire::DirentOut>() + e.name.len();
        let padded = used.next_multiple_of(8);
        let Some(to) = self.buffer.get_mut(self.len..self.len + padded) else { return false };
        let parts: [&[u8]; 3] = [head, dirent.as_bytes(), e.name];
        if put(to, &parts).is_err() {
            return false;
        }
        to[used..].fill(0);
        self.len += padded;
        true
    }
}
