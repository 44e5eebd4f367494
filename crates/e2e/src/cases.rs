//! Helper programs with cases: a program that uses libsystx is given the name of a case and a
//! guarded directory, checks the case where it happens, and says `ok`.
//!
//! The one place for how they are called and what they ask, for both sides: suites start them with
//! [`Guarded`], the helpers in `src/bin` look at their arguments with [`asked`].

pub use crate::run::eventually;
use crate::run::{Limits, finish};
use crate::{Finished, Lab};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// What a helper was asked: `HELPER CASE DIR [NUMBER]`.
pub struct Asked {
    /// The case.
    pub case: String,
    /// A guarded directory.
    pub dir: PathBuf,
    /// What it means depends on the case.
    pub number: u64,
}

/// In a helper: what it was asked.
///
/// # Panics
/// If the arguments are not those.
pub fn asked() -> Asked {
    let mut args = std::env::args().skip(1);
    let case = args.next().expect("a case");
    let dir = args.next().expect("a directory").into();
    let number = args.next().map_or(0, |n| n.parse().expect("a number"));
    Asked { case, dir, number }
}

/// In a helper: the error of a call, if there is one.
pub fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// In a helper: the text of a file.
///
/// # Panics
/// If it cannot be read.
pub fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap_or_else(|e| panic!("{:?}: {e}", path.as_ref()))
}

/// In a helper: what is there for everybody else, asked by this thread itself.
///
/// # Panics
/// If its transaction can be neither paused nor resumed.
pub fn outside(path: &Path) -> Option<String> {
    if systx::xid() == 0 {
        return fs::read_to_string(path).ok();
    }
    let id = systx::xpause().expect("it can be paused");
    let seen = fs::read_to_string(path).ok();
    systx::xresume(id).expect("it was paused");
    seen
}

/// An empty guarded directory, until it is dropped.
pub struct Guarded<'a> {
    lab: &'a Lab,
    /// The directory.
    pub dir: PathBuf,
    helper: &'a str,
}

impl<'a> Guarded<'a> {
    /// In the lab, for this helper.
    pub fn new(lab: &'a Lab, helper: &'a str) -> Guarded<'a> {
        Guarded::with_aborts(lab, helper, "")
    }

    /// The same, by a daemon that makes transactions lose without an opponent, as
    /// `SYSTX_INJECT_ABORTS` says it.
    pub fn with_aborts(lab: &'a Lab, helper: &'a str, aborts: &str) -> Guarded<'a> {
        Guarded::mounted(lab, helper, aborts, &[])
    }

    /// The same, where plain changes may be held for as long as it takes.
    pub fn stalling(lab: &'a Lab, helper: &'a str) -> Guarded<'a> {
        Guarded::mounted(lab, helper, "", &["--stall", "60000"])
    }

    /// The same, where the daemon tells threads by their numbers.
    pub fn routed(lab: &'a Lab, helper: &'a str) -> Guarded<'a> {
        Guarded::mounted(lab, helper, "", &["--routed"])
    }

    fn mounted(lab: &'a Lab, helper: &'a str, aborts: &str, how: &[&str]) -> Guarded<'a> {
        let dir = lab.path("guarded");
        let mut mount = lab.guard_for_threads("guarded", how);
        mount.env("SYSTX_INJECT_ABORTS", aborts);
        finish(mount, Limits::default(), lab).ok();
        Guarded { lab, dir, helper }
    }

    /// Unmounted and mounted again.
    pub fn again(&self) {
        self.lab.do_systx(["umount", "guarded"]).ok();
        finish(self.lab.guard_for_threads("guarded", &[]), Limits::default(), self.lab).ok();
    }

    /// The helper with a case.
    pub fn program(&self, case: &str, number: u32) -> Command {
        let mut command = self.lab.command(self.helper);
        command.arg(case).arg(&self.dir).arg(number.to_string());
        command
    }

    /// Runs a case to its end, which has to be good and to leave no transaction.
    pub fn case(&self, case: &str, number: u32) -> Finished {
        let done = finish(self.program(case, number), Limits::seconds(240), self.lab).ok();
        let open = self.lab.open_ids();
        assert!(open.is_empty(), "{case} left {open:?}");
        done
    }

    /// Runs cases, each in an empty directory.
    pub fn cases(&self, cases: &[&str]) {
        for case in cases {
            self.case(case, 0);
            self.lab.native("rm -rf guarded/*").ok();
        }
    }
}

impl Drop for Guarded<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.lab.do_systx(["umount", "guarded"]).ok();
        }
    }
}

/// Starts a helper that is driven line by line.
pub fn started(mut command: Command) -> (Child, BufReader<ChildStdout>) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the helper starts");
    let out = BufReader::new(child.stdout.take().expect("a pipe"));
    (child, out)
}

/// The next line that it says.
pub fn line(out: &mut impl BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).expect("the helper's words");
    line.trim_end().to_owned()
}
