//! Labs on overlay file systems.

use super::{Fs, Lab, tool};
use std::path::PathBuf;
use std::process::Command;

impl Lab {
    /// An overlay, mounted with further options, over a lower layer that a script has filled.
    ///
    /// # Errors
    /// As for [`Lab::new`].
    ///
    /// # Panics
    /// As for it, or if the script fails.
    pub fn overlaid(options: &str, script: &str) -> Result<Lab, String> {
        Lab::made(Fs::Overlay, 400, options, script)
    }

    /// A layer of an overlay: `lower`, `upper` or `work`.
    pub fn layer(&self, which: &str) -> PathBuf {
        self.dir.join("disk").join(which)
    }

    /// Mounts the overlay.
    pub(super) fn lay(&self) -> Result<String, String> {
        let at = |layer| self.layer(layer).display().to_string();
        let layers =
            format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
        let options = format!("{layers}{}", self.options);
        let mut mount = Command::new("mount");
        tool(mount.args(["-t", "overlay", "systx-e2e", "-o", &options]).arg(self.root()))
    }
}
