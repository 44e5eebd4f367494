//! What this process was started with, where that does not last: the Rust runtime opens /dev/null
//! for standard descriptors that are closed and has SIGPIPE ignored, both before `main`; the client
//! takes signals, timers and limits for itself. [`give_back`] leaves CMD what the client was given.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Bit n: descriptor n was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// Bit n: signal n was ignored.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Runs before the Rust runtime does anything.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for fd in 0..3u8 {
        // SAFETY: only asks whether the descriptor is there.
        if unsafe { libc::fcntl(fd.into(), libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << fd, Relaxed);
        }
    }
    for signal in 1..64 {
        if disposition(signal) == Some(libc::SIG_IGN) {
            IGNORED.fetch_or(1 << signal, Relaxed);
        }
    }
}

fn disposition(signal: i32) -> Option<libc::sighandler_t> {
    // SAFETY: an all-zero sigaction is a valid value to be overwritten; nothing is installed.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0).then_some(now.sa_sigaction)
    }
}

fn set(signal: i32, disposition: libc::sighandler_t) {
    // SAFETY: installs no handler, only the default or none.
    unsafe { libc::signal(signal, disposition) };
}

/// Whether this process was started with a signal ignored.
pub(crate) fn ignores(signal: i32) -> bool {
    (1..64).contains(&signal) && IGNORED.load(Relaxed) & (1 << signal) != 0
}

/// To be called first.  Children are waited for from here on, also where this process was started
/// with SIGCHLD ignored: the kernel then keeps no exit code and wait(2) knows nobody.  And a
/// message that is beyond the limit of a file's size is not written, where by default the process
/// would be killed.
pub fn own_signals() {
    set(libc::SIGCHLD, libc::SIG_DFL);
    set(libc::SIGXFSZ, libc::SIG_IGN);
    // It grows as this one allows, not as the one did with which the process was started.
    let small = STACK_LIMIT.get_or_init(|| getrlimit(Resource::Stack));
    if small.current.is_some_and(|bytes| bytes < STACK) {
        let enough = small.maximum.map_or(STACK, |most| most.min(STACK));
        let wider = Rlimit { current: Some(enough), maximum: small.maximum };
        let _ = setrlimit(Resource::Stack, wider);
    }
}

/// What the client needs at most, in bytes.
const STACK: u64 = 8 << 20;
/// The limit before.
static STACK_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Does what a signal does to a process that does nothing about it: ends it, or stops it and
/// returns once it goes on.  Also returns if the kernel does not do it (to the first process of a
/// namespace).  No core is dumped.
pub fn suffer(signal: i32) {
    // SAFETY: sigemptyset writes the set before anything reads it; no handler is installed; the
    // calls touch no other memory.
    unsafe {
        let mut one: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut one);
        libc::sigaddset(&raw mut one, signal);
        let stops = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU | libc::SIGSTOP);
        if !stops {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
        }
        let disposition = disposition(signal);
        set(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, &raw mut before);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        if let Some(disposition) = disposition.filter(|_| signal != libc::SIGSTOP) {
            set(signal, disposition);
        }
    }
}

/// Interval timers (setitimer(2)) that run: execve(2) keeps them, fork(2) does not.
struct Timers {
    values: [libc::itimerval; 3],
    taken: Instant,
}

const TIMERS: [libc::c_int; 3] = [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF];

const fn none() -> libc::itimerval {
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    libc::itimerval { it_interval: zero, it_value: zero }
}

fn set_timer(which: libc::c_int, value: &libc::itimerval) -> libc::itimerval {
    let mut before = none();
    // SAFETY: both values live through the call.  (The type of the first argument differs among C
    // libraries.)
    unsafe { libc::setitimer(which as _, value, &raw mut before) };
    before
}

impl Timers {
    fn take() -> Timers {
        Timers { values: TIMERS.map(|which| set_timer(which, &none())), taken: Instant::now() }
    }

    fn give(&self) {
        for (which, value) in TIMERS.into_iter().zip(&self.values) {
            let mut value = *value;
            if value.it_value.tv_sec == 0 && value.it_value.tv_usec == 0 {
                continue;
            }
            if which == libc::ITIMER_REAL {
                let passed = i64::try_from(self.taken.elapsed().as_micros()).unwrap_or(i64::MAX);
                let all = value.it_value.tv_sec * 1_000_000 + value.it_value.tv_usec;
                let left = all.saturating_sub(passed).max(1);
                let (tv_sec, tv_usec) = (left / 1_000_000, left % 1_000_000);
                value.it_value = libc::timeval { tv_sec, tv_usec };
            }
            set_timer(which, &value);
        }
    }
}

/// Limits that are CMD's: the client and the making of a view may need more.
const LIMITED: [Resource; 4] = [Resource::Nofile, Resource::Fsize, Resource::As, Resource::Data];
/// Descriptors that the client and the making of a view take at most.
const DESCRIPTORS: u64 = 128;

struct Taken {
    timers: Timers,
    limits: [Rlimit; LIMITED.len()],
}

static TAKEN: OnceLock<Taken> = OnceLock::new();

/// Takes what is meant for CMD and would be in the way of the client: running timers, and limits,
/// as far as it may.
pub(crate) fn take() {
    TAKEN.get_or_init(|| {
        let limits = LIMITED.map(getrlimit);
        for (resource, now) in LIMITED.into_iter().zip(&limits) {
            lift(resource, now);
        }
        Taken { timers: Timers::take(), limits }
    });
}

fn lift(resource: Resource, now: &Rlimit) {
    let enough = (resource == Resource::Nofile).then_some(DESCRIPTORS);
    // Only who has the right to may go beyond the hard limit.
    let beyond = match (enough, now.maximum) {
        (_, None) => None,
        (Some(enough), Some(maximum)) => Some(maximum.max(enough)),
        (None, Some(_)) => None,
    };
    if setrlimit(resource, Rlimit { current: beyond, maximum: beyond }).is_err() {
        let most = Rlimit { current: now.maximum, maximum: now.maximum };
        let _ = setrlimit(resource, most);
    }
}

/// Leaves this process, which is about to become CMD, with what the client was started with.  Not
/// the signal mask.
///
/// # Errors
/// A limit cannot be put back.
pub(crate) fn give_back() -> Result<(), Errno> {
    for signal in [libc::SIGCHLD, libc::SIGPIPE, libc::SIGXFSZ] {
        set(signal, if ignores(signal) { libc::SIG_IGN } else { libc::SIG_DFL });
    }
    if let Some(limit) = STACK_LIMIT.get() {
        setrlimit(Resource::Stack, *limit)?;
    }
    if let Some(taken) = TAKEN.get() {
        for (resource, limit) in LIMITED.into_iter().zip(&taken.limits) {
            setrlimit(resource, *limit)?;
        }
        taken.timers.give();
    }
    for fd in (0..3).filter(|fd| CLOSED.load(Relaxed) & (1 << fd) != 0) {
        // SAFETY: it is the /dev/null of the Rust runtime, which nobody in this process uses any
        // more.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// The environment as it is, also what is no `NAME=value`.
pub(crate) fn environment() -> Vec<CString> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut all = Vec::new();
    // SAFETY: nobody of this process changes its environment, so the array of C strings that ends
    // with a null pointer is as the kernel or the C library made it.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            all.push(CStr::from_ptr(*at).to_owned());
            at = at.add(1);
        }
    }
    all
}
