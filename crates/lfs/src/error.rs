//! What can go wrong, as facts that a caller can react to.

use crate::format::Ino;
use rustix::io::Errno;
use systx_base::codec::DecodeError;
use thiserror::Error;

/// A structure of the volume, as messages and `fsck` name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Structure {
    /// The super block in the first block.
    Super,
    /// Its copy in the last block.
    SuperCopy,
    /// A checkpoint region.
    Checkpoint,
    /// The root record that a checkpoint names.
    Root,
    /// The usage table that a checkpoint names.
    Usage,
    /// A chunk of the inode map.
    Chunk,
    /// An object's record outside of its chunk.
    Record,
    /// The summary of a piece of a segment.
    Summary,
    /// A block of a file.
    Data,
    /// A stream of `send`.
    Stream,
}

/// Why an operation on a volume failed.  Unless a variant says otherwise nothing has changed.
#[derive(Debug, Error)]
pub enum Error {
    /// No object, name or attribute like this.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("the name exists already")]
    Exists,
    /// A directory is needed.
    #[error("not a directory")]
    NotDir,
    /// A directory cannot be used like this.
    #[error("it is a directory")]
    IsDir,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name longer than 255 bytes, a target longer than 4095.
    #[error("the name is too long")]
    NameTooLong,
    /// An argument that makes no sense here.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// Beyond what a file or its attributes may have.
    #[error("too large")]
    TooLarge,
    /// The object has no extended attribute of this name.
    #[error("no such attribute")]
    NoAttr,
    /// No space that may be given away.  Only said before anything was decided.
    #[error("no space left on the volume")]
    NoSpace,
    /// A snapshot, or a volume opened for reading.
    #[error("read-only")]
    ReadOnly,
    /// Another commit changed this name after the transaction had looked at it.  The
    /// transaction is gone.
    #[error("inode {dir}: {}: changed by another commit", String::from_utf8_lossy(name))]
    Conflict {
        /// The directory.
        dir: Ino,
        /// The name in it.
        name: Vec<u8>,
    },
    /// Another commit removed an object that the transaction changes.  The transaction is gone.
    #[error("inode {0}: removed by another commit")]
    Removed(Ino),
    /// Somebody still uses it.
    #[error("{0} is in use")]
    Busy(String),
    /// What is to be sent begins with a snapshot that is not the earlier one.
    #[error("snapshot {since:?} is not from before {name:?}")]
    NotEarlier {
        /// The one to start from.
        since: String,
        /// The one to be sent.
        name: String,
    },
    /// A stream is not for the volume as it is.
    #[error("{0}")]
    Unfit(String),
    /// What a moment had kept was needed: see [`crate::Moment`].
    #[error("the moment is given up: others needed the room of what was kept for it")]
    GivenUp,
    /// No super block of this format.
    #[error("not a volume of this format: {0}")]
    NotAVolume(&'static str),
    /// Bytes of the medium are not what was written.
    #[error("damaged {what:?} at block {at}: {why}")]
    Corrupt {
        /// What lies there.
        what: Structure,
        /// Block of the device.
        at: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The device does not give back what was written.
    #[error("block {at} cannot be read: {source}")]
    Unread {
        /// Block of the device.
        at: u64,
        /// What the device says.
        source: std::io::Error,
    },
    /// The device failed.  For a commit: the outcome is unknown until the volume is opened again.
    #[error("the device failed: {0}")]
    Io(#[from] std::io::Error),
    /// An earlier write failed: reads go on, writes do not.  Opening the volume again recovers it.
    #[error("an earlier write failed; open the volume again to recover it")]
    Poisoned,
}

impl Error {
    /// Damage at a block.
    pub(crate) fn corrupt(what: Structure, at: u64, why: impl Into<String>) -> Error {
        Error::Corrupt { what, at, why: why.into() }
    }

    /// Bytes that do not decode.
    pub(crate) fn undecodable(what: Structure, at: u64) -> impl Fn(DecodeError) -> Error {
        move |e| Error::corrupt(what, at, e.to_string())
    }

    /// Whether something of the volume is not what was written, or cannot be read.  The rest is as
    /// it was.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Corrupt { .. } | Error::Unread { .. })
    }

    /// What a system call would answer.
    pub fn errno(&self) -> Errno {
        match self {
            Error::NotFound => Errno::NOENT,
            Error::Exists => Errno::EXIST,
            Error::NotDir => Errno::NOTDIR,
            Error::IsDir => Errno::ISDIR,
            Error::NotEmpty => Errno::NOTEMPTY,
            Error::NameTooLong => Errno::NAMETOOLONG,
            Error::Invalid(_) | Error::Unfit(_) | Error::NotAVolume(_) => Errno::INVAL,
            Error::NotEarlier { .. } => Errno::INVAL,
            Error::TooLarge => Errno::FBIG,
            Error::NoAttr => Errno::NODATA,
            Error::NoSpace => Errno::NOSPC,
            Error::ReadOnly => Errno::ROFS,
            Error::Conflict { .. } | Error::Removed(_) | Error::GivenUp => Errno::CANCELED,
            Error::Busy(_) => Errno::BUSY,
            Error::Corrupt { .. } | Error::Poisoned => Errno::IO,
            Error::Io(e) | Error::Unread { source: e, .. } => {
                Errno::from_io_error(e).unwrap_or(Errno::IO)
            }
        }
    }
}

/// The result of most operations.
pub type Result<T> = std::result::Result<T, Error>;
