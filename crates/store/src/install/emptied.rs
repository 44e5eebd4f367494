//! What somebody has put into a directory while it was on its way out.
//!
//! Between the last look of the commit and the removal anybody may make something in a directory
//! that goes, and it goes with it.  So the directory is looked through in the graveyard, where no
//! path leads any more.

use super::{Place, Stopped};
use crate::env::{Env, is_fatal};
use crate::io::{Handle, HostId};
use crate::layout::{found, names};
use crate::writeset::Emptied;
use crate::writeset::index::{Index, join, split};
use std::io::Result;
use systx_base::Kind;

/// What the transaction did not mean to remove.
pub(super) struct Stranger {
    pub(super) place: Place,
    /// Where it was made, below the volume's root.
    pub(super) path: Vec<u8>,
}

/// Looks through the directory at `at`, which was at `path` before, and those in it that went with
/// it. `is_ours` tells of objects that this commit may have given a name there.
pub(super) fn strangers(
    env: &Env<'_>,
    index: &Index<'_>,
    (at, path): (Place, &[u8]),
    is_ours: &dyn Fn(HostId) -> bool,
) -> std::result::Result<Vec<Stranger>, Stopped> {
    let mut strangers = Vec::new();
    // By a list and not by recursion: trees may be deeper than a stack.
    let mut todo: Vec<_> = index.emptied(path).map(|dir| (at, dir)).into_iter().collect();
    while let Some((at, dir)) = todo.pop() {
        let looked = look(env, index, (&at, dir), is_ours, &mut strangers);
        match looked {
            Ok(below) => todo.extend(below),
            Err(e) if is_fatal(&e) => return Err(Stopped { path: dir.path.clone(), error: e }),
            // One that its owner may not read, who has removed it without a look as well.
            Err(_) => {}
        }
    }
    Ok(strangers)
}

/// Looks through one directory; the directories in it that are to be looked through as well.
fn look<'a>(
    env: &Env<'_>,
    index: &Index<'a>,
    (at, expected): (&Place, &Emptied),
    is_ours: &dyn Fn(HostId) -> bool,
    strangers: &mut Vec<Stranger>,
) -> Result<Vec<(Place, &'a Emptied)>> {
    let Some(now) = found(env.io.stat_at(&at.dir, &at.name))? else { return Ok(Vec::new()) };
    // Whatever is done to a name moves this time, also what this commit has moved out.
    let is_as_it_was = now.mtime == expected.mtime;
    let below = index.emptied_in(&expected.path);
    if now.kind != Kind::Dir || is_as_it_was && below.is_empty() {
        return Ok(Vec::new());
    }
    let Some(dir) = found(env.io.open_dir(&at.dir, &at.name))? else { return Ok(Vec::new()) };
    for name in if is_as_it_was { Vec::new() } else { names(env.io, &dir)? } {
        if !is_known(env, &dir, &name, expected, is_ours)? {
            let path = join(expected.path.clone(), &name);
            strangers.push(Stranger { place: Place::own(&dir, &name), path });
        }
    }
    Ok(below.iter().map(|inside| (Place::own(&dir, split(&inside.path).1), *inside)).collect())
}

fn is_known(
    env: &Env<'_>,
    dir: &Handle,
    name: &[u8],
    expected: &Emptied,
    is_ours: &dyn Fn(HostId) -> bool,
) -> Result<bool> {
    let Some(stat) = found(env.io.stat_at(dir, name))? else { return Ok(true) };
    let is_expected = match expected.names.get(name) {
        // On an overlay one object may have two numbers.
        Some(id) => env.overlay || id.is_none_or(|id| id == stat.id),
        None => false,
    };
    Ok(is_expected || stat.kind != Kind::Dir && is_ours(stat.id))
}
