//! `systx list`: the open transactions.

use crate::context;
use crate::output::{self, Out};
use crate::problem::Problem;
use systx_protocol::call;
use systx_protocol::runtime::Runtime;
use systx_protocol::{Listed, State};

/// Lists them.
///
/// # Errors
/// The daemon does not answer.
pub fn list(out: Out) -> Result<i32, Problem> {
    let open = open()?;
    if out.json {
        out.json("transactions", &open);
        return Ok(0);
    }
    if open.is_empty() {
        out.say("no open transactions");
        return Ok(0);
    }
    let mut text = String::new();
    for t in &open {
        text.push_str(&format!(
            "{}  {:<10}  {}  {}  {}\n",
            t.id,
            state(t.state),
            output::time(t.begun),
            output::short_command(&t.argv, 50),
            output::summary(&t.summary),
        ));
    }
    output::print(&text);
    Ok(0)
}

/// The open transactions.  Without a daemon there are none: it is not started to say so.
pub fn open() -> Result<Vec<Listed>, Problem> {
    if context::inside().is_some() {
        return Ok(context::connect()?.ask(&call::List)?);
    }
    let mut open = match Runtime::find()?.connect()? {
        Some(mut client) => client.ask(&call::List)?,
        None => Vec::new(),
    };
    // Those that this user has in guarded directories.
    if let Some(mut client) = context::connect_as_guest()? {
        open.extend(client.ask(&call::List)?);
    }
    Ok(open)
}

/// A state in one word.
pub fn state(s: State) -> &'static str {
    match s {
        State::Running => "running",
        State::Kept => "kept",
        State::Open => "open",
        State::Doomed => "lost",
        State::Committing => "committing",
    }
}
