//! fsfreeze(8) for a while.

use crate::lab::find_program;
use crate::{Fs, Lab};
use std::path::PathBuf;
use std::process::Command;

/// The disk of a lab, while nothing can be written to it. Whatever comes of the test, it does not
/// stay so.
pub struct Frozen(PathBuf);

impl Frozen {
    /// Why the disk of a lab cannot be frozen, if so.
    pub fn impossible(lab: &Lab) -> Option<&'static str> {
        match () {
            () if lab.fs == Fs::Tmpfs => Some("a tmpfs cannot be frozen"),
            () if find_program("fsfreeze").is_none() => Some("there is no fsfreeze"),
            () => None,
        }
    }

    pub(crate) fn at(root: PathBuf) -> Frozen {
        let frozen = Frozen(root);
        assert!(frozen.fsfreeze("--freeze"), "fsfreeze");
        frozen
    }

    fn fsfreeze(&self, how: &str) -> bool {
        Command::new("fsfreeze").arg(how).arg(&self.0).status().is_ok_and(|s| s.success())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if !self.fsfreeze("--unfreeze") {
            eprintln!("{} stays frozen", self.0.display());
        }
    }
}
