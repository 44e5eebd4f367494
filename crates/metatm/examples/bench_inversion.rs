//! Priority inversion between transactions of real threads, by nice value and by SCHED_FIFO.
//!
//! `bench_inversion MILLISECONDS` has four threads write objects that they share, through the
//! engine of systx, under three rules: age alone; the nice value that a thread had when its first
//! transaction began; and what it is at the conflict.  Each line is
//! `threads,rule,conflicts,inverted,lost,commits`: of all decisions between threads that differ,
//! how many percent the less urgent one won; and of the urgent thread, losses for each commit and
//! commits in a second.  `chrt` makes a real-time thread: needs root.

use std::collections::HashMap;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};
use systx_base::{Oid, TxnId};
use systx_txn::{
    Access, BeginOptions, Choice, Chosen, Contender, ContentionPolicy, Engine, ObjectRef, Urgency,
};

const THREADS: usize = 4;
const OBJECTS: u64 = 12;
const WRITES: u64 = 6;

/// What the urgent thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgent {
    Nice,
    /// Becomes so after its first begin.
    NiceLater,
    Fifo,
}

/// What decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    Age,
    NiceAtBegin,
    Now,
}

/// How urgent a thread of this process is now; lower is more urgent.
fn urgency(tid: u32) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    let fields: Vec<i64> = text
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or_default())
        .collect();
    // The first one is field 4 of proc(5).
    let (nice, level, policy) = (fields.get(15)?, fields.get(36)?, fields.get(37)?);
    let realtime = matches!(policy, 1 | 2);
    i32::try_from(if realtime { -1_000 - level } else { *nice }).ok()
}

fn nice(tid: u32) -> i32 {
    let pid = rustix::process::Pid::from_raw(tid as i32);
    rustix::process::getpriority_process(pid).unwrap_or(0)
}

#[derive(Debug)]
struct Asks(u32);

impl Urgency for Asks {
    fn now(&self) -> Option<i32> {
        urgency(self.0)
    }
    fn of(&self, thread: u32) -> Option<i32> {
        urgency(thread)
    }
}

#[derive(Default)]
struct Counts {
    threads: Mutex<HashMap<u64, u32>>,
    all: AtomicU64,
    inverted: AtomicU64,
}

/// Decides as systx does, and counts.
struct Counting(Arc<Counts>);

impl ContentionPolicy for Counting {
    fn challenger_wins(&self, challenger: &Contender, holder: &Contender) -> bool {
        let won = Chosen.challenger_wins(challenger, holder);
        let threads = self.0.threads.lock().expect("nobody panics");
        let of = |c: &Contender| threads.get(&c.id.0).and_then(|tid| urgency(*tid));
        if let (Some(a), Some(b)) = (of(challenger), of(holder))
            && a != b
        {
            self.0.all.fetch_add(1, Ordering::Relaxed);
            self.0.inverted.fetch_add(u64::from(won != (a < b)), Ordering::Relaxed);
        }
        won
    }
}

struct Run {
    engine: Engine,
    counts: Arc<Counts>,
    ids: AtomicU64,
    stop: AtomicBool,
    urgent: Urgent,
    rule: Rule,
}

impl Run {
    fn options(&self, tid: u32, begun: i32) -> BeginOptions {
        let usual = BeginOptions::default();
        match self.rule {
            Rule::Age => BeginOptions { choice: Choice::Timestamp, ..usual },
            Rule::NiceAtBegin => BeginOptions { priority: begun, ..usual },
            Rule::Now => BeginOptions { follows: Some(Arc::new(Asks(tid))), ..usual },
        }
    }

    /// Transactions of one thread: how many committed, and how many attempts lost.
    fn work(&self, number: usize) -> Result<(u64, u64), String> {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let urgent = number == 0;
        if urgent && self.urgent == Urgent::Nice {
            renice(tid)?;
        }
        let begun = nice(tid);
        if urgent && self.urgent == Urgent::NiceLater {
            renice(tid)?;
        }
        if urgent && self.urgent == Urgent::Fifo {
            fifo(tid)?;
        }
        let mut random = fastrand::Rng::with_seed(number as u64);
        let (mut done, mut lost) = (0, 0);
        while !self.stop.load(Ordering::Relaxed) {
            let mut timestamp = None;
            while !self.attempt(tid, begun, &mut timestamp, &mut random) {
                lost += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            done += 1;
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok((done, lost))
    }

    fn attempt(
        &self,
        tid: u32,
        begun: i32,
        timestamp: &mut Option<u64>,
        random: &mut fastrand::Rng,
    ) -> bool {
        let id = TxnId(self.ids.fetch_add(1, Ordering::Relaxed));
        self.counts.threads.lock().expect("nobody panics").insert(id.0, tid);
        // Losses are not told: what is measured is the rule before aging.
        let options = BeginOptions { timestamp: *timestamp, ..self.options(tid, begun) };
        *timestamp = Some(self.engine.begin(id, options).0);
        let won = (0..WRITES).all(|_| self.write(id, random.u64(0..OBJECTS)))
            && self.engine.decide(id).is_ok();
        if won {
            self.engine.installed(id)
        } else {
            self.engine.abort(id)
        }
        self.counts.threads.lock().expect("nobody panics").remove(&id.0);
        won
    }

    fn write(&self, id: TxnId, object: u64) -> bool {
        loop {
            match self.engine.write(id, ObjectRef::Attr(Oid(object))) {
                Access::Granted => break,
                Access::Doomed => return false,
                Access::Wait(other) => self.engine.wait_installed(other),
            }
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(30) {
            std::hint::spin_loop();
        }
        true
    }
}

fn renice(tid: u32) -> Result<(), String> {
    let pid = rustix::process::Pid::from_raw(tid as i32);
    rustix::process::setpriority_process(pid, -10).map_err(|e| format!("setpriority: {e}"))
}

fn fifo(tid: u32) -> Result<(), String> {
    let mut chrt = Command::new("chrt");
    chrt.args(["-f", "-p", "10", &tid.to_string()]).stderr(Stdio::null());
    match chrt.status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("chrt: {other:?}")),
    }
}

fn measure(urgent: Urgent, rule: Rule, time: Duration) -> Result<(), String> {
    let counts = Arc::new(Counts::default());
    let run = Run {
        engine: Engine::with_policy(Box::new(Counting(counts.clone()))),
        counts,
        ids: AtomicU64::new(1),
        stop: AtomicBool::new(false),
        urgent,
        rule,
    };
    let start = Barrier::new(THREADS + 1);
    let (done, lost) = std::thread::scope(|s| {
        let work = |number| {
            let (run, start) = (&run, &start);
            s.spawn(move || {
                start.wait();
                run.work(number)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(work).collect();
        start.wait();
        std::thread::sleep(time);
        run.stop.store(true, Ordering::Relaxed);
        let shares: Result<Vec<_>, String> = threads
            .into_iter()
            .map(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
            .collect();
        shares.map(|shares| shares[0])
    })?;
    let all = run.counts.all.load(Ordering::Relaxed);
    let inverted = run.counts.inverted.load(Ordering::Relaxed);
    println!(
        "{urgent:?},{rule:?},{all},{:.1},{:.2},{:.0}",
        100.0 * inverted as f64 / all.max(1) as f64,
        lost as f64 / done.max(1) as f64,
        done as f64 / time.as_secs_f64()
    );
    Ok(())
}

fn main() -> ExitCode {
    let Some(milliseconds) = std::env::args().nth(1).and_then(|a| a.parse().ok()) else {
        eprintln!("usage: bench_inversion MILLISECONDS");
        return ExitCode::FAILURE;
    };
    println!("threads,rule,conflicts,inverted,lost,commits");
    for urgent in [Urgent::Nice, Urgent::NiceLater, Urgent::Fifo] {
        for rule in [Rule::Age, Rule::NiceAtBegin, Rule::Now] {
            if let Err(why) = measure(urgent, rule, Duration::from_millis(milliseconds)) {
                eprintln!("SKIPPED: {urgent:?} {rule:?}: {why}");
            }
        }
    }
    ExitCode::SUCCESS
}
