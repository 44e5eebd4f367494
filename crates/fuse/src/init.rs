//! The first exchange: which version and which features the kernel and this crate have in common.
//! Pure; the transport carries the result.
//!
//! Why each feature is asked for, or not:
//! - `ATOMIC_O_TRUNC` never: together with zero-message open the kernel would lose `O_TRUNC`.
//! - `WRITEBACK_CACHE` never: the view must own sizes and times.
//! - `EXPLICIT_INVAL_DATA`: a new mtime (after our own write) must not drop cached pages.
//! - `DONT_MASK` with `POSIX_ACL`: a default ACL replaces the umask, so the view applies it.
//! - `HANDLE_KILLPRIV_V2`: else each write(2) asks for `security.capability` first.
//! - `ABORT_ERROR`: tells an abort (`ECONNABORTED`) from an unmount (`ENODEV`).
//! - `EXPORT_SUPPORT` only where the view says so ([`Users::ManyByNumber`]).
//! - Passthrough, splice, DAX, security contexts: not spoken here.

use crate::config::{Config, FileLocks, Readdirplus, Users};
use crate::wire::{self, init};

/// What was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Both sides' features.
    pub flags: u64,
    /// The protocol's minor version.
    pub minor: u32,
    /// Largest READ or WRITE, and the size of payload buffers.
    pub payload: u32,
}

impl Agreement {
    pub fn over_io_uring(&self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }
}

const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::HAS_IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::HAS_EXPIRE_ONLY;

/// Without these the contract with the view does not hold, and every kernel since 5.17 has them.
const NEEDED: u64 = init::INIT_EXT
    | init::MAX_PAGES
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::SETXATTR_EXT
    | init::NO_OPEN_SUPPORT;

/// Answers the kernel's offer.  `ring`: io_uring is set up on this side.  `Err`: what is missing.
pub(crate) fn negotiate(
    offer: &wire::InitIn,
    config: &Config,
    cpus: usize,
    ring: bool,
) -> Result<(Agreement, wire::InitOut), String> {
    if offer.major != wire::MAJOR || offer.minor < wire::MINOR_OLDEST {
        let (major, minor) = (offer.major, offer.minor);
        return Err(format!("the kernel speaks FUSE {major}.{minor}, needed is 7.36 (Linux 5.17)"));
    }
    let offered = u64::from(offer.flags) | u64::from(offer.flags2) << 32;
    if offered & NEEDED != NEEDED {
        return Err(format!("the kernel lacks FUSE features {:#x}", NEEDED & !offered));
    }
    let mut wanted = WANTED;
    if config.readdirplus == Readdirplus::Auto {
        wanted |= init::READDIRPLUS_AUTO;
    }
    if config.locks != FileLocks::Kernel {
        wanted |= init::POSIX_LOCKS | init::FLOCK_LOCKS;
    }
    if config.users == Users::ManyByNumber {
        wanted |= init::EXPORT_SUPPORT;
    }
    if ring {
        wanted |= init::OVER_IO_URING;
    }
    let flags = wanted & offered;
    let payload = config.payload(cpus);
    let agreement = Agreement { flags, minor: offer.minor.min(wire::MINOR), payload };
    Ok((agreement, answer(offer, &agreement)))
}

fn answer(offer: &wire::InitIn, agreement: &Agreement) -> wire::InitOut {
    wire::InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR,
        max_readahead: offer.max_readahead,
        flags: agreement.flags as u32, // the low half
        flags2: (agreement.flags >> 32) as u32,
        max_background: 64,
        congestion_threshold: 48,
        max_write: agreement.payload,
        time_gran: 1,
        // At most 256, see `Config::payload`.
        max_pages: (agreement.payload / 4096) as u16,
        ..wire::InitOut::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What Linux 6.18 offers.
    const OFFER: wire::InitIn = wire::InitIn {
        major: 7,
        minor: 45,
        max_readahead: 131_072,
        flags: 0x73ff_fffb,
        flags2: 0x7fd,
        unused: [0; 11],
    };

    #[test]
    fn never_the_features_that_break_a_view() {
        for locks in [FileLocks::Kernel, FileLocks::View, FileLocks::ViewToldOfClose] {
            let remote_locks = locks != FileLocks::Kernel;
            let config = Config { locks, ..Config::default() };
            let (got, out) = negotiate(&OFFER, &config, 2, true).unwrap();
            let bad = init::ATOMIC_O_TRUNC | init::WRITEBACK_CACHE | init::PASSTHROUGH;
            assert_eq!(got.flags & bad, 0);
            assert_eq!(got.flags & init::POSIX_LOCKS != 0, remote_locks);
            assert!(got.over_io_uring());
            assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, got.flags);
            assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
            assert_eq!(out.max_readahead, OFFER.max_readahead);
        }
    }

    #[test]
    fn only_what_was_offered_is_accepted() {
        let offer = wire::InitIn { flags2: 0, ..OFFER };
        let (got, _) = negotiate(&offer, &Config::default(), 2, true).unwrap();
        assert!(!got.over_io_uring());
        let old = wire::InitIn { minor: 35, ..OFFER };
        assert!(negotiate(&old, &Config::default(), 2, false).unwrap_err().contains("7.35"));
        let lacking = wire::InitIn { flags: 0, ..OFFER };
        assert!(negotiate(&lacking, &Config::default(), 2, false).is_err());
    }
}
