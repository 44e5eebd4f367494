//! Descriptors inside a transaction.
//!
//! One that was opened before, on the guarded directory, is given a *shadow* when it is first used:
//! the same file, opened in the view, with the same mode and offset. Calls on the descriptor are
//! made on the shadow. After a commit its offset is carried over; after an abort there is nothing
//! to do. The open file counts, not the number: copies of a descriptor share a shadow as they share
//! the offset.
//!
//! Those that are made inside are noted down; an abort closes them, and puts back those in whose
//! place they came.
//!
//! A new process has a table of its own, and its calls are intercepted like those of the thread. A
//! shadow that one of them makes is everybody's ([`Family`]), since they share the open file and so
//! its offset. When it executes a program, the shadows simply take the places of the descriptors
//! that the program gets. Where calls of a new process cannot be intercepted, all of them do so at
//! once.

use super::family::Family;
use super::kernel::{self, Identity};
use super::region::{Plan, Then, Trap, error};
use libc::{c_int, c_long};
use systx_calls::Call;

/// Open files with shadows, at most.
const SHADOWS: usize = 1024;
/// Closed or replaced descriptors that an abort puts back, at most.
const CLOSED: usize = 256;
/// Higher numbers are not noted down.
const NUMBERS: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Shadow {
    /// By which number it was last met.
    number: c_int,
    /// A copy of it, which keeps it open.
    original: c_int,
    /// The same file in the view.
    shadow: c_int,
}

#[derive(Clone, Copy)]
struct Closed {
    number: c_int,
    flags: c_int,
    copy: c_int,
}

/// A set of descriptors.
struct Numbers {
    bits: Box<[u64]>,
    /// No word at or after this one has a bit.
    end: usize,
}

impl Numbers {
    fn new() -> Numbers {
        Numbers { bits: vec![0; NUMBERS / 64].into(), end: 0 }
    }

    fn set(&mut self, fd: c_int, is: bool) {
        let Ok(fd) = usize::try_from(fd) else { return };
        let Some(word) = self.bits.get_mut(fd / 64) else { return };
        if is {
            *word |= 1 << (fd % 64);
            self.end = self.end.max(fd / 64 + 1);
        } else {
            *word &= !(1 << (fd % 64));
        }
    }

    fn has(&self, fd: c_int) -> bool {
        let Ok(fd) = usize::try_from(fd) else { return false };
        self.bits.get(fd / 64).is_some_and(|word| word & (1 << (fd % 64)) != 0)
    }

    /// All are below.
    fn end(&self) -> u32 {
        (self.end * 64) as u32
    }

    fn each(&self, mut each: impl FnMut(c_int)) {
        for (at, word) in self.bits[..self.end].iter().enumerate() {
            (0..64)
                .filter(|bit| word & (1 << bit) != 0)
                .for_each(|bit| each((at * 64 + bit) as c_int));
        }
    }

    fn clear(&mut self) {
        self.bits[..self.end].fill(0);
        self.end = 0;
    }

    fn copy_from(&mut self, other: &Numbers) {
        self.clear();
        self.bits[..other.end].copy_from_slice(&other.bits[..other.end]);
        self.end = other.end;
    }
}

/// What a process that is lent the memory may change of it: to be put back after it.
struct Lent {
    pid: c_int,
    shadowed: usize,
    seen: u64,
    complete: bool,
}

/// See the module.
pub struct Descriptors {
    pid: c_int,
    /// The guarded mount's device.
    dev: (u32, u32),
    shadows: Box<[Shadow]>,
    shadowed: usize,
    closed: Box<[Closed]>,
    were_closed: usize,
    /// Those that were made inside.
    made: Numbers,
    /// Those of them that are of the view, or of no file; the others are copies of earlier ones.
    inside: Numbers,
    /// All that are open have been looked at.
    complete: bool,
    /// It is a process that was made inside; an abort puts nothing back there.
    child: bool,
    /// While a process is lent this: what was, with `made` and `inside`.
    lent: Option<Lent>,
    before: [Numbers; 2],
    pub family: Family,
    /// For paths: the handler's stack may be small.
    path: Box<[u8]>,
    /// For those of names that are about to change.
    targets: [Box<[u8]>; 2],
}

/// Bytes for a path.
const PATH: usize = 4352;

/// Whether a file of this path is the target or lies below it.
fn is_at_or_below(path: &[u8], target: &[u8]) -> bool {
    path.strip_prefix(target).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// What the kernel says behind the path of a file whose cached name is gone.
const DELETED: &[u8] = b" (deleted)";

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Nothing that concerns the view.
    Other,
    /// In the view it is this one.
    Shadow(c_int),
    /// It has none.
    Failed(c_int),
}

impl Descriptors {
    pub fn new() -> Descriptors {
        Descriptors {
            pid: 0,
            dev: (0, 0),
            shadows: vec![Shadow { number: -1, original: -1, shadow: -1 }; SHADOWS].into(),
            shadowed: 0,
            closed: vec![Closed { number: -1, flags: 0, copy: -1 }; CLOSED].into(),
            were_closed: 0,
            made: Numbers::new(),
            inside: Numbers::new(),
            complete: false,
            child: false,
            lent: None,
            before: [Numbers::new(), Numbers::new()],
            family: Family::new(),
            path: vec![0; PATH].into(),
            targets: [vec![0; PATH].into(), vec![0; PATH].into()],
        }
    }

    /// At the begin; `control` is on the guarded mount.
    pub fn begin(&mut self, pid: c_int, control: c_int) {
        self.pid = pid;
        self.dev = kernel::identify(control).map_or((0, 0), |found| found.dev);
        self.shadowed = 0;
        self.were_closed = 0;
        self.made.clear();
        self.inside.clear();
        self.complete = false;
        self.child = false;
        self.lent = None;
        self.family.end();
    }

    /// In a new process that has a copy of the memory.
    pub fn forked(&mut self, pid: c_int) {
        self.pid = pid;
        self.child = true;
        self.lent = None;
    }

    /// In a new process that has the memory itself, as long as the thread waits for it.
    pub fn lend(&mut self, pid: c_int) {
        let (shadowed, seen, complete) = (self.shadowed, self.family.seen(), self.complete);
        self.lent = Some(Lent { pid: self.pid, shadowed, seen, complete });
        self.before[0].copy_from(&self.made);
        self.before[1].copy_from(&self.inside);
        self.pid = pid;
    }

    /// The thread goes on.  What that process has made are descriptors of its own.
    pub fn take_back(&mut self) {
        let Some(lent) = self.lent.take() else { return };
        (self.pid, self.shadowed, self.complete) = (lent.pid, lent.shadowed, lent.complete);
        self.family.see_from(lent.seen);
        self.made.copy_from(&self.before[0]);
        self.inside.copy_from(&self.before[1]);
    }

    /// Whether it is a process that was made inside.
    fn is_child(&self) -> bool {
        self.child || self.lent.is_some()
    }

    /// A descriptor was made inside, of something from `inside` or not.
    pub fn made(&mut self, fd: c_int, inside: bool) {
        self.made.set(fd, true);
        self.inside.set(fd, inside);
    }

    /// Whether it is of something from inside.
    pub fn is_inside(&self, fd: c_int) -> bool {
        self.inside.has(fd)
    }

    /// One was made as a copy of another.
    pub fn copied(&mut self, from: c_int, fd: c_int) {
        self.made.set(fd, true);
        self.inside.set(fd, self.inside.has(from));
    }

    /// Whether it is one of the library's.
    fn is_ours(&self, fd: c_int) -> bool {
        let shadows = self.shadows[..self.shadowed].iter();
        let closed = self.closed[..self.were_closed].iter();
        shadows.clone().any(|s| s.original == fd || s.shadow == fd)
            || closed.clone().any(|c| c.copy == fd)
            || self.family.has(fd)
    }

    /// What becomes of a call because of the descriptors that it names.
    pub fn plan(&mut self, call: &Call, trap: &Trap) -> Plan {
        let args = trap.args;
        let fd = args[0] as c_int;
        match trap.number as c_long {
            libc::SYS_close => return self.close(fd),
            libc::SYS_dup => {
                let then = Then::Copy(fd);
                return Plan::Call { args, wait: false, then };
            }
            libc::SYS_dup2 | libc::SYS_dup3 => return self.replace(trap, args[1] as c_int),
            libc::SYS_close_range => return self.close_range(args),
            libc::SYS_fcntl => return self.fcntl(trap, fd, args[1] as c_int),
            libc::SYS_mmap if args[3] & libc::MAP_ANONYMOUS as u64 != 0 => return Plan::Pass,
            // What an earlier descriptor stands for in the view can only be found by the names that
            // the transaction has not changed yet.
            libc::SYS_rename => {
                self.before_change([
                    Some((libc::AT_FDCWD, args[0])),
                    Some((libc::AT_FDCWD, args[1])),
                ]);
            }
            libc::SYS_renameat | libc::SYS_renameat2 => {
                self.before_change([Some((fd, args[1])), Some((args[2] as c_int, args[3]))]);
            }
            libc::SYS_unlink | libc::SYS_rmdir => {
                self.before_change([Some((libc::AT_FDCWD, args[0])), None]);
            }
            libc::SYS_unlinkat => self.before_change([Some((fd, args[1])), None]),
            libc::SYS_execve if self.is_child() => return self.before_program(None),
            libc::SYS_execveat if self.is_child() => return self.before_program(Some(fd)),
            _ => {}
        }
        self.translate(call, trap)
    }

    fn translate(&mut self, call: &Call, trap: &Trap) -> Plan {
        let mut args = trap.args;
        let mut changed = false;
        for (_, arg) in args.iter_mut().enumerate().filter(|(n, _)| call.fds & (1 << n) != 0) {
            match self.look(*arg as c_int) {
                Seen::Other => {}
                Seen::Shadow(fd) => {
                    *arg = fd as u64;
                    changed = true;
                }
                Seen::Failed(errno) => return error(errno),
            }
        }
        if !changed {
            return Plan::Pass;
        }
        let then = match call.makes {
            systx_calls::Makes::One => Then::Made,
            _ => Then::Nothing,
        };
        // These may wait for the other side of a pipe or socket; a program gets the mask.
        let wait = matches!(
            trap.number as c_long,
            libc::SYS_splice | libc::SYS_sendfile | libc::SYS_execveat
        );
        Plan::Call { args, wait: wait || then == Then::Made, then }
    }

    /// What a descriptor is, and makes it a shadow if it needs one.
    fn look(&mut self, fd: c_int) -> Seen {
        if fd < 0 || self.inside.has(fd) {
            return Seen::Other;
        }
        // Pipes, sockets and devices have no content in a view.
        let has_view = |kind| [libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK].contains(&kind);
        if kernel::identify(fd).is_none_or(|found| found.dev != self.dev || !has_view(found.kind)) {
            return Seen::Other;
        }
        if self.is_ours(fd) {
            return Seen::Failed(libc::EBADF);
        }
        if let Some(shadow) = self.known(fd) {
            return Seen::Shadow(shadow);
        }
        let shared = match self.family.lock() {
            Ok(shared) => shared,
            Err(errno) => return Seen::Failed(errno),
        };
        let shadow = self.made_by_others(fd, shared).map_or_else(
            || {
                let found = kernel::identify_now(fd).ok_or(libc::EBADF)?;
                self.make(fd, &found, shared)
            },
            Ok,
        );
        if shared {
            self.family.unlock();
        }
        match shadow {
            Ok(shadow) => Seen::Shadow(shadow),
            Err(errno) => Seen::Failed(errno),
        }
    }

    /// The shadow that it has already.
    fn known(&mut self, fd: c_int) -> Option<c_int> {
        let pid = self.pid;
        let known = &mut self.shadows[..self.shadowed];
        // The number may be another file's by now, since it belongs to all threads.
        let by_number =
            known.iter().position(|s| s.number == fd && kernel::same(pid, fd, s.original));
        let at =
            by_number.or_else(|| known.iter().position(|s| kernel::same(pid, fd, s.original)))?;
        known[at].number = fd;
        Some(known[at].shadow)
    }

    /// The shadow that another process has made meanwhile.
    fn made_by_others(&mut self, fd: c_int, shared: bool) -> Option<c_int> {
        let before = self.shadowed;
        if shared {
            self.catch_up();
        }
        if before == self.shadowed { None } else { self.known(fd) }
    }

    /// Takes over the shadows that others have made.
    fn catch_up(&mut self) {
        while self.shadowed < SHADOWS {
            let Some([original, shadow]) = self.family.next() else { return };
            self.shadows[self.shadowed] = Shadow { number: -1, original, shadow };
            self.shadowed += 1;
        }
    }

    fn make(&mut self, fd: c_int, found: &Identity, shared: bool) -> Result<c_int, c_int> {
        if self.shadowed == SHADOWS {
            return Err(libc::EMFILE);
        }
        let shadow = self.open_in_view(fd, found)?;
        let original = match kernel::keep(fd) {
            e if e < 0 => {
                kernel::close(shadow);
                return Err(-e as c_int);
            }
            original => original as c_int,
        };
        // A listing's place means the same in both, as the names have the same cookies.
        let at = kernel::seek(fd, 0, libc::SEEK_CUR);
        if at > 0 {
            kernel::seek(shadow, at, libc::SEEK_SET);
        }
        if shared && let Err(errno) = self.family.add([original, shadow]) {
            kernel::close(shadow);
            kernel::close(original);
            return Err(errno);
        }
        self.shadows[self.shadowed] = Shadow { number: fd, original, shadow };
        self.shadowed += 1;
        Ok(shadow)
    }

    /// Opens the same file by the name that the kernel knows.
    fn open_in_view(&mut self, fd: c_int, found: &Identity) -> Result<c_int, c_int> {
        let room = self.path.len() - 1;
        let len = kernel::path_of(fd, &mut self.path[..room]);
        let Some(mut len) = usize::try_from(len).ok().filter(|len| *len < room) else {
            return Err(libc::ESTALE);
        };
        let flags = kernel::fcntl(fd, libc::F_GETFL, 0);
        if flags < 0 {
            return Err(-flags as c_int);
        }
        let kept = libc::O_ACCMODE | libc::O_APPEND | libc::O_DIRECT | libc::O_PATH | libc::O_SYNC;
        let kind = if found.kind == libc::S_IFDIR { libc::O_DIRECTORY } else { 0 };
        let flags = (flags as c_int & kept) | kind | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let flags = if flags & libc::O_PATH == 0 {
            flags | libc::O_NOCTTY
        } else {
            flags & !libc::O_NONBLOCK
        };
        loop {
            self.path[len] = 0;
            let opened = kernel::open(&self.path[..=len], flags);
            if opened >= 0 {
                let high = kernel::keep(opened as c_int);
                let opened = opened as c_int;
                let now = kernel::identify_now(opened);
                kernel::close(opened);
                if high < 0 {
                    return Err(-high as c_int);
                }
                if now.is_some_and(|now| {
                    (now.dev, now.ino, now.kind) == (found.dev, found.ino, found.kind)
                }) {
                    return Ok(high as c_int);
                }
                kernel::close(high as c_int);
            } else if ![-libc::ENOENT, -libc::ENOTDIR].contains(&(opened as c_int)) {
                return Err(-opened as c_int);
            }
            // Files from inside an earlier transaction have lost their cached name, not their name.
            match self.path[..len].strip_suffix(DELETED) {
                Some(shorter) => len = shorter.len(),
                None => return Err(libc::ESTALE),
            }
        }
    }

    /// Shadows for the earlier descriptors of what these names, each in a directory and with the
    /// address of a path, lead to now, and of all below. The others are found by their names later,
    /// too.
    fn before_change(&mut self, names: [Option<(c_int, u64)>; 2]) {
        if self.complete {
            return;
        }
        // What is there, and the length of its path.
        let mut found = [None; 2];
        for (at, (dir, path)) in
            names.into_iter().enumerate().filter_map(|(n, name)| Some((n, name?)))
        {
            let dir = match self.look(dir) {
                Seen::Other => dir,
                Seen::Shadow(shadow) => shadow,
                // The call itself fails.
                Seen::Failed(_) => return,
            };
            found[at] = match self.find(dir, path, at) {
                Ok(found) => Some(found),
                Err(libc::ENOENT | libc::ENOTDIR) => None,
                Err(_) => {
                    self.complete();
                    return;
                }
            };
        }
        if found == [None; 2] {
            return;
        }
        kernel::each_open(|fd| {
            if !self.is_ours(fd) && !self.inside.has(fd) && self.is_concerned(fd, &found) {
                let _ = self.look(fd);
            }
        });
    }

    /// Where a name leads to in the view; its path is in `targets` then.
    fn find(&mut self, dir: c_int, path: u64, at: usize) -> Result<(u64, usize), c_int> {
        let opened = kernel::find(dir, path);
        if opened < 0 {
            return Err(-opened as c_int);
        }
        let opened = opened as c_int;
        let len = kernel::path_of(opened, &mut self.targets[at]);
        let ino = kernel::identify(opened).map(|found| found.ino);
        kernel::close(opened);
        match (ino, usize::try_from(len)) {
            (Some(ino), Ok(len)) if len < PATH => Ok((ino, len)),
            _ => Err(libc::ESTALE),
        }
    }

    /// Whether a descriptor is of one of these, or of something below.
    fn is_concerned(&mut self, fd: c_int, found: &[Option<(u64, usize)>; 2]) -> bool {
        let Some(this) = kernel::identify(fd).filter(|this| this.dev == self.dev) else {
            return false;
        };
        let Ok(len) = usize::try_from(kernel::path_of(fd, &mut self.path)) else { return true };
        let path = &self.path[..len];
        let shorter = path.strip_suffix(DELETED).unwrap_or(path);
        found.iter().enumerate().filter_map(|(n, found)| Some((n, (*found)?))).any(
            |(n, (ino, len))| {
                let target = &self.targets[n][..len];
                // By another mount the same file has another path.
                ino == this.ino || is_at_or_below(path, target) || is_at_or_below(shorter, target)
            },
        )
    }

    /// Shadows for all earlier descriptors; `false` if the transaction has lost: a process that is
    /// not intercepted would have those that are missing as they are outside.
    pub fn complete(&mut self) -> bool {
        if self.complete {
            return true;
        }
        let mut lost = false;
        kernel::each_open(|fd| {
            if !lost && !self.is_ours(fd) {
                lost = self.look(fd) == Seen::Failed(libc::ECANCELED);
            }
        });
        self.complete = !lost;
        !lost
    }

    /// An abort opens it again.
    fn put_aside(&mut self, fd: c_int) {
        if fd < 0 || self.is_child() || self.made.has(fd) || self.were_closed == CLOSED {
            return;
        }
        let flags = kernel::fcntl(fd, libc::F_GETFD, 0);
        if flags < 0 {
            return;
        }
        let copy = kernel::keep(fd);
        if copy >= 0 {
            let flags = if flags & i64::from(libc::FD_CLOEXEC) != 0 { libc::O_CLOEXEC } else { 0 };
            self.closed[self.were_closed] = Closed { number: fd, flags, copy: copy as c_int };
            self.were_closed += 1;
        }
    }

    fn close(&mut self, fd: c_int) -> Plan {
        if self.is_ours(fd) {
            return error(libc::EBADF);
        }
        if self.made.has(fd) {
            self.made.set(fd, false);
            self.inside.set(fd, false);
            return Plan::Pass;
        }
        if self.is_child() {
            return Plan::Pass;
        }
        // Others are not put aside: whoever reads a pipe waits for its end.
        let guarded = kernel::identify(fd).is_some_and(|found| found.dev == self.dev);
        if guarded {
            // While it still has its number.
            let _ = self.look(fd);
            self.put_aside(fd);
        }
        Plan::Pass
    }

    fn replace(&mut self, trap: &Trap, new: c_int) -> Plan {
        if self.is_ours(trap.args[0] as c_int) || self.is_ours(new) {
            return error(libc::EBADF);
        }
        if trap.args[0] as c_int == new {
            return Plan::Pass;
        }
        if kernel::fcntl(trap.args[0] as c_int, libc::F_GETFD, 0) >= 0 {
            self.put_aside(new);
        }
        Plan::Call { args: trap.args, wait: false, then: Then::Copy(trap.args[0] as c_int) }
    }

    fn close_range(&mut self, args: [u64; 6]) -> Plan {
        const CLOSE_RANGE_UNSHARE: u32 = 2;
        let (mut first, last, flags) = (args[0] as u32, args[1] as u32, args[2] as u32);
        if first > last || flags & CLOSE_RANGE_UNSHARE != 0 {
            return error(libc::EINVAL);
        }
        while first <= last {
            let shadows = self.shadows[..self.shadowed].iter().flat_map(|s| [s.original, s.shadow]);
            let closed = self.closed[..self.were_closed].iter().map(|c| c.copy);
            let ours = shadows
                .chain(closed)
                .chain(self.family.fds())
                .filter_map(|fd| u32::try_from(fd).ok());
            let next = ours.filter(|fd| (first..=last).contains(fd)).min();
            let end = next.map_or(last, |fd| fd.wrapping_sub(1));
            if next != Some(first) {
                let result = kernel::close_range(first, end, flags);
                if result < 0 {
                    return Plan::Answer(result);
                }
                if flags == 0 {
                    for fd in first..=end.min(self.made.end()) {
                        self.made.set(fd as c_int, false);
                        self.inside.set(fd as c_int, false);
                    }
                }
            }
            match next.and_then(|fd| fd.checked_add(1)) {
                Some(after) => first = after,
                None => break,
            }
        }
        Plan::Answer(0)
    }

    fn fcntl(&mut self, trap: &Trap, fd: c_int, what: c_int) -> Plan {
        if self.is_ours(fd) {
            return error(libc::EBADF);
        }
        match what {
            // The copy is one of the same open file, and so has its shadow.
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                Plan::Call { args: trap.args, wait: false, then: Then::Copy(fd) }
            }
            libc::F_GETFL | libc::F_SETFL => match self.look(fd) {
                Seen::Shadow(shadow) => {
                    let mut args = trap.args;
                    args[0] = shadow as u64;
                    Plan::Call { args, wait: false, then: Then::Nothing }
                }
                _ => Plan::Pass,
            },
            // Locks are between programs; flags of the number are the number's.
            _ => Plan::Pass,
        }
    }

    /// Before a program is executed in a new process: what the program gets, and the descriptor
    /// that it may be executed by, becomes the view's. Its own table.
    fn before_program(&mut self, by: Option<c_int>) -> Plan {
        let mut lost = false;
        kernel::each_open(|fd| {
            if lost || self.inside.has(fd) || self.is_ours(fd) {
                return;
            }
            let flags = kernel::fcntl(fd, libc::F_GETFD, 0);
            let closes = flags & i64::from(libc::FD_CLOEXEC) != 0;
            if closes && by != Some(fd) {
                return;
            }
            match self.look(fd) {
                Seen::Shadow(shadow) => {
                    kernel::put(shadow, fd, if closes { libc::O_CLOEXEC } else { 0 });
                    self.inside.set(fd, true);
                }
                Seen::Failed(libc::ECANCELED) => lost = true,
                Seen::Failed(_) | Seen::Other => {}
            }
        });
        if lost { error(libc::ECANCELED) } else { Plan::Pass }
    }

    /// In a new process that is not intercepted: its own table.
    pub fn in_child(&self) {
        if self.shadowed == 0 {
            return;
        }
        let pid = kernel::pid();
        kernel::each_open(|fd| {
            let mut known = self.shadows[..self.shadowed].iter();
            if self.is_ours(fd) || self.inside.has(fd) {
                return;
            }
            let Some(s) = known.find(|s| kernel::same(pid, fd, s.original)) else { return };
            let flags = kernel::fcntl(fd, libc::F_GETFD, 0);
            let flags = if flags & i64::from(libc::FD_CLOEXEC) != 0 { libc::O_CLOEXEC } else { 0 };
            kernel::put(s.shadow, fd, flags);
        });
    }

    /// At the end.  Nothing is intercepted any more, and the thread is outside.
    pub fn end(&mut self, committed: bool) {
        // All other processes have ended.
        if committed {
            self.catch_up();
        }
        for s in &self.shadows[..self.shadowed] {
            if committed {
                carry_over(s);
            }
            kernel::close(s.shadow);
            kernel::close(s.original);
        }
        self.shadowed = 0;
        if !committed {
            self.made.each(|fd| {
                kernel::close(fd);
            });
        }
        // The last one that was closed under a number came latest.
        for c in &self.closed[..self.were_closed] {
            if !committed && kernel::fcntl(c.number, libc::F_GETFD, 0) == -i64::from(libc::EBADF) {
                kernel::put(c.copy, c.number, c.flags);
            }
            kernel::close(c.copy);
        }
        self.were_closed = 0;
        self.made.clear();
        self.inside.clear();
        self.family.end();
    }
}

/// What a committed transaction did to an earlier open file: its offset and its flags.
fn carry_over(s: &Shadow) {
    let at = kernel::seek(s.shadow, 0, libc::SEEK_CUR);
    if at >= 0 && at != kernel::seek(s.original, 0, libc::SEEK_CUR) {
        kernel::seek(s.original, at, libc::SEEK_SET);
    }
    let flags = |fd| kernel::fcntl(fd, libc::F_GETFL, 0);
    let (now, before) = (flags(s.shadow), flags(s.original));
    let changeable = i64::from(libc::O_APPEND | libc::O_DIRECT | libc::O_NOATIME);
    if now >= 0 && before >= 0 && (now ^ before) & changeable != 0 {
        let new = (before & !changeable) | (now & changeable);
        kernel::fcntl(s.original, libc::F_SETFL, new as u64);
    }
}
