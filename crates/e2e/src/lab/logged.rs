//! Labs on log-structured volumes: what the suites of other file systems ask, they ask there, too.

use super::{Fs, Lab, chmod, image_dir, is_mount_point};
use crate::run::{Limits, finish};
use std::fs;
use std::path::Path;
use std::process::Command;

impl Lab {
    /// Has a directory guarded; of a volume all is.
    pub fn guard(&self, dir: &str) {
        assert!(self.guards(dir, &[]), "every file system is guarded without options");
    }

    /// The same, with options of `systx mount`; false if the lab's file system takes none: of a
    /// volume all is guarded, and nothing in another way.
    #[must_use]
    pub fn guards(&self, dir: &str, how: &[&str]) -> bool {
        if self.fs == Fs::Volume {
            return how.is_empty();
        }
        self.do_systx(["mount", dir].iter().chain(how)).ok();
        true
    }

    /// The end of that.
    pub fn unguard(&self, dir: &str) {
        if self.fs != Fs::Volume {
            self.do_systx(["umount", dir]).ok();
        }
    }

    /// `systx mount` of a directory of the lab for transactions of threads, and how. Of a volume
    /// that is the volume itself: it is mounted there, and the root of the lab is a directory of
    /// the machine.
    pub fn guard_for_threads(&self, dir: &str, how: &[&str]) -> Command {
        let made = |lab: &Lab| fs::create_dir_all(lab.path(dir)).expect("the lab is writable");
        if self.fs != Fs::Volume {
            made(self);
            return self.systx(["mount", dir].iter().chain(how));
        }
        let image = self.image.as_deref().and_then(Path::to_str).expect("UTF-8");
        if is_mount_point(&self.root()) {
            let mut umount = self.systx(["umount"]);
            umount.arg(self.root()).current_dir(self.outside());
            finish(umount, Limits::default(), self).ok();
            // The next daemon is started by who mounts, as on other file systems.
            self.kill_all();
        }
        made(self);
        self.systx(["mount", "--threads", image, dir].iter().chain(how))
    }

    /// Makes the volume, and has the lab's daemon mount it.
    pub(super) fn mount_logged(&mut self, name: &str, megabytes: u64) {
        let image = image_dir(megabytes).join(format!("{name}.img"));
        self.image = Some(image.clone());
        let (image, size) = (image.to_str().expect("UTF-8"), format!("{megabytes}M"));
        self.do_systx(["mkfs", image, "--size", &size]).ok();
        // Not from within, or it would be in use.
        let mut mount = self.systx(["mount", image]);
        mount.arg(self.root()).current_dir(self.outside());
        finish(mount, Limits::default(), self).ok();
        self.mounted = true;
        chmod(&self.root(), 0o755);
    }

    /// The keeper has begun another daemon, and that serves the volume: nobody can stand in it
    /// before.
    pub(super) fn await_logged(&self) {
        if self.fs == Fs::Volume && self.mounted && !self.keepers().is_empty() {
            self.until("the volume is served", || rustix::fs::statvfs(self.root()).is_ok());
        }
    }

    /// The image is whole, whatever was killed.
    pub(super) fn check_logged(&self) {
        if self.fs == Fs::Volume
            && !std::thread::panicking()
            && let Some(image) = self.image.as_deref().and_then(|image| image.to_str())
        {
            let mut fsck = self.systx(["fsck", image]);
            fsck.current_dir(self.outside());
            finish(fsck, Limits::seconds(60), self).ok();
        }
    }
}
