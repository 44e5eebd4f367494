//! The thread on whose behalf a request is served, as the kernel tells of it.
//!
//! Who is held (by a decided commit, an aged transaction, a commit of its own view) waits in the
//! kernel, where only an answer frees it. A process that is to die must not wait for others:
//! whatever holds a request up looks around every [`LOOK`], and gives up with `EINTR` once SIGKILL
//! is pending. For any other signal a request goes on: programs outside must not get errors that
//! they would not get without us. INTERRUPT alone does not do: the kernel sends one for the first
//! signal, whatever that is, and none for the SIGKILL after it. Over io_uring it sends none at all
//! for a signal that comes between the queueing of a request and its copy into the ring:
//! `fuse_uring_prepare_send` marks the request as sent, and does not look for `FR_INTERRUPTED`
//! after that, as `fuse_dev_do_read` does.

use crate::api::{Caller, Reply};
use rustix::io::Errno;
use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};
use systx_base::{Gid, Uid};

/// How often whoever holds a request up looks whether its client lives.
pub const LOOK: Duration = Duration::from_millis(50);

const NOBODY: Caller = Caller { uid: 0, gid: 0, tid: 0 };

thread_local! {
    /// Whose request this thread serves; thread 0: nobody's.
    static CLIENT: Cell<Caller> = const { Cell::new(NOBODY) };
    /// See [`grew`].
    static GAP: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// This thread serves a client until this is dropped.
#[must_use = "dropping it ends the service"]
pub struct Serving {
    before: Caller,
}

/// This thread serves a request of `caller` from now on; of thread 0: of nobody who could be
/// killed, as the kernel's own write-back, which must not be lost.
pub fn serving(caller: Caller) -> Serving {
    GAP.set(None);
    Serving { before: CLIENT.replace(caller) }
}

impl Drop for Serving {
    fn drop(&mut self) {
        CLIENT.set(self.before);
    }
}

/// The request at hand has made a file longer, and what lies from its old end to `to` was written
/// by nobody: it is zeros, and the kernel may have something else there in its pages.
pub fn grew(end: u64, to: u64) {
    if end < to {
        GAP.set(GAP.get().or(Some((end, to))));
    }
}

/// The bytes that the request at hand has added to a file and nobody has written, from its old end
/// on; told once.
pub fn gap() -> Option<Range<u64>> {
    GAP.take().map(|(end, to)| end..to)
}

/// The thread whose request this one serves; 0: nobody's.
pub fn thread() -> u32 {
    CLIENT.get().tid
}

/// All of that; of the kernel's own write-back the superuser, since that must not be lost.
pub fn asking() -> Caller {
    CLIENT.get()
}

/// Whether it is a thread of this process.
pub fn is_own() -> bool {
    let tid = thread();
    tid != 0 && std::path::Path::new(&format!("/proc/self/task/{tid}")).exists()
}

/// Whether two threads are of one process; 0 is of none.
pub(crate) fn are_of_one_process(one: u32, other: u32) -> bool {
    let listed = || std::path::Path::new(&format!("/proc/{one}/task/{other}")).exists();
    one != 0 && other != 0 && (one == other || listed())
}

/// To be asked now and then by who holds a request up.
///
/// # Errors
/// `EINTR`: its client has been killed.
pub fn check() -> Reply<()> {
    match thread() {
        0 => Ok(()),
        tid if is_killed(tid) => Err(Errno::INTR),
        _ => Ok(()),
    }
}

/// The command that a thread runs, as in `/proc/TID/comm`; empty if it is gone.
pub fn command(tid: u32) -> Vec<u8> {
    let mut name = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    name
}

/// Whether SIGKILL is pending for a thread or its process. Not if it is gone: what it left behind
/// may still have to be done.
fn is_killed(tid: u32) -> bool {
    const SIGKILL: u64 = 1 << 8;
    status(tid).is_some_and(|status| pending(&status) & SIGKILL != 0)
}

/// Whether a signal waits for the client that would end a wait in the kernel: a wait for a lock
/// ends with any (`F_SETLKW`, flock(2)). One for the process may be for another thread of it,
/// which takes it at once: what is still there at the next look is for this one.
pub fn has_signal() -> bool {
    let status = Some(thread()).filter(|tid| *tid != 0).and_then(status);
    status.is_some_and(|status| deliverable(&status) != 0)
}

/// Signals that are pending for a thread or its process, as bits.
fn pending(status: &str) -> u64 {
    let signals = |field| mask(status, field).unwrap_or(0);
    signals("SigPnd") | signals("ShdPnd")
}

/// Those that the thread neither blocks nor ignores.
fn deliverable(status: &str) -> u64 {
    let signals = |field| mask(status, field).unwrap_or(0);
    pending(status) & !signals("SigBlk") & !signals("SigIgn")
}

/// The capabilities that decisions are made by here, as bits (`linux/capability.h`).
mod capability {
    pub const FOWNER: u64 = 1 << 3;
    pub const FSETID: u64 = 1 << 4;
    pub const SYS_ADMIN: u64 = 1 << 21;
}

/// What a thread may do with inodes of others (`CAP_FOWNER`).
pub enum Privilege {
    /// What nobody told: it is gone, or cannot be seen from here.
    Unknown,
    /// Nothing.
    None,
    /// Everything.
    OverAll,
    /// What the owners and groups of its user namespace own.
    Over(Ids),
}

/// The users and the groups that a user namespace has, by their numbers here.
pub struct Ids {
    users: String,
    groups: String,
}

impl Ids {
    /// Whether it has these.
    pub fn contain(&self, uid: Uid, gid: Gid) -> bool {
        ranges(&self.users).any(|all| all.contains(&uid.into()))
            && ranges(&self.groups).any(|all| all.contains(&gid.into()))
    }

    fn are_all(&self) -> bool {
        let all = |map| ranges(map).any(|ids| ids.start == 0 && ids.end >= u64::from(u32::MAX));
        all(&self.users) && all(&self.groups)
    }
}

/// The numbers here, of each line of a map of ids.
fn ranges(map: &str) -> impl Iterator<Item = std::ops::Range<u64>> {
    map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (_, start, count) =
            (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(start..start.checked_add(count)?)
    })
}

/// What a thread is privileged over.
pub fn privilege(tid: u32) -> Privilege {
    privilege_by(tid, capability::FOWNER)
}

/// Whether who asks has a capability in all of the system; the superuser of whom nothing is known
/// has it.
fn has(capability: u64) -> bool {
    let caller = asking();
    match privilege_by(caller.tid, capability) {
        Privilege::OverAll => true,
        Privilege::Unknown => caller.uid == 0,
        Privilege::None | Privilege::Over(_) => false,
    }
}

/// Whether set-id bits stay on a file of which who asks changes the content, where the kernel does
/// not say (fallocate(2), copy_file_range(2)).
pub fn keeps_set_ids() -> bool {
    has(capability::FSETID)
}

/// The names of extended attributes that who asks may see: `trusted.*` are for administrators, as
/// xattr(7) says, and the kernel leaves it to the file system to list them to nobody else.
pub fn visible_xattrs(names: Vec<u8>) -> Vec<u8> {
    let is_trusted = |name: &&[u8]| name.starts_with(b"trusted.");
    let each = || names.split_inclusive(|b| *b == 0);
    if !each().any(|name| is_trusted(&name)) || has(capability::SYS_ADMIN) {
        return names;
    }
    each().filter(|name| !is_trusted(name)).collect::<Vec<_>>().concat()
}

fn privilege_by(tid: u32, capability: u64) -> Privilege {
    let read = |what| std::fs::read_to_string(format!("/proc/{tid}/{what}")).ok();
    let effective = Some(tid).filter(|tid| *tid != 0).and_then(status);
    let Some(effective) = effective.and_then(|status| mask(&status, "CapEff")) else {
        return Privilege::Unknown;
    };
    if effective & capability == 0 {
        return Privilege::None;
    }
    let (Some(users), Some(groups)) = (read("uid_map"), read("gid_map")) else {
        return Privilege::Unknown;
    };
    let ids = Ids { users, groups };
    if ids.are_all() { Privilege::OverAll } else { Privilege::Over(ids) }
}

/// `/proc/TID/status`: the one place that reads it.
fn status(tid: u32) -> Option<String> {
    std::fs::read(format!("/proc/{tid}/status")).ok().map(|b| String::from_utf8_lossy(&b).into())
}

/// A set of signals in the text of a status.
fn mask(status: &str, field: &str) -> Option<u64> {
    let value =
        |line: &str| line.strip_prefix(field)?.strip_prefix(':').map(|v| v.trim().to_owned());
    u64::from_str_radix(&status.lines().find_map(value)?, 16).ok()
}

/// How a thread asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockCall {
    /// By which descriptor.
    pub fd: i32,
    /// For the open file description (`F_OFD_SETLK`), not for its process.
    pub description: bool,
}

/// The call for a lock in which a thread waits now, as `/proc/TID/syscall` tells it.  `None`: it
/// is in no such call, or may not be looked at.  The request itself does not say whether a lock is
/// a process's or a description's.
pub fn lock_call(tid: u32) -> Option<LockCall> {
    /// It sends its request first, and goes to sleep a moment later: on a busy machine only when it
    /// has got a processor again. Without the answer it does nothing else.
    const LONGEST: Duration = Duration::from_secs(10);
    if tid == 0 {
        return None;
    }
    let path = format!("/proc/{tid}/syscall");
    let (begun, mut looks) = (Instant::now(), 0);
    loop {
        let text = std::fs::read_to_string(&path).ok()?;
        if !text.starts_with("running") {
            return lock_call_in(&text);
        }
        match looks {
            0..10 => std::thread::yield_now(),
            _ if begun.elapsed() > LONGEST => return None,
            10..200 => std::thread::sleep(Duration::from_micros(100)),
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
        looks += 1;
    }
}

/// The number of the call and its arguments; those of 32-bit programs have numbers of their own.
fn lock_call_in(text: &str) -> Option<LockCall> {
    const FCNTL: [i64; 3] = [libc::SYS_fcntl, 55, 221];
    const FLOCK: [i64; 2] = [libc::SYS_flock, 143];
    /// `F_SETLK`, `F_SETLKW`, and those with 64 bits of 32-bit programs.
    const PROCESS: [u64; 4] = [6, 7, 13, 14];
    /// `F_OFD_SETLK`, `F_OFD_SETLKW`.
    const DESCRIPTION: [u64; 2] = [37, 38];
    let mut words = text.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let fd = i32::try_from(argument()? & 0xffff_ffff).ok()?;
    let command = argument()? & 0xffff_ffff;
    let call = |description| Some(LockCall { fd, description });
    if FCNTL.contains(&number) && PROCESS.contains(&command) {
        return call(false);
    }
    if FCNTL.contains(&number) && DESCRIPTION.contains(&command) {
        return call(true);
    }
    FLOCK.contains(&number).then_some(LockCall { fd, description: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_signals_are_read_from_a_status() {
        let text = "Name:\tSigPnd:\nSigQ:\t1/2\nSigPnd:\t0000000000000100\nShdPnd:\tx\n";
        assert_eq!(mask(text, "SigPnd"), Some(0x100));
        assert_eq!(mask(text, "ShdPnd"), None);
        assert_eq!(mask(text, "Sig"), None);
    }

    #[test]
    fn a_signal_that_is_blocked_or_ignored_ends_no_wait() {
        let text = |pending: [u64; 2], blocked: u64, ignored: u64| {
            let [own, shared] = pending;
            format!(
                "SigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
                 SigIgn:\t{ignored:016x}\nSigCgt:\t{:016x}\n",
                u64::MAX
            )
        };
        assert_eq!(deliverable(&text([0, 0], 0, 0)), 0);
        assert_eq!(deliverable(&text([0b0001, 0b0100], 0, 0)), 0b0101);
        assert_eq!(deliverable(&text([0b0011, 0b1100], 0b0001, 0b0100)), 0b1010);
        assert_eq!(deliverable("SigPnd:\tx\n"), 0);
        assert!(!has_signal(), "nobody's request");
    }

    #[test]
    fn the_call_for_a_lock_is_read_from_what_a_thread_waits_in() {
        let call = |number: i64, fd: u32, command: u32| {
            lock_call_in(&format!(
                "{number} 0x{fd:x} 0x{command:x} 0x7ffe7d3bbad0 0x0 0x0 0x0 0x1 0x2\n"
            ))
        };
        let is = |fd, description| Some(LockCall { fd, description });
        for (command, description) in [(6, false), (7, false), (37, true), (38, true)] {
            assert_eq!(call(libc::SYS_fcntl, 3, command), is(3, description));
            // Of a 32-bit program.
            assert_eq!(call(221, 3, command), is(3, description));
        }
        assert_eq!(call(libc::SYS_flock, 4, 2), is(4, false));
        assert_eq!(call(libc::SYS_fcntl, 3, 5), None, "F_GETLK");
        assert_eq!(call(libc::SYS_read, 3, 6), None);
        for text in ["", "running\n", "-1 0x7ffe 0x1\n", "72", "72 3 6"] {
            assert_eq!(lock_call_in(text), None, "{text}");
        }
        assert_eq!((lock_call(0), lock_call(u32::MAX)), (None, None));
    }

    #[test]
    fn the_call_of_a_thread_that_has_no_processor_for_a_while_is_found() {
        use rustix::fs::{FlockOperation, flock};
        let file = tempfile::NamedTempFile::new().unwrap();
        let (held, other) = (file.reopen().unwrap(), file.reopen().unwrap());
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            // It counts as running, as one does that others keep from its processor.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(300) {
                std::hint::spin_loop();
            }
            flock(&other, FlockOperation::LockExclusive).unwrap();
        });
        let tid = told.recv().unwrap().as_raw_nonzero().get().unsigned_abs();
        assert!(lock_call(tid).is_some());
        drop(held);
        waits.join().unwrap();
    }

    #[test]
    fn who_lives_is_not_killed_and_neither_is_who_is_gone() {
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert!(!is_killed(own) && !is_killed(u32::MAX));
        let _serving = serving(Caller { tid: own, ..NOBODY });
        assert_eq!(check(), Ok(()));
        assert!(!command(own).is_empty());
    }
}
