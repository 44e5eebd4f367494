//! What a worker is doing, for the watchdog to see: written by one thread, at a few nanoseconds a
//! request, and read by another one now and then.
//!
//! A worker reads no clock.  It counts: the number is odd while a request is in service.  Who finds
//! the same odd number twice knows that one request was in service all the time in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use systx_base::sync::{Mutex, rank};

use crate::wire::InHeader;

/// Workers that stand in for one another: requests of a group wait while all of it is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Group {
    /// The ring of one CPU.
    Queue(usize),
    /// Readers of /dev/fuse as the transport.
    Device,
    /// One thread whose requests no client waits for, or that serves absent CPUs.
    Alone,
}

/// One worker's place.
#[derive(Debug)]
pub(crate) struct Post {
    group: Group,
    thread: i32,
    turn: AtomicU64,
    /// Signs of life within one turn.
    beats: AtomicU64,
    opcode: AtomicU32,
    node: AtomicU64,
}

/// What a post showed at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub group: Group,
    /// Thread id.
    pub thread: i32,
    /// Odd: in service.
    pub turn: u64,
    pub beats: u64,
    pub opcode: u32,
    pub node: u64,
}

impl Post {
    fn new(group: Group) -> Self {
        Post {
            group,
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            turn: 0.into(),
            beats: 0.into(),
            opcode: 0.into(),
            node: 0.into(),
        }
    }

    /// A request is in service until the answer is dropped.  By the post's own thread.
    pub fn serve(&self, request: &InHeader) -> Serving<'_> {
        self.opcode.store(request.opcode, Ordering::Relaxed);
        self.node.store(request.nodeid, Ordering::Relaxed);
        self.step();
        Serving(self)
    }

    /// The request at hand waits, but by its own will, and it will look around again.
    pub fn beat(&self) {
        // Written by this thread only.
        self.beats.store(self.beats.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The thread that this is the place of.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// Requests that were in service so far.
    pub fn served(&self) -> u64 {
        self.turn.load(Ordering::Relaxed) / 2
    }

    fn step(&self) {
        self.turn.store(self.turn.load(Ordering::Relaxed) + 1, Ordering::Release);
        // What the next turn writes is not seen with this one's number.
        fence(Ordering::Release);
    }

    /// From any thread; `None` if it changed while it was read.
    pub fn see(&self) -> Option<Seen> {
        let turn = self.turn.load(Ordering::Acquire);
        let seen = Seen {
            group: self.group,
            thread: self.thread,
            turn,
            beats: self.beats.load(Ordering::Relaxed),
            opcode: self.opcode.load(Ordering::Relaxed),
            node: self.node.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        (self.turn.load(Ordering::Relaxed) == turn).then_some(seen)
    }
}

pub(crate) struct Serving<'a>(&'a Post);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.step();
    }
}

/// The posts of a connection.  Lock order: a leaf.
pub(crate) struct Posts(Mutex<Vec<Arc<Post>>>);

impl Posts {
    pub fn new() -> Self {
        Posts(Mutex::new(rank::LEAF, Vec::new()))
    }

    /// A post for the calling thread, which leaves it by dropping it.
    pub fn take(&self, group: Group) -> Arc<Post> {
        let post = Arc::new(Post::new(group));
        let mut posts = self.0.lock();
        posts.retain(|p| Arc::strong_count(p) > 1);
        posts.push(Arc::clone(&post));
        post
    }

    /// What those show that are held by a thread; `None` for one that was changing.
    pub fn see(&self) -> Vec<Option<Seen>> {
        let mut posts = self.0.lock();
        posts.retain(|p| Arc::strong_count(p) > 1);
        posts.iter().map(|p| p.see()).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_post_shows_what_is_in_service() {
        let posts = Posts::new();
        let post = posts.take(Group::Queue(3));
        let idle = post.see().unwrap();
        assert_eq!((idle.turn, idle.group), (0, Group::Queue(3)));
        let request = InHeader { opcode: 15, nodeid: 77, ..InHeader::default() };
        let serving = post.serve(&request);
        let busy = post.see().unwrap();
        assert_eq!((busy.turn, busy.opcode, busy.node), (1, 15, 77));
        post.beat();
        assert_ne!(post.see().unwrap(), busy, "a sign of life shows");
        drop(serving);
        assert_eq!(post.see().unwrap().turn, 2);
        drop(post);
        assert!(posts.see().is_empty(), "who has gone is not watched");
    }
}
