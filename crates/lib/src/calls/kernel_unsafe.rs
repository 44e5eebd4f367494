//! System calls of the handler, by the gate: results as the kernel gives them, errors as negative
//! numbers. Nothing here allocates.

#![allow(unsafe_code)]

use super::gate::raw;
use libc::{c_int, c_long};

/// Which file a descriptor is open on, and through which mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device, as (major, minor).
    pub dev: (u32, u32),
    /// Inode.
    pub ino: u64,
    /// Mount.
    pub mount: u64,
    /// Type bits of the mode.
    pub kind: u32,
    /// Of a device file: which.
    pub rdev: (u32, u32),
}

fn call(number: c_long, args: [u64; 6]) -> i64 {
    // SAFETY: all callers are in this file and give addresses of what lives as long as the call,
    // with its length.
    unsafe { raw(number, args) }
}

/// Asks without a message to whoever serves the file.
pub fn identify(fd: c_int) -> Option<Identity> {
    stat(fd, libc::AT_STATX_DONT_SYNC)
}

/// The same, and an inode's number as it is now: that of a new file is final when it is committed.
pub fn identify_now(fd: c_int) -> Option<Identity> {
    stat(fd, libc::AT_STATX_FORCE_SYNC)
}

fn stat(fd: c_int, how: c_int) -> Option<Identity> {
    // SAFETY: all zero is one.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | how;
    let mask = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_MNT_ID;
    let args =
        [fd as u64, c"".as_ptr() as u64, flags as u64, u64::from(mask), &raw mut found as u64, 0];
    (call(libc::SYS_statx, args) == 0).then(|| Identity {
        dev: (found.stx_dev_major, found.stx_dev_minor),
        ino: found.stx_ino,
        mount: found.stx_mnt_id,
        kind: u32::from(found.stx_mode) & libc::S_IFMT,
        rdev: (found.stx_rdev_major, found.stx_rdev_minor),
    })
}

/// Text with a number in it, and NUL behind.
pub struct Text {
    bytes: [u8; 64],
    len: usize,
}

impl Text {
    /// Nothing yet.
    pub fn new() -> Text {
        Text { bytes: [0; 64], len: 0 }
    }

    /// With this behind it.
    pub fn and(mut self, more: &[u8]) -> Text {
        for byte in more.iter().take(self.bytes.len() - 1 - self.len) {
            self.bytes[self.len] = *byte;
            self.len += 1;
        }
        self
    }

    /// With this number behind it.
    pub fn number(self, n: u32) -> Text {
        let (mut digits, mut at, mut n) = ([0u8; 10], 10, n);
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.and(&digits[at..])
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

/// Where the kernel says that a descriptor's file is; not ended by anything.
pub fn path_of(fd: c_int, path: &mut [u8]) -> i64 {
    let link = Text::new().and(b"/proc/self/fd/").number(fd as u32);
    let (at, len) = (path.as_mut_ptr() as u64, path.len() as u64);
    call(libc::SYS_readlink, [link.address(), at, len, 0, 0, 0])
}

/// open(2); `path` ends with NUL.
pub fn open(path: &[u8], flags: c_int) -> i64 {
    debug_assert_eq!(path.last(), Some(&0));
    let cwd = libc::AT_FDCWD as u64;
    call(libc::SYS_openat, [cwd, path.as_ptr() as u64, (flags | libc::O_CLOEXEC) as u64, 0, 0, 0])
}

/// A descriptor that does no more than to say what is there, also of a symbolic link; the program
/// gave the address of the path to a call that takes one.
pub fn find(dir: c_int, path: u64) -> i64 {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    call(libc::SYS_openat, [dir as u64, path, flags as u64, 0, 0, 0])
}

/// close(2).
pub fn close(fd: c_int) -> i64 {
    call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0])
}

/// close_range(2).
pub fn close_range(first: u32, last: u32, flags: u32) -> i64 {
    call(libc::SYS_close_range, [first.into(), last.into(), flags.into(), 0, 0, 0])
}

/// A further descriptor, out of the way and closed by execve(2).
pub fn keep(fd: c_int) -> i64 {
    let dup =
        |least| call(libc::SYS_fcntl, [fd as u64, libc::F_DUPFD_CLOEXEC as u64, least, 0, 0, 0]);
    match dup(512) {
        e if e < 0 => dup(3),
        fd => fd,
    }
}

/// dup3(2).
pub fn put(fd: c_int, at: c_int, flags: c_int) -> i64 {
    call(libc::SYS_dup3, [fd as u64, at as u64, flags as u64, 0, 0, 0])
}

/// fcntl(2) with F_GETFL, F_GETFD, F_SETFL, F_GETPIPE_SZ, F_SETPIPE_SZ.
pub fn fcntl(fd: c_int, what: c_int, arg: u64) -> i64 {
    call(libc::SYS_fcntl, [fd as u64, what as u64, arg, 0, 0, 0])
}

/// lseek(2).
pub fn seek(fd: c_int, to: i64, whence: c_int) -> i64 {
    call(libc::SYS_lseek, [fd as u64, to as u64, whence as u64, 0, 0, 0])
}

/// Whether two descriptors of this process are one open file; `pid` is its own.
pub fn same(pid: c_int, a: c_int, b: c_int) -> bool {
    const KCMP_FILE: u64 = 0;
    a == b || call(libc::SYS_kcmp, [pid as u64, pid as u64, KCMP_FILE, a as u64, b as u64, 0]) == 0
}

/// What processes of one transaction have in common: the two ends of a socket, and a file that is a
/// lock.
pub fn row() -> Result<[c_int; 3], i64> {
    let mut ends = [-1 as c_int; 2];
    let how = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
    let args = [libc::AF_UNIX as u64, how, 0, ends.as_mut_ptr() as u64, 0, 0];
    let made = call(libc::SYS_socketpair, args);
    if made < 0 {
        return Err(made);
    }
    // As much as there may be: each pair takes some hundred bytes.
    let room = 1 << 20;
    let args = [
        ends[0] as u64,
        libc::SOL_SOCKET as u64,
        libc::SO_SNDBUF as u64,
        &raw const room as u64,
        size_of::<c_int>() as u64,
        0,
    ];
    call(libc::SYS_setsockopt, args);
    let name = c"systx".as_ptr() as u64;
    let lock = call(libc::SYS_memfd_create, [name, libc::MFD_CLOEXEC.into(), 0, 0, 0, 0]);
    let low = [ends[0], ends[1], lock as c_int];
    let high = low.map(|fd| if fd < 0 { i64::from(fd) } else { keep(fd) });
    low.iter().filter(|fd| **fd >= 0).for_each(|fd| {
        close(*fd);
    });
    match high.iter().find(|fd| **fd < 0) {
        None => Ok(high.map(|fd| fd as c_int)),
        Some(failed) => {
            high.iter().filter(|fd| **fd >= 0).for_each(|fd| {
                close(*fd as c_int);
            });
            Err(if lock < 0 { lock } else { *failed })
        }
    }
}

/// Takes a lock on a file that other processes take, too, or gives it back.
pub fn lock(fd: c_int, taken: bool) -> i64 {
    // SAFETY: all zero is one.
    let mut how: libc::flock = unsafe { std::mem::zeroed() };
    how.l_type = (if taken { libc::F_WRLCK } else { libc::F_UNLCK }) as libc::c_short;
    fcntl(fd, libc::F_SETLKW, &raw mut how as u64)
}

/// Bytes for each pair in a row.
const STEP: usize = 8;

/// Two descriptors on the way through a socket.
#[repr(C)]
struct Passing {
    len: usize,
    level: c_int,
    kind: c_int,
    pair: [c_int; 2],
}

fn message(bytes: &mut libc::iovec, passing: &mut Passing) -> libc::msghdr {
    // SAFETY: all zero is one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = std::ptr::from_mut(bytes);
    message.msg_iovlen = 1;
    message.msg_control = std::ptr::from_mut(passing).cast();
    message.msg_controllen = size_of::<Passing>();
    message
}

/// Adds a pair to a row.
pub fn add_to(row: c_int, pair: [c_int; 2]) -> i64 {
    let mut nothing = [0u8; STEP];
    let mut bytes = libc::iovec { iov_base: nothing.as_mut_ptr().cast(), iov_len: STEP };
    let (level, kind) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let mut passing = Passing { len: size_of::<Passing>(), level, kind, pair };
    let message = message(&mut bytes, &mut passing);
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
    call(libc::SYS_sendmsg, [row as u64, &raw const message as u64, flags, 0, 0, 0])
}

/// Looks at one, which stays there: as new descriptors, out of the way.
pub fn look_at(row: c_int, n: u64) -> Result<[c_int; 2], i64> {
    let at = c_int::try_from(n * STEP as u64).map_err(|_| -i64::from(libc::EINVAL))?;
    let args = [
        row as u64,
        libc::SOL_SOCKET as u64,
        libc::SO_PEEK_OFF as u64,
        &raw const at as u64,
        size_of::<c_int>() as u64,
        0,
    ];
    let set = call(libc::SYS_setsockopt, args);
    if set < 0 {
        return Err(set);
    }
    let mut room = [0u8; STEP];
    let mut bytes = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: STEP };
    let mut passing = Passing { len: 0, level: 0, kind: 0, pair: [-1; 2] };
    let mut message = message(&mut bytes, &mut passing);
    let flags = (libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as u64;
    let got = call(libc::SYS_recvmsg, [row as u64, &raw mut message as u64, flags, 0, 0, 0]);
    if got < 0 {
        return Err(got);
    }
    let low = passing.pair;
    let high = low.map(|fd| if fd < 0 { -i64::from(libc::EMFILE) } else { keep(fd) });
    low.iter().filter(|fd| **fd >= 0).for_each(|fd| {
        close(*fd);
    });
    match high {
        [a, b] if a >= 0 && b >= 0 => Ok([a as c_int, b as c_int]),
        failed => {
            failed.iter().filter(|fd| **fd >= 0).for_each(|fd| {
                close(*fd as c_int);
            });
            Err(-i64::from(libc::EMFILE))
        }
    }
}

/// Ends this process.
pub fn end_process(code: c_int) {
    call(libc::SYS_exit_group, [code as u64, 0, 0, 0, 0, 0]);
}

/// This process.
pub fn pid() -> c_int {
    call(libc::SYS_getpid, [0; 6]) as c_int
}

/// This thread.
pub fn tid() -> c_int {
    call(libc::SYS_gettid, [0; 6]) as c_int
}

/// Sends this very thread a signal.
pub fn signal_me(signal: c_int) {
    call(libc::SYS_tgkill, [pid() as u64, tid() as u64, signal as u64, 0, 0, 0]);
}

/// A call that sends a signal; addresses among `args` are those of a siginfo_t.
pub fn send(number: u64, args: [u64; 6]) -> i64 {
    call(number as c_long, args)
}

/// A descriptor of a process, or of a thread that is no process's first.
pub fn pidfd(pid: c_int) -> i64 {
    const PIDFD_THREAD: c_int = libc::O_EXCL;
    let open = |flags: c_int| call(libc::SYS_pidfd_open, [pid as u64, flags as u64, 0, 0, 0, 0]);
    match open(0) {
        e if e == -i64::from(libc::EINVAL) || e == -i64::from(libc::ENOENT) => open(PIDFD_THREAD),
        fd => fd,
    }
}

/// What tells a process from all others, as long as the machine runs; 0: unknown.
pub fn process(pid: c_int) -> u64 {
    let fd = pidfd(pid);
    if fd < 0 {
        return 0;
    }
    let ino = identify(fd as c_int).map_or(0, |found| found.ino);
    close(fd as c_int);
    ino
}

/// The process of a descriptor of one; 0: unknown.
pub fn pid_of(fd: c_int) -> c_int {
    let path = Text::new().and(b"/proc/self/fdinfo/").number(fd as u32).and(b"\0");
    let file = open(&path.bytes[..path.len], libc::O_RDONLY);
    if file < 0 {
        return 0;
    }
    let mut told = [0u8; 512];
    let args = [file as u64, told.as_mut_ptr() as u64, told.len() as u64, 0, 0, 0];
    let len = call(libc::SYS_read, args);
    close(file as c_int);
    let told = &told[..usize::try_from(len).unwrap_or(0)];
    let mut lines = told.split(|b| *b == b'\n');
    let Some(pid) = lines.find_map(|line| line.strip_prefix(b"Pid:")) else { return 0 };
    let digits = pid.iter().filter(|b| b.is_ascii_digit());
    digits.fold(0i32, |n, b| n.saturating_mul(10).saturating_add(i32::from(b - b'0')))
}

/// The inode behind a path.
pub fn inode_of(path: &Text) -> Option<u64> {
    // SAFETY: all zero is one.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let args = [libc::AT_FDCWD as u64, path.address(), &raw mut found as u64, 0, 0, 0];
    (call(libc::SYS_newfstatat, args) == 0).then_some(found.st_ino)
}

/// Calls `each` with every descriptor that is open.
pub fn each_open(mut each: impl FnMut(c_int)) -> i64 {
    let dir = open(b"/proc/self/fd\0", libc::O_RDONLY | libc::O_DIRECTORY);
    if dir < 0 {
        return dir;
    }
    let mut buffer = [0u8; 1024];
    loop {
        let args = [dir as u64, buffer.as_mut_ptr() as u64, buffer.len() as u64, 0, 0, 0];
        let got = call(libc::SYS_getdents64, args);
        let Some(mut rest) = usize::try_from(got).ok().filter(|n| *n > 0) else { break };
        let mut at = 0;
        while rest >= 19 {
            let len = usize::from(u16::from_ne_bytes([buffer[at + 16], buffer[at + 17]]));
            if len < 19 || len > rest {
                break;
            }
            let name = &buffer[at + 19..at + len];
            let digits = name.iter().take_while(|b| b.is_ascii_digit());
            let number = digits.clone().fold(0i64, |n, b| n * 10 + i64::from(b - b'0'));
            if digits.count() > 0 && number != dir {
                each(number as c_int);
            }
            (at, rest) = (at + len, rest - len);
        }
    }
    close(dir as c_int);
    0
}

/// A word of the program's memory that it gave the address of.
pub fn word(address: u64) -> u64 {
    // SAFETY: the program gave it to a system call that reads it; a bad one is a fault, as in its
    // own code.
    unsafe { (address as *const u64).read_unaligned() }
}

/// Writes one.
pub fn set_word(address: u64, value: u64) {
    // SAFETY: as above, of a call that writes it.
    unsafe { (address as *mut u64).write_unaligned(value) }
}

/// Two descriptors, as pipe(2) gives them.
pub fn pair(address: u64) -> [c_int; 2] {
    // SAFETY: the kernel has just written them there.
    unsafe { (address as *const [c_int; 2]).read_unaligned() }
}

/// Says something on the standard error output.
pub fn say(text: &Text) {
    call(libc::SYS_write, [2, text.address(), text.len as u64, 0, 0, 0]);
}

/// Memory that grows without an allocator.
pub struct Buffer {
    start: *mut u8,
    room: usize,
    len: usize,
}

// SAFETY: the memory is its own.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Nothing.
    pub const fn new() -> Buffer {
        Buffer { start: std::ptr::null_mut(), room: 0, len: 0 }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes room for so many more.
    pub fn reserve(&mut self, more: usize) -> bool {
        let Some(wanted) = self.len.checked_add(more) else { return false };
        if wanted <= self.room {
            return true;
        }
        let Some(room) = wanted.checked_next_power_of_two().map(|n| n.max(64 << 10)) else {
            return false;
        };
        let at = match self.room {
            0 => {
                let (prot, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                call(libc::SYS_mmap, [0, room as u64, prot as u64, flags as u64, u64::MAX, 0])
            }
            old => {
                let args =
                    [self.start as u64, old as u64, room as u64, libc::MREMAP_MAYMOVE as u64, 0, 0];
                call(libc::SYS_mremap, args)
            }
        };
        if at < 0 {
            return false;
        }
        (self.start, self.room) = (at as *mut u8, room);
        true
    }

    /// Appends bytes of the program; there is room.
    pub fn push_from(&mut self, from: u64, len: usize) {
        assert!(len <= self.room - self.len);
        // SAFETY: there is room; the program gave the address to a call that reads it.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, self.start.add(self.len), len) };
        self.len += len;
    }

    /// Appends a word; there is room.
    pub fn push_word(&mut self, word: u64) {
        self.push_from(&raw const word as u64, 8);
    }

    /// A word at a place.
    pub fn word(&self, at: usize) -> u64 {
        self.part(at, 8).try_into().map_or(0, u64::from_ne_bytes)
    }

    /// Bytes at a place.
    pub fn part(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at);
        if len == 0 {
            return &[];
        }
        // SAFETY: they are there.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }

    /// Gives bytes at a place to the program.
    pub fn copy_to(&self, at: usize, len: usize, to: u64) {
        let part = self.part(at, len);
        // SAFETY: the program gave the address to a call that writes it.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to as *mut u8, len) };
    }

    /// Gives the memory back, once: another thread may have memory there at once.
    pub fn clear(&mut self) {
        *self = Buffer::new();
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.room > 0 {
            call(libc::SYS_munmap, [self.start as u64, self.room as u64, 0, 0, 0, 0]);
        }
    }
}

/// What poll(2) says at once.
pub fn poll(fd: c_int) -> libc::c_short {
    wait_for(fd, libc::POLLIN | libc::POLLOUT, 0)
}

fn wait_for(fd: c_int, events: libc::c_short, ms: i64) -> libc::c_short {
    let mut asked = libc::pollfd { fd, events, revents: 0 };
    call(libc::SYS_poll, [&raw mut asked as u64, 1, ms as u64, 0, 0, 0]);
    asked.revents
}

/// Whether it is a terminal.
pub fn is_terminal(fd: c_int) -> bool {
    // More than the kernel's structure has.
    let mut told = [0u64; 16];
    call(libc::SYS_ioctl, [fd as u64, libc::TCGETS, told.as_mut_ptr() as u64, 0, 0, 0]) == 0
}

/// An epoll that says when something comes.
pub fn edges(fd: c_int) -> i64 {
    let low = call(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as u64, 0, 0, 0, 0, 0]);
    if low < 0 {
        return low;
    }
    let epoll = keep(low as c_int);
    close(low as c_int);
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    let add = libc::EPOLL_CTL_ADD as u64;
    let args = [epoll as u64, add, fd as u64, &raw mut event as u64, 0, 0];
    match call(libc::SYS_epoll_ctl, args) {
        e if e < 0 => {
            close(epoll as c_int);
            e
        }
        _ => epoll,
    }
}

/// Waits for it.
pub fn await_edge(epoll: c_int) -> i64 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    call(libc::SYS_epoll_wait, [epoll as u64, &raw mut event as u64, 1, u64::MAX, 0, 0])
}

/// Makes `seen` all that is in a pipe, of which it is the beginning; takes nothing out.
pub fn copy_pipe(pipe: c_int, seen: &mut Buffer) -> i64 {
    let mut ends = [0 as c_int; 2];
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let made = call(libc::SYS_pipe2, [ends.as_mut_ptr() as u64, flags, 0, 0, 0, 0]);
    if made < 0 {
        return made;
    }
    let size = fcntl(pipe, libc::F_GETPIPE_SZ, 0);
    let mut result = fcntl(ends[1], libc::F_SETPIPE_SZ, size as u64).min(0);
    if result == 0 {
        let all =
            [pipe as u64, ends[1] as u64, i32::MAX as u64, libc::SPLICE_F_NONBLOCK.into(), 0, 0];
        let got = call(libc::SYS_tee, all);
        let known = seen.len();
        if got > known as i64 {
            let got = got as usize;
            result = if seen.reserve(got - known) {
                take_out(ends[0], known)
            } else {
                -i64::from(libc::ENOMEM)
            };
            while result >= 0 && seen.len < got {
                // SAFETY: there is room.
                let at = unsafe { seen.start.add(seen.len) } as u64;
                let n =
                    call(libc::SYS_read, [ends[0] as u64, at, (got - seen.len) as u64, 0, 0, 0]);
                if n <= 0 {
                    break;
                }
                seen.len += n as usize;
            }
        }
    }
    let _ = ends.map(close);
    result
}

/// Takes so many bytes out of a pipe that has them.
pub fn take_out(pipe: c_int, len: usize) -> i64 {
    let (mut left, mut bytes) = (len, [0u8; 512]);
    while left > 0 {
        let args = [pipe as u64, bytes.as_mut_ptr() as u64, left.min(bytes.len()) as u64, 0, 0, 0];
        let n = call(libc::SYS_read, args);
        if n <= 0 {
            return n.min(-1);
        }
        left -= n as usize;
    }
    0
}

/// Writes all, however long it takes; whether it could.  All signals are blocked.
pub fn write_all(fd: c_int, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let args = [fd as u64, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0];
        match call(libc::SYS_write, args) {
            n if n > 0 => bytes = &bytes[(n as usize).min(bytes.len())..],
            n if n == -i64::from(libc::EAGAIN) => drop(wait_for(fd, libc::POLLOUT, -1)),
            n if n == -i64::from(libc::EPIPE) => {
                // The signal for it is that of a call which the program did not make now.
                let (set, none) = (1u64 << (libc::SIGPIPE - 1), [0u64; 2]);
                call(
                    libc::SYS_rt_sigtimedwait,
                    [&raw const set as u64, 0, none.as_ptr() as u64, 8, 0, 0],
                );
                return false;
            }
            _ => return false,
        }
    }
    true
}
