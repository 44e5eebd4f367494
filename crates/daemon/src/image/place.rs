//! How a volume gets into the name space: by the daemon itself, or, for an ordinary user's, by
//! fusermount3.

use super::Wanted;
use crate::fuse_mount;
use crate::fusermount;
use crate::protocol::{Failure, FailureKind};
use crate::served::{
    CUT_OFF, identity, is_ours, is_ours_at, open_dir, put_over, put_under, take_off,
};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What helps who may not mount there.
const INSTEAD: &str = "a volume of yours is mounted on a directory that you may write";

/// A mount that is about to be served.
pub(super) struct Place {
    pub mount: OwnedFd,
    /// Device number and id.
    pub is: (u64, u64),
    /// It can be seen already: whoever comes waits until it is served.
    there: bool,
}

impl Place {
    /// Makes one, and the device by which it is served.
    ///
    /// # Errors
    /// This user may not mount, or not there.
    pub fn make(wanted: &Wanted<'_>) -> Result<(Place, OwnedFd), Failure> {
        let attributes = match wanted.snapshot {
            Some(_) => MountAttrFlags::MOUNT_ATTR_RDONLY,
            None => MountAttrFlags::empty(),
        };
        let cannot = |e| refused("make a mount for", wanted.dir, e);
        match fuse_mount::detached(wanted.file.as_os_str().as_bytes(), attributes) {
            Ok((mount, device)) => {
                let is = identity(mount.as_fd()).map_err(cannot)?;
                Ok((Place { mount, is, there: false }, device))
            }
            // Or the device is closed to this user, which the helper says in its own words.
            Err(Errno::PERM | Errno::ACCESS) => Place::by_helper(wanted),
            Err(e) => Err(cannot(e)),
        }
    }

    /// Nothing is mounted beneath another mount by fusermount3, so a dead one goes away before:
    /// for a moment, its directory is seen.
    fn by_helper(wanted: &Wanted<'_>) -> Result<(Place, OwnedFd), Failure> {
        let dir = wanted.dir;
        if wanted.replaces && is_ours_at(dir) {
            take_off(dir, CUT_OFF).map_err(|e| refused("unmount what is dead on", dir, e))?;
        }
        let what = fusermount::What {
            called: "the volume",
            source: wanted.file.as_os_str().as_bytes(),
            read_only: wanted.snapshot.is_some(),
            instead: INSTEAD,
        };
        let device = fusermount::mount(dir, &what).map_err(|f| f.path(dir))?;
        let found = root_of(dir).map_err(|e| {
            let _ = fusermount::unmount(dir, true);
            refused("look at the mount of", dir, e)
        });
        let (mount, is) = found?;
        Ok((Place { mount, is, there: true }, device))
    }

    /// This process may mount.
    pub fn is_roots(&self) -> bool {
        !self.there
    }

    /// Shows it.
    pub fn show(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        let put = match (self.there, wanted.replaces) {
            (true, _) => Ok(()),
            (false, true) => put_under(&self.mount, wanted.dir),
            (false, false) => {
                let below = open_dir(CWD, wanted.dir);
                below.and_then(|below| put_over(&self.mount, below.as_fd()))
            }
        };
        put.map_err(|e| refused("mount over", wanted.dir, e))
    }

    /// It will not be served: nobody is to wait for it.
    pub fn withdraw(&self, wanted: &Wanted<'_>) {
        if self.there
            && let Err(error) = fusermount::unmount(wanted.dir, true)
        {
            tracing::warn!(%error, dir = %wanted.dir.display(), "unmount");
        }
    }
}

/// What could not be done with a directory.
pub(super) fn refused(what: &str, dir: &Path, e: Errno) -> Failure {
    Failure::new(FailureKind::Io, format!("cannot {what} {}: {e}", dir.display())).path(dir)
}

/// The root of the mount that is seen at a path, without asking who serves it, and which that is.
fn root_of(dir: &Path) -> Result<(OwnedFd, (u64, u64)), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(dir, flags, Mode::empty())?;
    let is = identity(root.as_fd())?;
    // Not the directory below it.
    if is_ours(is.1, dir) { Ok((root, is)) } else { Err(Errno::INVAL) }
}
