//! `systx abort`: drops an open transaction.

use crate::args::Id;
use crate::context;
use crate::output::{self, Out};
use crate::problem::Problem;
use systx_protocol::{Outcome, call};

/// Drops it.
///
/// # Errors
/// There is no such transaction, or it was decided already.
pub fn abort(args: &Id, out: Out) -> Result<i32, Problem> {
    let (mut client, id) = context::find_open(&args.id)?;
    let outcome = client.ask(&call::Abort { id })?;
    if out.json {
        out.json("aborted", &outcome);
    } else if let Outcome::Aborted { summary } = &outcome {
        out.say(&format!("aborted {id}; dropped: {}", output::summary(summary)));
    }
    Ok(0)
}
