//! `systx`: system transactions for unmodified programs.

mod args;
mod classes;
mod commands;
mod context;
mod glob;
mod ignore_file;
mod image;
mod log_limit;
mod merging;
mod output;
mod problem;
mod progress;
mod render;
mod retention;
mod stand_in;
mod table;

use args::{Cli, Command};
use clap::Parser;
use clap::error::ErrorKind;
use output::Out;
use problem::{ERROR, FAILED, Problem, USAGE};

fn main() {
    std::process::exit(run());
}

fn run() -> i32 {
    systx_session::own_signals();
    if let Some(name) = stand_in::name() {
        return stand_in::be(name);
    }
    commands::completions::answer();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let fine = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let _ = e.print();
            return if fine { 0 } else { usage_code() };
        }
    };
    let out = Out::new(&cli.global);
    let theirs = matches!(cli.command, Command::Run(_) | Command::Enter(_) | Command::Exec(_));
    match dispatch(&cli.command, out) {
        Ok(code) => code,
        Err(problem) => {
            // Of send it is the stream.
            out.problem(&problem, theirs || matches!(cli.command, Command::Send(_)));
            problem.code.unwrap_or(if theirs { FAILED } else { ERROR })
        }
    }
}

/// 2 as ever, but 125 where 2 could be CMD's.
fn usage_code() -> i32 {
    let theirs = std::env::args_os().skip(1).find(|a| !a.to_string_lossy().starts_with('-'));
    match theirs {
        Some(word) if word == "run" || word == "enter" || word == "exec" => FAILED,
        _ => USAGE,
    }
}

fn dispatch(command: &Command, out: Out) -> Result<i32, Problem> {
    match command {
        Command::Run(args) => commands::run::run(args, out),
        Command::Begin(args) => commands::begin::begin(args, out),
        Command::List => commands::list::list(out),
        Command::Status(args) => commands::status::status(args, out),
        Command::Top(args) => commands::top::top(args, out),
        Command::Diff(args) => commands::diff::diff(args, out),
        Command::Enter(args) => commands::enter::enter(args, out),
        Command::Commit(args) => commands::commit::commit(args, out),
        Command::Abort(args) => commands::abort::abort(args, out),
        Command::Log(args) => commands::log::log(args, out),
        Command::Show(args) => commands::show::show(args, out),
        Command::Services(args) => commands::services::services(args, out),
        Command::Config(args) => commands::config::config(args, out),
        Command::Undo(args) => commands::undo::undo(args, out),
        Command::Redo(args) => commands::undo::redo(args, out),
        Command::Recover(args) => commands::recover::recover(args, out),
        Command::Gc(args) => commands::gc::gc(args, out),
        Command::Mount(args) => commands::mount::mount(args, out),
        Command::Umount(args) => commands::mount::umount(args, out),
        Command::Protect(args) => commands::protect::protect(args, out),
        Command::Mkfs(args) => commands::mkfs::mkfs(args, out),
        Command::Fsck(args) => commands::fsck::fsck(args, out),
        Command::Grow(args) => commands::grow::grow(args, out),
        Command::Df(args) => commands::df::df(args, out),
        Command::Send(args) => commands::send::send(args, out),
        Command::Receive(args) => commands::receive::receive(args, out),
        Command::Snapshot(args) => commands::snapshot::snapshot(args, out),
        Command::Snapshots(args) => commands::snapshots::snapshots(args, out),
        Command::Clean(args) => commands::clean::clean(args, out),
        Command::Doctor(args) => commands::doctor::doctor(args, out),
        Command::Exec(args) => commands::exec::exec(args),
        Command::Syscalls => commands::syscalls::syscalls(out),
        Command::Completions(args) => commands::completions::completions(args),
        Command::Manual(args) => commands::manual::manual(args),
        Command::Daemon { args } => commands::daemon::daemon(args),
    }
}
