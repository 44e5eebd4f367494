//! `systx run`: begin, view, CMD, the end of its processes, commit; again if it lost and may.

use crate::args::{IsolationArg, LeftoversArg, OnExit, Run, TransportArg};
use crate::commands::ask::{self, Asked};
use crate::commands::services;
use crate::commands::told::{conflict_text, tell_committed, tell_conflict};
use crate::ignore_file::Ignored;
use crate::output::{self, Out};
use crate::problem::{CONFLICT, FAILED, OUTSIDE, Problem, TIMED_OUT};
use crate::{classes, context, glob, progress};
use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use systx_base::TxnId;
use systx_protocol::client::Client;
use systx_protocol::modes::{self, Way};
use systx_protocol::{
    Action, Attach, Begin, Begun, Class, Conflict, End, Failure, FailureKind, Finish, HostPath,
    Isolation, Listed, Opponent, Outcome, Place, Rule, Summary, Transport, VolumeFacts,
};
use systx_protocol::{call, wire};
use systx_session::plan::{Guarded, Wish};
use systx_session::stand_in::StandIns;
use systx_session::{
    Backing, Ended, Fill, Leftovers, Limits, Listen, PlaceToRun, Settled, Sighting, Spec, Started,
    ViewFacts,
};

/// Restricts a run to the file system of its working directory.
const ONE_FILE_SYSTEM: &str = "SYSTX_ONE_FILE_SYSTEM";

/// How long a loser waits for the winner before it tries again anyway.
const WINNER_LIMIT: Duration = Duration::from_secs(30);

/// What is told of a run as JSON.
#[derive(Debug, Serialize)]
struct Report {
    id: String,
    attempts: u32,
    code: Option<i32>,
    exit: i32,
    end: Option<Outcome>,
    aborted_because: Option<String>,
    dropped_private: Vec<HostPath>,
    ended_leftovers: Vec<String>,
    reached_outside: Vec<String>,
    out_of_reach: Vec<String>,
    /// Writes were refused because of `--limit-size`.
    limited: bool,
    /// What was wanted of service managers, and what became of it.
    services: Vec<services::Done>,
}

/// Runs the command.
///
/// # Errors
/// systx itself failed; nothing was committed, unless the message says otherwise.
pub fn run(args: &Run, out: Out) -> Result<i32, Problem> {
    if let Some(id) = context::inside() {
        return Err(join(args, &id, out));
    }
    if args.limit_processes.is_some() && rustix::process::geteuid().is_root() {
        return Err(modes::refusal(Way::Root, Way::LimitProcesses, "").into());
    }
    let place = context::place(&args.place)?;
    let ignored = classes::ignored(&args.classes, place.cwd.as_path(), out);
    let through = passthrough(args, place.cwd.as_path(), &ignored)?;
    for doubt in classes::doubts(&args.classes.exclude, place.cwd.as_path()) {
        out.warn(&doubt);
    }
    let mut runner = Runner {
        others: others(&place, &paths(&through)),
        through,
        patterns: classes::patterns(place.cwd.as_path(), &ignored, &args.classes),
        deadline: args.timeout.and_then(|t| Instant::now().checked_add(t)),
        client: context::connect()?,
        on_exit: ask::on_exit(args, out),
        args,
        out,
        place,
        losses: 0,
        timestamp: None,
        wanted: None,
    };
    progress::show(&mut runner.client, out);
    let (mut report, ended) = loop {
        match runner.attempt()? {
            Attempt::Over(report, ended) => break (report, ended),
            Attempt::Again(opponent) => runner.wait_before_retry(opponent.as_ref()),
        }
    };
    let exit = runner.over(&mut report);
    Ok(end_as(runner, ended, exit))
}

/// Ends this process as its command was ended, where a signal did that and the exit code says
/// nothing else: a shell goes on after a program that exits with 130, and not after one that `^C`
/// has ended.  `held` is given up first.
pub fn end_as(held: impl Sized, ended: Ended, exit: i32) -> i32 {
    drop(held);
    if let Ended::Signaled(signal) = ended
        && ended.code() == Some(exit)
    {
        systx_session::suffer(signal);
    }
    exit
}

/// A run inside a run joins it: CMD simply runs, in the outer transaction.
fn join(args: &Run, id: &str, out: Out) -> Problem {
    let wanted = modes::chosen([
        (true, Way::Inner),
        (args.on_exit.is_some_and(|end| end != OnExit::Commit), Way::OnExit),
        (args.read_only, Way::ReadOnly),
        (args.no_net, Way::NoNet),
    ]);
    let fit = modes::check(&wanted, id).map_err(Problem::from);
    if let Err(p) = fit.and_then(|()| context::place(&args.place)) {
        return p;
    }
    out.detail(&format!("joining transaction {id}"));
    Problem::from(systx_session::execute(&args.argv))
}

/// Further file systems that the run covers: those of this mount namespace that can be written,
/// unless one is named, or the environment says otherwise.
pub fn others(place: &Place, passthrough: &[PathBuf]) -> Vec<HostPath> {
    let one = std::env::var_os(ONE_FILE_SYSTEM).is_some_and(|v| !v.is_empty() && v != "0");
    if one || place.root.is_some() || place.store.is_some() {
        return Vec::new();
    }
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = systx_session::mountinfo::parse(&text).unwrap_or_default();
    let roots = systx_session::plan::further(&mounts, place.cwd.as_path(), passthrough);
    let is_dir = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    roots.into_iter().filter(is_dir).map(HostPath::from).collect()
}

/// Existing paths that are not isolated.
fn passthrough(args: &Run, cwd: &Path, ignored: &Ignored) -> Result<Vec<Rule>, Problem> {
    let mut rules = Vec::new();
    let rule = |path: PathBuf, from: &str| classes::rule(Class::Passthrough, path, from);
    for given in &args.classes.passthrough {
        let found = glob::expand(&glob::absolute(given.as_ref(), cwd));
        if found.is_empty() {
            return Err(Problem::new(format!("--passthrough {given}: nothing there"))
                .hint("only what exists when the run begins can be left out of isolation"));
        }
        rules.extend(found.into_iter().map(|path| rule(path, "--passthrough")));
    }
    for (pattern, from) in ignored.passthrough.iter().zip(&ignored.from.1) {
        let from = from.display().to_string();
        rules.extend(glob::expand(pattern).into_iter().map(|path| rule(path, &from)));
    }
    rules.sort_by(|a, b| a.path.as_path().cmp(b.path.as_path()));
    rules.dedup_by(|later, kept| later.path == kept.path);
    Ok(rules)
}

fn paths(rules: &[Rule]) -> Vec<PathBuf> {
    rules.iter().map(|rule| rule.path.as_path().to_owned()).collect()
}

enum Attempt {
    /// So, and how CMD ended.
    Over(Box<Report>, Ended),
    /// It lost against this one, and may try again.
    Again(Option<Opponent>),
}

struct Runner<'a> {
    args: &'a Run,
    on_exit: OnExit,
    out: Out,
    place: Place,
    /// What is not isolated, and who says so.
    through: Vec<Rule>,
    /// What is not committed, and what is merged.
    patterns: Vec<Rule>,
    /// Roots of further file systems.
    others: Vec<HostPath>,
    deadline: Option<Instant>,
    client: Client,
    losses: u32,
    timestamp: Option<u64>,
    /// What the committed attempt wants done outside.
    wanted: Option<(TxnId, Vec<Action>)>,
}

/// What a run without commit ended for.
enum Why {
    /// CMD failed, or `--on-exit` says so.
    Asked,
    /// It was ended by somebody else, which the daemon tells of so.
    Elsewhere(String),
    Lost(Option<Conflict>),
    TimedOut,
    Leftovers(&'static str),
    Sync(rustix::io::Errno),
}

impl Runner<'_> {
    fn attempt(&mut self) -> Result<Attempt, Problem> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Problem::new(format!("eventfd: {e}")))?;
        let begun = self.client.ask_with(&self.begin(), &[doorbell.as_fd()])?;
        self.timestamp = Some(begun.timestamp);
        for note in &begun.notes {
            self.out.say(note);
        }
        for note in &begun.details {
            self.out.detail(note);
        }
        let stand_ins = services::stand_ins();
        let fill = [fill(), services::fill()].concat();
        let known = fill
            .iter()
            .map(|f| f.path.clone())
            .chain(stand_ins.paths())
            .chain(paths(&self.through))
            .chain(begun.unprotected.iter().map(|path| path.as_path().to_owned()))
            .collect();
        let mut started = self.start(&begun, fill, stand_ins)?;
        for note in &started.notes {
            self.out.detail(note);
        }
        let listen = Listen {
            doorbell: Some(doorbell.as_fd()),
            daemon: Some(self.client.as_fd()),
            deadline: self.deadline,
            watch: true,
        };
        let failed = |e| Problem::new(format!("waiting for the command: {e}"));
        let ended = started.wait(&listen).map_err(failed)?;
        let how = match self.args.leftovers {
            LeftoversArg::Wait => Leftovers::Wait,
            LeftoversArg::Kill => Leftovers::Kill,
            LeftoversArg::Abort => Leftovers::Abort,
        };
        let settled = match ended {
            Ended::Exited(_) | Ended::Signaled(_) => {
                started.settle(how, &listen).map_err(failed)?
            }
            _ => Settled::default(),
        };
        let mut end = After { ended, settled, started, id: begun.id, known, doorbell };
        if end.what_happened() == Ended::DaemonGone {
            return Err(daemon_gone(begun.id));
        }
        let (wanted, why) = self.decide(&mut end)?;
        self.finish(&mut end, wanted, why)
    }

    fn begin(&self) -> Begin {
        Begin {
            place: self.place.clone(),
            argv: self.args.argv.iter().cloned().map(HostPath::from).collect(),
            isolation: match self.args.isolation {
                IsolationArg::Serializable => Isolation::Serializable,
                IsolationArg::Snapshot => Isolation::Snapshot,
            },
            read_only: self.args.read_only,
            policy: self.args.conflicts.policy.map(Into::into),
            losses: self.losses,
            timestamp: self.timestamp,
            rules: self.patterns.clone(),
            limit_bytes: self.args.limit_size,
            transport: match self.args.transport {
                TransportArg::Auto => Transport::Auto,
                TransportArg::IoUring => Transport::IoUring,
                TransportArg::Dev => Transport::Dev,
            },
            others: self.others.clone(),
        }
    }

    fn start(
        &mut self,
        begun: &Begun,
        fill: Vec<Fill>,
        stand_ins: StandIns,
    ) -> Result<Started, Problem> {
        let cwd = self.place.cwd.as_path().to_owned();
        let mut env = environment(begun.id, self.args.place.directory.is_some().then_some(&cwd));
        env.extend(services::path(&stand_ins));
        let private_tmp = self.args.classes.private_tmp;
        let through = (&*paths(&self.through), &*begun.unprotected);
        let wish = wish(&begun.volume, &begun.others, &cwd, private_tmp, through);
        let mut rules = classes::places(&wish.private, private_tmp);
        rules.extend(self.through.iter().cloned());
        let spec = Spec {
            watch: true,
            limits: Limits {
                memory: self.args.limit_memory,
                processes: self.args.limit_processes,
                time: self.args.limit_time,
            },
            argv: self.args.argv.clone(),
            env,
            place: PlaceToRun::NewView {
                backing: Backing::Fuse,
                wish,
                fill,
                no_net: self.args.no_net,
                stand_ins,
            },
            cwd,
        };
        let (client, out) = (&mut self.client, self.out);
        let mut serve = serve(client, begun.id, rules, out);
        let started = systx_session::start(&spec, &mut serve);
        drop(serve);
        started.map_err(|e| {
            let deferred = Vec::new();
            let finish = Finish { id: begun.id, end: End::Abort, code: None, deferred };
            // If this fails too, the end of the connection has the same effect.
            let _ = self.client.ask(&finish);
            Problem::from(e)
        })
    }

    /// What to ask the daemon for, and why.
    fn decide(&mut self, after: &mut After) -> Result<(End, Why), Problem> {
        match after.what_happened() {
            Ended::Doomed => return Ok((End::Abort, self.doom(after.id)?)),
            Ended::TimedOut => return Ok((End::Abort, Why::TimedOut)),
            _ => {}
        }
        if !after.settled.stuck.is_empty() {
            return Ok((End::Abort, Why::Leftovers("cannot be ended")));
        }
        if self.args.leftovers == LeftoversArg::Abort && !after.settled.ended.is_empty() {
            return Ok((End::Abort, Why::Leftovers("were left behind (--leftovers=abort)")));
        }
        // What the kernel still holds of shared mappings must be in the transaction before it ends.
        if let Err(errno) = after.started.sync() {
            return self.lost_or(after.id, Why::Sync(errno));
        }
        let end = match (self.on_exit, after.what_happened()) {
            (OnExit::Ask, _) if !self.args.read_only => return self.ask(after),
            (OnExit::Keep, _) => End::Keep,
            (OnExit::Commit, Ended::Exited(0)) => End::Commit,
            // It may have failed on what somebody outside has changed since.
            (OnExit::Commit, Ended::Exited(_)) => return self.lost_or(after.id, Why::Asked),
            _ => End::Abort,
        };
        Ok((end, Why::Asked))
    }

    /// Asks what becomes of it.
    fn ask(&mut self, after: &mut After) -> Result<(End, Why), Problem> {
        let daemon = self.client.as_fd().try_clone_to_owned()?;
        let listen = Listen {
            doorbell: Some(after.doorbell.as_fd()),
            daemon: Some(daemon.as_fd()),
            deadline: self.deadline,
            watch: false,
        };
        Ok(match ask::ask(&mut self.client, after.id, &mut after.started, &listen, self.out)? {
            Asked::Answered(end) => (end, Why::Asked),
            Asked::Instead(Ended::TimedOut) => (End::Abort, Why::TimedOut),
            Asked::Instead(Ended::DaemonGone) => return Err(daemon_gone(after.id)),
            Asked::Instead(_) => (End::Abort, self.doom(after.id)?),
        })
    }

    /// Why the transaction lost.
    fn doom(&mut self, id: TxnId) -> Result<Why, Problem> {
        match self.client.ask(&call::Doom { id }) {
            Err(f) if f.kind == FailureKind::NotFound => Ok(Why::Elsewhere(f.message)),
            conflict => Ok(Why::Lost(conflict?)),
        }
    }

    /// Nothing is to be committed: because it has lost, or else for another reason.
    fn lost_or(&mut self, id: TxnId, other: Why) -> Result<(End, Why), Problem> {
        let why = match self.doom(id)? {
            Why::Lost(None) => other,
            why => why,
        };
        Ok((End::Abort, why))
    }

    fn finish(&mut self, after: &mut After, end: End, why: Why) -> Result<Attempt, Problem> {
        let code = after.what_happened().code();
        let wanted = services::parse(&after.started.deferred());
        let listed = self.client.ask(&call::Status { id: after.id }).map(|status| status.listed);
        let of = |is: fn(&Listed) -> bool| listed.as_ref().is_ok_and(is);
        let limited = self.args.limit_size.filter(|_| of(|t| t.limited));
        let full = of(|t| t.full);
        let finish = Finish { id: after.id, end, code, deferred: wanted.clone() };
        // What is kept may be entered at once: its first view is over by then.
        let open = after.started.slow_to_close(end != End::Keep);
        // Of more than fit, this process closes the rest itself.
        let open: Vec<_> = open.iter().take(wire::MAX_FDS).map(AsFd::as_fd).collect();
        // A signal from now on is for this wait, and no answer to it but its end.
        after.started.forget_signals();
        let mut signal = None;
        let outcome = self.client.ask_while(&finish, &open, &mut |daemon, limit| {
            signal = signal.or(after.started.wait_for(daemon, limit));
            signal.is_none()
        });
        after.started.close_views();
        let (outcome, why) = match outcome {
            Err(f) if f.kind == FailureKind::NotFound => {
                (Outcome::Aborted { summary: Summary::default() }, Why::Elsewhere(f.message))
            }
            outcome => (outcome.map_err(|f| lost_track(f, end, after.id))?, why),
        };
        let mut report = after.report(code, self.losses + 1, limited.is_some());
        if let Some(limit) = limited {
            self.out.warn(&format!(
                "the run wanted to write more than {} (--limit-size): calls were refused with EDQUOT",
                output::size(limit)
            ));
        }
        if full {
            self.out.warn("the file system was full: calls of the run were refused");
            self.out.hint("free some space; `systx gc --keep 0` gives back what undos keep");
        }
        self.tell_what_left(&report);
        if let Some(again) = self.judge(&mut report, &outcome, why) {
            return Ok(again);
        }
        if let (Outcome::Refused { .. }, Some(signal)) = (&outcome, signal) {
            after.ended_by(signal, &mut report);
        }
        let kept = matches!(outcome, Outcome::Kept { .. } | Outcome::Unfinished { .. });
        if matches!(outcome, Outcome::Committed { .. }) {
            // Carried out once what belongs to the command, its signals and its view, is put back.
            self.wanted = Some((after.id, wanted));
        } else {
            services::tell_dropped(self.out, &wanted, kept);
            let state = if kept { "waits" } else { "dropped" };
            report.services =
                wanted.into_iter().map(|action| services::Done { action, state }).collect();
        }
        // A lost conflict stands there already: the daemon was only told to drop what was left.
        report.end.get_or_insert(outcome);
        Ok(Attempt::Over(Box::new(report), after.what_happened()))
    }

    /// The end of all attempts: what is done outside after the commit, and the report.
    fn over(&mut self, report: &mut Report) -> i32 {
        if let Some((id, wanted)) = self.wanted.take()
            && !wanted.is_empty()
            && !self.args.read_only
        {
            let how = self.args.services;
            report.services = services::carry_out(&mut self.client, id, &wanted, how, self.out);
        }
        if self.out.json {
            self.out.json_aside("run", report);
        }
        report.exit
    }

    fn tell_what_left(&self, report: &Report) {
        let list = |items: &[String]| {
            let shown = items.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            match items.len().saturating_sub(5) {
                0 => shown,
                more => format!("{shown}, and {more} more"),
            }
        };
        if !report.ended_leftovers.is_empty() {
            let which = list(&report.ended_leftovers);
            self.out.say(&format!("ended processes that were left behind: {which}"));
        }
        if !report.dropped_private.is_empty() {
            let names: Vec<String> =
                report.dropped_private.iter().map(|p| p.display().into_owned()).collect();
            self.out.say(&format!("dropped, was private to this run: {}", list(&names)));
        }
        if !report.reached_outside.is_empty() {
            let which = list(&report.reached_outside);
            self.out.say(&format!("not part of the transaction: {which}"));
        }
        if !report.out_of_reach.is_empty() {
            let which = list(&report.out_of_reach);
            self.out.say(&format!("out of reach in the run (--passthrough PATH lets it): {which}"));
        }
    }

    /// Says how it ended and sets the exit code; or wants another attempt.
    fn judge(&mut self, report: &mut Report, outcome: &Outcome, why: Why) -> Option<Attempt> {
        let out = self.out;
        match (outcome, why) {
            (Outcome::Conflict { conflict, .. }, _) => {
                return self.lost(report, Some(conflict.clone()));
            }
            (_, Why::Lost(conflict)) => return self.lost(report, conflict),
            (Outcome::Committed { summary, .. }, _) => {
                if tell_committed(out, outcome) {
                    report.exit = OUTSIDE;
                }
                if output::is_empty(summary) {
                    out.detail("nothing to commit");
                }
            }
            (Outcome::Kept { summary }, _) => {
                out.say(&format!("kept as {}: {}", report.id, output::summary(summary)));
                out.hint(&format!(
                    "systx diff {0}; systx commit {0}; systx abort {0}; systx enter {0}",
                    report.id
                ));
            }
            (Outcome::Unfinished { failure, .. }, _) => {
                if !out.json {
                    out.problem(&Problem::from(failure.clone()), true);
                }
                report.exit = FAILED;
            }
            (Outcome::Refused { failure, .. }, _) => {
                if failure.kind == FailureKind::Busy && self.losses < self.args.conflicts.retries {
                    out.say(&format!("{failure}; trying again"));
                    return Some(Attempt::Again(None));
                }
                if !out.json {
                    out.problem(&Problem::from(failure.clone()), true);
                }
                report.exit = if failure.kind == FailureKind::Busy { CONFLICT } else { FAILED };
            }
            (Outcome::Aborted { .. }, Why::Elsewhere(how)) => self.aborted(report, &how, FAILED),
            (Outcome::Aborted { .. }, Why::TimedOut) => {
                self.aborted(report, "the time limit passed", TIMED_OUT);
            }
            (Outcome::Aborted { .. }, Why::Leftovers(what)) => {
                self.aborted(report, &format!("processes {what}"), FAILED);
            }
            (Outcome::Aborted { .. }, Why::Sync(errno)) => {
                self.aborted(report, &format!("writing back shared mappings: {errno}"), FAILED);
            }
            (Outcome::Aborted { summary }, Why::Asked) => {
                if !output::is_empty(summary) {
                    out.say(&format!("nothing committed; dropped: {}", output::summary(summary)));
                }
            }
        }
        None
    }

    fn aborted(&self, report: &mut Report, why: &str, exit: i32) {
        report.exit = exit;
        report.aborted_because = Some(why.to_owned());
        if !self.out.json {
            self.out.problem(&Problem::new(format!("{why}: nothing committed")), true);
        }
    }

    fn lost(&mut self, report: &mut Report, conflict: Option<Conflict>) -> Option<Attempt> {
        let Some(conflict) = conflict else {
            self.aborted(report, "aborted from outside (systx abort)", FAILED);
            return None;
        };
        let text = conflict_text(&conflict);
        if self.losses < self.args.conflicts.retries
            && self.deadline.is_none_or(|d| Instant::now() < d)
        {
            self.out.say(&format!("{text}; trying again"));
            return Some(Attempt::Again(Some(conflict.opponent)));
        }
        report.exit = CONFLICT;
        report.aborted_because = Some(text.clone());
        report.end = Some(Outcome::Conflict { conflict: conflict.clone(), kept: false });
        tell_conflict(self.out, &conflict, self.args.conflicts.retries == 0);
        None
    }

    /// Waits for the winner if it still runs, else a moment.
    fn wait_before_retry(&mut self, opponent: Option<&Opponent>) {
        self.losses += 1;
        if let Some(Opponent::Transaction { id, ended: false, .. }) = opponent {
            let left = self.deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let limit = left.map_or(WINNER_LIMIT, |l| l.min(WINNER_LIMIT));
            // Whatever the answer, the next attempt will show.
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            let _ = self.client.ask(&call::WaitFor { id: *id, limit_ms });
        } else {
            let exponent = self.losses.min(6);
            std::thread::sleep(Duration::from_millis(5 << exponent));
        }
    }
}

struct After {
    ended: Ended,
    settled: Settled,
    started: Started,
    id: TxnId,
    known: Vec<PathBuf>,
    /// Rung when it has lost.
    doorbell: OwnedFd,
}

impl After {
    /// Of CMD's end and what happened while its leftovers were ended, what counts.
    fn what_happened(&self) -> Ended {
        self.settled.interrupted.unwrap_or(self.ended)
    }

    /// A signal has ended the wait for its commit.
    fn ended_by(&mut self, signal: i32, report: &mut Report) {
        let ended = Ended::Signaled(signal);
        self.settled.interrupted = Some(ended);
        report.exit = ended.code().unwrap_or(FAILED);
    }

    /// What is told of it, before it is known how the transaction ended.
    fn report(&self, code: Option<i32>, attempts: u32, limited: bool) -> Report {
        let sightings = self.started.sightings();
        let seen = |reached| {
            sightings.iter().filter(|s| s.reached == reached).map(sighting).collect::<Vec<_>>()
        };
        let dropped = self.started.private_remains(&self.known);
        let left = self.settled.ended.iter();
        Report {
            id: self.id.to_string(),
            attempts,
            code,
            exit: code.unwrap_or(FAILED),
            end: None,
            aborted_because: None,
            dropped_private: dropped.into_iter().map(HostPath::from).collect(),
            ended_leftovers: left.map(|p| format!("{} ({})", p.name, p.pid)).collect(),
            reached_outside: seen(true),
            out_of_reach: seen(false),
            limited,
            services: Vec::new(),
        }
    }
}

fn daemon_gone(id: TxnId) -> Problem {
    Problem::new(format!("the daemon ended; transaction {id} is lost, nothing of it was committed"))
        .hint("systx recover looks for remains; the daemon's log may say why: systx doctor")
}

/// The daemon did not answer the last request.
fn lost_track(f: Failure, end: End, id: TxnId) -> Problem {
    let lost = matches!(f.kind, FailureKind::Io | FailureKind::Internal);
    match (lost, end) {
        (true, End::Commit) => {
            Problem::new(format!("{f}; whether {id} was committed is not known"))
                .hint(format!("systx recover finishes what was begun; then: systx show {id}"))
        }
        _ => Problem::from(f),
    }
}

fn sighting(s: &Sighting) -> String {
    format!("{} {}", s.process, s.what)
}

/// Variables for the command.
pub fn environment(id: TxnId, cwd: Option<&PathBuf>) -> Vec<(OsString, OsString)> {
    let mut env = vec![(context::VARIABLE.into(), id.to_string().into())];
    env.extend(cwd.map(|cwd| ("PWD".into(), cwd.clone().into_os_string())));
    env
}

/// What is where in the view.
pub fn wish(
    volume: &VolumeFacts,
    others: &[VolumeFacts],
    cwd: &Path,
    private_tmp: bool,
    (through, unprotected): (&[PathBuf], &[HostPath]),
) -> Wish {
    let root = volume.root.as_path();
    let mut private = Vec::new();
    for (path, mode) in [("/run", 0o755), ("/dev/shm", 0o1777)] {
        // Through a link it would be somewhere else; then it is not a place of its own.
        if std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) {
            private.push((PathBuf::from(path), mode));
        }
    }
    let shown = || std::iter::once(volume).chain(others);
    let tmp = shown().all(|v| needs_private_tmp(v.dev, v.root.as_path(), cwd));
    if private_tmp || tmp {
        private.push((PathBuf::from("/tmp"), 0o1777));
    }
    let split = |dev| (rustix::fs::major(dev), rustix::fs::minor(dev));
    let guarded =
        shown().flat_map(|v| &v.guarded).map(|g| Guarded { mount: g.mount, dev: split(g.dev) });
    Wish {
        volume: root.to_owned(),
        others: others.iter().map(|v| v.root.as_path().to_owned()).collect(),
        passthrough: through.to_vec(),
        unprotected: unprotected.iter().map(|path| path.as_path().to_owned()).collect(),
        private,
        guarded: guarded.collect(),
    }
}

/// Where /tmp is not part of the volume it would be read-only, and half of all programs fail. Not
/// if the command works in it: then it wants to see what is there.
fn needs_private_tmp(dev: u64, root: &Path, cwd: &Path) -> bool {
    let tmp = Path::new("/tmp");
    let Ok(meta) = std::fs::symlink_metadata(tmp) else { return false };
    let part = meta.dev() == dev && tmp.starts_with(root);
    meta.is_dir() && !part && !root.starts_with(tmp) && !cwd.starts_with(tmp)
}

/// What programs need to find in the private /run.
pub fn fill() -> Vec<Fill> {
    let mut all = Vec::new();
    let run = Path::new("/run");
    let dir = |path: PathBuf, all: &mut Vec<Fill>| {
        let Ok(meta) = std::fs::metadata(&path) else { return };
        if meta.is_dir() && path.starts_with(run) && path != run {
            let mode = meta.mode() & 0o7777;
            all.push(Fill { path, content: None, mode, owner: (meta.uid(), meta.gid()) });
        }
    };
    dir("/run/lock".into(), &mut all);
    if let Some(own) = std::env::var_os("XDG_RUNTIME_DIR") {
        dir(PathBuf::from(own), &mut all);
    }
    // Name resolution: systemd-resolved and resolvconf keep the file there.
    if let Ok(path) = std::fs::canonicalize("/etc/resolv.conf")
        && path.starts_with(run)
        && let Ok(content) = std::fs::read(&path)
    {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        all.push(Fill { path, content: Some(content), mode: 0o644, owner });
    }
    all
}

/// Has a view served by the daemon, and says what in it is not the transaction's.
pub fn serve(
    client: &mut Client,
    id: TxnId,
    places: Vec<Rule>,
    out: Out,
) -> impl FnMut(ViewFacts, OwnedFd) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    move |facts, fuse| {
        let ViewFacts { volume, pid, mnt_ns, connection } = facts;
        let rules = if volume == 0 { places.clone() } else { Vec::new() };
        let attach = Attach { id, volume, pid, mnt_ns, connection, rules };
        let attached = client.ask_with(&attach, &[fuse.as_fd()])?;
        let how = match attached.transport {
            Transport::IoUring => "io_uring",
            _ => "/dev/fuse",
        };
        out.detail(&format!("transaction {id}, served over {how}"));
        Ok(())
    }
}
