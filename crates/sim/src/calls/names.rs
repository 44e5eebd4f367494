//! What link and rename do to names.

use crate::world::{Res, World};
use rustix::io::Errno;
use std::collections::BTreeMap;
use systx_base::Kind;
use systx_store::io::Rename;

pub(super) fn link(w: &mut World, from: (u64, &[u8]), to: (u64, &[u8])) -> Res<()> {
    let ino = w.find(from.0, from.1)?;
    if w.find_opt(to.0, to.1)?.is_some() {
        return Err(Errno::EXIST);
    }
    w.may_add(to.0)?;
    let inode = w.inode(ino)?;
    if inode.kind == Kind::Dir {
        return Err(Errno::PERM);
    }
    if inode.nlink == 0 {
        return Err(Errno::NOENT);
    }
    if inode.nlink >= 65_000 {
        return Err(Errno::MLINK);
    }
    w.bind(to.0, to.1, Some(ino));
    w.add_links(ino, 1);
    w.touch(ino, false);
    w.touch(to.0, true);
    Ok(())
}

pub(super) fn is_dir(w: &World, ino: u64) -> bool {
    w.inode(ino).is_ok_and(|i| i.kind == Kind::Dir)
}

pub(super) fn rename(w: &mut World, from: (u64, &[u8]), to: (u64, &[u8]), how: Rename) -> Res<()> {
    let source = w.find(from.0, from.1)?;
    let old = w.find_opt(to.0, to.1)?;
    match (how, old) {
        (Rename::NoReplace, Some(_)) => return Err(Errno::EXIST),
        (Rename::Exchange, None) => return Err(Errno::NOENT),
        _ => {}
    }
    let source_dir = is_dir(w, source);
    if source_dir && w.below(to.0, source) {
        return Err(Errno::INVAL);
    }
    if let Some(old) = old {
        if is_dir(w, old) && w.below(from.0, old) {
            let exchange = how == Rename::Exchange;
            return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if old == source {
            return Ok(());
        }
        if how == Rename::Exchange {
            exchange(w, (from, source), (to, old));
            return Ok(());
        }
        w.may_add(to.0)?;
        match (source_dir, is_dir(w, old)) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !w.inode(old)?.entries().is_some_and(BTreeMap::is_empty) => {
                return Err(Errno::NOTEMPTY);
            }
            _ => {}
        }
    }
    w.may_add(to.0)?;
    // Add before remove: within one call a weak file system may persist either, and a strong one
    // both.
    w.bind(to.0, to.1, Some(source));
    w.bind(from.0, from.1, None);
    if source_dir {
        w.add_links(from.0, -1);
        w.add_links(to.0, 1);
        w.set_parent(source, to.0);
    }
    if let Some(old) = old {
        w.unname(old, to.0);
    }
    w.touch(source, false);
    w.touch(from.0, true);
    w.touch(to.0, true);
    Ok(())
}

fn exchange(w: &mut World, a: ((u64, &[u8]), u64), b: ((u64, &[u8]), u64)) {
    let ((a_dir, a_name), a_ino) = a;
    let ((b_dir, b_name), b_ino) = b;
    w.bind(a_dir, a_name, Some(b_ino));
    w.bind(b_dir, b_name, Some(a_ino));
    let (a_is, b_is) = (i32::from(is_dir(w, a_ino)), i32::from(is_dir(w, b_ino)));
    w.add_links(a_dir, b_is - a_is);
    w.add_links(b_dir, a_is - b_is);
    w.set_parent(a_ino, b_dir);
    w.set_parent(b_ino, a_dir);
    for (ino, mtime) in [(a_ino, false), (b_ino, false), (a_dir, true), (b_dir, true)] {
        w.touch(ino, mtime);
    }
}
