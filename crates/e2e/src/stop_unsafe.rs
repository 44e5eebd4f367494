//! kill -9 at the n-th system call: a process is traced (ptrace(2)) and killed when one of its
//! threads is about to make a call of which it has made n - 1.
//!
//! Only calls count that change a file system or make it durable: between two of them a death
//! leaves the same disk. The call at which the process dies is not made; those before it are: one
//! that another thread is in comes to its end first.

#![allow(unsafe_code)]

use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::io::Error;
use std::mem::MaybeUninit;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// What is counted.  `open` only if it may make a file.
const COUNTED: &[(libc::c_long, &str)] = &[
    (libc::SYS_openat, "openat"),
    (libc::SYS_openat2, "openat2"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_pwritev, "pwritev"),
    (libc::SYS_pwritev2, "pwritev2"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_copy_file_range, "copy_file_range"),
    (libc::SYS_renameat2, "renameat2"),
    (libc::SYS_renameat, "renameat"),
    (libc::SYS_linkat, "linkat"),
    (libc::SYS_unlinkat, "unlinkat"),
    (libc::SYS_mkdirat, "mkdirat"),
    (libc::SYS_symlinkat, "symlinkat"),
    (libc::SYS_mknodat, "mknodat"),
    (libc::SYS_fchmod, "fchmod"),
    (libc::SYS_fchmodat, "fchmodat"),
    (libc::SYS_fchown, "fchown"),
    (libc::SYS_fchownat, "fchownat"),
    (libc::SYS_utimensat, "utimensat"),
    (libc::SYS_setxattr, "setxattr"),
    (libc::SYS_lsetxattr, "lsetxattr"),
    (libc::SYS_fsetxattr, "fsetxattr"),
    (libc::SYS_removexattr, "removexattr"),
    (libc::SYS_lremovexattr, "lremovexattr"),
    (libc::SYS_fremovexattr, "fremovexattr"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_syncfs, "syncfs"),
    (libc::SYS_sync_file_range, "sync_file_range"),
];

/// A stop that comes at the first sight of a thread, and when it is interrupted.
const EVENT_STOP: i32 = 128;

/// Somebody who watches a process until it is dead.
pub struct Stop {
    tracer: JoinHandle<Vec<&'static str>>,
}

impl Stop {
    /// Kills `pid` when it is about to make its `n`-th call that counts, from now on (`None`:
    /// never). When this returns, all of its threads are watched. If the caller dies, so does the
    /// process.
    ///
    /// # Panics
    /// It cannot be traced.
    #[track_caller]
    pub fn at_call(pid: Pid, n: Option<usize>) -> Stop {
        Stop::from(pid, None, n)
    }

    /// As [`Stop::at_call`], but only from the first call of this name on, which is the first that
    /// counts: how many come before it may differ from one commit to the next.
    ///
    /// # Panics
    /// As there.
    #[track_caller]
    pub fn from_call(pid: Pid, first: &'static str, n: Option<usize>) -> Stop {
        Stop::from(pid, Some(first), n)
    }

    #[track_caller]
    fn from(pid: Pid, first: Option<&'static str>, n: Option<usize>) -> Stop {
        let (ready, watched) = channel();
        // A tracer is a thread.
        let tracer = std::thread::spawn(move || trace(pid, first, n, &ready));
        let said = watched.recv().unwrap_or_else(|_| Err("its tracer is gone".to_owned()));
        said.unwrap_or_else(|why| panic!("process {pid:?} cannot be traced: {why}"));
        Stop { tracer }
    }

    /// Waits until the process is dead, of this or of something else. The calls that were counted;
    /// the last is the one that was not made, if there are n.
    ///
    /// # Panics
    /// The tracer failed.
    pub fn wait(self) -> Vec<&'static str> {
        self.tracer.join().expect("the tracer")
    }
}

fn ptrace(what: libc::c_uint, tid: i32, addr: usize, data: usize) -> Result<i64, Error> {
    // SAFETY: of the requests that are made here only PTRACE_GET_SYSCALL_INFO writes to memory of
    // this process: so many bytes at `data` as `addr` says, which are the caller's.
    match unsafe { libc::ptrace(what, tid, addr, data) } {
        -1 => Err(Error::last_os_error()),
        other => Ok(other),
    }
}

/// Whether an error says that the thread is gone, which may happen at any time.
fn is_gone(error: &Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// Goes on to the next call, or to what else happens.
fn go_on(tid: i32, signal: i32) {
    if let Err(e) = ptrace(libc::PTRACE_SYSCALL, tid, 0, signal as usize) {
        assert!(is_gone(&e), "thread {tid}: {e}");
    }
}

fn trace(
    pid: Pid,
    first: Option<&'static str>,
    n: Option<usize>,
    ready: &Sender<Result<(), String>>,
) -> Vec<&'static str> {
    let process = pid.as_raw_nonzero().get();
    let mut running = match seize(process) {
        Ok(threads) => threads,
        Err(e) => {
            let _ = ready.send(Err(e.to_string()));
            return Vec::new();
        }
    };
    let mut calls = Vec::new();
    // The kernel leaves out a call that a killed thread has not begun yet.
    let mut under_way = HashSet::new();
    let mut dies = false;
    loop {
        if dies && under_way.is_empty() {
            let _ = kill_process(pid, Signal::KILL);
        }
        let mut status = 0;
        // Only what this thread traces, not the children of others.
        let which = libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: it writes to `status`.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, which) };
        if tid < 0 {
            let e = Error::last_os_error();
            assert_eq!(e.raw_os_error(), Some(libc::EINTR), "{e}");
            continue;
        }
        // Stopped or gone.
        if running.remove(&tid) && running.is_empty() {
            let _ = ready.send(Ok(()));
        }
        under_way.remove(&tid);
        if !libc::WIFSTOPPED(status) {
            // The first thread is reported when all are gone.
            if tid == process {
                return calls;
            }
            continue;
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        if event == EVENT_STOP && signal != libc::SIGTRAP {
            // Stopped by a signal, as it would be without us.
            let _ = ptrace(libc::PTRACE_LISTEN, tid, 0, 0);
        } else if signal == libc::SIGTRAP | 0x80 {
            let counts =
                |call: &&str| !calls.is_empty() || first.is_none_or(|first| first == *call);
            if let Some(call) = begins(tid).filter(counts) {
                if dies {
                    continue;
                }
                calls.push(call);
                dies = n == Some(calls.len());
                if dies {
                    continue;
                }
                under_way.insert(tid);
            }
            go_on(tid, 0);
        } else if event != 0 {
            go_on(tid, 0);
        } else {
            go_on(tid, signal);
        }
    }
}

/// Begins to trace all threads; those that have yet to stop for the first time.
fn seize(process: i32) -> Result<HashSet<i32>, Error> {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    let mut seen = HashSet::new();
    loop {
        let before = seen.len();
        for entry in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
            let name = entry.file_name();
            let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if seen.contains(&tid) {
                continue;
            }
            match ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize) {
                Ok(_) => match ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) {
                    Ok(_) => drop(seen.insert(tid)),
                    Err(e) if is_gone(&e) => {}
                    Err(e) => return Err(e),
                },
                Err(e) if is_gone(&e) => {}
                // Made by one that is traced, so it is traced, too.
                Err(e) if e.raw_os_error() == Some(libc::EPERM) && !seen.is_empty() => {}
                Err(e) => return Err(e),
            }
        }
        if seen.len() == before {
            return Ok(seen);
        }
    }
}

/// The call that a thread is about to make, if it counts.
fn begins(tid: i32) -> Option<&'static str> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, info.as_mut_ptr() as usize).ok()?;
    // SAFETY: all of it is integers, which were zero before the kernel wrote some.
    let info = unsafe { info.assume_init() };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: as above; at an entry it is this one.
    let (number, args) = unsafe { (info.u.entry.nr as libc::c_long, info.u.entry.args) };
    let (_, name) = COUNTED.iter().find(|(counted, _)| *counted == number)?;
    let flags = match number {
        libc::SYS_openat => args[2],
        // The first word of `struct open_how`.
        libc::SYS_openat2 => peek(tid, args[2])?,
        _ => return Some(name),
    };
    let makes = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY | libc::O_TRUNC) as u64;
    (flags & makes != 0).then_some(name)
}

/// A word of a thread's memory.
fn peek(tid: i32, at: u64) -> Option<u64> {
    let at = at as *mut libc::c_void;
    // SAFETY: reads the memory of another process; an address that it does not have is an error.
    let word = unsafe {
        *libc::__errno_location() = 0;
        libc::ptrace(libc::PTRACE_PEEKDATA, tid, at, 0)
    };
    let failed = word == -1 && Error::last_os_error().raw_os_error() != Some(0);
    (!failed).then_some(word as u64)
}
