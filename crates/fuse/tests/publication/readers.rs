//! Readers in a process of their own, as every program is one.
//!
//! Threads of the process that serves the mount will not do. They are let through where others are
//! held, since whoever installs a commit may have to ask. And a page fault that waits for its READ
//! may keep the process's memory map locked, which the threads that answer need for their own
//! memory: then nothing goes on any more.

use super::*;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Barrier, Mutex};

/// What one reader can do; looks of one group show the same generation.
pub type Looks = Vec<(usize, &'static str, Look)>;

/// What readers look at, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// What one commit after the other changes.
    One,
    /// What commits that are under way at once change.
    Several,
}

impl Of {
    const ALL: [(&str, Of); 2] = [("one", Of::One), ("several", Of::Several)];

    fn name(self) -> &'static str {
        Of::ALL.iter().find(|(_, of)| *of == self).unwrap().0
    }

    fn looks(self, dir: &Path) -> Looks {
        match self {
            Of::One => looks(dir).into_iter().map(|(what, look)| (0, what, look)).collect(),
            Of::Several => several::all_looks(dir),
        }
    }
}

/// Where a process learns that it is one of these, and of what.
const ASKED: &str = "SYSTX_TEST_READERS";

/// Between the parts of that.
const BETWEEN: char = ':';

/// Every reader has opened what it looks at.
const READY: &str = "readers are ready";
/// Before each thing that was older than something seen before it.
const WRONG: &str = "wrong: ";
/// The last line.
const DONE: &str = "readers are done";

/// A process that looks until it is told to stop.
struct Process {
    child: Child,
    until: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Process {
    fn start(dir: &Path, of: Of, threads: usize) -> Process {
        let asked = format!("{}{BETWEEN}{threads}{BETWEEN}{}", of.name(), dir.display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "readers::what_another_process_does", "--nocapture"]);
        command.env(ASKED, asked).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let until = child.stdin.take();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut process = Process { child, until, says };
        process.lines_until(READY);
        process
    }

    fn lines_until(&mut self, last: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for line in self.says.by_ref().lines() {
            let line = line.unwrap();
            if line == last {
                return lines;
            }
            lines.push(line);
        }
        panic!("no {last:?}: the readers ended with {:?}, {lines:?}", self.child.wait());
    }

    fn end(mut self) -> Vec<String> {
        self.until = None;
        let said = self.lines_until(DONE);
        said.iter().filter_map(|line| line.strip_prefix(WRONG)).map(str::to_owned).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// So many readers at once until `until` is over; everything that was older than something seen
/// before it.
pub fn hammer(arena: &Arena, of: Of, threads: usize, until: impl FnOnce()) -> Vec<String> {
    let process = Process::start(&arena.mount.dir, of, threads);
    until();
    process.end()
}

/// Not a test: what the process does that a test has started.
#[test]
fn what_another_process_does() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let mut parts = asked.splitn(3, BETWEEN);
    let mut part = || parts.next().unwrap();
    let (of, threads, dir) = (part(), part().parse().unwrap(), Path::new(part()));
    let of = Of::ALL.iter().find(|(name, _)| *name == of).unwrap().1;
    for wrong in look_until_told(dir, of, threads) {
        println!("\n{WRONG}{wrong}");
    }
    println!("\n{DONE}");
}

fn look_until_told(dir: &Path, of: Of, threads: usize) -> Vec<String> {
    let newest: Vec<AtomicU64> = of.looks(dir).iter().map(|_| AtomicU64::new(0)).collect();
    let (ready, stop, wrong) =
        (Barrier::new(threads + 1), AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for first in 0..threads {
            let (newest, ready, stop, wrong) = (&newest, &ready, &stop, &wrong);
            scope.spawn(move || {
                let mut looks = of.looks(dir);
                ready.wait();
                let mut at = first;
                while !stop.load(SeqCst) {
                    at = (at + 1) % looks.len();
                    let (group, what, look) = &mut looks[at];
                    let must = newest[*group].load(SeqCst);
                    let Some(seen) = look(dir) else { continue };
                    if seen < must {
                        let told = format!("{what} ({group}): {seen} after {must}");
                        wrong.lock().unwrap().push(told);
                    }
                    newest[*group].fetch_max(seen, SeqCst);
                }
            });
        }
        let _stop = Stop(&stop);
        ready.wait();
        println!("\n{READY}");
        // To the end of the input.
        std::io::stdin().lines().for_each(drop);
    });
    wrong.into_inner().unwrap()
}
