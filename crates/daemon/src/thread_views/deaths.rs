//! The ends of threads that have seats.

use crate::hall::Hall;
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use systx_base::sync::{Mutex, rank};
use systx_guard::aliases::Seat;

/// Waits for the ends of threads.
pub(super) struct Deaths {
    epoll: OwnedFd,
    watched: Mutex<HashMap<Seat, Arc<OwnedFd>>>,
}

impl Deaths {
    pub fn start(hall: Weak<Hall>) -> Option<Arc<Deaths>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = epoll.inspect_err(|errno| tracing::error!(%errno, "epoll")).ok()?;
        let watched = Mutex::new(rank::LEAF, HashMap::new());
        let deaths = Arc::new(Deaths { epoll, watched });
        let own = Arc::downgrade(&deaths);
        let thread = std::thread::Builder::new().name("seats".into());
        thread.spawn(move || Deaths::run(&own, &hall)).ok()?;
        Some(deaths)
    }

    pub fn add(&self, seat: Seat, fd: Arc<OwnedFd>) {
        let mut watched = self.watched.lock();
        let data = epoll::EventData::new_u64(seat.node().0);
        match epoll::add(&self.epoll, &*fd, data, epoll::EventFlags::IN) {
            Ok(()) => drop(watched.insert(seat, fd)),
            Err(errno) => tracing::warn!(%errno, "a thread is not watched"),
        }
    }

    /// This thread is not waited for any more.
    pub fn remove(&self, seat: Seat) {
        let gone = self.watched.lock().remove(&seat);
        // It may be held by others, so closing it would not do.
        if let Some(fd) = gone {
            let _ = epoll::delete(&self.epoll, &*fd);
        }
    }

    fn run(this: &Weak<Deaths>, hall: &Weak<Hall>) {
        const LOOK: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut events = Vec::with_capacity(16);
        loop {
            // Not kept alive while it waits for long: the directory may be unmounted.
            let Some(deaths) = this.upgrade() else { return };
            events.clear();
            let waited = epoll::wait(
                &deaths.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&LOOK),
            );
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "epoll");
                    return;
                }
            }
            let gone: Vec<u64> = events.iter().map(|e: &epoll::Event| e.data.u64()).collect();
            let seats: Vec<Seat> = {
                let watched = deaths.watched.lock();
                watched.keys().filter(|seat| gone.contains(&seat.node().0)).copied().collect()
            };
            drop(deaths);
            let Some(hall) = hall.upgrade() else { return };
            for seat in seats {
                hall.vacated(seat);
            }
        }
    }
}
