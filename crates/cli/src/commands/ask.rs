//! Asking at the end of a run what becomes of it: at a terminal only.
//!
//! The exit code of a shell that somebody has typed into is that of the last command, by chance a
//! failed one; it says nothing of the work before.

use crate::args::{DiffFormat, OnExit, Run};
use crate::commands::diff;
use crate::output::{self, Out};
use crate::problem::Problem;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use systx_base::TxnId;
use systx_protocol::call;
use systx_protocol::client::Client;
use systx_protocol::{End, Target};
use systx_session::{Answer, Ended, Listen, Started};

/// Shells that take commands from a terminal if nothing else is given to them.
const SHELLS: [&str; 14] = [
    "ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "mksh", "nu", "pwsh", "rbash", "sh",
    "tcsh", "zsh",
];

/// What happens at the end of a run.
pub fn on_exit(args: &Run, out: Out) -> OnExit {
    let given = args.on_exit.unwrap_or(match interactive(&args.argv) {
        true => OnExit::Ask,
        false => OnExit::Commit,
    });
    let somebody = !out.json
        && std::io::stdin().is_terminal()
        && std::io::stdout().is_terminal()
        && std::io::stderr().is_terminal();
    match (given, args.on_exit) {
        (OnExit::Ask, None) if !somebody => OnExit::Commit,
        // As it waits elsewhere, too, for what is to be asked.
        (OnExit::Ask, Some(_)) if !somebody => OnExit::Keep,
        (given, _) => given,
    }
}

/// A shell that somebody types into: without a script and without commands as an argument.
fn interactive(argv: &[OsString]) -> bool {
    let Some((program, args)) = argv.split_first() else { return false };
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let option = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        // `-c` may stand among other letters; long options take no letters.
        arg.starts_with("--") || (arg.starts_with('-') && !arg.contains('c') && arg.len() > 1)
    };
    SHELLS.contains(&&*name) && args.iter().all(option)
}

/// What there was instead of an answer, or how it is to end.
pub enum Asked {
    /// So.
    Answered(End),
    /// This came first.
    Instead(Ended),
}

/// Asks.  Who goes without an answer has not said that the work may be dropped.
///
/// # Errors
/// The daemon does not answer, or the terminal cannot be waited for.
pub fn ask(
    client: &mut Client,
    id: TxnId,
    started: &mut Started,
    listen: &Listen<'_>,
    out: Out,
) -> Result<Asked, Problem> {
    let summary = client.ask(&call::Status { id })?.listed.summary;
    if output::is_empty(&summary) {
        return Ok(Asked::Answered(End::Abort));
    }
    out.say(&format!("{}, not committed yet", output::summary(&summary)));
    loop {
        output::aside_bytes(b"systx: [c]ommit, [k]eep, [a]bort, or show the [d]iff? ");
        let answer = started.ask(listen);
        let answer = answer.map_err(|e| Problem::new(format!("waiting for an answer: {e}")))?;
        match answer {
            Answer::Line(line) => match line.trim().to_lowercase().as_str() {
                "c" | "commit" => return Ok(Asked::Answered(End::Commit)),
                "k" | "keep" => return Ok(Asked::Answered(End::Keep)),
                "a" | "abort" => return Ok(Asked::Answered(End::Abort)),
                "d" | "diff" => {
                    let target = Target::Open { id };
                    let changes =
                        client.ask(&call::Diff { target: target.clone(), paths: Vec::new() })?;
                    diff::show(client, &target, &changes, DiffFormat::default())?;
                }
                _ => {}
            },
            Answer::None => {
                output::aside("");
                return Ok(Asked::Answered(End::Keep));
            }
            Answer::Instead(ended) => {
                output::aside("");
                return Ok(Asked::Instead(ended));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_that_somebody_types_into_are_known() {
        let is =
            |words: &[&str]| interactive(&words.iter().map(OsString::from).collect::<Vec<_>>());
        for words in [&["bash"][..], &["/bin/sh"], &["zsh", "-l"], &["bash", "--norc", "-i"]] {
            assert!(is(words), "{words:?}");
        }
        for words in [
            &["bash", "-c", "x"][..],
            &["sh", "script"],
            &["bash", "-xec", "y"],
            &["make"],
            &[],
            &["sh", "-"],
        ] {
            assert!(!is(words), "{words:?}");
        }
    }
}
