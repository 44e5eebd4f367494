//! seccomp(2) with user notification: a filter for this process and all it starts, and the
//! descriptor over which a supervisor is asked about the calls that it names.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

type Result<T> = std::result::Result<T, Errno>;

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const ARCH: u32 = 0xc000_00f3;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
const ARCH: u32 = 0;

/// The filter: these calls of the machine's own kind are asked about, all others are allowed: also
/// those of 32-bit programs, and of every other kind that the kernel has.
fn program(calls: &[u32]) -> Option<Vec<libc::sock_filter>> {
    const NUMBER: u32 = 0; // offsets in `struct seccomp_data`
    const KIND: u32 = 4;
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let give = (libc::BPF_RET | libc::BPF_K) as u16;
    // SAFETY: these two only put their arguments into a struct.
    let stmt = |code, k| unsafe { libc::BPF_STMT(code, k) };
    // SAFETY: as above.
    let jump = |code, k, jt, jf| unsafe { libc::BPF_JUMP(code, k, jt, jf) };
    // Two instructions for each call and one to load its number.
    let section = u8::try_from(calls.len() * 2 + 1).ok().filter(|_| ARCH != 0)?;
    let mut all = vec![stmt(load, KIND), jump(equal, ARCH, 0, section), stmt(load, NUMBER)];
    for call in calls {
        all.push(jump(equal, *call, 0, 1));
        all.push(stmt(give, libc::SECCOMP_RET_USER_NOTIF));
    }
    all.push(stmt(give, libc::SECCOMP_RET_ALLOW));
    Some(all)
}

/// Installs it for this process and all that it will start. Without setting no_new_privs, so only
/// with the right to administrate this user namespace.
///
/// # Errors
/// The kernel has no such filters, or there is a supervisor already.
pub(crate) fn install(calls: &[u32]) -> Result<OwnedFd> {
    let mut filter = program(calls).ok_or(Errno::OPNOTSUPP)?;
    let len = u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // No mitigation that the programs have not asked for; a signal does not interrupt who is waited
    // for.
    let wanted = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let mut result = Err(Errno::NOSYS);
    for flags in [wanted | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, wanted] {
        // SAFETY: `program` and the filter that it points to live until the call returns; the
        // kernel copies both.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        result = if fd < 0 {
            Err(last())
        } else {
            let fd = i32::try_from(fd).map_err(|_| Errno::IO)?;
            // SAFETY: the call has just made this descriptor, close-on-exec, for us.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        if !matches!(result, Err(Errno::INVAL)) {
            break;
        }
    }
    result.inspect(hurry)
}

/// Has who is asked run at once, on the processor of the thread that asks: until the question is
/// fetched, a signal ends the call. Before Linux 6.6 it stays as it is.
fn hurry(listener: &OwnedFd) {
    const SYNC_WAKE_UP: u64 = 1;
    // SAFETY: the request takes a number and touches no memory.
    let _ = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP)
    };
}

/// A call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Of this question.
    pub(crate) id: u64,
    /// Thread that makes it.
    pub(crate) thread: u32,
    /// Number of the call.
    pub(crate) number: u32,
    /// Its arguments.
    pub(crate) args: [u64; 6],
}

/// The next call; blocks.
///
/// # Errors
/// `ENOENT`: whoever made it is gone, ask again.
pub(crate) fn receive(listener: BorrowedFd<'_>) -> Result<Call> {
    // The kernel wants it zeroed, and may know more of it than we do.
    let mut space = [0u64; 64];
    const { assert!(size_of::<libc::seccomp_notif>() <= 64 * 8) };
    // SAFETY: the kernel writes one `struct seccomp_notif` of the size that is in the number of the
    // request.
    let r = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, space.as_mut_ptr())
    };
    if r < 0 {
        return Err(last());
    }
    // SAFETY: it is large enough, aligned for u64, and any bytes are a value of this struct of
    // integers.
    let n = unsafe { space.as_ptr().cast::<libc::seccomp_notif>().read() };
    Ok(Call { id: n.id, thread: n.pid, number: n.data.nr.cast_unsigned(), args: n.data.args })
}

/// Whether a call still waits: what was read from its thread's memory was its own.
pub(crate) fn waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the request reads one u64, which lives until the call returns.
    let r = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id)
    };
    r == 0
}

/// Lets a call go on as if nobody had asked.
pub(crate) fn go_on(listener: BorrowedFd<'_>, id: u64) {
    // Fails where the kernel does not know the flag (before 5.5); see `calls`.
    send(listener, id, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
}

/// Ends a call, which the kernel then does not make: it returns 0, or fails.
pub(crate) fn answer(listener: BorrowedFd<'_>, id: u64, result: Result<()>) {
    send(listener, id, result.err().map_or(0, |errno| -errno.raw_os_error()), 0);
}

fn send(listener: BorrowedFd<'_>, id: u64, error: i32, flags: u32) {
    let mut answer = libc::seccomp_notif_resp { id, val: 0, error, flags };
    // Fails if whoever made the call is gone.
    // SAFETY: the request reads one `seccomp_notif_resp`, which lives until the call returns.
    let _ = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer)
    };
}

/// Bytes of another process's memory; as many as can be had.
pub(crate) fn read_memory(thread: u32, address: u64, buf: &mut [u8]) -> usize {
    let (Ok(pid), Ok(address)) = (libc::pid_t::try_from(thread), usize::try_from(address)) else {
        return 0;
    };
    let ours = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let theirs = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buf.len() };
    // SAFETY: writes at most `buf.len()` bytes to `buf`; the other address is the other process's,
    // where the kernel checks it.
    let n = unsafe { libc::process_vm_readv(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
    usize::try_from(n).unwrap_or(0)
}
