//! A plain program that writes to a file while a transaction reads it, at the very moments that
//! matter.
#![allow(clippy::unwrap_used)]

#[path = "../../vfs/tests/common/mod.rs"]
mod common;
mod place;

use common::{CALLER, Twin, scratch};
use place::Place;
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT, futimens};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use systx_base::{Oid, TxnId};
use systx_guard::change;
use systx_guard::inode_locks::Ticket;
use systx_guard::plain::{Change, Gate, Order, STALL};
use systx_store::io::HostId;
use systx_store::real::RealIo;
use systx_txn::{BeginOptions, ObjectRef};
use systx_vfs::api::*;

/// Long enough to show who does not wait; too short shows nothing wrong.
const A_WHILE: Duration = Duration::from_millis(100);
/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(300);

const PAGE: u64 = 4096;

/// A plain write to the second page of `path` that moves the file's version twice, before and after
/// `meanwhile`: as one write does when it has set ctime and not yet mtime.
fn in_two_steps(place: &Place, path: &Path, meanwhile: impl FnOnce()) {
    let file = File::options().write(true).open(path).unwrap();
    let name = path.file_name().unwrap().as_encoded_bytes();
    let id = place.vol.tree.stat_at(&place.vol.tree.root(), name).unwrap().id;
    let oid = id.oid();
    let step = |n| {
        let last_modification = Timespec { tv_sec: n, tv_nsec: 0 };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        futimens(&file, &Timestamps { last_access, last_modification }).unwrap();
    };
    let mut meanwhile = Some(meanwhile);
    let change = Change {
        by: CALLER,
        reads: &[],
        writes: &[ObjectRef::Pages { oid, first: 1, last: 1 }],
        subject: Some((oid, change::Place::Fd(id, file.as_fd()))),
        places: &[],
        may_stall: false,
    };
    let act = &mut || {
        step(1);
        meanwhile.take().into_iter().for_each(|meanwhile| meanwhile());
        step(2);
        Ok(())
    };
    Order::new(place.vol.clone(), STALL).mutate(change, act).unwrap();
}

fn read_first_page(twin: &Twin, node: systx_base::NodeId) -> Reply<Vec<u8>> {
    let mut page = vec![0; PAGE as usize];
    twin.0.read(node, 0, &mut page)?;
    Ok(page)
}

/// A look of `twin` in the middle of such a write.
fn looks_in_between<T: Send>(place: &Place, path: &Path, look: impl FnOnce() -> T + Send) -> T {
    let (half, is_half) = channel();
    let (looked, has_looked) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            in_two_steps(place, path, || {
                half.send(()).unwrap();
                // Who looks may wait for the end of this.
                let _ = has_looked.recv_timeout(A_WHILE);
            });
        });
        is_half.recv_timeout(HANG).unwrap();
        let seen = look();
        let _ = looked.send(());
        seen
    })
}

#[test]
fn a_version_that_is_seen_half_made_is_not_an_outsiders() {
    let backing = scratch();
    let path = backing.path().join("f");
    fs::write(&path, vec![b'x'; 2 * PAGE as usize]).unwrap();
    let place = Place::open(backing.path(), ".");
    let begin = || place.begin(BeginOptions::default(), false);
    // When it is met.
    let twin = begin();
    let node = looks_in_between(&place, &path, || twin.walk("f").unwrap().node);
    read_first_page(&twin, node).unwrap();
    assert!(place.end_of(&twin));
    // When it is read.
    let twin = begin();
    let node = twin.walk("f").unwrap().node;
    looks_in_between(&place, &path, || read_first_page(&twin, node)).unwrap();
    assert!(place.end_of(&twin));
    // Somebody else's is.
    let twin = begin();
    let node = twin.walk("f").unwrap().node;
    fs::write(&path, "short").unwrap();
    assert!(read_first_page(&twin, node).is_err());
    assert!(!place.end_of(&twin));
}

type Act = Box<dyn FnOnce() + Send>;

/// The order of plain requests, with something that happens when the opening of a file for writing
/// has been let through.
struct Opening {
    order: Order,
    then: Mutex<Option<Act>>,
}

impl Gate for Opening {
    fn read(&self, reads: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        self.order.read(reads, act)
    }
    fn mutate(&self, change: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        self.order.mutate(change, act)
    }
    fn is_publishing(&self) -> bool {
        self.order.is_publishing()
    }
    fn valid(&self, oid: Oid, name: Option<&[u8]>) -> Valid {
        self.order.valid(oid, name)
    }
    fn file_barrier(&self, ticket: Ticket) {
        self.order.file_barrier(ticket);
    }
    fn before_writing(&self, file: HostId) -> Reply<()> {
        self.order.before_writing(file)?;
        let then = self.then.lock().unwrap().take();
        then.into_iter().for_each(|then| then());
        Ok(())
    }
}

#[test]
fn who_opens_a_file_for_writing_while_an_aged_transaction_reads_it_waits() {
    let backing = scratch();
    fs::write(backing.path().join("f"), vec![b'x'; PAGE as usize]).unwrap();
    let mut opening = None;
    let real = Arc::new(RealIo::open(backing.path()).unwrap());
    let place = Place::open_through(backing.path(), ".", (real.clone(), real), |order| {
        let gate = Arc::new(Opening { order, then: Mutex::default() });
        opening = Some(gate.clone());
        gate
    });
    let aged = BeginOptions { age: 100, ..BeginOptions::default() };
    let twin = place.begin(aged, false);
    assert!(place.vol.engine.reserve(TxnId(twin.0.txn().0)));
    let node = twin.walk("f").unwrap().node;

    let plain = Twin(place.plain.clone());
    let theirs = plain.walk("f").unwrap().node;
    let (read, has_read) = channel();
    let reader = Twin(twin.0.clone());
    *opening.unwrap().then.lock().unwrap() =
        Some(Box::new(move || read.send(read_first_page(&reader, node)).unwrap()));
    let (wrote, has_written) = channel();
    let writer = std::thread::spawn(move || {
        let how = OpenHow { write: true, ..OpenHow::default() };
        let opened = plain.0.open(CALLER, theirs, how).unwrap();
        plain.0.write(theirs, 0, b"y", false).unwrap();
        plain.0.release(theirs, opened.handle);
        wrote.send(()).unwrap();
    });
    has_read.recv_timeout(HANG).unwrap().unwrap();
    assert!(has_written.recv_timeout(A_WHILE).is_err(), "before the reader has ended");
    assert!(place.end_of(&twin), "it lost");
    has_written.recv_timeout(HANG).unwrap();
    writer.join().unwrap();
    assert_eq!(fs::read(backing.path().join("f")).unwrap()[..2], *b"yx");
}

#[test]
fn an_aged_transaction_locks_what_it_reads_only_where_somebody_may_be_writing() {
    let backing = scratch();
    fs::write(backing.path().join("f"), vec![b'x'; PAGE as usize]).unwrap();
    let place = Place::open(backing.path(), ".");
    let plain = Twin(place.plain.clone());
    let theirs = plain.walk("f").unwrap().node;
    let reads = || {
        let twin = place.begin(BeginOptions { age: 100, ..BeginOptions::default() }, false);
        assert!(place.vol.engine.reserve(twin.0.txn()));
        let node = twin.walk("f").unwrap().node;
        read_first_page(&twin, node).unwrap();
        let asked_for = place.file_barriers();
        assert!(place.end_of(&twin));
        asked_for
    };
    assert_eq!(reads(), 0);
    let how = OpenHow { write: true, ..OpenHow::default() };
    let opened = plain.0.open(CALLER, theirs, how).unwrap();
    assert_eq!(reads(), 1);
    let before = place.file_barriers();
    plain.0.release(theirs, opened.handle);
    assert_eq!(reads(), before);
}
