//! A bounded soak: mixed load on guarded and plain directories, in cycles of equal work, with a look at the
//! daemon between them.
//!
//! Nothing may grow without bound: memory, descriptors and threads of the daemon, mounts, open transactions, what
//! the store keeps for undo after `systx gc`.  Between the cycles nothing is open, so that quiet moments after equal
//! work are compared.  A life of the daemon lasts some cycles, then it is killed and has to come back.

use crate::Lab;
use crate::lab::guard_mounts;
use crate::run::{Finished, HANG, Limits, Running};
use crate::{CONFLICT, OUTSIDE};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long, and how long one daemon lives.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// In all.
    pub time: Duration,
    /// Cycles until the daemon is killed.
    pub life: usize,
}

/// What was seen in a quiet moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Seconds since the beginning.
    pub second: u64,
    /// Which daemon, from 0.
    pub life: usize,
    /// Resident memory in KiB.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// These by what they are of.
    pub kinds: BTreeMap<String, usize>,
    /// Threads.
    pub threads: usize,
    /// Mounts of systx in the lab.
    pub mounts: usize,
    /// Open transactions.
    pub open: usize,
    /// Bytes below the store's directory that are allocated, in KiB.
    pub store: u64,
    /// Transactions committed in this life.
    pub committed: u64,
}

/// What a soak was.
#[derive(Debug, Default)]
pub struct Report {
    /// After each cycle.
    pub samples: Vec<Sample>,
    /// Transactions that lost.
    pub lost: u64,
    /// What grew, in words.
    pub growth: Vec<String>,
}

impl Report {
    /// A table of at most so many rows.
    pub fn table(&self, rows: usize) -> String {
        let mut out = format!(
            "{:>6} {:>5} {:>9} {:>6} {:>8} {:>7} {:>5} {:>10} {:>10}\n",
            "second", "life", "KiB", "files", "threads", "mounts", "open", "store KiB", "committed"
        );
        let step = self.samples.len().div_ceil(rows.max(1)).max(1);
        for s in self.samples.iter().step_by(step) {
            out += &format!(
                "{:>6} {:>5} {:>9} {:>6} {:>8} {:>7} {:>5} {:>10} {:>10}\n",
                s.second,
                s.life,
                s.memory,
                s.descriptors,
                s.threads,
                s.mounts,
                s.open,
                s.store,
                s.committed
            );
        }
        out
    }

    /// Which kinds of descriptors were more or fewer at the end of each daemon's life than after its first cycle.
    pub fn opened(&self) -> String {
        let mut out = String::new();
        for life in 0..=self.samples.last().map_or(0, |s| s.life) {
            let mut of = self.samples.iter().filter(|s| s.life == life);
            let Some(first) = of.next() else { continue };
            let last = of.next_back().unwrap_or(first);
            out += &format!(
                "life {life}: {} descriptors, then {}\n",
                first.descriptors, last.descriptors
            );
            let kinds: BTreeSet<&String> = first.kinds.keys().chain(last.kinds.keys()).collect();
            for kind in kinds {
                let of = |sample: &Sample| sample.kinds.get(kind).copied().unwrap_or(0);
                if of(first) != of(last) {
                    out += &format!("{:>6} {:>6} {kind}\n", of(first), of(last));
                }
            }
        }
        out
    }
}

/// Runs the load; panics where a program sees what it must not.
pub fn soak(lab: &Lab, options: Options) -> Report {
    let begun = Instant::now();
    lab.native(
        "mkdir g p; echo 0 >g/count; for i in $(seq 50); do echo $i >g/f$i; echo $i >p/f$i; done",
    )
    .ok();
    lab.do_systx(["mount", "g"]).ok();
    let mut report = Report::default();
    let (mut counted, mut life, mut cycle) = (0, 0, 0);
    while begun.elapsed() < options.time || report.samples.len() < 3 {
        counted += one_cycle(lab, cycle, &mut report.lost);
        let count: u64 = lab.read("g/count").trim().parse().expect("a number");
        assert_eq!(count, counted, "commits that were acknowledged, and the file that counts them");
        lab.do_systx(["gc", "--keep", "5", "--max-size", "1M"]).ok();
        let mut sample = quiet_sample(lab);
        (sample.second, sample.life) = (begun.elapsed().as_secs(), life);
        report.samples.push(sample);
        cycle += 1;
        if cycle % options.life == 0 && begun.elapsed() < options.time {
            lab.kill_daemon();
            let back = Instant::now() + HANG;
            // The mount answers again when the next daemon serves it.
            while lab.native("cat g/count").code != 0 {
                assert!(
                    Instant::now() < back,
                    "the daemon does not come back\n{}",
                    lab.daemon_log()
                );
                std::thread::sleep(Duration::from_millis(50));
            }
            life += 1;
        }
    }
    lab.do_systx(["umount", "g"]).ok();
    assert_eq!(guard_mounts(&lab.root()), Vec::<std::path::PathBuf>::new());
    report.growth = growth(&report.samples);
    report
}

/// Work of every kind, the same each time.  Returns how often the counter was moved on.
fn one_cycle(lab: &Lab, cycle: usize, lost: &mut u64) -> u64 {
    let start = |command| Running::start(command, Limits::seconds(300));
    // Plain programs in the guarded directory, while transactions come and go.
    let mut plain = lab.command("sh");
    plain.args(["-ec", "cd g; for i in $(seq 60); do echo $i >new; mv new f$((i % 50 + 1)); cat f7 >/dev/null; ls >/dev/null; \
         mkdir d; : >d/x; rm -r d; done"]);
    let plain = start(plain);
    // The same counter, several at a time: some lose.
    let count = "n=$(cat g/count); echo $((n + 1)) >g/count";
    let racers: Vec<Running> = (0..3)
        .map(|_| start(lab.systx(["run", "--retries", "3", "--", "sh", "-c", count])))
        .collect();
    let made = "mkdir p/m g/m; for i in $(seq 30); do echo $i >p/m/$i; ln p/m/$i g/m/$i; done; rm -r g/m; mv p/m p/n; rm -r p/n";
    lab.run(&[], made);
    lab.run(&["--on-exit=abort"], "rm -rf g/* p/*");
    assert_ne!(lab.run(&[], "echo lost >g/f3; false").code, 0);
    let mut views = Vec::new();
    for dir in ["g", "p", "g"] {
        let begun = lab.do_systx(["begin", "--json", dir]).ok().json();
        let text = |name: &str| begun["begun"][name].as_str().expect("a string").to_owned();
        views.push((text("id"), text("path")));
    }
    for (n, (id, path)) in views.iter().enumerate() {
        let script = format!(
            "cd {path} && echo {cycle} >v{n} && cat f* >/dev/null; sh -c 'exec 5<v{n}; sleep 0.1' &"
        );
        lab.native(&script);
        // The middle one is aborted, the others commit or have lost; who has a file open stays so.
        let end = if n == 1 { "abort" } else { "commit" };
        let done = lab.do_systx([end, id]);
        if done.code != 0 {
            *lost += 1;
            lab.do_systx(["abort", id]);
        }
    }
    let mut counted = 0;
    for racer in racers {
        match racer.finish(lab) {
            Finished { code: 0, .. } => counted += 1,
            Finished { code: CONFLICT, .. } => *lost += 1,
            other => {
                panic!("{other}\n{}", if other.code == OUTSIDE { "(from outside)" } else { "" })
            }
        }
    }
    // Now that it is the only one that is open.
    let kept = lab.run(&["--on-exit=keep"], "echo kept >p/kept");
    if kept.code == 0 {
        for id in lab.open_ids() {
            lab.do_systx(["abort", &id]);
        }
    }
    plain.finish(lab).ok();
    counted
}

/// Waits until nothing is open any more, then looks.
fn quiet_sample(lab: &Lab) -> Sample {
    let deadline = Instant::now() + HANG;
    let mut last = sample(lab);
    // Views go when the last descriptor in them is closed, their threads a moment later.
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = sample(lab);
        let same = (now.descriptors, now.threads, now.mounts, now.open)
            == (last.descriptors, last.threads, last.mounts, last.open);
        if same && now.open == 0 {
            return now;
        }
        assert!(Instant::now() < deadline, "it never gets quiet: {now:?}");
        last = now;
    }
}

fn sample(lab: &Lab) -> Sample {
    let open = lab.open_ids().len();
    let top = lab.do_systx(["top", "--once", "--json"]).ok().json();
    let volumes = top["top"]["volumes"].as_array().or(top["volumes"].as_array()).cloned();
    let committed = |v: &serde_json::Value| v["counts"]["committed"].as_u64().unwrap_or(0);
    let committed = volumes.unwrap_or_default().iter().map(committed).sum();
    let pid = *lab.daemons().first().expect("a daemon");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let number = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    let kinds = kinds(lab, pid);
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let mounts = table.lines().filter(|l| l.contains(" - fuse.systx ")).count();
    Sample {
        memory: number("VmRSS:"),
        threads: usize::try_from(number("Threads:")).unwrap_or(0),
        descriptors: kinds.values().sum(),
        kinds,
        mounts,
        open,
        store: allocated(&lab.path(".systx")) / 1024,
        committed,
        ..Sample::default()
    }
}

/// The journal's ring: each segment is opened when it is first reached, and there are few.
const SEGMENT: &str = "/.systx/j/N";

/// What a process has open, by the names without their numbers.
fn kinds(lab: &Lab, pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let here = lab.root().to_string_lossy().into_owned();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(target) = std::fs::read_link(fd.path()) else { continue };
        let target = target.to_string_lossy().replace(&here, "");
        *kinds.entry(without_numbers(&target)).or_insert(0) += 1;
    }
    kinds
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

/// Cycles in a third of a life from which on its memory is to have settled.
const LONG: usize = 10;

/// What is more in the last third of a daemon's life than in the second, after a warm-up in the first.
fn growth(samples: &[Sample]) -> Vec<String> {
    let mut found = Vec::new();
    let lives = samples.last().map_or(0, |s| s.life);
    for life in 0..=lives {
        let of: Vec<&Sample> = samples.iter().filter(|s| s.life == life).collect();
        let third = of.len() / 3;
        if third < 2 {
            continue;
        }
        let (before, after) = (&of[third..of.len() - third], &of[of.len() - third..]);
        let mut compare = |what: &str, slack: u64, read: &dyn Fn(&Sample) -> u64| {
            let median = |part: &[&Sample]| {
                let mut values: Vec<u64> = part.iter().map(|s| read(s)).collect();
                values.sort_unstable();
                values[values.len() / 2]
            };
            let (was, is) = (median(before), median(after));
            if is > was + slack {
                found.push(format!("life {life}: {what}: {was}, then {is}"));
            }
        };
        // A leak of one object a cycle shows in a long run; the allocator keeps some megabytes at will, and a
        // short life is all warm-up. The view of a transaction that has ended goes a moment later, with a mount,
        // a few descriptors and perhaps a thread.
        let long = third >= LONG;
        compare("memory in KiB", if long { 4096 } else { 16384 }, &|s| s.memory);
        compare("descriptors", if long { 4 } else { 16 }, &|s| {
            (s.descriptors - s.kinds.get(SEGMENT).copied().unwrap_or(0)) as u64
        });
        compare("threads", if long { 3 } else { 8 }, &|s| s.threads as u64);
        compare("mounts", if long { 1 } else { 4 }, &|s| s.mounts as u64);
        compare("store in KiB", 4096, &|s| s.store);
    }
    found
}
