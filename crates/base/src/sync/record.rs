//! Sections of ranked locks, written down: which lock, from where, how long, on what data.
//!
//! Only with the feature `record`, of builds that are made to be measured.  Without it every
//! function here is empty, and what it would be told is not even computed.

/// A section has read or changed (`true`) what this number stands for.  `what` is called only if it
/// is written down.
#[inline(always)]
pub fn touch(what: impl FnOnce() -> (u64, bool)) {
    #[cfg(feature = "record")]
    on::touch(what());
    #[cfg(not(feature = "record"))]
    let _ = what;
}

/// A section asks the kernel for something.
#[inline(always)]
pub fn io() {
    #[cfg(feature = "record")]
    on::io();
}

#[cfg(feature = "record")]
pub use on::{Section, take};

#[cfg(feature = "record")]
pub(super) use on::{begin, end, wants};

#[cfg(feature = "record")]
mod on {
    use super::super::Rank;
    use std::cell::RefCell;
    use std::panic::Location;
    use std::sync::Mutex;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    /// A section that has ended.  Times are nanoseconds.
    #[derive(Clone, Debug)]
    pub struct Section {
        /// A number of its thread.
        pub thread: u32,
        /// Of its lock.
        pub rank: u8,
        /// Which of the locks of that rank: its address.
        pub lock: usize,
        /// Where it was taken.
        pub file: &'static str,
        /// The line there.
        pub line: u32,
        /// Shared with others.
        pub shared: bool,
        /// Locks that the thread held around it.
        pub depth: u8,
        /// When it was wanted, since the first section of all.
        pub wanted: u64,
        /// How long it was waited for.
        pub waited: u64,
        /// How long it was held.
        pub held: u64,
        /// Requests to the kernel while it was the innermost one.
        pub io: u32,
        /// What was read and changed.
        pub touched: Vec<(u64, bool)>,
    }

    /// Sections that are kept until somebody takes them.
    const MOST: usize = 1 << 20;

    static KEPT: Mutex<Vec<Section>> = Mutex::new(Vec::new());
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    static THREADS: AtomicU32 = AtomicU32::new(0);

    thread_local! {
        static NUMBER: u32 = THREADS.fetch_add(1, Ordering::Relaxed);
        static OPEN: RefCell<Vec<Section>> = const { RefCell::new(Vec::new()) };
    }

    fn now() -> u64 {
        BEGUN.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    /// Before a lock is waited for.
    pub(in super::super) fn wants() -> u64 {
        now()
    }

    /// It has been taken.
    pub(in super::super) fn begin(
        rank: Rank,
        lock: usize,
        shared: bool,
        wanted: u64,
        at: &'static Location<'static>,
    ) {
        let section = Section {
            thread: NUMBER.with(|n| *n),
            rank: rank.0,
            lock,
            file: at.file(),
            line: at.line(),
            shared,
            depth: OPEN.with_borrow(|open| open.len() as u8),
            wanted,
            waited: now() - wanted,
            held: 0,
            io: 0,
            touched: Vec::new(),
        };
        OPEN.with_borrow_mut(|open| open.push(section));
    }

    /// It is about to be released.
    pub(in super::super) fn end(lock: usize) {
        let ended = OPEN.with_borrow_mut(|open| {
            let at = open.iter().rposition(|s| s.lock == lock)?;
            Some(open.remove(at))
        });
        let Some(mut section) = ended else { return };
        section.held = now() - section.wanted - section.waited;
        let mut kept = KEPT.lock().unwrap_or_else(|e| e.into_inner());
        if kept.len() < MOST {
            kept.push(section);
        }
    }

    pub(super) fn touch(what: (u64, bool)) {
        OPEN.with_borrow_mut(|open| {
            if let Some(section) = open.last_mut() {
                section.touched.push(what);
            }
        });
    }

    pub(super) fn io() {
        OPEN.with_borrow_mut(|open| {
            if let Some(section) = open.last_mut() {
                section.io += 1;
            }
        });
    }

    /// Takes all sections that have ended.
    pub fn take() -> Vec<Section> {
        std::mem::take(&mut *KEPT.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

#[cfg(all(test, feature = "record"))]
mod tests {
    use super::super::{Event, Mutex, Rank, RwLock};
    use super::{io, take, touch};

    #[test]
    fn each_section_is_written_down_once_with_what_it_did() {
        let (a, b) = (Mutex::new(Rank(1), ()), RwLock::new(Rank(2), ()));
        let (mine, line) = (a.lock(), line!());
        touch(|| (7, true));
        let shared = b.read();
        io();
        drop(shared);
        drop(mine);
        // A wait is the end of one section, and the begin of another one.
        let event = Event::new();
        let mut waits = a.lock();
        event.wait_for(&mut waits, std::time::Duration::from_millis(1));
        drop(waits);
        let all: Vec<_> = take().into_iter().filter(|s| s.file == file!()).collect();
        assert_eq!(all.iter().map(|s| s.rank).collect::<Vec<_>>(), [2, 1, 1, 1]);
        assert_eq!((all[1].line, all[1].depth, all[1].io), (line, 0, 0));
        assert_eq!(all[1].touched, [(7, true)]);
        assert_eq!((all[0].depth, all[0].io, all[0].shared), (1, 1, true));
        assert_eq!(all[1].lock, all[3].lock);
    }
}
