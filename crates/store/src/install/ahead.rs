//! New files are made before their names are due, some at a time and by several threads: most of
//! what a commit of many small files takes is the making of each, where the file system lets others
//! work beside it.
//!
//! What makes this the same as making each when its turn comes:
//! - A file is made where nobody looks: in a new directory that is itself still out of sight, under
//!   its final name, or in staging, under a name of its own. No two threads ever touch one name,
//!   and each has its own share of the list.
//! - Only files that need nothing but their own record are made so: no further names, no extended
//!   attributes, no slot that becomes the file. All that names ([`super::names`]) rely on, who is
//!   displaced, what waits for what, is decided afterwards by one thread, in the order that it
//!   would have had.
//! - A crash finds at most [`WINDOW`] more built objects than before, which a resumed installation
//!   knows as such: those in staging by their names, those in new directories by their content. It
//!   makes nothing ahead itself.
//! - A thread that is refused anything removes what it was making and stops. The rest is made in
//!   its turn, and refusals are judged and reported there.

use super::objects::dress;
use super::{Place, Step, Stopped};
use crate::env::Env;
use crate::io::Stat;
use crate::writeset::{Content, Ix, Object};
use std::io::Result;

/// How many names are looked ahead, which bounds what is in staging at a time.
pub(super) const WINDOW: usize = 1024;

/// So many files keep a thread busy for longer than it takes to start it.
const SHARE: usize = 64;

/// A file to be made, and what it was then.
pub(super) struct Order<'c> {
    pub ix: Ix,
    pub object: &'c Object,
    pub place: Place,
    pub made: Option<Stat>,
}

/// Makes what is ordered, if several threads can.
pub(super) fn make(env: Env<'_>, orders: &mut [Order<'_>]) -> Step<()> {
    let threads = (orders.len() / SHARE).min(env.io.makers());
    // One thread gains nothing by it. Where there are never several, the order is kept all the
    // same: what a crash leaves is then tried out by who simulates one.
    if orders.is_empty() || env.io.makers() > 1 && threads < 2 {
        return Ok(());
    }
    if threads < 2 {
        return make_all(env, orders);
    }
    let share = orders.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let makers: Vec<_> = orders
            .chunks_mut(share)
            .filter_map(|orders| {
                let make = move || {
                    env.io.unmask();
                    make_all(env, orders)
                };
                let maker = std::thread::Builder::new().name("maker".into());
                // What a thread that could not be had would have made is made in its turn.
                maker.spawn_scoped(scope, make).ok()
            })
            .collect();
        // A panic of a maker is one of the installation.
        let ended = makers.into_iter().map(|maker| match maker.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<Vec<_>>().into_iter().collect::<Step<()>>()
    })
}

/// Makes files one after another, until one cannot be made.
///
/// # Errors
/// What was half made could not be removed: it would be in the way of a second attempt.
fn make_all(env: Env<'_>, orders: &mut [Order<'_>]) -> Step<()> {
    let mut masked = false;
    for order in orders {
        order.made = make_one(env, order, &mut masked)?;
        if order.made.is_none() {
            break;
        }
    }
    Ok(())
}

fn make_one(env: Env<'_>, order: &Order<'_>, masked: &mut bool) -> Step<Option<Stat>> {
    let Order { object, place, .. } = order;
    // Nobody sees it yet, so it may have its bits from the start.
    let mode = object.attrs.mode.map_or(0o600, |m| m & 0o777);
    let Ok(file) = env.io.create_file(&place.dir, &place.name, mode) else { return Ok(None) };
    let mut fill = || -> Result<Stat> {
        if let Content::Whole { len, extents } = &object.content {
            env.write_whole(&file, *len, extents, true)?;
        }
        let at = Place::open(file.clone());
        dress(env.io, &at, object.attrs, masked, |set| set)?
    };
    if let Ok(stat) = fill() {
        return Ok(Some(stat));
    }
    let removed = env.io.unlink(&place.dir, &place.name);
    removed.map_err(|error| Stopped { path: place.name.clone(), error })?;
    Ok(None)
}
