//! Checks a volume without changing it: every structure, every sum, and that they agree.
//!
//! What is found has a name.  Nothing is mended: a volume of which one copy of something is
//! damaged mends itself when it is opened, and the rest cannot be known.

#[cfg(test)]
mod tests;
mod tree;

use self::tree::Owners;
use crate::device::{self, Device};
use crate::error::{Error, Result, Structure};
use crate::format::{BLOCK, COPIES, Head, Ino, Super};
use crate::piece::{self, Header, Piece, Purpose};
use crate::recovery::{
    environment, is_later, prove, read_checkpoints, read_root, recover_unproven,
};
use crate::state::State;
use crate::superblock::read_super;
use crate::tree::{Clock, Env, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Finding {
    /// A structure is not what was written.
    Damaged {
        /// Which.
        what: Structure,
        /// Its first block.
        at: u64,
        /// What is wrong.
        why: String,
    },
    /// The device does not give back a block that belongs to something.
    Unreadable {
        /// The block.
        at: u64,
    },
    /// The log has a later commit behind its end: something before that is lost.
    LogBroken {
        /// Block of the later piece.
        at: u64,
    },
    /// Commits of a later opening than the last checkpoint knows of.
    CheckpointLost {
        /// Block of one.
        at: u64,
    },
    /// A number of names is wrong.
    LinkCount {
        /// The object.
        ino: Ino,
        /// What it says.
        says: u32,
        /// What was counted.
        counted: u32,
    },
    /// A name of an object that is not there.
    Dangling {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// A name of an object of which nothing is known, since that cannot be read.
    Unknown {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// A name that says another type than the object.
    WrongType {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// An object that no name leads to.
    Unreachable(Ino),
    /// A directory that is in another one than it says, or in two.
    WrongParent(Ino),
    /// A page beyond the end of a file.
    BeyondEnd {
        /// The file.
        ino: Ino,
        /// The page.
        page: u64,
    },
    /// Two things lie in one block.
    Shared {
        /// The block.
        at: u64,
    },
    /// A segment has another number of blocks in use than the usage table says.
    WrongUsage {
        /// The segment.
        segment: u32,
        /// What the table says.
        says: u32,
        /// What was counted.
        counted: u32,
    },
    /// A file has pages in a segment of which no summary says so, and is none of those that are
    /// listed: the cleaner cannot empty the segment.
    Unlisted {
        /// The file.
        ino: Ino,
        /// The segment.
        segment: u32,
    },
    /// A snapshot refers to a segment that is not kept for it.
    NotKept {
        /// The snapshot.
        snapshot: String,
        /// The block.
        at: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        match self {
            Finding::Damaged { what, at, why } => write!(f, "{what:?} at block {at}: {why}"),
            Finding::Unreadable { at } => write!(f, "block {at} cannot be read"),
            Finding::LogBroken { at } => {
                write!(f, "the log ends before a commit at block {at}: what is between is lost")
            }
            Finding::CheckpointLost { at } => {
                write!(f, "block {at} has a commit that is newer than the last checkpoint")
            }
            Finding::LinkCount { ino, says, counted } => {
                write!(f, "inode {ino} says that it has {says} names, and has {counted}")
            }
            Finding::Dangling { dir, name } => {
                write!(f, "inode {dir}: {:?} is the name of nothing", shown(name))
            }
            Finding::Unknown { dir, name } => {
                write!(f, "inode {dir}: what {:?} is cannot be read", shown(name))
            }
            Finding::WrongType { dir, name } => {
                write!(f, "inode {dir}: {:?} is of another type than its entry says", shown(name))
            }
            Finding::Unreachable(ino) => write!(f, "inode {ino} has no name"),
            Finding::WrongParent(ino) => write!(f, "directory {ino} is not where it says"),
            Finding::BeyondEnd { ino, page } => {
                write!(f, "inode {ino}: page {page} lies beyond the end")
            }
            Finding::Shared { at } => write!(f, "block {at} belongs to two"),
            Finding::WrongUsage { segment, says, counted } => {
                write!(f, "segment {segment}: {counted} blocks are in use, not {says}")
            }
            Finding::Unlisted { ino, segment } => write!(
                f,
                "inode {ino} has pages in segment {segment} of which only its record knows: the \
                 segment is not freed before they are written again"
            ),
            Finding::NotKept { snapshot, at } => {
                write!(f, "snapshot {snapshot:?}: block {at} is not kept for it")
            }
        }
    }
}

/// What a check has found, and what it has looked at.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Check {
    /// What is wrong, in order.
    pub findings: Vec<Finding>,
    /// The blocks of metadata and what they are.
    pub metadata: BTreeMap<u64, Structure>,
    /// Objects of the tree and of snapshots.
    pub objects: u64,
    /// Pages of files, of the tree and of snapshots.
    pub pages: u64,
}

/// Checks a volume that nobody has open.
///
/// # Errors
/// [`Error::NotAVolume`] if it is none, [`Error::Io`] if the device cannot be read.  All damage
/// is a finding.
pub fn check(dev: Arc<dyn Device>, clock: Clock) -> Result<Check> {
    let mut check = Check::default();
    check.supers(&*dev)?;
    let recovered = environment(dev, clock).and_then(|(env, sup)| {
        if let Err(e) = prove(&env) {
            check.note(e)?;
        }
        recover_unproven(env, sup)
    });
    let state = match recovered {
        Ok((state, ..)) => Some(state),
        Err(e) => {
            check.note(e)?;
            None
        }
    };
    if let Some(mut state) = state {
        check.checkpoints(&state);
        check.blobs(&state);
        check.trees(&mut state)?;
        check.log(&state)?;
    }
    check.findings.sort();
    check.findings.dedup();
    Ok(check)
}

impl Check {
    fn damaged(&mut self, what: Structure, at: u64, why: impl Into<String>) {
        self.findings.push(Finding::Damaged { what, at, why: why.into() });
    }

    /// Notes an error that is damage; others end the check.
    fn note(&mut self, e: Error) -> Result<()> {
        match e {
            Error::Corrupt { what, at, why } => {
                self.findings.push(Finding::Damaged { what, at, why });
                Ok(())
            }
            Error::Unread { at, .. } => {
                self.findings.push(Finding::Unreadable { at });
                Ok(())
            }
            e => Err(e),
        }
    }

    /// What stands at a place of a segment, and notes what cannot be read.
    fn piece(&mut self, env: &Env, segment: u32, offset: u32) -> Result<Option<Piece>> {
        match piece::read(&*env.dev, &env.geometry, &env.id, segment, offset) {
            Ok(found) => Ok(found),
            Err(e) => self.note(e).map(|()| None),
        }
    }

    fn supers(&mut self, dev: &dyn Device) -> Result<()> {
        if dev.blocks() == 0 {
            return Err(Error::NotAVolume("no blocks"));
        }
        // The device may be larger than the volume.
        let last = read_super(dev).map_or(dev.blocks(), |sup| sup.blocks).saturating_sub(1);
        let mut found = Vec::new();
        for (at, what) in [(0, Structure::Super), (last, Structure::SuperCopy)] {
            let mut block = vec![0; BLOCK];
            let read = device::read(dev, at, &mut block);
            self.metadata.insert(at, what);
            found.push((at, what, read.and_then(|()| Super::decode(&block, what, at))));
        }
        // A device of which neither is one is no volume.
        if found.iter().all(|(_, _, s)| matches!(s, Err(Error::NotAVolume(_)))) {
            return Err(Error::NotAVolume("no super block"));
        }
        let mut right: Option<Super> = None;
        for (at, what, sup) in found {
            match (sup, &right) {
                (Ok(sup), Some(right)) if sup != *right => {
                    self.damaged(what, at, "it is not like the other one");
                }
                (Ok(sup), _) => right = Some(sup),
                (Err(e), _) => self.damaged(what, at, e.to_string()),
            }
        }
        Ok(())
    }

    /// Of a region one copy is always whole, also after a power cut; the second may be the older
    /// one.  In format 1 a region was empty until the volume was first opened.
    fn checkpoints(&mut self, state: &State) {
        let copies = read_checkpoints(&state.tree.env);
        for (region, pair) in copies.chunks(COPIES as usize).enumerate() {
            let first = 1 + region as u64 * COPIES;
            let sequences = pair.iter().filter_map(|c| Some(c.as_ref().ok()?.sequence));
            let newest = sequences.max();
            let is_empty = newest.is_none() && state.last.sequence == 1;
            for (at, copy) in (first..).zip(pair) {
                self.metadata.insert(at, Structure::Checkpoint);
                match copy {
                    Ok(c) if Some(c.sequence) == newest => {}
                    Ok(c) if at > first && Some(c.sequence + 2) == newest => {}
                    Ok(_) => self.damaged(Structure::Checkpoint, at, "older than its copy"),
                    Err(_) if is_empty => {}
                    Err(Error::Corrupt { why, .. }) => {
                        self.damaged(Structure::Checkpoint, at, why.clone());
                    }
                    Err(e) => self.damaged(Structure::Checkpoint, at, e.to_string()),
                }
            }
        }
    }

    fn blobs(&mut self, state: &State) {
        let (root, usage) = (&state.last.root, &state.last.usage);
        for (blob, what) in [(root, Structure::Root), (usage, Structure::Usage)] {
            self.blob(blob, what);
        }
    }

    fn blob(&mut self, blob: &crate::format::Blob, what: Structure) {
        let blocks = blob.runs.iter().flat_map(|(at, n)| *at..*at + u64::from(*n));
        self.metadata.extend(blocks.map(|at| (at, what)));
    }

    /// The committed tree and those of the snapshots, and what of the segments they use.
    fn trees(&mut self, state: &mut State) -> Result<()> {
        let mut owners = Owners::default();
        tree::walk(self, &mut state.tree, &mut owners)?;
        for blob in [&state.last.root, &state.last.usage] {
            let blocks = blob.runs.iter().flat_map(|(at, n)| *at..*at + u64::from(*n));
            tree::own(self, &mut owners, blocks);
        }
        self.usage(state, &owners);
        self.summaries(state, &owners)?;
        for snapshot in state.kept.snapshots.clone() {
            let root = match read_root(&state.tree.env, &snapshot.root) {
                Ok(root) => root,
                Err(e) => {
                    self.note(e)?;
                    continue;
                }
            };
            self.blob(&snapshot.root, Structure::Root);
            let mut kept = Tree::new(state.tree.env.clone(), root.chunks);
            let mut owners = Owners::default();
            tree::walk(self, &mut kept, &mut owners)?;
            for at in owners.blocks() {
                let segment = state.tree.env.geometry.locate(at).map(|(segment, _)| segment);
                if !segment.is_some_and(|s| snapshot.pins.contains(&s)) {
                    let snapshot = snapshot.name.clone();
                    self.findings.push(Finding::NotKept { snapshot, at });
                }
            }
        }
        Ok(())
    }

    fn usage(&mut self, state: &State, owners: &Owners) {
        let geometry = &state.tree.env.geometry;
        for segment in 0..geometry.segments {
            let first = geometry.first(segment);
            let counted = owners.count(first..first + u64::from(geometry.segment_blocks));
            let (says, counted) = (state.usage.segment(segment).live, counted as u32);
            if says != counted {
                self.findings.push(Finding::WrongUsage { segment, says, counted });
            }
        }
    }

    /// What is in use is spoken of by a summary, which the cleaner needs; it asks those that are
    /// listed for what has gone to another file.
    fn summaries(&mut self, state: &State, owners: &Owners) -> Result<()> {
        let env = &state.tree.env;
        for segment in 0..env.geometry.segments {
            let first = env.geometry.first(segment);
            let within = first..first + u64::from(env.geometry.segment_blocks);
            let Some(last) = owners.last(within) else { continue };
            let (mut at, mut named) = (first, BTreeSet::new());
            while at <= last {
                let offset = (at - first) as u32;
                let Some(piece) = self.piece(env, segment, offset)? else {
                    self.damaged(Structure::Summary, at, "no summary for blocks that are in use");
                    break;
                };
                let blocks = at..at + u64::from(piece.summary);
                self.metadata.extend(blocks.map(|at| (at, Structure::Summary)));
                tree::name(&piece, at, &mut named);
                at += u64::from(piece.blocks());
            }
            for (block, ino, page) in owners.pages(first..at) {
                if !named.contains(&(block, ino, page)) && !state.tree.strays.has(ino) {
                    self.findings.push(Finding::Unlisted { ino, segment });
                }
            }
        }
        Ok(())
    }

    /// Commits that recovery did not come to: the end of the log is not where it seems.
    fn log(&mut self, state: &State) -> Result<()> {
        let (env, head) = (&state.tree.env, &state.head);
        // What ends the log may be that its next piece cannot be read.
        for (segment, offset) in [(head.segment, head.offset), (head.next, 0)] {
            if let Some(next) = self.piece(env, segment, offset)?
                && let Err(e @ Error::Unread { .. }) =
                    piece::verify_payload(&*env.dev, &env.geometry, &next)
            {
                self.note(e)?;
            }
        }
        for segment in 0..env.geometry.segments {
            let mut offset = 0;
            while offset < env.geometry.segment_blocks {
                match self.piece(env, segment, offset)? {
                    Some(piece) => {
                        let at = env.geometry.first(segment) + u64::from(offset);
                        self.beyond(head, &piece.header, at);
                        offset += piece.blocks();
                    }
                    // In the last segment there may be pieces behind one that is damaged.
                    None if segment == head.segment => offset += 1,
                    None => break,
                }
            }
        }
        Ok(())
    }

    fn beyond(&mut self, head: &Head, h: &Header, at: u64) {
        if is_later(head, h) {
            self.findings.push(Finding::LogBroken { at });
        } else if h.purpose == Purpose::Commit && h.begin && h.epoch > head.epoch {
            self.findings.push(Finding::CheckpointLost { at });
        }
    }
}
