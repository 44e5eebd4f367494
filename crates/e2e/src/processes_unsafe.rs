//! Processes, made in each of the ways that there are: for the helpers of the suites.

#![allow(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// A process that was made here; it has to be waited for.
#[must_use]
pub struct Made(libc::pid_t);

impl Made {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.0 as u32
    }

    /// Waits for its end.
    pub fn wait(self) -> ExitStatus {
        let mut status = 0;
        loop {
            // SAFETY: writes to the status.
            let got = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
            if got == self.0 {
                return ExitStatus::from_raw(status);
            }
            let error = std::io::Error::last_os_error();
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
        }
    }
}

/// What a process is to do; it ends with what that returns.
type Work<'a> = &'a mut dyn FnMut() -> i32;

extern "C" fn run(work: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `clone` gives the address of one, which lives as long as this.
    let work = unsafe { &mut *work.cast::<Work<'_>>() };
    work()
}

fn clone(flags: libc::c_int, mut work: Work<'_>) -> Made {
    let mut stack = vec![0_u128; 16 << 10];
    // SAFETY: the stack and the work live until the process has a copy of them, or has ended: then
    // `clone` returns.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len());
        libc::clone(run, top.cast(), flags | libc::SIGCHLD, (&raw mut work).cast())
    };
    assert!(pid > 0, "{}", std::io::Error::last_os_error());
    Made(pid)
}

/// By fork(2).  The work must need nothing that another thread may have held.
pub fn fork(work: Work<'_>) -> Made {
    // SAFETY: the child does no more than the work, and ends.
    match unsafe { libc::fork() } {
        // SAFETY: takes a number.
        0 => unsafe { libc::_exit(work()) },
        pid => {
            assert!(pid > 0, "{}", std::io::Error::last_os_error());
            Made(pid)
        }
    }
}

/// A copy of the memory on a stack of its own.
pub fn copied(work: Work<'_>) -> Made {
    clone(0, work)
}

/// As by vfork(2) and posix_spawn(3): with this very memory, while this thread waits.
pub fn lent(work: Work<'_>) -> Made {
    clone(libc::CLONE_VM | libc::CLONE_VFORK, work)
}

/// execve(2) of a shell, with this script; returns if it fails.
pub fn shell(script: &std::ffi::CStr) -> i32 {
    let args = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null()];
    // SAFETY: both lists end with null, and are of texts.
    unsafe { libc::execve(c"/bin/sh".as_ptr(), args.as_ptr(), environment.as_ptr()) };
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// close(2) of a number, whoever has it.
pub fn close(fd: i32) -> i32 {
    // SAFETY: no memory; the caller's own descriptors are closed in a process of its own.
    unsafe { libc::close(fd) }
}

/// Whether any process of this one is left, ended or not.
pub fn any_left() -> bool {
    // SAFETY: no memory.
    unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) != -1 }
}
