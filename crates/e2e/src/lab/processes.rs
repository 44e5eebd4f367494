//! The processes of a lab: those that have its runtime directory in their environment.

use super::RUNTIME_VARIABLE;
use crate::run::wait_readable;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Ends processes for good and waits until they are gone.
pub(crate) fn end(pids: &[u32]) {
    let fds: Vec<_> = pids
        .iter()
        .filter_map(|pid| {
            let named = rustix::process::Pid::from_raw(i32::try_from(*pid).ok()?)?;
            let flags = rustix::process::PidfdFlags::empty();
            Some((*pid, rustix::process::pidfd_open(named, flags).ok()?))
        })
        .collect();
    for (_, fd) in &fds {
        let _ = rustix::process::pidfd_send_signal(fd, rustix::process::Signal::KILL);
    }
    let limit = Instant::now() + Duration::from_secs(60);
    for (pid, fd) in &fds {
        while !wait_readable(fd, Instant::now() + Duration::from_secs(5)) {
            // Whoever comes next cuts it off.
            if waits_for_itself(*pid) || limit < Instant::now() {
                eprintln!("a killed process does not end");
                break;
            }
        }
    }
}

/// Whether a thread of a killed daemon waits in the kernel for an answer of a FUSE mount, which is
/// its own.
fn waits_for_itself(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let wchan = |task: fs::DirEntry| fs::read_to_string(task.path().join("wchan"));
    tasks.filter_map(|task| wchan(task).ok()).any(|wchan| wchan == "request_wait_answer")
}

/// A process may hand its work to one that it starts, and end, while the list is read: what is new
/// is looked at until nothing is new.  So all that live when this returns have been looked at.  A
/// list says nothing if the numbers began again meanwhile: what is started may have one that the
/// list is past.
pub(crate) fn processes_with(runtime: &Path) -> Vec<u32> {
    let wanted =
        [RUNTIME_VARIABLE.as_bytes(), b"=", runtime.as_os_str().as_encoded_bytes()].concat();
    let mut looked_at = BTreeSet::from([std::process::id()]);
    let mut found = Vec::new();
    loop {
        let before = last_started();
        let new: Vec<_> = processes().filter(|pid| looked_at.insert(*pid)).collect();
        if new.is_empty() && last_started() >= before {
            return found;
        }
        found.extend(new.into_iter().filter(|pid| {
            let environ = environment(&Path::new("/proc").join(pid.to_string()));
            environ.split(|b| *b == 0).any(|v| v == wanted)
        }));
    }
}

/// The number of the process or thread that was started last.
fn last_started() -> u32 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().last().and_then(|last| last.parse().ok()).unwrap_or(0)
}

/// All of the machine.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The environment of a process, by its directory in `/proc`. The kernel shows none while a program
/// is executed: a daemon that its keeper is just starting would not be found, and live on.
fn environment(process: &Path) -> Vec<u8> {
    let limit = Instant::now() + Duration::from_secs(1);
    loop {
        let found = read_at_once(&process.join("environ")).unwrap_or_default();
        // A thread of the kernel, and what is only waited for, has no program.
        let runs = || fs::read_link(process.join("exe")).is_ok();
        if !found.is_empty() || !runs() || Instant::now() > limit {
            return found;
        }
        std::thread::yield_now();
    }
}

/// A text of one program.  One read(2) gets that of one program; if the process executes another
/// one meanwhile, several reads get a part (`environ`) or parts of both (`cmdline`).
pub(crate) fn read_at_once(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = vec![0; 32 << 10];
    loop {
        let size = fs::File::open(path)?.read(&mut text)?;
        if size < text.len() {
            text.truncate(size);
            return Ok(text);
        }
        text.resize(2 * size, 0);
    }
}
