//! What a program needs for libsystx that has no privilege: a user namespace in which it may change
//! its own mount namespaces, and nothing else.

use crate::error::{Failed, SessionError, step};
use crate::{execute, privileged, sys_unsafe};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getgid, getuid};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, configure_capability_in_ambient_set,
    set_capabilities,
};
use std::ffi::OsString;

/// Entering a mount namespace takes both (setns(2)).
const NEEDED: [CapabilitySet; 2] = [CapabilitySet::SYS_ADMIN, CapabilitySet::SYS_CHROOT];

/// Becomes the program, with what libsystx needs; comes back only if that fails. Of a process with
/// one thread.
pub fn become_server(argv: &[OsString]) -> SessionError {
    if argv.is_empty() {
        return SessionError::Exec { path: "".into(), errno: Errno::INVAL };
    }
    if !privileged()
        && let Err(e) = namespaces()
    {
        return SessionError::Setup(e);
    }
    execute(argv)
}

fn namespaces() -> Result<(), Failed> {
    let failed = |step: &str| {
        let step = step.to_owned();
        move |errno| Failed { step, path: None, errno }
    };
    // Those of before: inside, nobody is known until they are written.
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    sys_unsafe::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
        .map_err(failed(step::USER_NAMESPACE))?;
    let write = |path: &str, text: String| {
        std::fs::write(path, text).map_err(|e| Failed {
            step: step::USER_NAMESPACE.into(),
            path: Some(path.into()),
            errno: Errno::from_io_error(&e).unwrap_or(Errno::IO),
        })
    };
    write("/proc/self/setgroups", "deny".into())?;
    write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    // What is mounted outside later is seen inside, too.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(c"/", flags).map_err(failed(step::MOUNT_NAMESPACE))?;
    // The program keeps these two, and no other, over its execution.
    let mut sets = capabilities(None).map_err(failed(step::USER_NAMESPACE))?;
    let needed = NEEDED.into_iter().fold(CapabilitySet::empty(), CapabilitySet::union);
    (sets.effective, sets.permitted, sets.inheritable) = (needed, needed, needed);
    set_capabilities(None, sets).map_err(failed(step::USER_NAMESPACE))?;
    for one in NEEDED {
        configure_capability_in_ambient_set(one, true).map_err(failed(step::USER_NAMESPACE))?;
    }
    Ok(())
}
