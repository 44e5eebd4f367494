//! Why a volume cannot be used, with its cause and a remedy.

use crate::holders;
use crate::protocol::{Failure, FailureKind};
use rustix::io::Errno;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use systx_store::OpenError;
use thiserror::Error;

/// Why a volume cannot be used.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// A system call failed.
    #[error("cannot {action} {path}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// No place for the store.
    #[error(
        "no directory on the file system mounted at {mount} belongs to you: give one with --store DIR"
    )]
    NoStore {
        /// Where the file system is mounted.
        mount: String,
    },
    /// The store refused; what it says has the path in it.
    #[error("{error}")]
    Store {
        /// The store's directory.
        path: String,
        /// Why.
        error: OpenError,
    },
    /// A file system that does not keep the identity of its files.
    #[error(
        "{mount} is an overlay file system over layers on several file systems, on which a file gets another inode \
         number when it is first written: mount it with xino=on, or work on a volume that is mounted into the \
         container (-C DIR)"
    )]
    Overlay {
        /// Where it is mounted.
        mount: String,
    },
    /// A part of a btrfs that has names and links of its own.
    #[error(
        "{path} is in a subvolume of {mount} that is not mounted by itself: mount it (mount -o subvol=…), and work there"
    )]
    Subvolume {
        /// The directory.
        path: String,
        /// Where the file system is mounted.
        mount: String,
    },
    /// A log-structured volume.
    #[error(
        "{path} is in {mount}, a log-structured volume where this daemon has no transactions: \
         it is a snapshot, or dead (`systx mount` lists it), or served by another daemon"
    )]
    LogStructured {
        /// The directory.
        path: String,
        /// Where it is mounted.
        mount: String,
    },
    /// The mount table makes no sense.
    #[error("cannot find the mount of {path} in the mount table")]
    NoMount {
        /// The directory.
        path: String,
    },
}

/// A system call that failed, on `path`.
pub(super) fn failed(action: &'static str, path: &Path, error: io::Error) -> VolumeError {
    VolumeError::Io { action, path: path.display().to_string(), error }
}

impl VolumeError {
    /// What the kernel said, and of which path.
    fn of_the_kernel(&self) -> Option<(&io::Error, &str)> {
        match self {
            VolumeError::Io { error, path, .. } => Some((error, path)),
            VolumeError::Store { error: OpenError::Io { source, .. }, path } => {
                Some((source, path))
            }
            _ => None,
        }
    }

    /// With its cause and a remedy, where the kernel's answer tells them.
    fn explained(&self) -> Option<Failure> {
        let (error, path) = self.of_the_kernel()?;
        let at = Path::new(path);
        let near = at.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
        let (kind, text, hint) = match Errno::from_io_error(error)? {
            Errno::ROFS => (
                FailureKind::Unsupported,
                format!(
                    "the file system of {} is mounted read-only: systx keeps journal and history \
                     in {path}, and has to write there, also for --read-only and log",
                    near.display()
                ),
                format!(
                    "as root: mount -o remount,rw {}; or work on another file system (-C DIR)",
                    mount_of(near).display()
                ),
            ),
            Errno::ACCESS | Errno::PERM => (
                FailureKind::Unsupported,
                format!(
                    "no permission for {path}, where systx keeps journal and history of this \
                     file system (user {}): {} does not let you in",
                    rustix::process::geteuid().as_raw(),
                    shut(at).display()
                ),
                "name a directory of yours on the same file system (--store DIR), or work \
                 elsewhere (-C DIR)"
                    .to_owned(),
            ),
            Errno::NOSPC => (
                FailureKind::Space,
                format!(
                    "no {} left for {path}, where systx keeps journal and history",
                    lacks(near)
                ),
                format!("make room in {}", mount_of(near).display()),
            ),
            _ => return None,
        };
        Some(Failure::new(kind, text).hint(hint).path(path))
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        use VolumeError::{Io, LogStructured, NoMount, NoStore, Overlay, Store, Subvolume};
        if let Some(failure) = error.explained() {
            return failure;
        }
        let kind = match &error {
            Io { .. } => FailureKind::Io,
            NoStore { .. } | Overlay { .. } | LogStructured { .. } | Subvolume { .. } => {
                FailureKind::Unsupported
            }
            NoMount { .. } => FailureKind::Invalid,
            Store { error: OpenError::Locked { .. }, .. } => FailureKind::Busy,
            Store { .. } => FailureKind::Store,
        };
        let failure = Failure::new(kind, error.to_string());
        match &error {
            Store { error: OpenError::Locked { .. }, path } => failure.hint(others_use(path)),
            _ => failure,
        }
    }
}

/// What a full file system has no more of.
fn lacks(at: &Path) -> &'static str {
    match rustix::fs::statvfs(at) {
        Ok(room) if room.f_files > 0 && room.f_favail == 0 => "inode (file number) is",
        _ => "space is",
    }
}

/// Whose lock it is, and until when.
fn others_use(store: &str) -> String {
    let holder = holders::of_lock(&Path::new(store).join("lock"));
    let who = holder.map_or_else(|| "it".to_owned(), |pid| format!("process {pid}"));
    format!(
        "{who} has it while it commits, and as long as a directory is guarded there (systx mount): \
         wait for that, or end it"
    )
}

/// The first directory on the way to a path that this user may not look into or change.
fn shut(path: &Path) -> &Path {
    use rustix::fs::{Access, access};
    let mut way: Vec<&Path> = path.ancestors().collect();
    way.reverse();
    let closed = |dir: &&&Path| dir.is_dir() && access(**dir, Access::EXEC_OK).is_err();
    let found = way.iter().find(closed).copied();
    found.or_else(|| way.iter().rev().find(|dir| dir.is_dir()).copied()).unwrap_or(path)
}

/// Where the file system of a directory is mounted, as far as that can be seen.
fn mount_of(dir: &Path) -> &Path {
    let device = |dir: &Path| std::fs::metadata(dir).ok().map(|meta| meta.dev());
    let here = device(dir);
    dir.ancestors().take_while(|above| device(above) == here).last().unwrap_or(dir)
}
