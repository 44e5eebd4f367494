//! What is told of a commit, and of a conflict that was lost.

use crate::output::{self, Out};
use crate::problem::Problem;
use systx_protocol::{Conflict, HostPath, Outcome};

/// Tells of a commit; true if changes by outsiders were met.
pub fn tell_committed(out: Out, outcome: &Outcome) -> bool {
    let Outcome::Committed { id, summary, outside, stale, dropped, notes } = outcome else {
        return false;
    };
    if !output::is_empty(summary) {
        out.say(&format!("committed {id}: {}", output::summary(summary)));
    }
    if *dropped > 0 {
        out.say(&format!("{dropped} changed paths are excluded and were not committed"));
    }
    for path in stale {
        out.warn(&format!("{path} was read and has changed since (snapshot isolation)"));
    }
    for note in notes {
        out.say(note);
    }
    for change in outside {
        let saved = match &change.saved {
            Some(saved) => format!("; what was there is now {saved}"),
            None => String::new(),
        };
        out.warn(&format!("{}: {}{saved}", change.path, change.what));
    }
    if !outside.is_empty() {
        out.hint("these were changed by programs outside while the transaction was installed");
    }
    !outside.is_empty()
}

/// What a transaction lost to, and where.
pub fn conflict_text(c: &Conflict) -> String {
    let against = output::opponent(&c.opponent);
    format!("conflict on {} with {against}", c.path)
}

/// Whether a file is what this process, and so its command, has been given for its output.
fn is_own_output(path: &HostPath) -> bool {
    use rustix::fs::{fstat, stat};
    let is = |fd| {
        let of = stat(path.as_path()).ok().zip(fstat(fd).ok());
        of.is_some_and(|(a, b)| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    };
    is(rustix::stdio::stdout()) || is(rustix::stdio::stderr())
}

/// Tells of a lost conflict.
pub fn tell_conflict(out: Out, c: &Conflict, suggest_retries: bool) {
    if out.json {
        return; // it is in the report
    }
    out.problem(&Problem::new(format!("{}: nothing committed", conflict_text(c))), true);
    for path in c.stale.iter().filter(|p| **p != c.path).take(10) {
        out.say(&format!("  also read and changed since: {path}"));
    }
    if is_own_output(&c.path) {
        // Each attempt does that again.
        out.hint(&format!(
            "the output goes to that file past the transaction, since it was open before systx \
             began; let the command open it: systx run -- sh -c 'CMD >> {}'",
            c.path
        ));
    } else if c.stale_only {
        out.hint("only a read was stale: under --isolation=snapshot, stale reads alone do not make a run fail");
    } else if suggest_retries {
        out.hint("run it again, or let systx do so: --retries N");
    }
}
