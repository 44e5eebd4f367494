//! Random histories: processes that work on the hot set, each recording what it did and saw, and
//! one that lets them work for a moment, then looks at everything, and checks what was recorded.
//! So a history is checked moment by moment, and what cannot be explained is near.

use crate::arena::{Arena, By, Ending, Reach, canceled, is};
use crate::dice::Dice;
use crate::explain::verify;
use crate::history::{Atom, History, Kind, Outcome, Step, Unit};
use crate::hot::{self, Actor, Done, Work};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use systx::Flags;

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// An empty directory, guarded if not --unguarded
    #[arg(long, value_name = "DIR")]
    arena: PathBuf,
    /// The systx command
    #[arg(long, default_value = "systx")]
    systx: PathBuf,
    /// Transactions are the same calls without any command: this must fail
    #[arg(long)]
    unguarded: bool,
    /// Transactions are those of the library, not of the command
    #[arg(long, conflicts_with = "unguarded")]
    library: bool,
    /// And descriptors that were opened before are in them: not where the directory is mounted --routed
    #[arg(long, requires = "library")]
    descriptors: bool,
    /// Who works are threads of one process, not processes
    #[arg(long)]
    threads: bool,
    /// Operations, of all processes together
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Seed of all choices; which of them meet is up to the machine
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Processes that work in transactions
    #[arg(long, default_value_t = 2)]
    txn_workers: u32,
    /// Processes that just work
    #[arg(long, default_value_t = 2)]
    plain_workers: u32,
    /// Transactions that are aborted, with --aborts random
    #[arg(long, default_value_t = 0.2)]
    abort_probability: f64,
    /// Which transactions are aborted
    #[arg(long, value_enum, default_value_t = Aborts::Random)]
    aborts: Aborts,
    /// Microseconds between two plain calls, on average
    #[arg(long, default_value_t = 100)]
    pace: u64,
    /// Milliseconds between two looks at everything
    #[arg(long, default_value_t = 100)]
    slice: u64,
    /// Also what transactions saw that had lost must be of one moment: pages can be read after a
    /// loss, and are only promised to those that commit
    #[arg(long)]
    opaque: bool,
    /// Operations to leave out, to see what else there is
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Work>,
    /// Write what cannot be explained to this file, as JSON
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

impl Options {
    /// What begins and ends transactions.
    fn by(&self) -> By {
        match (self.unguarded, self.library, self.descriptors) {
            (true, ..) => By::Nothing,
            (_, true, true) => By::Library(Flags::DESCRIPTORS),
            (_, true, false) => By::Library(Flags::default()),
            _ => By::Command(self.systx.clone()),
        }
    }
}

/// Which transactions are aborted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Aborts {
    /// Some.
    Random,
    /// Each once, at its end; then the same again is committed.
    Once,
    /// Each after its first operation, then after its second, and so on.
    Each,
}

/// What one process does.
#[derive(Args, Clone, Debug)]
pub struct Worker {
    #[command(flatten)]
    options: Options,
    #[arg(long)]
    process: u32,
    #[arg(long)]
    transactions: bool,
    /// Directories that were opened before are in transactions
    #[arg(long)]
    directories: bool,
}

/// For one moment.
#[derive(Serialize, Deserialize, Debug)]
struct Slice {
    until: u64,
    most: u64,
}

/// What one process has to say of it.
#[derive(Serialize, Deserialize, Debug, Default)]
struct Recorded {
    units: Vec<Unit>,
    counts: Counts,
    /// Commits that met changes from outside.
    displaced: Vec<String>,
}

/// What was done.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Operations, in transactions and outside.
    pub operations: u64,
    /// Of these, plain calls.
    pub plain: u64,
    /// Of these, calls in the middle of a transaction that are not in it, since they go by what was
    /// opened before.
    pub beside: u64,
    /// Of these, by descriptors that were opened inside of an earlier transaction.
    pub former: u64,
    /// Operations that are in a transaction although they go by what was opened before it.
    pub before: u64,
    /// Transactions that committed.
    pub committed: u64,
    /// Transactions that lost a conflict.
    pub conflicts: u64,
    /// Transactions that were aborted on purpose.
    pub aborted: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.operations += other.operations;
        self.plain += other.plain;
        self.beside += other.beside;
        self.former += other.former;
        self.before += other.before;
        self.committed += other.committed;
        self.conflicts += other.conflicts;
        self.aborted += other.aborted;
    }
}

/// How it went.
#[derive(Serialize, Debug, Default)]
pub struct Report {
    /// What was done.
    #[serde(flatten)]
    pub counts: Counts,
    /// Directories that were opened before a transaction are in it, as the directory is mounted.
    pub directories: bool,
    /// Histories that were checked one by one.
    pub slices: u64,
    /// Seconds, checks included.
    pub seconds: f64,
    /// Commits that say that they met a change from outside.
    pub displaced: Vec<String>,
    /// What no serial order explains, in words.
    pub anomaly: Option<String>,
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Operations of one process in a slice: what the search has to go through stays small.
const MOST: u64 = 2000;

/// One process, told by its standard input.
///
/// # Errors
/// A call that failed as none may.
pub fn worker(worker: &Worker) -> Result<()> {
    work(worker, std::io::stdin().lock(), std::io::stdout().lock())
}

/// Works as long as it is told to, and says what it has seen.
fn work(worker: &Worker, told: impl BufRead, out: impl Write) -> Result<()> {
    let o = &worker.options;
    let mut arena = Arena::new(o.arena.clone(), o.by());
    arena.reach.directories = worker.directories;
    let mut actor = Actor::new(&o.arena, worker.process, true)?;
    actor.leave_out(&o.without);
    let mut dice = Dice::new(o.seed.wrapping_mul(1009).wrapping_add(worker.process.into()));
    let mut out = BufWriter::new(out);
    for line in told.lines() {
        let slice: Slice = serde_json::from_str(&line?)?;
        let mut recorded = Recorded::default();
        while now() < slice.until && recorded.counts.operations < slice.most {
            if worker.transactions {
                transact(o, &arena, &mut actor, worker.process, &mut dice, &mut recorded)?;
            } else {
                call(&mut actor, worker.process, &mut dice, &mut recorded)?;
                if o.pace > 0 {
                    std::thread::sleep(Duration::from_micros(dice.below(2 * o.pace)));
                }
            }
        }
        serde_json::to_writer(&mut out, &recorded)?;
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}

fn call(actor: &mut Actor, process: u32, dice: &mut Dice, to: &mut Recorded) -> Result<()> {
    let begin = now();
    let done = actor.work(dice).context("a plain call failed")?;
    to.called(process, begin, done);
    Ok(())
}

impl Recorded {
    /// A plain call that has just ended: a unit of its own.
    fn called(&mut self, process: u32, begin: u64, done: Done) {
        let end = now();
        let kind = if done.survey { Kind::Survey } else { Kind::Call };
        self.counts.operations += 1;
        self.counts.plain += 1;
        self.counts.beside += u64::from(done.beside);
        self.counts.former += u64::from(done.former);
        let outcome = Outcome::Done;
        self.units.push(Unit { process, kind, outcome, begin, end, steps: done.steps });
    }
}

/// One transaction, with the aborted attempts before it.
fn transact(
    o: &Options,
    arena: &Arena,
    actor: &mut Actor,
    process: u32,
    dice: &mut Dice,
    to: &mut Recorded,
) -> Result<()> {
    let (length, seed) = (2 + dice.below(6), dice.below(u64::MAX));
    let random = dice.permille((o.abort_probability * 1000.0) as u64);
    // How many operations, and whether it is then aborted.
    let attempts: Vec<(u64, bool)> = match o.aborts {
        Aborts::Random => vec![(length, random)],
        Aborts::Once => vec![(length, true), (length, false)],
        Aborts::Each => (1..=length).map(|n| (n, true)).chain([(length, false)]).collect(),
    };
    for (length, abort) in attempts {
        let begin = now();
        let view = arena.begin(false)?;
        actor.enter(&view.path, !o.unguarded, arena.reach);
        let mut dice = Dice::new(seed);
        let mut steps: Vec<Step> = Vec::new();
        let mut lost = false;
        for _ in 0..length {
            let begin = now();
            match actor.work(&mut dice) {
                Ok(done) if done.beside => to.called(process, begin, done),
                Ok(done) => {
                    to.counts.operations += 1;
                    to.counts.before += u64::from(done.before);
                    steps.extend(done.steps);
                }
                // Of a mapping it is told in another way.
                Err(e) if canceled(&e) || is(&e, Errno::FAULT) && arena.has_lost(&view) => {
                    lost = true;
                    break;
                }
                Err(e) => return Err(e).context("a call in a transaction failed"),
            }
        }
        lost = lost || abort && arena.has_lost(&view);
        let outcome = if lost || abort {
            arena.abort(&view)?;
            Outcome::Aborted
        } else {
            match arena.commit(&view)? {
                Ending::Committed => Outcome::Done,
                Ending::Displaced(why) => {
                    to.displaced.push(why);
                    Outcome::Done
                }
                Ending::Conflict => {
                    lost = true;
                    Outcome::Aborted
                }
                Ending::Failed(why) => bail!("a commit failed: {why}"),
            }
        };
        let end = now();
        actor.leave(&arena.dir, outcome == Outcome::Done, &mut dice)?;
        if lost && !o.opaque {
            steps.clear();
        }
        to.counts.conflicts += u64::from(lost);
        to.counts.aborted += u64::from(abort && !lost);
        to.counts.committed += u64::from(outcome == Outcome::Done);
        to.units.push(Unit { process, kind: Kind::Transaction, outcome, begin, end, steps });
    }
    Ok(())
}

/// Who works, seen from here.
struct Hand {
    name: String,
    body: Body,
    input: Box<dyn Write>,
    output: Box<dyn BufRead>,
}

enum Body {
    Process(Child),
    Thread(JoinHandle<Result<()>>),
}

impl Body {
    /// How it has ended, if not well.
    fn end(self) -> Result<()> {
        match self {
            Body::Process(mut child) => {
                let status = child.wait()?;
                match status.signal() {
                    _ if status.success() => Ok(()),
                    Some(7) => bail!("SIGBUS: a page of a mapped file was gone for a moment"),
                    _ => bail!("{status}"),
                }
            }
            Body::Thread(thread) => thread.join().unwrap_or_else(|_| bail!("it panicked")),
        }
    }
}

impl Hand {
    fn start(worker: Worker) -> Result<Hand> {
        let kind = if worker.transactions { "transactional" } else { "plain" };
        let name = format!("{kind} process {}", worker.process);
        if worker.options.threads {
            let (here, there) = UnixStream::pair()?;
            let (input, output) = (here.try_clone()?, BufReader::new(here));
            let told = BufReader::new(there.try_clone()?);
            let body = Body::Thread(std::thread::spawn(move || work(&worker, told, there)));
            let (input, output) = (Box::new(input), Box::new(output));
            return Ok(Hand { name, body, input, output });
        }
        let mut child = worker.command()?.spawn().context("cannot start a worker")?;
        let input = Box::new(child.stdin.take().context("it has an input")?);
        let output = BufReader::new(child.stdout.take().context("it has an output")?);
        Ok(Hand { name, body: Body::Process(child), input, output: Box::new(output) })
    }

    fn tell(&mut self, slice: &Slice) -> Result<()> {
        let line = serde_json::to_string(slice)?;
        // If it has ended, its answer says so.
        let _ = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        Ok(())
    }

    /// Nothing, if it has ended.
    fn answer(&mut self) -> Result<Option<Recorded>> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let recorded = serde_json::from_str(&line);
        recorded.map(Some).with_context(|| format!("{} said nonsense", self.name))
    }

    /// It has to end.
    fn end(self) -> Result<()> {
        let Hand { name, body, input, output } = self;
        drop((input, output));
        body.end().with_context(|| format!("{name} ended"))
    }
}

impl Worker {
    /// The process that is this one.
    fn command(&self) -> Result<Command> {
        let (o, process) = (&self.options, self.process);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").arg("--arena").arg(&o.arena).arg("--systx").arg(&o.systx);
        command.args(["--process", &process.to_string(), "--seed", &o.seed.to_string()]);
        command.args(["--pace", &o.pace.to_string()]);
        command.args(["--abort-probability", &o.abort_probability.to_string()]);
        let aborts = o.aborts.to_possible_value().context("every choice has a name")?;
        command.args(["--aborts", aborts.get_name()]);
        for work in &o.without {
            let work = work.to_possible_value().context("every choice has a name")?;
            command.args(["--without", work.get_name()]);
        }
        for (flag, on) in [
            ("--unguarded", o.unguarded),
            ("--library", o.library),
            ("--descriptors", o.descriptors),
            ("--opaque", o.opaque),
            ("--transactions", self.transactions),
            ("--directories", self.directories),
        ] {
            command.args(on.then_some(flag));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(command)
    }
}

impl Report {
    /// Something is wrong.
    pub fn is_violated(&self) -> bool {
        self.anomaly.is_some() || !self.displaced.is_empty()
    }
}

/// What of that which was opened before is in transactions, found out by one of a thread that ends
/// then: the others are started by who has never had any.
fn find_reach(o: &Options) -> Result<Reach> {
    let find = || {
        let mut arena = Arena::new(o.arena.clone(), o.by());
        arena.find_reach("reach")?;
        Ok(arena.reach)
    };
    let found = std::thread::scope(|scope| scope.spawn(find).join());
    let found = found.unwrap_or_else(|_| bail!("it panicked"));
    found.context("cannot find out what is in a transaction")
}

/// Lets processes work, and checks what they saw.
///
/// # Errors
/// What could not be done; an anomaly is no error, but in the report.
pub fn run(o: &Options) -> Result<Report> {
    let begun = Instant::now();
    hot::make(&o.arena).with_context(|| format!("cannot use {}", o.arena.display()))?;
    let directories = find_reach(o)?.directories;
    let all = o.txn_workers + o.plain_workers;
    let worker = |process| {
        let (options, transactions) = (o.clone(), process < o.txn_workers);
        Worker { options, process, transactions, directories }
    };
    let hands = (0..all).map(|process| Hand::start(worker(process)));
    let mut hands = hands.collect::<Result<Vec<Hand>>>()?;
    let mut auditor = Actor::new(&o.arena, all, false)?;
    let mut initial = auditor.audit().context("cannot look at the hot set")?;
    let mut report = Report { directories, ..Report::default() };
    let mut said = Instant::now();
    while report.counts.operations < o.ops {
        let slice = Slice { until: now() + o.slice * 1_000_000, most: MOST };
        hands.iter_mut().try_for_each(|hand| hand.tell(&slice))?;
        let mut history = History { initial, units: Vec::new() };
        for n in 0..hands.len() {
            let Some(recorded) = hands[n].answer()? else {
                hands.swap_remove(n).end()?;
                bail!("a worker ended early");
            };
            report.counts.add(&recorded.counts);
            report.displaced.extend(recorded.displaced);
            history.units.extend(recorded.units);
        }
        let begin = now();
        let state = auditor.audit().context("cannot look at the hot set")?;
        let atoms = state.iter().map(|(cell, value)| Atom::Is(*cell, *value)).collect();
        let steps = vec![Step { atoms, how: "look at everything".into() }];
        let (process, kind, outcome) = (all, Kind::Transaction, Outcome::Done);
        history.units.push(Unit { process, kind, outcome, begin, end: now(), steps });
        report.slices += 1;
        if let Err(why) = verify(&history) {
            report.anomaly = Some(why);
        }
        if report.is_violated() {
            if let Some(path) = &o.keep {
                std::fs::write(path, serde_json::to_vec(&history)?)?;
            }
            break;
        }
        initial = state;
        if said.elapsed() > Duration::from_secs(10) {
            said = Instant::now();
            eprintln!("{} s: {:?}", begun.elapsed().as_secs(), report.counts);
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    hands.into_iter().try_for_each(Hand::end)?;
    Ok(report)
}
