//! Which objects of the conflict engine a write set changes; and the last hurdle before a decision
//! under snapshot isolation, first committer wins.
//!
//! A serializable transaction records its writes as it makes them and loses at once if it must. A
//! snapshot transaction is judged by what is left of its changes when it commits: a lock file that
//! came and went was never written. Until then its changes are recorded as reads, which under
//! snapshot isolation conflict with nobody but go stale when somebody else commits a change; a
//! stale object that this transaction changed as well is a lost update.

use crate::content::PAGE;
use crate::volume::Volume;
use systx_base::Oid;
use systx_store::io::Stamp;
use systx_store::writeset::{Attrs, Content, Extent, Ix, Origin, WriteSet};
use systx_txn::Object;

/// Every object of the engine that a write set changes.
pub fn written(vol: &Volume, set: &WriteSet) -> Vec<Object> {
    let oid_of = |ix: Ix| match &set.objects.get(ix.0 as usize)?.origin {
        Origin::Root => Some(vol.tree.stat(&vol.tree.root()).ok()?.id.oid()),
        Origin::Host { stamp, .. } => Some(stamp.id().oid()),
        Origin::Grave { .. } | Origin::New(_) => None,
    };
    let mut out = Vec::new();
    for bind in &set.binds {
        if let Some(dir) = oid_of(bind.dir) {
            out.push(Object::Entry { dir, name: bind.name.as_slice().into() });
        }
    }
    for object in &set.objects {
        let Origin::Host { stamp, .. } = &object.origin else { continue };
        let oid = stamp.id().oid();
        let a = &object.attrs;
        // The modification time that goes with a change of content is implied by it.
        let implied = object.content != Content::Keep;
        let attrs = Attrs { mtime: a.mtime.filter(|_| !implied), ..*a };
        if attrs != Attrs::default() || !object.xattrs.is_empty() {
            out.push(Object::Attr(oid));
        }
        written_content(oid, stamp, &object.content, &mut out);
    }
    out
}

fn written_content(oid: Oid, stamp: &Stamp, content: &Content, out: &mut Vec<Object>) {
    let from = |first: u64| Object::Pages { oid, first, last: u64::MAX };
    match content {
        Content::Keep => {}
        Content::Whole { .. } | Content::Slot(_) => {
            out.push(Object::Size(oid));
            out.push(from(0));
        }
        Content::Patch { len, keep, extents } => {
            out.extend(extents.iter().filter_map(|e| pages(oid, e)));
            if *len != stamp.length() || *keep < stamp.length() {
                out.push(Object::Size(oid));
            }
            if *keep < stamp.length() {
                out.push(from(*keep / PAGE));
            }
        }
    }
}

fn pages(oid: Oid, extent: &Extent) -> Option<Object> {
    let last = extent.data.len().checked_sub(1)?;
    let (first, last) = (extent.offset / PAGE, (extent.offset + last) / PAGE);
    Some(Object::Pages { oid, first, last })
}

pub(crate) fn overlaps(a: &Object, b: &Object) -> bool {
    match (a, b) {
        (
            Object::Pages { oid: a, first: a0, last: a1 },
            Object::Pages { oid: b, first: b0, last: b1 },
        ) => a == b && a0 <= b1 && b0 <= a1,
        _ => a == b,
    }
}
