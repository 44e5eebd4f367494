//! Signals to processes outside: they wait for the commit.
//!
//! Who shares the thread's mount namespace is inside, and gets signals at once; so does the program itself, but for
//! other threads of it that are named.  A process is held by a descriptor, so that no other one that has its
//! number later gets the signal.

use super::kernel::{self, Text};
use super::region::{Plan, Trap, error};
use libc::{c_int, c_long};

/// Signals that wait, at most.
const MOST: usize = 128;
/// Those by which the C library speaks to its own threads.
const OF_THE_LIBRARY: std::ops::RangeInclusive<c_int> = 32..=33;

#[derive(Clone, Copy)]
struct Held {
    /// The call.
    number: u64,
    args: [u64; 6],
    signal: c_int,
    /// The process, or -1.
    pidfd: c_int,
    info: Option<[u64; 16]>,
}

/// See the module.
pub struct Outgoing {
    held: Box<[Held]>,
    len: usize,
    pid: c_int,
    namespace: u64,
}

impl Outgoing {
    pub fn new() -> Outgoing {
        let none = Held { number: 0, args: [0; 6], signal: 0, pidfd: -1, info: None };
        Outgoing { held: vec![none; MOST].into(), len: 0, pid: 0, namespace: 0 }
    }

    /// At the begin; `namespace`: the inode of the mount namespace of the transaction.
    pub fn begin(&mut self, pid: c_int, namespace: u64) {
        self.len = 0;
        self.pid = pid;
        self.namespace = namespace;
    }

    /// What becomes of a call that sends a signal.
    pub fn plan(&mut self, trap: &Trap) -> Plan {
        let [a, b, c, d, ..] = trap.args.map(|arg| arg as c_int);
        let info_at = |n: usize| Some(trap.args[n]).filter(|at| *at != 0);
        // To whom (a process, or a thread of one), which signal, and where more is told.
        let (process, thread, signal, info) = match trap.number as c_long {
            libc::SYS_kill => (a, 0, b, None),
            libc::SYS_tkill => (0, a, b, None),
            libc::SYS_tgkill => (a, b, c, None),
            libc::SYS_rt_sigqueueinfo => (a, 0, b, info_at(2)),
            libc::SYS_rt_tgsigqueueinfo => (a, b, c, info_at(3)),
            libc::SYS_pidfd_send_signal => (kernel::pid_of(a), 0, b, info_at(2)),
            _ => return Plan::Pass,
        };
        let _ = d;
        let by_pidfd = trap.number as c_long == libc::SYS_pidfd_send_signal;
        if !(1..=64).contains(&signal) || OF_THE_LIBRARY.contains(&signal) && thread != 0 {
            return Plan::Pass;
        }
        let itself = if thread != 0 { thread == kernel::tid() } else { process == self.pid };
        let who = if thread != 0 { thread } else { process };
        if itself || who > 0 && self.is_inside(who) {
            return Plan::Pass;
        }
        // Whether it may be sent at all is told at once.
        let mut asked = trap.args;
        asked[if matches!(trap.number as c_long, libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo) {
            2
        } else {
            1
        }] = 0;
        let possible = match trap.number as c_long {
            libc::SYS_rt_sigqueueinfo => kernel::send(libc::SYS_kill as u64, asked),
            libc::SYS_rt_tgsigqueueinfo => kernel::send(libc::SYS_tgkill as u64, asked),
            _ => kernel::send(trap.number, asked),
        };
        if possible < 0 {
            return Plan::Answer(possible);
        }
        if self.len == MOST {
            return error(libc::EAGAIN);
        }
        let pidfd = match (by_pidfd, thread) {
            (true, _) => kernel::keep(a),
            (false, 0) if process > 0 => kernel::pidfd(process),
            _ => -1,
        };
        if by_pidfd && pidfd < 0 {
            return Plan::Answer(pidfd);
        }
        let info = info.map(|at| std::array::from_fn(|n| kernel::word(at + 8 * n as u64)));
        self.held[self.len] = Held {
            number: trap.number,
            args: trap.args,
            signal,
            pidfd: pidfd.max(-1) as c_int,
            info,
        };
        self.len += 1;
        Plan::Answer(0)
    }

    fn is_inside(&self, who: c_int) -> bool {
        let path = Text::new().and(b"/proc/").number(who as u32).and(b"/ns/mnt");
        kernel::inode_of(&path) == Some(self.namespace)
    }

    /// At the end: sends them, in their order, or drops them.
    pub fn end(&mut self, committed: bool) {
        for held in &self.held[..self.len] {
            let info = held.info.as_ref().map_or(0, |info| info.as_ptr() as u64);
            if committed && held.pidfd >= 0 {
                let args = [held.pidfd as u64, held.signal as u64, info, 0, 0, 0];
                kernel::send(libc::SYS_pidfd_send_signal as u64, args);
            } else if committed {
                let mut args = held.args;
                match held.number as c_long {
                    libc::SYS_rt_sigqueueinfo => args[2] = info,
                    libc::SYS_rt_tgsigqueueinfo => args[3] = info,
                    _ => {}
                }
                kernel::send(held.number, args);
            }
            if held.pidfd >= 0 {
                kernel::close(held.pidfd);
            }
        }
        self.len = 0;
    }
}
