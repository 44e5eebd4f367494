//! Signals to processes outside: they wait for the commit.
//!
//! Who shares the thread's mount namespace is inside, and gets signals at once; so does the program
//! itself, but for other threads of it that are named. A process is known by more than its number,
//! so that no other one that has that later gets the signal. Those that processes from inside send
//! wait in the same list.

use super::family::{Family, WORDS};
use super::kernel::{self, Text};
use super::region::{Plan, Trap, error};
use libc::{c_int, c_long};

/// Those by which the C library speaks to its own threads.
const OF_THE_LIBRARY: std::ops::RangeInclusive<c_int> = 32..=33;

/// One that waits.
#[derive(Clone, Copy)]
struct Held {
    /// The call.
    number: u64,
    args: [u64; 6],
    signal: c_int,
    /// The process, if it is one, and what it is known by, or 0.
    who: c_int,
    known: u64,
    info: Option<[u64; 16]>,
}

impl Held {
    fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[0] = self.number;
        words[1..7].copy_from_slice(&self.args);
        words[7] = self.signal as u64;
        words[8] = self.who as u64;
        words[9] = self.known;
        words[10] = self.info.is_some().into();
        words[11..].copy_from_slice(&self.info.unwrap_or_default());
        words
    }

    fn of(words: &[u64; WORDS]) -> Held {
        Held {
            number: words[0],
            args: std::array::from_fn(|n| words[1 + n]),
            signal: words[7] as c_int,
            who: words[8] as c_int,
            known: words[9],
            info: (words[10] != 0).then(|| std::array::from_fn(|n| words[11 + n])),
        }
    }

    fn send(&self) {
        let info = self.info.as_ref().map_or(0, |info| info.as_ptr() as u64);
        if self.known != 0 {
            let pidfd = kernel::pidfd(self.who);
            if pidfd < 0 {
                return;
            }
            if kernel::identify(pidfd as c_int).is_some_and(|found| found.ino == self.known) {
                let args = [pidfd as u64, self.signal as u64, info, 0, 0, 0];
                kernel::send(libc::SYS_pidfd_send_signal as u64, args);
            }
            kernel::close(pidfd as c_int);
            return;
        }
        let mut args = self.args;
        match self.number as c_long {
            libc::SYS_rt_sigqueueinfo => args[2] = info,
            libc::SYS_rt_tgsigqueueinfo => args[3] = info,
            _ => {}
        }
        kernel::send(self.number, args);
    }
}

/// See the module.
pub struct Outgoing {
    /// The program's.
    pid: c_int,
    namespace: u64,
}

impl Outgoing {
    pub fn new() -> Outgoing {
        Outgoing { pid: 0, namespace: 0 }
    }

    /// At the begin; `namespace`: the inode of the mount namespace of the transaction.
    pub fn begin(&mut self, pid: c_int, namespace: u64) {
        self.pid = pid;
        self.namespace = namespace;
    }

    /// What becomes of a call that sends a signal.
    pub fn plan(&self, trap: &Trap, family: &mut Family) -> Plan {
        let [a, b, c, ..] = trap.args.map(|arg| arg as c_int);
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
        let by_pidfd = trap.number as c_long == libc::SYS_pidfd_send_signal;
        if !(1..=64).contains(&signal) || OF_THE_LIBRARY.contains(&signal) && thread != 0 {
            return Plan::Pass;
        }
        // In a process from inside, the program that has made it is meant, too.
        let itself = if thread != 0 {
            thread == kernel::tid()
        } else {
            process == self.pid || process == kernel::pid()
        };
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
        let known = match (by_pidfd, thread) {
            (true, _) => kernel::identify(a).map_or(0, |found| found.ino),
            (false, 0) if process > 0 => kernel::process(process),
            _ => 0,
        };
        if by_pidfd && (known == 0 || process <= 0) {
            return error(libc::ESRCH);
        }
        let info = info.map(|at| std::array::from_fn(|n| kernel::word(at + 8 * n as u64)));
        let held = Held { number: trap.number, args: trap.args, signal, who: process, known, info };
        match family.push(&held.words()) {
            Ok(()) => Plan::Answer(0),
            Err(errno) => error(errno),
        }
    }

    fn is_inside(&self, who: c_int) -> bool {
        let path = Text::new().and(b"/proc/").number(who as u32).and(b"/ns/mnt");
        kernel::inode_of(&path) == Some(self.namespace)
    }

    /// At the end: sends them, in their order, or drops them.
    pub fn end(&self, committed: bool, family: &Family) {
        if committed {
            family.each(|words| Held::of(&words).send());
        }
    }
}
