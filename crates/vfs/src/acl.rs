//! POSIX access control lists as Linux keeps them in extended attributes, and what the kernel's
//! file systems do with them (fs/posix_acl.c): how a list sets the mode, how the mode changes a
//! list, and what a new object inherits. Here because a view has to do it: with FUSE it is the
//! server's part.
//!
//! Layout: version 2 (u32), then entries of tag (u16), permissions (u16), id (u32), little-endian.
//! The order is fixed: owner, named users, owning group, named groups, mask, others; the mask must
//! be there if anybody is named.

use crate::api::Reply;
use rustix::io::Errno;

/// Key of the list that guards an object.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Key of the list that a directory's new objects start with.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// Id of an entry that names nobody.
const NO_ID: u32 = u32::MAX;
const RWX: u32 = 0o7;

/// Whom an entry is for; the numbers are those of the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Others = 0x20,
}

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    perm: u32,
    id: u32,
}

/// A valid list: one owner, one owning group, one entry for others, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Acl(Vec<Entry>);

/// What a new object gets from the default list of its directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// The mode asked for, less what the list does not grant; the bits above the nine are as asked.
    pub mode: u32,
    /// Its access list; `None` if the mode says it all.
    pub access: Option<Vec<u8>>,
    /// Its own default list, for a directory.
    pub default: Option<Vec<u8>>,
}

/// What an object gets that is made with `mode` (the umask does not count) in a directory with this
/// default list.  `EINVAL` if the bytes are no list.
pub fn inherit(default: &[u8], mode: u32, is_dir: bool) -> Reply<Inherited> {
    let mut acl = Acl::decode(default)?;
    let default = is_dir.then(|| acl.encode());
    acl.restrict(mode);
    let mode = (mode & !0o777) | (mode & acl.mode());
    let access = (!acl.is_minimal()).then(|| acl.encode());
    Ok(Inherited { mode, access, default })
}

/// The access list after chmod(2).  `EINVAL` if the bytes are no list.
pub fn chmod(access: &[u8], mode: u32) -> Reply<Vec<u8>> {
    let mut acl = Acl::decode(access)?;
    acl.set_class(Class::Owner, mode >> 6);
    acl.set_class(Class::Group, mode >> 3);
    acl.set_class(Class::Others, mode);
    Ok(acl.encode())
}

/// The nine mode bits that an object has with this access list.  `EINVAL` if the bytes are no list.
pub fn mode(access: &[u8]) -> Reply<u32> {
    Ok(Acl::decode(access)?.mode())
}

/// The mode that says the same as this access list, if there is one: such a list is not kept.
/// `EINVAL` if the bytes are no list.
pub fn equiv_mode(access: &[u8]) -> Reply<Option<u32>> {
    let acl = Acl::decode(access)?;
    Ok(acl.is_minimal().then(|| acl.mode()))
}

/// A value given to setxattr(2) as reading it back shows it: ids that mean nothing are set to -1.
/// `None` for a list without entries, which takes an existing one away. `EINVAL` if the bytes are
/// no list, `EOPNOTSUPP` if they are of another version.
pub fn normal(value: &[u8]) -> Reply<Option<Vec<u8>>> {
    if entries(value)?.is_empty() {
        return Ok(None);
    }
    Ok(Some(Acl::decode(value)?.encode()))
}

/// The bytes of the entries.
fn entries(value: &[u8]) -> Reply<&[u8]> {
    let (version, entries) = value.split_first_chunk::<HEADER>().ok_or(Errno::INVAL)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Errno::OPNOTSUPP);
    }
    if entries.len() % ENTRY != 0 {
        return Err(Errno::INVAL);
    }
    Ok(entries)
}

/// The three classes of a mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Owner,
    Group,
    Others,
}

impl Acl {
    fn decode(value: &[u8]) -> Reply<Acl> {
        let (chunks, _) = entries(value)?.as_chunks::<ENTRY>();
        let acl = Acl(chunks.iter().map(Entry::decode).collect::<Reply<_>>()?);
        if acl.is_valid() { Ok(acl) } else { Err(Errno::INVAL) }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.0.len() * ENTRY);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            let named = matches!(entry.tag, Tag::User | Tag::Group);
            bytes.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            bytes.extend_from_slice(&(entry.perm as u16).to_le_bytes());
            bytes.extend_from_slice(&if named { entry.id } else { NO_ID }.to_le_bytes());
        }
        bytes
    }

    /// As `posix_acl_valid`.
    fn is_valid(&self) -> bool {
        // What may come next, and whether anybody was named.
        let mut last = None;
        let mut named = false;
        for entry in &self.0 {
            let fits = match entry.tag {
                Tag::Owner => last.is_none(),
                Tag::User => matches!(last, Some(Tag::Owner | Tag::User)),
                Tag::OwningGroup => matches!(last, Some(Tag::Owner | Tag::User)),
                Tag::Group | Tag::Mask => matches!(last, Some(Tag::OwningGroup | Tag::Group)),
                Tag::Others => match last {
                    Some(Tag::Mask) => true,
                    Some(Tag::OwningGroup | Tag::Group) => !named,
                    _ => false,
                },
            };
            if !fits {
                return false;
            }
            named |= matches!(entry.tag, Tag::User | Tag::Group);
            last = Some(entry.tag);
        }
        last == Some(Tag::Others)
    }

    /// Whether it says no more than a mode does.
    fn is_minimal(&self) -> bool {
        self.0.iter().all(|e| matches!(e.tag, Tag::Owner | Tag::OwningGroup | Tag::Others))
    }

    /// The entry that a class of the mode stands for: for the group class the mask, if there is
    /// one.
    fn class(&self, class: Class) -> usize {
        let tag = match class {
            Class::Owner => Tag::Owner,
            Class::Group if self.0.iter().any(|e| e.tag == Tag::Mask) => Tag::Mask,
            Class::Group => Tag::OwningGroup,
            Class::Others => Tag::Others,
        };
        // A valid list has it; 0 exists in every valid list.
        self.0.iter().position(|e| e.tag == tag).unwrap_or(0)
    }

    fn set_class(&mut self, class: Class, perm: u32) {
        let at = self.class(class);
        self.0[at].perm = perm & RWX;
    }

    fn perm(&self, class: Class) -> u32 {
        self.0[self.class(class)].perm
    }

    fn mode(&self) -> u32 {
        self.perm(Class::Owner) << 6 | self.perm(Class::Group) << 3 | self.perm(Class::Others)
    }

    /// As `posix_acl_create_masq`: nobody gets more than the mode asks for.
    fn restrict(&mut self, mode: u32) {
        for (class, asked) in
            [(Class::Owner, mode >> 6), (Class::Group, mode >> 3), (Class::Others, mode)]
        {
            self.set_class(class, self.perm(class) & asked);
        }
    }
}

impl Entry {
    fn decode(bytes: &[u8; ENTRY]) -> Reply<Entry> {
        let [t0, t1, p0, p1, i0, i1, i2, i3] = *bytes;
        let tag = match u16::from_le_bytes([t0, t1]) {
            0x01 => Tag::Owner,
            0x02 => Tag::User,
            0x04 => Tag::OwningGroup,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Others,
            _ => return Err(Errno::INVAL),
        };
        let perm = u32::from(u16::from_le_bytes([p0, p1]));
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        let nobody = matches!(tag, Tag::User | Tag::Group) && id == NO_ID;
        if perm & !RWX != 0 || nobody {
            return Err(Errno::INVAL);
        }
        Ok(Entry { tag, perm, id })
    }
}

#[cfg(test)]
mod tests;
