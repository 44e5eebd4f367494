//! System transactions for the threads of a program, on directories that `systx mount` guards.
//!
//! Between [`xbegin`] and [`xend`] all file accesses of the calling thread that go through a path
//! of the guarded directory belong to one transaction: atomic, durable, isolated from everybody
//! else, other threads of the same program included.
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
//! How: each thread gets, at its first transaction, a mount namespace of its own in which an alias
//! root of the guarded mount lies over the directory. A transaction enters that namespace
//! (setns(2)) and leaves it. docs/LIBRARY.md says what that means for a program;
//! docs/decisions/0005 why.

#![deny(unsafe_code)]

mod c_unsafe;
mod calls;
mod door;
mod options;
mod scope;
mod seat;
mod sys_unsafe;
mod thread;

pub use options::{Begin, Declared, Flags, set_patience};
pub use thread::{
    next_order, reset_order, use_dir, xabort, xbegin, xend, xid, xpause, xresume, xstatus,
};

use std::cell::Cell;
use std::io;
use std::path::Path;

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

thread_local! {
    /// Whether an inner [`Transaction`] of this thread was dropped without an end.
    static INNER_DROPPED: Cell<bool> = const { Cell::new(false) };
}

/// An open transaction of this thread; dropping it drops the transaction. One that was begun inside
/// of another is part of that: dropping it drops the whole, when the outermost one ends; until then
/// nothing gets outside.
#[derive(Debug)]
pub struct Transaction {
    /// Of one thread: neither `Send` nor `Sync`.
    _here: std::marker::PhantomData<*const ()>,
    inner: bool,
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
    /// See [`xend`]; a transaction that would still be open is dropped. `ECANCELED` also where one
    /// that was begun inside of it was dropped.
    pub fn commit(mut self) -> io::Result<()> {
        if !self.inner && INNER_DROPPED.get() {
            drop(self);
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        let done = xend();
        self.over = done.is_ok() || xid() == 0;
        done
    }

    /// Drops it, with those that it is part of, at once.
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
        if self.over {
            return;
        }
        let _ = if self.inner {
            INNER_DROPPED.set(true);
            xend()
        } else {
            xabort()
        };
    }
}

/// Begins a transaction on the guarded directory that holds `dir`, for as long as the value lives.
///
/// # Errors
/// See [`xbegin`].
pub fn begin<'a>(dir: impl AsRef<Path>, how: impl Into<Begin<'a>>) -> io::Result<Transaction> {
    let inner = xid() != 0;
    xbegin(Some(dir.as_ref()), how)?;
    if !inner {
        INNER_DROPPED.set(false);
    }
    Ok(Transaction { _here: std::marker::PhantomData, inner, over: false })
}

/// Runs `body` in a transaction, and again as long as it loses; each time it loses it grows in age,
/// and what is old enough wins. `body` may run several times: what it does beside the guarded
/// directory has to bear that.
///
/// Inside another transaction of this thread, `body` is part of that one, which tries again, and is
/// dropped as a whole if `body` fails.
///
/// # Errors
/// Those of `body`, with nothing committed; those of [`xbegin`] and [`xend`], but for a lost
/// conflict.
pub fn atomic<'a, T>(
    dir: impl AsRef<Path>,
    how: impl Into<Begin<'a>>,
    mut body: impl FnMut(&Transaction) -> io::Result<T>,
) -> io::Result<T> {
    let mut attempt: Begin<'a> = how.into();
    loop {
        let transaction = begin(dir.as_ref(), attempt.clone())?;
        let result = body(&transaction);
        if transaction.inner {
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
        attempt.flags = attempt.flags | Flags::RETRY;
    }
}
