//! /proc/self/mountinfo (proc_pid_mountinfo(5)), and which of its mounts can be reached by path.

use rustix::mount::MountAttrFlags;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use systx_base::proc::Mounted;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount id.
    pub id: u64,
    /// Mount id of the mount it is mounted on; its own for the topmost.
    pub parent: u64,
    /// `major:minor` of the superblock.
    pub dev: (u32, u32),
    /// Directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub at: PathBuf,
    /// File system type.
    pub fs: String,
    /// What is mounted, as whoever mounted it named it.
    pub source: PathBuf,
    /// What the mount (not the superblock) does not allow.
    pub limits: MountAttrFlags,
}

impl Mount {
    /// It shows what has this `st_dev`.
    #[must_use]
    pub fn has(&self, dev: u64) -> bool {
        self.dev == (rustix::fs::major(dev), rustix::fs::minor(dev))
    }

    /// Nothing can be changed through it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.limits.contains(MountAttrFlags::MOUNT_ATTR_RDONLY)
    }
}

/// A line that is not as proc_pid_mountinfo(5) says.
#[derive(Debug, thiserror::Error)]
#[error("mountinfo line not understood: {0:?}")]
pub struct ParseError(String);

/// The mounts of this process's namespace.
///
/// # Errors
/// /proc is not there, or a line makes no sense.
pub fn here() -> std::io::Result<Vec<Mount>> {
    parse(&std::fs::read("/proc/self/mountinfo")?).map_err(std::io::Error::other)
}

/// Every mount of a mountinfo text, in its order.
///
/// # Errors
/// A line makes no sense.
pub fn parse(text: &[u8]) -> Result<Vec<Mount>, ParseError> {
    text.split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            parse_line(line).ok_or_else(|| ParseError(String::from_utf8_lossy(line).into_owned()))
        })
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let m = Mounted::read(line)?;
    let limits = MountAttrFlags::from_bits_retain(m.limits());
    let Mounted { id, parent, dev, root, at, fs, source, .. } = m;
    Some(Mount { id, parent, dev, root, at, fs, source, limits })
}

/// The mounts that a path walk from `/` can reach, at most one per path, parents before children.
///
/// Left out: what another mount at the same place covers, what lies below a place that a later
/// mount of the same parent covers, and what is not below the root at all (a chroot).
pub fn visible(mounts: &[Mount]) -> Vec<&Mount> {
    let mut children: HashMap<u64, Vec<&Mount>> = HashMap::new();
    for mount in mounts.iter().filter(|m| m.id != m.parent) {
        children.entry(mount.parent).or_default().push(mount);
    }
    let known = |id: u64| mounts.iter().any(|m| m.id == id);
    // The root: mounted at `/`, on something that we cannot see.
    let root = mounts
        .iter()
        .filter(|m| m.at == Path::new("/"))
        .find(|m| m.id == m.parent || !known(m.parent));
    let mut out = Vec::new();
    if let Some(root) = root {
        walk(root, &children, &mut out, 0);
    }
    out
}

/// Nothing in the kernel nests deeper; a loop in a made-up text ends here.
const DEEPEST: usize = 1000;

fn walk<'a>(
    mount: &'a Mount,
    children: &HashMap<u64, Vec<&'a Mount>>,
    out: &mut Vec<&'a Mount>,
    depth: usize,
) {
    if depth > DEEPEST {
        return;
    }
    let none = Vec::new();
    let mine = children.get(&mount.id).unwrap_or(&none);
    // Covered as a whole by a mount on its own root.
    if let Some(cover) = mine.iter().rev().find(|c| c.at == mount.at) {
        walk(cover, children, out, depth + 1);
        return;
    }
    out.push(mount);
    for (i, child) in mine.iter().enumerate() {
        // A later sibling on the way hides it.  (The same place twice under one parent does not
        // occur: the second is a child of the first.)
        let hidden = mine.iter().skip(i + 1).any(|later| child.at.starts_with(&later.at));
        if !hidden {
            walk(child, children, out, depth + 1);
        }
    }
}

/// The mount that holds `path` (absolute, without symbolic links), of [`visible`] ones.
pub fn holding<'a>(visible: &[&'a Mount], path: &Path) -> Option<&'a Mount> {
    visible
        .iter()
        .filter(|m| path.starts_with(&m.at))
        .max_by_key(|m| m.at.as_os_str().as_bytes().len())
        .copied()
}

#[cfg(test)]
mod tests;
