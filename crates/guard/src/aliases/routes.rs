//! Which thread's requests about the directory itself go to which transaction, in a mount that
//! routes by thread number (decision 0017).
//!
//! The kernel tells with each request which thread makes it, by a number. That number means the
//! thread only as long as the thread lives, so its pidfd is asked for each request that is routed:
//! a thread that answers a request has not ended, and its number is given to nobody else before its
//! pidfd says that it has.

use super::Member;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use systx_base::sync::{Mutex, rank};
use systx_base::{Gid, Uid};
use systx_vfs::api::Reply;
use systx_vfs::client;

/// A thread whose requests are routed.
pub struct Rider {
    /// Its number.
    pub tid: u32,
    /// On whose behalf it asks. What asks on another one's was executed since, with more rights: it
    /// must not be shown what an ordinary user has made up. Root may be anybody.
    pub uid: Uid,
    /// See `uid`.
    pub gid: Gid,
    /// Its pidfd.
    pub thread: Arc<OwnedFd>,
}

impl Rider {
    fn lives(&self) -> bool {
        let mut ended = [PollFd::new(&*self.thread, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec::default())) == Ok(0)
    }

    fn is_asking(&self) -> bool {
        let by = client::asking();
        self.uid == 0 || (by.uid, by.gid) == (self.uid, self.gid)
    }
}

/// Where requests of a thread go.
#[derive(Clone)]
enum To {
    Transaction(Arc<Member>),
    /// Its transaction ended with the daemon that had it, and it does not know that yet.
    Nowhere,
}

#[derive(Clone)]
struct Route {
    rider: Arc<Rider>,
    to: To,
    /// The transaction is paused.
    off: bool,
}

/// All of one mount.
pub(super) struct Routes {
    /// Looked at first, and nothing else if nobody is routed.
    count: AtomicUsize,
    by_tid: Mutex<HashMap<u32, Route>>,
}

impl Routes {
    pub fn new() -> Routes {
        Routes { count: AtomicUsize::new(0), by_tid: Mutex::new(rank::LEAF, HashMap::new()) }
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u32, Route>) -> T) -> T {
        let mut by_tid = self.by_tid.lock();
        let done = change(&mut by_tid);
        self.count.store(by_tid.len(), SeqCst);
        done
    }

    /// Where the request that this thread serves goes; `None`: to view 0.
    ///
    /// # Errors
    /// `ENOTCONN`: its transaction has ended with the daemon before this one. `EPERM`: what asks is
    /// not who has begun.
    pub fn find(&self) -> Reply<Option<Arc<Member>>> {
        if self.count.load(SeqCst) == 0 {
            return Ok(None);
        }
        let tid = client::thread();
        let Some(route) = self.by_tid.lock().get(&tid).cloned() else { return Ok(None) };
        if !route.rider.lives() {
            self.change(|all| {
                all.retain(|_, other| !Arc::ptr_eq(&other.rider, &route.rider));
            });
            return Ok(None);
        }
        if route.off {
            return Ok(None);
        }
        match route.to {
            _ if !route.rider.is_asking() => Err(Errno::PERM),
            To::Transaction(member) => Ok(Some(member)),
            To::Nowhere => Err(Errno::NOTCONN),
        }
    }

    /// Whether another transaction could be this thread's.
    pub fn is_free(&self, tid: u32) -> bool {
        let known = self.by_tid.lock().get(&tid).cloned();
        !known.is_some_and(|r| matches!(r.to, To::Transaction(_)) && r.rider.lives())
    }

    /// From now on its requests go there; to nowhere without a transaction.
    pub fn add(&self, rider: Rider, to: Option<Arc<Member>>) {
        let to = to.map_or(To::Nowhere, To::Transaction);
        let (tid, rider) = (rider.tid, Arc::new(rider));
        self.change(|all| drop(all.insert(tid, Route { rider, to, off: false })));
    }

    /// Whether requests go to this transaction, for as long as it has them at all.
    pub fn switch(&self, member: &Arc<Member>, on: bool) {
        self.change(|all| match all.get_mut(&member.tid) {
            Some(route) if route.is_to(member) => route.off = !on,
            _ => {}
        });
    }

    /// They do not go there any more.
    pub fn leave(&self, member: &Arc<Member>) {
        self.change(|all| match all.get(&member.tid) {
            Some(route) if route.is_to(member) => drop(all.remove(&member.tid)),
            _ => {}
        });
    }

    /// This thread knows that its transaction has ended.
    pub fn is_told(&self, tid: u32) {
        self.change(|all| {
            if let Some(Route { to: To::Nowhere, .. }) = all.get(&tid) {
                drop(all.remove(&tid));
            }
        });
    }
}

impl Route {
    fn is_to(&self, member: &Arc<Member>) -> bool {
        matches!(&self.to, To::Transaction(to) if Arc::ptr_eq(to, member))
    }
}
