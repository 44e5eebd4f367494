//! The same work, natively and inside a run.
//!
//! One prepared tree is copied to three places of one volume.  The script runs natively in the
//! first; inside a run that commits in the second; inside a run that aborts in the third.  The
//! first two must end equal, in what they print and in every byte and attribute; the third must be
//! as it was.

use crate::run::{Finished, Limits, finish};
use crate::tree::{Detail, Tree};
use crate::{Lab, lab};
use std::path::Path;
use std::process::Command;

/// A comparison of native and transactional work.
pub struct Twin<'a> {
    lab: &'a Lab,
    options: Vec<String>,
    limit: u64,
    detail: Detail,
    output: bool,
    environment: Vec<(String, String)>,
    ignore: fn(&Path) -> bool,
}

impl<'a> Twin<'a> {
    /// In this lab.
    pub fn new(lab: &'a Lab) -> Twin<'a> {
        Twin {
            lab,
            options: Vec::new(),
            limit: 120,
            detail: Detail::default(),
            output: true,
            environment: Vec::new(),
            ignore: |_| false,
        }
    }
    /// Further options of `systx run`.
    #[must_use]
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }
    /// Seconds that each of the three may take.
    #[must_use]
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = seconds;
        self
    }
    /// What the trees are compared in.
    #[must_use]
    pub fn detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self
    }
    /// What is printed may differ (it has times in it, say).
    #[must_use]
    pub fn any_output(mut self) -> Self {
        self.output = false;
        self
    }
    /// An environment variable for all three.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.environment.push((name.into(), value.as_ref().display().to_string()));
        self
    }
    /// Paths that differ from run to run natively as well; each use says why.
    #[must_use]
    pub fn ignore(mut self, ignore: fn(&Path) -> bool) -> Self {
        self.ignore = ignore;
        self
    }

    /// Compares.  `prepare` and `script` are shell scripts; they start in the working directory
    /// `work`, which has the same path in all three: some programs write their own path into what
    /// they make.
    #[track_caller]
    pub fn check(&self, prepare: &str, script: &str) -> Finished {
        let work = self.lab.path("work");
        let native =
            self.fresh(prepare, |twin| twin.finish(Command::new("sh"), &["-c", script], &[]));
        let (native, native_tree, before) = native;
        let (inside, inside_tree, same_before) =
            self.fresh(prepare, |twin| twin.finish_systx("commit", script));
        before.assert_same(&same_before, "the preparation is not repeatable");
        assert!(
            native.code == inside.code || native.code != 0,
            "natively {}, inside {}\n{native}\n{inside}",
            native.code,
            inside.code
        );
        assert!(native.code == inside.code, "native: {native}\ninside: {inside}");
        if self.output {
            assert!(native.out == inside.out, "native: {native}\ninside: {inside}");
        }
        if native.code == 0 {
            native_tree.assert_same(&inside_tree, "native against committed");
        } else {
            before.assert_same(&inside_tree, "before against a failed command");
        }
        let (_, aborted_tree, before) =
            self.fresh(prepare, |twin| twin.finish_systx("abort", script));
        before.assert_same(&aborted_tree, "before against aborted");
        lab::tool(Command::new("rm").arg("-rf").arg(&work)).expect("clean up");
        inside
    }

    fn fresh(&self, prepare: &str, act: impl Fn(&Self) -> Finished) -> (Finished, Tree, Tree) {
        let work = self.lab.path("work");
        lab::tool(Command::new("rm").arg("-rf").arg(&work)).expect("clean up");
        std::fs::create_dir(&work).expect("the volume is writable");
        self.lab.give(&work);
        self.finish(Command::new("sh"), &["-ec", prepare], &[]).ok();
        let before = Tree::capture_with(&work, self.detail).without(self.ignore);
        let done = act(self);
        let after = Tree::capture_with(&work, self.detail).without(self.ignore);
        (done, after, before)
    }

    fn finish_systx(&self, on_exit: &str, script: &str) -> Finished {
        let program = Command::new(self.lab.binary());
        let on_exit = format!("--on-exit={on_exit}");
        let mut args = vec!["run", &on_exit];
        args.extend(self.options.iter().map(String::as_str));
        args.extend(["--", "sh", "-c", script]);
        self.finish(program, &args, &[])
    }

    fn finish(&self, program: Command, args: &[&str], more: &[&str]) -> Finished {
        let mut command = self.lab.command(program.get_program());
        command.args(args).args(more).current_dir(self.lab.path("work"));
        command.envs(self.environment.iter().map(|(n, v)| (n, v)));
        finish(command, Limits::seconds(self.limit), self.lab)
    }
}
