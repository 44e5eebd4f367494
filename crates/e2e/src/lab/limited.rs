//! Labs with a quota: a subvolume of btrfs whose quota group has a limit, which binds root as well.

use super::{Fs, Lab, chmod, find_program, tool, unmount};
use std::fs;
use std::io::Write;
use std::process::Command;

/// A subvolume, and where its root is mounted.
const SUBVOLUME: &str = "limited";

fn btrfs<const N: usize>(arguments: [&str; N]) -> Result<String, String> {
    tool(Command::new("btrfs").args(arguments))
}

impl Lab {
    /// On a btrfs with ample room, of which so many megabytes may be used.
    ///
    /// # Errors
    /// As for [`Lab::new`].
    ///
    /// # Panics
    /// As for it.
    pub fn limited(megabytes: u64) -> Result<Lab, String> {
        if find_program("btrfs").is_none() {
            return Err("there is no btrfs (package btrfs-progs)".into());
        }
        let mut lab = Lab::sized(Fs::Btrfs, 512)?;
        let root = lab.disk();
        let at = root.to_str().expect("UTF-8");
        btrfs(["quota", "enable", at]).map_err(|why| format!("no quota groups: {why}"))?;
        btrfs(["subvolume", "create", &format!("{at}/{SUBVOLUME}")]).expect("a subvolume");
        lab.options = format!(",subvol={SUBVOLUME}");
        unmount(&root);
        lab.mounted = false;
        lab.mount_again();
        chmod(&root, 0o755);
        lab.limit(megabytes);
        Ok(lab)
    }

    /// Mounts the disk, which was mounted before.
    pub(super) fn mount_again(&mut self) {
        let options = if self.fs == Fs::Overlay { "" } else { &self.options };
        let (image, at) = (self.image.as_ref().expect("a disk"), self.disk());
        let mut mount = Command::new("mount");
        tool(mount.arg("-o").arg(format!("loop{options}")).arg(image).arg(at)).expect("a mount");
        self.mounted = true;
    }

    /// Sets the limit.
    ///
    /// # Panics
    /// If it cannot be set.
    pub fn limit(&self, megabytes: u64) {
        let root = self.disk();
        let limit = format!("{megabytes}M");
        btrfs(["qgroup", "limit", &limit, root.to_str().expect("UTF-8")]).expect("a limit");
    }

    /// Bytes that may still be used, once all that is freed counts as free.
    ///
    /// # Panics
    /// If that cannot be told.
    pub fn left_of_quota(&self) -> u64 {
        let root = self.disk();
        let root = root.to_str().expect("UTF-8");
        btrfs(["filesystem", "sync", root]).expect("a sync");
        // Also what is removed and was open.
        btrfs(["filesystem", "sync", root]).expect("a sync");
        let table = btrfs(["qgroup", "show", "--raw", "-ref", root]).expect("a table");
        let numbers = |line: &str| -> Option<(u64, u64)> {
            let mut fields = line.strip_prefix("0/")?.split_whitespace();
            Some((fields.nth(1)?.parse().ok()?, fields.nth(1)?.parse().ok()?))
        };
        let (used, limit) =
            table.lines().find_map(numbers).unwrap_or_else(|| panic!("no limit:\n{table}"));
        limit.saturating_sub(used)
    }

    /// Uses up the quota with the file `fill`, but for about so many bytes.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn fill(&self, leave: u64) {
        let path = self.path("fill");
        let mut file = fs::File::options().append(true).create(true).open(&path).expect("room");
        let mut most = self.left_of_quota().saturating_sub(leave);
        for size in [65536, 4096] {
            let bytes = vec![1; size];
            while most >= size as u64 && file.write_all(&bytes).is_ok() {
                most -= size as u64;
            }
        }
        drop(file);
        self.left_of_quota();
    }

    /// Takes `fill` away; what it took may be used when this returns.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn make_room(&self) {
        fs::remove_file(self.path("fill")).expect("a name can be removed at any limit");
        self.left_of_quota();
    }
}
