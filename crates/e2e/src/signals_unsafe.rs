//! Signals, for the helpers of the suites: what no safe function offers.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// What came to [`record`], in its order; values of queued signals are added to the number, times 1000.
static SEEN: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];
static COUNT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn record(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives one to a handler with SA_SIGINFO; queued ones have a value.
    let value = unsafe {
        if (*info).si_code == libc::SI_QUEUE {
            (*info).si_value().sival_ptr as usize as i32
        } else {
            0
        }
    };
    let at = COUNT.fetch_add(1, Ordering::SeqCst);
    if let Some(seen) = SEEN.get(at) {
        seen.store(signal + 1000 * value, Ordering::SeqCst);
    }
}

/// What was recorded since the last time.
pub fn seen() -> Vec<i32> {
    let count = COUNT.swap(0, Ordering::SeqCst).min(SEEN.len());
    SEEN[..count].iter().map(|seen| seen.load(Ordering::SeqCst)).collect()
}

fn handle(signal: i32, handler: usize, flags: i32) {
    // SAFETY: all zero is one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: the handlers of this file, and those that are given to `on`, are made for it.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }, 0);
}

/// From here on these are recorded.
pub fn record_all(signals: &[i32]) {
    for signal in signals {
        handle(*signal, record as *const () as usize, libc::SA_SIGINFO);
    }
}

/// A handler that, as with signal(2) of old, may be entered again.
pub fn on(signal: i32, handler: extern "C" fn(i32)) {
    handle(signal, handler as *const () as usize, libc::SA_NODEFER);
}

/// What it is by default.
pub fn default(signal: i32) {
    handle(signal, libc::SIG_DFL, 0);
}

/// To this thread.
pub fn raise(signal: i32) {
    // SAFETY: no memory.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

/// A signal with a value; an errno if it fails.
pub fn queue(pid: u32, signal: i32, value: i32) -> Result<(), i32> {
    let value = libc::sigval { sival_ptr: value as usize as *mut libc::c_void };
    // SAFETY: no memory.
    match unsafe { libc::sigqueue(pid as i32, signal, value) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// The real-time signal with this place.
pub fn real_time(n: i32) -> i32 {
    libc::SIGRTMIN() + n
}

/// A thread, to be sent a signal.
#[derive(Clone, Copy)]
pub struct Thread(libc::pthread_t);

impl Thread {
    /// This one.
    pub fn this() -> Thread {
        // SAFETY: no memory.
        Thread(unsafe { libc::pthread_self() })
    }

    /// Sends it one; it lives.
    pub fn send(self, signal: i32) {
        // SAFETY: the thread lives, as the caller says.
        assert_eq!(unsafe { libc::pthread_kill(self.0, signal) }, 0);
    }
}

fn set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: all zero is an empty one.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for signal in signals {
        // SAFETY: writes to the set.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

/// Blocks these in this thread.
pub fn block(signals: &[i32]) {
    let set = set(signals);
    // SAFETY: reads the set.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Where the alternate stack of this thread is, and its size; `None`: it has none.
pub fn alternate_stack() -> Option<(usize, usize)> {
    // SAFETY: all zero is one, and the call writes to it.
    unsafe {
        let mut now: libc::stack_t = std::mem::zeroed();
        assert_eq!(libc::sigaltstack(std::ptr::null(), &raw mut now), 0);
        (now.ss_flags & libc::SS_DISABLE == 0).then_some((now.ss_sp as usize, now.ss_size))
    }
}

/// Blocks all, does something, and puts back what was.
pub fn with_all_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: all zero is an empty one; `sigfillset` and `pthread_sigmask` write to theirs.
    unsafe {
        let (mut all, mut before, mut now) = (set(&[]), set(&[]), set(&[]));
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, &raw mut now);
        assert_eq!(libc::sigismember(&raw const now, libc::SIGSYS), 1, "it is told as it was set");
        assert_eq!(libc::sigismember(&raw const before, libc::SIGSYS), 0);
        done
    }
}

/// Waits for one of them, which are blocked; its number and value.
pub fn wait_for(signals: &[i32]) -> (i32, i32) {
    let set = set(signals);
    loop {
        // SAFETY: all zero is one, and the kernel writes to it.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&raw const set, &raw mut info);
            if signal > 0 {
                let queued = info.si_code == libc::SI_QUEUE;
                return (
                    signal,
                    if queued { info.si_value().sival_ptr as usize as i32 } else { 0 },
                );
            }
        }
    }
}

/// ppoll(2), pselect(2) and sigsuspend(2) with masks in which all is blocked but one signal, which
/// is pending: each of them returns when its handler has run.
pub fn waits_with_masks(signal: i32) {
    // SAFETY: the sets and times live as long as the calls.
    unsafe {
        let mut but_one = set(&[]);
        libc::sigfillset(&raw mut but_one);
        libc::sigdelset(&raw mut but_one, signal);
        let (one, mut before) = (set(&[signal]), set(&[]));
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const one, &raw mut before);
        raise(signal);
        assert_eq!(libc::sigsuspend(&raw const but_one), -1);
        raise(signal);
        assert_eq!(libc::ppoll(std::ptr::null_mut(), 0, std::ptr::null(), &raw const but_one), -1);
        raise(signal);
        let none = std::ptr::null_mut::<libc::fd_set>();
        let selected = libc::pselect(0, none, none, none, std::ptr::null(), &raw const but_one);
        assert_eq!(selected, -1);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
}

/// pidfd_send_signal(2), by the number of a process.
pub fn send_by_pidfd(pid: u32, signal: i32) {
    // SAFETY: no memory; the descriptor is closed again.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        assert!(fd >= 0);
        assert_eq!(libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, 0, 0), 0);
        libc::close(fd as i32);
    }
}
