//! The long run of the crash suite: every bounded workload of so many calls, every crash state,
//! with crashes inside recovery, until all is seen or somebody stops it.
//!
//! `crash-sweep [--calls N] [--budget N] [--seed N] [--profile strong|weak|memory] [--skip N] [--failures N]`
//!
//! Ends at the first failure (or the N-th) with everything that is needed to see it again.

use std::process::ExitCode;
use std::time::Instant;
use systx_sim::suite::{self, Bench, How, Stats};
use systx_sim::{Plan, Profile, workload};

struct Options {
    calls: usize,
    budget: usize,
    seed: u64,
    skip: usize,
    failures: usize,
    profile: Profile,
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { calls: 2, budget: 300, seed: 1, skip: 0, failures: 1, profile: Profile::WEAK };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|e| format!("{name} {value}: {e}"));
        match &*name {
            "--calls" => options.calls = number()? as usize,
            "--budget" => options.budget = number()? as usize,
            "--seed" => options.seed = number()?,
            "--skip" => options.skip = number()? as usize,
            "--failures" => options.failures = number()? as usize,
            "--profile" => {
                options.profile = match &*value {
                    "strong" => Profile::STRONG,
                    "weak" => Profile::WEAK,
                    "memory" => Profile::MEMORY,
                    _ => return Err(format!("no profile {value}")),
                }
            }
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(options)
}

fn sweep(options: &Options) -> Result<Stats, String> {
    let bench = Bench::new(options.profile, &suite::plain)?;
    let all = workload::bounded(bench.base(), options.calls);
    let again = Some(Plan { exhaustive: 256, budget: options.budget / 4, seed: options.seed });
    let cuts = How { again, ..How::power_cuts(options.budget, options.seed) };
    let hows = [
        cuts,
        How { checkpoint: true, ..cuts },
        How { again, ..How::deaths() },
        How { undo: true, ..cuts },
    ];
    let begun = Instant::now();
    let mut stats = Stats::default();
    let mut failed = Vec::new();
    for (n, workload) in all.iter().enumerate().skip(options.skip) {
        for how in &hows {
            match bench.case(workload, how) {
                Ok(one) => stats.add(one),
                Err(e) => failed.push(format!("workload {n}, {how:?}: {e}")),
            }
            if failed.len() >= options.failures {
                return Err(failed.join("\n\n"));
            }
        }
        if n % 10 == 9 {
            let seconds = begun.elapsed().as_secs();
            println!("{} of {} workloads, {seconds} s: {stats:?}", n + 1, all.len());
        }
    }
    if failed.is_empty() { Ok(stats) } else { Err(failed.join("\n\n")) }
}

fn main() -> ExitCode {
    let outcome = options().and_then(|options| sweep(&options));
    match outcome {
        Ok(stats) => {
            println!("all survived: {stats:?}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
