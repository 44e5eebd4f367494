//! `systx gc`: bounds the space of undo information.

use crate::args::Gc;
use crate::context;
use crate::output::{self, Out};
use crate::problem::Problem;
use systx_protocol as protocol;

/// Collects.
///
/// # Errors
/// The store cannot be used.
pub fn gc(args: &Gc, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let mut client = context::connect()?;
    let request =
        protocol::Gc { place, keep: args.keep, max_bytes: args.max_size, dry_run: args.dry_run };
    let done = client.ask(&request)?;
    if out.json {
        out.json("collected", &done);
    } else {
        let verb = if args.dry_run { "would forget" } else { "forgot" };
        let s = if done.transactions == 1 { "" } else { "s" };
        out.say(&format!(
            "{verb} how to undo {} transaction{s}: {} given back; {} kept for {} more",
            done.transactions,
            output::size(done.bytes),
            output::size(done.remaining),
            done.undoable,
        ));
    }
    Ok(0)
}
