//! A bounded cache of open descriptors, so that a view of any size needs few of them.

use std::collections::HashMap;
use systx_base::NodeId;
use systx_base::sync::{Mutex, Rank};
use systx_store::io::Handle;

/// Least recently used handles go first, half of them at a time, so that the bookkeeping of one
/// use is one hash probe.
pub(crate) struct HandleCache {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tick: u64,
    open: HashMap<NodeId, (u64, Handle)>,
}

impl HandleCache {
    /// At most `limit` handles.
    pub fn new(rank: Rank, limit: usize) -> Self {
        HandleCache { limit: limit.max(2), state: Mutex::new(rank, State::default()) }
    }
    pub fn get(&self, node: NodeId) -> Option<Handle> {
        let mut state = self.state.lock();
        state.tick += 1;
        let tick = state.tick;
        let (used, handle) = state.open.get_mut(&node)?;
        *used = tick;
        Some(handle.clone())
    }
    pub fn put(&self, node: NodeId, handle: Handle) {
        let mut state = self.state.lock();
        if state.open.len() >= self.limit {
            let mut ages: Vec<u64> = state.open.values().map(|(used, _)| *used).collect();
            let middle = ages.len() / 2;
            let (_, median, _) = ages.select_nth_unstable(middle);
            let median = *median;
            state.open.retain(|_, (used, _)| *used >= median);
        }
        state.tick += 1;
        let tick = state.tick;
        state.open.insert(node, (tick, handle));
    }
    pub fn clear(&self) {
        self.state.lock().open.clear();
    }
}
