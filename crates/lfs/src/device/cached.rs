//! A device whose blocks are remembered for a while.

use super::Device;
use crate::format::BLOCK;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use systx_base::sync::{Mutex, rank};

/// A device with the blocks that were read or written last in memory.
///
/// A durable write goes past the kernel's cache, so what was committed just now would be read from
/// the medium again; and what the kernel has costs a call for each page.  One block is not written
/// by two threads at once.
pub struct Cached<D> {
    dev: D,
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blocks: HashMap<u64, Kept>,
    /// These, in the order in which they go, but for those that were used meanwhile.
    queue: VecDeque<u64>,
    /// Writes that have begun or ended: what was read beside one may be old.
    writes: u64,
}

struct Kept {
    bytes: Arc<[u8]>,
    used: bool,
}

impl<D: Device> Cached<D> {
    /// `most`: blocks in memory.
    pub fn new(dev: D, most: usize) -> Cached<D> {
        Cached { dev, most, state: Mutex::new(rank::LEAF, State::default()) }
    }

    /// Blocks in memory.
    pub fn kept(&self) -> usize {
        self.state.lock().blocks.len()
    }

    fn put(&self, state: &mut State, at: u64, bytes: &[u8]) {
        let kept = Kept { bytes: bytes.into(), used: false };
        if state.blocks.insert(at, kept).is_none() {
            state.queue.push_back(at);
        }
        while state.blocks.len() > self.most {
            let Some(oldest) = state.queue.pop_front() else { return };
            match state.blocks.get_mut(&oldest) {
                Some(kept) if kept.used => {
                    kept.used = false;
                    state.queue.push_back(oldest);
                }
                _ => drop(state.blocks.remove(&oldest)),
            }
        }
    }

    /// Nothing of these blocks is known while `write` is under way, and afterwards what it wrote.
    fn written(
        &self,
        at: u64,
        from: &[u8],
        write: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        {
            let state = &mut *self.state.lock();
            state.writes += 1;
            let mut gone = false;
            for n in 0..(from.len() / BLOCK) as u64 {
                gone |= state.blocks.remove(&(at + n)).is_some();
            }
            if gone {
                let blocks = &state.blocks;
                state.queue.retain(|at| blocks.contains_key(at));
            }
        }
        write()?;
        let mut state = self.state.lock();
        state.writes += 1;
        for (n, block) in (0..).zip(from.chunks_exact(BLOCK)) {
            self.put(&mut state, at + n, block);
        }
        Ok(())
    }
}

impl<D: Device> Device for Cached<D> {
    fn blocks(&self) -> u64 {
        self.dev.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        // What is longer is a blob, or somebody reads all there is.
        if to.len() != BLOCK {
            return self.dev.read(at, to);
        }
        let writes = {
            let mut state = self.state.lock();
            if let Some(kept) = state.blocks.get_mut(&at) {
                kept.used = true;
                to.copy_from_slice(&kept.bytes);
                return Ok(());
            }
            state.writes
        };
        self.dev.read(at, to)?;
        let mut state = self.state.lock();
        if state.writes == writes {
            self.put(&mut state, at, to);
        }
        Ok(())
    }
    fn soon(&self, at: u64, blocks: u64) {
        let is_kept = {
            let state = self.state.lock();
            (at..at.saturating_add(blocks)).all(|at| state.blocks.contains_key(&at))
        };
        if !is_kept {
            self.dev.soon(at, blocks);
        }
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.written(at, from, || self.dev.write(at, from))
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.written(at, from, || self.dev.write_durable(at, from))
    }
    fn sync(&self) -> io::Result<()> {
        self.dev.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    /// Counts reads; its writes may fail half way.
    struct Counting {
        dev: MemDevice,
        reads: AtomicUsize,
        fails: AtomicBool,
    }

    impl Device for Counting {
        fn blocks(&self) -> u64 {
            self.dev.blocks()
        }
        fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            self.reads.fetch_add(1, Relaxed);
            self.dev.read(at, to)
        }
        fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
            if self.fails.load(Relaxed) {
                self.dev.write(at, &from[..BLOCK])?;
                return Err(io::ErrorKind::Other.into());
            }
            self.dev.write(at, from)
        }
        fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
            self.write(at, from)
        }
        fn sync(&self) -> io::Result<()> {
            self.dev.sync()
        }
    }

    fn cached(most: usize) -> Cached<Counting> {
        let (reads, fails) = Default::default();
        Cached::new(Counting { dev: MemDevice::new(64), reads, fails }, most)
    }

    fn read(dev: &Cached<Counting>, at: u64) -> u8 {
        let mut block = [0; BLOCK];
        dev.read(at, &mut block).unwrap();
        block[7]
    }

    #[test]
    fn what_was_written_or_read_is_not_read_again() {
        let dev = cached(8);
        dev.write_durable(3, &[[1; BLOCK], [2; BLOCK]].concat()).unwrap();
        assert_eq!((read(&dev, 3), read(&dev, 4), read(&dev, 5), read(&dev, 5)), (1, 2, 0, 0));
        assert_eq!(dev.dev.reads.load(Relaxed), 1);
        dev.write(4, &[9; BLOCK]).unwrap();
        assert_eq!((read(&dev, 3), read(&dev, 4)), (1, 9));
        assert_eq!(dev.dev.reads.load(Relaxed), 1);
    }

    #[test]
    fn of_a_write_that_fails_nothing_is_believed() {
        let dev = cached(8);
        dev.write(3, &[[1; BLOCK], [2; BLOCK]].concat()).unwrap();
        dev.dev.fails.store(true, Relaxed);
        dev.write(3, &[[5; BLOCK], [6; BLOCK]].concat()).unwrap_err();
        assert_eq!((read(&dev, 3), read(&dev, 4)), (5, 2), "as the medium has it");
    }

    #[test]
    fn so_many_blocks_stay_and_what_is_used_stays_longest() {
        let dev = cached(4);
        for at in 0..4 {
            dev.write(at, &[at as u8; BLOCK]).unwrap();
        }
        for at in 10..40 {
            assert_eq!(read(&dev, 1), 1);
            assert_eq!(read(&dev, at), 0);
            assert!(dev.kept() <= 4);
        }
        assert_eq!(
            dev.dev.reads.load(Relaxed),
            30,
            "the one that is used all the time is not read"
        );
        // The same block again and again takes one place.
        for _ in 0..100 {
            dev.write(2, &[3; BLOCK]).unwrap();
        }
        assert!(dev.state.lock().queue.len() <= 4);
    }

    /// Writers of the same blocks beside readers: nobody sees an older number than he saw before.
    #[test]
    fn nothing_old_is_kept_beside_writes() {
        let dev = cached(8);
        std::thread::scope(|scope| {
            for at in 0..2 {
                let dev = &dev;
                scope.spawn(move || {
                    for n in 1..=200 {
                        dev.write(at, &[n; BLOCK]).unwrap();
                        assert_eq!(read(dev, at), n);
                    }
                });
                scope.spawn(move || {
                    let mut last = 0;
                    for _ in 0..2000 {
                        let now = read(dev, at);
                        assert!(last <= now, "{last} and then {now}");
                        last = now;
                    }
                });
            }
        });
    }
}
