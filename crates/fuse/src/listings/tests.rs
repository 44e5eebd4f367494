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
fn each_change_is_told_and_what_is_older_is_dropped_once() {
    let (kernel, listings) = new();
    listings.changed(DIR);
    assert_eq!(kernel.told(), ["attributes"]);
    listings.begins(DIR);
    listings.ends(DIR);
    assert!(kernel.told().is_empty(), "nobody had listed it");
    for _ in 0..2 {
        listings.changed(DIR);
    }
    assert_eq!(kernel.told(), ["attributes"; 2]);
    listings.begins(DIR);
    assert_eq!(kernel.told(), ["listing"]);
    listings.ends(DIR);
    listings.begins(NodeId(8));
    assert!(kernel.told().is_empty(), "the new listing stays");
}

#[test]
fn an_end_drops_what_began_before_a_change_whoever_comes_to_it() {
    let (kernel, listings) = new();
    listings.begins(DIR);
    listings.changed(DIR);
    listings.begins(DIR);
    assert_eq!(kernel.told(), ["attributes"]);
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
    listings.changed(DIR);
    listings.begins(DIR);
    assert_eq!(kernel.told(), ["attributes", "listing"]);
    listings.ends(DIR);
    listings.changed(DIR);
    listings.ends(DIR);
    assert_eq!(kernel.told(), ["attributes", "listing"]);
}

#[test]
fn what_the_kernel_has_forgotten_is_forgotten() {
    let (kernel, listings) = new();
    listings.begins(DIR);
    listings.changed(DIR);
    listings.forget(DIR);
    kernel.told();
    listings.begins(DIR);
    listings.ends(DIR);
    assert!(kernel.told().is_empty());
    assert_eq!(listings.known.lock().len(), 1);
}
