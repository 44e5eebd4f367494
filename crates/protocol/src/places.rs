//! Where the files of a daemon are, if nobody says so: under no name that somebody else could have
//! taken.
//!
//! 1. In a directory that is the user's own already: `/run` of root, `$XDG_RUNTIME_DIR`,
//!    `/run/user/UID`.  For root always the first one, whatever sudo did to the environment: two
//!    daemons of one user would lock each other out of the stores.
//! 2. Else in `/tmp`, in the first directory `systx-UID-NUMBER` that belongs to this user.  What
//!    others make there belongs to them, and is passed over: a name that somebody else has taken
//!    costs the user nothing but the next number.

use crate::{Failure, FailureKind};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Names the directory of the socket, for tests and for unusual set-ups.
pub const DIR_VARIABLE: &str = "SYSTX_RUNTIME_DIR";
/// Names the directory of what a daemon keeps about its stores, for tests and unusual set-ups.
pub const STATE_VARIABLE: &str = "SYSTX_STATE_DIR";
/// Where nobody has a place of their own.
const SHARED: &str = "/tmp";

/// The runtime directory of this user, which is made if need be.
///
/// # Errors
/// None can be had.
pub fn runtime() -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let mut last = None;
    for (parent, name) in own_places(uid) {
        if !is_own(&parent, uid) {
            continue;
        }
        let dir = parent.join(name);
        match private_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) => last = Some(e),
        }
    }
    shared(Path::new(SHARED), uid).map_err(|e| {
        last.unwrap_or_else(|| io_failure(Path::new(SHARED), "make a directory in", &e))
            .hint(format!("name a directory of your own with {}", DIR_VARIABLE))
    })
}

/// Makes `dir`, or checks that the one that is there is the user's own and closed to others: who
/// can write in it could pose as the daemon.
pub fn private_dir(dir: &Path) -> Result<(), Failure> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(io_failure(dir, "create", &e)),
    }
    let meta = std::fs::symlink_metadata(dir).map_err(|e| io_failure(dir, "look at", &e))?;
    let uid = rustix::process::geteuid().as_raw();
    let wrong = if !meta.is_dir() {
        "is not a directory".to_owned()
    } else if meta.uid() != uid {
        format!("belongs to uid {}, not to {uid}", meta.uid())
    } else if meta.mode() & 0o077 != 0 {
        format!("is open to others (mode {:04o})", meta.mode() & 0o7777)
    } else {
        return Ok(());
    };
    let text = format!("the runtime directory {} {wrong}", dir.display());
    Err(Failure::new(FailureKind::Invalid, text)
        .hint(format!("remove it, or name another with {DIR_VARIABLE}"))
        .path(dir))
}

/// A call on a path failed: what was to be done, as a verb.
#[must_use]
pub fn io_failure(path: &Path, what: &str, e: &std::io::Error) -> Failure {
    Failure::new(FailureKind::Io, format!("cannot {what} {}: {e}", path.display())).path(path)
}

fn own_places(uid: u32) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    if uid == 0 {
        all.push((PathBuf::from("/run"), "systx-0".to_owned()));
    }
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()) {
        all.push((PathBuf::from(dir), "systx".to_owned()));
    }
    all.push((PathBuf::from(format!("/run/user/{uid}")), "systx".to_owned()));
    all
}

/// Whether only this user can make something in a directory.
fn is_own(dir: &Path, uid: u32) -> bool {
    let own = |m: std::fs::Metadata| m.is_dir() && m.uid() == uid && m.mode() & 0o022 == 0;
    dir.is_absolute() && std::fs::metadata(dir).is_ok_and(own)
}

/// The user's directory in one that all can write to.
///
/// All processes of a user that find none try the same names in the same order, and `mkdir` lets
/// one of them make it.  A name that somebody else holds is passed over.
fn shared(base: &Path, uid: u32) -> std::io::Result<PathBuf> {
    if let Some(dir) = found(base, uid)? {
        return Ok(dir);
    }
    for n in 0..u32::MAX {
        let dir = base.join(format!("{}{n}", prefix(uid)));
        match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            Err(_) if std::fs::symlink_metadata(&dir).is_ok_and(|m| is_private(&m, uid)) => {
                return Ok(dir);
            }
            Err(_) => {}
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn prefix(uid: u32) -> String {
    format!("systx-{uid}-")
}

/// The directory that the user has there already; the first by name if there are several.
fn found(base: &Path, uid: u32) -> std::io::Result<Option<PathBuf>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(base)? {
        let entry = entry?;
        let named = entry.file_name().as_encoded_bytes().starts_with(prefix(uid).as_bytes());
        // It may be gone since.
        if named && entry.metadata().is_ok_and(|m| is_private(&m, uid)) {
            all.push(entry.path());
        }
    }
    Ok(all.into_iter().min())
}

fn is_private(meta: &std::fs::Metadata, uid: u32) -> bool {
    meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn all_of_a_user_find_the_same_place_also_when_they_make_it_at_the_same_time() {
        let base = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        // Somebody holds the first name: all pass it over alike.
        std::fs::write(base.path().join(format!("{}0", prefix(uid))), "").unwrap();
        for _ in 0..2000 {
            let start = std::sync::Barrier::new(8);
            let found: Vec<PathBuf> = std::thread::scope(|s| {
                let look = || {
                    start.wait();
                    shared(base.path(), uid).unwrap()
                };
                let all: Vec<_> = (0..8).map(|_| s.spawn(look)).collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(found.iter().all(|dir| *dir == found[0]), "{found:?}");
            assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 2);
            std::fs::remove_dir(&found[0]).unwrap();
        }
    }

    #[test]
    fn what_others_have_put_there_is_passed_over() {
        let base = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let taken = |name: &str| base.path().join(format!("{}{name}", prefix(uid)));
        std::fs::write(taken("0"), "").unwrap();
        std::os::unix::fs::symlink("/", taken("1")).unwrap();
        std::fs::create_dir(taken("2")).unwrap();
        std::fs::set_permissions(taken("2"), PermissionsExt::from_mode(0o777)).unwrap();
        let dir = shared(base.path(), uid).unwrap();
        assert_eq!(shared(base.path(), uid).unwrap(), dir);
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        assert!(!is_own(&taken("2"), uid) && is_own(&dir, uid) && !is_own(&dir, uid + 1));
    }
}
