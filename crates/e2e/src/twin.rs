//! The same work, natively and inside a run.
//!
//! One prepared tree is copied to three places of one volume.  The script runs natively in the
//! first; inside a run that commits in the second; inside a run that aborts in the third.  The
//! first two must end equal, in what they print and in every byte and attribute; the third must be
//! as it was.  Heavy work is done inside only once ([`Twin::undone`]): it is kept, nothing must be
//! visible; then committed, and compared; then undone, and all must be as it was.

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
    undone: bool,
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
            undone: false,
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
    /// Keep, commit and undo one run, instead of one that commits and one that aborts.
    #[must_use]
    pub fn undone(mut self) -> Self {
        self.undone = true;
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
        let (native, native_tree, before) = self.fresh(prepare, || {
            let mut command = self.lab.command("sh");
            command.args(["-c", script]);
            self.finish(command)
        });
        let inside = if self.undone {
            self.keep_commit_undo(prepare, script, &native, &native_tree)
        } else {
            let (inside, inside_tree, same_before) =
                self.fresh(prepare, || self.inside("commit", script));
            before.assert_same(&same_before, "the preparation is not repeatable");
            self.compare(&native, &inside);
            if native.code == 0 {
                native_tree.assert_same(&inside_tree, "native against committed");
            } else {
                before.assert_same(&inside_tree, "before against a failed command");
            }
            let (_, aborted, before) = self.fresh(prepare, || self.inside("abort", script));
            before.assert_same(&aborted, "before against aborted");
            inside
        };
        lab::tool(Command::new("rm").arg("-rf").arg(&work)).expect("clean up");
        inside
    }

    #[track_caller]
    fn compare(&self, native: &Finished, inside: &Finished) {
        let same = native.code == inside.code && (!self.output || native.out == inside.out);
        assert!(same, "native and inside differ\n== native: {native}\n== inside: {inside}");
    }

    #[track_caller]
    fn keep_commit_undo(
        &self,
        prepare: &str,
        script: &str,
        native: &Finished,
        native_tree: &Tree,
    ) -> Finished {
        assert_eq!(native.code, 0, "{native}");
        let (inside, kept, before) = self.fresh(prepare, || self.inside("keep", script));
        self.compare(native, &inside);
        before.assert_same(&kept, "before against kept");
        let list = self.lab.do_systx(["list", "--json"]).ok();
        let id = crate::run::ids(&list.json()).pop().unwrap_or_else(|| panic!("{list}"));
        self.lab.do_systx(["commit", &id]).ok();
        native_tree.assert_same(&self.capture(), "native against committed");
        self.lab.do_systx(["undo"]).ok();
        before.assert_same(&self.capture(), "before against undone");
        inside
    }

    fn capture(&self) -> Tree {
        Tree::capture_with(self.lab.path("work"), self.detail).without(self.ignore)
    }

    fn fresh(&self, prepare: &str, act: impl Fn() -> Finished) -> (Finished, Tree, Tree) {
        let work = self.lab.path("work");
        lab::tool(Command::new("rm").arg("-rf").arg(&work)).expect("clean up");
        std::fs::create_dir(&work).expect("the volume is writable");
        self.lab.give(&work);
        let mut command = self.lab.command("sh");
        command.args(["-ec", prepare]);
        self.finish(command).ok();
        let before = self.capture();
        let done = act();
        (done, self.capture(), before)
    }

    fn inside(&self, on_exit: &str, script: &str) -> Finished {
        let on_exit = format!("--on-exit={on_exit}");
        let mut args = vec!["run", &on_exit];
        args.extend(self.options.iter().map(String::as_str));
        args.extend(["--", "sh", "-c", script]);
        self.finish(self.lab.systx(args))
    }

    fn finish(&self, mut command: Command) -> Finished {
        command.current_dir(self.lab.path("work"));
        command.envs(self.environment.iter().map(|(n, v)| (n, v)));
        finish(command, Limits::seconds(self.limit), self.lab)
    }
}
