//! What is refused since some file system, or the kernel, would refuse it: all replicas have to
//! find that before anything is installed, and find the same, whatever their file systems are.

use crate::OWN;
use crate::model::{Kind, shown};
use systx_base::Kind as Type;
use systx_protocol::certify::Set;

/// Longest name, bytes.
const NAME_MAX: usize = 255;
/// Longest path below the directory, bytes: there has to be room for the way to that.
pub const PATH_MAX: usize = 3000;
/// Longest target of a symbolic link, bytes.
const TARGET_MAX: usize = 4095;
/// Longest value of an extended attribute, bytes.
const VALUE_MAX: usize = 64 << 10;

/// What comes from elsewhere must not lead out of the directory, nor be what no file system has: a
/// block with that in it could never be put in place.
///
/// # Errors
/// It does, or is.
pub fn path(path: &[u8]) -> Result<(), String> {
    let odd = |name: &[u8]| {
        matches!(name, b"" | b"." | b"..") || name.contains(&0) || name.len() > NAME_MAX
    };
    let own = path.split(|b| *b == b'/').next() == Some(OWN.as_bytes());
    if own || path.len() > PATH_MAX || path.split(|b| *b == b'/').any(odd) {
        return Err(format!("{} is not replicated", shown(path)));
    }
    Ok(())
}

/// The target of a link.
///
/// # Errors
/// No link can have it.
pub fn target(to: &[u8]) -> Result<(), String> {
    if to.is_empty() || to.len() > TARGET_MAX || to.contains(&0) {
        return Err(format!("no link leads to {}", shown(to)));
    }
    Ok(())
}

/// A FIFO, socket or device.
///
/// # Errors
/// There is no such device.
pub fn device(kind: Type, rdev: u64) -> Result<(), String> {
    let is_device = matches!(kind, Type::CharDev | Type::BlockDev);
    if (is_device && rdev > u32::MAX.into()) || (!is_device && rdev != 0) {
        return Err(format!("there is no device {rdev:#x}"));
    }
    Ok(())
}

/// What an object of this kind is to be.
///
/// # Errors
/// It cannot be that.
pub fn set(set: &Set, kind: &Kind) -> Result<(), String> {
    let no = |what: &str| Err(format!("{} {what}", shown(&set.path)));
    if set.owner.is_some_and(|(user, group)| user == u32::MAX || group == u32::MAX) {
        return no("cannot have this owner");
    }
    for (key, value) in &set.xattrs {
        if !may_have(kind, key) {
            return no(&format!("cannot have the attribute {}", shown(key)));
        }
        let Some(value) = value else { continue };
        let is_list = key.starts_with(b"system.");
        if value.len() > VALUE_MAX || (is_list && !is_access_list(value)) {
            return no(&format!("cannot have this value of {}", shown(key)));
        }
    }
    Ok(())
}

fn may_have(kind: &Kind, key: &[u8]) -> bool {
    if key.len() > NAME_MAX || key.contains(&0) {
        return false;
    }
    match key {
        b"system.posix_acl_access" => !matches!(kind, Kind::Symlink(_)),
        b"system.posix_acl_default" => *kind == Kind::Dir,
        _ if key.starts_with(b"user.") => {
            key.len() > 5 && matches!(kind, Kind::File(_) | Kind::Dir)
        }
        _ if key.starts_with(b"trusted.") => key.len() > 8,
        _ => key.starts_with(b"security.") && key.len() > 9,
    }
}

/// As the kernel takes them (`posix_acl_valid`): the owner, users, the group, groups, a mask if
/// there are any of these, all others.
fn is_access_list(value: &[u8]) -> bool {
    let Some(entries) = value.strip_prefix(&[2, 0, 0, 0]) else { return false };
    let tags = entries.chunks(8).map(|entry| match entry {
        [tag, 0, may @ 0..=7, 0, id @ ..] if id.len() == 4 => {
            let nobody = id == [255; 4];
            (*may < 8 && (matches!(tag, 2 | 8) != nobody)).then_some(*tag)
        }
        _ => None,
    });
    let Some(tags) = tags.collect::<Option<Vec<u8>>>() else { return false };
    let count = |tag| tags.iter().filter(|t| **t == tag).count();
    let masks = count(16);
    tags.is_sorted()
        && tags.iter().all(|tag| matches!(tag, 1 | 2 | 4 | 8 | 16 | 32))
        && (count(1), count(4), count(32)) == (1, 1, 1)
        && (masks == 1 || (masks == 0 && count(2) + count(8) == 0))
}
