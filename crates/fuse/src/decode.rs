//! From the bytes of a request to a typed [`Operation`].  The one place where lengths and names
//! from the wire are believed or refused; nothing behind it looks at raw bytes again.
//!
//! A request's body has two parts: `fixed`, the structure that its opcode prescribes, and `data`,
//! the names and bytes that follow.  /dev/fuse delivers them joined, io_uring in two buffers.
//!
//! Invariants: never panics; never reads beyond the slices; a name that leaves here is one path
//! component (1 to 255 bytes, no NUL, no `/`, neither `.` nor `..`).

use rustix::io::Errno;
use systx_base::{Kind, NodeId, Time};
use systx_vfs::api::{
    Fallocate, Lock, LockKind, NewAttr, OpenHow, RenameHow, Seek, SetAttr, SetTime, SetXattr,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::wire::{self, Opcode, fattr};

/// The longest name of Linux file systems (`NAME_MAX`).
const NAME_MAX: usize = 255;

/// Why a request is not dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes are not a request of this protocol: answered `EIO` and logged.
    Malformed(&'static str),
    /// A well-formed request for something that this layer knows to be impossible.
    Errno(Errno),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Refusal::Errno(errno)
    }
}

/// A range of a file to read, or of a directory to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Byte offset, or the cookie of a listing.
    pub offset: u64,
    /// Wanted length of the answer.
    pub size: u32,
}

/// open(2) of a name that the kernel believes absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// The name.
    pub name: &'a [u8],
    /// What the new file starts with.
    pub new: NewAttr,
    /// `O_EXCL`.
    pub exclusive: bool,
    /// `O_TRUNC`, should the name exist after all.
    pub truncate: bool,
    /// Truncation drops the set-id bits.
    pub kill: bool,
    /// How it is opened.
    pub how: OpenHow,
}

/// A request as [`systx_vfs::api::Requests`] understands it, or one that this layer answers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // one variant per opcode, fields named as in `Requests`
pub enum Operation<'a> {
    Lookup { name: &'a [u8] },
    Forget { count: u64 },
    BatchForget { list: &'a [u8] },
    Getattr { open: bool, birth: bool },
    Setattr { set: SetAttr },
    Readlink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    Mknod { name: &'a [u8], kind: Kind, new: NewAttr, rdev: u64 },
    Mkdir { name: &'a [u8], new: NewAttr },
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename { name: &'a [u8], to: NodeId, to_name: &'a [u8], how: RenameHow },
    Link { node: NodeId, name: &'a [u8] },
    Open { how: OpenHow },
    Create(Create<'a>),
    Tmpfile { new: NewAttr, how: OpenHow },
    Release { handle: u64 },
    Flush { owner: u64 },
    Fsync { data_only: bool },
    Read(Window),
    List { window: Window, attributes: bool },
    Write { offset: u64, data: &'a [u8], kill: bool, append: bool, back: bool },
    Statfs,
    Setxattr { key: &'a [u8], value: &'a [u8], how: SetXattr, kill_sgid: bool },
    Getxattr { key: &'a [u8], size: u32 },
    Listxattr { size: u32 },
    Removexattr { key: &'a [u8] },
    Init(wire::InitIn),
    Getlk { handle: u64, lock: Lock },
    Setlk { handle: u64, lock: Lock, wait: bool },
    Interrupt { unique: u64 },
    Destroy,
    Ioctl { cmd: u32, arg: &'a [u8], out_size: u32 },
    Fallocate { how: Fallocate, offset: u64, len: u64 },
    Lseek { offset: u64, how: Seek },
    Copy { from: u64, to: NodeId, to_offset: u64, len: u64, wide: bool },
    Syncfs,
    NotifyReply,
}

impl Operation<'_> {
    /// The directories of which it changes a name; `node`: what it is about.
    pub fn changes_names(&self, node: NodeId) -> [Option<NodeId>; 2] {
        use Operation as O;
        match self {
            O::Rename { to, .. } if *to != node => [Some(node), Some(*to)],
            O::Rename { .. }
            | O::Symlink { .. }
            | O::Mknod { .. }
            | O::Mkdir { .. }
            | O::Unlink { .. }
            | O::Rmdir { .. }
            | O::Link { .. }
            | O::Create(_) => [Some(node), None],
            _ => [None, None],
        }
    }
}

/// Decodes a request.  `fixed` may be longer than the structure (io_uring's area always is).
pub fn decode<'a>(opcode: Opcode, fixed: &[u8], data: &'a [u8]) -> Result<Operation<'a>, Refusal> {
    use Opcode as O;
    Ok(match opcode {
        O::Lookup => Operation::Lookup { name: looked_up(data)? },
        O::Unlink => Operation::Unlink { name: only_name(data)? },
        O::Rmdir => Operation::Rmdir { name: only_name(data)? },
        O::Symlink | O::Mknod | O::Mkdir | O::Link | O::Create | O::Tmpfile => {
            creation(opcode, fixed, data)?
        }
        O::Rename | O::Rename2 => rename(opcode, fixed, data)?,
        O::Forget => Operation::Forget { count: take::<wire::ForgetIn>(fixed)?.nlookup },
        O::BatchForget => batch_forget(fixed, data)?,
        O::Getattr => {
            let flags = take::<wire::GetattrIn>(fixed)?.getattr_flags;
            Operation::Getattr { open: flags & wire::GETATTR_FH != 0, birth: false }
        }
        O::Statx => {
            let flags = take::<wire::StatxIn>(fixed)?.getattr_flags;
            Operation::Getattr { open: flags & wire::GETATTR_FH != 0, birth: true }
        }
        O::Setattr => Operation::Setattr { set: setattr(&take(fixed)?)? },
        O::Readlink => Operation::Readlink,
        O::Open | O::Opendir => {
            let o: wire::OpenIn = take(fixed)?;
            Operation::Open { how: open_how(o.flags, opcode == O::Opendir) }
        }
        O::Release | O::Releasedir => {
            Operation::Release { handle: take::<wire::ReleaseIn>(fixed)?.fh }
        }
        O::Flush => Operation::Flush { owner: take::<wire::FlushIn>(fixed)?.lock_owner },
        O::Fsync | O::Fsyncdir => {
            let f: wire::FsyncIn = take(fixed)?;
            Operation::Fsync { data_only: f.fsync_flags & wire::FSYNC_FDATASYNC != 0 }
        }
        O::Read => Operation::Read(window(fixed)?),
        O::Readdir => Operation::List { window: window(fixed)?, attributes: false },
        O::Readdirplus => Operation::List { window: window(fixed)?, attributes: true },
        O::Write => write(fixed, data)?,
        O::Statfs => Operation::Statfs,
        O::Setxattr => setxattr(fixed, data)?,
        O::Getxattr => {
            let size = take::<wire::GetxattrIn>(fixed)?.size;
            Operation::Getxattr { key: only_string(data)?, size }
        }
        O::Listxattr => Operation::Listxattr { size: take::<wire::GetxattrIn>(fixed)?.size },
        O::Removexattr => Operation::Removexattr { key: only_string(data)? },
        O::Init => Operation::Init(take(fixed)?),
        O::Getlk => {
            let (handle, lock) = lock(fixed)?;
            Operation::Getlk { handle, lock }
        }
        O::Setlk | O::Setlkw => {
            let (handle, lock) = lock(fixed)?;
            Operation::Setlk { handle, lock, wait: opcode == O::Setlkw }
        }
        O::Interrupt => Operation::Interrupt { unique: take::<wire::InterruptIn>(fixed)?.unique },
        O::Destroy => Operation::Destroy,
        O::Ioctl => ioctl(&take(fixed)?, data)?,
        O::Fallocate => fallocate(&take(fixed)?)?,
        O::Lseek => lseek(&take(fixed)?)?,
        O::CopyFileRange | O::CopyFileRange64 => copy(&take(fixed)?, opcode == O::CopyFileRange64)?,
        O::Syncfs => Operation::Syncfs,
        O::NotifyReply => Operation::NotifyReply,
        O::Access | O::Bmap | O::Poll | O::Setupmapping | O::Removemapping => {
            return Err(Errno::NOSYS.into());
        }
    })
}

fn ioctl<'a>(i: &wire::IoctlIn, data: &'a [u8]) -> Result<Operation<'a>, Refusal> {
    let arg = data.get(..i.in_size as usize);
    let arg = arg.ok_or(Refusal::Malformed("ioctl shorter than its argument"))?;
    Ok(Operation::Ioctl { cmd: i.cmd, arg, out_size: i.out_size })
}

fn take<T: FromBytes + KnownLayout + Immutable>(fixed: &[u8]) -> Result<T, Refusal> {
    T::read_from_prefix(fixed)
        .map(|(value, _)| value)
        .map_err(|_| Refusal::Malformed("request shorter than its structure"))
}

/// Splits off a NUL-terminated string.
fn string(data: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let end = data.iter().position(|b| *b == 0).ok_or(Refusal::Malformed("string without end"))?;
    Ok((&data[..end], &data[end + 1..]))
}

fn only_string(data: &[u8]) -> Result<&[u8], Refusal> {
    match string(data)? {
        (s, []) => Ok(s),
        _ => Err(Refusal::Malformed("bytes after the string")),
    }
}

fn check_name(name: &[u8]) -> Result<&[u8], Refusal> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(Refusal::Malformed("not a path component"));
    }
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(name)
}

/// The kernel looks up `.` in a node of which it has the number alone, see `Users::ManyByNumber`.
fn looked_up(data: &[u8]) -> Result<&[u8], Refusal> {
    match only_string(data)? {
        b"." => Ok(b"."),
        name => check_name(name),
    }
}

fn only_name(data: &[u8]) -> Result<&[u8], Refusal> {
    check_name(only_string(data)?)
}

fn new_attr(mode: u32, umask: u32) -> NewAttr {
    NewAttr { mode: mode & 0o7777, umask: umask & 0o777 }
}

fn open_how(flags: u32, dir: bool) -> OpenHow {
    let mode = flags as i32 & libc::O_ACCMODE;
    OpenHow {
        read: mode == libc::O_RDONLY || mode == libc::O_RDWR,
        write: mode == libc::O_WRONLY || mode == libc::O_RDWR,
        append: flags as i32 & libc::O_APPEND != 0,
        dir,
    }
}

/// The operations that make a name.
fn creation<'a>(opcode: Opcode, fixed: &[u8], data: &'a [u8]) -> Result<Operation<'a>, Refusal> {
    match opcode {
        Opcode::Symlink => {
            let (name, rest) = string(data)?;
            Ok(Operation::Symlink { name: check_name(name)?, target: only_string(rest)? })
        }
        Opcode::Mknod => {
            let m: wire::MknodIn = take(fixed)?;
            let kind = Kind::from_mode(m.mode).ok_or(Errno::INVAL)?;
            let new = new_attr(m.mode, m.umask);
            Ok(Operation::Mknod { name: only_name(data)?, kind, new, rdev: u64::from(m.rdev) })
        }
        Opcode::Mkdir => {
            let m: wire::MkdirIn = take(fixed)?;
            Ok(Operation::Mkdir { name: only_name(data)?, new: new_attr(m.mode, m.umask) })
        }
        Opcode::Link => {
            let node = NodeId(take::<wire::LinkIn>(fixed)?.oldnodeid);
            Ok(Operation::Link { node, name: only_name(data)? })
        }
        Opcode::Create => {
            let c: wire::CreateIn = take(fixed)?;
            Ok(Operation::Create(Create {
                name: only_name(data)?,
                new: new_attr(c.mode, c.umask),
                exclusive: c.flags & libc::O_EXCL as u32 != 0,
                truncate: c.flags & libc::O_TRUNC as u32 != 0,
                kill: c.open_flags & wire::OPEN_KILL_SUIDGID != 0,
                how: open_how(c.flags, false),
            }))
        }
        // TMPFILE also carries a name, which means nothing ("/" or "#inode").
        _ => {
            let c: wire::CreateIn = take(fixed)?;
            let how = open_how(c.flags, false);
            Ok(Operation::Tmpfile { new: new_attr(c.mode, c.umask), how })
        }
    }
}

fn rename<'a>(opcode: Opcode, fixed: &[u8], data: &'a [u8]) -> Result<Operation<'a>, Refusal> {
    let (to, flags) = if opcode == Opcode::Rename {
        (take::<wire::RenameIn>(fixed)?.newdir, 0)
    } else {
        let r: wire::Rename2In = take(fixed)?;
        (r.newdir, r.flags)
    };
    const WHITEOUT_NO_REPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    let how = match flags {
        0 => RenameHow::Replace,
        libc::RENAME_NOREPLACE => RenameHow::NoReplace,
        libc::RENAME_EXCHANGE => RenameHow::Exchange,
        libc::RENAME_WHITEOUT => RenameHow::Whiteout,
        WHITEOUT_NO_REPLACE => RenameHow::WhiteoutNoReplace,
        _ => return Err(Errno::INVAL.into()),
    };
    let (name, rest) = string(data)?;
    let to_name = only_name(rest)?;
    Ok(Operation::Rename { name: check_name(name)?, to: NodeId(to), to_name, how })
}

fn batch_forget<'a>(fixed: &[u8], data: &'a [u8]) -> Result<Operation<'a>, Refusal> {
    let count = take::<wire::BatchForgetIn>(fixed)?.count as usize;
    let len = count.checked_mul(size_of::<wire::ForgetOne>());
    let list = len.and_then(|len| data.get(..len));
    Ok(Operation::BatchForget { list: list.ok_or(Refusal::Malformed("forget list too short"))? })
}

fn time(secs: u64, nanos: u32) -> Result<Time, Refusal> {
    if nanos >= 1_000_000_000 {
        return Err(Errno::INVAL.into());
    }
    Ok(Time { secs: secs as i64, nanos }) // two's complement on the wire
}

fn setattr(s: &wire::SetattrIn) -> Result<SetAttr, Refusal> {
    let has = |bit: u32| s.valid & bit != 0;
    let stamp = |bit, now, secs, nanos| -> Result<Option<SetTime>, Refusal> {
        Ok(match (has(bit), has(now)) {
            (false, _) => None,
            (true, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::To(time(secs, nanos)?)),
        })
    };
    Ok(SetAttr {
        mode: has(fattr::MODE).then_some(s.mode & 0o7777),
        uid: has(fattr::UID).then_some(s.uid),
        gid: has(fattr::GID).then_some(s.gid),
        size: has(fattr::SIZE).then_some(s.size),
        atime: stamp(fattr::ATIME, fattr::ATIME_NOW, s.atime, s.atimensec)?,
        mtime: stamp(fattr::MTIME, fattr::MTIME_NOW, s.mtime, s.mtimensec)?,
        ctime: if has(fattr::CTIME) { Some(time(s.ctime, s.ctimensec)?) } else { None },
        kill_suidgid: has(fattr::KILL_SUIDGID),
    })
}

fn window(fixed: &[u8]) -> Result<Window, Refusal> {
    let r: wire::ReadIn = take(fixed)?;
    Ok(Window { offset: r.offset, size: r.size })
}

fn write<'a>(fixed: &[u8], data: &'a [u8]) -> Result<Operation<'a>, Refusal> {
    let w: wire::WriteIn = take(fixed)?;
    if w.size as usize != data.len() {
        return Err(Refusal::Malformed("write of another length than its data"));
    }
    if w.offset.checked_add(u64::from(w.size)).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::FBIG.into());
    }
    let kill = w.write_flags & wire::WRITE_KILL_SUIDGID != 0;
    let append = w.flags & libc::O_APPEND as u32 != 0;
    let back = w.write_flags & wire::WRITE_CACHE != 0;
    Ok(Operation::Write { offset: w.offset, data, kill, append, back })
}

fn setxattr<'a>(fixed: &[u8], data: &'a [u8]) -> Result<Operation<'a>, Refusal> {
    let s: wire::SetxattrIn = take(fixed)?;
    let (key, value) = string(data)?;
    if value.len() != s.size as usize {
        return Err(Refusal::Malformed("attribute of another length than its data"));
    }
    let how = match s.flags as i32 {
        0 => SetXattr::Any,
        libc::XATTR_CREATE => SetXattr::Create,
        libc::XATTR_REPLACE => SetXattr::Replace,
        _ => return Err(Errno::INVAL.into()),
    };
    let kill_sgid = s.setxattr_flags & wire::SETXATTR_ACL_KILL_SGID != 0;
    Ok(Operation::Setxattr { key, value, how, kill_sgid })
}

/// The handle of the open, and the lock.
fn lock(fixed: &[u8]) -> Result<(u64, Lock), Refusal> {
    let l: wire::LkIn = take(fixed)?;
    let kind = match l.lk.kind as i32 {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::INVAL.into()),
    };
    if l.lk.start > l.lk.end {
        return Err(Errno::INVAL.into());
    }
    let (start, end) = (l.lk.start, l.lk.end);
    let flock = l.lk_flags & wire::LK_FLOCK != 0;
    let (owner, pid, description) = (l.owner, l.lk.pid, false);
    Ok((l.fh, Lock { owner, pid, start, end, kind, flock, description }))
}

fn fallocate(f: &wire::FallocateIn) -> Result<Operation<'static>, Refusal> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH_KEEP: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | KEEP;
    let how = match f.mode as i32 {
        0 => Fallocate::Allocate,
        KEEP => Fallocate::KeepSize,
        PUNCH_KEEP => Fallocate::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange,
        ZERO_KEEP => Fallocate::ZeroRangeKeepSize,
        libc::FALLOC_FL_COLLAPSE_RANGE => Fallocate::CollapseRange,
        libc::FALLOC_FL_INSERT_RANGE => Fallocate::InsertRange,
        _ => return Err(Errno::OPNOTSUPP.into()),
    };
    if f.offset.checked_add(f.length).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::FBIG.into());
    }
    Ok(Operation::Fallocate { how, offset: f.offset, len: f.length })
}

fn lseek(l: &wire::LseekIn) -> Result<Operation<'static>, Refusal> {
    let how = match l.whence as i32 {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno::INVAL.into()),
    };
    Ok(Operation::Lseek { offset: l.offset, how })
}

fn copy(c: &wire::CopyIn, wide: bool) -> Result<Operation<'static>, Refusal> {
    if c.flags != 0 {
        return Err(Errno::INVAL.into());
    }
    // The narrow answer has 32 bits; a copy may always be shorter than asked.
    let len = if wide { c.len.min(i64::MAX as u64) } else { c.len.min(0x7fff_f000) };
    let to = NodeId(c.nodeid_out);
    Ok(Operation::Copy { from: c.off_in, to, to_offset: c.off_out, len, wide })
}

#[cfg(test)]
mod tests;
