//! The threads of one connection, and how they end.
//!
//! Life: [`Crew::hire`] starts a thread.  A thread ends by itself when the kernel says that the
//! connection is over, or when [`Crew::dismiss`] makes the stop descriptor readable, on which every
//! worker waits beside its requests.  [`Crew::wait`] returns when the last one is gone; only then
//! is what threads left behind (`Remains`) dropped, which ring memory relies on (`ring_unsafe.rs`).
//!
//! [`Pool`] counts the free workers of one queue: a worker that takes the last free place starts
//! another worker first, so that requests which block never exhaust a queue. One at a time: until
//! the newcomer is there, every further request would find the queue without a free worker and
//! start one more (a fresh view once got a handful of threads for one request after the other).
//!
//! A worker that never comes back from its request must not keep the connection's owner waiting:
//! [`Crew::abandon`] gives it up.
//!
//! Lock order: `Crew::state` is a leaf.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};
use systx_base::sync::{Event, Mutex, rank};

/// What must outlive the thread that used it.
pub(crate) type Remains = Option<Box<dyn Any + Send>>;

pub(crate) struct Crew {
    state: Mutex<State>,
    gone: Event,
    stop: OwnedFd,
    stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    live: usize,
    /// The threads that are left will not end.
    abandoned: bool,
    threads: Vec<JoinHandle<Remains>>,
}

impl Crew {
    pub fn new() -> io::Result<Self> {
        Ok(Crew {
            state: Mutex::new(rank::LEAF, State::default()),
            gone: Event::new(),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopping: AtomicBool::new(false),
        })
    }

    /// Starts a thread.
    pub fn hire(
        self: &Arc<Self>,
        name: String,
        work: impl FnOnce() -> Remains + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        let crew = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _leaving = Leaving(crew);
            work()
        })?;
        state.live += 1;
        state.threads.push(thread);
        Ok(())
    }

    /// Readable once the crew has been dismissed.
    pub fn stop_fd(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells every thread to end after the request at hand.
    pub fn dismiss(&self) {
        self.stopping.store(true, Ordering::Release);
        // Fails only if the counter would overflow, and then it is readable already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    pub fn live(&self) -> usize {
        self.state.lock().live
    }

    /// From now on nobody waits for threads that are still there.
    pub fn abandon(&self) {
        self.state.lock().abandoned = true;
        self.gone.notify_all();
    }

    /// Lets go of what those threads left behind that have ended, while others may not.
    pub fn reap(&self) {
        let ended: Vec<_> = {
            let mut state = self.state.lock();
            state.threads.extract_if(.., |thread| thread.is_finished()).collect()
        };
        ended.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Waits until the last thread has ended, or the rest is given up.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        while state.live > 0 && !state.abandoned {
            self.gone.wait(&mut state);
        }
        if state.live > 0 {
            drop(state);
            return self.reap();
        }
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        // Join all before the first of the remains is dropped.
        let remains: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
        drop(remains);
    }
}

struct Leaving(Arc<Crew>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.state.lock().live -= 1;
        self.0.gone.notify_all();
    }
}

/// Most workers of one queue. Each can be kept by a request that waits for another one, such as the
/// calls that a commit makes through its own mount: as many threads as end at once, or wait for one
/// commit, need as many workers, and one more. Each has two descriptors.
pub(crate) fn most_workers() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 8).unwrap_or(usize::MAX).clamp(256, 4096)
}

/// Free and total workers of one queue.
#[derive(Debug)]
pub(crate) struct Pool {
    free: AtomicUsize,
    total: AtomicUsize,
    limit: AtomicUsize,
    /// A worker that was asked for is not there yet.
    starting: AtomicBool,
}

impl Pool {
    pub fn new(limit: usize) -> Self {
        Pool { free: 0.into(), total: 0.into(), limit: limit.into(), starting: false.into() }
    }

    /// Workers that wait for a request.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// A worker was asked for and has not arrived.
    #[cfg(test)]
    pub fn starting(&self) -> bool {
        self.starting.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    #[cfg(test)]
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// A worker begins to wait for requests.
    pub fn enter(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
        // Who takes this place sees what was stored before, `starting` above all.
        self.free.fetch_add(1, Ordering::Release);
    }

    /// A worker that waited goes away.
    pub fn leave(&self) {
        self.total.fetch_sub(1, Ordering::Relaxed);
        self.free.fetch_sub(1, Ordering::Relaxed);
    }

    /// A worker has a request.  True if it was the last free one and another is to be started:
    /// whoever is told so sees to it that [`Pool::started`] is called.
    pub fn take(&self) -> bool {
        let last = self.free.fetch_sub(1, Ordering::Acquire) == 1;
        last && self.total.load(Ordering::Relaxed) < self.limit.load(Ordering::Relaxed)
            && !self.starting.swap(true, Ordering::Relaxed)
    }

    /// The worker that [`Pool::take`] asked for is about to enter, or does not come.  Before it
    /// enters, not after: if its place were taken in between, nobody would start the next.
    pub fn started(&self) {
        self.starting.store(false, Ordering::Relaxed);
    }

    /// A worker is free again.
    pub fn give(&self) {
        self.free.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_last_free_worker_asks_for_another_up_to_the_limit() {
        let pool = Pool::new(3);
        pool.enter();
        pool.enter();
        assert!(!pool.take());
        assert!(pool.take());
        pool.give();
        assert!(!pool.take(), "one that was asked for is on its way");
        pool.started();
        pool.enter();
        assert!(!pool.take(), "three workers are the limit");
        pool.give();
        pool.leave();
        assert_eq!(pool.total.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_thread_that_never_ends_is_given_up_and_what_others_left_is_not() {
        let crew = Arc::new(Crew::new().unwrap());
        let (end, stuck) = std::sync::mpsc::channel::<()>();
        let left = Arc::new(());
        let theirs = Arc::clone(&left);
        crew.hire("stuck".into(), move || {
            let _ = stuck.recv();
            None
        })
        .unwrap();
        crew.hire("ended".into(), move || Some(Box::new(theirs))).unwrap();
        crew.abandon();
        while Arc::strong_count(&left) > 1 {
            crew.wait();
        }
        assert_eq!(crew.live(), 1);
        drop(end);
    }

    #[test]
    fn waiting_joins_every_thread_before_it_drops_their_remains() {
        struct Remain(Arc<AtomicUsize>);
        impl Drop for Remain {
            fn drop(&mut self) {
                assert_eq!(self.0.load(Ordering::SeqCst), 2);
            }
        }
        let crew = Arc::new(Crew::new().unwrap());
        let ended = Arc::new(AtomicUsize::new(0));
        for i in 0..2 {
            let (ended, c) = (Arc::clone(&ended), Arc::clone(&crew));
            crew.hire(format!("t{i}"), move || {
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                    c.stop_fd(),
                    rustix::event::PollFlags::IN,
                )];
                rustix::event::poll(&mut fds, None).unwrap();
                ended.fetch_add(1, Ordering::SeqCst);
                Some(Box::new(Remain(Arc::clone(&ended))))
            })
            .unwrap();
        }
        assert_eq!(crew.live(), 2);
        crew.dismiss();
        crew.wait();
        assert_eq!(crew.live(), 0);
    }
}
