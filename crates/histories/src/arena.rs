//! A directory to work in, and what a transaction over it is: the command of systx, or nothing.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Exit code of a transaction that lost a conflict.
const CONFLICT: i32 = 75;
/// Exit code of a commit that met a change by a program outside while it was installed.
const OUTSIDE: i32 = 76;

/// Where programs meet.
#[derive(Clone, Debug)]
pub struct Arena {
    /// The path by which plain programs reach it.
    pub dir: PathBuf,
    /// The command that begins and ends transactions.  Without: a "transaction" is the same calls
    /// on the directory itself, its commit and its abort do nothing.
    pub systx: Option<PathBuf>,
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
    /// Begins a transaction.
    ///
    /// # Errors
    /// That the command cannot be started, fails, or says what nobody understands.
    pub fn begin(&self, read_only: bool) -> Result<View> {
        if self.systx.is_none() {
            return Ok(View { id: String::new(), path: self.dir.clone() });
        }
        let option: &[&str] = if read_only { &["--read-only"] } else { &[] };
        let args = ["begin", "--json"].iter().chain(option).map(OsStr::new);
        let done = self.systx(args.chain([self.dir.as_os_str()]))?;
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

    fn end(&self, how: &str, view: &View) -> Result<Ending> {
        if self.systx.is_none() {
            return Ok(Ending::Committed);
        }
        let done = self.systx([how, view.id.as_str()])?;
        Ok(match done.status.code() {
            Some(0) => Ending::Committed,
            Some(OUTSIDE) => Ending::Displaced(told(&done)),
            Some(CONFLICT) => {
                // What has lost may be kept for a look at it.
                self.systx(["abort", view.id.as_str()])?;
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

fn told(done: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{} ({}; {})", text(&done.stdout), text(&done.stderr), done.status)
}
