//! What the certifier of a guarded directory is asked before a commit, and what it answers.
//!
//! One connection is one question. The certifier sends [`READY`], then the daemon one frame with an
//! [`Offer`], then the certifier one with a [`Verdict`]. A frame is its length as four bytes,
//! little endian, and as many bytes. Paths are those below the directory, without a slash at either
//! end; the empty one is the directory itself.

use std::io::{self, Read, Write};
use systx_base::codec::{DecodeError, Decoder, Encoder};
use systx_base::{Kind, Time};

/// The certifier has seen the question: what it says of versions is as of now.
pub const READY: u8 = b'R';

/// Longest frame, bytes.
pub const FRAME_MAX: usize = 32 << 20;

/// A path, see the module.
pub type Path = Vec<u8>;

/// Something that has versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// What a path names, also that it names nothing; and what that is.
    At(Path),
    /// Which names a directory has.
    Names(Path),
}

/// What a name that is placed stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This one of [`Offer::taken`].
    Taken(u32),
    /// A new file, empty.
    File,
    /// A new directory.
    Dir,
    /// A new symbolic link to this.
    Symlink(Vec<u8>),
    /// A new FIFO, socket or device.
    Special {
        /// Which of these.
        kind: Kind,
        /// Of a device its number, as `makedev` makes it.
        rdev: u64,
    },
    /// What has this name as well, when all before it are placed; no directory.
    Link(Path),
}

/// What [`Source::Special`] may be.
const SPECIAL: [Kind; 4] = [Kind::Fifo, Kind::Socket, Kind::CharDev, Kind::BlockDev];

/// A run of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it begins.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its length.
    pub len: u64,
    /// The old content counts below this; all else is zeros but for the runs.
    pub keep: u64,
    /// Ascending.
    pub runs: Vec<Run>,
}

/// What becomes of an object, beside its names; `None`: as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Where it is, when all names are placed.
    pub path: Path,
    /// Permissions.
    pub mode: Option<u32>,
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// Time of the last change of content.
    pub mtime: Option<Time>,
    /// Extended attributes; `None` removes.
    pub xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Its content.
    pub content: Option<Content>,
}

/// A transaction that is to be committed. Everything is done in this order: take, place, remove
/// what was taken and is not placed (with what is below it), set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Its number in the daemon.
    pub txn: u64,
    /// What it has read.
    pub reads: Vec<Key>,
    /// Paths from which objects are taken; what is below another one comes before that.
    pub taken: Vec<Path>,
    /// Names that are given; directories come before what is in them, and further names of what
    /// has one after all else.
    pub placed: Vec<(Path, Source)>,
    /// What objects are then.
    pub set: Vec<Set>,
}

/// What becomes of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is committed, and in its place.
    Committed,
    /// Another one was before it.
    Conflict {
        /// Where.
        path: Path,
        /// By whom.
        words: String,
    },
    /// It cannot be committed, whoever else there is.
    Refused {
        /// Why.
        words: String,
    },
}

impl Offer {
    /// What it changes.
    pub fn writes(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        let named = self.placed.iter().map(|(path, _)| path);
        for path in self.taken.iter().chain(named) {
            keys.push(Key::At(path.clone()));
            keys.push(Key::Names(parent(path).to_vec()));
        }
        let links = self.placed.iter().filter_map(|(_, source)| match source {
            Source::Link(to) => Some(Key::At(to.clone())),
            _ => None,
        });
        keys.extend(links);
        keys.extend(self.set.iter().map(|set| Key::At(set.path.clone())));
        keys.sort();
        keys.dedup();
        keys
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u64(self.txn);
        e.seq(&self.reads, put_key);
        e.seq(&self.taken, |e, path| e.bytes(path));
        e.seq(&self.placed, |e, (path, source)| {
            e.bytes(path);
            put_source(e, source);
        });
        e.seq(&self.set, put_set);
        e.finish()
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: &[u8]) -> Result<Offer, DecodeError> {
        let d = &mut Decoder::new(bytes);
        let offer = Offer {
            txn: d.u64()?,
            reads: d.seq(get_key)?,
            taken: d.seq(|d| Ok(d.bytes()?.to_vec()))?,
            placed: d.seq(|d| Ok((d.bytes()?.to_vec(), get_source(d)?)))?,
            set: d.seq(get_set)?,
        };
        match d.remaining() {
            0 => Ok(offer),
            more => Err(d.invalid("rest", more as u64)),
        }
    }
}

/// The directory of a path; of the empty one, itself.
pub fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(&[], |at| &path[..at])
}

fn put_key(e: &mut Encoder, key: &Key) {
    let (kind, path) = match key {
        Key::At(path) => (0, path),
        Key::Names(path) => (1, path),
    };
    e.u8(kind);
    e.bytes(path);
}

fn get_key(d: &mut Decoder<'_>) -> Result<Key, DecodeError> {
    let kind = d.u8()?;
    let path = d.bytes()?.to_vec();
    match kind {
        0 => Ok(Key::At(path)),
        1 => Ok(Key::Names(path)),
        other => Err(d.invalid("key", other.into())),
    }
}

fn put_source(e: &mut Encoder, source: &Source) {
    match source {
        Source::Taken(n) => {
            e.u8(0);
            e.u32(*n);
        }
        Source::File => e.u8(1),
        Source::Dir => e.u8(2),
        Source::Symlink(target) => {
            e.u8(3);
            e.bytes(target);
        }
        Source::Special { kind, rdev } => {
            e.u8(4);
            e.u32(kind.mode_bits());
            e.u64(*rdev);
        }
        Source::Link(to) => {
            e.u8(5);
            e.bytes(to);
        }
    }
}

fn get_source(d: &mut Decoder<'_>) -> Result<Source, DecodeError> {
    Ok(match d.u8()? {
        0 => Source::Taken(d.u32()?),
        1 => Source::File,
        2 => Source::Dir,
        3 => Source::Symlink(d.bytes()?.to_vec()),
        4 => {
            let (mode, rdev) = (d.u32()?, d.u64()?);
            let kind = Kind::from_mode(mode).filter(|kind| SPECIAL.contains(kind));
            Source::Special { kind: kind.ok_or_else(|| d.invalid("kind", mode.into()))?, rdev }
        }
        5 => Source::Link(d.bytes()?.to_vec()),
        other => return Err(d.invalid("source", other.into())),
    })
}

fn put_set(e: &mut Encoder, set: &Set) {
    e.bytes(&set.path);
    e.option(set.mode, Encoder::u32);
    e.option(set.owner, |e, (uid, gid)| {
        e.u32(uid);
        e.u32(gid);
    });
    e.option(set.mtime, Encoder::time);
    e.seq(&set.xattrs, |e, (key, value)| {
        e.bytes(key);
        e.option(value.as_ref(), |e, value| e.bytes(value));
    });
    e.option(set.content.as_ref(), |e, content| {
        e.u64(content.len);
        e.u64(content.keep);
        e.seq(&content.runs, |e, run| {
            e.u64(run.offset);
            e.bytes(&run.bytes);
        });
    });
}

fn get_set(d: &mut Decoder<'_>) -> Result<Set, DecodeError> {
    Ok(Set {
        path: d.bytes()?.to_vec(),
        mode: d.option(Decoder::u32)?,
        owner: d.option(|d| Ok((d.u32()?, d.u32()?)))?,
        mtime: d.option(Decoder::time)?,
        xattrs: d.seq(|d| {
            let key = d.bytes()?.to_vec();
            Ok((key, d.option(|d| Ok(d.bytes()?.to_vec()))?))
        })?,
        content: d.option(|d| {
            let (len, keep) = (d.u64()?, d.u64()?);
            let run =
                |d: &mut Decoder<'_>| Ok(Run { offset: d.u64()?, bytes: d.bytes()?.to_vec() });
            Ok(Content { len, keep, runs: d.seq(run)? })
        })?,
    })
}

impl Verdict {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        match self {
            Verdict::Committed => e.u8(0),
            Verdict::Conflict { path, words } => {
                e.u8(1);
                e.bytes(path);
                e.bytes(words.as_bytes());
            }
            Verdict::Refused { words } => {
                e.u8(2);
                e.bytes(words.as_bytes());
            }
        }
        e.finish()
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: &[u8]) -> Result<Verdict, DecodeError> {
        let d = &mut Decoder::new(bytes);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match d.u8()? {
            0 => Ok(Verdict::Committed),
            1 => {
                let path = d.bytes()?.to_vec();
                Ok(Verdict::Conflict { path, words: text(d.bytes()?) })
            }
            2 => Ok(Verdict::Refused { words: text(d.bytes()?) }),
            other => Err(d.invalid("verdict", other.into())),
        }
    }
}

/// Sends one frame.
///
/// # Errors
/// It is too long; the other side is gone.
pub fn send(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than a frame may have"));
    }
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut whole = Vec::with_capacity(4 + bytes.len());
    whole.extend_from_slice(&len.to_le_bytes());
    whole.extend_from_slice(bytes);
    to.write_all(&whole)
}

/// Receives one frame.
///
/// # Errors
/// It is too long; the other side is gone.
pub fn receive(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more than a frame may have"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let content = Content {
            len: 9000,
            keep: 4096,
            runs: vec![Run { offset: 4096, bytes: b"page".to_vec() }],
        };
        Offer {
            txn: 7,
            reads: vec![Key::At(b"a".to_vec()), Key::Names(b"".to_vec())],
            taken: vec![b"d/x".to_vec(), b"d".to_vec()],
            placed: vec![
                (b"e".to_vec(), Source::Taken(1)),
                (b"e/l".to_vec(), Source::Symlink(b"there".to_vec())),
                (b"f".to_vec(), Source::File),
                (b"g".to_vec(), Source::Dir),
                (b"g/n".to_vec(), Source::Special { kind: Kind::CharDev, rdev: 0x103 }),
                (b"h".to_vec(), Source::Link(b"f".to_vec())),
            ],
            set: vec![Set {
                path: b"f".to_vec(),
                mode: Some(0o644),
                owner: Some((1, 2)),
                mtime: Some(Time { secs: 3, nanos: 4 }),
                xattrs: vec![(b"user.a".to_vec(), Some(b"b".to_vec())), (b"user.c".to_vec(), None)],
                content: Some(content),
            }],
        }
    }

    #[test]
    fn what_is_asked_and_answered_arrives() {
        let sent = offer();
        assert_eq!(Offer::decode(&sent.encode()), Ok(sent.clone()));
        for verdict in [
            Verdict::Committed,
            Verdict::Conflict { path: b"p".to_vec(), words: "w".into() },
            Verdict::Refused { words: "no".into() },
        ] {
            assert_eq!(Verdict::decode(&verdict.encode()), Ok(verdict));
        }
        let whole = sent.encode();
        for end in 0..whole.len() {
            assert!(Offer::decode(&whole[..end]).is_err(), "{end} bytes of it");
        }
        let mut wire = Vec::new();
        send(&mut wire, b"frame").unwrap();
        assert_eq!(receive(&mut &wire[..]).unwrap(), b"frame");
        assert!(receive(&mut &wire[..6]).is_err());
    }

    #[test]
    fn an_offer_writes_its_names_and_those_of_their_directories() {
        let at = |path: &[u8]| Key::At(path.to_vec());
        let names = |path: &[u8]| Key::Names(path.to_vec());
        let mut want = vec![at(b"d"), at(b"d/x"), at(b"e"), at(b"e/l"), at(b"f"), at(b"g")];
        want.extend([at(b"g/n"), at(b"h"), names(b""), names(b"d"), names(b"e"), names(b"g")]);
        assert_eq!(offer().writes(), want);
        // What gets another name is not as it was, either.
        let placed = vec![(b"h".to_vec(), Source::Link(b"d/x".to_vec()))];
        let links = Offer { placed, ..Offer::default() };
        assert_eq!(links.writes(), [at(b"d/x"), at(b"h"), names(b"")]);
    }

    #[test]
    fn what_is_called_special_is_no_file_that_has_a_source_of_its_own() {
        let special = |kind| Source::Special { kind, rdev: 0 };
        for kind in [Kind::File, Kind::Dir, Kind::Symlink] {
            let placed = vec![(b"a".to_vec(), special(kind))];
            assert!(Offer::decode(&Offer { placed, ..Offer::default() }.encode()).is_err());
        }
    }
}
