//! Whether a transaction's threads wait for something that another program may have to give: a lock
//! of threads, a pipe, a socket, a lock of a file, or time.
//!
//! Looked at in /proc, and only when somebody is about to lose to the transaction
//! (`systx_txn::Engine::defer_while`). Who cannot be looked at is taken to be at work.

use crate::processes::ids;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

/// Numbers of system calls (x86-64) that wait, and what for.
const WAITS: &[(i64, &str)] = &[
    (7, "poll"),
    (23, "poll"),
    (34, "a signal"),
    (35, "time"),
    (43, "a socket"),
    (45, "a socket"),
    (47, "a socket"),
    (73, "a file lock"),
    (128, "a signal"),
    (130, "a signal"),
    (202, "a futex"),
    (230, "time"),
    (232, "poll"),
    (270, "poll"),
    (271, "poll"),
    (281, "poll"),
    (288, "a socket"),
    (449, "a futex"),
    (455, "a futex"),
];

/// Those that wait if their first argument is a pipe or a socket.
const STREAMS: &[i64] = &[0, 1, 17, 18, 19, 20, 42, 44, 46, 275, 276, 299, 307];

/// `fcntl`, and its commands that wait for a lock.
const FCNTL: i64 = 72;
const LOCKS: [i64; 2] = [7, 38];

/// What a thread waits for.
pub fn waits_for(pid: u32, tid: u32) -> Option<&'static str> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let (number, args) = called(&text)?;
    if let Some((_, what)) = WAITS.iter().find(|(n, _)| *n == number) {
        return Some(what);
    }
    if number == FCNTL && args.get(1).is_some_and(|cmd| LOCKS.contains(cmd)) {
        return Some("a file lock");
    }
    if !STREAMS.contains(&number) {
        return None;
    }
    let file = fs::metadata(format!("/proc/{pid}/fd/{}", args.first()?)).ok()?.file_type();
    match () {
        () if file.is_fifo() => Some("a pipe"),
        () if file.is_socket() => Some("a socket"),
        () if file.is_char_device() => Some("a terminal"),
        () => None,
    }
}

/// A line of `/proc/PID/task/TID/syscall`: `running`, or a number and arguments, or -1 outside of
/// every call.
fn called(line: &str) -> Option<(i64, Vec<i64>)> {
    let mut fields = line.split_whitespace();
    let number = fields.next()?.parse().ok().filter(|n| *n >= 0)?;
    let hex = |field: &str| u64::from_str_radix(field.strip_prefix("0x")?, 16).ok();
    Some((number, fields.map_while(hex).map(|n| n as i64).collect()))
}

fn namespace(pid: u32, tid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/task/{tid}/ns/mnt")).ok()?.ino())
}

/// What everybody in the transaction of a thread waits for; `None` if somebody is at work.
///
/// The others are those in the same mount namespace, if it is not the one of everybody.
pub fn all_wait_for(tid: u32) -> Option<&'static str> {
    let what = waits_for(tid, tid)?;
    let own = namespace(tid, tid)?;
    let everybody = fs::metadata("/proc/self/ns/mnt").ok()?.ino();
    if own == everybody {
        return Some(what);
    }
    let process = |pid: u32| fs::metadata(format!("/proc/{pid}/task/{tid}")).is_ok();
    let mut looked = HashSet::from([tid]);
    for pid in ids("/proc") {
        // Threads of one process may be in several; of others the first one tells.
        if namespace(pid, pid) != Some(own) && !process(pid) {
            continue;
        }
        for other in ids(&format!("/proc/{pid}/task")) {
            let inside = namespace(pid, other) == Some(own);
            if looked.insert(other) && inside && waits_for(pid, other).is_none() {
                return None;
            }
        }
    }
    Some(what)
}

/// How often, and in what steps, it is looked whether somebody goes on waiting.
const LOOKS: (u32, Duration) = (10, Duration::from_millis(10));

/// As [`all_wait_for`], of those who wait for a while: a thread of a loaded program that is not let
/// run for a moment, by its runtime or by a short lock, does not count.
pub fn all_keep_waiting_for(tid: u32) -> Option<&'static str> {
    let mut what = all_wait_for(tid)?;
    for _ in 1..LOOKS.0 {
        std::thread::sleep(LOOKS.1);
        what = waits_for(tid, tid)?;
    }
    all_wait_for(tid).and(Some(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[test]
    fn calls_are_read_as_the_kernel_tells_them() {
        assert_eq!(called("running\n"), None);
        assert_eq!(called("-1 0x7ffc 0x7f00\n"), None);
        assert_eq!(
            called("0 0x5 0x7f 0x1 0x0 0x0 0x0 0x7f 0x7f\n").map(|c| (c.0, c.1[0])),
            Some((0, 5))
        );
        assert_eq!(called(""), None);
        assert_eq!(called("202").map(|c| c.0), Some(202));
    }

    #[test]
    fn a_thread_that_reads_an_empty_pipe_waits_and_one_that_works_does_not() {
        let (read, write) = std::io::pipe().expect("a pipe");
        let (say, hear) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            say.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).expect("heard");
            let mut read = read;
            let _ = std::io::Read::read(&mut read, &mut [0]);
        });
        let tid = hear.recv().expect("said");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while waits_for(std::process::id(), tid) != Some("a pipe") {
            assert!(std::time::Instant::now() < until, "never");
            std::thread::yield_now();
        }
        drop(write);
        thread.join().expect("it ends");
        // Another one than who asks: that one is just reading what it asks for.
        let (spins, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (say, hear) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (spins, stop) = (&spins, &stop);
            scope.spawn(move || {
                say.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).expect("heard");
                while !stop.load(SeqCst) {
                    spins.store(true, SeqCst);
                }
            });
            let tid = hear.recv().expect("said");
            while !spins.load(SeqCst) {
                std::thread::yield_now();
            }
            let what = waits_for(std::process::id(), tid);
            stop.store(true, SeqCst);
            assert_eq!(what, None);
        });
    }
}
