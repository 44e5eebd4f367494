//! One way of starting a command, watching it and ending it, gone natively and through `systx run`:
//! what the command itself saw ([`crate::probe`]) and what its parent saw are facts, and the facts
//! of both are compared.

use crate::Lab;
use crate::begin::{self, Begun, Change, LEASH, REPORT, Step, c};
use crate::probe::CONTROL;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Within this time everything has happened that a row waits for; a machine that is ten times
/// slower is no reason to fail.
const LIMIT: Duration = Duration::from_secs(60);

/// What was seen, by name.
pub type Facts = BTreeMap<String, String>;

/// One of the two: the command itself, or `systx run -- COMMAND`.
pub struct Side<'a> {
    lab: &'a Lab,
    probe: &'a Path,
    /// Through `systx run`.
    pub inside: bool,
    /// Before the program is executed.
    pub steps: Vec<Step>,
    /// The environment.
    pub env: Vec<CString>,
    /// The name that the program is started by; `None`: its path.
    pub argv0: Option<&'static str>,
    /// Lines of the report may come in any order.
    pub any_order: bool,
    facts: Facts,
    report: Report,
    begun: Option<Begun>,
    ends: Ends,
    over: bool,
}

/// What the command says.
struct Report {
    from: std::fs::File,
    unread: Vec<u8>,
    lines: Vec<String>,
}

/// What this end holds of the command's descriptors.
#[derive(Default)]
struct Ends {
    /// Until it is started.
    kept: Vec<OwnedFd>,
    control: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    leash: Option<OwnedFd>,
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe")
}

impl<'a> Side<'a> {
    /// Ready to be started: in an empty directory `row` of the volume, standard input nothing,
    /// output and errors to files.
    pub fn new(lab: &'a Lab, probe: &'a Path, inside: bool) -> Side<'a> {
        let row = lab.path("row");
        let _ = std::fs::remove_dir_all(&row);
        std::fs::create_dir(&row).expect("the volume is writable");
        lab.give(&row);
        let (report, theirs) = pipe();
        let write = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
        let [out, err] = ["out", "err"].map(|name| c(lab.outside().join(name)));
        let steps = vec![
            Step::Dup(theirs.as_raw_fd(), REPORT),
            Step::Open(c"/dev/null".into(), libc::O_RDONLY, 0),
            Step::Open(out, write, 1),
            Step::Open(err, write, 2),
            Step::Directory(c(&row)),
        ];
        let fixed = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("LC_ALL", "C.UTF-8"),
        ];
        let mut env: Vec<CString> = fixed.map(|(n, v)| c(format!("{n}={v}"))).into();
        env.extend(needed(lab));
        Side {
            lab,
            probe,
            inside,
            steps,
            env,
            argv0: None,
            any_order: false,
            facts: Facts::new(),
            report: Report { from: report.into(), unread: Vec::new(), lines: Vec::new() },
            begun: None,
            ends: Ends { kept: vec![theirs], ..Ends::default() },
            over: false,
        }
    }

    /// A further step.
    pub fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Where it works.
    pub fn row(&self) -> PathBuf {
        self.lab.path("row")
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        self.lab
    }

    /// A descriptor that is kept open here until the end; its number.
    pub fn keep(&mut self, fd: OwnedFd) -> i32 {
        let number = fd.as_raw_fd();
        self.ends.kept.push(fd);
        number
    }

    /// A terminal of its own controls its session.
    pub fn on_a_terminal(&mut self) {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("own terminal");
        let name = ptsname(&master, Vec::new()).expect("its name");
        // In the new process: the one end that this one has is not to keep it alive.
        self.step(Step::Session);
        self.step(Step::Open(name, libc::O_RDWR, 50));
        self.step(Step::Terminal(50));
        self.step(Step::Close(50));
        self.ends.terminal = Some(master);
    }

    /// A child from before, on a leash.
    pub fn with_a_child(&mut self) {
        let (end, leash) = pipe();
        let end = self.keep(end);
        self.step(Step::Dup(end, LEASH));
        self.step(Step::Child);
        self.ends.leash = Some(leash);
    }

    /// What is started: with the words of the probe.
    fn command(&self, words: &str) -> Vec<String> {
        let probe = self.probe.display().to_string();
        let words = words.split_whitespace().map(str::to_owned);
        let command = std::iter::once(probe).chain(words);
        if !self.inside {
            return command.collect();
        }
        let systx = [self.lab.binary().display().to_string(), "run".into()];
        systx.into_iter().chain(["--".into()]).chain(command).collect()
    }

    fn exec(&mut self, argv: &[String]) {
        let mut argv: Vec<CString> = argv.iter().map(c).collect();
        let program = argv[0].clone();
        if let Some(name) = self.argv0 {
            argv[0] = c(name);
        }
        self.begun = Some(begin::begin(&self.steps, &program, &argv, &self.env));
        // What was for the new process only: ends of pipes, whose end is waited for.
        self.ends.kept.clear();
    }

    /// Starts it.
    pub fn start(&mut self, words: &str) {
        self.exec(&self.command(words));
    }

    /// Starts any other command.
    pub fn start_argv(&mut self, argv: &[&str]) {
        let systx = self.lab.binary().display().to_string();
        let mut all: Vec<String> = match self.inside {
            true => vec![systx, "run".into(), "--".into()],
            false => vec!["/usr/bin/env".into()],
        };
        all.extend(argv.iter().map(|a| (*a).to_owned()));
        self.exec(&all);
    }

    /// Starts a script of bash in which `@` is the command.
    pub fn script(&mut self, script: &str, words: &str) {
        let quoted: Vec<String> = self.command(words).iter().map(|w| format!("'{w}'")).collect();
        let script = script.replace('@', &quoted.join(" "));
        self.exec(&["/bin/bash".into(), "-c".into(), script]);
    }

    /// Starts it as a job of a shell with job control.
    pub fn job(&mut self, words: &str) {
        let (theirs, control) = pipe();
        let theirs = self.keep(theirs);
        self.step(Step::Dup(theirs, CONTROL));
        let mut argv = vec![self.probe.display().to_string(), "shell".into()];
        argv.extend(self.command(words));
        self.exec(&argv);
        self.ends.control = Some(control);
    }

    /// Tells the shell what to do with its stopped job.
    pub fn tell_shell(&mut self, word: &str) {
        let control = self.ends.control.as_ref().expect("a shell");
        rustix::io::write(control, word.as_bytes()).expect("it reads");
    }

    /// Types at the terminal.
    pub fn types(&mut self, text: &str) {
        let terminal = self.ends.terminal.as_ref().expect("a terminal");
        rustix::io::write(terminal, text.as_bytes()).expect("the terminal is there");
    }

    /// The terminal goes away.
    pub fn hang_up(&mut self) {
        self.ends.terminal = None;
    }

    /// Sends a signal to what was started.
    pub fn signal(&self, signal: i32) {
        self.begun().signal(signal);
    }

    /// What was started.
    pub fn begun(&self) -> &Begun {
        self.begun.as_ref().expect("it was started")
    }

    /// Notes a fact; of several with one name, each.
    pub fn fact(&mut self, name: &str, value: impl Into<String>) {
        let mut key = name.to_owned();
        let mut n = 1;
        while self.facts.contains_key(&key) {
            n += 1;
            key = format!("{name} #{n}");
        }
        self.facts.insert(key, value.into());
    }

    /// Waits for a line of the report that begins so.
    #[track_caller]
    pub fn wait_for(&mut self, start: &str) {
        let deadline = Instant::now() + LIMIT;
        let mut seen = 0;
        loop {
            if let Some(at) =
                self.report.lines[seen..].iter().position(|line| line.starts_with(start))
            {
                let rest = self.report.lines.split_off(seen + at + 1);
                self.take_lines();
                self.report.lines = rest;
                return;
            }
            seen = self.report.lines.len();
            if !self.read_more(deadline) {
                self.give_up(&format!("no line {start:?}"));
            }
        }
    }

    /// More of the report; false at its end, and at the deadline.
    fn read_more(&mut self, deadline: Instant) -> bool {
        if !readable(&self.report.from, deadline) {
            return false;
        }
        let mut bytes = [0; 4096];
        let n = self.report.from.read(&mut bytes).expect("a pipe");
        self.report.unread.extend_from_slice(&bytes[..n]);
        while let Some(end) = self.report.unread.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.report.unread.drain(..=end).collect();
            self.report.lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        n > 0
    }

    fn take_lines(&mut self) {
        let mut lines = std::mem::take(&mut self.report.lines);
        if self.any_order {
            lines.sort();
        }
        let started = self.begun().id().to_string();
        let tester = std::process::id().to_string();
        for line in lines {
            let (name, value) = line.split_once('=').unwrap_or((&line, ""));
            let known = match value {
                v if v == started => "started",
                v if v == tester => "the tester",
                v => v,
            };
            let numbered =
                ["pid", "parent", "group", "session", "foreground", "job"].contains(&name);
            let other = numbered && known.parse::<u32>().is_ok();
            let value = if other { "another" } else { known }.to_owned();
            self.fact(name, value);
        }
    }

    /// Waits until it has stopped or ended; notes that.
    #[track_caller]
    pub fn change(&mut self) -> Change {
        let deadline = Instant::now() + LIMIT;
        let change = loop {
            match self.begun().look() {
                // Of what has ended since this is not told any more.
                None | Some(Change::Continued) => {}
                Some(change) => break change,
            }
            if Instant::now() > deadline {
                self.give_up("no change");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        self.over = matches!(change, Change::Exited(_) | Change::Signaled(..));
        let (name, text) = match change {
            Change::Exited(code) => ("end", format!("exit {code}")),
            Change::Signaled(signal, core) => {
                self.fact("core", core.to_string());
                ("end", format!("signal {signal}"))
            }
            other => ("change", format!("{other:?}")),
        };
        self.fact(name, text);
        change
    }

    /// A child from before is let go.
    pub fn slip_leash(&mut self) {
        self.ends.leash = None;
    }

    /// Waits for its end and for that of all that it reports; what was seen.
    #[track_caller]
    pub fn end(mut self) -> Facts {
        while !self.over {
            self.change();
        }
        self.ends.leash = None;
        let deadline = Instant::now() + LIMIT;
        while self.read_more(deadline) {}
        if Instant::now() > deadline {
            self.give_up("the report does not end");
        }
        self.take_lines();
        for name in ["out", "err"] {
            let text = std::fs::read(self.lab.outside().join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let ours = |line: &&str| !line.starts_with("systx: ") && !line.starts_with("hint: ");
            let theirs: Vec<&str> = text.lines().filter(ours).collect();
            let said = text.lines().filter(|line| !ours(line)).collect::<Vec<_>>().join("; ");
            self.fact(name, theirs.join("\n"));
            if self.inside && !said.is_empty() {
                self.fact("(systx said)", said);
            }
        }
        self.facts
    }

    #[track_caller]
    fn give_up(&mut self, why: &str) -> ! {
        let side = if self.inside { "through systx run" } else { "natively" };
        self.take_lines();
        self.lab.kill_all();
        self.begun().signal(libc::SIGKILL);
        let err = std::fs::read_to_string(self.lab.outside().join("err")).unwrap_or_default();
        panic!("{side}: {why}; so far {:#?}\n{err}\n{}", self.facts, self.lab.daemon_log());
    }
}

/// What the environment needs so that `systx` is that of the lab.
pub fn needed(lab: &Lab) -> Vec<CString> {
    let command = lab.command("true");
    let ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("SYSTX_");
    let all = command.get_envs().filter(|(name, _)| ours(name));
    all.filter_map(|(name, value)| Some(c([name, value?].join("=".as_ref())))).collect()
}

fn readable(fd: &std::fs::File, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.expect("poll") > 0,
        }
    }
}

/// A row: its name, and what is done on each side.
pub struct Row {
    /// For messages, and for the table of what differs.
    pub name: &'static str,
    /// Starts, watches and ends it.
    pub go: fn(Side<'_>) -> Facts,
}

/// A difference that has to be: in which row (`x*`: in any that begins so), in which fact (a
/// beginning of its name), and the line of the table in SEMANTICS.
pub type Difference = (&'static str, &'static str, &'static str);

/// Goes each row on both sides; what differs and should not, and the lines of the table that were
/// met.
pub fn compare(
    lab: &Lab,
    probe: &Path,
    rows: &[Row],
    known: &[Difference],
) -> (String, Vec<&'static str>) {
    let mut wrong = String::new();
    let mut met = Vec::new();
    for row in rows {
        let begun = Instant::now();
        let native = (row.go)(Side::new(lab, probe, false));
        let inside = (row.go)(Side::new(lab, probe, true));
        let names: std::collections::BTreeSet<&String> =
            native.keys().chain(inside.keys()).collect();
        let said = inside.get("(systx said)").cloned().unwrap_or_default();
        for name in names.into_iter().filter(|name| name.as_str() != "(systx said)") {
            let (a, b) = (native.get(name), inside.get(name));
            if a == b {
                continue;
            }
            let is_known = |(of, fact, _): &&Difference| {
                let is_of = match of.strip_suffix('*') {
                    Some(start) => row.name.starts_with(start),
                    None => *of == row.name,
                };
                is_of && name.starts_with(fact)
            };
            match known.iter().find(is_known) {
                Some((_, _, line)) => met.push(*line),
                // What is not there of a command that was not started says nothing more.
                None if b.is_none() && inside.get("end") != native.get("end") && name != "end" => {}
                None => {
                    let one = format!(
                        "{}: {name}\n  natively {a:?}\n  in a run {b:?}  {said}\n",
                        row.name
                    );
                    let _ = std::io::stderr().write_all(one.as_bytes());
                    wrong.push_str(&one);
                }
            }
        }
        // Unbuffered, so that a row that hangs is known.
        let _ = writeln!(std::io::stderr(), "{} {:?}", row.name, begun.elapsed());
    }
    (wrong, met)
}
