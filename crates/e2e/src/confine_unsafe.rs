//! Commands with less than root has: without capabilities that container engines do not give, or
//! with system calls that their filters forbid.

#![allow(unsafe_code)]

use crate::lab::Lab;
use std::ffi::OsStr;
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What podman and docker leave root in a container: no CAP_SYS_ADMIN.
const CONTAINER: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,\
                         +net_bind_service,+sys_chroot,+setfcap";

/// A program as root of a lab with no more capabilities than in a container; takes setpriv(1).
pub fn in_container(lab: &Lab, program: impl AsRef<OsStr>) -> Command {
    let mut command = lab.command("setpriv");
    command.args(["--bounding-set", CONTAINER, "--inh-caps=-all", "--"]).arg(program);
    command
}

/// The calls by which one process looks at what another one has open.
pub const LOOKING: &[libc::c_long] = &[libc::SYS_kcmp, libc::SYS_pidfd_getfd];

/// Has the kernel refuse these calls (EPERM) to the command and all that it starts. The caller is
/// root.
pub fn without_calls(command: &mut Command, calls: &[libc::c_long]) {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let give = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The number is first in what a filter sees.  These programs are all of the machine's own kind.
    let mut filter = vec![line(load, 0, 0, 0)];
    for call in calls {
        filter.push(line(equal, 0, 1, u32::try_from(*call).expect("a number of a call")));
        filter.push(line(give, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    filter.push(line(give, 0, 0, libc::SECCOMP_RET_ALLOW));
    let install = move || {
        let len = u16::try_from(filter.len()).expect("a few lines");
        let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the program and its lines live until the call returns; the kernel copies both.
        let done = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
        };
        if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    };
    // SAFETY: between fork and exec it makes one system call, and allocates nothing: the lines were
    // made before.
    unsafe { command.pre_exec(install) };
}
