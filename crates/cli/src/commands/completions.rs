//! `systx completions`: a completion script for a shell.  The shell asks this program then: it also
//! knows the ids of transactions.

use super::list;
use crate::args::{Cli, Completions, Where};
use crate::context;
use crate::output;
use crate::problem::Problem;
use clap::CommandFactory;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCandidates, CompletionCandidate};
use systx_protocol::call;

/// Set by the script where the shell asks.
const ASKED: &str = "SYSTX_COMPLETE";
/// Of the committed transactions so many are offered, the latest.
const LATEST: u64 = 50;

/// Prints it.
///
/// # Errors
/// There is none for that shell.
pub fn completions(args: &Completions) -> Result<i32, Problem> {
    let name = args.shell.to_string();
    let unknown = || Problem::new(format!("there is no completion script for {name}"));
    let shells = Shells::builtins();
    let shell = shells.completer(&name).ok_or_else(unknown)?;
    let mut script = Vec::new();
    shell
        .write_registration(ASKED, "systx", "systx", "systx", &mut script)
        .map_err(|e| Problem::new(format!("the completion script for {name}: {e}")))?;
    output::print_bytes(&script);
    Ok(0)
}

/// Answers the shell, and ends, if it is that who asks.
pub fn answer() {
    CompleteEnv::with_factory(with_ids).var(ASKED).complete();
}

type Ids = fn() -> Vec<CompletionCandidate>;

/// What takes an id: the command, its argument, and which ids it takes.
const TAKERS: [(&str, &str, Ids); 11] = [
    ("status", "id", open_ids),
    ("enter", "id", open_ids),
    ("commit", "id", open_ids),
    ("abort", "id", open_ids),
    ("begin", "retry", open_ids),
    ("diff", "id", all_ids),
    ("show", "id", committed_ids),
    ("undo", "id", committed_ids),
    ("redo", "id", committed_ids),
    ("services", "run", committed_ids),
    ("services", "drop", committed_ids),
];

fn with_ids() -> clap::Command {
    TAKERS.iter().fold(Cli::command(), |all, (command, argument, ids)| {
        all.mut_subcommand(command, |command| {
            // Not `mut_arg`, which gives a positional argument another place.
            command.mut_args(|arg| match arg.get_id() == *argument {
                true => arg.add(ArgValueCandidates::new(*ids)),
                false => arg,
            })
        })
    })
}

/// Ids of open transactions.  Whatever keeps them from being known: none are offered.
fn open_ids() -> Vec<CompletionCandidate> {
    let open = list::open().unwrap_or_default();
    let offer = |t: &systx_protocol::Listed| {
        let what = format!("{}: {}", list::state(t.state), output::short_command(&t.argv, 50));
        CompletionCandidate::new(t.id.to_string()).help(Some(what.into()))
    };
    open.iter().map(offer).collect()
}

/// Ids of committed transactions.
fn committed_ids() -> Vec<CompletionCandidate> {
    let log = || -> Result<_, Problem> {
        let place = context::place(&Where::default())?;
        let call = call::Log { place, limit: Some(LATEST), paths: Vec::new() };
        Ok(context::connect()?.ask(&call)?)
    };
    let offer = |e: &systx_protocol::LogEntry| {
        let what = format!("{}: {}", output::time(e.time), output::short_command(&e.argv, 50));
        CompletionCandidate::new(e.id.to_string()).help(Some(what.into()))
    };
    log().unwrap_or_default().iter().map(offer).collect()
}

/// Both.
fn all_ids() -> Vec<CompletionCandidate> {
    let mut all = open_ids();
    all.extend(committed_ids());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_takes_an_id_offers_ids() {
        with_ids().debug_assert();
        let all = with_ids();
        for command in all.get_subcommands() {
            for arg in command.get_arguments() {
                let takes =
                    arg.get_id() == "id" || arg.get_value_names().is_some_and(|n| n == ["ID"]);
                let offers =
                    TAKERS.iter().any(|(c, a, _)| *c == command.get_name() && arg.get_id() == a);
                assert_eq!(takes, offers, "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
