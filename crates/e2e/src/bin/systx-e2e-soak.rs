//! Mixed load for a while, and a look at what grows:
//! `systx-e2e-soak [--volume] [--minutes N] [--life CYCLES] [--rows N]`.

use std::process::ExitCode;
use std::time::Duration;
use systx_e2e::Lab;
use systx_e2e::soak::{Options, PROGRAM, obstacle, program, soak, volume};

fn main() -> ExitCode {
    let mut rows = 40;
    let mut options = Options { time: Duration::from_secs(120), life: 40 };
    let mut args = std::env::args().skip(1).peekable();
    // The programs of the load are this one, too.
    if args.next_if(|arg| arg == PROGRAM).is_some() {
        let (which, dir) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
        program(&which, dir.as_ref());
        return ExitCode::SUCCESS;
    }
    let of_volume = args.next_if(|arg| arg == "--volume").is_some();
    while let Some(arg) = args.next() {
        let number = args.next().and_then(|n| n.parse::<f64>().ok()).filter(|n| *n > 0.0);
        match (arg.as_str(), number) {
            ("--minutes", Some(n)) => options.time = Duration::from_secs_f64(n * 60.0),
            ("--life", Some(n)) => options.life = n as usize,
            ("--rows", Some(n)) => rows = n as usize,
            _ => {
                eprintln!(
                    "usage: systx-e2e-soak [--volume] [--minutes N] [--life CYCLES] [--rows N]"
                );
                return ExitCode::from(2);
            }
        }
    }
    let lab = match obstacle().map_or_else(Lab::new, Err) {
        Ok(lab) => lab,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return ExitCode::SUCCESS;
        }
    };
    if of_volume {
        return soak_of_volume(&lab, options);
    }
    let report = soak(&lab, options);
    print!("{}{}", report.table(rows), report.opened());
    println!("{} cycles, {} transactions lost", report.samples.len(), report.lost);
    for line in &report.growth {
        println!("grows: {line}");
    }
    if report.growth.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn soak_of_volume(lab: &Lab, options: Options) -> ExitCode {
    let report = volume::soak(lab, options.time, options.life as u64);
    let volume::Report { cycles, kills, looks, committed, .. } = report;
    let used: Vec<u64> = report.used.iter().map(|bytes| bytes >> 10).collect();
    println!("KiB in use without snapshots: {used:?}; the most: {}", report.most >> 10);
    println!("{cycles} cycles, {committed} commits, {kills} kills, {looks} looks at snapshots");
    report.growth.iter().for_each(|line| println!("grows: {line}"));
    if report.growth.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
