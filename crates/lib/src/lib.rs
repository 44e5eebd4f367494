//! System transactions for the threads of a program, on directories that `systx mount` guards.
//!
//! Between [`xbegin`] and [`xend`] all file accesses of the calling thread that go through a path of the
//! guarded directory belong to one transaction: atomic, durable, isolated from everybody else, other
//! threads of the same program included.
//!
//! ```no_run
//! let dir = "/srv/accounts";
//! systx::atomic(dir, systx::Flags::default(), |_| {
//!     let a: i64 = std::fs::read_to_string("/srv/accounts/a")?.parse().unwrap();
//!     let b: i64 = std::fs::read_to_string("/srv/accounts/b")?.parse().unwrap();
//!     std::fs::write("/srv/accounts/a", (a - 10).to_string())?;
//!     std::fs::write("/srv/accounts/b", (b + 10).to_string())
//! })?;
//! # std::io::Result::Ok(())
//! ```
//!
//! How: each thread gets, at its first transaction, a mount namespace of its own in which an alias root of
//! the guarded mount lies over the directory.  A transaction enters that namespace (setns(2)) and leaves it.
//! docs/LIBRARY.md says what that means for a program; docs/decisions/0005 why.

#![deny(unsafe_code)]

mod c_unsafe;
mod calls;
mod seat;
mod sys_unsafe;
mod thread;

pub use thread::{use_dir, xabort, xbegin, xend, xid, xpause, xresume, xstatus};

use std::io;
use std::path::Path;

/// How a transaction is begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// Nothing will be committed; what was read is of one moment, or the end says so.
    pub const READ_ONLY: Flags = Flags(systx_abi::begin::READ_ONLY);
    /// Snapshot isolation instead of serializable.
    pub const SNAPSHOT: Flags = Flags(systx_abi::begin::SNAPSHOT);
    /// Another attempt of what this thread lost last: it keeps its age.
    pub const RETRY: Flags = Flags(systx_abi::begin::RETRY);
    /// Descriptors that were opened before on the guarded directory are in the transaction, and those that are made
    /// inside are closed by an abort.
    pub const DESCRIPTORS: Flags = Flags(1 << 16);
    /// A system call whose effect can neither wait nor be undone ends the transaction.
    pub const UNSUPPORTED_ABORT: Flags = Flags(1 << 22);
    /// Such a call fails with `EOPNOTSUPP`.
    pub const UNSUPPORTED_ERROR: Flags = Flags(1 << 23);
    /// Such a call is made, and told of on the standard error output, once for each.
    pub const UNSUPPORTED_WARN: Flags = Flags(1 << 24);
    /// Those for which calls are intercepted.
    pub(crate) const CALLS: u32 = 0xffff << 16;
    const CALLS_KNOWN: u32 = 1 << 16 | 7 << 22;

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

/// Where a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There was none yet.
    None,
    /// It is open.
    Open,
    /// It has lost a conflict.
    Lost,
    /// It is committed.
    Committed,
    /// It was dropped.
    Aborted,
    /// It could not be committed for another reason.
    Failed,
}

impl State {
    fn from_abi(state: u32) -> State {
        use systx_abi::state::{ABORTED, COMMITTED, FAILED, LOST, OPEN};
        match state {
            OPEN => State::Open,
            LOST => State::Lost,
            COMMITTED => State::Committed,
            ABORTED => State::Aborted,
            FAILED => State::Failed,
            _ => State::None,
        }
    }
}

/// What [`xstatus`] tells of the open transaction of this thread, or of its last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where it is.
    pub state: State,
    /// How often it has lost.
    pub retries: u32,
    /// Its id, as `systx log` shows it.
    pub id: u64,
    /// The transaction that it lost to; 0: a program outside every transaction, or it has not lost.
    pub opponent: u64,
    /// What the conflict was about.
    pub path: Vec<u8>,
    /// The opponent, or why it failed, in words.
    pub words: String,
}

/// An open transaction of this thread; dropping it drops the transaction.
#[derive(Debug)]
pub struct Transaction {
    /// Of one thread: neither `Send` nor `Sync`.
    _here: std::marker::PhantomData<*const ()>,
    over: bool,
}

impl Transaction {
    /// Its id.
    pub fn id(&self) -> u64 {
        xid()
    }

    /// Commits.
    ///
    /// # Errors
    /// See [`xend`]; with `EBUSY` the transaction is dropped.
    pub fn commit(mut self) -> io::Result<()> {
        let done = xend();
        self.over = done.as_ref().err().and_then(io::Error::raw_os_error) != Some(libc::EBUSY);
        done
    }

    /// Drops it.
    ///
    /// # Errors
    /// See [`xabort`].
    pub fn abort(mut self) -> io::Result<()> {
        self.over = true;
        xabort()
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.over {
            let _ = xabort();
        }
    }
}

/// Begins a transaction on the guarded directory that holds `dir`, for as long as the value lives.
///
/// # Errors
/// See [`xbegin`].
pub fn begin(dir: impl AsRef<Path>, flags: Flags) -> io::Result<Transaction> {
    xbegin(Some(dir.as_ref()), flags)?;
    Ok(Transaction { _here: std::marker::PhantomData, over: false })
}

/// Runs `body` in a transaction, and again as long as it loses; each time it loses it grows in age, and what
/// is old enough wins.  `body` may run several times: what it does beside the guarded directory has to bear
/// that.
///
/// Inside another transaction of this thread, `body` is part of that one.
///
/// # Errors
/// Those of `body`, with nothing committed; those of [`xbegin`] and [`xend`], but for a lost conflict.
pub fn atomic<T>(
    dir: impl AsRef<Path>,
    flags: Flags,
    mut body: impl FnMut(&Transaction) -> io::Result<T>,
) -> io::Result<T> {
    let mut attempt = flags;
    loop {
        let nested = xid() != 0;
        let transaction = begin(dir.as_ref(), attempt)?;
        let result = body(&transaction);
        if nested {
            // The outermost one decides, and tries again.
            return match result {
                Ok(value) => transaction.commit().map(|()| value),
                Err(e) => Err(e),
            };
        }
        let lost = match result {
            Ok(value) => match transaction.commit() {
                Ok(()) => return Ok(value),
                Err(e) if e.raw_os_error() == Some(libc::ECANCELED) => e,
                Err(e) => return Err(e),
            },
            // What a transaction does that has lost means nothing.
            Err(e) if xstatus().is_ok_and(|s| s.state == State::Lost) => e,
            Err(e) => return Err(e),
        };
        if xstatus()?.state == State::Aborted {
            return Err(lost);
        }
        attempt = flags | Flags::RETRY;
    }
}
