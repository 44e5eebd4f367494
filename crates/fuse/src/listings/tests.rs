#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Mutex as StdMutex;

use super::*;

/// What the kernel was told, in order.
#[derive(Default)]
struct Kernel(StdMutex<Vec<&'static str>>);

impl Pages for Kernel {
    fn write_back(&self, _: NodeId, range: Range<u64>) -> io::Result<()> {
        assert_eq!(range, 0..u64::MAX);
        self.0.lock().unwrap().push("listing");
        Ok(())
    }
    fn zero(&self, _: NodeId, _: Range<u64>) -> io::Result<()> {
        unreachable!("a directory has no content")
    }
    fn forget_attributes(&self, _: NodeId) -> io::Result<()> {
        self.0.lock().unwrap().push("attributes");
        Ok(())
    }
}

impl Kernel {
    fn told(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

const DIR: NodeId = NodeId(7);
/// The thread that changes it.
const BY: u32 = 12;
/// Another one that asks.
const OTHER: u32 = 13;

fn new() -> (Arc<Kernel>, Listings) {
    let kernel = Arc::new(Kernel::default());
    (kernel.clone(), Listings::new(kernel))
}

#[test]
fn a_directory_that_rests_loses_nothing() {
    let (kernel, listings) = new();
    for _ in 0..3 {
        listings.begins(DIR);
        listings.ends(DIR);
    }
    assert!(kernel.told().is_empty());
}

#[test]
fn what_is_older_than_a_change_is_dropped_once() {
    let (kernel, listings) = new();
    listings.changed(DIR, BY);
    kernel.told();
    listings.begins(DIR);
    listings.ends(DIR);
    assert!(kernel.told().is_empty(), "nobody had listed it");
    for _ in 0..2 {
        listings.changed(DIR, BY);
    }
    listings.begins(DIR);
    assert_eq!(kernel.told(), ["listing"]);
    listings.ends(DIR);
    listings.begins(NodeId(8));
    assert!(kernel.told().is_empty(), "the new listing stays");
}

#[test]
fn a_change_is_told_where_another_thread_may_have_attributes_on_their_way() {
    let (kernel, listings) = new();
    let changed = |by| {
        listings.changed(DIR, by);
        kernel.told().len()
    };
    let tells = |to| listings.tells(DIR, to, listings.now());
    assert_eq!(changed(BY), 1, "nothing is known of it");
    assert_eq!(changed(BY), 0, "nobody has asked");
    tells(BY);
    assert_eq!(changed(BY), 0, "the answer has arrived");
    tells(BY);
    assert_eq!(changed(OTHER), 1);
    tells(OTHER);
    tells(BY);
    assert_eq!(changed(BY), 1);
    tells(0);
    assert_eq!(changed(0), 1, "no number is no thread's");
    tells(BY);
    listings.forget(DIR);
    assert_eq!(changed(BY), 1, "it may be known anew");
}

#[test]
fn attributes_that_were_asked_for_before_a_change_are_refused_after_it() {
    let (kernel, listings) = new();
    listings.changed(DIR, BY);
    kernel.told();
    let before = listings.now();
    listings.changed(DIR, BY);
    assert!(kernel.told().is_empty());
    listings.tells(NodeId(8), OTHER, listings.now());
    listings.tells(DIR, OTHER, listings.now());
    assert!(kernel.told().is_empty());
    listings.tells(DIR, OTHER, before);
    assert_eq!(kernel.told(), ["attributes"]);
    listings.forget(DIR);
    listings.tells(DIR, OTHER, before);
    assert_eq!(kernel.told(), ["attributes"], "it may have been one of it");
}

#[test]
fn an_end_drops_what_began_before_a_change_whoever_comes_to_it() {
    let (kernel, listings) = new();
    listings.begins(DIR);
    listings.changed(DIR, BY);
    kernel.told();
    listings.begins(DIR);
    listings.ends(DIR);
    assert_eq!(kernel.told(), ["listing"]);
    listings.ends(DIR);
    assert!(kernel.told().is_empty());
}

/// Two are under way, and the end of one looks like that of both.
#[test]
fn nor_is_an_older_listing_kept_behind_the_end_of_another_one() {
    let (kernel, listings) = new();
    listings.begins(DIR);
    listings.begins(DIR);
    listings.ends(DIR);
    listings.changed(DIR, BY);
    kernel.told();
    listings.begins(DIR);
    assert_eq!(kernel.told(), ["listing"]);
    listings.ends(DIR);
    listings.changed(DIR, BY);
    listings.ends(DIR);
    assert_eq!(kernel.told(), ["listing"]);
}

#[test]
fn what_the_kernel_has_forgotten_is_forgotten() {
    let (kernel, listings) = new();
    listings.begins(DIR);
    listings.changed(DIR, BY);
    listings.forget(DIR);
    kernel.told();
    listings.begins(DIR);
    listings.ends(DIR);
    assert!(kernel.told().is_empty());
    assert_eq!(listings.known.lock().len(), 1);
}
