//! What the tests of the suite share: how much to run, and from which seed.

#![allow(dead_code)]

use systx_sim::Rng;
use systx_sim::workload::Workload;

/// `SYSTX_SIM_BUDGET`, 1 if it is not set.
pub fn budget() -> u64 {
    number("SYSTX_SIM_BUDGET").unwrap_or(1).max(1)
}

/// `SYSTX_SIM_SEED`, 1 if it is not set: every run is the same run.
pub fn seed() -> u64 {
    number("SYSTX_SIM_SEED").unwrap_or(1)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `count` of the workloads, chosen by the seed; all if there are no more.
pub fn sample(all: &[Workload], count: usize, seed: u64) -> Vec<Workload> {
    let mut rng = Rng::new(seed);
    let mut left: Vec<&Workload> = all.iter().collect();
    let mut chosen = Vec::new();
    while chosen.len() < count && !left.is_empty() {
        chosen.push(left.swap_remove(rng.below(left.len())).clone());
    }
    chosen
}
