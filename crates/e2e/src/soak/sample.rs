//! What is looked at in a quiet moment.

use crate::lab::guard_mounts;
use crate::run::HANG;
use crate::{Lab, kernel_is};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Of one process, or of several together.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Resident memory in KiB.
    pub memory: u64,
    /// Threads.
    pub threads: u64,
    /// Open descriptors by what they are of.
    pub kinds: BTreeMap<String, u64>,
}

impl Process {
    /// Open descriptors.
    pub fn descriptors(&self) -> u64 {
        self.kinds.values().sum()
    }

    fn add(&mut self, lab: &Lab, pid: u32) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let number = |key: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        self.memory += number("VmRSS:");
        self.threads += number("Threads:");
        add_kinds(lab, pid, &mut self.kinds);
    }
}

/// What was seen in a quiet moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Seconds since the beginning.
    pub second: u64,
    /// Which daemon, from 0.
    pub life: usize,
    /// The daemon.
    pub daemon: Process,
    /// The programs whose threads live as long as the soak.
    pub programs: Process,
    /// Mounts of systx in the lab.
    pub mounts: u64,
    /// Open transactions.
    pub open: u64,
    /// What the daemon tells of what it remembers: numbers of `systx top --json`, all directories
    /// together.
    pub remembered: BTreeMap<&'static str, u64>,
    /// The journal, in KiB.
    pub journal: u64,
    /// What else is below the store's directory, in KiB.
    pub store: u64,
    /// Inodes of the file system.
    pub inodes: u64,
    /// Names in the daemon's directories.
    pub runtime: u64,
    /// Transactions committed in this life.
    pub committed: u64,
}

/// Numbers of a volume, of those that are open.
pub const OF_VOLUMES: [&str; 4] = ["inodes", "names", "snapshots", "past"];
/// Numbers of a guarded directory.
pub const OF_DIRECTORIES: [&str; 3] = ["nodes", "seats", "members"];

/// Waits until nothing is open any more, then looks.  `programs`: those that live.
pub fn quiet(lab: &Lab, programs: &[u32]) -> Sample {
    if !kernel_is(6, 18) {
        // It cannot be told that nobody finds some of its names any more, and keeps them until it
        // needs the memory.
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "2");
    }
    let deadline = Instant::now() + HANG;
    let mut last = look(lab, programs);
    // Views go when the last descriptor in them is closed, their threads a moment later; of that
    // nobody is told.
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = look(lab, programs);
        let all = |s: &Sample| {
            let (daemon, programs) = (s.daemon.descriptors(), s.programs.descriptors());
            (daemon, programs, s.daemon.threads, s.mounts, s.open, s.remembered.clone())
        };
        if all(&now) == all(&last) && now.open == 0 {
            return now;
        }
        assert!(Instant::now() < deadline, "it never gets quiet: {now:?}");
        last = now;
    }
}

fn look(lab: &Lab, programs: &[u32]) -> Sample {
    let mut sample = Sample { open: lab.open_ids().len() as u64, ..Sample::default() };
    sample.daemon.add(lab, *lab.daemons().first().expect("a daemon"));
    for pid in programs {
        sample.programs.add(lab, *pid);
    }
    let top = lab.do_systx(["top", "--once", "--json"]).ok().json();
    for volume in list(&top["top"]["volumes"]) {
        sample.committed += number(&volume["counts"]["committed"]);
        for name in OF_VOLUMES {
            *sample.remembered.entry(name).or_default() += number(&volume["remembered"][name]);
        }
        for guarded in list(&volume["guarded"]) {
            for name in OF_DIRECTORIES {
                *sample.remembered.entry(name).or_default() += number(&guarded[name]);
            }
        }
    }
    let dir = lab.root().parent().expect("the lab's").to_owned();
    let store = lab.path(".systx");
    sample.mounts = guard_mounts(&dir).len() as u64;
    sample.journal = allocated(&store.join("j")) / 1024;
    sample.store = allocated(&store) / 1024 - sample.journal;
    let disk = rustix::fs::statvfs(lab.root()).expect("it is mounted");
    sample.inodes = disk.f_files - disk.f_ffree;
    sample.runtime = ["run", "run-guests"].map(|sub| names(&dir.join(sub))).iter().sum();
    sample
}

fn list(of: &Value) -> &[Value] {
    of.as_array().map_or(&[], Vec::as_slice)
}

#[track_caller]
fn number(of: &Value) -> u64 {
    of.as_u64().expect("`systx top` tells it")
}

/// The journal's ring: each segment is opened when it is first reached, and there are few.
pub const SEGMENT: &str = "/.systx/j/N";

/// What a process has open, by the names without their numbers.
fn add_kinds(lab: &Lab, pid: u32, kinds: &mut BTreeMap<String, u64>) {
    let here = lab.root().to_string_lossy().into_owned();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(target) = std::fs::read_link(fd.path()) else { continue };
        let target = target.to_string_lossy().replace(&here, "");
        *kinds.entry(without_numbers(&target)).or_insert(0) += 1;
    }
}

/// Each number is `N`, each word of eight hexadecimal digits and more is `ID`.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let plain = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if plain.len() >= 8 && plain.bytes().all(|b| b.is_ascii_hexdigit()) {
            out += "ID";
        } else {
            for c in plain.chars() {
                match c {
                    '0'..='9' if out.ends_with('N') => {}
                    '0'..='9' => out.push('N'),
                    c => out.push(c),
                }
            }
        }
        out += &word[plain.len()..];
    }
    out
}

/// Bytes that are allocated below a directory.
fn allocated(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => allocated(&entry.path()),
            Ok(meta) => meta.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// Names below a directory, but for what is mounted there.
fn names(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| path.symlink_metadata().map(|meta| meta.dev()).ok();
    let own = device(dir);
    let below = |entry: std::fs::DirEntry| {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        1 + if is_dir && device(&entry.path()) == own { names(&entry.path()) } else { 0 }
    };
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(below).sum()
}
