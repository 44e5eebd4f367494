//! How a transaction waits for what it has seen to be known everywhere.

use super::SharedVolume;
use crate::inode_locks::Ticket;
use crate::landing::{AT_ONCE, Call, LANDING};
use std::sync::Arc;
use std::time::Instant;
use systx_base::{Oid, TxnId};
use systx_txn::ObjectRef;
use systx_vfs::neighbours::Before;

impl SharedVolume {
    /// Waits until the kernel knows of every plain change of a name, of attributes or of a length
    /// that a transaction may have seen. No longer than a moment: what an answer takes to arrive,
    /// nobody has to be sure of.
    ///
    /// Hold no lock that a request of a plain program may need.
    pub fn land_seen(&self, owner: TxnId, before: Before) {
        let engine = &self.engine;
        // Plain changes are held for an aged one, with the lock that a barrier needs: it would lose
        // to them when their time is up.
        if engine.is_reserved(owner) {
            return;
        }
        let saw = |(place, call): &(Oid, Arc<Call>)| {
            let (place, what) = (*place, &call.what);
            let entry = |name| engine.holds(owner, ObjectRef::Entry { dir: place, name });
            before == Before::EndOfSnapshot
                || what.attributes && engine.holds(owner, ObjectRef::Attr(place))
                || !what.names.is_empty() && engine.holds(owner, ObjectRef::List(place))
                || what.names.iter().any(|name| entry(name))
                || what.length
                    && engine.holds(owner, ObjectRef::Size(place))
                    && !(before == Before::Locks && self.is_open_guarded(call.host))
        };
        let seen: Vec<_> = self.landing.all().into_iter().filter(saw).collect();
        let until = Instant::now() + LANDING;
        for some in seen.chunks(AT_ONCE) {
            for (place, call) in some {
                self.send_landing(*place, call);
            }
            for (place, call) in some {
                if !self.landing.wait(*place, call.number, until) {
                    tracing::warn!(
                        ?place,
                        thread = call.thread,
                        "a change that was seen may not be known everywhere"
                    );
                }
            }
        }
    }

    /// A barrier, in a thread.
    fn send_landing(&self, place: Oid, call: &Call) {
        let known = self.guarded_now().into_iter().find_map(|guarded| {
            let node = guarded.plain.node_of(call.host)?;
            Some((guarded, node))
        });
        let Some((guarded, node)) = known else {
            // What the kernel does not know it does not show.
            self.landing.landed(place, call.number);
            return;
        };
        let (landing, number) = (Arc::clone(&self.landing), call.number);
        let barrier = move || {
            let passed = if guarded.plain.is_dir(node) {
                guarded.caches.barrier(node)
            } else {
                guarded.caches.file_barrier(node, Ticket::PASS)
            };
            match passed {
                Ok(()) => landing.landed(place, number),
                Err(errno) => tracing::warn!(%errno, ?node, "no barrier"),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("landing".into()).spawn(barrier) {
            tracing::warn!(%error, "no thread for a barrier");
        }
    }
}
