//! What the root of a view is made of: a pure function from the host's mounts to a list of steps.
//!
//! Every place that is not simply "what its parent directory shows" is an entry of a table, path ->
//! [`Kind`]:
//! 1. every visible mount of the host: a part of a volume shows its view ([`Kind::Volume`]), the
//!    rest shows the host read-only ([`Kind::Host`]);
//! 2. the volume's root itself, where it is no mount point; also below every other mount that shows
//!    a directory above it, or the volume could be reached around the view;
//! 3. /proc, /sys and /dev as they are ([`Kind::AsIs`]), with all that is mounted in them;
//! 4. private places ([`Kind::Private`]): an empty tmpfs.  What the host has mounted in them is
//!    out of sight, except for the volume and for what the user excluded from isolation;
//! 5. paths that the user excluded from isolation, for this run or for all ([`Kind::Passthrough`]):
//!    the host, writable.
//!
//! The mounts over guarded directories of the volume are left out before all this.
//!
//! The table is then walked in path order, parents first.  A piece of the host is cloned
//! recursively, because an unprivileged user may not separate a mount from what is mounted in it;
//! what came along that way is not cloned again, only made read-only.  What the host's mount of a
//! part of a volume does not allow (`noexec`, say), the view's there does not allow either.

use crate::mountinfo::{Mount, holding, visible};
use rustix::mount::MountAttrFlags;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What is wanted.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// The directory whose content the view's root shows; absolute, without symbolic links.
    pub volume: PathBuf,
    /// The roots of further volumes: the view shows each at its places on the host.
    pub others: Vec<PathBuf>,
    /// Paths that show the host, writable; absolute, without symbolic links, existing.
    pub passthrough: Vec<PathBuf>,
    /// As [`Wish::passthrough`], what is not protected; a volume that is mounted in one of these
    /// shows its view all the same.
    pub unprotected: Vec<PathBuf>,
    /// Places that get an empty tmpfs of this mode; absolute, existing.
    pub private: Vec<(PathBuf, u32)>,
    /// Guarded directories of the volume: the view shows what lies below their mounts.
    pub guarded: Vec<Guarded>,
}

/// The mount over a guarded directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// Mount id.
    pub mount: u64,
    /// `major:minor` of its superblock.
    pub dev: (u32, u32),
}

/// What one place shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The view of a volume (0: [`Wish::volume`], then [`Wish::others`]), from this path relative
    /// to its root (empty: the root).
    Volume(usize, PathBuf),
    /// The host, read-only.
    Host,
    /// The host, as it is.
    AsIs,
    /// The host, as it is, because the user said so.
    Passthrough,
    /// An empty tmpfs of this mode.
    Private(u32),
}

/// One step of building.  Paths are absolute, to be taken below the new root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The new root is the root of this volume's view.
    RootVolume(usize),
    /// The new root is a recursive clone of the host's `/`.
    RootHost,
    /// Mounts the view of a volume, from this path relative to its root.
    Volume {
        /// Which.
        volume: usize,
        /// Relative to the view's root.
        sub: PathBuf,
        /// Where.
        at: PathBuf,
    },
    /// Mounts a recursive clone of the host's directory (or file) of the same path.
    Host {
        /// Where.
        at: PathBuf,
    },
    /// Takes something from what the one mount at this place allows.
    Limit {
        /// Where.
        at: PathBuf,
        /// What it does not allow from then on.
        limits: MountAttrFlags,
    },
    /// Mounts an empty tmpfs.
    Private {
        /// Where.
        at: PathBuf,
        /// Mode of its root.
        mode: u32,
    },
}

/// The steps, and what the user should know.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// Sentences for the user, of interest only when asked for.
    pub notes: Vec<String>,
}

/// No view can be built from these mounts.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// `/` is not a mount point: a chroot.
    #[error("/ is not a mount point (a chroot?)")]
    NoRoot,
    /// The volume's root is itself in /proc, /sys or the like.
    #[error("{0} cannot be a volume: it belongs to the kernel")]
    KernelTree(PathBuf),
    /// A path that was excluded from isolation holds the volume.
    #[error("{path} cannot be excluded: it holds the volume {volume}")]
    ExcludesVolume {
        /// What was excluded.
        path: PathBuf,
        /// The volume's root.
        volume: PathBuf,
    },
}

/// Trees that the kernel makes up.
const KERNEL_TREES: [&str; 3] = ["/proc", "/sys", "/dev"];

struct Place {
    kind: Kind,
    /// It is a mount of its own on the host.
    mounted: bool,
    /// What the mount that shows it on the host does not allow.
    limits: MountAttrFlags,
}

impl Place {
    /// Of no mount of its own, and without limits.
    fn plain(kind: Kind) -> Place {
        Place { kind, mounted: false, limits: MountAttrFlags::empty() }
    }

    /// The step by which the view's mount gets the limits of the host's.
    fn limit(&self, at: PathBuf) -> Option<Step> {
        let limits = self.limits;
        (!limits.is_empty()).then_some(Step::Limit { at, limits })
    }
}

/// Plans the root of a view.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(mounts: &[Mount], wish: &Wish) -> Result<Plan, PlanError> {
    let mounts = without_guards(mounts, wish);
    let visible = visible(&mounts);
    let holder = holding(&visible, &wish.volume).ok_or(PlanError::NoRoot)?;
    if ["proc", "sysfs", "cgroup", "cgroup2"].contains(&holder.fs.as_str()) {
        return Err(PlanError::KernelTree(wish.volume.clone()));
    }
    if let Some(path) = wish.passthrough.iter().find(|p| wish.volume.starts_with(p)) {
        let volume = wish.volume.clone();
        return Err(PlanError::ExcludesVolume { path: path.clone(), volume });
    }
    let mut notes = Vec::new();
    let mut volumes = vec![Shown::of(holder, &wish.volume)];
    for other in &wish.others {
        let holder = holding(&visible, other).ok_or(PlanError::NoRoot)?;
        volumes.push(Shown::of(holder, other));
    }
    let mut table = places(&visible, &volumes, wish, &mut notes);
    hide_in_private(&mut table, &wish.private);
    Ok(Plan { steps: steps(&table), notes })
}

/// The mounts as they would be if nothing were guarded: the mounts over guarded directories are not
/// there, and where else their content is mounted, a part of the volume is.
fn without_guards(mounts: &[Mount], wish: &Wish) -> Vec<Mount> {
    let mut mounts = mounts.to_vec();
    for guarded in &wish.guarded {
        let Some(at) = mounts.iter().position(|m| m.id == guarded.mount) else { continue };
        let over = mounts.remove(at);
        for mount in mounts.iter_mut().filter(|m| m.parent == over.id) {
            mount.parent = over.parent;
        }
        let shown = visible(&mounts);
        let Some(holder) = holding(&shown, &over.at) else { continue };
        let (dev, place) = (holder.dev, join(&holder.root, below(&over.at, &holder.at)));
        for mount in mounts.iter_mut().filter(|m| m.dev == guarded.dev) {
            mount.root = join(&place, below(&mount.root, Path::new("/")));
            mount.dev = dev;
        }
    }
    mounts
}

/// A volume's root as a path of its file system.
struct Shown {
    dev: (u32, u32),
    inner: PathBuf,
}

impl Shown {
    fn of(holder: &Mount, root: &Path) -> Shown {
        Shown { dev: holder.dev, inner: join(&holder.root, below(root, &holder.at)) }
    }
}

fn places(
    visible: &[&Mount],
    volumes: &[Shown],
    wish: &Wish,
    notes: &mut Vec<String>,
) -> BTreeMap<PathBuf, Place> {
    let mut table = BTreeMap::new();
    for mount in visible {
        let same = || volumes.iter().enumerate().filter(|(_, v)| v.dev == mount.dev);
        // The one whose root is nearest.
        let shown = same()
            .filter(|(_, v)| mount.root.starts_with(&v.inner))
            .max_by_key(|(_, v)| v.inner.components().count());
        let kind = match shown {
            Some((n, v)) => Kind::Volume(n, below(&mount.root, &v.inner).to_owned()),
            None if in_kernel_tree(&mount.at) => Kind::AsIs,
            None => Kind::Host,
        };
        let mut within = false;
        for (n, volume) in same() {
            let Ok(sub) = volume.inner.strip_prefix(&mount.root) else { continue };
            within = true;
            let at = join(&mount.at, sub);
            // Only where that is what one sees there.
            if !sub.as_os_str().is_empty()
                && holding(visible, &at).is_some_and(|m| m.id == mount.id)
            {
                let kind = Kind::Volume(n, PathBuf::new());
                table.insert(at, Place { limits: mount.limits, ..Place::plain(kind) });
            }
        }
        if !within && kind == Kind::Host && same().next().is_some() {
            notes.push(format!(
                "{} is another part of the same file system: read-only in the view",
                mount.at.display()
            ));
        }
        let place = Place { kind, mounted: true, limits: mount.limits };
        table.insert(mount.at.clone(), place);
    }
    for tree in KERNEL_TREES.map(PathBuf::from) {
        table.entry(tree).or_insert(Place::plain(Kind::AsIs));
    }
    for (at, mode) in &wish.private {
        let place = Place::plain(Kind::Private(*mode));
        if *at == wish.volume {
            notes.push(format!("{} is the volume itself: not private", at.display()));
        } else {
            table.insert(at.clone(), place);
        }
    }
    for at in wish.passthrough.iter().chain(&wish.unprotected) {
        table.insert(at.clone(), Place::plain(Kind::Passthrough));
    }
    table
}

/// Drops what the host has mounted inside private places.
fn hide_in_private(table: &mut BTreeMap<PathBuf, Place>, private: &[(PathBuf, u32)]) {
    let private: Vec<&PathBuf> = private
        .iter()
        .map(|(at, _)| at)
        .filter(|at| matches!(table.get(*at), Some(Place { kind: Kind::Private(_), .. })))
        .collect();
    table.retain(|path, place| {
        let inside = private.iter().any(|at| path != *at && path.starts_with(at));
        !inside || matches!(place.kind, Kind::Volume(0, _) | Kind::Passthrough)
    });
}

fn steps(table: &BTreeMap<PathBuf, Place>) -> Vec<Step> {
    let (mut steps, mut last) = (Vec::new(), None);
    for (at, place) in table {
        let above = at.ancestors().skip(1).find_map(|p| table.get(p)).map(|p| &p.kind);
        // The clone of the parent brought it along.
        let came_along = matches!(above, Some(Kind::Host | Kind::AsIs | Kind::Passthrough));
        let at = at.clone();
        match &place.kind {
            Kind::Volume(n, _) if above.is_none() => {
                steps.push(Step::RootVolume(*n));
                // Pieces that are cloned of it would have its limits.
                last = place.limit(at);
            }
            Kind::Volume(n, sub) => {
                steps.push(Step::Volume { volume: *n, sub: sub.clone(), at: at.clone() });
                steps.extend(place.limit(at));
            }
            Kind::Private(mode) => steps.push(Step::Private { at, mode: *mode }),
            Kind::Host => {
                if above.is_none() {
                    steps.push(Step::RootHost);
                } else if !came_along {
                    steps.push(Step::Host { at: at.clone() });
                }
                // What is excluded from isolation is, with all that is mounted in it.
                let limits = MountAttrFlags::MOUNT_ATTR_RDONLY;
                if !place.limits.contains(limits) && !matches!(above, Some(Kind::Passthrough)) {
                    steps.push(Step::Limit { at, limits });
                }
            }
            Kind::AsIs => {
                // A directory of a host clone that is not a mount would be read-only with it.
                let fine = came_along && (place.mounted || above == Some(&Kind::AsIs));
                if above.is_some() && !fine {
                    steps.push(Step::Host { at });
                }
            }
            Kind::Passthrough => {
                if above != Some(&Kind::Passthrough) {
                    steps.push(Step::Host { at });
                }
            }
        }
    }
    steps.extend(last);
    steps
}

/// Types of file systems that can be volumes, and are local.
const LOCAL: [&str; 9] =
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "jfs", "tmpfs"];

/// What systx mounts that is no volume: guarded directories and views, which show others.
const SHOWS: [&str; 2] = ["systx", crate::VIEW_SOURCE];

/// Of overlays only the one that is the root of everything, as in a container: others are the roots
/// of somebody else's containers.  A log-structured volume bears the path of its image.
fn is_local(mount: &Mount) -> bool {
    let is_shown = SHOWS.iter().any(|source| mount.source == Path::new(source));
    LOCAL.contains(&mount.fs.as_str())
        || mount.fs == "overlay" && mount.at == Path::new("/")
        || mount.fs == "fuse.systx" && !is_shown
}

/// Trees whose mounts are nobody's lasting work: private to a run.
const TRANSIENT: [&str; 2] = ["/run", "/tmp"];

/// More file systems than that are not put into one transaction.
pub const FURTHER_MAX: usize = 15;

/// Roots of further volumes beside the one at `volume`: local file systems that can be written and
/// are in sight, each once, at the place that shows most of it. What is in `excluded` is left out,
/// and so are places that are private to a run.
pub fn further(mounts: &[Mount], volume: &Path, excluded: &[PathBuf]) -> Vec<PathBuf> {
    let visible = visible(mounts);
    let Some(holder) = holding(&visible, volume) else { return Vec::new() };
    let first = Shown::of(holder, volume);
    let out = |at: &Path| {
        let transient = TRANSIENT.iter().any(|t| {
            let own = visible.iter().any(|m| m.at == Path::new(t)) || *t == "/run";
            own && at.starts_with(t)
        });
        transient || in_kernel_tree(at) || excluded.iter().any(|e| at.starts_with(e))
    };
    let mut found: Vec<&Mount> = visible
        .iter()
        .copied()
        .filter(|m| is_local(m) && !m.is_read_only() && !out(&m.at))
        .collect();
    found.sort_by_key(|m| (m.root.components().count(), m.at.components().count()));
    let mut taken = vec![first];
    let mut roots = Vec::new();
    for mount in found {
        let overlaps = |t: &Shown| {
            t.dev == mount.dev
                && (mount.root.starts_with(&t.inner) || t.inner.starts_with(&mount.root))
        };
        if roots.len() < FURTHER_MAX && !taken.iter().any(overlaps) {
            taken.push(Shown { dev: mount.dev, inner: mount.root.clone() });
            roots.push(mount.at.clone());
        }
    }
    roots.sort();
    roots
}

fn in_kernel_tree(path: &Path) -> bool {
    KERNEL_TREES.iter().any(|t| path.starts_with(t))
}

fn below<'a>(path: &'a Path, dir: &Path) -> &'a Path {
    path.strip_prefix(dir).unwrap_or(Path::new(""))
}

/// As `Path::join`, without the trailing slash for an empty tail.
fn join(base: &Path, tail: &Path) -> PathBuf {
    if tail.as_os_str().is_empty() { base.to_owned() } else { base.join(tail) }
}

#[cfg(test)]
mod tests;
