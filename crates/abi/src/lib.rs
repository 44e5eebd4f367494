//! The words between libsystx and the daemon: ioctls on a directory of a guarded mount.
//!
//! The kernel carries them as FUSE requests and vouches for the caller's thread, uid and gid. They
//! are "restricted": the kernel copies as many bytes as the number says, in both directions, and
//! nothing else. All numbers are in the byte order of the machine. A change of any structure
//! changes its number; [`VERSION`] tells what the numbers mean.
//!
//! 1. [`ATTACH`] on any directory of the mount gives the calling thread a *seat*: a hidden name in
//!    the mount's root, by which this thread alone can reach an alias of that root.
//! 2. All others go to a descriptor of the file with that name and `.control` behind it: the last
//!    close of it ends the seat, with whatever transaction is open.
//! 3. Between [`BEGIN`] and [`END`] or [`ABORT`], the alias shows the guarded directory as the
//!    transaction has it; at other times it shows nothing (`ECANCELED`). Where the mount routes by
//!    thread number ([`Attach::routed`]) the alias is never used: what the thread itself asks for
//!    of the directory is then asked of the transaction.
//!
//! Errors of the ioctl itself: `ENOTTY` no guarded directory, or a daemon without threads'
//! transactions; `EPROTO` another version; `EPERM` another thread's seat; `EINVAL` out of turn;
//! `EBUSY` see each.

#![forbid(unsafe_code)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Of this interface.
pub const VERSION: u32 = 6;

/// The type byte of all of its ioctls.
const TYPE: u32 = 0xE7;

/// `_IOWR(0xE7, number, T)` of Linux.
const fn iowr<T>(number: u32) -> u32 {
    (3 << 30) | ((size_of::<T>() as u32) << 16) | (TYPE << 8) | number
}

/// Gives the calling thread a seat; see [`Attach`]. `EALREADY`: the directory is that of a
/// transaction already; `EMFILE`: another user than the daemon's has many; `EOPNOTSUPP`: the thread
/// is in a pid namespace that the daemon does not see, or the mount routes and the kernel has no
/// pidfds of threads (Linux 6.9).
pub const ATTACH: u32 = iowr::<Attach>(1);
/// Begins a transaction; see [`Begin`]. `EBUSY`: one is open. `EDEADLK`: the thread's attempts lost
/// again and again while they waited for others; the next call begins. `EAGAIN`: see
/// [`begin::NONBLOCK`]. `ESTALE`: the seat can be used no more, since somebody is still inside
/// after the end of the last transaction; the thread needs another one. With a scope also `EINVAL`:
/// none was told, or nothing will be committed.
pub const BEGIN: u32 = iowr::<Begin>(2);
/// Commits; see [`End`].
pub const END: u32 = iowr::<End>(3);
/// Drops the transaction; see [`End`].
pub const ABORT: u32 = iowr::<End>(4);
/// Tells of the open transaction, or of the last one; see [`Status`].
pub const STATUS: u32 = iowr::<Status>(5);

/// Gives the transaction that was just begun its place in an order, or resets one; see [`Order`].
pub const ORDER: u32 = iowr::<Order>(16);

/// Tells one path of the scope of the next transaction; see [`Scope`].
pub const SCOPE: u32 = iowr::<Scope>(17);

/// Steps out of the open transaction and back into it, where the mount routes; see [`Route`]. On a
/// directory: the calling thread knows that its transaction has ended with the daemon that had it,
/// and is not refused any more.
pub const ROUTE: u32 = iowr::<Route>(18);

/// Flags of [`Begin::flags`].
pub mod begin {
    /// Nothing will be committed; what was read must be of one moment.
    pub const READ_ONLY: u32 = 1;
    /// Snapshot isolation instead of serializable.
    pub const SNAPSHOT: u32 = 1 << 1;
    /// Another attempt of the transaction that this seat lost last: it keeps its age and its place
    /// in time.
    pub const RETRY: u32 = 1 << 2;
    /// `EAGAIN` where it would wait for another transaction or a request from outside. Nothing is
    /// open then, and what was lost last is still what another attempt is of.
    pub const NONBLOCK: u32 = 1 << 3;
    /// With the scope that was told by [`SCOPE`](super::SCOPE)s. The seat gets in line; if it is
    /// not its turn within a while the answer is [`WAITS`](super::state::WAITS). It keeps its place
    /// in line: ask again.
    pub const SCOPED: u32 = 1 << 4;
    /// With a scope: do not wait a while.  If it is not its turn, the seat leaves the line.
    pub const NOW: u32 = 1 << 5;
    /// The end does not wait for the disk: what is committed is atomic and isolated, and durable a
    /// moment later.
    pub const RELAXED: u32 = 1 << 6;
    /// All that this version knows.
    pub const ALL: u32 = READ_ONLY | SNAPSHOT | RETRY | NONBLOCK | SCOPED | NOW | RELAXED;
}

/// Values of [`End::state`] and [`Status::state`].
pub mod state {
    /// There was no transaction yet.
    pub const NONE: u32 = 0;
    /// It is open.
    pub const OPEN: u32 = 1;
    /// It has lost a conflict: it can only be ended.
    pub const LOST: u32 = 2;
    /// It is committed.
    pub const COMMITTED: u32 = 3;
    /// It was dropped, as asked.
    pub const ABORTED: u32 = 4;
    /// It could not be committed for another reason than a conflict, which is told in words.
    pub const FAILED: u32 = 5;
    /// Of a [`BEGIN`](super::BEGIN): it is not its turn, nothing is open. Of an
    /// [`END`](super::END): it is open and cannot be committed yet, [`STATUS`](super::STATUS) says
    /// in words why. Ask again.
    pub const WAITS: u32 = 6;
}

/// Flags of [`End::flags`].
pub mod end {
    /// Do not wait a while before answering [`WAITS`](super::state::WAITS).
    pub const NOW: u32 = 1;
    /// Nor for others that take part to end: [`WAITS`](super::state::WAITS) with `EBUSY` as long as
    /// there are any.
    pub const ALONE: u32 = 1 << 1;
    /// All that this version knows.
    pub const ALL: u32 = NOW | ALONE;
}

/// Values of [`Order::what`].
pub mod order {
    /// The transaction takes part, with this number. Nothing may have been asked for in it yet.
    /// With an error it is ended, and [`STATUS`](super::STATUS) tells more. `EEXIST`: the number is
    /// used up; `EBUSY`: another transaction has it; `EINVAL`: no transaction is open, or it takes
    /// part already.
    pub const JOIN: u32 = 0;
    /// This number comes next, durably; 0 ends the order. `EBUSY`: transactions take part.
    pub const RESET: u32 = 1;
    /// Which number comes next.
    pub const NEXT: u32 = 2;
}

/// Argument of [`ATTACH`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attach {
    /// In: [`VERSION`].
    pub version: u32,
    /// Out: length of the name.
    pub name_len: u32,
    /// Out: 1 if the mount routes by thread number.
    pub routed: u32,
    /// Out: a name in the root of the mount.
    pub name: [u8; 52],
}

/// Argument of [`ROUTE`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Route {
    /// In: 1 into the transaction, 0 out of it.
    pub on: u32,
    /// 0.
    pub reserved: u32,
}

/// Argument of [`BEGIN`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Begin {
    /// In: see [`begin`].
    pub flags: u32,
    /// Out: how often it has lost before.
    pub retries: u32,
    /// Out: the transaction.
    pub id: u64,
    /// In: the mount namespace that the thread enters, by its inode number. Who else is in there
    /// takes part.
    pub namespace: u64,
    /// Out: see [`state`].
    pub state: u32,
    /// Out: with `WAITS`, the errno for who has waited long enough.
    pub errno: i32,
}

/// Values of [`Scope::how`].
pub mod scope {
    /// The path is read.
    pub const READ: u32 = 0;
    /// It is written, made or removed.
    pub const WRITE: u32 = 1;
    /// It is only looked up.
    pub const WAY: u32 = 2;
}

/// Most paths of a scope.
pub const SCOPE_MAX: usize = 256;
/// Longest path of a scope.
pub const SCOPE_PATH_MAX: usize = 4080;

/// Argument of [`SCOPE`], all of it in. `EBUSY`: a transaction is open; `E2BIG`: more than
/// [`SCOPE_MAX`] paths; `EINVAL`: no such path.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Scope {
    /// See [`scope`].
    pub how: u32,
    /// 1: it is the first one, what was told before is forgotten.
    pub first: u32,
    /// Length of the path.
    pub path_len: u32,
    /// 0.
    pub reserved: u32,
    /// Names separated by `/`, from the guarded directory on; none for that itself. No `.` and
    /// `..`.
    pub path: [u8; SCOPE_PATH_MAX],
}

/// Longest name of an order.
pub const ORDER_MAX: usize = 64;

/// Argument of [`ORDER`]. `EDQUOT`: the user has too many orders; `EINVAL` also: no name, or too
/// long a one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Order {
    /// In: see [`order`].
    pub what: u32,
    /// In: length of the name.
    pub name_len: u32,
    /// In: the number; out with `NEXT`.
    pub number: u64,
    /// In: the name; each user has names of their own on each file system.
    pub name: [u8; ORDER_MAX],
}

/// Argument of [`END`] and [`ABORT`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct End {
    /// In: see [`end`]; 0 with [`ABORT`].
    pub flags: u32,
    /// Out: see [`state`].
    pub state: u32,
    /// Out: with `FAILED`, an errno; with `WAITS`, the one for who has waited long enough.
    pub errno: i32,
    /// Out: how often it has lost by now.
    pub retries: u32,
    /// Out: the transaction.
    pub id: u64,
}

/// Longest path in a [`Status`]; a longer one is cut at its beginning.
pub const PATH_MAX: usize = 1024;
/// Longest words in a [`Status`].
pub const WORDS_MAX: usize = 488;

/// Argument of [`STATUS`], all of it out.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Status {
    /// See [`state`].
    pub state: u32,
    /// How often it has lost.
    pub retries: u32,
    /// The transaction.
    pub id: u64,
    /// Whom it lost to; 0: a program outside every transaction, or it has not lost.
    pub opponent: u64,
    /// Lengths of what follows.
    pub path_len: u32,
    /// Length of `words`.
    pub words_len: u32,
    /// What the conflict was about: a path on the host.
    pub path: [u8; PATH_MAX],
    /// Who the opponent is, or why it failed.
    pub words: [u8; WORDS_MAX],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_those_of_the_header() {
        assert_eq!(size_of::<Attach>(), 64);
        assert_eq!(size_of::<Begin>(), 32);
        assert_eq!(size_of::<Scope>(), 4096);
        assert_eq!(size_of::<End>(), 24);
        assert_eq!(size_of::<Status>(), 1544);
        assert_eq!(size_of::<Order>(), 80);
        assert_eq!(size_of::<Route>(), 8);
        assert_eq!(ATTACH, 0xc040_e701);
        assert_eq!(BEGIN, 0xc020_e702);
    }
}
