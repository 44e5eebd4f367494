//! A plain write in flight, explored state by state: nothing is seen and then not, and each remedy
//! is needed.

use systx_sim::in_flight::{Case, Found, Remedies, Write, cases, explore};

fn small() -> impl Iterator<Item = Case> {
    [(1, 3), (2, 2), (3, 1)].into_iter().flat_map(|(readers, accesses)| cases(readers, accesses))
}

fn first(remedies: &Remedies) -> Option<(Case, Found)> {
    small().find_map(|case| explore(&case, remedies).1.map(|found| (case, found)))
}

#[test]
fn the_protocol_stands() {
    let mut states = 0;
    for case in small() {
        let (looked_at, found) = explore(&case, &Remedies::ALL);
        if let Some(Found { what, trace }) = found {
            panic!("{what}: {case:?}\n{}", trace.join("\n"));
        }
        states += looked_at;
    }
    println!("{states} states");
}

#[test]
fn no_remedy_is_idle() {
    for (name, remedies) in Remedies::each_without() {
        let Some((case, Found { what, trace })) = first(&remedies) else {
            panic!("nothing is wrong without {name}");
        };
        println!("\nwithout {name}: {what} [{case:?}]\n  {}", trace.join("\n  "));
    }
}

/// Why the daemon does not just wait in every request that might show something old.
#[test]
fn a_read_that_waited_for_the_writer_would_wait_for_ever() {
    let without = Remedies { reads_go: false, ..Remedies::ALL };
    let (case, found) = first(&without).expect("somebody is stuck");
    assert_eq!((found.what, case.write), ("nobody can go on", Write::Overwrite));
}
