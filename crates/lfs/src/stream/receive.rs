//! The receiving side: a stream becomes one transaction, of which the snapshot is the commit.

use super::diff;
use super::{Frame, Receiver, StreamHeader};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::format::{BLOCK, Ino, ROOT};
use crate::object::Node;
use crate::ops::Ops;
use crate::recovery::read_root;
use crate::snapshots;
use crate::state::State;
use crate::tree::Tree;
use crate::txn::{Patch, Staged, Txn};
use crate::volume::Volume;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use systx_base::Kind;

/// What a stream wants of the objects, known only at its end.
#[derive(Default)]
struct Wanted {
    nodes: BTreeMap<Ino, Node>,
    gone: BTreeSet<Ino>,
}

/// Applies a stream to a volume: a whole one to an empty volume, a difference to one that is as the
/// snapshot is which the difference starts from.  Afterwards the volume has the snapshot.
///
/// # Errors
/// [`Error::Corrupt`] if the stream is damaged or not whole, [`Error::Exists`] if there is a
/// snapshot of its name, [`Error::NotFound`] if the one that it starts from is not there,
/// [`Error::Busy`] if the volume has changed since that, or while it is received;
/// [`Error::NoSpace`].  Nothing has changed then.  [`Error::Io`], also of `input`.
pub fn receive(volume: &Volume, input: &mut dyn Read) -> Result<StreamHeader> {
    let mut receiver = Receiver { input, chain: 0, frames: 0 };
    let first = receiver.frame()?;
    let header = StreamHeader::decode(&first).map_err(|e| receiver.damaged(e.to_string()))?;
    let begun = volume.with_state(|state| base(state, &header))?;
    let mut txn = Txn::new();
    let mut wanted = Wanted::default();
    loop {
        let before = receiver.frames;
        let payload = receiver.frame()?;
        match Frame::decode(&payload).map_err(|e| receiver.damaged(e.to_string()))? {
            Frame::End(frames) if frames == before => break,
            Frame::End(_) => return Err(receiver.damaged("frames are missing")),
            Frame::Entries(entries, blocks) => volume.within(&mut txn, |ops| {
                let mut blocks = blocks.chunks_exact(BLOCK);
                entries.iter().try_for_each(|e| stage(ops, e, &mut blocks, &mut wanted))
            }),
        }
        .map_err(|e| explained(&receiver, e))?;
    }
    receiver.end()?;
    volume.within(&mut txn, |ops| finish(ops, &wanted)).map_err(|e| explained(&receiver, e))?;
    volume.install(txn, |state, txn| {
        if state.flow.applied != begun {
            return Err(Error::Unfit("the volume changed while it received".into()));
        }
        // What is applied is not taken back.  The snapshot keeps whole segments.
        let private =
            u64::from(state.tree.env.geometry.segment_blocks) * txn.private_segments() as u64;
        let need = state.need(txn)?.blocks + private;
        snapshots::check(state, &header.name, need)?;
        state.apply(txn)?;
        let origin = (header.id, header.sequence);
        snapshots::take(state, &header.name, Some((origin, header.time)))
    })?;
    Ok(header)
}

/// What is not there although the stream speaks of it is damage to the stream.
fn explained(receiver: &Receiver<'_>, e: Error) -> Error {
    match e {
        Error::NotFound | Error::NotDir | Error::IsDir | Error::Invalid(_) => {
            receiver.damaged(format!("it does not fit the volume: {e}"))
        }
        e => e,
    }
}

/// Whether the volume is what the stream starts from.  Returns how far its commits are.
fn base(state: &mut State, header: &StreamHeader) -> Result<u64> {
    snapshots::check_name(state, &header.name)?;
    let Some(since) = header.since else {
        let empty = state.tree.get(ROOT)?.entries().is_some_and(BTreeMap::is_empty);
        return if empty {
            Ok(state.flow.applied)
        } else {
            Err(Error::Unfit("the volume is not empty".into()))
        };
    };
    let id = state.tree.env.id;
    let is_base =
        |s: &&crate::root::Snapshot| s.origin.unwrap_or((id, s.sequence)) == (header.id, since);
    let snapshot = state.kept.snapshots.iter().find(is_base).ok_or(Error::NotFound)?;
    let root = read_root(&state.tree.env, &snapshot.root)?;
    let name = snapshot.name.clone();
    crate::checkpoint::write(state)?;
    let mut then = Tree::new(state.tree.env.clone(), root.chunks);
    let mut now = Tree::new(state.tree.env.clone(), state.tree.chunks.clone());
    diff::difference(Some(&mut then), &mut now, &mut |_, _| {
        Err(Error::Unfit(format!("the volume has changed since snapshot {name:?}")))
    })?;
    Ok(state.flow.applied)
}

fn stage<'a>(
    ops: &mut Ops<'_>,
    entry: &Entry,
    blocks: &mut impl Iterator<Item = &'a [u8]>,
    wanted: &mut Wanted,
) -> Result<()> {
    match entry {
        Entry::Node(ino, node) => {
            let known = match ops.node(*ino) {
                Ok(known) => Some(known.attrs.kind),
                Err(Error::NotFound) => None,
                Err(e) => return Err(e),
            };
            if known.is_some_and(|kind| kind != node.attrs.kind) {
                return Err(Error::Invalid("an object that changes its type"));
            }
            if known.is_none() {
                let mut new = node.clone();
                new.attrs.nlink = 0;
                ops.adopt(*ino, new)?;
            }
            wanted.nodes.insert(*ino, node.clone());
            Ok(())
        }
        Entry::Gone(ino) => {
            wanted.gone.insert(*ino);
            Ok(())
        }
        Entry::Bind(dir, name, link) => {
            if let Some(link) = link
                && ops.attrs(link.ino)?.kind != link.kind
            {
                return Err(Error::Invalid("a name of another type"));
            }
            ops.bind(*dir, name, *link)
        }
        Entry::Data(ino, page, n) => {
            for page in *page..*page + u64::from(*n) {
                let block = blocks.next().ok_or(Error::Invalid("blocks are missing"))?;
                ops.put_page(*ino, page, Staged::Memory(block.into()))?;
            }
            Ok(())
        }
        Entry::Hole(ino, page, n) => {
            (*page..*page + u64::from(*n)).try_for_each(|p| ops.put_page(*ino, p, Staged::Hole))
        }
        _ => Err(Error::Invalid("an entry that is not for streams")),
    }
}

/// Attributes last: names have changed times on the way.  Then the counts have to be right.
fn finish(ops: &mut Ops<'_>, wanted: &Wanted) -> Result<()> {
    for (ino, node) in &wanted.nodes {
        let now = ops.node(*ino)?;
        if now.attrs.nlink != node.attrs.nlink {
            return Err(Error::Invalid("a wrong number of names"));
        }
        let a = &node.attrs;
        let gone = now.xattrs.keys().filter(|name| !node.xattrs.contains_key(*name));
        let mut xattrs: BTreeMap<_, _> = gone.map(|name| (name.clone(), None)).collect();
        xattrs.extend(node.xattrs.iter().map(|(n, v)| (n.clone(), Some(v.clone()))));
        *ops.txn.patch(*ino) = Patch {
            mode: Some(a.mode),
            uid: Some(a.uid),
            gid: Some(a.gid),
            size: (a.kind == Kind::File).then_some(a.size),
            atime: Some(a.atime),
            mtime: Some(a.mtime),
            ctime: Some(a.ctime),
            parent: (a.kind == Kind::Dir).then_some(node.parent),
            xattrs,
        };
    }
    for ino in &wanted.gone {
        match ops.node(*ino) {
            Ok(node) if node.attrs.nlink > 0 => {
                return Err(Error::Invalid("an object that should have no name"));
            }
            _ => {}
        }
    }
    Ok(())
}
