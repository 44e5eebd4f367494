//! `systx undo` and `systx redo`.

use crate::args::{Redo, Undo};
use crate::commands::commit;
use crate::output::{self, Out};
use crate::problem::Problem;
use crate::{context, progress, render};
use systx_protocol::{self as protocol, Undone, call};

/// Undoes a committed transaction, or a part of it.
///
/// # Errors
/// There is none, it cannot be undone any more, or later changes overlap (they are named).
pub fn undo(args: &Undo, out: Out) -> Result<i32, Problem> {
    take_back(args, false, out)
}

/// Takes an undo back.
///
/// # Errors
/// As [`undo`].
pub fn redo(args: &Redo, out: Out) -> Result<i32, Problem> {
    let Redo { id, dry_run, place } = args.clone();
    take_back(&Undo { id, paths: Vec::new(), dry_run, place }, true, out)
}

fn take_back(args: &Undo, redo: bool, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let paths = context::absolute_paths(&args.paths)?;
    let mut client = context::connect()?;
    progress::show(&mut client, out);
    let id = match &args.id {
        Some(prefix) => Some(context::resolve_committed(&mut client, prefix, &place)?),
        None => None,
    };
    let request = protocol::Undo { place, id, paths, dry_run: args.dry_run };
    let undone = match redo {
        true => client.ask(&call::Redo(request))?,
        false => client.ask(&request)?,
    };
    if out.json {
        out.json(if redo { "redo" } else { "undo" }, &undone);
    }
    let Undone { target, argv, cwd, changes, notes, outcome } = &undone;
    let what = format!("{target} ({}) in {cwd}", output::short_command(argv, 60));
    let verb = if redo { "redo" } else { "undo" };
    let Some(outcome) = outcome else {
        if !out.json {
            out.say(&format!("would {verb} {what}:"));
            notes.iter().for_each(|note| out.say(note));
            output::print_bytes(&render::name_status(changes, false));
        }
        return Ok(0);
    };
    if matches!(outcome, protocol::Outcome::Committed { .. }) {
        let verb = if redo { "redone" } else { "undone" };
        out.say(&format!("{verb}: {what}"));
    }
    notes.iter().for_each(|note| out.say(note));
    Ok(commit::exit_code(outcome, out, None))
}
