//! `systx show`: a committed transaction and its changes.

use crate::args::Show;
use crate::commands::{diff, log};
use crate::context;
use crate::output::{self, Out};
use crate::problem::Problem;
use serde::Serialize;
use systx_protocol::call;
use systx_protocol::{Change, LogEntry, Target};

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    entry: &'a LogEntry,
    changes: &'a [Change],
}

/// Shows it.
///
/// # Errors
/// There is no such transaction, or the store cannot be used.
pub fn show(args: &Show, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let mut client = context::connect()?;
    let id = context::resolve_committed(&mut client, &args.id, &place)?;
    let target = Target::Committed { place: place.clone(), id };
    let changes = client.ask(&call::Diff { target: target.clone(), paths: Vec::new() })?;
    // A log of a path is that of its file system, which need not be the one of the place.
    let paths = changes.first().map(|change| change.path.clone()).into_iter().collect();
    let entries = client.ask(&call::Log { place, limit: None, paths })?;
    let Some(entry) = entries.iter().find(|e| e.id == id) else {
        return Err(Problem::new(format!("no committed transaction {id}")));
    };
    if out.json {
        out.json("transaction", &Shown { entry, changes: &changes });
        return Ok(0);
    }
    output::print(&log::line(entry));
    output::print(&format!("  in {}: {}\n\n", entry.cwd, output::command(&entry.argv)));
    diff::show(&mut client, &target, &changes, args.format)?;
    Ok(0)
}
