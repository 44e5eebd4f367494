//! On whose behalf a thread calls the backing file system.
//!
//! The kernel has checked the caller's rights already, with the attributes that it was shown. What
//! is left to the calls below is everything that follows from *who* does it: the owner of new
//! objects, the umask or the default ACL, quotas, and whether set-id bits survive. So the thread
//! takes on the caller's `fsuid` and `fsgid` and keeps the capabilities that permission checks look
//! at, less those that would exempt it from a limit that binds the caller.
//!
//! What is not carried over: supplementary groups (the kernel has applied them).

use super::sys_unsafe::{own_umask, set_fsgid, set_fsuid};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::cell::Cell;
use std::marker::PhantomData;
use systx_base::{Gid, Uid};
use systx_vfs::api::{Caller, Reply};

/// No such id; asking for it changes nothing.
const NO_ID: u32 = u32::MAX;

thread_local! {
    /// Whether this thread's umask is its own.
    static OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

/// The thread is somebody else until this is dropped.
pub(super) struct Acting {
    ids: Option<(Uid, Gid)>,
    caps: Option<CapabilitySets>,
    umask: Option<Mode>,
    /// What it undoes belongs to this thread.
    here: PhantomData<*const ()>,
}

impl Acting {
    fn nobody_else() -> Acting {
        Acting { ids: None, caps: None, umask: None, here: PhantomData }
    }

    /// As the caller who makes something new; `umask`: the caller's.
    pub fn creating(caller: Caller, umask: u32) -> Reply<Acting> {
        let mut acting = Acting::nobody_else();
        if !OWN_UMASK.get() {
            own_umask()?;
            OWN_UMASK.set(true);
        }
        let mask = Mode::from_raw_mode(umask & 0o777);
        acting.umask = Some(rustix::process::umask(mask));
        acting.become_caller(caller, CapabilitySet::empty())?;
        Ok(acting)
    }

    /// As the caller who changes content, whom quotas bind and who may not use up what the file
    /// system reserves for the superuser; so that the set-id bits go with `kill_suidgid`.
    pub fn writing(caller: Caller, kill_suidgid: bool) -> Reply<Acting> {
        let mut less = CapabilitySet::empty();
        less.set(CapabilitySet::FSETID, kill_suidgid);
        let mut acting = Acting::nobody_else();
        if caller.uid != 0 {
            acting.become_caller(caller, less)?;
        } else if !less.is_empty() {
            acting.caps = without(less)?;
        }
        Ok(acting)
    }

    /// As the caller who takes names away, whom the sticky bit of a directory binds if not
    /// `privileged`.
    pub fn unnaming(caller: Caller, privileged: bool) -> Reply<Acting> {
        let mut acting = Acting::nobody_else();
        // A daemon of an ordinary user has that user's rights, for whomever it acts.
        if caller.uid != 0 && rustix::process::geteuid().is_root() {
            acting.become_caller(caller, CapabilitySet::empty())?;
        }
        acting.unprivileged(!privileged)
    }

    /// The same without the privilege over what others own, if it is to be `without`.
    pub fn unprivileged(mut self, without: bool) -> Reply<Acting> {
        if without {
            let before = self::without(CapabilitySet::FOWNER)?;
            self.caps = self.caps.or(before);
        }
        Ok(self)
    }

    /// With the thread's capabilities but `less` and, for an ordinary user, the one over limits.
    fn become_caller(&mut self, caller: Caller, mut less: CapabilitySet) -> Reply<()> {
        if caller.uid == NO_ID || caller.gid == NO_ID {
            return Err(Errno::OVERFLOW);
        }
        let old = (set_fsuid(NO_ID), set_fsgid(NO_ID));
        less.set(CapabilitySet::SYS_RESOURCE, caller.uid != 0);
        if old == (caller.uid, caller.gid) {
            self.caps = without(less)?;
            return Ok(());
        }
        let caps = capabilities(None)?;
        self.ids = Some(old);
        set_fsgid(caller.gid);
        set_fsuid(caller.uid);
        if (set_fsuid(NO_ID), set_fsgid(NO_ID)) != (caller.uid, caller.gid) {
            return Err(Errno::PERM);
        }
        self.caps = Some(caps);
        // The kernel has taken away those that concern files when the id ceased to be 0.
        set_capabilities(None, CapabilitySets { effective: caps.effective & !less, ..caps })
    }
}

/// Takes effective capabilities away; returns the sets before if that changed anything.
fn without(less: CapabilitySet) -> Reply<Option<CapabilitySets>> {
    if less.is_empty() {
        return Ok(None);
    }
    let caps = capabilities(None)?;
    if !caps.effective.intersects(less) {
        return Ok(None);
    }
    set_capabilities(None, CapabilitySets { effective: caps.effective & !less, ..caps })?;
    Ok(Some(caps))
}

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some((uid, gid)) = self.ids {
            set_fsuid(uid);
            set_fsgid(gid);
        }
        if let Some(caps) = self.caps
            && let Err(errno) = set_capabilities(None, caps)
        {
            // Raising what is permitted cannot fail.
            tracing::error!(%errno, "a thread did not get its capabilities back");
        }
        if let Some(umask) = self.umask {
            rustix::process::umask(umask);
        }
    }
}
