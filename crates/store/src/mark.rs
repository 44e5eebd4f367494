//! The mark: a note of how far installing went, so that recovery does not do again what others may
//! have built on since.
//!
//! It is written without a sync, and so is what it speaks of.  It counts while both are there to be
//! read: under the same mount instance ([`crate::instance`]), and as long as no sync has failed.
//! (The kernel may drop a page that it could not write, and reads the old one from the disk then.)
//! A failed sync withdraws it; so recovery first asks for an error that nobody has been told of.

use crate::instance::Instance;
use crate::io::{Class, Handle, Io, Open};
use crate::layout::{Layout, ensure_file, found};
use std::io::Result;
use systx_base::codec::{Decoder, Encoder};
use systx_base::sync::{Mutex, rank};

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub store: u64,
    pub epoch: u64,
    /// Up to which all is installed.
    pub lsn: u64,
    pub instance: Instance,
}

pub(crate) const NAME: &[u8] = b"applied";
const BYTES: usize = 64;

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u64(self.store);
        e.u64(self.epoch);
        e.u64(self.lsn);
        self.instance.boot.iter().for_each(|b| e.u8(*b));
        e.u64(self.instance.mount);
        let mut bytes = e.finish();
        bytes.resize(BYTES - 4, 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Mark> {
        let (body, crc) = bytes.split_last_chunk::<4>().filter(|_| bytes.len() == BYTES)?;
        if u32::from_le_bytes(*crc) != crc32c::crc32c(body) {
            return None;
        }
        let mut d = Decoder::new(body);
        let (store, epoch, lsn) = (d.u64().ok()?, d.u64().ok()?, d.u64().ok()?);
        let mut boot = [0; 16];
        for byte in &mut boot {
            *byte = d.u8().ok()?;
        }
        let instance = Instance { boot, mount: d.u64().ok()? };
        Some(Mark { store, epoch, lsn, instance })
    }

    pub fn load(io: &dyn Io, layout: &Layout) -> Result<Option<Mark>> {
        let Some(file) = found(io.open_file(&layout.state, NAME, Open::Read))? else {
            return Ok(None);
        };
        let mut bytes = vec![0; BYTES];
        let got = io.read_at(&file, &mut bytes, 0)?;
        Ok(Mark::decode(&bytes[..got]))
    }

    /// Up to which record everything is installed and there, under the instance that is `now`; 0 if
    /// that is not known.
    pub fn believed(&self, io: &dyn Io, layout: &Layout, now: Instance, class: Class) -> u64 {
        if !now.still(&self.instance, class) {
            return 0;
        }
        if class != Class::Memory
            && let Err(error) = io.sync_fs()
        {
            tracing::warn!(%error, "what was installed may not be there: it is installed again");
            withdraw(io, layout);
            return 0;
        }
        self.lsn
    }
}

/// From here on the mark of a store does not count, whoever wrote it: a sync of its file system has
/// failed.
pub(crate) fn withdraw(io: &dyn Io, layout: &Layout) {
    let write = || -> Result<()> {
        let Some(mark) = Mark::load(io, layout)? else { return Ok(()) };
        let file = ensure_file(io, &layout.state, NAME)?;
        io.write_at(&file, &Mark { instance: Instance::default(), ..mark }.encode(), 0)
    };
    if let Err(error) = write() {
        // Nothing more can be written there before it is mounted again, which is another instance.
        tracing::warn!(%error, "the mark of what is installed is not withdrawn");
    }
}

/// The mark as an open store writes it.
pub(crate) struct Marks(Mutex<Written>);

#[derive(Default)]
struct Written {
    file: Option<Handle>,
    lsn: u64,
    withdrawn: bool,
}

impl Marks {
    pub fn new() -> Marks {
        Marks(Mutex::new(rank::LEAF, Written::default()))
    }

    /// Writes it, unless it says more already, or nothing any more.
    pub fn advance(&self, io: &dyn Io, layout: &Layout, mark: Mark) -> Result<()> {
        let mut written = self.0.lock();
        if written.withdrawn || mark.lsn <= written.lsn {
            return Ok(());
        }
        let file = match &written.file {
            Some(file) => file.clone(),
            None => ensure_file(io, &layout.state, NAME)?,
        };
        io.write_at(&file, &mark.encode(), 0)?;
        (written.file, written.lsn) = (Some(file), mark.lsn);
        Ok(())
    }

    /// For good: a sync has failed.
    pub fn withdraw(&self, io: &dyn Io, layout: &Layout) {
        let mut written = self.0.lock();
        written.withdrawn = true;
        withdraw(io, layout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark =
        Mark { store: 1, epoch: 2, lsn: 3, instance: Instance { boot: [4; 16], mount: 5 } };

    #[test]
    fn a_mark_round_trips_and_any_flipped_byte_is_seen() {
        let bytes = MARK.encode();
        assert_eq!((bytes.len(), Mark::decode(&bytes)), (BYTES, Some(MARK)));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert_eq!(Mark::decode(&bad), None, "byte {at}");
        }
        for short in 0..bytes.len() {
            assert_eq!(Mark::decode(&bytes[..short]), None);
        }
    }

    #[test]
    fn a_mark_never_goes_back_and_not_on_after_a_failed_sync() {
        let s = crate::testing::Scratch::new();
        let io = s.io();
        let state = Layout::make(&*io, b".systx", None).unwrap();
        let layout = Layout::complete(&*io, b".systx", state).unwrap();
        let marks = Marks::new();
        let lsn = |n| Mark { lsn: n, ..MARK };
        let read = || Mark::load(&*io, &layout).unwrap();
        marks.withdraw(&*io, &layout);
        assert_eq!(read(), None);
        let marks = Marks::new();
        for n in [4, 3, 5] {
            marks.advance(&*io, &layout, lsn(n)).unwrap();
            assert_eq!(read(), Some(lsn(n.max(4))));
        }
        marks.withdraw(&*io, &layout);
        marks.advance(&*io, &layout, lsn(6)).unwrap();
        let left = read().unwrap();
        assert_eq!((left.lsn, left.instance), (5, Instance::default()));
    }
}
