//! What the owner of a view chooses about its connection.

use std::time::Duration;
use systx_base::NodeId;

/// How requests reach this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// io_uring where the kernel offers it, else /dev/fuse.
    Auto,
    /// FUSE over io_uring (Linux 6.14, switched on by `fuse.enable_uring`).
    IoUring,
    /// read(2) and write(2) on /dev/fuse.
    DevFuse,
}

/// When listings carry attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readdirplus {
    /// Always: the first walk of a tree needs no lookups.
    Always,
    /// When the kernel guesses that attributes will be used.
    Auto,
}

/// Who keeps file locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLocks {
    /// The kernel, for each mount of its own: locks exclude nobody outside.
    Kernel,
    /// The view, which finds out itself that an owner has closed.
    View,
    /// The view, which is told of every close.  This costs messages for open and close: about 10 us
    /// for each open+close instead of 1 us.
    ViewToldOfClose,
}

/// Whose mount it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// One transaction's.
    One,
    /// Programs come and go that have nothing to do with each other: what calls have done that may
    /// not be over is remembered, see `in_flight.rs`. So it is where closes are told.
    Many,
    /// As that, and nodes are numbers that mean the same for ever: the view finds the name `.` in
    /// one that it has not handed out. So a file handle of the mount (name_to_handle_at(2))
    /// outlives what the kernel keeps, and who serves it reaches an object by its number.
    ManyByNumber,
}

/// How long a request may take before something is done about it: see `watchdog.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// In service for so long, a request is named in the log.
    pub warn: Duration,
    /// In service for so long, it ends the connection, so that its client does not wait for ever.
    pub request: Duration,
    /// As `request`, if no worker is left for other requests.
    pub exhausted: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            warn: Duration::from_secs(10),
            request: Duration::from_secs(600),
            exhausted: Duration::from_secs(120),
        }
    }
}

/// Settings of one connection.  `Config::default()` is a private view: everything that was handed
/// out stays true until the view itself changes it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Transport to use.
    pub transport: Transport,
    /// How long the kernel may believe a name; [`Duration::MAX`]: for ever.
    pub entry_timeout: Duration,
    /// How long the kernel may believe attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may believe that a name is absent.
    pub negative_timeout: Duration,
    /// Largest READ and WRITE in bytes; rounded down to pages.  0: 1 MiB on up to 4 CPUs, 256 KiB
    /// on more.  Each request under way has a buffer of this size.
    pub max_write: u32,
    /// When listings carry attributes.
    pub readdirplus: Readdirplus,
    /// Who keeps file locks.
    pub locks: FileLocks,
    /// Whose mount it is.
    pub users: Users,
    /// Threads per queue at the start; more are added while requests block.  0: chosen by the
    /// transport.
    pub workers: usize,
    /// The node that is shown as the root of the mount; the view's own, as a rule.
    pub root: NodeId,
    /// When a request takes too long.
    pub patience: Patience,
    /// The connection's number, which is the minor device number of its mount, where the mounter
    /// knows it.  Only looked at where the kernel does not tell itself (before Linux 6.16).
    pub number: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            transport: Transport::Auto,
            entry_timeout: Duration::MAX,
            attr_timeout: Duration::MAX,
            negative_timeout: Duration::MAX,
            max_write: 0,
            readdirplus: Readdirplus::Always,
            locks: FileLocks::Kernel,
            users: Users::One,
            workers: 0,
            root: NodeId::ROOT,
            patience: Patience::default(),
            number: None,
        }
    }
}

impl Config {
    /// The payload size in use on a machine with `cpus` CPUs: a multiple of the page size that the
    /// kernel accepts.
    pub(crate) fn payload(&self, cpus: usize) -> u32 {
        const PAGE: u32 = 4096;
        let chosen = match (self.max_write, cpus) {
            (0, ..=4) => 1 << 20,
            (0, _) => 256 << 10,
            (n, _) => n,
        };
        // The kernel's own limit on pages per request is 256 unless an administrator raises it.
        chosen.clamp(2 * PAGE, 256 * PAGE) / PAGE * PAGE
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_whole_pages_within_the_kernels_limits() {
        let with = |n| Config { max_write: n, ..Config::default() };
        assert_eq!(with(0).payload(2), 1 << 20);
        assert_eq!(with(0).payload(64), 256 << 10);
        assert_eq!(with(1).payload(2), 8192);
        assert_eq!(with(100_000).payload(2), 98_304);
        assert_eq!(with(u32::MAX).payload(2), 1 << 20);
    }
}
