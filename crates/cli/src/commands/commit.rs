//! `systx commit`: commits a kept transaction, or the part of it below some paths.

use crate::args::Commit;
use crate::commands::services;
use crate::commands::told::{tell_committed, tell_conflict};
use crate::output::{self, Out};
use crate::problem::{CONFLICT, ERROR, OUTSIDE, Problem};
use crate::{context, progress, render};
use systx_protocol::{FailureKind, Outcome, Target, call};

/// Commits it.
///
/// # Errors
/// There is no such transaction, it still runs, or a path names no change of it.
pub fn commit(args: &Commit, out: Out) -> Result<i32, Problem> {
    let (mut client, id) = context::find_open(&args.id)?;
    progress::show(&mut client, out);
    let paths = context::absolute_paths(&args.paths)?;
    if args.dry_run {
        let mut changes = client.ask(&call::Diff { target: Target::Open { id }, paths })?;
        changes.retain(|c| !c.dropped);
        if out.json {
            out.json("would_commit", &changes);
        } else {
            output::print_bytes(&render::name_status(&changes, false));
        }
        return Ok(0);
    }
    let wanted = if paths.is_empty() {
        client.ask(&call::Status { id })?.listed.deferred
    } else {
        Vec::new()
    };
    let outcome = client.ask(&call::Commit { id, paths })?;
    if out.json {
        out.json("commit", &outcome);
    }
    let code = exit_code(&outcome, out, Some(&format!("transaction {id} is still there")));
    if matches!(outcome, Outcome::Committed { .. }) && !wanted.is_empty() {
        services::carry_out(&mut client, id, &wanted, args.services, out);
    }
    Ok(code)
}

/// Tells how a commit ended (that was not a run's) and which exit code it means.
pub fn exit_code(outcome: &Outcome, out: Out, if_kept: Option<&str>) -> i32 {
    match outcome {
        Outcome::Committed { summary, .. } => {
            if output::is_empty(summary) {
                out.say("nothing to commit");
            }
            if tell_committed(out, outcome) { OUTSIDE } else { 0 }
        }
        Outcome::Conflict { conflict, kept } => {
            tell_conflict(out, conflict, false);
            if let (true, Some(text)) = (*kept, if_kept) {
                out.say(text);
            }
            CONFLICT
        }
        Outcome::Refused { failure, kept } => {
            if !out.json {
                out.problem(&Problem::from(failure.clone()), false);
            }
            if let (true, Some(text)) = (*kept, if_kept) {
                out.say(text);
            }
            if failure.kind == FailureKind::Busy { CONFLICT } else { ERROR }
        }
        Outcome::Unfinished { failure, kept, .. } => {
            if !out.json {
                out.problem(&Problem::from(failure.clone()), false);
            }
            if let (true, Some(text)) = (*kept, if_kept) {
                out.say(&format!("{text}, with what was not to be committed"));
            }
            ERROR
        }
        Outcome::Aborted { .. } | Outcome::Kept { .. } => 0,
    }
}
