//! Starts CMD in a view: fork, the child's way to exec, and the parent's part in it.

use crate::calls::{self, Supervisor};
use crate::channel::{self, Packet};
use crate::error::{Failed, SessionError, step};
use crate::ids;
use crate::inherited_unsafe;
use crate::limits::Limits;
use crate::mountinfo;
use crate::plan::{self, Plan, Wish};
use crate::processes;
use crate::seccomp_unsafe;
use crate::stand_in::StandIns;
use crate::sys_unsafe::{self, Forked, Mask};
use crate::terminal::Terminal;
use crate::view::{self, Backing, Fill, ViewSpec};
use crate::watch::Watched;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What to run, and in what.
#[derive(Clone, Debug)]
pub struct Spec {
    /// CMD and its arguments; not empty.
    pub argv: Vec<OsString>,
    /// Variables to set on top of the environment.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory, absolute.
    pub cwd: PathBuf,
    /// In what.
    pub place: PlaceToRun,
    /// Note who is talked to outside, see [`Started::sightings`].
    pub watch: bool,
    /// What its programs may take.
    pub limits: Limits,
}

/// Where a command runs.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // one in a process
pub enum PlaceToRun {
    /// In a new view.
    NewView {
        /// What its root shows.
        backing: Backing,
        /// What is where.
        wish: Wish,
        /// What private places start with.
        fill: Vec<Fill>,
        /// Without any network but a loopback interface of its own.
        no_net: bool,
        /// Programs that stand in front of others.
        stand_ins: StandIns,
    },
    /// In the view that this process is in.
    ViewOf(u32),
}

/// Facts about a new view, for the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewFacts {
    /// Of which volume: 0 for [`Wish::volume`], then [`Wish::others`].
    pub volume: u32,
    /// First process in it.
    pub pid: u32,
    /// Inode of its mount namespace.
    pub mnt_ns: u64,
    /// Number of its FUSE connection.
    pub connection: u64,
}

/// Has the view served: gets the FUSE descriptor, returns when requests are answered.
pub type Serve<'a> =
    dyn FnMut(ViewFacts, OwnedFd) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + 'a;

/// A command that was started.
pub struct Started {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// Reads the signals that [`signals`] lists, which are blocked in this process from now on.
    pub(crate) signals: OwnedFd,
    /// A directory of each view, for syncfs.
    pub(crate) views: Vec<OwnedFd>,
    /// Roots of the private places.
    pub(crate) private: Vec<(PathBuf, OwnedFd)>,
    /// Sentences for the user, of interest only when asked for.
    pub notes: Vec<String>,
    /// The mask before, for the client's own end.
    pub(crate) mask: Mask,
    /// The terminal before.
    pub(crate) terminal: Option<Terminal>,
    /// What came of looking for connections to the outside.
    pub(crate) watched: Watched,
    /// Notes calls that lead outside.
    pub(crate) supervisor: Option<Supervisor>,
    /// This process had children before: those in this mount namespace are theirs and none of the
    /// run's.
    pub(crate) others: Option<u64>,
    /// The signal that continued it after it stopped with CMD is still to be read.
    pub(crate) continued: bool,
}

/// All signals that can be blocked: they are CMD's business first.  They are blocked in the client,
/// which reads them from a signalfd; CMD starts with the mask that the client was started with.
pub(crate) fn signals() -> Vec<i32> {
    (1..=libc::SIGRTMAX()).filter(|s| !matches!(*s, libc::SIGKILL | libc::SIGSTOP)).collect()
}

/// True if this process may mount in its own user namespace; if not, a view needs a user namespace.
pub fn privileged() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Plans the root of a view from this process's own mounts.
///
/// # Errors
/// They cannot be read, or no view can be made of them.
pub fn plan_here(wish: &Wish) -> Result<Plan, SessionError> {
    let text = std::fs::read("/proc/self/mountinfo").map_err(SessionError::Mounts)?;
    Ok(plan::plan(&mountinfo::parse(&text)?, wish)?)
}

/// Starts CMD; returns when it is executed, or cannot be.
///
/// This process must have one thread.  From here on it is a subreaper: what CMD leaves behind
/// becomes its child.
///
/// # Errors
/// See [`SessionError`]; nothing is left running then.
pub fn start(spec: &Spec, serve: &mut Serve<'_>) -> Result<Started, SessionError> {
    let call = |what| move |errno| SessionError::Call { what, errno };
    let plan = match &spec.place {
        PlaceToRun::NewView { wish, .. } => plan_here(wish)?,
        PlaceToRun::ViewOf(_) => Plan::default(),
    };
    let exec = Exec::prepare(&spec.argv, &spec.env)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(call("prctl(PR_SET_CHILD_SUBREAPER)"))?;
    let (ours, theirs) = channel::pair().map_err(call("socketpair"))?;
    // From before the fork, so that no signal for CMD ends the client instead.
    let mask = sys_unsafe::block(&signals()).map_err(call("sigprocmask"))?;
    let signals = sys_unsafe::signalfd(&signals()).map_err(call("signalfd"))?;
    inherited_unsafe::take();
    let others = sys_unsafe::has_children().then(processes::mount_namespace).flatten();
    let terminal = Terminal::save();
    let parent = rustix::process::getpid();
    let pid = match sys_unsafe::fork().map_err(call("fork"))? {
        Forked::Child => {
            drop(ours);
            let failed = child(spec, &plan, &exec, &mask, parent, &theirs);
            let _ = channel::send(theirs.as_fd(), &Packet::Failed(failed));
            // Not `process::exit`: exit handlers and buffers are the parent's.
            sys_unsafe::exit_now(125);
        }
        Forked::Parent(pid) => pid,
    };
    drop(theirs);
    let begun = oversee(pid, &ours, serve);
    if begun.is_err() {
        drop(ours);
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        sys_unsafe::restore(&mask);
    }
    let Kept { views, private, mut notes, supervisor } = begun?;
    notes.splice(0..0, plan.notes);
    let pidfd =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(call("pidfd_open"))?;
    Ok(Started {
        pid,
        pidfd,
        signals,
        views,
        private,
        notes,
        mask,
        terminal,
        watched: Watched::default(),
        supervisor,
        others,
        continued: false,
    })
}

#[derive(Default)]
struct Kept {
    views: Vec<OwnedFd>,
    private: Vec<(PathBuf, OwnedFd)>,
    notes: Vec<String>,
    supervisor: Option<Supervisor>,
}

/// The parent's part until the child executes CMD.
fn oversee(pid: Pid, channel: &OwnedFd, serve: &mut Serve<'_>) -> Result<Kept, SessionError> {
    let call = |what| move |errno| SessionError::Call { what, errno };
    let mut kept = Kept::default();
    loop {
        match channel::receive(channel.as_fd()).map_err(call("recvmsg"))? {
            None => return Ok(kept),
            Some(Packet::Nobody) => {
                ids::map_all(pid).map_err(SessionError::Setup)?;
                channel::go(channel.as_fd()).map_err(call("send"))?;
            }
            Some(Packet::Mounted { volume, mnt_ns, connection, fuse }) => {
                let pid = pid.as_raw_nonzero().get().unsigned_abs();
                serve(ViewFacts { volume, pid, mnt_ns, connection }, fuse)
                    .map_err(SessionError::Attach)?;
                channel::go(channel.as_fd()).map_err(call("send"))?;
            }
            Some(Packet::Built { views, private, notes }) => {
                kept = Kept { views, private, notes, supervisor: None };
            }
            Some(Packet::Watched(listener)) => {
                let started = Supervisor::start(listener);
                kept.supervisor = Some(started.map_err(call("start a thread that answers calls"))?);
            }
            Some(Packet::Failed(Failed { step, path, errno })) => {
                return Err(match path {
                    Some(path) if step == step::EXEC => SessionError::Exec { path, errno },
                    path => SessionError::Setup(Failed { step, path, errno }),
                });
            }
        }
    }
}

/// The child's way to exec; returns only to say what went wrong.
fn child(
    spec: &Spec,
    plan: &Plan,
    exec: &Exec,
    mask: &Mask,
    parent: Pid,
    channel: &OwnedFd,
) -> Failed {
    let fail = |step: &str, path: Option<PathBuf>, errno| Failed { step: step.into(), path, errno };
    // If the client is killed, CMD must not go on in a transaction that nobody will end.  (What CMD
    // started is ended by the daemon.)
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != Some(parent) {
        sys_unsafe::exit_now(125);
    }
    // What is made is to have the modes that are asked for.
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    let user_namespace = !privileged();
    // In a namespace of one user no program has more rights than its caller.
    let without_set_id = user_namespace && !ids::all_can_be_mapped();
    let made = match &spec.place {
        PlaceToRun::NewView { backing, wish, fill, no_net, stand_ins } => {
            let others = wish.others.iter().map(PathBuf::as_path);
            let volumes: Vec<&Path> = std::iter::once(&*wish.volume).chain(others).collect();
            let (volumes, no_net) = (&*volumes, *no_net);
            let view = ViewSpec { backing, plan, fill, volumes, user_namespace, no_net, stand_ins };
            view::make(&view, channel.as_fd())
        }
        PlaceToRun::ViewOf(pid) => view::join(*pid, user_namespace),
    };
    if let Err(failed) = made {
        return failed;
    }
    if let Err(errno) = rustix::process::chdir(&spec.cwd) {
        return fail(step::CHDIR, Some(spec.cwd.clone()), errno);
    }
    rustix::process::umask(umask);
    if let Err(errno) = inherited_unsafe::give_back().and_then(|()| spec.limits.set()) {
        return fail("limit resources", None, errno);
    }
    if spec.watch
        && let Ok(listener) = seccomp_unsafe::install(&calls::wanted(!without_set_id))
        && let Err(errno) = channel::send(channel.as_fd(), &Packet::Watched(listener))
    {
        return fail("report to the parent", None, errno);
    }
    sys_unsafe::restore(mask);
    let (path, errno) = exec.run();
    fail(step::EXEC, Some(path), errno)
}

/// Becomes a program, as if it had been started instead of this one; comes back only if that fails.
pub fn execute(argv: &[OsString]) -> SessionError {
    let exec = match Exec::prepare(argv, &[]) {
        Ok(exec) => exec,
        Err(e) => return e,
    };
    if let Err(errno) = inherited_unsafe::give_back() {
        return SessionError::Call { what: "setrlimit", errno };
    }
    let (path, errno) = exec.run();
    SessionError::Exec { path, errno }
}

/// CMD in the form that execve(2) takes.
struct Exec {
    name: PathBuf,
    /// Where to look for it, in order.
    candidates: Vec<CString>,
    argv: Vec<CString>,
    envp: Vec<CString>,
}

impl Exec {
    /// `set`: variables on top of the environment.
    fn prepare(argv: &[OsString], set: &[(OsString, OsString)]) -> Result<Exec, SessionError> {
        let name = argv.first().cloned().unwrap_or_default();
        let text = |s: &OsStr| {
            CString::new(s.as_bytes())
                .map_err(|_| SessionError::Exec { path: PathBuf::from(&name), errno: Errno::INVAL })
        };
        let mut envp = inherited_unsafe::environment();
        for (key, value) in set {
            let mut line = key.clone();
            line.push("=");
            line.push(value);
            let of_key = |have: &CString| value_of(have, key.as_bytes()).is_some();
            match envp.iter_mut().find(|have| of_key(have)) {
                Some(have) => *have = text(&line)?,
                None => envp.push(text(&line)?),
            }
        }
        let path = envp.iter().find_map(|have| value_of(have, b"PATH")).map(OsStr::from_bytes);
        let candidates = candidates(&name, path);
        Ok(Exec {
            candidates: candidates.iter().map(|c| text(c)).collect::<Result<_, _>>()?,
            argv: argv.iter().map(|a| text(a)).collect::<Result<_, _>>()?,
            envp,
            name: PathBuf::from(name),
        })
    }

    /// As execvp(3): the first that can be executed; a file without a format goes to /bin/sh;
    /// "permission denied" is reported only if nothing else is found.
    fn run(&self) -> (PathBuf, Errno) {
        let mut worst = Errno::NOENT;
        for path in &self.candidates {
            match sys_unsafe::execve(path, &self.argv, &self.envp) {
                Errno::NOENT | Errno::NOTDIR => {}
                Errno::ACCESS => worst = Errno::ACCESS,
                Errno::NOEXEC => {
                    let mut argv = vec![c"sh".to_owned(), path.clone()];
                    argv.extend(self.argv.iter().skip(1).cloned());
                    let errno = sys_unsafe::execve(c"/bin/sh", &argv, &self.envp);
                    return (self.name.clone(), errno);
                }
                errno => return (self.name.clone(), errno),
            }
        }
        (self.name.clone(), worst)
    }
}

/// What a line of the environment says of a variable.
fn value_of<'a>(line: &'a CString, key: &[u8]) -> Option<&'a [u8]> {
    line.as_bytes().strip_prefix(key)?.strip_prefix(b"=")
}

/// Where execvp(3) looks for `name`.
fn candidates(name: &OsStr, path: Option<&OsStr>) -> Vec<OsString> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.as_bytes().contains(&b'/') {
        return vec![name.to_owned()];
    }
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/bin:/usr/bin"));
    path.as_bytes()
        .split(|b| *b == b':')
        .map(|dir| {
            // An empty element is the working directory.
            let dir =
                if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) };
            dir.join(name).into_os_string()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_looked_for_as_execvp_does() {
        let look = |name: &str, path: Option<&str>| {
            candidates(OsStr::new(name), path.map(OsStr::new))
                .into_iter()
                .map(|c| c.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(look("ls", Some("/a::/b")), ["/a/ls", "./ls", "/b/ls"]);
        assert_eq!(look("./ls", Some("/a")), ["./ls"]);
        assert_eq!(look("ls", None), ["/usr/local/bin/ls", "/bin/ls", "/usr/bin/ls"]);
        assert!(look("", Some("/a")).is_empty());
    }
}
