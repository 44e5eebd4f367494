//! A directory served through itself: opened, then mounted over, so that every path to it leads
//! through the plain view and only the first descriptor leads below.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use systx_fuse::{Config, Connection, FileLocks, Users};
use systx_guard::plain::{NoGate, Plain};

/// Why nothing can be mounted here.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    let dev = File::options().read(true).write(true).open("/dev/fuse");
    dev.err().map(|e| format!("/dev/fuse: {e}"))
}

/// Unmounted at the end, also of a failing test.
pub struct Guarded {
    pub dir: PathBuf,
    pub plain: Arc<Plain>,
    below: OwnedFd,
    connection: Option<Connection>,
    /// Dropped at the end: a test that hangs loses its mount after a while, and fails.
    alive: Option<Sender<()>>,
}

impl Guarded {
    /// Guards an existing directory.
    pub fn over(dir: &Path) -> io::Result<Guarded> {
        Guarded::with(dir, &Config::default(), usize::MAX / 2)
    }

    /// The same; the view holds about `limit` descriptors.
    pub fn with(dir: &Path, config: &Config, limit: usize) -> io::Result<Guarded> {
        let open = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(dir, flags, Mode::empty())
        };
        let plain = Plain::with_descriptors(open()?, HashSet::new(), Arc::new(NoGate), limit)?;
        Guarded::serving(dir, open()?, Arc::new(plain), config)
    }

    pub fn serving(
        dir: &Path,
        below: OwnedFd,
        plain: Arc<Plain>,
        config: &Config,
    ) -> io::Result<Guarded> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let dev = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
            dev.as_raw_fd()
        );
        let options = CString::new(options)?;
        mount("guarded", dir, "fuse", MountFlags::empty(), options.as_c_str())?;
        let mut guarded = Guarded {
            dir: dir.to_path_buf(),
            plain,
            below,
            connection: None,
            alive: Some(watch(dir.to_path_buf())),
        };
        let told = guarded.plain.is_told();
        let locks = if told { FileLocks::ViewToldOfClose } else { FileLocks::Kernel };
        let config = Config { locks, users: Users::Many, ..config.clone() };
        let serving = systx_fuse::serve(dev, guarded.plain.clone(), config)?;
        guarded.connection = Some(serving);
        Ok(guarded)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The path by which this process reaches what lies below the mount.
    pub fn below(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.below.as_raw_fd())).join(name)
    }

    pub fn below_fd(&self) -> BorrowedFd<'_> {
        self.below.as_fd()
    }

    pub fn connection(&self) -> &Connection {
        self.connection.as_ref().unwrap()
    }
}

/// After this, something that has to happen is taken never to happen.
pub const HANG: Duration = Duration::from_secs(300);

/// As of memfs: a test that hangs loses its mount. Some look for something rare, which takes a
/// while.
fn watch(dir: PathBuf) -> Sender<()> {
    let (alive, ended) = channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(2 * HANG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{}: the test hangs, its mount is aborted", dir.display());
            let _ = unmount(&dir, UnmountFlags::FORCE);
        }
    });
    alive
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
        self.connection = None;
    }
}
