//! How a process is made, and whether its calls can be intercepted.

use super::kernel;
use super::region::Trap;
use libc::c_long;

/// A call that makes a process with a table of descriptors of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    /// It has a copy of the memory, as by fork(2): it is intercepted with its copy of the state.
    Copied,
    /// It has the memory itself while the thread waits for it, as by vfork(2) and posix_spawn(3):
    /// it is intercepted with the state of the thread, which gets that back as it was.
    Lent,
    /// It is not intercepted: it shares the memory with the thread that runs on, cannot be
    /// recognised by its thread pointer, or would be intercepted on a stack that is in use.
    Alone,
}

/// Words of what clone3(2) is told, as of Linux 5.7; later ones had no more as of 6.18.
pub const WORDS: usize = 11;

impl Making {
    /// `None`: another call, or one that makes a thread.
    pub fn of(trap: &Trap) -> Option<Making> {
        let (flags, stack) = match trap.number as c_long {
            libc::SYS_fork => (0, 0),
            libc::SYS_vfork => ((libc::CLONE_VM | libc::CLONE_VFORK) as u64, 0),
            libc::SYS_clone => (trap.args[0], trap.args[1]),
            // What cannot be read is the kernel's to refuse.
            libc::SYS_clone3 if trap.args[0] == 0 || trap.args[1] < 64 => return None,
            libc::SYS_clone3 => (kernel::word(trap.args[0]), kernel::word(trap.args[0] + 40)),
            _ => return None,
        };
        let has = |flag: libc::c_int| flags & flag as u64 != 0;
        if has(libc::CLONE_FILES) {
            return None;
        }
        let too_long = trap.number as c_long == libc::SYS_clone3 && trap.args[1] > 8 * WORDS as u64;
        // /proc of another pid namespace tells it nothing of its descriptors.
        let alone = has(libc::CLONE_SETTLS) || has(libc::CLONE_NEWPID) || too_long;
        Some(match (has(libc::CLONE_VM), has(libc::CLONE_VFORK)) {
            _ if alone => Making::Alone,
            (false, _) => Making::Copied,
            (true, true) if stack == 0 || !trap.on_signal_stack => Making::Lent,
            (true, _) => Making::Alone,
        })
    }

    /// The arguments of a call that makes a copy, on the stack that the thread has; and the stack
    /// pointer that the copy is to have, if another one. `room` is for what clone3(2) is told.
    pub fn on_this_stack(trap: &Trap, room: &mut [u64; WORDS]) -> ([u64; 6], Option<u64>) {
        let mut args = trap.args;
        let stack = match trap.number as c_long {
            libc::SYS_clone => std::mem::take(&mut args[1]),
            libc::SYS_clone3 => {
                let words = (args[1] as usize / 8).min(WORDS);
                for (n, word) in room[..words].iter_mut().enumerate() {
                    *word = kernel::word(args[0] + 8 * n as u64);
                }
                let [start, len] = [5, 6].map(|n| std::mem::take(&mut room[n]));
                if start != 0 {
                    args = [room.as_ptr() as u64, 8 * words as u64, 0, 0, 0, 0];
                }
                start.wrapping_add(len)
            }
            _ => 0,
        };
        (args, Some(stack).filter(|stack| *stack != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clone(flags: libc::c_int, stack: u64) -> Trap {
        let args = [flags as u64, stack, 0, 0, 0, 0];
        Trap { number: libc::SYS_clone as u64, args, mask: 0, on_signal_stack: false }
    }

    #[test]
    fn processes_are_told_from_threads_and_by_whose_memory_they_have() {
        let spawn = libc::CLONE_VM | libc::CLONE_VFORK;
        let of = |flags, stack| Making::of(&clone(flags, stack));
        assert_eq!(of(libc::SIGCHLD, 0), Some(Making::Copied));
        assert_eq!(of(libc::SIGCHLD, 4096), Some(Making::Copied));
        assert_eq!(of(spawn, 4096), Some(Making::Lent));
        assert_eq!(of(libc::CLONE_VM, 4096), Some(Making::Alone));
        assert_eq!(of(libc::CLONE_SETTLS, 0), Some(Making::Alone));
        assert_eq!(of(libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_THREAD, 4096), None);
        // The kernel would take a stack of its own for a free one.
        let handled = Trap { on_signal_stack: true, ..clone(spawn, 4096) };
        assert_eq!(Making::of(&handled), Some(Making::Alone));
        assert_eq!(
            Making::of(&Trap { args: [spawn as u64, 0, 0, 0, 0, 0], ..handled }),
            Some(Making::Lent)
        );
    }

    #[test]
    fn a_copy_with_a_stack_gets_it_after_the_call() {
        let told: [u64; WORDS] = [7, 1, 2, 3, libc::SIGCHLD as u64, 4096, 8192, 0, 0, 0, 0];
        let args = [told.as_ptr() as u64, 88, 0, 0, 0, 0];
        let trap = Trap { number: libc::SYS_clone3 as u64, args, mask: 0, on_signal_stack: false };
        let mut room = [0; WORDS];
        let (args, stack) = Making::on_this_stack(&trap, &mut room);
        assert_eq!((args[0], args[1], stack), (room.as_ptr() as u64, 88, Some(4096 + 8192)));
        assert_eq!(room, [7, 1, 2, 3, libc::SIGCHLD as u64, 0, 0, 0, 0, 0, 0]);
        let (args, stack) = Making::on_this_stack(&clone(libc::SIGCHLD, 4096), &mut room);
        assert_eq!((args[0], args[1], stack), (libc::SIGCHLD as u64, 0, Some(4096)));
    }
}
