//! The invariants W1 to W7, checked.  The store refuses a write set that breaks one before anything
//! is written, and a decoded one before anything is installed: installing relies on every index,
//! name and range being what it seems.

use super::index::Index;
use super::{Bind, Content, Data, Extent, Ix, NewKind, Object, Origin, SlotId, WriteSet};
use systx_base::Kind;
use thiserror::Error;

/// Longest inline piece: longer data goes to a slot.
pub(crate) const INLINE_LIMIT: u64 = 1 << 30;
/// Longest file: what `off_t` can say.
const LENGTH_LIMIT: u64 = i64::MAX as u64;

/// Which invariant a write set breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CheckError {
    /// W1.
    #[error("the first object must be the volume's root, and only it")]
    Root,
    /// An index points outside `objects`.
    #[error("index {0} is out of range")]
    Index(u32),
    /// W2.
    #[error("the parent of object {0} does not stand before it, or is no directory")]
    Parent(u32),
    /// A name is empty, `.`, `..`, too long, or holds a slash or NUL.
    #[error("invalid name {0:?}")]
    Name(Vec<u8>),
    /// W3.
    #[error("two outcomes for the name {0:?}")]
    Twice(Vec<u8>),
    /// W4.
    #[error("{0:?} displaces an object that comes from elsewhere")]
    Displaces(Vec<u8>),
    /// W5.
    #[error("object {0} is not reachable from the root")]
    Unreachable(u32),
    /// W6.
    #[error("directory {0} would have two names")]
    TwoNames(u32),
    /// W7.
    #[error("a name is changed inside directory {0}, which is removed")]
    Removed(u32),
    /// The content of an object is not possible.
    #[error("object {0} has content that {1}")]
    Content(u32, &'static str),
    /// An extended attribute has an impossible name.
    #[error("object {0} has an invalid extended attribute name")]
    Xattr(u32),
}

/// Whether the bytes are one component of a path.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

impl Object {
    /// Its type; `None` never happens for a checked object.
    pub fn kind(&self) -> Kind {
        match &self.origin {
            Origin::Root | Origin::New(NewKind::Dir) => Kind::Dir,
            Origin::Host { kind, .. } | Origin::Grave { kind, .. } => *kind,
            Origin::New(NewKind::File) => Kind::File,
            Origin::New(NewKind::Symlink(_)) => Kind::Symlink,
            Origin::New(NewKind::Special { kind, .. }) => *kind,
        }
    }

    /// Whether content or attributes are changed.
    pub fn is_changed(&self) -> bool {
        self.attrs != super::Attrs::default()
            || !self.xattrs.is_empty()
            || self.content != Content::Keep
    }

    /// Whether the transaction made it.
    pub fn is_new(&self) -> bool {
        matches!(self.origin, Origin::New(_))
    }
}

impl WriteSet {
    /// The object at `ix` of a checked write set.
    pub fn object(&self, ix: Ix) -> &Object {
        &self.objects[ix.0 as usize]
    }

    /// Every slot that is referred to.
    pub fn slots(&self) -> Vec<SlotId> {
        let mut slots = Vec::new();
        for object in &self.objects {
            match &object.content {
                Content::Slot(slot) => slots.push(*slot),
                Content::Patch { extents, .. } | Content::Whole { extents, .. } => {
                    slots.extend(extents.iter().filter_map(|e| match e.data {
                        Data::Slot { slot, .. } => Some(slot),
                        _ => None,
                    }));
                }
                Content::Keep => {}
            }
        }
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Checks W1 to W7 and that every name, index and range makes sense.
    pub fn check(&self) -> Result<(), CheckError> {
        if self.objects.is_empty() || u32::try_from(self.objects.len()).is_err() {
            return Err(CheckError::Root);
        }
        for (i, object) in self.objects.iter().enumerate() {
            self.check_object(i as u32, object)?;
        }
        for bind in &self.binds {
            self.check_bind(bind)?;
        }
        for kept in &self.kept {
            self.in_range(kept.file)?;
            if self.in_range(kept.dir)?.kind() != Kind::Dir {
                return Err(CheckError::Parent(kept.dir.0));
            }
        }
        let index = Index::new(self);
        if let Some(bind) = index.twice() {
            return Err(CheckError::Twice(bind.name.clone()));
        }
        self.check_directories(&index)?;
        self.check_reachable(&index)
    }

    fn in_range(&self, ix: Ix) -> Result<&Object, CheckError> {
        self.objects.get(ix.0 as usize).ok_or(CheckError::Index(ix.0))
    }

    fn check_object(&self, i: u32, object: &Object) -> Result<(), CheckError> {
        if (i == 0) != (object.origin == Origin::Root) {
            return Err(CheckError::Root);
        }
        match &object.origin {
            Origin::Host { parent, name, .. } => {
                if parent.0 >= i || self.in_range(*parent)?.kind() != Kind::Dir {
                    return Err(CheckError::Parent(i));
                }
                // What is below a directory that the transaction made was made by it, too.
                if self.object(*parent).is_new() {
                    return Err(CheckError::Parent(i));
                }
                if !is_name(name) {
                    return Err(CheckError::Name(name.clone()));
                }
            }
            Origin::Grave { name, .. } if !is_name(name) => {
                return Err(CheckError::Name(name.clone()));
            }
            Origin::New(NewKind::Symlink(t)) if t.is_empty() || t.contains(&0) => {
                return Err(CheckError::Content(i, "is no link target"));
            }
            Origin::New(NewKind::Special {
                kind: Kind::File | Kind::Dir | Kind::Symlink, ..
            }) => {
                return Err(CheckError::Content(i, "is no special file"));
            }
            _ => {}
        }
        if object.xattrs.iter().any(|(k, _)| k.is_empty() || k.len() > 255 || k.contains(&0)) {
            return Err(CheckError::Xattr(i));
        }
        check_content(i, object)
    }

    fn check_bind(&self, bind: &Bind) -> Result<(), CheckError> {
        if self.in_range(bind.dir)?.kind() != Kind::Dir {
            return Err(CheckError::Parent(bind.dir.0));
        }
        if !is_name(&bind.name) {
            return Err(CheckError::Name(bind.name.clone()));
        }
        if let Some(target) = bind.target {
            self.in_range(target)?;
            if target.0 == 0 {
                return Err(CheckError::Root);
            }
        }
        if let Some(displaced) = bind.displaces {
            // Another name of the same file may have been seen first, so only the type of the
            // origin is fixed for files; a directory has one name.
            let object = self.in_range(displaced)?;
            let Origin::Host { parent, name, kind, .. } = &object.origin else {
                return Err(CheckError::Displaces(bind.name.clone()));
            };
            if *kind == Kind::Dir && (*parent != bind.dir || *name != bind.name) {
                return Err(CheckError::Displaces(bind.name.clone()));
            }
        }
        Ok(())
    }

    fn check_directories(&self, index: &Index<'_>) -> Result<(), CheckError> {
        for (i, object) in self.objects.iter().enumerate() {
            let ix = Ix(i as u32);
            let binds = index.targets(ix);
            if object.kind() != Kind::Dir || binds.is_empty() {
                continue;
            }
            if binds.len() > 1 {
                return Err(CheckError::TwoNames(ix.0));
            }
            if let Origin::Host { parent, name, .. } = &object.origin
                && index.at(*parent, name).is_none()
                && !index.inside_removed(ix)
            {
                return Err(CheckError::TwoNames(ix.0));
            }
        }
        match self.binds.iter().find(|b| index.is_removed(b.dir)) {
            Some(bind) => Err(CheckError::Removed(bind.dir.0)),
            None => Ok(()),
        }
    }

    /// Follows names upwards from every target.  Objects that were found to end at the root are
    /// remembered, so that deep trees are walked once; a walk longer than all objects is a cycle.
    fn check_reachable(&self, index: &Index<'_>) -> Result<(), CheckError> {
        let mut good = vec![false; self.objects.len()];
        for (i, object) in self.objects.iter().enumerate() {
            let start = Ix(i as u32);
            if object.is_new() && index.targets(start).is_empty() {
                return Err(CheckError::Unreachable(start.0));
            }
            for bind in index.targets(start) {
                self.walk_up(start, self.binds[*bind].dir, index, &mut good)?;
            }
        }
        Ok(())
    }

    fn walk_up(
        &self,
        start: Ix,
        mut at: Ix,
        index: &Index<'_>,
        good: &mut [bool],
    ) -> Result<(), CheckError> {
        let mut passed = Vec::new();
        while at.0 != 0 && !good[at.0 as usize] {
            passed.push(at);
            let bound = index.targets(at).first().map(|b| self.binds[*b].dir);
            at = match (bound, &self.object(at).origin) {
                (Some(dir), _) => dir,
                (None, Origin::Host { parent, .. }) if !index.is_removed(at) => *parent,
                _ => return Err(CheckError::Unreachable(start.0)),
            };
            if passed.len() > self.objects.len() {
                return Err(CheckError::Unreachable(start.0));
            }
        }
        for ix in passed {
            good[ix.0 as usize] = true;
        }
        Ok(())
    }
}

fn check_content(i: u32, object: &Object) -> Result<(), CheckError> {
    let bad = |what| Err(CheckError::Content(i, what));
    let (len, extents) = match &object.content {
        Content::Keep => return Ok(()),
        _ if object.kind() != Kind::File => return bad("only a regular file can have"),
        Content::Slot(_) => return Ok(()),
        Content::Patch { .. } if object.is_new() => return bad("patches nothing"),
        Content::Patch { len, keep, extents } if keep <= &LENGTH_LIMIT => (*len, extents),
        Content::Patch { .. } => return bad("is too long"),
        Content::Whole { len, extents } => (*len, extents),
    };
    if len > LENGTH_LIMIT {
        return bad("is too long");
    }
    let mut end = 0u64;
    for Extent { offset, data } in extents {
        if *offset < end {
            return bad("overlaps or is out of order");
        }
        if let Data::Slot { at, len, .. } = data
            && at.checked_add(*len).is_none_or(|end| end > LENGTH_LIMIT)
        {
            return bad("lies beyond its slot");
        }
        if matches!(data, Data::Inline(_)) && data.len() > INLINE_LIMIT {
            return bad("is too long to be inline");
        }
        end = match offset.checked_add(data.len()) {
            Some(end) if end <= len => end,
            _ => return bad("exceeds its length"),
        };
    }
    Ok(())
}
