//! What can go wrong, with the data to say it in one sentence.

use crate::io::Io;
use crate::writeset::CheckError;
use std::fmt;
use std::path::Path;
use systx_base::TxnId;
use thiserror::Error;

/// A path below the volume root, as it is shown to people.
pub(crate) struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.0))
    }
}

/// Why a store could not be opened.  Nothing was lost in any of these cases.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("another daemon uses the store in {path}")]
    Locked {
        /// The store's directory, below the volume root.
        path: String,
    },
    /// Somebody else made the directory: what is in there is not to be trusted.
    #[error("the store in {path} belongs to user {owner}: remove it, or choose another place")]
    Foreign {
        /// The store's directory, below the volume root.
        path: String,
        /// Its owner.
        owner: systx_base::Uid,
    },
    /// Somebody else could have put something there.
    #[error("the store in {path} is not used, and nothing was changed: {} {why}", place(at))]
    Unsafe {
        /// The store's directory, below the volume root.
        path: String,
        /// What is wrong, below the volume root.
        at: String,
        /// What about it.
        why: String,
    },
    /// It has commits to be installed, and is not of this machine.
    #[error(
        "the store in {path} was made by another machine, or before systx was installed anew, and \
         has commits that are not installed yet: if you trust whoever made it, `systx recover -C \
         DIR` in that file system installs them; else move {path} away"
    )]
    Unknown {
        /// The store's directory, below the volume root.
        path: String,
    },
    /// The file system is on another machine.
    #[error("{kind} file systems are not supported: the store needs local renames and locks")]
    Network {
        /// Its name.
        kind: &'static str,
    },
    /// It was written by another version.
    #[error(
        "the store in {path} has format {found}, this program knows format {known}: finish with \
         the program that wrote it (systx recover), or move the directory away"
    )]
    Version {
        /// The store's directory, below the volume root.
        path: String,
        /// Its format.
        found: u32,
        /// What this program can read.
        known: u32,
    },
    /// Bytes that a checksum covers have changed.
    #[error(
        "the store in {path} is damaged: {what}; nothing was changed, keep a copy of that directory \
         and move it away to go on without its unfinished work and its history"
    )]
    Damaged {
        /// The store's directory, below the volume root.
        path: String,
        /// Which part.
        what: String,
    },
    /// Whether a transaction that was prepared here is committed is written in another store.
    #[error(
        "transaction {txn} in {path} waits for the store in {decider}, which knows whether it was committed: \
         mount that file system, then run `systx recover`; if it is lost for good, move {path} away"
    )]
    Waits {
        /// The store's directory, below the volume root.
        path: String,
        /// Which.
        txn: TxnId,
        /// The other store's directory, absolute.
        decider: String,
    },
    /// A committed transaction could not be installed.
    #[error(
        "recovery of transaction {txn} stopped at {path}: {source}; it goes on at the next start{}",
        once_there_is_room(source)
    )]
    Recovery {
        /// Which.
        txn: TxnId,
        /// What was being installed, below the volume root.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("cannot open the store in {path}: {source}")]
    Io {
        /// The store's directory, below the volume root.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

impl OpenError {
    /// The same with paths as they are on the host, where the root of the file system is `mount`.
    #[must_use]
    pub fn as_on_host(mut self, mount: &Path) -> OpenError {
        use OpenError as E;
        let on_host = |path: &mut String| {
            if !path.is_empty() {
                *path = mount.join(&*path).display().to_string();
            }
        };
        match &mut self {
            E::Locked { path }
            | E::Foreign { path, .. }
            | E::Unknown { path }
            | E::Version { path, .. }
            | E::Damaged { path, .. }
            | E::Waits { path, .. }
            | E::Recovery { path, .. }
            | E::Io { path, .. } => on_host(path),
            E::Unsafe { path, at, .. } => {
                on_host(path);
                on_host(at);
            }
            E::Network { .. } => {}
        }
        self
    }

    /// Whether there was no room for it.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            OpenError::Recovery { source, .. } | OpenError::Io { source, .. } => is_full(source),
            _ => false,
        }
    }
}

fn place(at: &str) -> &str {
    if at.is_empty() { "the root of the file system" } else { at }
}

/// An extended attribute that the file system does not take.
#[derive(Debug, Error)]
#[error(
    "the file system does not take the extended attribute {} ({bytes} bytes) of {}: {source}",
    Shown(key),
    Shown(path)
)]
pub struct Refused {
    /// Of what, below the volume root.
    pub path: Vec<u8>,
    /// Its name.
    pub key: Vec<u8>,
    /// The size of its value.
    pub bytes: usize,
    /// What the file system said.
    pub source: std::io::Error,
}

/// Why no room could be set aside.
#[derive(Debug, Error)]
pub enum ReserveError {
    /// The file system is full.
    #[error("no space left for the commit: {needed} bytes needed, {available} available")]
    NoSpace {
        /// Bytes that the commit may need.
        needed: u64,
        /// Bytes that there are.
        available: u64,
    },
    /// The file system cannot have so many more files.
    #[error("no inodes left for the commit: {needed} needed, {available} available")]
    NoInodes {
        /// Inodes that the commit may need.
        needed: u64,
        /// Inodes that there are.
        available: u64,
    },
    /// The file system does not take an extended attribute.
    #[error("{0}")]
    Xattr(Refused),
    /// A quota leaves too little.
    #[error("disk quota exceeded: the commit may need {needed} bytes, and the quota leaves less")]
    Quota {
        /// Bytes that the commit may need.
        needed: u64,
    },
    /// The write set breaks an invariant.
    #[error("invalid write set: {0}")]
    Invalid(#[from] CheckError),
    /// The store gave up after an earlier error.
    #[error("{0}")]
    Poisoned(Poisoned),
    /// A system call failed.
    #[error("cannot reserve space for the commit: {0}")]
    Io(std::io::Error),
}

/// Why a transaction was not committed.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The write set breaks an invariant.
    #[error("invalid write set: {0}")]
    Invalid(#[from] CheckError),
    /// Outsiders changed what it changes since it was validated.  Nothing was committed.
    #[error("changed by others since the transaction saw them: {}", list(paths))]
    Changed {
        /// Paths below the volume root.
        paths: Vec<Vec<u8>>,
    },
    /// It touches what another one of its group touches.  Nothing was committed.
    #[error("the write set touches what another one of the same group touches")]
    Overlaps,
    /// It refers to a staging slot that this store does not have.
    #[error("the write set refers to an unknown staging slot")]
    UnknownSlot,
    /// An earlier transaction that it builds on could not be installed.  Nothing was committed.
    #[error("transaction {txn} has to be installed first: {source}")]
    Blocked {
        /// Which.
        txn: TxnId,
        /// Why it could not be.
        source: Box<ApplyError>,
    },
    /// The store gave up after an earlier error.
    #[error("{0}")]
    Poisoned(Poisoned),
    /// A system call failed before the commit point.  Nothing was committed.
    #[error("cannot commit: {0}")]
    Io(std::io::Error),
    /// Writing the record failed: whether it is on disk will only be known when the store is opened
    /// again.
    #[error("the outcome of the commit is in doubt until the store is opened again: {0}")]
    InDoubt(String),
}

/// Why the journal does not let go of what is installed.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The store gave up after an earlier error.
    #[error("{0}")]
    Poisoned(#[from] Poisoned),
    /// There is no room for a super block. Nothing is lost: the journal is longer until the next
    /// attempt.
    #[error("no room for a checkpoint: {0}")]
    NoRoom(std::io::Error),
}

/// Why a committed transaction is not installed yet.  It stays committed; installing can be tried
/// again, and is when the store is opened.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// No such transaction waits for it.
    #[error("no committed transaction {0} waits to be installed")]
    Unknown(u64),
    /// Whoever committed it has tried in vain, and has to try again.
    #[error("installing it has failed, and is to be tried again first (`systx recover`)")]
    Later,
    /// The store gave up after an earlier error.
    #[error("{0}")]
    Poisoned(Poisoned),
    /// A system call failed.
    #[error(
        "installing stopped at {path}: {source}; the transaction is committed, installing goes on later"
    )]
    Io {
        /// What was being installed, below the volume root.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Why a transaction cannot be undone.
#[derive(Debug, Error)]
pub enum UndoError {
    /// There is no such transaction.
    #[error("no transaction {0} in the history")]
    Unknown(TxnId),
    /// It was forgotten: what it displaced was given back.
    #[error("transaction {0} was forgotten, and what it displaced given back")]
    Forgotten(TxnId),
    /// What it displaced is not kept any more.
    #[error(
        "what transaction {txn} displaced is no longer kept ({})",
        String::from_utf8_lossy(path)
    )]
    Gone {
        /// The transaction.
        txn: TxnId,
        /// The path whose old version is gone.
        path: Vec<u8>,
    },
    /// Later changes overlap.
    #[error("changed since the transaction: {}", list(.0))]
    Overlap(Vec<Vec<u8>>),
    /// A system call failed.
    #[error("cannot read what the transaction left: {0}")]
    Io(#[from] std::io::Error),
}

fn list(paths: &[Vec<u8>]) -> String {
    let shown: Vec<_> = paths.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
    shown.join(", ")
}

/// The store stopped for good after a failed sync or journal write: what the kernel says afterwards
/// cannot be trusted (a second fsync succeeds although the data is gone).
#[derive(Clone, Debug, Error)]
#[error(
    "the store stopped after an error of the device ({why}); restart to recover from what is on disk"
)]
pub struct Poisoned {
    /// The error.
    pub why: String,
}

/// Text of a path below the volume root.
pub(crate) fn shown(path: &[u8]) -> String {
    Shown(path).to_string()
}

/// Maps the errors of opening to where they happened.
pub(crate) fn open_io(path: &[u8]) -> impl Fn(std::io::Error) -> OpenError + '_ {
    move |source| OpenError::Io { path: shown(path), source }
}

fn once_there_is_room(e: &std::io::Error) -> &'static str {
    if is_over_quota(e) {
        ", once the quota has room: remove some files, or have it raised"
    } else if is_full(e) {
        ", once there is room: remove some files (`df` and `df -i` tell what is used up)"
    } else {
        ""
    }
}

/// Whether an error says that a quota is used up.
pub(crate) fn is_over_quota(e: &std::io::Error) -> bool {
    e.raw_os_error() == Some(libc::EDQUOT)
}

/// Whether an error says that there is no room.
pub(crate) fn is_full(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Free space in bytes for unprivileged users.
pub(crate) fn available(io: &dyn Io) -> std::io::Result<u64> {
    let info = io.fs_info()?;
    Ok(info.bavail.saturating_mul(info.bsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_as_they_are_on_the_host() {
        let (path, why) = (".systx".to_owned(), "is open to others".to_owned());
        let told = |at: &str, mount: &str| {
            let error = OpenError::Unsafe { path: path.clone(), at: at.into(), why: why.clone() };
            error.as_on_host(Path::new(mount)).to_string()
        };
        assert!(told("a/b", "/mnt").contains("in /mnt/.systx is not used"));
        assert!(told("a/b", "/").ends_with(": /a/b is open to others"));
        assert!(told("", "/mnt").ends_with(": the root of the file system is open to others"));
    }
}
