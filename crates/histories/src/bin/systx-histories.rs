//! What isolation means to programs, tried out: random histories, and the pairs of programs that
//! plain directories fail. Every command prints its result as JSON and ends with 1 if isolation was
//! violated.

use anyhow::Result;
use clap::{Parser, Subcommand};
use serde::Serialize;
use std::process::ExitCode;
use systx_histories::{accounts, driver, exclusion, listings, maildir, maze};

#[derive(Parser)]
#[command(about = "Isolation, tried out from the outside")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Random transactions and plain calls, checked for a serial order
    Random(driver::Options),
    #[command(hide = true)]
    Worker(driver::Worker),
    /// List directories, look names up and ask for times while another program changes names
    Listings(listings::Options),
    #[command(hide = true)]
    ListingsReader(listings::Options),
    /// List a Maildir while another program renames flags
    Maildir(maildir::Options),
    #[command(hide = true)]
    MaildirRenamer(maildir::Options),
    /// Ask for access, then open, while an attacker flips a link
    Access(maze::Options),
    #[command(hide = true)]
    AccessVictim(maze::Options),
    #[command(hide = true)]
    AccessAttacker(maze::Options),
    /// Update passwd, shadow and group together while others read them
    Accounts(accounts::Options),
    /// Lock parts of files in every way, and look who else is inside
    Locks(exclusion::Options),
    #[command(hide = true)]
    LockWorker(exclusion::Worker),
}

fn say(report: &impl Serialize, violated: bool) -> Result<ExitCode> {
    println!("{}", serde_json::to_string(report)?);
    Ok(if violated { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn run() -> Result<ExitCode> {
    match Arguments::parse().command {
        Task::Random(options) => {
            let report = driver::run(&options)?;
            if let Some(why) = &report.anomaly {
                eprintln!("{why}");
            }
            say(&report, report.is_violated())
        }
        Task::Worker(worker) => {
            driver::worker(&worker)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Listings(options) => {
            let report = listings::run(&options)?;
            say(&report, !report.wrong.is_empty())
        }
        Task::ListingsReader(options) => {
            listings::reader(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Maildir(options) => {
            let report = maildir::run(&options)?;
            say(&report, report.missing + report.twice > 0)
        }
        Task::MaildirRenamer(options) => {
            maildir::renamer(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Access(options) => {
            let args: Vec<_> = std::env::args_os().skip(2).collect();
            let code = maze::start(&options, &args)?;
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(2)))
        }
        Task::AccessVictim(options) => {
            let report = maze::run(&options)?;
            say(&report, report.stolen > 0)
        }
        Task::Accounts(options) => {
            let report = accounts::run(&options)?;
            say(&report, report.violations() > 0)
        }
        Task::Locks(options) => {
            let report = exclusion::run(&options)?;
            say(&report, report.is_violated())
        }
        Task::LockWorker(worker) => {
            exclusion::worker(&worker)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::AccessAttacker(options) => {
            maze::attacker(&options)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn main() -> ExitCode {
    run().unwrap_or_else(|e| {
        eprintln!("systx-histories: {e:#}");
        ExitCode::from(2)
    })
}
