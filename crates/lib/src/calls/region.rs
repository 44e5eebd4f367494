//! What is intercepted in a thread, and what becomes of it: policy, driven by the table of
//! `systx-calls`.

use super::descriptors::Descriptors;
use super::gate::{Action, SIGSYS_BIT};
use super::incoming::{self, Incoming, Mode};
use super::kernel;
use super::making::Making;
use super::outgoing::Outgoing;
use super::stack::SignalStack;
use super::streams::Streams;
use crate::Flags;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use libc::{c_int, c_long};
use systx_calls::{Class, Makes};

/// A call, as it was made.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    pub number: u64,
    pub args: [u64; 6],
    /// The signals that the program has blocked.
    pub mask: u64,
    /// It was made on the alternate stack.
    pub on_signal_stack: bool,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It is made as it stands.
    Pass,
    /// The same; it makes a process.
    Make(Making),
    /// It is not made.
    Answer(i64),
    /// It is not made; the program's mask is another one from here on.
    Mask(u64, i64),
    /// It is made with other arguments; with `wait` it may take long. Then [`Region::after`] has a
    /// look.
    Call { args: [u64; 6], wait: bool, then: Then },
    /// It is decided again when this epoll has something to say.
    Await(c_int),
}

/// What is left to do after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// Its result is a descriptor from inside.
    Made,
    /// Its result is a copy of this one.
    Copy(c_int),
    /// There are two at an address.
    Pair(u64),
}

/// The interception in one thread.
pub struct Region {
    /// For the kernel: 1 where calls are intercepted.
    selector: AtomicU8,
    /// What the selector is when the library is not at work.
    armed: bool,
    active: bool,
    /// Calls that were intercepted.
    traps: AtomicU64,
    flags: Flags,
    /// The process that it is about.
    pid: c_int,
    /// It is a copy, in a process that was made inside.
    child: bool,
    /// A process that was made inside has this memory, and the thread waits for it: what
    /// `sigsys_blocked` is to be afterwards.
    lent: Option<bool>,
    /// SIGSYS is blocked, as far as the program knows.
    sigsys_blocked: bool,
    /// The program made a call that the flags do not allow: the transaction can only be dropped.
    doomed: Option<u64>,
    /// Calls that were warned of, by number.
    warned: [u64; 8],
    /// For arguments in memory, in turn: a call that waits may be interrupted by a handler with
    /// calls of its own.
    words: [[u64; 4]; 16],
    next: usize,
    pub descriptors: Descriptors,
    pub incoming: Incoming,
    outgoing: Outgoing,
    streams: Streams,
    /// Where its handler runs.
    pub stack: SignalStack,
    /// The mask of the thread while it begins.
    pub mask: Option<u64>,
}

/// The call fails.
pub fn error(errno: c_int) -> Plan {
    Plan::Answer(-i64::from(errno))
}

impl Region {
    pub fn new() -> Region {
        Region {
            selector: AtomicU8::new(0),
            armed: false,
            active: false,
            traps: AtomicU64::new(0),
            flags: Flags::default(),
            pid: 0,
            child: false,
            lent: None,
            sigsys_blocked: false,
            doomed: None,
            warned: [0; 8],
            words: [[0; 4]; 16],
            next: 0,
            descriptors: Descriptors::new(),
            incoming: Incoming::new(),
            outgoing: Outgoing::new(),
            streams: Streams::new(),
            stack: SignalStack::new(),
            mask: None,
        }
    }

    /// Where the kernel looks.
    pub fn selector(&self) -> *const u8 {
        self.selector.as_ptr()
    }

    /// Whether calls are intercepted when the library is not at work.
    pub fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
    }

    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// From here on, or no longer, calls are intercepted.
    pub fn select(&self, on: bool) {
        self.selector.store(u8::from(on), Ordering::Relaxed);
    }

    /// At the begin of a transaction.  `control`: a descriptor on the guarded mount.
    /// `namespace`: the inode of its mount namespace.  All signals are blocked.
    pub fn begin(&mut self, flags: Flags, control: c_int, namespace: u64, sigsys_blocked: bool) {
        self.flags = flags;
        self.active = true;
        self.pid = kernel::pid();
        self.child = false;
        self.lent = None;
        self.sigsys_blocked = sigsys_blocked;
        self.doomed = None;
        self.warned = [0; 8];
        self.descriptors.begin(self.pid, control);
        self.outgoing.begin(self.pid, namespace);
        self.streams.begin(self.pid, flags);
        let mode =
            match flags.bits() & (Flags::SIGNALS_DEFERRED | Flags::SIGNALS_SPECULATIVE).bits() {
                0 => Mode::Plain,
                bits if bits & Flags::SIGNALS_DEFERRED.bits() != 0 => Mode::Deferred,
                _ => Mode::Speculative,
            };
        self.incoming.begin(self.pid, mode);
    }

    /// At the end, when nothing is intercepted any more; whether SIGSYS is blocked, as far as the
    /// program knows.
    pub fn end(&mut self, committed: bool) -> bool {
        self.active = false;
        self.doomed = None;
        self.streams.end(committed);
        self.outgoing.end(committed, &self.descriptors.family);
        self.descriptors.end(committed);
        self.incoming.end(committed);
        self.sigsys_blocked
    }

    /// What a mask is to be when the library's work is over.
    pub fn visible_mask(&self, before: u64) -> u64 {
        match (self.active, self.sigsys_blocked) {
            (true, _) => before & !SIGSYS_BIT,
            (false, true) => before | SIGSYS_BIT,
            (false, false) => before,
        }
    }

    /// From the begin to the end.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether a call was made for which the transaction has to be dropped.
    pub fn is_doomed(&self) -> bool {
        self.doomed.is_some() || self.descriptors.family.is_doomed()
    }

    /// Calls that were intercepted.
    pub fn traps(&self) -> u64 {
        self.traps.load(Ordering::Relaxed)
    }

    /// In a new process that shares this memory with the running thread, and is not intercepted:
    /// before anything else.
    pub fn in_child(&self) {
        self.descriptors.in_child();
    }

    /// In a new process that has a copy of this memory.  All signals are blocked.
    pub fn forked(&mut self) {
        self.pid = kernel::pid();
        self.child = true;
        self.lent = None;
        self.descriptors.forked(self.pid);
        self.streams.forked();
        self.incoming.forked();
    }

    /// In a new process that has this memory while the thread waits for it. All signals are
    /// blocked.
    pub fn lend(&mut self) {
        self.lent = Some(self.sigsys_blocked);
        self.descriptors.lend(kernel::pid());
    }

    /// Whoever comes here may be the thread that has lent its memory, and goes on.
    pub fn take_back(&mut self) {
        if self.lent.is_some() && kernel::pid() == self.pid {
            self.sigsys_blocked = self.lent.take().unwrap_or_default();
            self.descriptors.take_back();
        }
    }

    /// Whether this is a process that was made inside, and is intercepted.
    pub fn is_child(&self) -> bool {
        self.child || self.lent.is_some()
    }

    /// What is held is known by its descriptor.
    fn tracks(&self) -> bool {
        self.has(Flags::DESCRIPTORS | Flags::PIPES_HELD | Flags::OUTPUT_HELD)
    }

    fn has(&self, flag: Flags) -> bool {
        self.flags.bits() & flag.bits() != 0
    }

    /// Decides.
    pub fn plan(&mut self, trap: &Trap) -> Plan {
        self.traps.fetch_add(1, Ordering::Relaxed);
        self.take_back();
        let special = self.always(trap);
        if special != Plan::Pass {
            return special;
        }
        let call = systx_calls::find(trap.number);
        if call.is_none_or(|call| call.class == Class::Refused) {
            let refused = self.refused(trap);
            if refused != Plan::Pass {
                return refused;
            }
        }
        let Some(call) = call else { return Plan::Pass };
        if call.class == Class::Held && self.has(Flags::SIGNALS_HELD) {
            return self.outgoing.plan(trap, &mut self.descriptors.family);
        }
        let is_child = self.is_child();
        if self.tracks() {
            match self.descriptors.plan(call, trap) {
                Plan::Pass => {}
                plan => return plan,
            }
            let descriptors = &self.descriptors;
            let plan = |streams: &mut Streams| streams.plan(trap, |fd| descriptors.is_inside(fd));
            match if is_child { Plan::Pass } else { plan(&mut self.streams) } {
                Plan::Pass => {}
                plan => return plan,
            }
        }
        if let Some(making) = Making::of(trap) {
            return self.make(making);
        }
        if !self.tracks() {
            return Plan::Pass;
        }
        let then = match call.makes {
            Makes::Nothing => return Plan::Pass,
            Makes::One => Then::Made,
            Makes::Pair(n) => Then::Pair(trap.args[usize::from(n)]),
        };
        Plan::Call { args: trap.args, wait: true, then }
    }

    /// A process is made.
    fn make(&mut self, making: Making) -> Plan {
        // Who has this memory already cannot lend it.
        let making = match making {
            Making::Lent if self.lent.is_some() => Making::Alone,
            making => making,
        };
        match making {
            Making::Alone if self.tracks() && !self.descriptors.complete() => {
                return error(libc::ECANCELED);
            }
            Making::Alone => {}
            _ => {
                if let Err(errno) = self.descriptors.family.found(self.tracks()) {
                    return error(errno);
                }
            }
        }
        Plan::Make(making)
    }

    /// After a call of [`Plan::Call`]: the result that the program gets.
    pub fn after(&mut self, then: Then, result: i64) -> i64 {
        if result < 0 {
            return result;
        }
        match then {
            Then::Nothing => {}
            Then::Made => {
                let fd = result as c_int;
                // A FIFO that was opened inside leads outside.
                let pipe = kernel::identify(fd).is_some_and(|found| self.streams.is_pipe(&found));
                self.descriptors.made(fd, !pipe);
            }
            Then::Copy(from) => self.descriptors.copied(from, result as c_int),
            Then::Pair(address) => {
                for fd in kernel::pair(address) {
                    self.descriptors.made(fd, true);
                }
            }
        }
        result
    }

    /// What the interception itself needs: its signal can neither be blocked nor handled by others,
    /// and it cannot be switched off.
    fn always(&mut self, trap: &Trap) -> Plan {
        const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
        const ARCH_SET_FS: u64 = 0x1002;
        let [a, b, c, d, e, _] = trap.args;
        let without = |mask: u64| mask & !SIGSYS_BIT;
        let pass_with = |args| Plan::Call { args, wait: true, then: Then::Nothing };
        match trap.number as c_long {
            libc::SYS_prctl if a == PR_SET_SYSCALL_USER_DISPATCH => error(libc::EBUSY),
            libc::SYS_arch_prctl if a == ARCH_SET_FS => error(libc::EBUSY),
            libc::SYS_rt_sigprocmask => self.sigprocmask(trap, a as c_int, b, c, d),
            libc::SYS_rt_sigaction if a as c_int == libc::SIGSYS => error(libc::EBUSY),
            libc::SYS_rt_sigaction if d == 8 => self.sigaction(trap),
            libc::SYS_rt_sigsuspend if b == 8 => {
                self.scratch(without(kernel::word(a)), |at| pass_with([at, b, c, d, e, 0]))
            }
            libc::SYS_ppoll if d != 0 && e == 8 => {
                self.scratch(without(kernel::word(d)), |at| pass_with([a, b, c, at, e, 0]))
            }
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if e != 0 => self
                .scratch(without(kernel::word(e)), |at| pass_with([a, b, c, d, at, trap.args[5]])),
            libc::SYS_pselect6 if trap.args[5] != 0 && kernel::word(trap.args[5]) != 0 => {
                let mask = without(kernel::word(kernel::word(trap.args[5])));
                let at = self.scratch_words([mask, 0, 8, 0]);
                kernel::set_word(at + 8, at);
                pass_with([a, b, c, d, e, at + 8])
            }
            _ => Plan::Pass,
        }
    }

    /// With a mask that lives as long as the call.
    fn scratch(&mut self, mask: u64, plan: impl FnOnce(u64) -> Plan) -> Plan {
        let at = self.scratch_words([mask, 0, 0, 0]);
        plan(at)
    }

    /// Words that stay where they are until the call that they are for has begun.
    fn scratch_words(&mut self, words: [u64; 4]) -> u64 {
        self.next = (self.next + 1) % self.words.len();
        self.words[self.next] = words;
        self.words[self.next].as_ptr() as u64
    }

    fn sigprocmask(&mut self, trap: &Trap, how: c_int, set: u64, old: u64, len: u64) -> Plan {
        if len != 8 {
            return error(libc::EINVAL);
        }
        let now = (trap.mask & !SIGSYS_BIT) | if self.sigsys_blocked { SIGSYS_BIT } else { 0 };
        let mut new = now;
        if set != 0 {
            let set = kernel::word(set);
            new = match how {
                libc::SIG_BLOCK => now | set,
                libc::SIG_UNBLOCK => now & !set,
                libc::SIG_SETMASK => set,
                _ => return error(libc::EINVAL),
            };
        }
        if old != 0 {
            kernel::set_word(old, now);
        }
        self.sigsys_blocked = new & SIGSYS_BIT != 0;
        Plan::Mask(new & !SIGSYS_BIT, 0)
    }

    /// A handler must not block SIGSYS: its own calls are intercepted, too.
    fn sigaction(&mut self, trap: &Trap) -> Plan {
        let [signal, new, old, len, ..] = trap.args;
        let [handler, flags, restorer, mask] = match new {
            0 => [0; 4],
            new => [0, 1, 2, 3].map(|n| kernel::word(new + 8 * n)),
        };
        let mask = mask & !SIGSYS_BIT;
        if self.incoming.mode != Mode::Plain && !self.is_child() {
            let wanted = (new != 0).then_some(Action { handler, flags, restorer, mask });
            if let Some(was) = incoming::sigaction(signal as c_int, wanted) {
                let words = [was.handler, was.flags, was.restorer, was.mask];
                for (n, word) in words.into_iter().enumerate().filter(|_| old != 0) {
                    kernel::set_word(old + 8 * n as u64, word);
                }
                return Plan::Answer(0);
            }
        }
        if new == 0 {
            return Plan::Pass;
        }
        let at = self.scratch_words([handler, flags, restorer, mask]);
        Plan::Call { args: [signal, at, old, len, 0, 0], wait: false, then: Then::Nothing }
    }

    /// A call whose effect can neither wait nor be undone.
    fn refused(&mut self, trap: &Trap) -> Plan {
        if self.has(Flags::UNSUPPORTED_ABORT) {
            self.doomed.get_or_insert(trap.number);
            self.descriptors.family.doom(trap.number);
            return error(libc::ECANCELED);
        }
        if self.has(Flags::UNSUPPORTED_ERROR) {
            return error(libc::EOPNOTSUPP);
        }
        if self.has(Flags::UNSUPPORTED_WARN) {
            let bit = 1u64 << (trap.number % 64);
            let word = &mut self.warned[(trap.number / 64) as usize % 8];
            if *word & bit == 0 {
                *word |= bit;
                let name = systx_calls::find(trap.number).map_or("unknown", |call| call.name);
                let text = kernel::Text::new().and(b"systx: not in the transaction: ");
                kernel::say(&text.and(name.as_bytes()).and(b"\n"));
            }
        }
        Plan::Pass
    }
}
