//! Who holds what lies below a directory, or what was opened through a mount: read from /proc.
//!
//! What a process holds is looked at through /proc/PID/fd and its like, so that it is known by the
//! device and the mount that it was opened through, whatever is mounted over its path now. Nothing
//! is asked of the file systems themselves: one that does not answer must not stop this. A process
//! that waits for such a one may have its memory map locked; what it has mapped is not waited for.
//!
//! Not found: files that are held by the kernel only (on their way through a socket, in an
//! io_uring, a loop device or swap file), threads with a table of files or a mount namespace of
//! their own, mount namespaces without a process, and mappings of a process whose memory map is
//! locked for long.

use crate::mounts::{self, Mount};
use crate::processes::{self, ids};
use crate::protocol::{Held, HeldAs, Holder, HostPath};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long a process may have its memory map locked: longer than any call that waits for nobody.
const MAP_LIMIT: Duration = Duration::from_secs(1);

/// What is looked for.
#[derive(Clone, Debug)]
pub enum Sought {
    /// What was opened through this mount, whatever its path.
    Through {
        /// `st_dev` of the mount.
        dev: u64,
    },
    /// What lies below a directory of a file system, through whichever of its mounts.
    Below {
        /// Its path.
        dir: PathBuf,
        /// Its path within its file system.
        inner: PathBuf,
        /// Device of the mount that holds it, as the mount table has it.
        dev: u64,
    },
}

/// Something that a process holds, by the kernel's own account.
struct Seen {
    path: PathBuf,
    dev: u64,
    mount: u64,
}

impl Seen {
    /// What a link of /proc leads to, unless that has no path.
    fn of(link: &Path) -> Option<Seen> {
        let path = std::fs::read_link(link).ok().filter(|path| path.is_absolute())?;
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(CWD, link, flags, StatxFlags::MNT_ID).ok()?;
        let dev = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        Some(Seen { path, dev, mount: stat.stx_mnt_id })
    }
}

type Table = Rc<Vec<Mount>>;

/// Mount tables, one for each namespace that was met, with a process of it.
struct Tables(HashMap<u64, (u32, Table)>);

impl Tables {
    /// With that of this process's own namespace: what others see of it may be less (a chroot).
    fn new() -> Tables {
        let own = std::process::id();
        let table = mounts::here().ok().zip(namespace(own));
        Tables(table.into_iter().map(|(table, ns)| (ns, (own, Rc::new(table)))).collect())
    }

    fn of(&mut self, pid: u32) -> Option<Table> {
        let ns = namespace(pid)?;
        if let Some((_, table)) = self.0.get(&ns) {
            return Some(Rc::clone(table));
        }
        let table = Rc::new(mounts::of(pid).ok()?);
        self.0.insert(ns, (pid, Rc::clone(&table)));
        Some(table)
    }
}

/// The processes that hold what is sought, but for those in `but`.
pub fn find(sought: &Sought, but: &[u32]) -> Vec<Holder> {
    let mut tables = Tables::new();
    let own = std::process::id();
    processes::find(|pid| {
        (pid != own && !but.contains(&pid)).then(|| holder(pid, sought, &mut tables))?
    })
}

/// A place where the file system of a directory is mounted in such a way that a mount over the
/// directory does not show there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    /// A process that sees it there; `None` for this process's own namespace.
    pub seen_by: Option<(u32, HostPath)>,
    /// Where it is mounted, for that process.
    pub at: PathBuf,
}

/// Where else a directory can be changed, although it is mounted over: other mounts of its file
/// system, here and in other namespaces, that do not get what is mounted on `holder`.
pub fn bypasses(dir: &Path, holder: &Mount) -> Vec<Bypass> {
    let Some(inner) = holder.inner(dir) else { return Vec::new() };
    let mut tables = Tables::new();
    processes::find(|pid| tables.of(pid).map(drop));
    let own = namespace(std::process::id());
    let follows = |m: &Mount| {
        holder.shared.is_some() && (m.shared == holder.shared || m.master == holder.shared)
    };
    let overlaps = |m: &Mount| inner.starts_with(&m.root) || m.root.starts_with(&inner);
    let mut found = Vec::new();
    for (ns, (pid, table)) in &tables.0 {
        let around = |m: &&Mount| {
            m.dev == holder.dev && !m.read_only && m.id != holder.id && overlaps(m) && !follows(m)
        };
        let here = Some(*ns) == own;
        // What lies below the directory itself is covered with it.
        for mount in table.iter().filter(around).filter(|m| !(here && m.at.starts_with(dir))) {
            let seen_by = (!here).then(|| (*pid, command(*pid)));
            found.push(Bypass { seen_by, at: mount.at.clone() });
        }
    }
    found.sort_by(|a, b| a.at.cmp(&b.at));
    found
}

/// Where a device is mounted in other mount namespaces, once for each, with the id of the mount.
pub fn elsewhere(dev: u64) -> Vec<(u64, Bypass)> {
    let mut tables = Tables::new();
    processes::find(|pid| tables.of(pid).map(drop));
    let own = namespace(std::process::id());
    let others = tables.0.iter().filter(|(ns, _)| Some(**ns) != own);
    let mounted = others.filter_map(|(_, (pid, table))| {
        let mount = table.iter().find(|m| m.dev == dev)?;
        let seen_by = Some((*pid, command(*pid)));
        Some((mount.id, Bypass { seen_by, at: mount.at.clone() }))
    });
    mounted.collect()
}

/// The process that has the lock of a store, by its lock file.
pub(crate) fn of_lock(file: &Path) -> Option<u32> {
    let sought = number(file)?;
    let held = format!(":{} 0 0", sought.1);
    let is_it = |pid: u32, fd: &std::ffi::OsStr| {
        let of = |what: &str| Path::new("/proc").join(pid.to_string()).join(what).join(fd);
        let text = std::fs::read_to_string(of("fdinfo")).unwrap_or_default();
        let mut locks = text.lines().filter(|line| line.starts_with("lock:"));
        locks.any(|line| line.contains(" OFDLCK ") && line.ends_with(&held))
            // Another file system has files of the same number.
            && number(&of("fd")) == Some(sought)
    };
    let has = |pid: &u32| {
        command(*pid).0 == b"systx"
            && std::fs::read_dir(format!("/proc/{pid}/fdinfo"))
                .is_ok_and(|fds| fds.flatten().any(|fd| is_it(*pid, &fd.file_name())))
    };
    ids("/proc").find(has)
}

/// Device and inode number of a file, as far as the kernel knows them without asking its file
/// system.
fn number(file: &Path) -> Option<((u32, u32), u64)> {
    let known = rustix::fs::statx(CWD, file, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some(((known.stx_dev_major, known.stx_dev_minor), known.stx_ino))
}

fn namespace(pid: u32) -> Option<u64> {
    std::fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|m| m.ino()).ok()
}

fn command(pid: u32) -> HostPath {
    let mut name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    HostPath(name)
}

/// A process that ends meanwhile holds nothing: errors are passed over.
fn holder(pid: u32, sought: &Sought, tables: &mut Tables) -> Option<Holder> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let mut held = Vec::new();
    let mut look = |how: HeldAs, seen: Option<Seen>| {
        if let Some(seen) = seen.filter(|seen| is_sought(sought, seen, pid, tables)) {
            held.push(Held { how, path: HostPath::from(seen.path) });
        }
    };
    look(HeldAs::Directory, Seen::of(&proc.join("cwd")));
    look(HeldAs::Root, Seen::of(&proc.join("root")));
    look(HeldAs::Program, Seen::of(&proc.join("exe")));
    for fd in std::fs::read_dir(proc.join("fd")).into_iter().flatten().flatten() {
        look(HeldAs::Descriptor, Seen::of(&fd.path()));
    }
    for map in mapped_in_time(&proc) {
        look(HeldAs::Map, Some(map));
    }
    held.sort();
    held.dedup();
    (!held.is_empty()).then(|| Holder { pid, command: command(pid), held })
}

/// What a process has mapped; nothing if it has its memory map locked all the time.
fn mapped_in_time(proc: &Path) -> Vec<Seen> {
    // The kernel's own threads have none.
    if std::fs::read_link(proc.join("exe")).is_err() {
        return Vec::new();
    }
    let (told, tells) = channel();
    let asked = proc.to_owned();
    let look = move || drop(told.send(mapped(&asked)));
    let looking = std::thread::Builder::new().name("maps".into()).spawn(look);
    let found = looking.ok().and_then(|_| tells.recv_timeout(MAP_LIMIT).ok());
    found.unwrap_or_else(|| {
        tracing::warn!(?proc, "the memory map is locked: what is mapped there is not known");
        Vec::new()
    })
}

/// Each file that a process has mapped, once.
fn mapped(proc: &Path) -> Vec<Seen> {
    let maps = std::fs::read(proc.join("maps")).unwrap_or_default();
    let mut known = HashSet::new();
    let mut links = Vec::new();
    for line in maps.split(|b| *b == b'\n') {
        // address perms offset dev inode path; numbers and paths are parted by spaces.
        let mut fields = line.splitn(6, |b| *b == b' ');
        let Some(range) = fields.next() else { continue };
        let (Some(dev), Some(inode)) = (fields.nth(2), fields.next()) else { continue };
        if inode != b"0" && known.insert((dev, inode)) {
            links.push(proc.join("map_files").join(std::ffi::OsStr::from_bytes(range)));
        }
    }
    links.iter().filter_map(|link| Seen::of(link)).collect()
}

fn is_sought(sought: &Sought, seen: &Seen, pid: u32, tables: &mut Tables) -> bool {
    match sought {
        Sought::Through { dev } => seen.dev == *dev,
        Sought::Below { dir, inner, dev } => {
            let table = tables.of(pid);
            let mount = table.iter().flat_map(|t| t.iter()).find(|m| m.id == seen.mount);
            match mount {
                Some(mount) => {
                    mount.dev == *dev
                        && mount.inner(&seen.path).is_some_and(|path| path.starts_with(inner))
                }
                // Opened through a mount that is nowhere to be seen any more.
                None => seen.dev == *dev && seen.path.starts_with(dir),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process leaves itself out, so another one has to hold something.
    #[test]
    fn what_a_process_holds_is_found_with_its_path() {
        let dir = std::env::temp_dir().join(format!("systx-holders-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        let dir = dir.canonicalize().unwrap();
        std::fs::write(dir.join("file"), "x").unwrap();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo ready; exec cat 7<../file"])
            .current_dir(dir.join("sub"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let stat = rustix::fs::statx(CWD, &dir, AtFlags::empty(), StatxFlags::MNT_ID).unwrap();
        let table = mounts::here().unwrap();
        let mount = table.iter().find(|m| m.id == stat.stx_mnt_id).unwrap();
        let sought = |dir: &Path| Sought::Below {
            dir: dir.to_owned(),
            inner: mount.inner(dir).unwrap(),
            dev: mount.dev,
        };
        // The shell may not have opened the file yet, but it is in its directory.
        let found = find(&sought(&dir), &[]);
        let ours = found.iter().find(|h| h.pid == child.id()).unwrap();
        let cwd = Held { how: HeldAs::Directory, path: HostPath::from(dir.join("sub")) };
        assert!(ours.held.contains(&cwd), "{found:?}");
        assert!(!find(&sought(&dir.join("su")), &[]).iter().any(|h| h.pid == child.id()));
        assert!(find(&sought(&dir), &[child.id()]).iter().all(|h| h.pid != child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!find(&sought(&dir), &[]).iter().any(|h| h.pid == child.id()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
