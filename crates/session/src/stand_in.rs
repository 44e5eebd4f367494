//! Programs of ours that stand in front of others in a run: commands of service managers, whose
//! work is done by daemons outside, which see only what is committed.
//!
//! They are not mounted over the real ones: a program that is a mount point cannot be replaced, and
//! a run may well install another version of it. They are in a directory of the private /run that
//! comes first in `PATH`; each is a mount of the client's own executable, which knows from its name
//! what it is to be. What they want done later they append to one file there, which the client
//! reads at the end.

use crate::error::Failed;
use crate::start::Started;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Where they are in a view.
pub const DIR: &str = "/run/systx/bin";

/// What is to be done after the commit: a JSON array of strings a line.
pub const LIST: &str = "/run/systx/deferred";

/// More than this is not read of the list.
const LONGEST: u64 = 1 << 20;

/// The names of stand-ins, and the program that is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StandIns {
    /// Absolute.
    pub program: PathBuf,
    /// Names of commands.
    pub names: Vec<String>,
}

impl StandIns {
    /// Their places, and that of the list.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self.names.iter().map(|n| Path::new(DIR).join(n)).collect();
        paths.push(LIST.into());
        paths
    }

    /// Puts them into a new root whose /run is private: `place` makes a file (with its parents) and
    /// mounts a clone of the program on it.
    pub(crate) fn put(
        &self,
        mut place: impl FnMut(&Path, &Path) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        self.names.iter().try_for_each(|name| place(&self.program, &Path::new(DIR).join(name)))
    }
}

impl Started {
    /// What was appended to the list, line by line; empty if there was nothing private.
    pub fn deferred(&self) -> Vec<Vec<u8>> {
        let under = |(at, fd): &(PathBuf, OwnedFd)| {
            let below = Path::new(LIST).strip_prefix(at).ok()?;
            // Not through a link that somebody has put there.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            rustix::fs::openat(fd, below, flags, Mode::empty()).ok()
        };
        let Some(file) = self.private.iter().find_map(under) else { return Vec::new() };
        let mut bytes = Vec::new();
        if std::fs::File::from(file).take(LONGEST).read_to_end(&mut bytes).is_err() {
            return Vec::new();
        }
        bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(<[u8]>::to_vec).collect()
    }
}

/// A program that is not there any more is no reason not to run.
pub(crate) fn without_program(result: Result<(), Failed>) -> Result<bool, Failed> {
    match result {
        Ok(()) => Ok(true),
        Err(Failed { errno: Errno::NOENT | Errno::INVAL | Errno::ACCESS, .. }) => Ok(false),
        Err(failed) => Err(failed),
    }
}
