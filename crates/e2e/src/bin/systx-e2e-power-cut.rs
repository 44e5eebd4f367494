//! Power cuts of an emulated machine that commits; see `scripts/power-cut`, which prepares and
//! starts it: `systx-e2e-power-cut --kernel DIR [--trials N] [--boot-every N] [--seed N] [--lie]`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use systx_e2e::power_cut::{Options, in_own_namespace, missing, power_cuts};

const USAGE: &str = "usage: systx-e2e-power-cut --kernel DIR [--trials N] [--boot-every N] [--seed N] \
                     [--limit SECONDS] [--lie]";

fn options() -> Option<Options> {
    let mut options = Options {
        trials: 100,
        boot_every: 20,
        seed: 1,
        lie: false,
        kernel: PathBuf::new(),
        limit: Duration::from_secs(600),
    };
    let mut args = std::env::args_os().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--lie" {
            options.lie = true;
            continue;
        }
        let value = args.next()?;
        let number = value.to_str().and_then(|v| v.parse::<u64>().ok());
        match arg.to_str()? {
            "--kernel" => options.kernel = value.into(),
            "--trials" => options.trials = number? as usize,
            "--boot-every" => options.boot_every = number? as usize,
            "--seed" => options.seed = number?,
            "--limit" => options.limit = Duration::from_secs(number?),
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(why) = missing(&options.kernel) {
        println!("SKIPPED: {why}");
        return ExitCode::SUCCESS;
    }
    let report = match in_own_namespace() {
        Ok(None) => power_cuts(&options, |line| println!("{line}")),
        Ok(Some(true)) => return ExitCode::SUCCESS,
        Ok(Some(false)) => return ExitCode::FAILURE,
        Err(why) => Err(why),
    };
    match report {
        Ok(report) => {
            println!("{report}");
            if report.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
