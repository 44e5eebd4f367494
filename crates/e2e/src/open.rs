//! Transactions with a path, as the tests work in them.

use crate::lab::Lab;
use crate::run::{Finished, Limits, finish};
use std::path::PathBuf;

/// One of them.
pub struct Open<'a> {
    lab: &'a Lab,
    /// Its id.
    pub id: String,
    /// Where it is worked in.
    pub path: PathBuf,
}

impl<'a> Open<'a> {
    /// Begins one on a directory of the volume.
    #[track_caller]
    pub fn begin(lab: &'a Lab, dir: &str, options: &[&str]) -> Open<'a> {
        let dir = lab.path(dir);
        let dir = dir.to_str().expect("UTF-8");
        let json = lab.do_systx(["begin", "--json", dir].iter().chain(options)).ok().json();
        let text = |name: &str| json["begun"][name].as_str().expect("a string").to_owned();
        Open { lab, id: text("id"), path: PathBuf::from(text("path")) }
    }

    /// `sh -c SCRIPT` below the path; `$SYSTX` is the program.
    pub fn sh(&self, script: &str) -> Finished {
        let mut command = self.lab.command("sh");
        // By the shell: it may be a path for the lab's user only.
        let script = format!("cd {} || exit 99; {script}", self.path.display());
        command.args(["-c", &script]).env("SYSTX", self.lab.binary());
        finish(command, Limits::default(), self.lab)
    }

    /// A command about it.
    pub fn systx(&self, command: &str) -> Finished {
        self.lab.do_systx([command, &self.id])
    }

    /// `list --json` of it.
    pub fn listed(&self) -> serde_json::Value {
        self.lab.do_systx(["status", "--json", &self.id]).ok().json()["transaction"].clone()
    }
}

/// Of a script that may have been cancelled.
pub trait OrCanceled {
    /// Its output; `None` if its calls were cancelled.
    fn ok_or_canceled(self) -> Option<String>;
}

impl OrCanceled for Finished {
    fn ok_or_canceled(self) -> Option<String> {
        if self.code == 0 {
            return Some(self.out);
        }
        assert!(self.err.contains("Operation canceled"), "{self}");
        None
    }
}
