//! The end of a store that was never used.

use crate::io::Io;
use crate::layout::{Layout, found, names, remove_all};
use std::io::Result;

/// Removes a store in which nothing was ever committed; its lock is held.  Whatever a store does
/// not have before its first commit stays, and the directory with it.
pub(crate) fn remove_unused(io: &dyn Io, layout: &Layout) -> Result<()> {
    const STAGED: [&[u8]; 4] = [b"j", b"s", b"t", b"p"];
    const EMPTY: [&[u8]; 3] = [b"g", b"h", b"d"];
    let all = names(io, &layout.state)?;
    let is_new = |name: &[u8]| {
        [&b"lock"[..], b"spare"].contains(&name) || STAGED.contains(&name) || EMPTY.contains(&name)
    };
    if !all.iter().all(|name| is_new(name)) {
        return Ok(());
    }
    // Some transaction has content there.
    for name in names(io, &layout.slots)? {
        let slot = found(io.open_file(&layout.slots, &name, crate::io::Open::Read))?;
        if slot.map_or(Ok(false), |slot| io.is_locked(&slot))? {
            return Ok(());
        }
    }
    for name in EMPTY.iter().filter(|name| all.iter().any(|there| there == **name)) {
        io.rmdir(&layout.state, name)?;
    }
    // The lock last: without it, another process makes a new one.
    for name in STAGED.into_iter().chain([&b"spare"[..], b"lock"]) {
        remove_all(io, &layout.state, name)?;
    }
    let (above, name) = match layout.path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&layout.path[..at], &layout.path[at + 1..]),
        None => (&b""[..], &layout.path[..]),
    };
    let mut at = io.root();
    for part in above.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        at = io.open_dir(&at, part)?;
    }
    io.rmdir(&at, name)
}
