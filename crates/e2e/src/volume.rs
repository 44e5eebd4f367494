//! A log-structured volume in an image of a lab, mounted.

use crate::run::{Limits, finish};
use crate::{Finished, Lab};
use std::fs;
use std::path::{Path, PathBuf};

/// A volume in an image of the lab, mounted on `v`.
pub struct Mounted<'a> {
    /// Whose it is.
    pub lab: &'a Lab,
    /// Where its image is.
    pub image: PathBuf,
    /// Where it is mounted.
    pub dir: PathBuf,
    how: &'static [&'static str],
}

impl<'a> Mounted<'a> {
    /// With room for what tests do.
    pub fn new(lab: &'a Lab) -> Mounted<'a> {
        Mounted::sized(lab, "64M")
    }

    /// With transactions of threads in it.
    pub fn for_threads(lab: &'a Lab) -> Mounted<'a> {
        Mounted::sized_for_threads(lab, "64M")
    }

    /// With these, and of this size.
    pub fn sized_for_threads(lab: &'a Lab, size: &str) -> Mounted<'a> {
        Mounted::made(lab, size, &["--threads"])
    }

    /// Of this size.
    pub fn sized(lab: &'a Lab, size: &str) -> Mounted<'a> {
        Mounted::made(lab, size, &[])
    }

    /// That compresses what is cold.
    pub fn packing(lab: &'a Lab, size: &str) -> Mounted<'a> {
        lab.do_systx(["mkfs", "image", "--size", size, "--compression", "zstd"]).ok();
        Mounted::of_image(lab, &[])
    }

    /// That writes so much of a file together.
    pub fn paged(lab: &'a Lab, size: &str, page: &str) -> Mounted<'a> {
        lab.do_systx(["mkfs", "image", "--size", size, "--page", page]).ok();
        Mounted::of_image(lab, &[])
    }

    fn made(lab: &'a Lab, size: &str, how: &'static [&'static str]) -> Mounted<'a> {
        lab.do_systx(["mkfs", "image", "--size", size, "--label", "a volume"]).ok();
        Mounted::of_image(lab, how)
    }

    fn of_image(lab: &'a Lab, how: &'static [&'static str]) -> Mounted<'a> {
        let (image, dir) = (lab.path("image"), lab.path("v"));
        fs::create_dir_all(&dir).expect("the lab is writable");
        lab.give(&dir);
        let mounted = Mounted { lab, image, dir, how };
        mounted.mount();
        mounted
    }

    /// Mounts it, as at first.
    pub fn mount(&self) {
        self.lab.do_systx(["mount", "image", "v"].iter().chain(self.how)).ok();
    }

    /// Something in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// What [`Mounted::all_or_nothing`] looks at, of round 0.
    pub fn begin_rounds(&self) {
        self.sh("echo 0 > a; mkdir d; echo 0 > d/b; touch d/at-0; sync a").ok();
    }

    /// After a commit that was to write its round to `a` and `d/b`, and to replace `d/at-*` by
    /// `d/at-ROUND`, and was killed at some moment: of which round it all is. `end`: whether it was
    /// told that it is committed, and what else it was told.
    pub fn all_or_nothing(&self, committed: u64, round: u64, end: (bool, &str)) -> u64 {
        let (is_committed, end) = end;
        let found = self.sh("cat a d/b; ls d | grep at-");
        let found = format!("{}{}", found.out, found.err);
        let lines: Vec<&str> = found.lines().collect();
        let [a, b, name] = lines[..] else { panic!("{found}\n{}", self.lab.daemon_log()) };
        assert!(a == b && name == format!("at-{a}"), "{found}\n{end}");
        let now: u64 = a.parse().expect("a round");
        assert!(now == committed || now == round, "{found}\n{end}");
        if is_committed {
            assert_eq!(now, round, "it was told that it is committed: {end}");
        }
        now
    }

    /// Unmounts it.
    pub fn umount(&self) {
        self.lab.do_systx(["umount", "v"]).ok();
    }

    /// Unmounted and mounted again.
    pub fn again(&self) {
        self.umount();
        self.lab.do_systx(["fsck", "image"]).ok();
        self.mount();
    }

    /// Runs a script of a plain program in it.
    pub fn sh(&self, script: &str) -> Finished {
        shell(self.lab, &self.dir, 100, script)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // A failed test may have left processes there; the lab ends them.
        if !std::thread::panicking() {
            self.umount();
            self.lab.do_systx(["fsck", "image"]).ok();
        }
    }
}

/// Runs a script in a directory, to which its user goes: root does not get into a user's volume.
pub fn shell(lab: &Lab, dir: &Path, seconds: u64, script: &str) -> Finished {
    let mut command = lab.command("sh");
    command.args(["-c", "cd \"$1\" && exec sh -c \"$2\"", "sh"]).arg(dir).arg(script);
    finish(command, Limits::seconds(seconds), lab)
}
