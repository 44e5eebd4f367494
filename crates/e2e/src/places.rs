//! The same work in four places: on the host's file system, in a guarded directory, inside a
//! transaction that commits and inside one that aborts.
//!
//! What the first prints and leaves is what the others must print and leave; the one that aborts
//! must leave every inode as it was. The transaction that commits does so to a guarded directory,
//! so that all it changed is published through view 0, too.

use crate::run::{Finished, Limits, finish};
use crate::{Lab, Tree};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the file system itself.
    Host,
    /// By a plain program in a guarded directory.
    Guarded,
    /// In a `systx run` on a guarded directory that commits.
    Committed,
    /// In a `systx run` that aborts.
    Aborted,
}

impl Place {
    /// All, the host first.
    pub const ALL: [Place; 4] = [Place::Host, Place::Guarded, Place::Committed, Place::Aborted];

    fn is_guarded(self) -> bool {
        matches!(self, Place::Guarded | Place::Committed)
    }
}

/// Work that is done everywhere.
pub struct Work<'a> {
    lab: &'a Lab,
    prepare: String,
    seconds: u64,
    output: bool,
    ignore: fn(&Path) -> bool,
}

impl<'a> Work<'a> {
    /// In this lab.
    pub fn new(lab: &'a Lab) -> Work<'a> {
        let never = |_: &Path| false;
        Work { lab, prepare: String::new(), seconds: 120, output: true, ignore: never }
    }
    /// A shell script that makes what the work begins with.
    #[must_use]
    pub fn prepared(mut self, script: &str) -> Self {
        self.prepare = script.into();
        self
    }
    /// How long it may take on the host; four times as long elsewhere.
    #[must_use]
    pub fn limit(mut self, seconds: u64) -> Self {
        self.seconds = seconds;
        self
    }
    /// What is printed differs from time to time.
    #[must_use]
    pub fn any_output(mut self) -> Self {
        self.output = false;
        self
    }
    /// What differs from time to time on the host as well; each use says why.
    #[must_use]
    pub fn ignoring(mut self, ignore: fn(&Path) -> bool) -> Self {
        self.ignore = ignore;
        self
    }

    /// Does the work in all places and compares. `script` is a shell script; its working directory
    /// has the same path everywhere. Returns how it went on the host, or why it cannot be done
    /// there.
    ///
    /// # Errors
    /// It fails on the host already.
    #[track_caller]
    pub fn check(&self, script: &str) -> Result<Finished, String> {
        let (host, want) = self.visit(Place::Host, script);
        if host.code != 0 {
            return Err(format!("fails on the host: {host}"));
        }
        for place in &Place::ALL[1..] {
            let (done, tree) = self.visit(*place, script);
            assert_eq!(done.code, 0, "{place:?}\n{done}\n{}", self.lab.daemon_log());
            if self.output {
                assert_eq!(host.out, done.out, "{place:?} printed something else");
            }
            if *place != Place::Aborted {
                want.assert_same(&tree, &format!("host against {place:?}"));
            }
        }
        Ok(host)
    }

    /// Does the work in one place, and clears away what it left.
    #[track_caller]
    pub fn visit(&self, place: Place, script: &str) -> (Finished, Tree) {
        let dir = self.lab.path("work");
        std::fs::create_dir(&dir).expect("the volume is writable");
        let mut prepare = self.lab.command("sh");
        prepare.args(["-ec", &self.prepare]).current_dir(&dir);
        finish(prepare, Limits::seconds(self.seconds), self.lab).ok();
        let before = (place == Place::Aborted).then(|| inodes(&dir));
        if place.is_guarded() {
            self.lab.do_systx(["mount", "work"]).ok();
        }
        let mut command = match place {
            Place::Host | Place::Guarded => self.lab.command("sh"),
            Place::Committed => self.lab.systx(["run", "--", "sh"]),
            Place::Aborted => self.lab.systx(["run", "--on-exit=abort", "--", "sh"]),
        };
        command.args(["-c", script]).current_dir(&dir);
        let factor = if place == Place::Host { 1 } else { 4 };
        let done = finish(command, Limits::seconds(self.seconds * factor), self.lab);
        let through = place.is_guarded().then(|| self.capture(&dir));
        if place.is_guarded() {
            self.lab.do_systx([Path::new("umount"), &dir]).ok();
        }
        let tree = self.capture(&dir);
        if let Some(through) = through {
            through.assert_same(&tree, "through the guarded mount against below it");
        }
        if let Some(before) = before {
            let after = inodes(&dir);
            let changed: Vec<_> =
                before.iter().filter(|(path, seen)| after.get(*path) != Some(seen)).collect();
            assert!(changed.is_empty(), "changed by an aborted transaction: {changed:?}\n{done}");
            let new: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
            assert!(new.is_empty(), "left by an aborted transaction: {new:?}\n{done}");
        }
        self.lab.native("rm -rf work").ok();
        (done, tree)
    }

    fn capture(&self, dir: &Path) -> Tree {
        Tree::capture(dir).without(self.ignore)
    }
}

/// What moves when anything about an inode does: number, change time, modification time, links.
type Inode = (u64, (i64, i64), (i64, i64), u64);

/// Every inode below a directory, by its paths.
fn inodes(dir: &Path) -> BTreeMap<PathBuf, Inode> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a directory");
            todo.extend(entries.map(|entry| entry.expect("a listing").path()));
        }
        let (ctime, mtime) = ((meta.ctime(), meta.ctime_nsec()), (meta.mtime(), meta.mtime_nsec()));
        found.insert(path, (meta.ino(), ctime, mtime, meta.nlink()));
    }
    found
}
