//! Calls that have changed a file's content and may not be over: the view has performed them, but
//! the kernel learns the new length only as they end (`fuse_write_update_attr`, `fuse_do_setattr`).
//!
//! Such a call has its inode locked from before the request until it is over, so there is one at
//! the most for each file, and another thread's next one means that it has ended. So has the same
//! thread's next request. That nobody has asked anything since says nothing.

use std::collections::HashMap;

use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};
use systx_vfs::api::Caller;

/// See the module: by file, the call that came last.
pub(crate) struct InFlight(Mutex<HashMap<NodeId, Call>>);

/// A call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    thread: u32,
    /// Tells those of one thread apart.
    number: u64,
}

impl InFlight {
    pub fn new() -> InFlight {
        InFlight(Mutex::new(rank::LEAF, HashMap::new()))
    }

    /// To be called before the change is performed: who sees it finds this.
    pub fn begins(&self, file: NodeId, by: Caller) {
        let mut calls = self.0.lock();
        let number = calls.get(&file).map_or(0, |call| call.number + 1);
        calls.insert(file, Call { thread: by.tid, number });
    }

    /// A thread asks something else about the file.
    pub fn next_call(&self, file: NodeId, by: Caller) {
        let mut calls = self.0.lock();
        // Threads that the kernel cannot name here are all 0.
        if by.tid != 0 && calls.get(&file).is_some_and(|call| call.thread == by.tid) {
            calls.remove(&file);
        }
    }

    /// As [`InFlight::next_call`]; somebody else's call that may not be over.
    pub fn of_another(&self, file: NodeId, than: Caller) -> Option<Call> {
        self.next_call(file, than);
        self.0.lock().get(&file).copied()
    }

    /// It is over.
    pub fn landed(&self, file: NodeId, call: Call) {
        let mut calls = self.0.lock();
        if calls.get(&file) == Some(&call) {
            calls.remove(&file);
        }
    }

    pub fn is_any(&self, file: NodeId) -> bool {
        self.0.lock().contains_key(&file)
    }

    pub fn forget(&self, file: NodeId) {
        self.0.lock().remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_over_when_its_thread_asks_something_else() {
        let calls = InFlight::new();
        let [a, b, unknown] = [7, 8, 0].map(|tid| Caller { uid: 0, gid: 0, tid });
        let (file, other) = (NodeId(1), NodeId(2));
        calls.begins(file, a);
        assert!(calls.is_any(file) && !calls.is_any(other));
        let first = calls.of_another(file, b).unwrap();
        assert_eq!(calls.of_another(file, b), Some(first));
        assert_eq!(calls.of_another(file, a), None);
        assert_eq!(calls.of_another(file, b), None);
        calls.begins(file, unknown);
        let second = calls.of_another(file, unknown).unwrap();
        calls.begins(file, unknown);
        calls.landed(file, second);
        assert!(calls.is_any(file), "the next one has begun");
        calls.landed(file, calls.of_another(file, b).unwrap());
        assert!(!calls.is_any(file));
        calls.begins(file, a);
        calls.forget(file);
        assert!(!calls.is_any(file));
    }
}
