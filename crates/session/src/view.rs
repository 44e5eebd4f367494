//! The new process's work between fork and exec: namespaces, the view, the new root.
//!
//! 1. A mount namespace of its own, and a network namespace if there is to be no network; without
//!    privilege first a user namespace, in which the user keeps their own uid and gid (so `id` says
//!    the same as outside) and has the right to mount. Who may become others keeps all ids
//!    ([`crate::ids`]).
//! 2. The view: /dev/fuse opened here (the kernel wants it opened in the namespace that mounts),
//!    made into a mount that is not yet anywhere, and handed to the parent, which has it served.
//! 3. The new root is put together on top of `/`.  A path walk of this process starts at the old
//!    root and does not see what lies on top of it; so `/…` still means the host, and the new tree
//!    is reached through descriptors only.  No directory has to be found or made for the purpose.
//! 4. pivot_root, and the old root is let go.
//!
//! A failure at any step ends the process; the kernel then takes down all of the above.

use crate::channel::{self, Packet};
use crate::error::{Failed, step};
use crate::ids;
use crate::plan::{Plan, Step};
use crate::stand_in::{self, StandIns};
use crate::sys_unsafe;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use rustix::thread::UnshareFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What the view's root shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// FUSE, served by whoever gets the descriptor.
    Fuse,
    /// A directory of the host, as it is: no isolation.  For tests of everything else.
    Directory(PathBuf),
}

/// A file or directory to be made in a private place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Where.
    pub path: PathBuf,
    /// Content of a file; `None`: a directory.
    pub content: Option<Vec<u8>>,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group, if they can be set.
    pub owner: (u32, u32),
}

/// How to make a view.
#[derive(Clone, Debug)]
pub(crate) struct ViewSpec<'a> {
    pub(crate) backing: &'a Backing,
    pub(crate) plan: &'a Plan,
    pub(crate) fill: &'a [Fill],
    /// The roots of the volumes, whose directories in the views are kept open for syncfs.
    pub(crate) volumes: &'a [&'a Path],
    /// Make a user namespace first.
    pub(crate) user_namespace: bool,
    /// Make a network namespace, too.
    pub(crate) no_net: bool,
    /// Programs that stand in front of others.
    pub(crate) stand_ins: &'a StandIns,
}

type Done<T> = Result<T, Failed>;

fn failed(step: &str, path: impl Into<Option<PathBuf>>) -> impl FnOnce(Errno) -> Failed {
    let (step, path) = (step.to_owned(), path.into());
    move |errno| Failed { step, path, errno }
}

/// Does all of it; afterwards `/` of this process is the new root.
pub(crate) fn make(spec: &ViewSpec<'_>, channel: BorrowedFd<'_>) -> Done<()> {
    namespaces(spec.user_namespace, spec.no_net, channel)?;
    let mut views = Vec::with_capacity(spec.volumes.len());
    match spec.backing {
        Backing::Fuse => {
            for n in 0..spec.volumes.len() {
                views.push(mount_fuse(channel, n as u32)?);
            }
        }
        Backing::Directory(dir) => views.push(clone_host(dir)?),
    }
    let (root, built) = build(spec, &views)?;
    // What is looked up from now on counts as read.
    for view in &views {
        let _ = rustix::fs::statx(view, systx_base::BUILT, AtFlags::empty(), StatxFlags::empty());
    }
    channel::send(channel, &built).map_err(failed("report to the parent", None))?;
    // These are of the old world; they would only keep it alive.
    drop(built);
    drop(views);
    enter(&root)
}

fn namespaces(user: bool, no_net: bool, channel: BorrowedFd<'_>) -> Done<()> {
    if user {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        // Inside, every right is there, and says nothing about those outside.
        let all = ids::all_can_be_mapped();
        // Both at once: the mount namespace must belong to the user namespace.
        sys_unsafe::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
            .map_err(failed(step::USER_NAMESPACE, None))?;
        if all {
            channel::send(channel, &Packet::Nobody)
                .map_err(failed("report to the parent", None))?;
            if !channel::wait_for_go(channel) {
                // The parent gave up, and knows why.
                return Err(failed("go on", None)(Errno::CANCELED));
            }
        } else {
            ids::map_own(uid.as_raw(), gid.as_raw())?;
        }
    } else {
        sys_unsafe::unshare(UnshareFlags::NEWNS).map_err(failed(step::MOUNT_NAMESPACE, None))?;
    }
    if no_net {
        sys_unsafe::unshare(UnshareFlags::NEWNET)
            .and_then(|()| sys_unsafe::raise_loopback())
            .map_err(failed(step::NETWORK_NAMESPACE, None))?;
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)
        .map_err(failed("make the mounts private", PathBuf::from("/")))
}

/// A FUSE mount that is not yet anywhere; served when this returns.
fn mount_fuse(channel: BorrowedFd<'_>, volume: u32) -> Done<OwnedFd> {
    let device = Path::new("/dev/fuse");
    let fuse = rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed(step::OPEN_FUSE, device.to_owned()))?;
    let mount = new_mount(
        "fuse",
        &[
            ("source", Some(crate::VIEW_SOURCE)),
            ("subtype", Some("systx")),
            ("fd", Some(&fuse.as_raw_fd().to_string())),
            ("rootmode", Some("40000")),
            ("user_id", Some(&rustix::process::geteuid().as_raw().to_string())),
            ("group_id", Some(&rustix::process::getegid().as_raw().to_string())),
            ("allow_other", None),
            ("default_permissions", None),
        ],
    )
    .map_err(failed(step::MOUNT_VIEW, None))?;
    // Without a request to the daemon, which does not serve yet.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let connection = rustix::fs::statx(&mount, "", flags, StatxFlags::empty())
        .map_or(0, |s| u64::from(s.stx_dev_minor));
    let ns = Path::new("/proc/self/ns/mnt");
    let mnt_ns = rustix::fs::stat(ns).map_err(failed("look at", ns.to_owned()))?.st_ino;
    channel::send(channel, &Packet::Mounted { volume, mnt_ns, connection, fuse })
        .map_err(failed("report to the parent", None))?;
    if channel::wait_for_go(channel) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A server that does not know the name has none there, which costs nothing but speed.
        let _ = rustix::fs::openat(&mount, systx_base::FIRST_OPEN, flags, Mode::empty());
        Ok(mount)
    } else {
        // The parent gave up, and knows why.
        Err(failed("go on", None)(Errno::CANCELED))
    }
}

fn new_mount(fs: &str, options: &[(&str, Option<&str>)]) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(fs, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value {
            Some(value) => rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?,
            None => rustix::mount::fsconfig_set_flag(context.as_fd(), *key)?,
        }
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// A recursive clone of a piece of the host.  Recursive, because without privilege a mount may not
/// be separated from what is mounted in it.
fn clone_host(path: &Path) -> Done<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    rustix::mount::open_tree(CWD, path, flags).map_err(failed("clone the mount", path.to_owned()))
}

/// The same of a path that is known to lead over no symbolic link: none that comes to be since is
/// followed.
fn clone_straight(path: &Path) -> Done<OwnedFd> {
    let open = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::fs::openat2(CWD, path, open, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .and_then(|there| rustix::mount::open_tree(&there, "", flags))
        .map_err(failed("clone the mount", path.to_owned()))
}

fn relative(path: &Path) -> &Path {
    match path.strip_prefix("/") {
        Ok(rest) if !rest.as_os_str().is_empty() => rest,
        _ => Path::new("."),
    }
}

fn attach(mount: &OwnedFd, (from, rest): (BorrowedFd<'_>, &Path)) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", from, rest, flags)
}

/// Puts a mount on top of this process's `/`, where path walks do not see it.
fn attach_on_top(mount: &OwnedFd) -> Result<(), Errno> {
    rustix::mount::move_mount(mount, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// What says that a place cannot be used by this user, and therefore not by CMD: behind a directory
/// that is closed to them, another user's FUSE, a dead NFS server.
fn out_of_reach(errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::NOTCONN | Errno::STALE)
}

struct Builder<'a> {
    views: &'a [OwnedFd],
    root: OwnedFd,
    /// What was mounted, by place.  A walk from there asks the view for nothing on the way to it,
    /// of which the kernel may keep nothing yet.
    mounted: Vec<(PathBuf, OwnedFd)>,
    private: Vec<(PathBuf, OwnedFd)>,
    notes: Vec<String>,
}

fn build(spec: &ViewSpec<'_>, views: &[OwnedFd]) -> Done<(OwnedFd, Packet)> {
    let slash = || PathBuf::from("/");
    let on_top = |mount| attach_on_top(mount).map_err(failed("put the view on", slash()));
    let first = match spec.plan.steps.first() {
        Some(Step::RootVolume(n)) => views.get(*n),
        _ => None,
    };
    // A clone of the host first: one taken later would contain the views.
    let host = if first.is_none() { Some(clone_host(Path::new("/"))?) } else { None };
    // The views must be somewhere before pieces of them can be cloned (Linux before 6.15).
    for view in views.iter().filter(|view| !first.is_some_and(|f| std::ptr::eq(f, *view))) {
        on_top(view)?;
    }
    let root = match (host, first) {
        (Some(host), _) => {
            attach_on_top(&host).map_err(failed("put the root on", slash()))?;
            host
        }
        (None, Some(view)) => {
            on_top(view)?;
            rustix::io::dup(view).map_err(failed("keep the root", None))?
        }
        (None, None) => return Err(failed("find the root", slash())(Errno::NOENT)),
    };
    let (mounted, private, notes) = Default::default();
    let mut builder = Builder { views, root, mounted, private, notes };
    for step in &spec.plan.steps {
        builder.step(step)?;
    }
    for fill in spec.fill {
        builder.fill(fill)?;
    }
    builder.stand_ins(spec.stand_ins)?;
    // For syncfs at the end.  O_PATH would not do.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |volume: &&Path| {
        let (from, rest) = builder.inside(volume);
        rustix::fs::openat(from, rest, flags, Mode::empty()).ok()
    };
    let kept = spec.volumes.iter().filter_map(open).collect();
    let Builder { root, private, notes, .. } = builder;
    Ok((root, Packet::Built { views: kept, private, notes }))
}

impl Builder<'_> {
    fn step(&mut self, step: &Step) -> Done<()> {
        match step {
            Step::RootVolume(_) | Step::RootHost => Ok(()),
            Step::Volume { volume, sub, at } => self.volume(*volume, sub, at),
            Step::Host { at } => self.host(at),
            Step::Limit { at, limits } => self.limit(at, *limits),
            Step::Private { at, mode } => self.private(at, *mode),
        }
    }

    fn volume(&mut self, volume: usize, sub: &Path, at: &Path) -> Done<()> {
        let Some(view) = self.views.get(volume) else { return Ok(()) };
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        if sub.as_os_str().is_empty() {
            flags |= OpenTreeFlags::AT_EMPTY_PATH;
        }
        match rustix::mount::open_tree(view, sub, flags) {
            Ok(mount) => match self.put(mount, at) {
                // Of another file system than the one that the command works on: unmounted, and its
                // place removed, since the mounts were read.
                Err(Failed { errno: Errno::NOENT | Errno::NOTDIR, .. }) if volume > 0 => {
                    self.notes.push(format!("{}: gone, left out", at.display()));
                    Ok(())
                }
                Err(Failed { errno, .. }) if out_of_reach(errno) => self.left_out(at),
                done => done,
            },
            // Another mount of a part of the volume, below a directory that is closed to this user.
            Err(errno) if out_of_reach(errno) => self.left_out(at),
            // Something else is mounted over it on the host, or it is hidden: the host then.
            Err(Errno::NOENT | Errno::NOTDIR) if !sub.as_os_str().is_empty() => {
                self.notes.push(format!("{}: not part of the view, read-only", at.display()));
                self.host(at)?;
                self.limit(at, MountAttrFlags::MOUNT_ATTR_RDONLY)
            }
            Err(e) => Err(failed("clone the view's", sub.to_owned())(e)),
        }
    }

    fn host(&mut self, at: &Path) -> Done<()> {
        match clone_straight(at).and_then(|mount| self.put(mount, at)) {
            // Unmounted, or its place removed, since the mounts were read; or somebody has put a
            // link in the way.
            Err(Failed { errno: Errno::NOENT | Errno::NOTDIR | Errno::LOOP, .. }) => Ok(()),
            Err(Failed { errno, .. }) if out_of_reach(errno) => self.left_out(at),
            other => other,
        }
    }

    /// A place that this user cannot get to, or look into: it then shows what its parent shows
    /// there.
    #[allow(clippy::unnecessary_wraps)] // an arm of results
    fn left_out(&mut self, at: &Path) -> Done<()> {
        self.notes.push(format!("{}: cannot be reached, left out", at.display()));
        Ok(())
    }

    fn limit(&mut self, at: &Path, limits: MountAttrFlags) -> Done<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = match self.mount_at(at) {
            Some(mount) => rustix::io::dup(mount),
            None => {
                let (from, rest) = self.towards(at);
                rustix::fs::openat(from, rest, flags, Mode::empty())
            }
        };
        let place = match place {
            Ok(place) => place,
            // Not reachable for the command either.
            Err(e) if e == Errno::NOENT || out_of_reach(e) => return Ok(()),
            Err(e) => return Err(failed("open", at.to_owned())(e)),
        };
        match sys_unsafe::limit_mount(place.as_fd(), limits) {
            // Not the root of a mount: it was left out above.
            Err(Errno::INVAL) => Ok(()),
            other => other.map_err(failed("limit the mount at", at.to_owned())),
        }
    }

    fn private(&mut self, at: &Path, mode: u32) -> Done<()> {
        let mode = format!("{mode:o}");
        let mount = new_mount("tmpfs", &[("source", Some("systx")), ("mode", Some(&mode))])
            .map_err(failed("make a private", at.to_owned()))?;
        self.put(mount, at)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (from, rest) = self.inside(at);
        let fd = rustix::fs::openat(from, rest, flags, Mode::empty())
            .map_err(failed("open", at.to_owned()))?;
        self.private.push((at.to_owned(), fd));
        Ok(())
    }

    /// Attaches at a place, which is made if it is missing in a private place.
    fn put(&mut self, mount: OwnedFd, at: &Path) -> Done<()> {
        self.attach(&mount, at)?;
        self.mounted.push((at.to_owned(), mount));
        Ok(())
    }

    fn attach(&self, mount: &OwnedFd, at: &Path) -> Done<()> {
        let mut result = attach(mount, self.towards(at));
        if result == Err(Errno::NOENT) && self.in_private(at) {
            self.make_place(mount, at)?;
            result = attach(mount, self.towards(at));
        }
        result.map_err(failed("mount on", at.to_owned()))
    }

    /// What was mounted at a place; the one on top.
    fn mount_at(&self, at: &Path) -> Option<&OwnedFd> {
        self.mounted.iter().rev().find(|(place, _)| place == at).map(|(_, mount)| mount)
    }

    /// Where a walk to a place begins, and how it goes on: at the nearest mount above it.
    fn towards<'p>(&self, at: &'p Path) -> (BorrowedFd<'_>, &'p Path) {
        let above = at.ancestors().skip(1);
        let mut mounts = above.filter_map(|place| Some((place, self.mount_at(place)?)));
        let nearest = mounts.next().and_then(|(place, mount)| {
            let rest = at.strip_prefix(place).ok()?;
            Some((mount.as_fd(), rest))
        });
        nearest.unwrap_or((self.root.as_fd(), relative(at)))
    }

    /// The same of the directory that is to be seen there.
    fn inside<'p>(&self, at: &'p Path) -> (BorrowedFd<'_>, &'p Path) {
        match self.mount_at(at) {
            Some(mount) => (mount.as_fd(), Path::new(".")),
            None => self.towards(at),
        }
    }

    fn stand_ins(&mut self, these: &StandIns) -> Done<()> {
        if !self.in_private(Path::new(stand_in::LIST)) {
            return Ok(());
        }
        let put = these.put(|program, at| self.attach(&clone_host(program)?, at));
        if !stand_in::without_program(put)? {
            self.notes.push("commands of service managers are not caught".into());
        }
        Ok(())
    }

    fn in_private(&self, path: &Path) -> bool {
        self.private.iter().any(|(at, _)| path != at && path.starts_with(at))
    }

    fn make_place(&self, mount: &OwnedFd, at: &Path) -> Done<()> {
        self.make_parents(at)?;
        let stat = rustix::fs::fstat(mount).map_err(failed("look at", at.to_owned()))?;
        let mode = Mode::from_raw_mode(0o755);
        let (from, rest) = self.towards(at);
        let made = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            rustix::fs::mkdirat(from, rest, mode)
        } else {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(from, rest, flags, Mode::from_raw_mode(0o644)).map(drop)
        };
        made.map_err(failed("make", at.to_owned()))
    }

    fn make_parents(&self, path: &Path) -> Done<()> {
        let mut above: Vec<&Path> =
            path.ancestors().skip(1).filter(|p| self.in_private(p)).collect();
        above.reverse();
        for dir in above {
            let (from, rest) = self.towards(dir);
            match rustix::fs::mkdirat(from, rest, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(failed("make", dir.to_owned())(e)),
            }
        }
        Ok(())
    }

    fn fill(&self, fill: &Fill) -> Done<()> {
        if !self.in_private(&fill.path) {
            return Ok(());
        }
        self.make_parents(&fill.path)?;
        let (from, rest) = self.towards(&fill.path);
        let wrong = |e| failed("make", fill.path.clone())(e);
        let fd = match &fill.content {
            Some(content) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(0o600);
                let fd = match rustix::fs::openat(from, rest, flags, mode) {
                    Err(Errno::EXIST) => return Ok(()),
                    other => other.map_err(wrong)?,
                };
                let mut left = content.as_slice();
                while !left.is_empty() {
                    match rustix::io::write(&fd, left) {
                        Ok(0) => return Err(wrong(Errno::IO)),
                        Ok(n) => left = &left[n..],
                        Err(Errno::INTR) => {}
                        Err(e) => return Err(wrong(e)),
                    }
                }
                fd
            }
            None => {
                match rustix::fs::mkdirat(from, rest, Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(wrong(e)),
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::openat(from, rest, flags, Mode::empty()).map_err(wrong)?
            }
        };
        // In a user namespace only one's own ids exist; the rest stays one's own.
        let _ = rustix::fs::fchown(
            &fd,
            Some(rustix::fs::Uid::from_raw(fill.owner.0)),
            Some(rustix::fs::Gid::from_raw(fill.owner.1)),
        );
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(fill.mode)).map_err(wrong)
    }
}

/// Makes `root` this process's root and lets go of what was before.
fn enter(root: &OwnedFd) -> Done<()> {
    let slash = || PathBuf::from("/");
    rustix::process::fchdir(root).map_err(failed(step::CHDIR, slash()))?;
    rustix::process::pivot_root(".", ".").map_err(failed("change the root to", slash()))?;
    // The old root now lies on top of the new one, here, and if the view was put on the old root
    // only to be cloned from, it lies on top of that.  One that stayed could be reached by `/..`.
    while !uncovered(root)? {
        rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(failed("let go of", slash()))?;
    }
    rustix::process::chdir("/").map_err(failed(step::CHDIR, slash()))
}

/// Nothing lies on top of `/`.  `..` of the root is the root again, but on that way mounts are
/// crossed, as they are not for `/` itself.
fn uncovered(root: &OwnedFd) -> Done<bool> {
    let slash = || PathBuf::from("/..");
    let (flags, mask) = (AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID);
    let own = rustix::fs::statx(root, "", flags | AtFlags::EMPTY_PATH, mask)
        .map_err(failed("look at", slash()))?;
    let top = rustix::fs::statx(CWD, "/..", flags, mask).map_err(failed("look at", slash()))?;
    Ok(own.stx_mnt_id == top.stx_mnt_id)
}

/// Joins the namespaces of a process that is in a view; afterwards `/` is that view's root.
pub(crate) fn join(pid: u32, user_namespace: bool) -> Done<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let open = |kind: &str| {
        let path = PathBuf::from(format!("/proc/{pid}/ns/{kind}"));
        rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed("open", path))
    };
    // Both before the first change: afterwards /proc may look different.
    let user = if user_namespace { Some(open("user")?) } else { None };
    let mount = open("mnt")?;
    let enter = |fd: &OwnedFd, kind| {
        move_into_link_name_space(fd.as_fd(), Some(kind)).map_err(failed("join the view", None))
    };
    if let Some(user) = user {
        enter(&user, LinkNameSpaceType::User)?;
    }
    // Also changes root and working directory to the root of that namespace.
    enter(&mount, LinkNameSpaceType::Mount)
}
