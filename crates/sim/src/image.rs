//! A file system as bytes, to be kept: the golden images of stores that earlier versions have made.

use crate::state::{Body, Inode, Meta, PAGE, Page, State};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systx_base::Kind;
use systx_base::codec::{DecodeError, Decoder, Encoder};

const MAGIC: u32 = u32::from_le_bytes(*b"SIM1");

/// The bytes of a coherent state.
pub fn write(state: &State) -> Vec<u8> {
    let mut e = Encoder::new();
    e.u32(MAGIC);
    let inodes: Vec<_> = state.inodes.iter().collect();
    e.seq(&inodes, |e, (ino, inode)| {
        e.u64(**ino);
        put(e, inode);
    });
    e.finish()
}

/// The state that [`write()`] has written.
///
/// # Errors
/// It was something else.
pub fn read(bytes: &[u8]) -> Result<State, DecodeError> {
    let mut d = Decoder::new(bytes);
    let magic = d.u32()?;
    if magic != MAGIC {
        return Err(d.invalid("image", magic.into()));
    }
    let inodes = d.seq(|d| Ok((d.u64()?, Arc::new(get(d)?))))?;
    Ok(State { inodes: inodes.into_iter().collect() })
}

fn put(e: &mut Encoder, inode: &Inode) {
    let Meta { mode, uid, gid, size, atime, mtime, ctime } = inode.meta;
    e.u32(inode.kind.mode_bits());
    e.time(inode.btime);
    e.u32(inode.nlink);
    [mode, uid, gid].into_iter().for_each(|n| e.u32(n));
    e.u64(size);
    [atime, mtime, ctime].into_iter().for_each(|t| e.time(t));
    let xattrs: Vec<_> = inode.xattrs.iter().collect();
    e.seq(&xattrs, |e, (key, value)| {
        e.bytes(key);
        e.bytes(value);
    });
    match &inode.body {
        Body::File { pages, reserved } => {
            let pages: Vec<_> = pages.iter().collect();
            e.seq(&pages, |e, (n, page)| {
                e.u64(**n);
                put_page(e, page);
            });
            e.seq(&reserved.iter().collect::<Vec<_>>(), |e, n| e.u64(**n));
        }
        Body::Dir { entries, parent } => {
            e.u64(*parent);
            let entries: Vec<_> = entries.iter().collect();
            e.seq(&entries, |e, (name, ino)| {
                e.bytes(name);
                e.u64(**ino);
            });
        }
        Body::Symlink(target) => e.bytes(target),
        Body::Special { rdev } => e.u64(*rdev),
    }
}

fn get(d: &mut Decoder<'_>) -> Result<Inode, DecodeError> {
    let bits = d.u32()?;
    let kind = Kind::from_mode(bits).ok_or_else(|| d.invalid("kind", bits.into()))?;
    let (btime, nlink) = (d.time()?, d.u32()?);
    let meta = Meta {
        mode: d.u32()?,
        uid: d.u32()?,
        gid: d.u32()?,
        size: d.u64()?,
        atime: d.time()?,
        mtime: d.time()?,
        ctime: d.time()?,
    };
    let xattrs = d.seq(|d| Ok((d.bytes()?.to_vec(), d.bytes()?.to_vec())))?;
    let body = match kind {
        Kind::File => {
            let pages = d.seq(|d| Ok((d.u64()?, get_page(d)?)))?;
            let reserved = d.seq(Decoder::u64)?;
            Body::File {
                pages: pages.into_iter().collect(),
                reserved: reserved.into_iter().collect::<BTreeSet<_>>(),
            }
        }
        Kind::Dir => {
            let parent = d.u64()?;
            let entries = d.seq(|d| Ok((d.bytes()?.to_vec(), d.u64()?)))?;
            Body::Dir { entries: entries.into_iter().collect::<BTreeMap<_, _>>(), parent }
        }
        Kind::Symlink => Body::Symlink(d.bytes()?.to_vec()),
        _ => Body::Special { rdev: d.u64()? },
    };
    let xattrs = Arc::new(xattrs.into_iter().collect());
    Ok(Inode { kind, btime, nlink, meta, xattrs, body, live: true })
}

/// Runs of 16 equal bytes or more, each behind the bytes before it: most content of tests is such.
fn put_page(e: &mut Encoder, page: &Page) {
    let mut pieces: Vec<(Vec<u8>, u32, u8)> = vec![(Vec::new(), 0, 0)];
    for run in page.bytes().chunk_by(|a, b| a == b) {
        match pieces.last_mut() {
            Some((_, len, byte)) if run.len() >= 16 => {
                (*len, *byte) = (run.len() as u32, run[0]);
                pieces.push((Vec::new(), 0, 0));
            }
            Some((bytes, ..)) => bytes.extend_from_slice(run),
            None => {}
        }
    }
    e.seq(&pieces, |e, (bytes, len, byte)| {
        e.bytes(bytes);
        e.u32(*len);
        e.u8(*byte);
    });
}

fn get_page(d: &mut Decoder<'_>) -> Result<Arc<Page>, DecodeError> {
    let pieces = d.seq(|d| Ok((d.bytes()?, d.u32()?, d.u8()?)))?;
    let mut all = Vec::new();
    for (bytes, len, byte) in pieces {
        all.extend_from_slice(bytes);
        all.resize(all.len() + (len as usize).min(PAGE), byte);
    }
    let page: Result<[u8; PAGE], _> = all.try_into();
    page.map(Page::new).map_err(|all| d.invalid("page", all.len() as u64))
}
