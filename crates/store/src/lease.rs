//! Read leases (fcntl(2), `F_SETLEASE`): nobody has a file open for writing, and who opens it for
//! that waits.

use crate::real_unsafe::{self, Lease};
use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};

/// While it lives nobody has the file open for writing. Who opens it for that waits until it is
/// dropped, or gets `EWOULDBLOCK` with `O_NONBLOCK`; the kernel takes it away after
/// /proc/sys/fs/lease-break-time seconds.
#[derive(Debug)]
pub struct ReadLease {
    fd: OwnedFd,
}

impl ReadLease {
    /// Of a regular file that `fd` has open for reading only; `None`: somebody has it open for
    /// writing.
    ///
    /// # Errors
    /// Those of fcntl(2): `EINVAL` where the file system, or the system, has no leases.
    pub fn take(fd: OwnedFd) -> Result<Option<ReadLease>> {
        let taken = real_unsafe::take_lease(fd.as_fd(), Lease::Read)?;
        Ok(taken.then_some(ReadLease { fd }))
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        // The last close comes a moment later than it is asked for.
        real_unsafe::give_lease_back(self.fd.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};

    #[test]
    fn it_is_refused_beside_a_writer_and_keeps_the_next_one_out() {
        let path = std::env::temp_dir().join(format!("systx-lease-{}", std::process::id()));
        let writer = std::fs::File::create(&path).expect("create");
        let for_reading = || open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        assert!(ReadLease::take(for_reading().expect("open")).expect("lease").is_none());
        drop(writer);
        let lease = ReadLease::take(for_reading().expect("open")).expect("lease").expect("nobody");
        let at_once = || open(&path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        assert_eq!(at_once().err(), Some(rustix::io::Errno::AGAIN));
        for_reading().expect("readers are in nobody's way");
        drop(lease);
        at_once().expect("it is over");
        std::fs::remove_file(path).expect("remove");
    }
}
