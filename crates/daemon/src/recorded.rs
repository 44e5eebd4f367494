//! Sections of the daemon's locks, written to a file at its end: what `bench/metatm --record`
//! reads.

use std::fmt::Write as _;
use std::path::Path;
use systx_base::sync::record::take;

/// Writes all sections that have ended, one a line, in the order of their ends.  What was touched
/// is `number` or, if it was changed, `number!`.
pub fn write(path: &Path) {
    let mut text =
        String::from("thread,rank,lock,place,shared,depth,wanted,waited,held,io,touched\n");
    for s in take() {
        let place = format!("{}:{}", s.file, s.line);
        let _ = write!(
            text,
            "{},{},{:x},{place},{},{},{},{},{},{},",
            s.thread, s.rank, s.lock, s.shared, s.depth, s.wanted, s.waited, s.held, s.io
        );
        for (number, changed) in s.touched {
            let _ = write!(text, "{number:x}{} ", if changed { "!" } else { "" });
        }
        text.push('\n');
    }
    match std::fs::write(path, text) {
        Ok(()) => tracing::info!("sections are in {}", path.display()),
        Err(e) => tracing::warn!("{}: {e}", path.display()),
    }
}
