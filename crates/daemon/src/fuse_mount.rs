//! Mounts that this process makes and serves itself.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Type of our mounts in mount tables.
pub const FS_TYPE: &str = "fuse.systx";

/// What mount tables call the source of those that show directories.
pub const SOURCE: &str = "systx";

/// A FUSE mount that is not yet anywhere, and the device by which it is served.  `source`: what
/// mount tables are to call it.
///
/// # Errors
/// The kernel's; without /dev/fuse, `ENOENT` or `ENODEV`.
pub(crate) fn detached(
    source: &[u8],
    attributes: MountAttrFlags,
) -> Result<(OwnedFd, OwnedFd), Errno> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", source)?;
    for (key, value) in [
        ("subtype", "systx"),
        ("fd", &device.as_raw_fd().to_string()),
        ("rootmode", "40000"),
        ("user_id", &rustix::process::geteuid().as_raw().to_string()),
        ("group_id", &rustix::process::getegid().as_raw().to_string()),
    ] {
        fsconfig_set_string(context.as_fd(), key, value)?;
    }
    // The first is also for processes of the user that become somebody else.
    for flag in ["allow_other", "default_permissions"] {
        fsconfig_set_flag(context.as_fd(), flag)?;
    }
    fsconfig_create(context.as_fd())?;
    Ok((fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?, device))
}
