//! The micro-benchmarks: a counter, and a pipeline.

use super::{Kind, LINE, Lock, Op, Site, ThreadSpec, Workload};

/// Increments of one thread of [`counter`].
const INCREMENTS: usize = 200;
/// Phases of [`pipeline`] (paper: 8).
const PHASES: u32 = 8;
/// Words that belong to a phase.
const WORDS: u32 = 96;
/// Words that a section of a phase reads, and writes.
const TOUCHED: (usize, usize) = (40, 12);
/// Rounds of one thread through all phases.
const ROUNDS: u32 = 6;

fn lock(name: &str) -> Lock {
    Lock { name: name.to_owned(), kind: Kind::Spin, converted: true }
}

fn site(name: &str, lock: usize) -> Site {
    Site { name: name.to_owned(), lock, reads: false, exclusive: false, irq_off: false }
}

/// A thread for each processor adds to one counter.
#[must_use]
pub fn counter(processors: usize, seed: u64) -> Workload {
    let thread = |n: usize| {
        let mut random = fastrand::Rng::with_seed(seed ^ (n as u64) << 32);
        let program = (0..INCREMENTS).map(move |_| {
            let pause = random.u32(200..2_000);
            vec![Op::User(pause), Op::Enter(0), Op::Read(0), Op::Write(0), Op::Exit]
        });
        ThreadSpec { nice: 0, realtime: None, program: Box::new(program) }
    };
    Workload {
        name: "counter".to_owned(),
        locks: vec![lock("counter")],
        sites: vec![site("add", 0)],
        threads: (0..processors).map(thread).collect(),
        words: 1,
        tick: [vec![], vec![]],
    }
}

/// Four threads for each processor go through eight phases, in each of which they touch much that
/// belongs to the phase (paper §7.6).
#[must_use]
pub fn pipeline(processors: usize, seed: u64) -> Workload {
    let thread = |n: usize| {
        let mut random = fastrand::Rng::with_seed(seed ^ (n as u64) << 32);
        let program = (0..ROUNDS * PHASES).map(move |step| phase(&mut random, step % PHASES));
        ThreadSpec { nice: 0, realtime: None, program: Box::new(program) }
    };
    Workload {
        name: "pipeline".to_owned(),
        locks: vec![lock("pipeline")],
        sites: (0..PHASES).map(|n| site(&format!("phase {n}"), 0)).collect(),
        threads: (0..4 * processors).map(thread).collect(),
        words: (PHASES + 1) * WORDS,
        tick: [vec![], vec![]],
    }
}

fn phase(random: &mut fastrand::Rng, phase: u32) -> Vec<Op> {
    let mut ops = vec![Op::User(random.u32(2_000..6_000)), Op::Enter(phase as u16)];
    let (reads, writes) = TOUCHED;
    for n in 0..reads {
        // One in twenty is of what all phases share.
        let shared = random.u32(0..20) == 0;
        let base = if shared { PHASES * WORDS } else { phase * WORDS };
        let at = base + random.u32(0..WORDS);
        ops.push(Op::Read(at));
        ops.push(Op::Work(random.u32(20..60)));
        if n >= reads - writes && !shared {
            ops.push(Op::Write(at));
        }
    }
    ops.push(Op::Exit);
    debug_assert_eq!(WORDS % LINE, 0);
    ops
}
