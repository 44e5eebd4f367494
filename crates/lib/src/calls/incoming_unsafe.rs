//! Signals that come in during a transaction, deferred or speculative.
//!
//! While a thread wants one of the two, all handlers of the program are wrapped, and so are
//! defaults that would end it. In that thread the wrapper notes the signal down, in the order of
//! arrival; in others it does what would have been done. Deferred ones are sent again at the end,
//! one after the other, and so delivered in their order; speculative ones are delivered at once,
//! and again after an abort.

#![allow(unsafe_code)]

use super::gate::{self, Action, SIGSYS_BIT, action, key, run_handler};
use super::{kernel, registry};
use core::sync::atomic::{AtomicU64, Ordering};
use libc::c_int;
use std::sync::Mutex;

/// Signals that are noted down, at most; later ones wait in the kernel.
const MOST: usize = 256;

/// What a wrapped signal does: handler, flags, mask.
static BEHIND: [[AtomicU64; 3]; 65] = [const { [const { AtomicU64::new(0) }; 3] }; 65];

/// How many threads want it.
static USERS: Mutex<u32> = Mutex::new(0);

/// How a thread takes signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As ever.
    Plain,
    /// At the end.
    Deferred,
    /// At once, and again after an abort.
    Speculative,
}

/// The signals of one thread.
pub struct Incoming {
    pub mode: Mode,
    /// Of the process that it is about.
    pid: c_int,
    queue: Box<[[u64; 16]]>,
    first: usize,
    end: usize,
    /// Signals for which there was no room: blocked until the end.
    late: u64,
}

impl Incoming {
    pub fn new() -> Incoming {
        Incoming {
            mode: Mode::Plain,
            pid: 0,
            queue: vec![[0; 16]; MOST].into(),
            first: 0,
            end: 0,
            late: 0,
        }
    }

    /// At the begin, with all signals blocked.
    pub fn begin(&mut self, pid: c_int, mode: Mode) {
        self.pid = pid;
        if mode != Mode::Plain {
            wrap_all();
        }
        self.mode = mode;
    }

    /// At the end, with all signals blocked.
    pub fn end(&mut self, committed: bool) {
        if self.mode == Mode::Plain {
            return;
        }
        if self.mode == Mode::Speculative && committed {
            (self.first, self.end) = (0, 0);
        }
        self.mode = Mode::Plain;
        unwrap_all();
    }

    /// In a new process that has a copy: handlers are what they are for the program.
    pub fn forked(&mut self) {
        if self.mode != Mode::Plain {
            // The count is one of the other process's threads, whose lock somebody may have had.
            restore_all();
        }
        self.forget();
    }

    /// In a forked child.
    pub fn forget(&mut self) {
        self.mode = Mode::Plain;
        (self.first, self.end, self.late) = (0, 0, 0);
    }

    /// Takes the next one out.
    fn pop(&mut self) -> Option<[u64; 16]> {
        if self.mode != Mode::Plain {
            return None;
        }
        let next = self.queue[self.first..self.end].first().copied();
        match next {
            Some(_) => self.first += 1,
            None => (self.first, self.end) = (0, 0),
        }
        next
    }

    /// Signals that wait in the kernel behind those that were noted down, when it is over.
    pub fn late(&mut self) -> u64 {
        if self.mode == Mode::Plain { std::mem::take(&mut self.late) } else { 0 }
    }

    fn note(&mut self, info: [u64; 16]) -> bool {
        let room = self.end < MOST;
        if room {
            self.queue[self.end] = info;
            self.end += 1;
        }
        room
    }
}

/// Sends this thread a signal that it has had before.
pub fn send_again(info: &[u64; 16]) {
    let signal = info[0] & 0xffff_ffff;
    let (pid, tid) = (kernel::pid() as u64, kernel::tid() as u64);
    kernel::send(
        libc::SYS_rt_tgsigqueueinfo as u64,
        [pid, tid, signal, info.as_ptr() as u64, 0, 0],
    );
}

/// Takes out what waits in the kernel of these signals, which are blocked.
pub fn pending(signals: u64) -> Vec<[u64; 16]> {
    let mut all = Vec::new();
    let none = [0u64; 2];
    if signals == 0 {
        return all;
    }
    loop {
        let mut info = [0u64; 16];
        let args =
            [&raw const signals as u64, &raw mut info as u64, &raw const none as u64, 8, 0, 0];
        // SAFETY: a mask, a siginfo_t and a time, of the kernel's sizes.
        if unsafe { gate::raw(libc::SYS_rt_sigtimedwait, args) } <= 0 {
            return all;
        }
        all.push(info);
    }
}

fn can_be_wrapped(signal: c_int) -> bool {
    const FAULTS: [c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGSYS,
    ];
    // 32 and 33 are the C library's.
    let never = [libc::SIGKILL, libc::SIGSTOP, 32, 33];
    (1..=64).contains(&signal) && !never.contains(&signal) && !FAULTS.contains(&signal)
}

/// Whether a disposition is to be wrapped: a handler, or the end of the process.
fn wants_wrapping(signal: c_int, handler: u64) -> bool {
    const HARMLESS: [c_int; 7] = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    match handler {
        1 => false,
        // That of a broken pipe is the answer to a call.
        0 => !HARMLESS.contains(&signal) && signal != libc::SIGPIPE,
        _ => true,
    }
}

fn wrapper() -> u64 {
    on_signal as *const () as u64
}

fn wrap(signal: c_int, now: Action) {
    let behind = &BEHIND[signal as usize];
    for (to, from) in behind.iter().zip([now.handler, now.flags, now.mask & !SIGSYS_BIT]) {
        to.store(from, Ordering::SeqCst);
    }
    let flags =
        (now.flags | (libc::SA_SIGINFO | libc::SA_RESTART) as u64) & !(libc::SA_RESETHAND as u64);
    let _ = action(signal, Some(&gate::returning(wrapper(), flags, now.mask & !SIGSYS_BIT)));
}

fn behind(signal: c_int) -> Action {
    let [handler, flags, mask] =
        [0, 1, 2].map(|n| BEHIND[signal as usize][n].load(Ordering::SeqCst));
    gate::returning(handler, flags, mask)
}

fn wrap_all() {
    let mut users = USERS.lock().unwrap_or_else(|e| e.into_inner());
    *users += 1;
    for signal in (1..=64).filter(|s| can_be_wrapped(*s)) {
        let Ok(now) = action(signal, None) else { continue };
        if now.handler != wrapper() && wants_wrapping(signal, now.handler) {
            wrap(signal, now);
        }
    }
}

fn unwrap_all() {
    let mut users = USERS.lock().unwrap_or_else(|e| e.into_inner());
    *users = users.saturating_sub(1);
    if *users == 0 {
        restore_all();
    }
}

fn restore_all() {
    for signal in (1..=64).filter(|s| can_be_wrapped(*s)) {
        if action(signal, None).is_ok_and(|now| now.handler == wrapper()) {
            let _ = action(signal, Some(&behind(signal)));
        }
    }
}

/// sigaction(2) of a thread that defers; `None`: the kernel is to be asked.
pub fn sigaction(signal: c_int, new: Option<Action>) -> Option<Action> {
    if !can_be_wrapped(signal) {
        return None;
    }
    let now = action(signal, None).ok()?;
    let old = if now.handler == wrapper() { behind(signal) } else { now };
    if let Some(new) = new {
        if wants_wrapping(signal, new.handler) {
            wrap(signal, new);
        } else {
            action(signal, Some(&new)).ok()?;
        }
    }
    Some(old)
}

/// Works on what this thread has noted down. The program's masks let signals in at any moment, and
/// their handlers work on the same.
fn undisturbed<T>(work: impl FnOnce(&mut Incoming) -> T) -> Option<T> {
    let before = gate::mask(!0);
    let done = registry::with(key(), |region| work(&mut region.incoming));
    gate::mask(before);
    done
}

/// Takes out the next signal that waited for the end.
pub fn next() -> Option<[u64; 16]> {
    undisturbed(Incoming::pop).flatten()
}

/// Notes a signal down if this thread wants that: how, and whether there was room.
fn note_down(signal: c_int, info: [u64; 16]) -> Option<(Mode, bool)> {
    let noted = undisturbed(|incoming| {
        if incoming.mode == Mode::Plain || incoming.pid != kernel::pid() {
            return None;
        }
        let noted = incoming.note(info);
        if !noted && incoming.mode == Mode::Deferred {
            incoming.late |= 1 << (signal - 1);
        }
        Some((incoming.mode, noted))
    });
    noted.flatten()
}

/// What runs instead of the program's handler.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a siginfo_t of 128 bytes to a handler with SA_SIGINFO.
    let words = unsafe { info.cast::<[u64; 16]>().read() };
    match note_down(signal, words) {
        Some((Mode::Deferred, true)) => return,
        Some((Mode::Deferred, false)) => {
            // It waits in the kernel, until the thread is asked for it again at the end. SAFETY:
            // the kernel gives one to a handler with SA_SIGINFO; its mask of 64 bits stands first.
            let blocked = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_sigmask };
            // SAFETY: as above.
            unsafe { *(&raw mut *blocked).cast::<u64>() |= 1 << (signal - 1) };
            return send_again(&words);
        }
        _ => {}
    }
    let [handler, flags] = [0, 1].map(|n| BEHIND[signal as usize][n].load(Ordering::SeqCst));
    match handler {
        0 => {
            // The end of the process, when this handler returns.
            let _ = action(signal, Some(&Action::default()));
            kernel::signal_me(signal);
        }
        1 => {}
        handler => {
            if flags & libc::SA_RESETHAND as u64 != 0 {
                BEHIND[signal as usize][0].store(0, Ordering::SeqCst);
            }
            run_handler(handler, signal, info, context);
        }
    }
}
