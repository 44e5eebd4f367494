//! `systx log`: committed transactions, the latest first.

use crate::args::Log;
use crate::context;
use crate::output::{self, Out};
use crate::problem::Problem;
use systx_protocol::{LogEntry, call};

/// Lists them.
///
/// # Errors
/// The store cannot be used.
pub fn log(args: &Log, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let mut client = context::connect()?;
    let paths = context::absolute_paths(&args.paths)?;
    let entries = client.ask(&call::Log { place, limit: args.limit, paths })?;
    if out.json {
        out.json("log", &entries);
    } else if entries.is_empty() && args.limit != Some(0) {
        out.say(match args.paths.is_empty() {
            true => "nothing was committed on this volume yet",
            false => "no transaction in the log changed anything there",
        });
    } else {
        let lines: Vec<String> = entries.iter().map(line).collect();
        output::print(&lines.concat());
    }
    Ok(0)
}

/// One entry as a line.
pub fn line(e: &LogEntry) -> String {
    let mut marks = Vec::new();
    if let Some(id) = e.undoes {
        marks.push(format!("undoes {id}"));
    }
    if let Some(id) = e.undone_by {
        marks.push(format!("undone by {id}"));
    }
    if !e.undoable && e.undone_by.is_none() {
        marks.push("cannot be undone any more".into());
    }
    for action in &e.deferred {
        marks.push(format!("not done yet: {}", output::command(action)));
    }
    let marks = if marks.is_empty() { String::new() } else { format!(" ({})", marks.join(", ")) };
    format!(
        "{}  {}  {}  {}{marks}\n",
        e.id,
        output::time(e.time),
        output::short_command(&e.argv, 50),
        output::summary(&e.summary),
    )
}
