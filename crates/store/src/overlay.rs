//! What is special about a volume that is an overlay file system (the root of most containers).
//!
//! An object of a lower layer is *copied up* when it is changed first: from then on it is another
//! inode below, with another time of birth and of change, and, where the layers are on one file
//! system or `xino` is on, with the same number. A file that has several names in a lower layer
//! gets another number, too, and is parted from them. A directory of which a lower layer has a part
//! can never be renamed (`EXDEV`), unless the overlay redirects directories.
//!
//! So, on an overlay:
//! - the number alone is an object's identity ([`crate::real`] leaves the time of birth out);
//! - [`raise`] has copied up all that a commit changes before its record is made, which holds the
//!   numbers and stamps of then: neither an installation nor a recovery meets a copy-up, or runs
//!   out of space by one;
//! - what is removed with such a directory is carried to the graveyard ([`crate::install`],
//!   `carry`);
//! - [`is_movable`] tells such directories, by an attempt to rename that can do nothing.

use crate::class::{options, says_volatile};
use crate::env::{Env, is_fatal};
use crate::io::{Handle, HostId, Io, Rename, Stamp, Stat};
use crate::layout::{Layout, ensure_dir, names, temp_name};
use crate::origins::Origins;
use crate::prepare::is_version;
use crate::writeset::index::Index;
use crate::writeset::{Ix, Object, Origin, WriteSet};
use std::collections::{HashMap, HashSet};
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use systx_base::{Kind, TxnId};

/// In the store's directory: a directory that is never empty, onto which nothing can be renamed.
const FULL: &[u8] = b"p";

/// An overlay file system, for who works on it.
#[derive(Clone)]
pub struct Overlay {
    io: Arc<dyn Io>,
    /// Where [`FULL`] is.
    state: Handle,
}

impl Overlay {
    pub(crate) fn new(io: Arc<dyn Io>, state: Handle) -> Overlay {
        Overlay { io, state }
    }

    /// Whether a directory may be renamed.
    ///
    /// # Errors
    /// Those of the file system but `EXDEV`.
    pub fn is_movable(&self, at: &Handle, name: &[u8]) -> Result<bool> {
        is_movable(&*self.io, &self.state, at, name)
    }
}

/// Whether the file system of this type (`f_type`) is an overlay.
pub fn is_overlay(magic: u64) -> bool {
    magic == crate::class::OVERLAY
}

/// What kind of overlay it is, in words.
pub fn described(dev: u64) -> String {
    let options = options(dev);
    let has = |wanted: &str| options.iter().any(|o| o == wanted);
    let mut words = vec!["an overlay".to_owned()];
    let lower = options.iter().find_map(|o| o.strip_prefix("lowerdir="));
    let more = options.iter().filter(|o| o.starts_with("lowerdir+=")).count();
    let layers = lower.map_or(0, |l| l.split(':').filter(|l| !l.is_empty()).count()) + more;
    words.push(match layers {
        1 => "with 1 lower layer".into(),
        n => format!("with {n} lower layers"),
    });
    for option in ["userxattr", "xino=on", "metacopy=on", "redirect_dir=on", "index=on"] {
        if has(option) {
            words.push(option.into());
        }
    }
    if says_volatile(&options) {
        words.push("mounted volatile: nothing survives a power cut".into());
    }
    words.join(", ")
}

/// Makes what [`is_movable`] needs.
pub(crate) fn prepare(io: &dyn Io, layout: &Layout) -> Result<()> {
    let full = ensure_dir(io, &layout.state, FULL)?;
    ensure_dir(io, &full, b"p").map(drop)
}

/// Whether a directory may be renamed: tried with a target that no rename can replace.
pub(crate) fn is_movable(io: &dyn Io, state: &Handle, at: &Handle, name: &[u8]) -> Result<bool> {
    match io.rename(at, name, state, FULL, Rename::Replace) {
        Err(e) => match e.raw_os_error() {
            // Above the store's directory.
            Some(libc::EXDEV | libc::EINVAL | libc::EBUSY) => Ok(false),
            Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR) => Ok(true),
            _ => Err(e),
        },
        Ok(()) => {
            // Somebody has emptied it.
            io.rename(state, FULL, at, name, Rename::NoReplace)?;
            Err(Error::from(ErrorKind::DirectoryNotEmpty))
        }
    }
}

/// Copies up all that a write set changes, moves or removes, and notes what it is then. What is not
/// what the transaction saw stays as it is, for who prepares the record to find. Something to be
/// synced, if anything changed.
///
/// What cannot be copied up beforehand (another's file, which may only be moved) is when its turn
/// comes.
///
/// # Errors
/// No space, or one of the device.
pub(crate) fn raise(env: Env<'_>, txn: TxnId, set: &mut WriteSet) -> Result<Option<Handle>> {
    let index = Index::new(set);
    let mut places = Origins::new(env, set);
    let met = met(env, set, &mut places)?;
    let mut raise = Raise { env, txn, index: &index, known: known(set), userxattr: None };
    let mut below = false;
    let dirs: HashSet<Ix> = set.binds.iter().map(|bind| bind.dir).collect();
    for (ix, dir, name, before) in &met {
        let (ix, object) = (*ix, set.object(*ix));
        let named = index.is_displaced(ix) || !index.targets(ix).is_empty();
        if !(named || object.is_changed() || dirs.contains(&ix)) {
            continue;
        }
        if object.kind() == Kind::Dir && index.is_removed(ix) {
            below |= raise.below(dir, name)?;
        }
        let now = raise.one(dir, name, ix, before)?;
        if now.id != before.id && is_same(before, &now) {
            for kept in set.kept.iter().filter(|kept| kept.file == ix) {
                let Some(parent) = places.dir(kept.dir)? else { continue };
                raise.link_again((dir, name), (&parent, &kept.name), ix, before)?;
            }
        }
    }
    // Only now: what is done to one may move the version of another.  Two of them may be one object
    // that looks like two ([`Raise::is_of_two_numbers`]), and a name in a directory that is removed
    // may be a further one of what is elsewhere.
    let mut moved: Vec<(Ix, Stamp)> = Vec::new();
    for (ix, dir, name, before) in &met {
        let now = match env.io.stat_at(dir, name) {
            Err(e) if is_fatal(&e) => return Err(e),
            Err(_) => continue,
            Ok(now) => now,
        };
        let followed = index.is_followed(*ix) && now.id != before.id;
        if now.stamp() != before.stamp() && is_same(before, &now) && !followed {
            moved.push((*ix, now.stamp()));
        }
    }
    let sync = (below || !moved.is_empty()).then(|| env.layout.grave.clone());
    for (ix, now) in moved {
        if let Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } =
            &mut set.objects[ix.0 as usize].origin
        {
            *stamp = now;
        }
    }
    Ok(sync)
}

/// An object, the directory that it is in, its name there, and what it is.
type Met<'a> = (Ix, Handle, &'a [u8], Stat);

/// The objects of a write set that are there and what the transaction saw.
fn met<'a>(env: Env<'_>, set: &'a WriteSet, places: &mut Origins<'a>) -> Result<Vec<Met<'a>>> {
    let mut met = Vec::new();
    for (i, object) in set.objects.iter().enumerate() {
        let (Origin::Host { .. } | Origin::Grave { .. }) = &object.origin else { continue };
        let ix = Ix(i as u32);
        let Some((dir, name)) = places.place(ix)? else { continue };
        let Ok(before) = env.io.stat_at(&dir, name) else { continue };
        if is_version(&object.origin, &before) {
            met.push((ix, dir, name, before));
        }
    }
    Ok(met)
}

/// What existed before, by identity.
fn known(set: &WriteSet) -> HashMap<HostId, Ix> {
    let id = |(i, o): (usize, &Object)| match &o.origin {
        Origin::Host { stamp, .. } => Some((stamp.id, Ix(i as u32))),
        _ => None,
    };
    set.objects.iter().enumerate().filter_map(id).collect()
}

/// Whether nothing but a copy-up lies between the two.
fn is_same(before: &Stat, now: &Stat) -> bool {
    let what = |s: &Stat| (s.kind, s.mode, s.uid, s.gid, s.size, s.mtime, s.rdev);
    // One of several names of a file in a lower layer gets a number of its own, and so does what
    // was made anew.
    let parted = match before.kind {
        Kind::Dir => false,
        Kind::File => before.nlink > 1,
        _ => true,
    };
    what(before) == what(now) && (before.id == now.id || parted)
}

/// Whether the number that this has in a lower layer would not last: what the overlay knows it by
/// is an extended attribute, and those of users are for files and directories only.
pub(crate) fn loses_number(stat: &Stat) -> bool {
    !matches!(stat.kind, Kind::File | Kind::Dir)
        && options(stat.dev).iter().any(|o| o == "userxattr")
}

struct Raise<'a> {
    env: Env<'a>,
    txn: TxnId,
    index: &'a Index<'a>,
    known: HashMap<HostId, Ix>,
    /// Whether the overlay keeps what it needs in attributes of users, once that was asked.
    userxattr: Option<bool>,
}

impl Raise<'_> {
    /// Has one object copied up, by a change that changes nothing; what it is then.
    fn one(&mut self, dir: &Handle, name: &[u8], ix: Ix, stat: &Stat) -> Result<Stat> {
        let io = self.env.io;
        let touch = || io.set_times(dir, name, Some(stat.atime), None);
        let done = match stat.kind {
            // This leaves no trace on one that is in the upper layer already.
            Kind::File => match io.open_to_write(dir, name).map(drop) {
                Err(e) if !is_fatal(&e) => touch(),
                done => done,
            },
            Kind::Dir => touch(),
            _ if !self.loses_number(stat) => touch(),
            _ if stat.nlink == 1 => self.make_anew(dir, name, ix, stat),
            // The transaction has seen two objects, so two it is that are committed.
            _ => match self.is_of_two_numbers(dir, name, ix, stat) {
                Ok(true) => self.make_anew(dir, name, ix, stat),
                of_one => of_one.map(drop),
            },
        };
        match done {
            Err(e) if is_fatal(&e) => Err(e),
            _ => io.stat_at(dir, name),
        }
    }

    /// Has copied up what is in a directory that is to be removed, if its content will have to be
    /// carried; whether it will.  What is to leave it is a matter of its own, and so is what goes
    /// with that.
    fn below(&mut self, at: &Handle, name: &[u8]) -> Result<bool> {
        let Env { io, layout, .. } = self.env;
        if is_movable(io, &layout.state, at, name).unwrap_or(true) {
            return Ok(false);
        }
        // Not by recursion: trees may be deeper than a stack.
        let mut todo = vec![io.open_dir(at, name)?];
        while let Some(dir) = todo.pop() {
            let at = io.stat(&dir)?.id;
            for name in names(io, &dir)? {
                let stat = match io.stat_at(&dir, &name) {
                    Err(e) if is_fatal(&e) => return Err(e),
                    Err(_) => continue,
                    Ok(stat) => stat,
                };
                let known = self.known.get(&stat.id);
                if known.is_some_and(|ix| self.index.leaves(*ix, at, &name)) {
                    continue;
                }
                if stat.kind == Kind::Dir {
                    todo.push(io.open_dir(&dir, &name)?);
                } else {
                    self.one(&dir, &name, Ix(0), &stat)?;
                }
            }
        }
        Ok(true)
    }

    /// As [`loses_number`], of what is in this overlay.
    fn loses_number(&mut self, stat: &Stat) -> bool {
        *self.userxattr.get_or_insert_with(|| loses_number(stat))
    }

    /// Puts a new object in the place of what is no file and no directory, in one step.
    fn make_anew(&self, dir: &Handle, name: &[u8], ix: Ix, stat: &Stat) -> Result<()> {
        let (io, temp) = (self.env.io, &self.env.layout.temp);
        let staged = temp_name(self.txn, 0, 'u', ix.0);
        match stat.kind {
            Kind::Symlink => io.symlink(&io.read_link(dir, name)?, temp, &staged)?,
            kind => io.mknod(temp, &staged, kind, stat.mode, stat.rdev)?,
        }
        let dress = || -> Result<()> {
            let made = io.stat_at(temp, &staged)?;
            if (made.uid, made.gid) != (stat.uid, stat.gid) {
                io.set_owner(temp, &staged, stat.uid, stat.gid)?;
            }
            if stat.kind != Kind::Symlink {
                io.set_mode(temp, &staged, stat.mode)?;
            }
            for key in io.list_xattr(dir, name)? {
                let value = io.get_xattr(dir, name, &key)?;
                io.set_xattr(temp, &staged, &key, &value)?;
            }
            io.set_times(temp, &staged, Some(stat.atime), Some(stat.mtime))
        };
        let done = dress();
        self.put(&staged, (dir, name), stat, done)
    }

    /// Whether a name of an object with several shows a number that will not last. As long as the
    /// kernel remembers a name from before the object was copied up for a link to it, that name
    /// shows the number in the lower layer, and the new one shows the lasting one.
    fn is_of_two_numbers(&self, dir: &Handle, name: &[u8], ix: Ix, stat: &Stat) -> Result<bool> {
        let (io, temp) = (self.env.io, &self.env.layout.temp);
        let link = temp_name(self.txn, 0, 'n', ix.0);
        io.link(dir, name, temp, &link)?;
        let lasting = io.stat_at(temp, &link);
        io.unlink(temp, &link)?;
        Ok(lasting?.id != stat.id)
    }

    /// Gives a file that was parted from a name that it had that name again.
    fn link_again(
        &self,
        (dir, name): (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        ix: Ix,
        seen: &Stat,
    ) -> Result<()> {
        if self.env.io.stat_at(to.0, to.1).is_ok_and(|stat| stat.stamp() == seen.stamp()) {
            let staged = temp_name(self.txn, 0, 'u', ix.0);
            self.env.io.link(dir, name, &self.env.layout.temp, &staged)?;
            self.put(&staged, to, seen, Ok(()))?;
        }
        Ok(())
    }

    /// Exchanges what is staged, if all went well, for what is to be `seen` at its place, and
    /// removes what is staged then. If it is something else, it stays.
    fn put(
        &self,
        staged: &[u8],
        (dir, name): (&Handle, &[u8]),
        seen: &Stat,
        done: Result<()>,
    ) -> Result<()> {
        let (io, temp) = (self.env.io, &self.env.layout.temp);
        let exchange = || io.rename(temp, staged, dir, name, Rename::Exchange);
        let done = done.and_then(|()| exchange()).and_then(|()| {
            let out = io.stat_at(temp, staged)?;
            let what = |s: &Stat| (s.kind, s.mode, s.uid, s.gid, s.size, s.mtime, s.rdev);
            if what(&out) == what(seen) { Ok(()) } else { exchange() }
        });
        io.unlink(temp, staged)?;
        done
    }
}

#[cfg(test)]
mod tests;
