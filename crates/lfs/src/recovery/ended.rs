//! Whether the log ends where recovery has stopped.
//!
//! A power cut leaves pieces of the one group that was being written, and of them the first one
//! follows the end directly.  A later group was begun when the one before it was durable.  So the
//! first piece of a later one is evidence that something was there which cannot be read now: to go
//! on would lose what was committed, and the next epoch would hide that.

use crate::error::{Error, Result, Structure};
use crate::format::Head;
use crate::piece::{self, Header, Purpose};
use crate::state::State;

/// Whether a piece begins a group that cannot be the one after `head`, in the epoch of `head`.
pub fn is_later(head: &Head, h: &Header) -> bool {
    h.purpose == Purpose::Commit && h.begin && h.epoch == head.epoch && h.lsn > head.lsn + 1
}

/// Looks where the log went on: in the rest of its last segment, in the next one, and in those that
/// pieces there lead to.
///
/// # Errors
/// [`Error::Corrupt`] if there is a later group; [`Error::Io`].
pub fn prove(state: &State) -> Result<()> {
    let (env, head) = (&state.tree.env, &state.head);
    let (mut segment, mut offset) = (head.segment, head.offset);
    for _ in 0..env.geometry.segments {
        let mut next = (segment == head.segment).then_some(head.next);
        while offset < env.geometry.segment_blocks {
            let found = match piece::read(&*env.dev, &env.geometry, &env.id, segment, offset) {
                // Where the next piece would stand has been read: alone it hides nothing.
                Err(Error::Unread { .. }) => None,
                other => other?,
            };
            // What cannot be read does not say how long it is.
            let Some(piece) = found else {
                offset += 1;
                continue;
            };
            let h = &piece.header;
            if is_later(head, h) {
                let end = env.geometry.first(head.segment) + u64::from(head.offset);
                let later = env.geometry.first(segment) + u64::from(offset);
                let why = format!(
                    "the log can be read to this place alone, and block {later} has a later \
                     commit: what is between is lost"
                );
                return Err(Error::corrupt(Structure::Summary, end, why));
            }
            if h.epoch == head.epoch && h.lsn > head.lsn {
                next = Some(h.next);
            }
            offset += piece.blocks();
        }
        let Some(found) = next else { break };
        (segment, offset) = (found, 0);
    }
    Ok(())
}
