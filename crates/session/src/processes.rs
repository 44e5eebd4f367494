//! The processes that descend from this one, as /proc tells.
//!
//! This process is a subreaper: whoever loses their parent becomes its child, so that daemonised
//! processes stay in the tree.  "No child left" (`ECHILD` from wait) therefore means that nobody is
//! left, without a look at /proc.

use rustix::process::{Pid, Signal};
use std::collections::HashMap;
use systx_base::proc::{Stat, status};

/// One process of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name as in `ps -o comm`.
    pub name: String,
    /// Parent.
    pub parent: u32,
    /// State letter; `Z` for a zombie.
    pub state: char,
}

/// Every living descendant of `ancestor`, parents before children.
pub fn descendants(ancestor: u32) -> Vec<Process> {
    let mut by_parent: HashMap<u32, Vec<Process>> = HashMap::new();
    let entries = match std::fs::read_dir("/proc") {
        Ok(entries) => entries,
        Err(_) => return Vec::new(),
    };
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(process) = pid.and_then(look) {
            by_parent.entry(process.parent).or_default().push(process);
        }
    }
    let mut all: Vec<Process> = by_parent.remove(&ancestor).unwrap_or_default();
    let mut at = 0;
    while let Some(process) = all.get(at) {
        let children = by_parent.remove(&process.pid).unwrap_or_default();
        all.extend(children);
        at += 1;
    }
    all.retain(|p| p.state != 'Z');
    all
}

/// The mount namespace of this process.
pub(crate) fn mount_namespace() -> Option<u64> {
    namespace_of("self")
}

fn namespace_of(process: &str) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{process}/ns/mnt")).ok().map(|meta| meta.ino())
}

/// The living descendants of this process that are a run's.  `others`: the mount namespace of those
/// that are not, if there may be any; nobody in a run is in it, and whom this user may not look at
/// is of no run of theirs.
pub(crate) fn of_the_run(others: Option<u64>) -> Vec<Process> {
    let mut all = descendants(std::process::id());
    if let Some(others) = others {
        let is_ours = |pid: u32| namespace_of(&pid.to_string()).is_some_and(|ns| ns != others);
        all.retain(|process| is_ours(process.pid));
    }
    all
}

/// How often the threads of a process have gone to sleep: as long as that is the same, none has run
/// in
/// between.  `None` if one runs, or the process is gone.
pub(crate) fn sleeps_of(pid: u32) -> Option<u64> {
    let mut all = 0u64;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = std::fs::read(thread.ok()?.path().join("status")).ok()?;
        let text = String::from_utf8_lossy(&text);
        let value = |name: &str| status(&text, name);
        if value("State")?.starts_with('R') {
            return None;
        }
        for count in ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"] {
            all = all.wrapping_add(value(count)?.parse().ok()?);
        }
    }
    Some(all)
}

/// One process; `None` if it is gone.
pub fn look(pid: u32) -> Option<Process> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&stat)
}

fn parse(stat: &[u8]) -> Option<Process> {
    let stat = Stat::read(stat)?;
    let name = String::from_utf8_lossy(stat.name).into_owned();
    Some(Process { pid: stat.pid, name, parent: stat.parent()?, state: stat.state()? })
}

/// Signals every process of the list.  Between the look and the signal a pid could be reused only
/// if its owner ended and this process, its parent or its parent's reaper, had waited for it.
pub fn signal_all(processes: &[Process], signal: Signal) {
    for process in processes {
        if let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let p = parse(b"42 (a) R 7 (x)) S 17 42 42 0 -1").unwrap();
        assert_eq!(p, Process { pid: 42, name: "a) R 7 (x)".into(), parent: 17, state: 'S' });
        assert_eq!(parse(b"42 (a"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_child_is_found_with_its_child() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "cat; true"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The grandchild exists once the shell has forked; `cat` then blocks on our pipe.
        let found = loop {
            let found = descendants(std::process::id());
            if found.iter().any(|p| p.parent == child.id() && p.name == "cat") {
                break found;
            }
            std::thread::yield_now();
        };
        // By their ids: other tests of this process have children of these names, too.
        let child_at = found.iter().position(|p| p.pid == child.id());
        let its_child_at = found.iter().position(|p| p.parent == child.id());
        assert!(child_at.is_some() && child_at < its_child_at, "{found:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(look(child.id()), None);
    }
}
