//! A lab with root's daemon, and ordinary users beside it.

use crate::lab::{find_program, tool};
use crate::run::{Limits, finish};
use crate::{Finished, Lab};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two users that no machine has.
pub const ANN: u32 = 12031;
/// The other one.
pub const BOB: u32 = 12032;

/// A lab that several users share; nothing is guarded yet.
pub struct Shared {
    /// The lab.
    pub lab: Lab,
    binary: PathBuf,
}

impl Shared {
    /// With a directory `g`.
    ///
    /// # Errors
    /// Why there is none here.
    pub fn new() -> Result<Shared, String> {
        if find_program("setpriv").is_none() {
            return Err("no setpriv (package util-linux)".into());
        }
        let lab = Lab::new()?;
        let binary = lab.outside().join("systx");
        copy(&lab.binary(), &binary);
        for uid in [ANN, BOB] {
            let run = lab.outside().join(format!("run-{uid}"));
            fs::create_dir(&run).expect("ours");
            fs::set_permissions(&run, PermissionsExt::from_mode(0o700)).expect("ours");
            chown(&run, Some(uid), Some(uid)).expect("root may");
        }
        lab.native("umask 022; mkdir g").ok();
        Ok(Shared { lab, binary })
    }

    /// Puts a program where users can execute it.
    pub fn publish(&self, program: &Path, name: &str) -> PathBuf {
        let place = self.lab.outside().join(name);
        if !place.exists() {
            copy(program, &place);
        }
        place
    }

    /// The directory of the daemon's guests.
    pub fn guests(&self) -> PathBuf {
        self.lab.root().with_file_name("run-guests")
    }

    /// A script of a user, not yet started; `$SYSTX` is the program.
    pub fn command(&self, uid: u32, script: &str) -> Command {
        let mut command = self.lab.command("setpriv");
        command
            .args([format!("--reuid={uid}"), format!("--regid={uid}")])
            .args(["--clear-groups", "--", "sh", "-c", script])
            .env("SYSTX", &self.binary)
            .env("SYSTX_GUESTS_DIR", self.guests())
            .env("SYSTX_RUNTIME_DIR", self.lab.outside().join(format!("run-{uid}")))
            .env("HOME", "/nonexistent");
        command
    }

    /// The same to its end.
    pub fn sh(&self, uid: u32, script: &str) -> Finished {
        finish(self.command(uid, script), Limits::default(), &self.lab)
    }

    /// Begins a transaction of a user; its id and path.
    pub fn begin(&self, uid: u32, dir: &str) -> (String, PathBuf) {
        let json = self.sh(uid, &format!("exec $SYSTX begin --json {dir}")).ok().json();
        let text = |name: &str| json["begun"][name].as_str().expect("a string").to_owned();
        (text("id"), PathBuf::from(text("path")))
    }

    /// The ids that a user's `list` shows.
    pub fn list(&self, uid: u32) -> Vec<String> {
        crate::run::ids(&self.sh(uid, "exec $SYSTX list --json").ok().json())
    }

    /// That a user's script fails, and what it says.
    #[track_caller]
    pub fn refused(&self, uid: u32, script: &str) -> String {
        let done = self.sh(uid, script);
        assert_ne!(done.code, 0, "{script}: {done}");
        done.to_string()
    }
}

fn copy(from: &Path, to: &Path) {
    // By another process: see docs/TESTING.md.
    tool(Command::new("cp").arg(from).arg(to)).expect("a copy");
    fs::set_permissions(to, PermissionsExt::from_mode(0o755)).expect("ours");
}

/// A [`Shared`], or the test ends as skipped.
#[macro_export]
macro_rules! users {
    () => {
        match $crate::shared::Shared::new() {
            Ok(shared) => shared,
            Err(why) => $crate::skip!("{why}"),
        }
    };
}
