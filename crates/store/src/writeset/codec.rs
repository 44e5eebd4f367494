//! Bytes of a write set, as the journal and the history keep them (docs/FORMAT.md, "Write set"),
//! and of what a record says of an order.
//! Decoding checks what a single value can tell; [`WriteSet::check`] checks the whole.

use super::{Attrs, Bind, Content, Data, Extent, Ix, NewKind, Object, Origin, SlotId, WriteSet};
use crate::io::{HostId, Stamp};
use systx_base::codec::{DecodeError, Decoder, Encoder};
use systx_base::{Kind, ORDER_NAME, OrderName, OrderStep};

type Decoded<T> = Result<T, DecodeError>;

pub(crate) fn put_kind(e: &mut Encoder, kind: Kind) {
    e.u8(kind.dirent_type() as u8);
}

pub(crate) fn get_kind(d: &mut Decoder<'_>) -> Decoded<Kind> {
    let found = d.u8()?;
    Kind::from_mode(u32::from(found) << 12).ok_or_else(|| d.invalid("file type", found.into()))
}

pub(crate) fn put_id(e: &mut Encoder, id: HostId) {
    e.u64(id.ino);
    e.time(id.btime);
}

pub(crate) fn get_id(d: &mut Decoder<'_>) -> Decoded<HostId> {
    Ok(HostId { ino: d.u64()?, btime: d.time()? })
}

pub(crate) fn put_stamp(e: &mut Encoder, s: &Stamp) {
    put_id(e, s.id);
    e.time(s.ctime);
    e.time(s.mtime);
    e.u64(s.size);
}

pub(crate) fn get_stamp(d: &mut Decoder<'_>) -> Decoded<Stamp> {
    Ok(Stamp { id: get_id(d)?, ctime: d.time()?, mtime: d.time()?, size: d.u64()? })
}

/// A single name: what could lead out of its directory is not one.
fn get_name(d: &mut Decoder<'_>) -> Decoded<Vec<u8>> {
    let name = d.bytes()?;
    if super::check::is_name(name) { Ok(name.to_vec()) } else { Err(d.invalid("name", 0)) }
}

fn put_origin(e: &mut Encoder, origin: &Origin) {
    match origin {
        Origin::Root => e.u8(0),
        Origin::Host { parent, name, kind, stamp } => {
            e.u8(1);
            e.u32(parent.0);
            e.bytes(name);
            put_kind(e, *kind);
            put_stamp(e, stamp);
        }
        Origin::Grave { name, kind, stamp } => {
            e.u8(2);
            e.bytes(name);
            put_kind(e, *kind);
            put_stamp(e, stamp);
        }
        Origin::New(NewKind::File) => e.u8(3),
        Origin::New(NewKind::Dir) => e.u8(4),
        Origin::New(NewKind::Symlink(target)) => {
            e.u8(5);
            e.bytes(target);
        }
        Origin::New(NewKind::Special { kind, rdev }) => {
            e.u8(6);
            put_kind(e, *kind);
            e.u64(*rdev);
        }
    }
}

fn get_origin(d: &mut Decoder<'_>) -> Decoded<Origin> {
    Ok(match d.u8()? {
        0 => Origin::Root,
        1 => Origin::Host {
            parent: Ix(d.u32()?),
            name: get_name(d)?,
            kind: get_kind(d)?,
            stamp: get_stamp(d)?,
        },
        2 => Origin::Grave { name: get_name(d)?, kind: get_kind(d)?, stamp: get_stamp(d)? },
        3 => Origin::New(NewKind::File),
        4 => Origin::New(NewKind::Dir),
        5 => Origin::New(NewKind::Symlink(d.bytes()?.to_vec())),
        6 => Origin::New(NewKind::Special { kind: get_kind(d)?, rdev: d.u64()? }),
        other => return Err(d.invalid("origin", other.into())),
    })
}

pub(crate) fn put_extent(e: &mut Encoder, extent: &Extent) {
    e.u64(extent.offset);
    match &extent.data {
        Data::Inline(bytes) => {
            e.u8(0);
            e.bytes(bytes);
        }
        Data::Slot { slot, at, len } => {
            e.u8(1);
            e.u64(slot.0);
            e.u64(*at);
            e.u64(*len);
        }
        Data::Hole { len } => {
            e.u8(2);
            e.u64(*len);
        }
    }
}

pub(crate) fn get_extent(d: &mut Decoder<'_>) -> Decoded<Extent> {
    let offset = d.u64()?;
    let data = match d.u8()? {
        0 => Data::Inline(d.bytes()?.to_vec()),
        1 => Data::Slot { slot: SlotId(d.u64()?), at: d.u64()?, len: d.u64()? },
        2 => Data::Hole { len: d.u64()? },
        other => return Err(d.invalid("extent", other.into())),
    };
    Ok(Extent { offset, data })
}

fn put_content(e: &mut Encoder, content: &Content) {
    match content {
        Content::Keep => e.u8(0),
        Content::Patch { len, keep, extents } => {
            e.u8(1);
            e.u64(*len);
            e.u64(*keep);
            e.seq(extents, put_extent);
        }
        Content::Whole { len, extents } => {
            e.u8(2);
            e.u64(*len);
            e.seq(extents, put_extent);
        }
        Content::Slot(slot) => {
            e.u8(3);
            e.u64(slot.0);
        }
    }
}

fn get_content(d: &mut Decoder<'_>) -> Decoded<Content> {
    Ok(match d.u8()? {
        0 => Content::Keep,
        1 => Content::Patch { len: d.u64()?, keep: d.u64()?, extents: d.seq(get_extent)? },
        2 => Content::Whole { len: d.u64()?, extents: d.seq(get_extent)? },
        3 => Content::Slot(SlotId(d.u64()?)),
        other => return Err(d.invalid("content", other.into())),
    })
}

pub(crate) fn put_attrs(e: &mut Encoder, a: &Attrs) {
    e.option(a.mode, Encoder::u32);
    e.option(a.owner, |e, (uid, gid)| {
        e.u32(uid);
        e.u32(gid);
    });
    e.option(a.atime, Encoder::time);
    e.option(a.mtime, Encoder::time);
}

pub(crate) fn get_attrs(d: &mut Decoder<'_>) -> Decoded<Attrs> {
    Ok(Attrs {
        mode: d.option(Decoder::u32)?,
        owner: d.option(|d| Ok((d.u32()?, d.u32()?)))?,
        atime: d.option(Decoder::time)?,
        mtime: d.option(Decoder::time)?,
    })
}

/// Extended attributes: name and new value, `None` for absent.
pub(crate) type Xattrs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

pub(crate) fn put_xattrs(e: &mut Encoder, xattrs: &Xattrs) {
    e.seq(xattrs, |e, (key, value)| {
        e.bytes(key);
        e.option(value.as_deref(), |e, v| e.bytes(v));
    });
}

pub(crate) fn get_xattrs(d: &mut Decoder<'_>) -> Decoded<Xattrs> {
    d.seq(|d| Ok((d.bytes()?.to_vec(), d.option(|d| Ok(d.bytes()?.to_vec()))?)))
}

impl WriteSet {
    /// Appends the bytes of this write set.
    pub fn encode(&self, e: &mut Encoder) {
        e.seq(&self.objects, |e, object| {
            put_origin(e, &object.origin);
            put_attrs(e, &object.attrs);
            put_xattrs(e, &object.xattrs);
            put_content(e, &object.content);
        });
        e.seq(&self.binds, |e, bind| {
            e.u32(bind.dir.0);
            e.bytes(&bind.name);
            e.option(bind.target, |e, ix| e.u32(ix.0));
            e.option(bind.displaces, |e, ix| e.u32(ix.0));
        });
    }

    /// Reads a write set back.  What comes out may still break the invariants: see
    /// [`WriteSet::check`].
    pub fn decode(d: &mut Decoder<'_>) -> Result<WriteSet, DecodeError> {
        let objects = d.seq(|d| {
            Ok(Object {
                origin: get_origin(d)?,
                attrs: get_attrs(d)?,
                xattrs: get_xattrs(d)?,
                content: get_content(d)?,
            })
        })?;
        let binds = d.seq(|d| {
            Ok(Bind {
                dir: Ix(d.u32()?),
                name: get_name(d)?,
                target: d.option(|d| Ok(Ix(d.u32()?)))?,
                displaces: d.option(|d| Ok(Ix(d.u32()?)))?,
            })
        })?;
        Ok(WriteSet { objects, binds, ..WriteSet::default() })
    }
}

/// What a record, or the file, says of an order.
pub(crate) fn put_order(e: &mut Encoder, step: &OrderStep) {
    e.u32(step.order.owner);
    e.bytes(&step.order.name);
    e.u64(step.next);
}

pub(crate) fn get_order(d: &mut Decoder<'_>) -> Decoded<OrderStep> {
    let (owner, name) = (d.u32()?, d.bytes()?);
    if name.is_empty() || name.len() > ORDER_NAME {
        return Err(d.invalid("name of an order", name.len() as u64));
    }
    Ok(OrderStep { order: OrderName { owner, name: name.into() }, next: d.u64()? })
}
