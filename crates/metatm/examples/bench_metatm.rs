//! Runs the experiments of docs/METATM.md and prints their raw data: what `bench/metatm` runs.
//!
//! `bench_metatm TRACE FIRST LAST [EXPERIMENT...]` runs the seeds from `FIRST` to `LAST`.  Each
//! line is `experiment,workload,processors,kernel,policy,scheduler,seed,metric,value`.  A run in
//! which an invariant does not hold ends the program.

use std::collections::BTreeMap;
use std::process::ExitCode;
use systx_metatm::settings::{Contention, Kernel, Scheduler, Settings};
use systx_metatm::stats::{Spent, Stats};
use systx_metatm::tx::Cause;
use systx_metatm::workload::trace::{Trace, Unknown};
use systx_metatm::workload::{Workload, micro, mix};

const KERNELS: [Kernel; 3] = [Kernel::Linux, Kernel::Subsystem, Kernel::Cooperative];
const PARTS: [Scheduler; 4] = [
    Scheduler { reactive: false, dynamic: false },
    Scheduler { reactive: true, dynamic: false },
    Scheduler { reactive: false, dynamic: true },
    Scheduler::AWARE,
];

/// One run, and where its figures belong.
struct Case {
    experiment: &'static str,
    settings: Settings,
    workload: Workload,
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// Names and values of a run.
fn metrics(stats: &Stats) -> Vec<(String, f64)> {
    let sync = [Spent::Spin, Spent::Restart, Spent::Backoff];
    let sum = |of: fn(&systx_metatm::stats::LockStats) -> u64| -> f64 {
        stats.locks.iter().map(of).sum::<u64>() as f64
    };
    let kernel = stats.percent_of_kernel(&sync);
    let conflicts = &stats.conflicts;
    let io = stats.restarts[Cause::NeedExclusive.index()];
    let of_io = stats.io_cycles as f64 * stats.percent_of_kernel(&[Spent::Restart]);
    let restarted = stats.spent[Spent::Restart.index()].max(1) as f64;
    let named = |name: &str, value: f64| (name.to_owned(), value);
    let mut all = vec![
        named("end", stats.end as f64),
        named("user", stats.percent(&[Spent::User])),
        named("idle", stats.percent(&[Spent::Idle])),
        named("sync", kernel),
        named("spin", stats.percent_of_kernel(&[Spent::Spin])),
        named("undone", stats.percent_of_kernel(&[Spent::Restart])),
        named("backoff", stats.percent_of_kernel(&[Spent::Backoff])),
        named("restart cycles", stats.percent(&[Spent::Restart, Spent::Backoff])),
        named("acquired", sum(|lock| lock.acquired)),
        named("tests", sum(|lock| lock.tests)),
        named("sets", sum(|lock| lock.sets)),
        named("commits", stats.commits as f64),
        named(
            "cycles of a transaction",
            stats.committed_cycles as f64 / stats.commits.max(1) as f64,
        ),
        named("restarts", stats.all_restarts() as f64),
        named("restarts for I/O", io as f64),
        named("nesting at I/O", if io == 0 { 0.0 } else { stats.io_depth as f64 / io as f64 }),
        named("waste for I/O", of_io / restarted),
        named("conflicts", conflicts.all as f64),
        named("inverted", percent(conflicts.inverted, conflicts.all)),
        named("inverted now", percent(conflicts.inverted_now, conflicts.all)),
        named("policy inverted", percent(conflicts.policy, conflicts.all)),
        named("most losses", f64::from(stats.most_losses)),
    ];
    all.retain(|(_, value)| value.is_finite());
    all
}

/// Places in the code, over all locks of their kind: most threads inside, and restarts for I/O.
fn places(stats: &Stats, names: &[String]) -> Vec<(String, f64)> {
    let mut places: BTreeMap<&str, (u32, u64, u64)> = BTreeMap::new();
    for (site, name) in stats.sites.iter().zip(names) {
        let place = places.entry(name).or_default();
        place.0 = place.0.max(site.most);
        place.1 += site.executions;
        place.2 += site.io_restarts;
    }
    let used = places.into_iter().filter(|(_, (_, executions, _))| *executions > 0);
    used.flat_map(|(name, (most, executions, io))| {
        [
            (format!("most in {name}"), f64::from(most)),
            (format!("restarted for I/O in {name}"), percent(io, executions).min(100.0)),
        ]
    })
    .collect()
}

fn report(case: Case, seed: u64) -> bool {
    let Case { experiment, settings, workload } = case;
    let names: Vec<String> = workload.sites.iter().map(|site| site.name.clone()).collect();
    let head = format!(
        "{experiment},\"{}\",{},{},{},{},{seed}",
        workload.name,
        settings.processors,
        settings.kernel.name(),
        settings.contention.name(),
        settings.scheduler.name()
    );
    let outcome = systx_metatm::run(&settings, workload);
    if !outcome.broken.is_empty() {
        eprintln!("{head}:\n{}", outcome.broken.join("\n"));
        return false;
    }
    println!("{head},checked sections,{}", outcome.units);
    let more = if experiment == "main" { places(&outcome.stats, &names) } else { Vec::new() };
    for (name, value) in metrics(&outcome.stats).into_iter().chain(more) {
        println!("{head},\"{name}\",{value}");
    }
    true
}

fn cases(experiment: &'static str, seed: u64, trace: &Trace) -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |settings, workload| all.push(Case { experiment, settings, workload });
    match experiment {
        "main" => {
            for (processors, kernel) in each([8, 16, 32], KERNELS) {
                for profile in &mix::PROFILES {
                    let settings = Settings::new(processors, kernel, seed);
                    add(settings, mix::mix(profile, processors, seed));
                }
            }
        }
        "policy" => {
            for (processors, contention) in each([8, 16, 32], Contention::ALL) {
                for (profile, aware) in each(0..mix::PROFILES.len(), [false, true]) {
                    let scheduler = if aware { Scheduler::AWARE } else { Scheduler::default() };
                    let settings = Settings::new(processors, Kernel::Subsystem, seed);
                    let settings = Settings { contention, scheduler, ..settings };
                    add(settings, mix::mix(&mix::PROFILES[profile], processors, seed));
                }
            }
        }
        "pipeline" => {
            for (processors, scheduler) in each([4, 8, 16], PARTS) {
                let settings = Settings::new(processors, Kernel::Subsystem, seed);
                let settings = Settings { scheduler, ..settings };
                add(settings, micro::pipeline(processors, seed));
            }
        }
        "counter" => {
            for (processors, kernel) in each([4, 8, 16, 32], KERNELS) {
                add(Settings::new(processors, kernel, seed), micro::counter(processors, seed));
                add(Settings::new(processors, kernel, seed), micro::pipeline(processors, seed));
            }
        }
        "finer" => {
            let locks = trace.names();
            let alone = locks.chunks(1);
            for (processors, finer) in each([2, 8, 16, 32], alone.chain([&[][..], &locks[..]])) {
                let workload = trace.finer(processors, seed, Unknown::Own, finer);
                add(Settings::new(processors, Kernel::Linux, seed), workload);
            }
        }
        _ => {
            for (processors, kernel) in each([2, 4, 8, 16, 32], KERNELS) {
                for unknown in [Unknown::Same, Unknown::Own] {
                    let workload = trace.workload(processors, seed, unknown);
                    add(Settings::new(processors, kernel, seed), workload);
                }
            }
        }
    }
    all
}

fn each<A: Copy, B: Copy>(
    a: impl IntoIterator<Item = A>,
    b: impl IntoIterator<Item = B> + Clone,
) -> Vec<(A, B)> {
    a.into_iter().flat_map(|a| b.clone().into_iter().map(move |b| (a, b))).collect()
}

const EXPERIMENTS: [&str; 6] = ["main", "policy", "pipeline", "counter", "trace", "finer"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [trace, first, last, wanted @ ..] = arguments.as_slice() else {
        eprintln!("usage: bench_metatm TRACE FIRST LAST [EXPERIMENT...]");
        return ExitCode::FAILURE;
    };
    let text = std::fs::read_to_string(trace).map_err(|e| e.to_string());
    let trace = match text.and_then(|text| Trace::parse(&text)) {
        Ok(read) => read,
        Err(why) => {
            eprintln!("{trace}: {why}");
            return ExitCode::FAILURE;
        }
    };
    let (Ok(first), Ok(last)) = (first.parse(), last.parse::<u64>()) else {
        eprintln!("{first} and {last} are to be numbers");
        return ExitCode::FAILURE;
    };
    for seed in first..=last {
        for experiment in EXPERIMENTS {
            if !wanted.is_empty() && !wanted.iter().any(|w| w == experiment) {
                continue;
            }
            for case in cases(experiment, seed, &trace) {
                if !report(case, seed) {
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}
