//! The mount table of a process, proc_pid_mountinfo(5).

use rustix::mount::MountAttrFlags;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use systx_base::proc::Mounted;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount id.
    pub id: u64,
    /// The mount that it is mounted on.
    pub parent: u64,
    /// `st_dev` of the superblock.
    pub dev: u64,
    /// Directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub at: PathBuf,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// What it does not allow, of the file system that it shows.
    pub limits: MountAttrFlags,
    /// Its file system keeps quotas of users, groups or projects.
    pub quotas: bool,
    /// Its peer group, if what is mounted here appears there as well.
    pub shared: Option<u64>,
    /// The peer group from which it gets what is mounted there.
    pub master: Option<u64>,
    /// File system type.
    pub fs: String,
    /// What was mounted: a device, or whatever the file system calls it.
    pub source: PathBuf,
}

impl Mount {
    /// The path within the file system of a path below this mount.
    pub fn inner(&self, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix(&self.at).ok()?;
        Some(if rest.as_os_str().is_empty() { self.root.clone() } else { self.root.join(rest) })
    }
}

/// What is mounted and unmounted along with a mount: the same, on peers and slaves of the mount that
/// carries it.
pub struct Along {
    groups: HashSet<u64>,
    /// Where, in the file system of the one that carries it.
    place: PathBuf,
}

impl Along {
    /// With `mount` of `table`, as far as the mounts of `all` tell; `None`: nothing is.
    pub fn with<'a>(
        mount: &Mount,
        table: &[Mount],
        all: impl Iterator<Item = &'a Mount> + Clone,
    ) -> Option<Along> {
        let carrier = carrier(mount, table)?;
        let place = carrier.inner(&mount.at)?;
        let mut groups = HashSet::from([carrier.shared?]);
        loop {
            // A slave may have peers and slaves of its own.
            let gets = |m: &&Mount| m.master.is_some_and(|group| groups.contains(&group));
            let further: Vec<u64> = all.clone().filter(gets).filter_map(|m| m.shared).collect();
            let before = groups.len();
            groups.extend(further);
            if groups.len() == before {
                return Some(Along { groups, place });
            }
        }
    }

    /// Whether this mount of `table` is one of them.
    pub fn has(&self, mount: &Mount, table: &[Mount]) -> bool {
        let Some(carrier) = carrier(mount, table) else { return false };
        let mut its = [carrier.shared, carrier.master].into_iter().flatten();
        its.any(|group| self.groups.contains(&group))
            && carrier.inner(&mount.at).as_ref() == Some(&self.place)
    }
}

fn carrier<'a>(mount: &Mount, table: &'a [Mount]) -> Option<&'a Mount> {
    table.iter().find(|m| m.id == mount.parent)
}

/// The mounts of this process's namespace.
///
/// # Errors
/// /proc is not there.
pub fn here() -> io::Result<Vec<Mount>> {
    table("self")
}

/// The mounts that a process sees, by its number.
///
/// # Errors
/// It is gone, or may not be looked at.
pub fn of(pid: u32) -> io::Result<Vec<Mount>> {
    table(&pid.to_string())
}

fn table(process: &str) -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read(format!("/proc/{process}/mountinfo"))?))
}

/// The mount that a path (absolute, without symbolic links) leads to, by its text: the last one
/// mounted at the longest place.
pub fn holding<'a>(table: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let depth = |m: &&Mount| m.at.components().count();
    table.iter().filter(|m| path.starts_with(&m.at)).max_by_key(depth)
}

/// What the mount that holds a path does not allow.  That mount is not asked: this process may
/// serve it.
pub(crate) fn limits_at(path: &Path) -> MountAttrFlags {
    holding(&here().unwrap_or_default(), path).map_or(MountAttrFlags::empty(), |m| m.limits)
}

/// Whether the file system that is mounted at a place keeps quotas; also if that cannot be told.
pub(crate) fn has_quotas(at: &Path) -> bool {
    let table = here().unwrap_or_default();
    table.iter().rev().find(|m| m.at == at).is_none_or(|m| m.quotas)
}

/// What can be read of a mount table; lines that make no sense are passed over.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let m = Mounted::read(line)?;
    Some(Mount {
        id: m.id,
        parent: m.parent,
        dev: rustix::fs::makedev(m.dev.0, m.dev.1),
        read_only: m.is_read_only() || m.of_all.split(|b| *b == b',').any(|o| o == b"ro"),
        limits: MountAttrFlags::from_bits_retain(m.limits()),
        quotas: systx_store::quota::in_options(m.of_all),
        shared: m.group("shared"),
        master: m.group("master"),
        root: m.root,
        at: m.at,
        fs: m.fs,
        source: m.source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_in_all_its_parts() {
        let line =
            b"40 27 254:1 /srv/data /mnt/a\\040b rw,nosuid shared:7 master:3 - ext4 /dev/vda ro\n";
        let [mount] = parse(line).try_into().unwrap();
        assert_eq!((mount.id, mount.parent), (40, 27));
        assert_eq!(mount.dev, rustix::fs::makedev(254, 1));
        assert_eq!((mount.shared, mount.master), (Some(7), Some(3)));
        assert_eq!((mount.fs.as_str(), mount.read_only), ("ext4", true));
        assert_eq!(mount.limits, MountAttrFlags::MOUNT_ATTR_NOSUID);
        assert_eq!(mount.at, Path::new("/mnt/a b"));
        assert_eq!(mount.inner(Path::new("/mnt/a b/c")), Some("/srv/data/c".into()));
        assert_eq!(mount.inner(Path::new("/mnt/a b")), Some("/srv/data".into()));
        assert_eq!(mount.inner(Path::new("/mnt/a")), None);
    }

    #[test]
    fn quotas_are_told_by_their_options() {
        let quotas = |options: &str| {
            let line = format!("40 27 254:1 / /srv rw - ext4 /dev/vda {options}\n");
            parse(line.as_bytes())[0].quotas
        };
        for with in ["rw,usrquota", "rw,grpquota", "rw,prjquota", "quota", "rw,uqnoenforce"] {
            assert!(quotas(with), "{with}");
        }
        assert!(quotas("rw,usrjquota=aquota.user,jqfmt=vfsv1"));
        for without in ["rw", "rw,noquota", "rw,attr2,inode64,noquota", "ro,errors=remount-ro"] {
            assert!(!quotas(without), "{without}");
        }
    }

    #[test]
    fn a_path_leads_to_the_last_of_the_nearest_mounts() {
        let table = parse(
            b"1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /srv rw - ext4 b rw\n3 2 0:9 / /srv rw - fuse.systx systx rw\n",
        );
        let id = |path: &str| holding(&table, Path::new(path)).map(|m| m.id);
        assert_eq!(
            (id("/srv/x"), id("/srv"), id("/srvx"), id("/")),
            (Some(3), Some(3), Some(1), Some(1))
        );
        assert_eq!(id("srv"), None);
    }

    #[test]
    fn what_is_on_peers_and_slaves_goes_along_and_what_is_mounted_elsewhere_stays() {
        // Of a service that gets what is mounted here, of one of its own, and of one that has its
        // own copy of all.
        let here = parse(
            b"1 0 8:1 / / rw shared:1 - ext4 a rw\n\
            2 1 8:1 / /mnt/all rw shared:1 - ext4 a rw\n\
            3 1 0:9 / /v rw shared:7 - fuse.systx i rw\n\
            4 2 0:9 / /mnt/all/v rw shared:7 - fuse.systx i rw\n\
            5 1 0:9 /sub /bound rw shared:7 - fuse.systx i rw\n",
        );
        let slave = parse(
            b"11 10 8:1 / / rw shared:5 master:1 - ext4 a rw\n\
            13 11 0:9 / /v rw shared:6 master:7 - fuse.systx i rw\n",
        );
        let slave_of_slave = parse(
            b"21 20 8:1 / / rw master:5 - ext4 a rw\n\
            23 21 0:9 / /v rw master:6 - fuse.systx i rw\n",
        );
        let private = parse(
            b"31 30 8:1 / / rw - ext4 a rw\n\
            33 31 0:9 / /v rw - fuse.systx i rw\n",
        );
        let tables = [&here, &slave, &slave_of_slave, &private];
        let all = tables.iter().flat_map(|table| table.iter());
        let along = Along::with(&here[2], &here, all.clone()).unwrap();
        let stay = tables.iter().flat_map(|table| {
            let stays = |m: &&Mount| m.fs == "fuse.systx" && !along.has(m, table);
            table.iter().filter(stays).map(|m| m.id)
        });
        assert_eq!(stay.collect::<Vec<_>>(), [5, 33]);
        assert!(Along::with(&private[1], &private, all).is_none());
    }

    #[test]
    fn broken_tables_are_passed_over() {
        assert_eq!(parse(b"nonsense\nx 2 8:1 / /\n1\n\n1 2 8:x / / rw - a b rw\n"), []);
    }
}
