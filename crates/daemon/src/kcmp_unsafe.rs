//! kcmp(2), which no safe binding offers.
#![allow(unsafe_code)]

use rustix::process::Pid;
use std::os::fd::RawFd;

/// `KCMP_FILE`.
const FILE: libc::c_int = 0;

/// Whether two descriptors of two processes are one open file description; `None` where the kernel does not
/// tell: without `CONFIG_KCMP`, or where a process may not be looked at.
pub(crate) fn same_description(a: (Pid, RawFd), b: (Pid, RawFd)) -> Option<bool> {
    let (pid_a, pid_b) = (a.0.as_raw_nonzero().get(), b.0.as_raw_nonzero().get());
    let (Ok(fd_a), Ok(fd_b)) = (libc::c_ulong::try_from(a.1), libc::c_ulong::try_from(b.1)) else {
        return Some(false);
    };
    // SAFETY: kcmp(2) takes five numbers and touches no memory of this process.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, pid_a, pid_b, FILE, fd_a, fd_b) };
    match order {
        0 => Some(true),
        1.. => Some(false),
        // One of the two descriptors has been closed.
        _ if rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
            == Some(rustix::io::Errno::BADF) =>
        {
            Some(false)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_duplicate_is_the_same_and_a_second_open_is_not() {
        let me = rustix::process::getpid();
        let open = || File::open("/proc/self/exe").expect("this program can be read");
        let (first, second) = (open(), open());
        let copy = first.try_clone().expect("a descriptor can be duplicated");
        let same = |a: &File, b: &File| same_description((me, a.as_raw_fd()), (me, b.as_raw_fd()));
        if same(&first, &first).is_none() {
            println!("SKIPPED: this kernel has no kcmp");
            return;
        }
        assert_eq!(same(&first, &second), Some(false));
        assert_eq!(same(&first, &copy), Some(true));
        assert_eq!(same_description((me, first.as_raw_fd()), (me, 1 << 30)), Some(false));
    }
}
