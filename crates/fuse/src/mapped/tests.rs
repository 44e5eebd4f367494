#![allow(clippy::unwrap_used)]

use std::sync::{Mutex as StdMutex, mpsc};

use systx_vfs::api::{Caller, NewAttr};

use super::*;
use crate::memfs::Memfs;

/// How long something may take that happens at once.
const HANG: Duration = Duration::from_secs(60);

/// Pages of a kernel: what is dirty in them, as writes of it, and what was asked.
#[derive(Default)]
struct Kernel {
    view: Arc<Memfs>,
    dirty: StdMutex<Vec<(u64, &'static [u8])>>,
    asked: StdMutex<Vec<Range<u64>>>,
    zeroed: StdMutex<Vec<Range<u64>>>,
    /// Nobody gets a page's lock before this says so.
    locked: StdMutex<Option<mpsc::Receiver<()>>>,
}

impl Pages for Kernel {
    fn forget_attributes(&self, _file: NodeId) -> io::Result<()> {
        Ok(())
    }
    fn write_back(&self, file: NodeId, range: Range<u64>) -> io::Result<()> {
        self.pass();
        self.asked.lock().unwrap().push(range.clone());
        let mut dirty = self.dirty.lock().unwrap();
        for (at, bytes) in dirty.extract_if(.., |(at, _)| range.contains(at)) {
            self.view.write_back(file, at, bytes).unwrap();
        }
        Ok(())
    }
    fn zero(&self, _file: NodeId, range: Range<u64>) -> io::Result<()> {
        self.pass();
        self.zeroed.lock().unwrap().push(range);
        Ok(())
    }
}

impl Kernel {
    fn pass(&self) {
        if let Some(locked) = self.locked.lock().unwrap().take() {
            locked.recv_timeout(HANG).unwrap();
        }
    }
}

/// A file of zeros with data in its third page of ten, and what is mapped of it.
fn sparse() -> (Arc<Kernel>, Mapped, NodeId) {
    let kernel = Arc::new(Kernel::default());
    let (nobody, new) = (Caller { uid: 0, gid: 0, tid: 0 }, NewAttr { mode: 0o644, umask: 0 });
    let file = kernel.view.create(nobody, NodeId::ROOT, b"f", new, true).unwrap().node;
    kernel.view.write(file, 10 * PAGE - 1, &[0], false).unwrap();
    kernel.view.write(file, 2 * PAGE, b"data", false).unwrap();
    let mapped = Mapped::new(kernel.clone());
    (kernel, mapped, file)
}

fn seek(kernel: &Kernel, mapped: &Mapped, file: NodeId, from: u64, how: Seek) -> Reply<u64> {
    mapped.seek(&*kernel.view, file, from, how)
}

#[test]
fn what_is_stored_in_a_hole_is_data_before_the_hole_is_told() {
    let stores: [(u64, Seek, u64, Reply<u64>); 6] = [
        (5000, Seek::Data, 0, Ok(PAGE)),
        (5000, Seek::Hole, PAGE, Ok(3 * PAGE)),
        (3 * PAGE + 1, Seek::Hole, 2 * PAGE, Ok(4 * PAGE)),
        (9 * PAGE, Seek::Data, 3 * PAGE, Ok(9 * PAGE)),
        (9 * PAGE, Seek::Hole, 9 * PAGE, Ok(10 * PAGE)),
        (2 * PAGE + 9, Seek::Data, 3 * PAGE, Err(Errno::NXIO)),
    ];
    for (at, how, from, want) in stores {
        let (kernel, mapped, file) = sparse();
        kernel.dirty.lock().unwrap().push((at, b"stored"));
        assert_eq!(seek(&kernel, &mapped, file, from, how), want, "{how:?} from {from}: {at}");
    }
}

#[test]
fn only_pages_of_the_hole_are_asked_for() {
    let (kernel, mapped, file) = sparse();
    let asked = || std::mem::take(&mut *kernel.asked.lock().unwrap());
    assert_eq!(seek(&kernel, &mapped, file, 2 * PAGE, Seek::Data), Ok(2 * PAGE));
    assert_eq!(seek(&kernel, &mapped, file, 10 * PAGE, Seek::Data), Err(Errno::NXIO));
    assert_eq!(asked(), [], "there is no hole");
    assert_eq!(seek(&kernel, &mapped, file, 7, Seek::Data), Ok(2 * PAGE));
    assert_eq!(asked(), std::slice::from_ref(&(7..2 * PAGE)));
    assert_eq!(seek(&kernel, &mapped, file, 2 * PAGE, Seek::Hole), Ok(3 * PAGE));
    assert_eq!(asked(), std::slice::from_ref(&(3 * PAGE..u64::MAX)));
    kernel.view.write(file, 0, &[b'x'; 10 * PAGE as usize], false).unwrap();
    assert_eq!(seek(&kernel, &mapped, file, 0, Seek::Hole), Ok(10 * PAGE));
    assert_eq!(asked(), [], "the end is no hole that anybody could have stored in");
}

#[test]
fn beyond_so_many_at_once_there_is_no_hole() {
    let (kernel, mapped, file) = sparse();
    mapped.asking.store(AT_ONCE, SeqCst);
    assert_eq!(seek(&kernel, &mapped, file, 7, Seek::Data), Ok(7));
    assert_eq!(seek(&kernel, &mapped, file, 0, Seek::Hole), Ok(10 * PAGE));
    assert_eq!(mapped.asking.load(SeqCst), AT_ONCE);
    assert!(kernel.asked.lock().unwrap().is_empty());
}

#[test]
fn a_hollow_file_has_blocks_once_the_kernel_may_have_pages_of_it() {
    let (kernel, mapped, file) = sparse();
    let attr = Attr { blocks: 0, ..kernel.view.getattr(file).unwrap() };
    assert_eq!(mapped.shown(file, attr).blocks, 0);
    mapped.has(file, PAGE);
    assert_eq!(mapped.shown(file, attr).blocks, 8);
    assert_eq!(mapped.shown(file, Attr { size: 0, ..attr }).blocks, 0);
    assert_eq!(mapped.shown(file, Attr { blocks: 16, ..attr }).blocks, 16);
    mapped.forget(file);
    assert_eq!(mapped.shown(file, attr).blocks, 0);
}

#[test]
fn a_gap_begins_with_zeros_where_the_kernel_may_have_the_page() {
    let (kernel, mapped, file) = sparse();
    let zeroed = || std::mem::take(&mut *kernel.zeroed.lock().unwrap());
    mapped.fill(file, 100..5000, false);
    // A part of a page, and a whole one before the end.
    mapped.written(file, 0, 4095);
    mapped.written(file, 1, 4098);
    mapped.fill(file, 100..5000, false);
    assert_eq!(zeroed(), [], "nobody has read that page, or written all of it");
    mapped.written(file, 1, 8191);
    mapped.fill(file, 8000..8010, false);
    mapped.fill(file, 8192..9000, false);
    mapped.fill(file, 9000..9001, false);
    assert_eq!(zeroed(), std::slice::from_ref(&(8000..8010)));
    mapped.has(file, 8193);
    mapped.fill(file, 8200..u64::MAX, false);
    assert_eq!(zeroed(), std::slice::from_ref(&(8200..12288)));
}

/// Nothing is put into the page: a write that has it locked would be answered before that, and what
/// a program stores after the answer would be covered.
#[test]
fn the_page_of_a_write_that_leaves_a_gap_is_forgotten_and_nothing_is_put_there() {
    let (kernel, mapped, file) = sparse();
    mapped.has(file, PAGE);
    mapped.fill(file, 3..6, true);
    let asked = || std::mem::take(&mut *kernel.asked.lock().unwrap());
    assert_eq!(asked(), std::slice::from_ref(&(3..6)));
    // The page is locked until the write is answered.
    let (unlock, locked) = mpsc::channel();
    *kernel.locked.lock().unwrap() = Some(locked);
    mapped.fill(file, 3..6, true);
    assert_eq!(asked(), [], "the page is locked");
    let after = *mapped.with_gaps(file, 0, b"abcdefgh") == *b"abcdefgh";
    unlock.send(()).unwrap();
    assert!(after, "stored after the answer, and lost");
    assert!(kernel.zeroed.lock().unwrap().is_empty());
}

#[test]
fn until_the_zeros_are_there_what_is_written_back_has_them_and_nobody_waits_for_ever() {
    let (kernel, mapped, file) = sparse();
    let (unlock, locked) = mpsc::channel();
    *kernel.locked.lock().unwrap() = Some(locked);
    mapped.has(file, PAGE);
    mapped.fill(file, 3..6, false);
    assert!(kernel.zeroed.lock().unwrap().is_empty(), "the page is locked");
    assert_eq!(*mapped.with_gaps(file, 0, b"abcdefgh"), *b"abc\0\0\0gh");
    assert_eq!(*mapped.with_gaps(file, 5, b"fgh"), *b"\0gh");
    assert_eq!(*mapped.with_gaps(file, 6, b"gh"), *b"gh");
    assert_eq!(*mapped.with_gaps(NodeId(99), 0, b"abcdefgh"), *b"abcdefgh");
    unlock.send(()).unwrap();
    let begun = Instant::now();
    while mapped.gaps.count.load(SeqCst) > 0 && begun.elapsed() < HANG {
        std::thread::yield_now();
    }
    assert_eq!(*mapped.with_gaps(file, 0, b"abcdefgh"), *b"abcdefgh");
    assert_eq!(*kernel.zeroed.lock().unwrap(), std::slice::from_ref(&(3..6)));
}
