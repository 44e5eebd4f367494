//! The kernel's switchboard for FUSE connections (fusectl), for our own connection only: how many
//! requests wait for an answer, and how to end it so that whoever waits gets an error.
//!
//! Never another's. The number of a connection is the device number of its mount, and numbers are
//! given out again. So the number is asked of our own descriptor (Linux 6.16 tells it in fdinfo),
//! or, on older kernels, is what the mounter told; the file is opened by that number; and *then*
//! our connection is looked at: while it is alive its mount is, its number is not anybody else's,
//! and what was opened before is ours. If our mount ends after that, the opened file does nothing.
//!
//! Where fusectl is not mounted at its place, a privileged process mounts one that nobody else
//! sees.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::time::Timespec;

use crate::device::Device;

const PLACE: &str = "/sys/fs/fuse/connections";
/// `FUSE_CTL_SUPER_MAGIC`.
const MAGIC: u64 = 0x6573_5543;

/// Access to the files of one connection.
pub(crate) struct Control {
    directory: OwnedFd,
    number: u32,
}

impl Control {
    /// `told`: the number as the mounter knows it.
    pub fn open(device: &Device, told: Option<u32>) -> io::Result<Self> {
        let number = match (own_number(device), told) {
            (Some(own), Some(told)) if own != told => {
                tracing::warn!(own, told, "the mount's number is not the descriptor's: ignored");
                own
            }
            (Some(own), _) => own,
            (None, Some(told)) => told,
            (None, None) => {
                return Err(io::Error::other("this kernel does not tell a connection's number"));
            }
        };
        Ok(Control { directory: switchboard()?, number })
    }

    /// Requests that have no answer yet, queued ones included.
    pub fn waiting(&self, device: &Device) -> io::Result<u64> {
        let file = self.file(device, "waiting", OFlags::RDONLY)?;
        let mut text = [0; 32];
        let n = rustix::io::read(&file, &mut text)?;
        let text = String::from_utf8_lossy(text.get(..n).unwrap_or_default());
        text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Ends the connection: every request is answered `ECONNABORTED`.
    pub fn abort(&self, device: &Device) -> io::Result<()> {
        let file = self.file(device, "abort", OFlags::WRONLY)?;
        rustix::io::write(&file, b"1")?;
        Ok(())
    }

    fn file(&self, device: &Device, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let path = format!("{}/{name}", self.number);
        let file = openat(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty())?;
        // Only now, see the module.
        if alive(device)? { Ok(file) } else { Err(io::ErrorKind::NotConnected.into()) }
    }
}

/// The number of the connection behind a descriptor, as the kernel tells it.
fn own_number(device: &Device) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw())).ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    line.trim().parse().ok()
}

/// Whether the connection is neither unmounted nor aborted.
fn alive(device: &Device) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(!fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
}

fn switchboard() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let usual = openat(CWD, PLACE, flags, Mode::empty());
    if let Ok(directory) = usual
        && fstatfs(&directory)?.f_type as u64 == MAGIC
    {
        return Ok(directory);
    }
    own_switchboard().map_err(|errno| {
        io::Error::new(
            errno.kind(),
            format!("fusectl is not mounted on {PLACE}, nor here: {errno}"),
        )
    })
}

/// A mount that has no place in any tree.
fn own_switchboard() -> Result<OwnedFd, Errno> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    openat(&mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
