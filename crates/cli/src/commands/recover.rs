//! `systx recover`: finishes or discards what a crash left.

use crate::args::Recover;
use crate::context;
use crate::output::Out;
use crate::problem::{OUTSIDE, Problem};

/// Recovers the volume's store.
///
/// # Errors
/// The store cannot be used.
pub fn recover(args: &Recover, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let mut client = context::connect()?;
    let found = client.recover(place)?;
    if out.json {
        out.json("recovered", &found);
    } else {
        match (found.finished, found.discarded) {
            (0, 0) => out.say("nothing to recover"),
            (f, d) => out.say(&format!(
                "{f} committed transactions installed, remains of {d} unfinished ones discarded"
            )),
        }
        for note in &found.notes {
            out.say(note);
        }
        for change in &found.outside {
            let saved = change.saved.as_ref().map(|s| format!("; what was there is now {s}"));
            out.warn(&format!("{}: {}{}", change.path, change.what, saved.unwrap_or_default()));
        }
    }
    Ok(if found.outside.is_empty() { 0 } else { OUTSIDE })
}
