//! How transactions are begun, and how long their ends wait.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How a transaction is begun, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// Nothing will be committed; what was read is of one moment, or the end says so.
    pub const READ_ONLY: Flags = Flags(systx_abi::begin::READ_ONLY);
    /// Snapshot isolation instead of serializable.
    pub const SNAPSHOT: Flags = Flags(systx_abi::begin::SNAPSHOT);
    /// Another attempt of what this thread lost last: it keeps its age.
    pub const RETRY: Flags = Flags(systx_abi::begin::RETRY);
    /// The begin fails with `EAGAIN` rather than wait: for a thread that holds a lock.
    pub const NONBLOCK: Flags = Flags(systx_abi::begin::NONBLOCK);
    /// The end does not wait for the disk. What is committed is atomic and isolated as ever, and
    /// durable a moment later, in the order of the commits of a program, before what it commits
    /// without this flag, and before fsync(2) returns in the guarded directory.
    pub const RELAXED: Flags = Flags(systx_abi::begin::RELAXED);
    /// Descriptors that were opened before on the guarded directory are in the transaction, and
    /// those that are made inside are closed by an abort.
    pub const DESCRIPTORS: Flags = Flags(1 << 16);
    /// Signals to processes outside wait for the commit, and are dropped by an abort.
    pub const SIGNALS_HELD: Flags = Flags(1 << 17);
    /// Signals that come in wait for the end, in their order.
    pub const SIGNALS_DEFERRED: Flags = Flags(1 << 18);
    /// Signals that come in are delivered at once, and again after an abort.
    pub const SIGNALS_SPECULATIVE: Flags = Flags(1 << 19);
    /// What is written to pipes and FIFOs from before waits for the commit; what is read from them
    /// is back after an abort. Descriptors are as with [`Flags::DESCRIPTORS`].
    pub const PIPES_HELD: Flags = Flags(1 << 20);
    /// What is written to terminals, and to files elsewhere that are open for appending, waits for
    /// the commit. Descriptors are as with [`Flags::DESCRIPTORS`].
    pub const OUTPUT_HELD: Flags = Flags(1 << 21);
    /// A system call whose effect can neither wait nor be undone ends the transaction.
    pub const UNSUPPORTED_ABORT: Flags = Flags(1 << 22);
    /// Such a call fails with `EOPNOTSUPP`.
    pub const UNSUPPORTED_ERROR: Flags = Flags(1 << 23);
    /// Such a call is made, and told of on the standard error output, once for each.
    pub const UNSUPPORTED_WARN: Flags = Flags(1 << 24);
    /// Those for which calls are intercepted.
    pub(crate) const CALLS: u32 = 0xffff << 16;
    pub(crate) const CALLS_KNOWN: u32 = 0x1ff << 16;

    /// The bits, as `systx.h` has them.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// What is not the library's own business.
    pub(crate) fn of_daemon(self) -> u32 {
        self.0 & !Flags::CALLS_KNOWN
    }

    /// From bits; unknown ones are refused at the begin.
    pub const fn from_bits(bits: u32) -> Flags {
        Flags(bits)
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A path of a scope, see [`Begin::scope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared<'a> {
    /// As open(2) takes it.
    pub path: &'a Path,
    /// It is written, made or removed; else only read.
    pub write: bool,
}

impl<'a> Declared<'a> {
    /// To be written, made or removed, and read.
    pub fn write<P: AsRef<Path> + ?Sized>(path: &'a P) -> Declared<'a> {
        Declared { path: path.as_ref(), write: true }
    }

    /// To be read.
    pub fn read<P: AsRef<Path> + ?Sized>(path: &'a P) -> Declared<'a> {
        Declared { path: path.as_ref(), write: false }
    }
}

/// How a transaction is begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begin<'a> {
    /// As bits.
    pub flags: Flags,
    /// Its place in an order: the name of the order, and a number. Transactions of one order commit
    /// one after another with rising numbers from 0 on, and of two that are in conflict the lower
    /// number wins. Each user has orders of their own on each file system.
    pub order: Option<(&'a str, u64)>,
    /// What it will touch; empty: that is not said. The begin waits until no other transaction that
    /// runs, or that began to wait earlier, has declared any of the same to write it (or to read it
    /// what this one writes). Then it loses to no transaction on these paths, whatever its age;
    /// others lose there. For callers that cannot try again.
    ///
    /// Each path is one object: a file, with its name; a directory: which names are in it; what is
    /// not there: its name. Not together with an order, or [`Flags::READ_ONLY`].
    pub scope: Vec<Declared<'a>>,
}

impl<'a> Begin<'a> {
    /// With a place in an order.
    pub fn ordered(order: &'a str, number: u64) -> Begin<'a> {
        Begin { order: Some((order, number)), ..Begin::default() }
    }

    /// With a scope.
    pub fn scoped(scope: impl IntoIterator<Item = Declared<'a>>) -> Begin<'a> {
        Begin { scope: scope.into_iter().collect(), ..Begin::default() }
    }
}

impl From<Flags> for Begin<'_> {
    fn from(flags: Flags) -> Self {
        Begin { flags, ..Begin::default() }
    }
}

/// Milliseconds.
static PATIENCE: AtomicU64 = AtomicU64::new(30_000);

/// How long [`xend`](crate::xend) waits for other members of the transaction, and for lower
/// numbers, and [`xbegin`](crate::xbegin) for others with the same in their scopes, in all threads
/// of the process; 30 seconds if nothing is said.
pub fn set_patience(limit: Duration) {
    PATIENCE.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Relaxed);
}

pub(crate) fn patience() -> Duration {
    Duration::from_millis(PATIENCE.load(Relaxed))
}
