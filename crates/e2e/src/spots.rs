//! One piece of work in each place where programs and transactions meet: on the host, in a run,
//! below the path of a transaction, in a guarded directory of each kind, in a run there; as root
//! and as an ordinary user; over io_uring and over /dev/fuse.
//!
//! Unlike in [`crate::places`] nothing is compared: the work itself knows what is right. Several
//! processes may do it, in any order.

use crate::open::Open;
use crate::run::{Finished, Limits, finish};
use crate::{Fs, Lab, lab};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// On the file system itself.
    Host,
    /// In a `systx run` that commits.
    Run,
    /// Below the path of a transaction that is committed afterwards.
    View,
    /// By plain programs in a directory that root has guarded, with this option.
    Guarded(Option<&'static str>),
    /// In a `systx run` that commits, in such a directory.
    RunInGuarded(Option<&'static str>),
}

impl Spot {
    /// All but those in which a run meets a directory of an uncommon kind, the host first.
    pub const ALL: [Spot; 7] = [
        Spot::Host,
        Spot::Run,
        Spot::View,
        Spot::Guarded(None),
        Spot::Guarded(Some("--fast-open")),
        Spot::Guarded(Some("--routed")),
        Spot::RunInGuarded(None),
    ];

    fn guard(self) -> Option<Option<&'static str>> {
        match self {
            Spot::Host | Spot::Run | Spot::View => None,
            Spot::Guarded(option) | Spot::RunInGuarded(option) => Some(option),
        }
    }
}

/// One visit.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Where.
    pub spot: Spot,
    /// By an ordinary user; a guest of root's daemon where that has guarded the directory.
    pub user: bool,
    /// `auto` or `dev`.
    pub transport: &'static str,
}

impl Case {
    /// Why a file system has no such place.
    fn missing_on(self, fs: Fs) -> Option<&'static str> {
        match self.spot {
            _ if fs != Fs::Volume => None,
            Spot::RunInGuarded(_) | Spot::Guarded(Some(_)) => Some("all of a volume is guarded"),
            Spot::Guarded(None) if self.transport == "dev" => Some("the lab mounts its volume"),
            Spot::Run | Spot::View if self.user => Some("runs of its users are refused there"),
            _ => None,
        }
    }
}

/// Every spot, as root over the usual transport and as a user over /dev/fuse in turn, beginning
/// with the `first`; all four of each if `all`. The host only once.
pub fn cases(first: usize, all: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, spot) in Spot::ALL.into_iter().enumerate() {
        for (m, (user, transport)) in
            [(false, "auto"), (true, "dev"), (false, "dev"), (true, "auto")].into_iter().enumerate()
        {
            let chosen = all || (n + first) % 2 == m;
            if if spot == Spot::Host { m == 0 } else { chosen } {
                cases.push(Case { spot, user, transport });
            }
        }
    }
    cases
}

/// What is to be done.
pub struct Work<'a> {
    /// A shell script of root's that makes what it begins with, in the directory; all of that is
    /// given to whoever does the work.
    pub prepare: &'a str,
    /// A shell script; it begins in the directory.
    pub script: &'a str,
    /// A shell script that looks at what is left on the host, given what the work has printed as
    /// its input.
    pub check: &'a str,
    /// How long each may take, in seconds.
    pub seconds: u64,
}

/// The user whose name every machine has: fusermount3 and many programs serve no others.
fn nobody() -> Result<u32, String> {
    let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut lines = known.lines().filter_map(|line| line.strip_prefix("nobody:"));
    let uid = lines.find_map(|rest| rest.split(':').nth(1)?.parse().ok());
    uid.ok_or_else(|| "there is no user nobody".into())
}

/// Who does the work.
struct Worker<'l> {
    lab: &'l Lab,
    guest: Option<(u32, PathBuf)>,
}

impl<'l> Worker<'l> {
    fn new(lab: &'l Lab, guest: Option<u32>) -> Worker<'l> {
        let guest = guest.map(|uid| {
            // Where that user can execute it, and has a place for what the user's own daemon needs.
            let binary = lab.outside().join("systx");
            lab::tool(Command::new("cp").arg(lab.binary()).arg(&binary)).expect("a copy");
            lab::chmod(&binary, 0o755);
            let run = lab.outside().join("run-guest");
            fs::create_dir(&run).expect("ours");
            fs::set_permissions(&run, PermissionsExt::from_mode(0o700)).expect("ours");
            std::os::unix::fs::chown(&run, Some(uid), Some(uid)).expect("root may");
            (uid, binary)
        });
        Worker { lab, guest }
    }

    fn systx<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let Some((_, binary)) = &self.guest else { return self.lab.systx(args) };
        let mut command = self.command(binary);
        command.args(args);
        command
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let Some((uid, _)) = &self.guest else { return self.lab.command(program) };
        let mut command = self.lab.command("setpriv");
        command
            .args([format!("--reuid={uid}"), format!("--regid={uid}")])
            .args(["--clear-groups", "--"])
            .arg(program)
            .env("SYSTX_GUESTS_DIR", self.lab.root().with_file_name("run-guests"))
            .env("SYSTX_RUNTIME_DIR", self.lab.outside().join("run-guest"))
            .env("HOME", "/nonexistent");
        command
    }
}

impl Drop for Worker<'_> {
    /// The guest's own daemon would stay for a while, and has the directory open.
    fn drop(&mut self) {
        if self.guest.is_some() {
            lab::end(&lab::processes_with(&self.lab.outside().join("run-guest")));
        }
    }
}

/// Does the work in one place; returns what it has printed. Fails the test where it, or the look at
/// what it has left, does.
///
/// # Errors
/// What this machine does not have: for the message that it is left out.
#[track_caller]
pub fn visit(case: Case, work: &Work<'_>) -> Result<Finished, String> {
    let mut lab = Lab::new()?;
    if let Some(why) = case.missing_on(lab.fs) {
        return Err(why.into());
    }
    let guard = case.spot.guard();
    if case.user && guard.is_none() {
        lab = lab.as_known_user()?;
    }
    let guest = if case.user && guard.is_some() { Some(nobody()?) } else { None };
    let dir = lab.path("work");
    fs::create_dir(&dir).expect("the volume is writable");
    let root = |script: &str, input: &str| {
        let mut command = Command::new("sh");
        let script = format!("exec <<'SYSTX_END'\n{input}\nSYSTX_END\n{script}");
        command.args(["-ec", &script]).current_dir(&dir).env("LC_ALL", "C.UTF-8");
        finish(command, Limits::seconds(work.seconds), &lab)
    };
    root(work.prepare, "").ok();
    if let Some(uid) = guest.or((lab.uid() != 0).then(|| lab.uid())) {
        root(&format!("chown -R {uid}:{uid} ."), "").ok();
    }
    if let Some(option) = guard.filter(|_| lab.fs != Fs::Volume) {
        let options = ["mount", "--transport", case.transport].into_iter().chain(option);
        lab.do_systx(options.chain(["work"])).ok();
    }
    let done = attempt(&Worker::new(&lab, guest), case, &dir, work);
    if guard.is_some() {
        lab.unguard("work");
    }
    assert_eq!(done.code, 0, "{case:?}\n{done}\n{}", lab.daemon_log());
    let left = root(work.check, &done.out);
    assert_eq!(left.code, 0, "{case:?}: what is left on the host\n{left}\n{done}");
    Ok(done)
}

fn attempt(worker: &Worker<'_>, case: Case, dir: &Path, work: &Work<'_>) -> Finished {
    let lab = worker.lab;
    let limits = Limits::seconds(work.seconds);
    match case.spot {
        Spot::Host | Spot::Guarded(_) => {
            let mut command = worker.command("sh");
            command.args(["-ec", work.script]).current_dir(dir);
            finish(command, limits, lab)
        }
        Spot::Run | Spot::RunInGuarded(_) => {
            let mut command = worker.systx(["run", "--transport", case.transport, "--", "sh"]);
            command.args(["-ec", work.script]).current_dir(dir);
            finish(command, limits, lab)
        }
        Spot::View => {
            let open = Open::begin(lab, "work", &["--transport", case.transport]);
            let mut command = worker.command("sh");
            // By the shell: it may be a path for that user only.
            let script = format!("cd {}; {}", open.path.display(), work.script);
            command.args(["-ec", &script]);
            let done = finish(command, limits, lab);
            open.systx("commit").ok();
            done
        }
    }
}
