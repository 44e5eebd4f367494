//! Pipes and FIFOs to outside, terminals and logs: what is written waits for the commit; what is
//! read from a pipe stays in it until then, so that an abort has nothing to give back.
//!
//! A read copies what is in the pipe (tee(2)) and gives the program what it has not had yet. The
//! commit takes out as much as the program has had.

use super::kernel::{self, Buffer, Identity};
use super::region::{Plan, Trap, error};
use crate::Flags;
use libc::{c_int, c_long};

/// Pipes and files, at most.
const MOST: usize = 64;
/// Bytes that wait, at most.
const ROOM: usize = 64 << 20;

struct Pipe {
    original: c_int,
    /// For more to come; -1: not yet.
    epoll: c_int,
    /// What is in it, from its beginning.
    seen: Buffer,
    /// How much of that the program has had.
    had: usize,
}

/// See the module.
pub struct Streams {
    pid: c_int,
    flags: u32,
    /// What is written to: copies of the descriptors.
    files: [c_int; MOST],
    written: usize,
    /// For each write the place of its file and its length, as words, and the bytes.
    output: Buffer,
    pipes: Box<[Option<Pipe>]>,
}

impl Streams {
    pub fn new() -> Streams {
        let pipes = std::iter::repeat_with(|| None).take(MOST).collect();
        Streams { pid: 0, flags: 0, files: [-1; MOST], written: 0, output: Buffer::new(), pipes }
    }

    pub fn begin(&mut self, pid: c_int, flags: Flags) {
        self.pid = pid;
        self.flags = flags.bits() & (Flags::PIPES_HELD | Flags::OUTPUT_HELD).bits();
    }

    fn has(&self, flag: Flags) -> bool {
        self.flags & flag.bits() != 0
    }

    /// Whether it is a pipe that is held.
    pub fn is_pipe(&self, found: &Identity) -> bool {
        self.has(Flags::PIPES_HELD) && found.kind == libc::S_IFIFO
    }

    /// What becomes of a call; `inside`: whether a descriptor is one of the transaction's own.
    pub fn plan(&mut self, trap: &Trap, inside: impl Fn(c_int) -> bool) -> Plan {
        if self.flags == 0 {
            return Plan::Pass;
        }
        let [a, b, c, ..] = trap.args;
        let fd = a as c_int;
        let held = |this: &Streams, fd: c_int| {
            let found = (!inside(fd)).then(|| kernel::identify(fd)).flatten();
            found.is_some_and(|found| this.is_pipe(&found))
        };
        match trap.number as c_long {
            libc::SYS_write | libc::SYS_writev => {
                let Some(found) = (!inside(fd)).then(|| kernel::identify(fd)).flatten() else {
                    return Plan::Pass;
                };
                if !self.is_pipe(&found) && !self.is_output(fd, &found) {
                    return Plan::Pass;
                }
                let flags = kernel::fcntl(fd, libc::F_GETFL, 0) as c_int;
                // A call that fails is the kernel's to answer, also when nobody reads any more.
                if flags & libc::O_ACCMODE == libc::O_RDONLY
                    || kernel::poll(fd) & libc::POLLERR != 0
                {
                    return Plan::Pass;
                }
                let parts = Parts::of(trap.number as c_long, b, c);
                self.write(fd, parts)
            }
            libc::SYS_read | libc::SYS_readv if held(self, fd) => {
                let flags = kernel::fcntl(fd, libc::F_GETFL, 0) as c_int;
                let first = Parts::of(trap.number as c_long, b, c).find(|(_, len)| *len > 0);
                match first {
                    Some((at, len)) if flags & libc::O_ACCMODE != libc::O_WRONLY => {
                        self.read(fd, at, len, flags & libc::O_NONBLOCK != 0)
                    }
                    _ => Plan::Pass,
                }
            }
            // Past what is held; programs do it by reading and writing then.
            libc::SYS_splice | libc::SYS_tee if held(self, fd) || held(self, c as c_int) => {
                error(libc::EINVAL)
            }
            libc::SYS_sendfile | libc::SYS_vmsplice if held(self, fd) => error(libc::EINVAL),
            _ => Plan::Pass,
        }
    }

    /// A terminal, or a log elsewhere.
    fn is_output(&self, fd: c_int, found: &Identity) -> bool {
        if !self.has(Flags::OUTPUT_HELD) {
            return false;
        }
        match found.kind {
            libc::S_IFCHR => kernel::is_terminal(fd),
            libc::S_IFREG => kernel::fcntl(fd, libc::F_GETFL, 0) & i64::from(libc::O_APPEND) != 0,
            _ => false,
        }
    }

    fn write(&mut self, fd: c_int, parts: Parts) -> Plan {
        let pid = self.pid;
        let known = self.files[..self.written].iter().position(|file| kernel::same(pid, fd, *file));
        let total = parts.clone().map(|(_, len)| len).fold(0usize, usize::saturating_add);
        if total > ROOM.saturating_sub(self.output.len()) {
            return error(libc::EAGAIN);
        }
        let at = match known {
            Some(at) => at,
            None if self.written == MOST => return error(libc::EMFILE),
            None => {
                let copy = kernel::keep(fd);
                if copy < 0 {
                    return Plan::Answer(copy);
                }
                self.files[self.written] = copy as c_int;
                self.written += 1;
                self.written - 1
            }
        };
        if !self.output.reserve(total + 16) {
            return error(libc::ENOMEM);
        }
        self.output.push_word(at as u64);
        self.output.push_word(total as u64);
        parts.for_each(|(from, len)| self.output.push_from(from, len));
        Plan::Answer(total as i64)
    }

    fn read(&mut self, fd: c_int, to: u64, len: usize, no_wait: bool) -> Plan {
        let pid = self.pid;
        let same = |p: &Option<Pipe>| p.as_ref().is_some_and(|p| kernel::same(pid, fd, p.original));
        let known = self.pipes.iter().position(same);
        let Some(at) = known.or_else(|| self.pipes.iter().position(Option::is_none)) else {
            return error(libc::EMFILE);
        };
        let pipe = self.pipes[at].get_or_insert_with(|| Pipe {
            original: kernel::keep(fd) as c_int,
            epoll: -1,
            seen: Buffer::new(),
            had: 0,
        });
        if pipe.original < 0 {
            let failed = pipe.original;
            self.pipes[at] = None;
            return Plan::Answer(i64::from(failed));
        }
        if pipe.had == pipe.seen.len() {
            if pipe.epoll < 0 && !no_wait {
                // Before one looks, so that nothing that comes afterwards is missed.
                let epoll = kernel::edges(pipe.original);
                if epoll < 0 {
                    return Plan::Answer(epoll);
                }
                pipe.epoll = epoll as c_int;
            }
            let ended = kernel::poll(fd) & libc::POLLHUP != 0;
            let result = pipe.look();
            if result < 0 {
                return Plan::Answer(result);
            }
            if pipe.had == pipe.seen.len() {
                return match (ended, no_wait) {
                    (true, _) => Plan::Answer(0),
                    (_, true) => error(libc::EAGAIN),
                    _ => Plan::Await(pipe.epoll),
                };
            }
        }
        let n = len.min(pipe.seen.len() - pipe.had);
        pipe.seen.copy_to(pipe.had, n, to);
        pipe.had += n;
        Plan::Answer(n as i64)
    }

    /// In a new process that has a copy: what is held is the thread's.
    pub fn forked(&mut self) {
        for pipe in self.pipes.iter_mut().filter_map(Option::take) {
            pipe.close();
        }
        self.output.clear();
        for file in &self.files[..self.written] {
            kernel::close(*file);
        }
        (self.written, self.flags) = (0, 0);
    }

    /// At the end.
    pub fn end(&mut self, committed: bool) {
        for pipe in self.pipes.iter_mut().filter_map(Option::take) {
            if committed {
                kernel::take_out(pipe.original, pipe.had);
            }
            pipe.close();
        }
        let mut at = 0;
        // A file whose reader is gone gets no more.
        let mut gone = 0u64;
        while committed && at < self.output.len() {
            let (file, len) = (self.output.word(at) as usize, self.output.word(at + 8) as usize);
            at += 16;
            if gone & (1 << file) == 0
                && !kernel::write_all(self.files[file], self.output.part(at, len))
            {
                gone |= 1 << file;
            }
            at += len;
        }
        self.output.clear();
        for file in &self.files[..self.written] {
            kernel::close(*file);
        }
        self.written = 0;
    }
}

impl Pipe {
    fn close(self) {
        kernel::close(self.original);
        if self.epoll >= 0 {
            kernel::close(self.epoll);
        }
    }

    /// Sees what has come.
    fn look(&mut self) -> i64 {
        let size = kernel::fcntl(self.original, libc::F_GETPIPE_SZ, 0);
        if size < 0 {
            return size;
        }
        if self.seen.len() * 2 >= size as usize {
            // What the program has had still takes room there, which is to hinder nobody who
            // writes.
            let grown = kernel::fcntl(self.original, libc::F_SETPIPE_SZ, size as u64 * 2);
            if grown < 0 {
                return -i64::from(libc::ENOBUFS);
            }
        }
        kernel::copy_pipe(self.original, &mut self.seen)
    }
}

/// The pieces of memory of a read or write.
#[derive(Clone)]
struct Parts {
    at: u64,
    left: u64,
    vector: bool,
}

impl Parts {
    fn of(number: c_long, at: u64, count: u64) -> Parts {
        let vector = matches!(number, libc::SYS_writev | libc::SYS_readv);
        Parts { at, left: if vector { count.min(1024) } else { count }, vector }
    }
}

impl Iterator for Parts {
    type Item = (u64, usize);

    fn next(&mut self) -> Option<(u64, usize)> {
        if self.left == 0 {
            return None;
        }
        if !self.vector {
            return Some((self.at, std::mem::take(&mut self.left) as usize));
        }
        let part = (kernel::word(self.at), kernel::word(self.at + 8) as usize);
        (self.at, self.left) = (self.at + 16, self.left - 1);
        Some(part)
    }
}
