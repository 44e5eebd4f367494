//! Calls of a thread in a transaction that are intercepted, for what no path says: see
//! docs/decisions/0007.

mod descriptors;
#[path = "family_unsafe.rs"]
mod family;
#[path = "gate_unsafe.rs"]
mod gate;
#[path = "incoming_unsafe.rs"]
mod incoming;
#[path = "kernel_unsafe.rs"]
mod kernel;
mod making;
mod outgoing;
mod region;
#[path = "registry_unsafe.rs"]
mod registry;
#[path = "stack_unsafe.rs"]
mod stack;
mod streams;

use crate::Flags;
use core::sync::atomic::{AtomicBool, Ordering};
use gate::{SIGSYS_BIT, arm, disarm, key, mask, probe};
use incoming::Mode;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// That calls are intercepted here has been seen.
static WORKS: AtomicBool = AtomicBool::new(false);

/// While it lives, calls of this thread are not intercepted: the library is at work. Signals that
/// are deferred wait for the end of it, too.
pub struct Quiet {
    mask: Option<u64>,
}

/// See [`Quiet`].
pub fn quiet() -> Quiet {
    let defers = registry::with(key(), |region| {
        region.take_back();
        region.select(false);
        region.incoming.mode != Mode::Plain
    });
    Quiet { mask: (defers == Some(true)).then(|| mask(!0)) }
}

/// The same for a begin with these flags.
pub fn quiet_for(flags: Flags) -> Quiet {
    let quiet = quiet();
    let defers = Flags::SIGNALS_DEFERRED | Flags::SIGNALS_SPECULATIVE;
    if quiet.mask.is_some() || flags.bits() & defers.bits() == 0 {
        return quiet;
    }
    registry::take(key());
    let before = mask(!0);
    registry::with(key(), |region| region.mask = Some(before));
    Quiet { mask: Some(before) }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = self.mask {
            let late = registry::with(key(), |region| region.incoming.late()).unwrap_or(0);
            let rest = incoming::pending(late);
            let before =
                registry::look(key(), |region| region.visible_mask(before)).unwrap_or(before);
            mask(before & !late);
            // Those that waited for the end come now, in their order; their handlers may begin
            // transactions.
            while let Some(info) = incoming::next() {
                incoming::send_again(&info);
            }
            rest.iter().for_each(incoming::send_again);
        }
        let _ = registry::look(key(), |region| region.select(region.is_armed()));
    }
}

/// Whether any of the flags wants calls intercepted.
pub fn wanted(flags: Flags) -> bool {
    flags.bits() & Flags::CALLS != 0
}

/// From the end of the library's work on, calls of this thread are intercepted.
pub fn begin(flags: Flags, control: impl AsFd, namespace: u64) -> Result<(), Errno> {
    registry::take(key());
    strip_masks();
    let blocked_before = registry::with(key(), |region| region.mask.take()).flatten();
    let now = mask(!0);
    let sigsys = blocked_before.unwrap_or(now) & SIGSYS_BIT != 0;
    let control = control.as_fd().as_raw_fd();
    registry::with(key(), |region| region.begin(flags, control, namespace, sigsys));
    mask(now & !SIGSYS_BIT);
    if let Err(e) = again() {
        leave(false);
        return Err(e);
    }
    Ok(())
}

/// The same after a pause.
pub fn again() -> Result<(), Errno> {
    if registry::look(key(), |region| region.is_active()) != Some(true) {
        return Ok(());
    }
    registry::with(key(), |region| region.stack.enter());
    let armed = registry::look(key(), arm).unwrap_or(Err(libc::EINVAL));
    if let Err(e) = armed {
        disarmed();
        return Err(Errno::from_raw_os_error(e));
    }
    if !WORKS.load(Ordering::Relaxed) {
        let count = || registry::look(key(), |region| region.traps()).unwrap_or(0);
        let before = count();
        let _ = registry::look(key(), |region| region.select(true));
        probe();
        let _ = registry::look(key(), |region| region.select(false));
        if count() == before {
            disarm();
            disarmed();
            return Err(Errno::NOSYS);
        }
        WORKS.store(true, Ordering::Relaxed);
    }
    registry::with(key(), |region| region.set_armed(true));
    Ok(())
}

/// Nothing is intercepted until [`again`].
pub fn pause() {
    let was = registry::with(key(), |region| {
        let was = region.is_armed();
        region.set_armed(false);
        region.select(false);
        was
    });
    if was == Some(true) {
        disarm();
        disarmed();
    }
}

/// What is put back when nothing is intercepted any more.
fn disarmed() {
    registry::with(key(), |region| region.stack.leave());
}

/// Whether the program made a call for which the transaction can only be dropped.
pub fn doomed() -> bool {
    registry::look(key(), |region| region.is_doomed()) == Some(true)
}

/// The transaction is over.
pub fn leave(committed: bool) {
    if registry::look(key(), |region| region.is_active()) != Some(true) {
        return;
    }
    pause();
    let before = mask(!0);
    let blocked = registry::with(key(), |region| region.end(committed));
    mask(if blocked == Some(true) { before | SIGSYS_BIT } else { before });
}

/// In a forked child: one that was made where nothing was intercepted is not, whatever the copy of
/// the memory says.
pub fn forked() {
    if registry::look(key(), |region| region.is_child()) == Some(true) {
        return;
    }
    registry::with(key(), |region| {
        region.set_armed(false);
        region.incoming.forget();
    });
    registry::give_back(key());
}

/// This thread ends.
pub fn gone() {
    pause();
    registry::give_back(key());
}

/// A handler that runs with SIGSYS blocked could make no intercepted call.
fn strip_masks() {
    for signal in (1..=64).filter(|s| ![libc::SIGKILL, libc::SIGSTOP, libc::SIGSYS].contains(s)) {
        let Ok(now) = gate::action(signal, None) else { continue };
        if now.handler > 1 && now.mask & SIGSYS_BIT != 0 {
            let without = gate::Action { mask: now.mask & !SIGSYS_BIT, ..now };
            let _ = gate::action(signal, Some(&without));
        }
    }
}
