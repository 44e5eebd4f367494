//! A program whose threads and processes work together in transactions, for the suites `ordered`,
//! `scoped`, `sharing` and `composing`: each case is checked here, where it happens, and ends with
//! a panic if something is wrong.

#![deny(unsafe_code)]

mod composing;
mod lasting;
mod ordered;
mod scoped;

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Instant;
use systx_e2e::cases::{Asked, asked};
use systx_e2e::run::HANG;

fn main() {
    let Asked { case, dir, number } = asked();
    let suites = [ordered::run, composing::run, scoped::run];
    if !suites.iter().any(|run| run(&case, &dir, number)) {
        panic!("no case {case}");
    }
    println!("ok");
}

/// The errno of what failed.
fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// This thread's number.
fn tid() -> u64 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into()
}

/// Waits for something that happens by itself, without sleeping for it in a way that could be taken
/// for waiting for another thread.
#[track_caller]
fn waits(mut until: impl FnMut() -> bool) {
    let limit = Instant::now() + HANG;
    while !until() {
        assert!(Instant::now() < limit, "it does not happen");
        std::thread::yield_now();
    }
}

/// A thread that was there before a transaction, and so is in none: it does what it is asked.
struct Sibling {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
}

/// What a sibling is doing.
struct Doing<T>(Receiver<T>);

impl<T> Doing<T> {
    fn wait(self) -> T {
        self.0.recv().expect("the sibling's words are above")
    }

    fn poll(&self) -> Option<T> {
        match self.0.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the sibling's words are above"),
        }
    }
}

impl Sibling {
    fn new() -> Sibling {
        let (jobs, todo) = channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || todo.into_iter().for_each(|job| job()));
        Sibling { jobs }
    }

    fn start<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Doing<T> {
        let (done, wait) = channel();
        let job = move || drop(done.send(job()));
        self.jobs.send(Box::new(job)).expect("the sibling's words are above");
        Doing(wait)
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(job).wait()
    }
}
