//! `systx status`: one open transaction in detail, or all of them.

use crate::args::OptionalId;
use crate::commands::list;
use crate::output::{self, Out};
use crate::problem::Problem;
use crate::{classes, context};
use systx_base::TxnId;
use systx_protocol::call;
use systx_protocol::runtime::Runtime;
use systx_protocol::{FailureKind, Isolation, Listed, State, Status};

/// Shows it.
///
/// # Errors
/// There is no such transaction, or the daemon does not answer.
pub fn status(args: &OptionalId, out: Out) -> Result<i32, Problem> {
    let open = list::open()?;
    let Some(prefix) = &args.id else {
        if out.json {
            out.json("transactions", &open);
        } else if open.is_empty() {
            out.say("no open transactions");
        } else {
            let all: Vec<String> = open.iter().map(describe).collect();
            output::print(&all.join("\n"));
        }
        tell_waiting(out);
        return Ok(0);
    };
    let ids: Vec<_> = open.iter().map(|t| t.id).collect();
    let id = context::resolve(prefix, &ids, "open")
        .map_err(|p| p.hint("`systx list` shows the open ones, `systx log` the committed ones"))?;
    let status = detail(id)?;
    if out.json {
        out.json("transaction", &status);
    } else {
        let (listed, mut text) = (&status.listed, describe(&status.listed));
        for (n, class) in classes::lines(&status.classes, out).iter().enumerate() {
            text.push_str(&line(if n == 0 { "classes" } else { "" }, class));
        }
        output::print(&text);
        if matches!(listed.state, State::Kept | State::Open) {
            out.hint(&format!("systx diff {id}; systx commit {id}; systx abort {id}"));
        }
    }
    Ok(0)
}

/// One that is listed as open, by the daemon that has it.
fn detail(id: TxnId) -> Result<Status, Problem> {
    if let Some(mut client) = Runtime::find()?.connect()? {
        match client.ask(&call::Status { id }) {
            Err(f) if f.kind == FailureKind::NotFound => {}
            answer => return Ok(answer?),
        }
    }
    match context::connect_as_guest()? {
        Some(mut client) => Ok(client.ask(&call::Status { id })?),
        None => Err(Problem::new(format!("transaction {id} has ended meanwhile"))),
    }
}

/// What committed transactions of this volume, and of those that are in use, still want done.
fn tell_waiting(out: Out) {
    let Ok(Some(mut client)) = Runtime::find().and_then(|r| r.connect()) else { return };
    let waiting = client.ask(&call::Deferred(None)).unwrap_or_default();
    for action in waiting.iter().flat_map(|d| d.actions.iter().map(move |a| (d.id, a))) {
        out.say(&format!("not done yet, wanted by {}: {}", action.0, output::command(action.1)));
    }
    if !waiting.is_empty() {
        out.hint("systx services --run ID does it, systx services --drop ID forgets it");
    }
}

fn line(name: &str, value: &str) -> String {
    format!("  {name:<10} {value}\n")
}

fn describe(t: &Listed) -> String {
    let mut text = format!("transaction {}: {}\n", t.id, list::state(t.state));
    let mut line = |name: &str, value: String| text.push_str(&line(name, &value));
    line("command", output::command(&t.argv));
    if let Some(code) = t.code {
        line("exit code", code.to_string());
    }
    line("directory", t.cwd.display().into_owned());
    if let Some(view) = &t.view {
        line("view", view.display().into_owned());
    }
    line("volume", t.volume.display().into_owned());
    line("begun", output::time(t.begun));
    let isolation = match t.isolation {
        Isolation::Serializable => "serializable",
        Isolation::Snapshot => "snapshot",
    };
    let read_only = if t.read_only { ", read-only" } else { "" };
    line("isolation", format!("{isolation}{read_only}"));
    if let Some(pid) = t.pid {
        line("process", pid.to_string());
    }
    line("changes", output::summary(&t.summary));
    for action in &t.deferred {
        line("after it", output::command(action));
    }
    if let Some(c) = &t.conflict {
        line("lost", format!("on {} to {}", c.path, output::opponent(&c.opponent)));
    }
    text
}
