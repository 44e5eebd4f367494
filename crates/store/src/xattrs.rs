//! Extended attributes, of which a file system takes only so many bytes for one file: how many is
//! known to nobody but itself. So it is asked before a commit is decided ([`try_out`]), with an
//! object that nobody sees; an installation could only stop there, again and again.

use crate::env::Env;
use crate::error::Refused;
use crate::io::{Handle, Io};
use crate::layout::remove_all;
use crate::origins::{Origins, is_gone};
use crate::writeset::index::Index;
use crate::writeset::{Ix, WriteSet};
use std::io::{Error, Result};
use systx_base::Kind;

/// Key and value; no value: it is removed.
pub(crate) type Xattr = (Vec<u8>, Option<Vec<u8>>);

/// What every file system has room for beside one file: one with blocks of 1 KiB and no room in its
/// inodes takes 988 bytes.
const CERTAIN: usize = 512;
/// What each takes beside its key and value, at most.
const EACH: usize = 32;

/// Whether the file system says that it cannot have this attribute, so that trying again gains
/// nothing while the file is what it is.
pub(crate) fn is_refused(e: &Error) -> bool {
    let code = e.raw_os_error();
    matches!(code, Some(libc::ENOSPC | libc::EDQUOT | libc::E2BIG | libc::EOPNOTSUPP))
}

/// Makes all of these changes, in an order in which they find room: what goes or shrinks makes
/// some. Which could not be made, also when tried once more, and why.
pub(crate) fn set_all(
    xattrs: &[Xattr],
    mut set: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
) -> Vec<(&Xattr, Error)> {
    let (gone, kept): (Vec<_>, Vec<_>) = xattrs.iter().partition(|(_, value)| value.is_none());
    let mut left: Vec<&Xattr> = gone.into_iter().chain(kept).collect();
    let mut tried = usize::MAX;
    loop {
        let failed: Vec<(&Xattr, Error)> =
            left.into_iter().filter_map(|x| Some((x, set(&x.0, x.1.as_deref()).err()?))).collect();
        if failed.len() == tried || !failed.iter().any(|(_, e)| is_refused(e)) {
            return failed;
        }
        tried = failed.len();
        left = failed.into_iter().map(|(x, _)| x).collect();
    }
}

/// Sets an extended attribute, or removes it if it is there.
pub(crate) fn change(
    io: &dyn Io,
    (dir, name): (&Handle, &[u8]),
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<()> {
    let Some(value) = value else {
        return match io.remove_xattr(dir, name, key) {
            Err(e) if e.raw_os_error() == Some(libc::ENODATA) => Ok(()),
            done => done,
        };
    };
    io.set_xattr(dir, name, key, value)
}

fn size(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + EACH
}

/// Whether every object of a write set can have the extended attributes that it gets; the first
/// that cannot.
pub(crate) fn try_out(env: Env<'_>, set: &WriteSet) -> Result<Option<Refused>> {
    let gets = |xattrs: &[Xattr]| xattrs.iter().any(|(_, value)| value.is_some());
    if !set.objects.iter().any(|o| gets(&o.xattrs)) {
        return Ok(None);
    }
    let mut origins = Origins::new(env, set);
    for (i, object) in set.objects.iter().enumerate().filter(|(_, o)| gets(&o.xattrs)) {
        let ix = Ix(i as u32);
        let mut all: Vec<Xattr> = Vec::new();
        if let Some((dir, name)) = origins.place(ix)? {
            match has(env, (&dir, name)) {
                Ok(has) => all = has,
                // Whether it is still what the transaction saw is asked by others.
                Err(e) if is_gone(&e) => continue,
                Err(e) => return Err(e),
            }
        }
        let new = object.xattrs.iter().map(|(key, value)| (key, value.as_deref().unwrap_or(b"")));
        let old = all.iter().map(|(key, value)| (key, value.as_deref().unwrap_or(b"")));
        if old.chain(new).map(|(key, value)| size(key, value)).sum::<usize>() <= CERTAIN {
            continue;
        }
        if let Some((key, bytes, source)) = try_one(env, object.kind(), &all, &object.xattrs)? {
            let index = Index::new(set);
            let path = index.final_path(ix).or_else(|| index.origin_path(ix)).unwrap_or_default();
            return Ok(Some(Refused { path, key, bytes, source }));
        }
    }
    Ok(None)
}

/// What an object has now.
fn has(env: Env<'_>, (dir, name): (&Handle, &[u8])) -> Result<Vec<Xattr>> {
    let keys = match env.io.list_xattr(dir, name) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
        keys => keys?,
    };
    let mut all = Vec::with_capacity(keys.len());
    for key in keys {
        match env.io.get_xattr(dir, name, &key) {
            Ok(value) => all.push((key, Some(value))),
            // Gone since, or not for this process to see.
            Err(e) if e.raw_os_error() != Some(libc::EIO) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Gives an object that nobody sees what another one has, and then gets: key, size and reason of
/// the first that it is refused.
fn try_one(
    env: Env<'_>,
    kind: Kind,
    has: &[Xattr],
    gets: &[Xattr],
) -> Result<Option<(Vec<u8>, usize, Error)>> {
    let (io, temp) = (env.io, &env.layout.temp);
    let mut n = 0u32;
    let name = loop {
        // Several may be tried at once, and opening the store removes what a crash leaves.
        let name = format!("trial.{n}").into_bytes();
        let made = match kind {
            Kind::Dir => io.mkdir(temp, &name, 0o700),
            _ => io.create_file(temp, &name, 0o600).map(drop),
        };
        match made {
            Ok(()) => break name,
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => n += 1,
            Err(e) => return Err(e),
        }
    };
    let set = |key: &[u8], value: Option<&[u8]>| change(io, (temp, &name), key, value);
    // What cannot be had again here was not counted in the file's own favour either.
    drop(set_all(has, set));
    let failed = set_all(gets, set);
    remove_all(io, temp, &name)?;
    let refused = failed.into_iter().find(|((_, value), e)| value.is_some() && is_refused(e));
    Ok(refused.map(|((key, value), e)| (key.clone(), value.as_ref().map_or(0, Vec::len), e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with room for so many bytes of values.
    fn with_room(room: usize, xattrs: &[Xattr], has: &[(&str, usize)]) -> Vec<String> {
        let mut has: std::collections::BTreeMap<Vec<u8>, usize> =
            has.iter().map(|(key, len)| (key.as_bytes().to_vec(), *len)).collect();
        let failed = set_all(xattrs, |key, value| {
            let Some(value) = value else {
                has.remove(key);
                return Ok(());
            };
            let others: usize = has.iter().filter(|(k, _)| *k != key).map(|(_, len)| len).sum();
            if others + value.len() > room {
                return Err(Error::from_raw_os_error(libc::ENOSPC));
            }
            has.insert(key.to_vec(), value.len());
            Ok(())
        });
        failed.iter().map(|((key, _), _)| String::from_utf8_lossy(key).into_owned()).collect()
    }

    fn xattr(key: &str, len: Option<usize>) -> Xattr {
        (key.as_bytes().to_vec(), len.map(|len| vec![1; len]))
    }

    #[test]
    fn what_fits_in_the_end_is_set_whatever_the_order() {
        let changes = [xattr("a", Some(80)), xattr("b", None), xattr("c", Some(10))];
        assert!(with_room(100, &changes, &[("b", 90)]).is_empty());
        let changes = [xattr("a", Some(80)), xattr("c", Some(10))];
        assert!(with_room(100, &changes, &[("c", 90)]).is_empty());
        let changes = [xattr("a", Some(80)), xattr("b", Some(10)), xattr("c", Some(20))];
        assert_eq!(with_room(100, &changes, &[]), ["c"]);
    }
}
