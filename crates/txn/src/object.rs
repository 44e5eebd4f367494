//! What conflicts are about: the objects of a volume as the conflict table knows them, and the
//! record of one conflict.
//!
//! Objects are versioned separately so that unrelated work does not conflict: a name in a
//! directory, the listing of a directory, the attributes of an inode, its size, and its content in
//! pages of [`PAGE`] bytes. Which call reads and which writes what is decided by the caller
//! (docs/SEMANTICS.md); the table knows one relation only: writing an entry also writes the list of
//! its directory, in the sense of TxOS (SOSP'09, Table 3): entry writers do not disturb each other,
//! but they disturb whoever listed the directory.

use systx_base::{Oid, TxnId};

/// Bytes in a page of [`Object::Pages`].
pub const PAGE: u64 = 4096;

/// A thing that transactions read and write.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Object {
    /// A name in a directory, whether something has that name or not.
    Entry {
        /// The directory.
        dir: Oid,
        /// The name.
        name: Box<[u8]>,
    },
    /// The set of names in a directory.
    List(Oid),
    /// Mode, owner, extended attributes, explicit times.
    Attr(Oid),
    /// Length of the content.
    Size(Oid),
    /// A run of pages of the content, both ends included.
    Pages {
        /// The file.
        oid: Oid,
        /// First page.
        first: u64,
        /// Last page; `u64::MAX` for "to the end, wherever that is".
        last: u64,
    },
}

/// [`Object`] borrowed, so that an access does not allocate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ObjectRef<'a> {
    /// See [`Object::Entry`].
    Entry {
        /// The directory.
        dir: Oid,
        /// The name.
        name: &'a [u8],
    },
    /// See [`Object::List`].
    List(Oid),
    /// See [`Object::Attr`].
    Attr(Oid),
    /// See [`Object::Size`].
    Size(Oid),
    /// See [`Object::Pages`].
    Pages {
        /// The file.
        oid: Oid,
        /// First page.
        first: u64,
        /// Last page, included.
        last: u64,
    },
}

impl Object {
    /// Borrows.
    pub fn as_ref(&self) -> ObjectRef<'_> {
        match self {
            Object::Entry { dir, name } => ObjectRef::Entry { dir: *dir, name },
            Object::List(oid) => ObjectRef::List(*oid),
            Object::Attr(oid) => ObjectRef::Attr(*oid),
            Object::Size(oid) => ObjectRef::Size(*oid),
            Object::Pages { oid, first, last } => {
                ObjectRef::Pages { oid: *oid, first: *first, last: *last }
            }
        }
    }

    /// The inode that the object belongs to; of an entry, the directory.
    pub fn oid(&self) -> Oid {
        self.as_ref().oid()
    }
}

impl<'a> ObjectRef<'a> {
    /// A copy that owns its name.
    pub fn to_object(self) -> Object {
        match self {
            ObjectRef::Entry { dir, name } => Object::Entry { dir, name: name.into() },
            ObjectRef::List(oid) => Object::List(oid),
            ObjectRef::Attr(oid) => Object::Attr(oid),
            ObjectRef::Size(oid) => Object::Size(oid),
            ObjectRef::Pages { oid, first, last } => Object::Pages { oid, first, last },
        }
    }

    /// The pages that hold bytes `offset..offset + len`; `None` if there are none.
    pub fn bytes(oid: Oid, offset: u64, len: u64) -> Option<ObjectRef<'static>> {
        (len > 0).then(|| ObjectRef::bytes_at(oid, offset, len))
    }

    /// The pages that hold bytes `offset..offset + len`, and in any case the one of `offset`.
    pub fn bytes_at(oid: Oid, offset: u64, len: u64) -> ObjectRef<'static> {
        let last = offset.saturating_add(len.saturating_sub(1));
        ObjectRef::Pages { oid, first: offset / PAGE, last: last / PAGE }
    }

    /// All pages from the one that holds byte `offset`, without end.
    pub fn bytes_from(oid: Oid, offset: u64) -> ObjectRef<'static> {
        ObjectRef::Pages { oid, first: offset / PAGE, last: u64::MAX }
    }

    /// The inode that the object belongs to; of an entry, the directory.
    pub fn oid(self) -> Oid {
        match self {
            ObjectRef::Entry { dir: oid, .. }
            | ObjectRef::List(oid)
            | ObjectRef::Attr(oid)
            | ObjectRef::Size(oid)
            | ObjectRef::Pages { oid, .. } => oid,
        }
    }
}

/// How an object was touched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// Read.
    Read,
    /// Written (and perhaps read).
    Write,
}

/// A program outside every transaction, as its losers are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Caller {
    /// Its process; 0 if the kernel did not say, as for pages that it writes back.
    pub pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// Its command as in `/proc/PID/comm`, filled up with zeros; all zeros if nobody looked.
    pub comm: [u8; 16],
}

impl Caller {
    /// Longer commands are cut, as the kernel does.
    pub fn new(pid: u32, uid: u32, comm: &[u8]) -> Caller {
        let mut caller = Caller { pid, uid, ..Caller::default() };
        let len = comm.len().min(caller.comm.len());
        caller.comm[..len].copy_from_slice(&comm[..len]);
        caller
    }

    /// The command without the zeros.
    pub fn command(&self) -> &[u8] {
        let len = self.comm.iter().position(|b| *b == 0).unwrap_or(self.comm.len());
        &self.comm[..len]
    }
}

/// With whom a transaction conflicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Opponent {
    /// Another transaction.
    Txn(TxnId),
    /// A program outside every transaction, whose change was found afterwards.
    Outside,
    /// A program outside every transaction, whose request came through the daemon.
    Plain(Caller),
    /// Nobody: a test wants it to lose, see [`crate::Inject`].
    Injected,
}

/// A lost conflict, as the loser is told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Conflict {
    /// What both touched. Where one listed a directory and the other changed a name in it, the name
    /// if it is known, else the list.
    pub object: Object,
    /// The winner.
    pub opponent: Opponent,
    /// What the loser had done to the object, or was about to do.
    pub mine: Side,
    /// What the winner had done to it, or was about to do.
    pub theirs: Side,
}
