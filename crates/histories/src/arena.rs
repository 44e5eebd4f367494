//! A directory to work in, and what a transaction over it is: the command of systx, or nothing.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Exit code of a transaction that lost a conflict.
const CONFLICT: i32 = 75;
/// Exit code of a commit that met a change by a program outside while it was installed.
const OUTSIDE: i32 = 76;

/// Where programs meet.
#[derive(Debug)]
pub struct Arena {
    /// The path by which plain programs reach it.
    pub dir: PathBuf,
    /// The command that begins and ends transactions.  Without: a "transaction" is the same calls
    /// on the directory itself, its commit and its abort do nothing.
    pub systx: Option<PathBuf>,
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
    /// With all that it did, but in place of something that it never saw.  On a guarded directory there
    /// is no outside from which that could come.
    Displaced(String),
    /// The command failed otherwise, and says this.
    Failed(String),
}

impl Arena {
    /// See the fields.
    pub fn new(dir: PathBuf, systx: Option<PathBuf>) -> Arena {
        Arena { dir, systx, lost: Mutex::default() }
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// That the command cannot be started, fails, or says what nobody understands.
    pub fn begin(&self, read_only: bool) -> Result<View> {
        if self.systx.is_none() {
            return Ok(View { id: String::new(), path: self.dir.clone() });
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

    /// Ends it with all that it did, if it has not lost.
    ///
    /// # Errors
    /// That the command cannot be started.
    pub fn commit(&self, view: &View) -> Result<Ending> {
        self.end("commit", view)
    }

    /// Ends it without effect; of a directory without transactions, nothing is taken back.
    ///
    /// # Errors
    /// That the command cannot be started.
    pub fn abort(&self, view: &View) -> Result<Ending> {
        self.end("abort", view)
    }

    /// One attempt of a transaction that does `work` below the path that it is given.  `None`: it lost a
    /// conflict, and the next one is another attempt of it.
    ///
    /// # Errors
    /// Those of `work`, and of the commit but for a conflict.
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
            Err(e) if canceled(&e) => {
                self.lost(&view);
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// It was told that it has lost: the next one is another attempt of it.
    pub fn lost(&self, view: &View) {
        if self.systx.is_some() {
            self.losers().insert(thread::current().id(), view.id.clone());
        }
    }

    fn losers(&self) -> MutexGuard<'_, HashMap<ThreadId, String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, how: &str, view: &View) -> Result<Ending> {
        if self.systx.is_none() {
            return Ok(Ending::Committed);
        }
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
        let systx = self.systx.as_deref().unwrap_or(Path::new("systx"));
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
    error.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error())
}

fn told(done: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{} ({}; {})", text(&done.stdout), text(&done.stderr), done.status)
}
