//! What a commit that stopped ([`systx_commit::Stopped`]) is to its client.

use crate::protocol::{self, Failure, FailureKind, HostPath};
use crate::volume::VolumeError;
use rustix::io::Errno;
use std::io;
use std::path::Path;
use systx_commit::Stopped;
use systx_store::{ApplyError, CommitError, OpenError, Outside, OutsideChange, ReserveError};
use systx_txn::Conflict;

/// Why nothing was installed, as a client is told.
pub enum NotInstalled {
    /// Another transaction won before the decision, see [`Stopped::Lost`].
    Lost(usize, Box<Conflict>),
    /// Outsiders changed these paths after validation.
    Outside(Vec<HostPath>),
    /// The store cannot.
    Failed(Failure),
    /// It is decided, and may be durable: the rest is done later, or by recovery.
    Unfinished(Failure),
}

impl From<Stopped> for NotInstalled {
    fn from(stopped: Stopped) -> NotInstalled {
        match stopped {
            Stopped::Lost { at, why } => NotInstalled::Lost(at, why),
            Stopped::Changed(paths) => {
                NotInstalled::Outside(paths.into_iter().map(HostPath).collect())
            }
            Stopped::NoRoom(error) => NotInstalled::Failed(no_room(&error)),
            Stopped::NoStore { store, error } => {
                NotInstalled::Failed(no_store(&HostPath(store), error))
            }
            Stopped::Taken(_) => {
                let failure = Failure::new(FailureKind::State, stopped.to_string());
                NotInstalled::Failed(failure.hint(
                    "run it again, or commit by its paths what is kept: it gets another number",
                ))
            }
            Stopped::NotPublished(_) => {
                let failure = Failure::new(FailureKind::Io, stopped.to_string());
                NotInstalled::Failed(failure.hint("nothing was committed; try again"))
            }
            Stopped::NotCommitted(error) => NotInstalled::Failed(not_committed(&error)),
            Stopped::InDoubt(error) => {
                let failure = Failure::new(FailureKind::Store, error.to_string());
                NotInstalled::Unfinished(failure.hint(
                    "the next daemon finds out: end this one, then `systx recover`, and \
                     `systx log` shows whether it is committed",
                ))
            }
            Stopped::NotPlaced(error) => NotInstalled::Unfinished(unfinished(&error)),
        }
    }
}

/// What a commit that could not be installed, now or before, is as a failure.
pub(crate) fn failure(stopped: Stopped) -> Failure {
    match NotInstalled::from(stopped) {
        NotInstalled::Failed(failure) | NotInstalled::Unfinished(failure) => failure,
        NotInstalled::Lost(..) => {
            Failure::new(FailureKind::Busy, "a running transaction won against it")
                .hint("try again")
        }
        NotInstalled::Outside(paths) => {
            let text = "processes outside are changing these paths";
            let mut failure = Failure::new(FailureKind::Overlap, text);
            failure.paths = paths;
            failure
        }
    }
}

/// What a thread's transaction is told of a failure.
pub(crate) fn errno_of(failure: &Failure) -> Errno {
    match failure.kind {
        FailureKind::Space => Errno::NOSPC,
        FailureKind::Quota => Errno::DQUOT,
        FailureKind::Busy => Errno::BUSY,
        _ => Errno::IO,
    }
}

/// The store cannot be opened.
fn no_store(store: &HostPath, error: OpenError) -> Failure {
    VolumeError::Store { path: store.to_string(), error }.into()
}

/// What can be given back by hand: nothing of it is forgotten where all of it would not be enough,
/// and the newest is not forgotten without an order.
const UNDO_KEEPS: &str =
    "`systx gc --keep 0` gives back what undos keep, `-n` with it says how much";

fn hint(more: &str) -> String {
    format!("nothing was committed; {more} ({UNDO_KEEPS})")
}

fn beyond_quota() -> String {
    hint("remove some files, or have the quota raised")
}

fn no_room(error: &ReserveError) -> Failure {
    let kind = match error {
        ReserveError::NoSpace { .. } | ReserveError::NoInodes { .. } | ReserveError::Xattr(_) => {
            FailureKind::Space
        }
        ReserveError::Quota { .. } => FailureKind::Quota,
        ReserveError::Poisoned(_) => FailureKind::Store,
        ReserveError::Io(_) => FailureKind::Io,
        ReserveError::Invalid(_) => FailureKind::Internal,
    };
    let failure = Failure::new(kind, error.to_string());
    match (error, kind) {
        (ReserveError::Xattr(_), _) => {
            failure.hint("nothing was committed; no file there can have such attributes")
        }
        (ReserveError::NoInodes { .. }, _) => failure.hint(hint("remove some files")),
        (_, FailureKind::Quota) => failure.hint(beyond_quota()),
        (_, FailureKind::Space) => failure.hint(hint("free some space")),
        _ => failure,
    }
}

fn not_committed(error: &CommitError) -> Failure {
    let kind = match error {
        CommitError::Io(e) if e.kind() == io::ErrorKind::StorageFull => FailureKind::Space,
        CommitError::Io(e) if e.kind() == io::ErrorKind::QuotaExceeded => FailureKind::Quota,
        CommitError::Io(_) => FailureKind::Io,
        CommitError::Blocked { .. } | CommitError::Poisoned(_) => FailureKind::Store,
        _ => FailureKind::Internal,
    };
    let failure = Failure::new(kind, error.to_string());
    match kind {
        FailureKind::Quota => failure.hint(beyond_quota()),
        FailureKind::Space => failure.hint(hint("free some space")),
        _ => failure,
    }
}

/// It is committed, and not in place.
fn unfinished(error: &ApplyError) -> Failure {
    let (text, hint) = match error {
        ApplyError::Io { .. } => {
            (error.to_string(), "`systx recover` tries again, and so does the next commit there")
        }
        ApplyError::Poisoned(_) | ApplyError::Later | ApplyError::Unknown(_) => (
            format!("the transaction is committed, but not in place yet: {error}"),
            "the next daemon installs it: end this one, then `systx recover`",
        ),
    };
    Failure::new(FailureKind::Store, text).hint(hint)
}

/// An outsider's change that an installation or a recovery met, with the absolute paths that
/// `absolute` makes.
pub(crate) fn outside_change(
    absolute: impl Fn(&[u8]) -> Vec<u8>,
    c: &OutsideChange,
) -> protocol::OutsideChange {
    let what = match c.what {
        Outside::Appeared => "something had appeared at this name".to_owned(),
        Outside::Changed => "had been changed".to_owned(),
        Outside::Gone => "was gone".to_owned(),
        Outside::Refused(errno) => {
            format!("could not be written: {}", io::Error::from_raw_os_error(errno))
        }
        Outside::NoXattr { ref key, errno } => {
            let (key, why) = (HostPath(key.clone()), io::Error::from_raw_os_error(errno));
            format!("could not be given its extended attribute {key}: {why}")
        }
    };
    protocol::OutsideChange {
        path: HostPath(absolute(&c.path)),
        saved: c.kept_as.as_ref().map(|p| HostPath(absolute(p))),
        what,
    }
}

/// All that the parts of a commit have met.
pub(crate) fn outside_changes(installed: &systx_commit::Installed) -> Vec<protocol::OutsideChange> {
    let told = |(site, change): &(std::sync::Arc<systx_commit::Site>, OutsideChange)| {
        outside_change(|path| site.absolute(path), change)
    };
    installed.outside.iter().map(told).collect()
}

/// Of a volume that is mounted on `dir`, and can only be read: why, and what to do.
pub(crate) fn image_stopped(why: &str, dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "{why}: make room where its image lies, or look at the device (dmesg); then systx umount \
         {dir}, and mount it again: what fsync(2) has returned for is there"
    )
}

/// Of a store in a directory that commits nothing any more: why, and what to do.
pub(crate) fn store_stopped(why: &str) -> String {
    format!(
        "{why}: make room there, or look at the device (dmesg); then end the daemon: the next one \
         recovers what was committed"
    )
}
