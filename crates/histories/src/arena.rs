//! A directory to work in, and what a transaction over it is: the command of systx, its library, or
//! nothing.

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::io::Errno;
use serde::Deserialize;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use systx::Flags;

/// Exit code of a transaction that lost a conflict.
const CONFLICT: i32 = 75;
/// Exit code of a commit that met a change by a program outside while it was installed.
const OUTSIDE: i32 = 76;

/// Longer than a daemon that was killed takes to be back.
const PATIENCE: Duration = Duration::from_secs(60);

/// What begins and ends transactions, as options of a program.
#[derive(Args, Clone, Debug)]
pub struct Transactions {
    /// Transactions are those of this systx command
    #[arg(long, value_name = "SYSTX")]
    transaction: Option<PathBuf>,
    /// Transactions are those of the library: a hundred times as many in the same time
    #[arg(long, conflicts_with = "transaction")]
    library: bool,
}

impl Transactions {
    /// What was chosen.
    pub fn by(&self) -> By {
        match &self.transaction {
            Some(systx) => By::Command(systx.clone()),
            None if self.library => By::Library(Flags::default()),
            None => By::Nothing,
        }
    }
}

/// What begins and ends transactions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// Nothing: a "transaction" is the same calls on the directory itself, its commit and its abort
    /// do nothing.
    Nothing,
    /// The command of systx: a transaction has a path of its own.
    Command(PathBuf),
    /// The library, with these flags: a transaction is what the thread does, by the paths of
    /// everybody.
    Library(Flags),
}

/// Which of the things that a program had opened before its transaction belong to it. Requests by
/// the others are plain ones, wherever they are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reach {
    /// Descriptors of files.  Mappings never do.
    pub files: bool,
    /// Directories, for names that are looked up from there.
    pub directories: bool,
}

/// Where programs meet.
#[derive(Debug)]
pub struct Arena {
    /// The path by which plain programs reach it.
    pub dir: PathBuf,
    /// What begins and ends transactions.
    pub by: By,
    /// What was opened before a transaction and is in it.
    pub reach: Reach,
    /// What lost last, by thread: its next transaction is another attempt of that.
    lost: Mutex<HashMap<ThreadId, String>>,
}

/// What `systx begin --json` says.
#[derive(Deserialize)]
struct Said {
    begun: View,
}

/// A transaction that runs.
#[derive(Debug, Deserialize)]
pub struct View {
    /// Its name for the command.
    pub id: String,
    /// The directory as the transaction sees it.
    pub path: PathBuf,
}

/// How a transaction ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// With all that it did.
    Committed,
    /// It lost: nothing of it is left.
    Conflict,
    /// With all that it did, but in place of something that it never saw. On a guarded directory
    /// there is no outside from which that could come.
    Displaced(String),
    /// The command failed otherwise, and says this.
    Failed(String),
}

impl Arena {
    /// See the fields.
    pub fn new(dir: PathBuf, by: By) -> Arena {
        let files =
            matches!(by, By::Library(flags) if flags.bits() & Flags::DESCRIPTORS.bits() != 0);
        let reach = Reach { files, directories: false };
        Arena { dir, by, reach, lost: Mutex::default() }
    }

    /// Finds out whether directories that were opened before are in transactions of threads, which
    /// depends on how the directory was mounted. `name` is one in it that nobody has, and nobody
    /// will have.
    ///
    /// # Errors
    /// Those of a transaction that makes it and is dropped.
    pub fn find_reach(&mut self, name: &str) -> Result<()> {
        let By::Library(_) = self.by else { return Ok(()) };
        let before = File::open(&self.dir)?;
        let view = self.begin(false)?;
        let made = File::create(view.path.join(name)).and_then(|made| Ok(made.metadata()?.ino()));
        // By the link in /proc, as whoever keeps the directory goes.
        let seen = fs::metadata(format!("/proc/self/fd/{}/{name}", before.as_raw_fd()));
        self.abort(&view)?;
        let made = made.with_context(|| format!("cannot make {name} in a transaction"))?;
        self.reach.directories = match seen {
            Ok(seen) if seen.ino() == made => true,
            Err(e) if is(&e, Errno::NOENT) => false,
            Ok(_) => bail!("{name} is another file by a directory from before"),
            Err(e) => return Err(e).context("a directory from before"),
        };
        Ok(())
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// That the command cannot be started, fails, or says what nobody understands; that of the
    /// library.
    pub fn begin(&self, read_only: bool) -> Result<View> {
        match self.by {
            By::Nothing => return Ok(View { id: String::new(), path: self.dir.clone() }),
            By::Library(flags) => return self.begin_here(flags, read_only),
            By::Command(_) => {}
        }
        let mut args: Vec<&OsStr> = vec!["begin".as_ref(), "--json".as_ref()];
        args.extend(read_only.then_some(OsStr::new("--read-only")));
        args.push(self.dir.as_os_str());
        let lost = self.losers().remove(&thread::current().id());
        let mut done = match lost {
            Some(lost) => self.systx(args.iter().chain(&["--retry".as_ref(), lost.as_ref()]))?,
            None => self.systx(&args)?,
        };
        if !done.status.success() {
            // The daemon that knew of it may have been killed.
            done = self.systx(&args)?;
        }
        if !done.status.success() {
            bail!("systx begin: {}", told(&done));
        }
        let said: Said = serde_json::from_slice(&done.stdout)
            .with_context(|| format!("systx begin --json said {}", told(&done)))?;
        Ok(said.begun)
    }

    /// Begins a transaction of this thread.
    fn begin_here(&self, mut flags: Flags, read_only: bool) -> Result<View> {
        if systx::xid() != 0 {
            // Work that failed has left it open.
            let _ = systx::xabort();
        }
        if read_only {
            flags = flags | Flags::READ_ONLY;
        }
        if self.losers().remove(&thread::current().id()).is_some() {
            flags = flags | Flags::RETRY;
        }
        let late = Instant::now() + PATIENCE;
        loop {
            match systx::xbegin(Some(&self.dir), flags) {
                Ok(()) => break,
                // The daemon was killed, and is not back yet.
                Err(e) if is(&e, Errno::NOTCONN) && Instant::now() < late => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(e) => return Err(e).context("xbegin"),
            }
        }
        Ok(View { id: systx::xid().to_string(), path: self.dir.clone() })
    }

    /// Ends a transaction of this thread with all that it did.
    fn end_here(&self, view: &View) -> Ending {
        let Err(error) = systx::xend() else { return Ending::Committed };
        if canceled(&error) {
            self.lost(view);
            return Ending::Conflict;
        }
        let words = systx::xstatus().map_or(String::new(), |status| status.words);
        Ending::Failed(format!("xend: {error} ({words})"))
    }

    /// Ends it with all that it did, if it has not lost.
    ///
    /// # Errors
    /// That the command cannot be started.
    pub fn commit(&self, view: &View) -> Result<Ending> {
        match self.by {
            By::Nothing => Ok(Ending::Committed),
            By::Library(_) => Ok(self.end_here(view)),
            By::Command(_) => self.end("commit", view),
        }
    }

    /// Ends it without effect; of a directory without transactions, nothing is taken back.
    ///
    /// # Errors
    /// That the command cannot be started.
    pub fn abort(&self, view: &View) -> Result<Ending> {
        match self.by {
            By::Nothing => Ok(Ending::Committed),
            By::Library(_) if self.has_lost(view) => {
                self.lost(view);
                Ok(Ending::Conflict)
            }
            By::Library(_) => Ok(match systx::xabort() {
                Ok(()) => Ending::Committed,
                Err(e) => Ending::Failed(format!("xabort: {e}")),
            }),
            By::Command(_) => self.end("abort", view),
        }
    }

    /// One attempt of a transaction that does `work` below the path that it is given. `None`: it
    /// lost a conflict, and the next one is another attempt of it.
    ///
    /// # Errors
    /// Those of `work`, with what it did dropped; those of the commit but for a conflict.
    pub fn attempt<T>(
        &self,
        read_only: bool,
        work: impl FnOnce(&Path) -> std::io::Result<T>,
    ) -> Result<Option<T>> {
        let view = self.begin(read_only)?;
        match work(&view.path) {
            Ok(done) => match self.commit(&view)? {
                Ending::Committed => Ok(Some(done)),
                Ending::Conflict => Ok(None),
                Ending::Displaced(why) | Ending::Failed(why) => bail!("the commit failed: {why}"),
            },
            Err(e) if canceled(&e) || self.has_lost(&view) => {
                self.lost(&view);
                Ok(None)
            }
            Err(e) => {
                self.abort(&view)?;
                Err(e.into())
            }
        }
    }

    /// It was told that it has lost: the next one is another attempt of it.
    pub fn lost(&self, view: &View) {
        if matches!(self.by, By::Library(_)) && systx::xid() != 0 {
            let _ = systx::xabort();
        }
        if self.by != By::Nothing {
            self.losers().insert(thread::current().id(), view.id.clone());
        }
    }

    /// Whether a running transaction has lost: then what it does means nothing, whatever a call of
    /// it says.
    pub fn has_lost(&self, view: &View) -> bool {
        match self.by {
            By::Nothing => false,
            By::Library(_) => systx::xstatus().is_ok_and(|s| s.state == systx::State::Lost),
            // By a name that nobody has: what has lost is not even told that.
            By::Command(_) => {
                fs::symlink_metadata(view.path.join("probe")).is_err_and(|e| canceled(&e))
            }
        }
    }

    fn losers(&self) -> MutexGuard<'_, HashMap<ThreadId, String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends one of the command.
    fn end(&self, how: &str, view: &View) -> Result<Ending> {
        let done = self.systx([how, view.id.as_str()])?;
        Ok(match done.status.code() {
            Some(0) => Ending::Committed,
            Some(OUTSIDE) => Ending::Displaced(told(&done)),
            Some(CONFLICT) => {
                self.lost(view);
                Ending::Conflict
            }
            _ => Ending::Failed(told(&done)),
        })
    }

    fn systx<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Result<Output> {
        let systx = match &self.by {
            By::Command(systx) => systx.as_path(),
            By::Nothing | By::Library(_) => bail!("there is no command"),
        };
        let mut command = Command::new(systx);
        command.args(args).stdin(Stdio::null());
        command.output().with_context(|| format!("cannot start {}", systx.display()))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for lost in std::mem::take(&mut *self.losers()).into_values() {
            let _ = self.systx(["abort", lost.as_str()]);
        }
    }
}

/// The call was refused because its transaction has lost.
pub fn canceled(error: &std::io::Error) -> bool {
    is(error, Errno::CANCELED)
}

/// The call failed with this.
pub fn is(error: &std::io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn told(done: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{} ({}; {})", text(&done.stdout), text(&done.stderr), done.status)
}
