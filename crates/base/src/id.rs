//! Identifiers and small values that cross crate lines.  None of them is a bare integer, so that an
//! object number cannot be passed where a transaction is meant.

use std::fmt;
use std::str::FromStr;

/// User id, as the host's initial user namespace counts.
pub type Uid = u32;
/// Group id, as the host's initial user namespace counts.
pub type Gid = u32;

/// A transaction.  Unique within one store for ever; printed as lower-case hexadecimal, of which
/// users may give any unique prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TxnId(pub u64);

impl fmt::Display for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for TxnId {
    type Err = std::num::ParseIntError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(s, 16).map(TxnId)
    }
}

/// A node of one view, as the kernel names it in FUSE requests (`nodeid`).  1 is the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u64);

impl NodeId {
    /// `FUSE_ROOT_ID`.
    pub const ROOT: NodeId = NodeId(1);
}

/// A name in the root of a view that stands for an empty file to the first who looks it up, and for
/// what it stands for to everybody after. Who mounts a view opens it before anybody else is in
/// there: the kernel so learns that opens need no message, and from then on sends none for the end
/// of an open either, which it otherwise does for every file that is created (one of six messages).
pub const FIRST_OPEN: &str = "\u{1}systx first open";

/// A name in the root of a view that nothing ever has.  The process that puts the view together
/// looks it up when it is done: who looks at the view from then on is a program.
pub const BUILT: &str = "\u{1}systx built";

/// An object of a volume while the daemon runs: the key under which conflicts are found, made by
/// the volume from the backing inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Oid(pub u64);

/// A point in time as `statx` reports it: seconds since the epoch (may be negative) and nanoseconds
/// below 10⁹.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Whole seconds since 1970-01-01 UTC.
    pub secs: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanos: u32,
}

/// The type of a file, the `S_IFMT` part of `st_mode`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDev,
    /// Block device.
    BlockDev,
}

impl Kind {
    const TABLE: [(Kind, u32); 7] = [
        (Kind::File, 0o100000),
        (Kind::Dir, 0o040000),
        (Kind::Symlink, 0o120000),
        (Kind::Fifo, 0o010000),
        (Kind::Socket, 0o140000),
        (Kind::CharDev, 0o020000),
        (Kind::BlockDev, 0o060000),
    ];

    /// The `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        Self::TABLE.iter().find(|(k, _)| *k == self).map_or(0, |(_, m)| *m)
    }

    /// From the `S_IFMT` bits of `mode`; `None` for a type that Linux does not have.
    pub fn from_mode(mode: u32) -> Option<Kind> {
        Self::TABLE.iter().find(|(_, m)| *m == mode & 0o170000).map(|(k, _)| *k)
    }

    /// The `d_type` of `getdents64` (`DT_REG` and its siblings): the `S_IFMT` bits shifted by 12.
    pub fn dirent_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_through_mode_bits() {
        for (kind, bits) in Kind::TABLE {
            assert_eq!(Kind::from_mode(bits | 0o7777), Some(kind));
            assert_eq!(kind.mode_bits(), bits);
        }
        assert_eq!(Kind::from_mode(0), None);
        assert_eq!(Kind::Dir.dirent_type(), 4);
    }

    #[test]
    fn transaction_ids_print_and_parse() {
        let id = TxnId(0x1f2e);
        assert_eq!(id.to_string(), "00001f2e");
        assert_eq!("1f2e".parse::<TxnId>(), Ok(id));
    }
}
