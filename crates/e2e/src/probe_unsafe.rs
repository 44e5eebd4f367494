//! A command that tells what it sees of itself, and does what its arguments say, one after the
//! other.  It reports over descriptor [`REPORT`], a line `name=value` each, so that it can tell
//! whatever its standard descriptors are.

#![allow(unsafe_code)]

use crate::begin::{self, Change, REPORT, Step};
use std::ffi::{CString, OsString};
use std::io::{Error, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

/// `F_GETFL` of descriptors 0 to 2, before the Rust runtime has opened those that are closed; -1:
/// closed.
static FLAGS: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];
/// Bit n: signal n was ignored before the Rust runtime has ignored one.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Where a [`shell`] is told what to do.
pub const CONTROL: i32 = 101;

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: asks, and changes nothing.
    unsafe {
        for (fd, flags) in (0..3).zip(&FLAGS) {
            flags.store(libc::fcntl(fd, libc::F_GETFL), Relaxed);
        }
        for signal in 1..=63 {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut now);
            if now.sa_sigaction == libc::SIG_IGN {
                IGNORED.fetch_or(1 << signal, Relaxed);
            }
        }
    }
}

fn report(name: &str, value: impl std::fmt::Display) {
    let line = format!("{name}={value}\n");
    // SAFETY: writes that line; one write, so lines of several processes do not mix.
    unsafe { libc::write(REPORT, line.as_ptr().cast(), line.len()) };
}

fn errno() -> String {
    format!("errno {}", Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Does what the arguments say; its exit code.
pub fn main() -> i32 {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Those for which the Rust runtime has handlers.
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    for (at, word) in words.iter().enumerate() {
        let word = word.to_str().unwrap_or("?");
        let (what, value) = word.split_once('=').unwrap_or((word, ""));
        let number = value.parse::<i32>().unwrap_or(0);
        match what {
            "state" => state(),
            "say" => report("said", value),
            "exit" => return number,
            "die" => die(number),
            // SAFETY: no memory.
            "stop" => drop(unsafe { libc::raise(number) }),
            "record" => block_all(),
            "until" => until(number),
            "read" => read_all(),
            "line" => read_line(),
            "write" => write_out(value),
            "make" => report("made", std::fs::write(value, "made\n").is_ok()),
            "orphan" => orphan(),
            "daemon" => daemon(),
            // SAFETY: no memory.
            "group" => drop(unsafe { libc::kill(0, number) }),
            // SAFETY: waits for a signal.
            "wait" => drop(unsafe { libc::pause() }),
            "child" => wait_for_a_child(),
            // SAFETY: no memory.
            "session" if unsafe { libc::setsid() } < 0 => report("session", errno()),
            "session" => report("session", "new"),
            "shell" => return shell(&words[at + 1..]),
            other => report("unknown", other),
        }
    }
    0
}

fn die(signal: i32) {
    // SAFETY: the set lives through the calls; no handler is installed.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// All signals of the set that a function of the C library fills.
fn signals(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> i32) -> String {
    // SAFETY: the function writes to the set.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        fill(&raw mut set);
        set
    };
    // SAFETY: reads the set.
    let has = |signal: &i32| unsafe { libc::sigismember(&raw const set, *signal) == 1 };
    format!("{:?}", (1..=64).filter(has).collect::<Vec<_>>())
}

unsafe extern "C" fn blocked(set: *mut libc::sigset_t) -> i32 {
    // SAFETY: the caller gives a set.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), set) }
}

unsafe extern "C" fn pending(set: *mut libc::sigset_t) -> i32 {
    // SAFETY: the caller gives a set.
    unsafe { libc::sigpending(set) }
}

fn block_all() {
    // SAFETY: the set lives as long as the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
    report("recording", "");
}

/// Tells each blocked signal that comes, until this one has.
fn until(last: i32) {
    loop {
        // SAFETY: the set and the answer live as long as the calls.
        let (signal, code, value) = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut set);
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&raw const set, &raw mut info);
            let queued = info.si_code == libc::SI_QUEUE;
            (signal, info.si_code, if queued { info.si_value().sival_ptr as usize } else { 0 })
        };
        // Of children and of being continued is told, or not, at various times.
        if signal > 0 && ![libc::SIGCHLD, libc::SIGCONT].contains(&signal) {
            let by = if code > 0 { "kernel" } else { "process" };
            report("got", format_args!("{signal} {by} {value}"));
        }
        if signal == last {
            return;
        }
    }
}

fn read_all() {
    let mut text = Vec::new();
    match std::io::stdin().read_to_end(&mut text) {
        Ok(_) => report("read", format_args!("{:?}", String::from_utf8_lossy(&text))),
        Err(e) => report("read", format_args!("errno {}", e.raw_os_error().unwrap_or(0))),
    }
}

fn read_line() {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(_) => report("line", format_args!("{line:?}")),
        Err(e) => report("line", format_args!("errno {}", e.raw_os_error().unwrap_or(0))),
    }
}

fn write_out(text: &str) {
    let mut out = std::io::stdout();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n"));
    match done.and_then(|()| out.flush()) {
        Ok(()) => report("wrote", "all"),
        Err(e) => report("wrote", format_args!("errno {}", e.raw_os_error().unwrap_or(0))),
    }
}

/// Goes on in a child whose parent has ended.
fn orphan() {
    // SAFETY: this process has one thread.
    unsafe {
        let parent = libc::getpid();
        if libc::fork() > 0 {
            libc::_exit(0);
        }
        while libc::getppid() == parent {
            libc::sched_yield();
        }
    }
    report("orphan", "");
}

/// Goes on as daemons do: twice forked, in a session of its own, its standard descriptors
/// elsewhere.
fn daemon() {
    // SAFETY: this process has one thread.
    unsafe {
        if libc::fork() > 0 {
            libc::_exit(0);
        }
        libc::setsid();
        if libc::fork() > 0 {
            libc::_exit(0);
        }
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..3 {
            libc::dup2(null, fd);
        }
        libc::close(null);
    }
    report("daemon", "");
}

/// A child that exits with 3, and what wait(2) says of it.
fn wait_for_a_child() {
    // SAFETY: this process has one thread; writes to the status.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(3);
        }
        let mut status = 0;
        match libc::waitpid(child, &raw mut status, 0) {
            got if got == child => {
                report("child", format_args!("exit {}", libc::WEXITSTATUS(status)))
            }
            _ => report("child", errno()),
        }
    }
}

/// A shell with job control: starts the job in the foreground of its terminal, tells what becomes
/// of it, and does what [`CONTROL`] says: `fg`, `bg`, or a number, a signal for the job's group.
fn shell(job: &[OsString]) -> i32 {
    let text = |s: &OsString| CString::new(s.as_bytes()).expect("no zero in it");
    let argv: Vec<CString> = job.iter().map(text).collect();
    let env: Vec<CString> =
        std::env::vars_os().map(|(name, value)| text(&[name, value].join("=".as_ref()))).collect();
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
    let keep =
        [Step::Dup(REPORT, REPORT + 10), Step::Dup(REPORT + 10, REPORT), Step::Close(REPORT + 10)];
    let steps = [&keep[..], &[Step::Group, Step::Foreground]].concat();
    let begun = begin::begin(&steps, &argv[0], &argv, &env);
    report("job", begun.id());
    // SAFETY: a descriptor of this process, used here only.
    let mut control = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(CONTROL) };
    let mine = |group: u32| {
        // SAFETY: no memory.
        unsafe { libc::tcsetpgrp(0, group as i32) };
    };
    // SAFETY: no memory.
    let own = unsafe { libc::getpgrp() }.unsigned_abs();
    loop {
        match begun.next() {
            change @ (Change::Exited(_) | Change::Signaled(..)) => {
                mine(own);
                report("job", format_args!("{change:?}"));
                return 0;
            }
            Change::Continued => {}
            change @ Change::Stopped(_) => {
                mine(own);
                report("job", format_args!("{change:?}"));
                let mut word = [0; 2];
                if control.read_exact(&mut word).is_err() {
                    return 1;
                }
                if &word == b"fg" {
                    mine(begun.id());
                }
                let signal = std::str::from_utf8(&word).ok().and_then(|w| w.parse().ok());
                if let Some(signal) = signal {
                    begun.signal_group(signal);
                }
                begun.signal_group(libc::SIGCONT);
            }
        }
    }
}

/// Everything that a program can see of the state that it was started in.
fn state() {
    let args: Vec<OsString> = std::env::args_os().collect();
    report("argv0", format_args!("{:?}", args.first()));
    report(
        "cwd",
        std::env::current_dir().map_or_else(
            |e| format!("errno {}", e.raw_os_error().unwrap_or(0)),
            |path| path.display().to_string(),
        ),
    );
    report("pid", std::process::id());
    identities();
    signal_state();
    descriptors();
    environment();
    limits();
    scheduling();
    places();
    terminal();
}

fn identities() {
    // SAFETY: no memory, but for the numbers that are written.
    unsafe {
        report("parent", libc::getppid());
        report("group", libc::getpgrp());
        report("session", libc::getsid(0));
        let (mut real, mut effective, mut saved) = (0, 0, 0);
        libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved);
        report("uids", format_args!("{real} {effective} {saved}"));
        libc::getresgid(&raw mut real, &raw mut effective, &raw mut saved);
        report("gids", format_args!("{real} {effective} {saved}"));
        let mut groups = [0; 256];
        let n = libc::getgroups(256, groups.as_mut_ptr());
        report("groups", format_args!("{:?}", &groups[..n.max(0) as usize]));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"] {
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        report(name, line.unwrap_or("none").trim());
    }
    for name in ["loginuid", "sessionid", "coredump_filter", "oom_score_adj", "cgroup", "comm"] {
        let text = std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        report(name, format_args!("{:?}", text.trim_end()));
    }
}

fn signal_state() {
    let ignored = IGNORED.load(Relaxed);
    let ignored: Vec<i32> = (1..64).filter(|s| ignored & (1 << s) != 0).collect();
    report("ignored", format_args!("{ignored:?}"));
    report("blocked", signals(blocked));
    report("pending", signals(pending));
    // SAFETY: the answers are written to memory of this function.
    unsafe {
        let mut timer: libc::itimerval = std::mem::zeroed();
        libc::getitimer(libc::ITIMER_REAL, &raw mut timer);
        let runs = timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0;
        report("timer", if runs { "runs" } else { "none" });
        let mut signal = 0;
        libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal);
        report("death-signal", signal);
        let mut reaper = 0;
        libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut reaper);
        report("reaper", reaper);
    }
}

fn descriptors() {
    // SAFETY: asks, and writes to the answer.
    let describe = |fd: i32, flags: i32| unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &raw mut stat);
        let kind = stat.st_mode & libc::S_IFMT;
        let at = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let at =
            Some(at.display().to_string()).filter(|at| at.starts_with('/')).unwrap_or_default();
        // Which one it is says nothing.
        let terminal = at.starts_with("/dev/pts/");
        let at = if terminal { "a terminal".to_owned() } else { at };
        let device = if terminal { 0 } else { stat.st_rdev };
        let place = libc::lseek(fd, 0, libc::SEEK_CUR);
        let on_exec = libc::fcntl(fd, libc::F_GETFD);
        report(
            &format!("fd {fd}"),
            format_args!(
                "kind {kind:o} device {device:x} flags {flags:o} {on_exec} at {place} {at}"
            ),
        );
    };
    for (fd, flags) in (0..3).zip(&FLAGS) {
        match flags.load(Relaxed) {
            -1 => report(&format!("fd {fd}"), "closed"),
            flags => describe(fd, flags),
        }
    }
    for fd in (3..1024).filter(|fd| ![REPORT, CONTROL, begin::LEASH].contains(fd)) {
        // SAFETY: only asks.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags >= 0 {
            describe(fd, flags);
        }
    }
}

fn environment() {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut all = Vec::new();
    // SAFETY: as the kernel has made it: texts, and a null at the end.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            all.push(std::ffi::CStr::from_ptr(*at).to_string_lossy().into_owned());
            at = at.add(1);
        }
    }
    let of_systx = |line: &String| line.starts_with("SYSTX_TXN=");
    report("transaction", all.iter().filter(|line| of_systx(line)).count());
    // What a shell calls the command that it has just started.
    all.retain(|line| !of_systx(line) && !line.starts_with("_="));
    let path = all.iter().find_map(|line| line.strip_prefix("PATH=")).unwrap_or("none");
    report("path", path);
    all.iter_mut().filter(|line| line.starts_with("PATH=")).for_each(|line| *line = "PATH".into());
    let length = all.iter().map(String::len).sum::<usize>();
    all.iter_mut().for_each(|line| line.truncate(200));
    report("environment", format_args!("{length} {all:?}"));
}

fn limits() {
    for resource in 0..16 {
        // SAFETY: writes to the answer.
        unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(resource as _, &raw mut limit) == 0 {
                let text = format!("{} {}", limit.rlim_cur, limit.rlim_max);
                report(&format!("limit {resource}"), text);
            }
        }
    }
    // SAFETY: no memory.
    let umask = unsafe { libc::umask(0) };
    // SAFETY: as above.
    unsafe { libc::umask(umask) };
    report("umask", format_args!("{umask:o}"));
}

fn scheduling() {
    // SAFETY: asks, and writes to the answer.
    unsafe {
        report("nice", libc::getpriority(libc::PRIO_PROCESS, 0));
        report("policy", libc::sched_getscheduler(0));
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        let all: Vec<usize> = (0..64).filter(|n| libc::CPU_ISSET(*n, &set)).collect();
        report("processors", format_args!("{all:?}"));
        report("io-priority", libc::syscall(libc::SYS_ioprio_get, 1, 0));
        report("personality", libc::personality(0xffff_ffff));
        report("timer-slack", libc::prctl(libc::PR_GET_TIMERSLACK));
        report("securebits", libc::prctl(libc::PR_GET_SECUREBITS));
        report("keeps-capabilities", libc::prctl(libc::PR_GET_KEEPCAPS));
        report("dumpable", libc::prctl(libc::PR_GET_DUMPABLE));
        report("huge-pages-off", libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0));
    }
}

fn places() {
    for name in ["mnt", "user", "pid", "net", "ipc", "uts", "cgroup", "time"] {
        let link = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
        report(&format!("namespace {name}"), link.display());
    }
    report("root", std::fs::read_link("/proc/self/root").unwrap_or_default().display());
    report("program", std::fs::read_link("/proc/self/exe").unwrap_or_default().display());
}

fn terminal() {
    // SAFETY: asks, and writes to the answers.
    unsafe {
        let fd = libc::open(c"/dev/tty".as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        if fd < 0 {
            report("terminal", errno());
            return;
        }
        report("foreground", libc::tcgetpgrp(fd));
        let mut modes: libc::termios = std::mem::zeroed();
        libc::tcgetattr(fd, &raw mut modes);
        let libc::termios { c_iflag, c_oflag, c_cflag, c_lflag, .. } = modes;
        let mut size: libc::winsize = std::mem::zeroed();
        libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size);
        let text = format!(
            "{c_iflag:o} {c_oflag:o} {c_cflag:o} {c_lflag:o} {} {}",
            size.ws_row, size.ws_col
        );
        report("terminal", text);
        libc::close(fd);
    }
}
