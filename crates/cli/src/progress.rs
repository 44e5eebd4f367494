//! How far a long request is, as one line on the terminal that goes when the answer is there.

use crate::output::Out;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use systx_protocol::client::{Client, Watcher};
use systx_protocol::runtime::Runtime;
use systx_protocol::{Phase, Progress};

/// Shows how far the client's requests are, if there is a terminal to show it on and somebody who
/// wants to see it.
pub fn show(client: &mut Client, out: Out) {
    // Where signs cannot be taken back, a line that changes would be one after the other.
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if std::io::stderr().is_terminal() && !dumb && !out.quiet && !out.json {
        client.watch(Box::new(Line { shown: None }));
    }
}

#[derive(Debug)]
struct Line {
    /// What it shows, which has a style and a length of its own in each phase.
    shown: Option<(Phase, u64, ProgressBar)>,
}

/// The line of a phase.
fn bar(phase: Phase, total: u64) -> ProgressBar {
    let what = match phase {
        Phase::Checking => "checking",
        Phase::Saving => "saving for undo",
        Phase::Syncing => "syncing",
        Phase::Installing => "installing",
    };
    let counted = "systx: {msg} [{bar:30}] {pos} of {len}";
    let template = if total == 0 { "systx: {msg}" } else { counted };
    // The templates are right; if they were not, the line would look otherwise.
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // Not drawn before all of it is known.
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
        .with_style(style.progress_chars("##-"))
        .with_message(what)
}

impl Watcher for Line {
    fn connect(&mut self) -> Option<Client> {
        Runtime::find().ok()?.connect().ok()?
    }

    fn at(&mut self, Progress { phase, done, total }: Progress) {
        if let Some((.., bar)) = self.shown.as_ref().filter(|(p, t, _)| (*p, *t) == (phase, total))
        {
            return bar.set_position(done);
        }
        self.over();
        let bar = bar(phase, total).with_position(done);
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.tick();
        self.shown = Some((phase, total, bar));
    }

    fn over(&mut self) {
        if let Some((.., bar)) = self.shown.take() {
            bar.finish_and_clear();
        }
    }
}
