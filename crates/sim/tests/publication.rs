//! The publication protocol, explored state by state: what stands, and that each of its remedies is
//! needed.

use systx_sim::publication::{Case, Found, Mutation, Remedies, cases, explore};

/// More states than any of these has.
const LIMIT: usize = 2_000_000;

/// Cases from small to large.
fn small() -> impl Iterator<Item = Case> {
    let sizes = [(1, 2), (2, 1), (1, 3)];
    sizes.into_iter().flat_map(|(readers, accesses)| cases(readers, accesses))
}

fn stands(cases: impl IntoIterator<Item = Case>, remedies: &Remedies) {
    let (mut all, mut states) = (0, 0);
    for case in cases {
        let explored = explore(&case, remedies, LIMIT);
        if let Some(Found { what, trace }) = explored.found {
            panic!("{what}: {}\n{}", case.describe(), trace.join("\n"));
        }
        all += 1;
        states += explored.states;
    }
    println!("{all} cases, {states} states");
}

#[test]
fn the_protocol_stands() {
    stands(small(), &Remedies::ALL);
}

#[test]
fn the_protocol_stands_with_two_readers_of_two_accesses() {
    if std::env::var_os("SYSTX_LONG").is_none() {
        println!("SKIPPED: takes minutes; with SYSTX_LONG=1");
        return;
    }
    stands(cases(2, 2), &Remedies::ALL);
}

#[test]
fn no_remedy_is_idle() {
    for (name, remedies) in Remedies::each_without() {
        let found = small()
            .find_map(|case| explore(&case, &remedies, LIMIT).found.map(|found| (case, found)));
        let Some((case, Found { what, trace })) = found else {
            panic!("nothing is wrong without {name}");
        };
        println!("\nwithout {name}: {what} [{}]\n  {}", case.describe(), trace.join("\n  "));
    }
}

/// What is invalidated after the decision, with everything held, waits for a lock that somebody
/// keeps who is held: a mutation of D, a write or a page fault of f; readers are enough.
#[test]
fn nothing_can_be_invalidated_after_the_decision() {
    let unsettled = Remedies { settled: false, ..Remedies::ALL };
    for mutation in [None, Some(Mutation::Directory), Some(Mutation::Write)] {
        let stuck = small().filter(|c| c.mutation == mutation).find_map(|case| {
            explore(&case, &unsettled, LIMIT).found.filter(|f| f.what == "nobody can go on")
        });
        assert!(stuck.is_some(), "{mutation:?}");
    }
}

/// There INVAL_ENTRY does not wait for lookups in flight, so each further one needs its Barrier.
#[test]
fn on_later_kernels_a_name_is_not_invalidated_again_without_a_barrier() {
    let without = Remedies { barrier_again: false, ..Remedies::ALL };
    let stale = |later_kernel| {
        let of_names = |c: &Case| c.entry && !c.list && c.later_kernel == later_kernel;
        small()
            .filter(of_names)
            .filter_map(|case| explore(&case, &without, LIMIT).found)
            .any(|found| found.what == "something stale stays in a cache")
    };
    assert!(stale(true));
    assert!(!stale(false));
}

/// Mutations of what the transaction has only read are held from the decision on. Where all reads
/// of what is marked are held as well, nobody could tell.
#[test]
fn what_is_only_read_is_held_for_good_measure() {
    let without = Remedies { only_read: false, ..Remedies::ALL };
    let both = cases(1, 2).into_iter().chain(cases(2, 1));
    stands(both.filter(|c| c.mutation == Some(Mutation::OnlyRead)), &without);
}

/// Why the daemon itself asks for attributes before a commit is over (decision 0003), and what is
/// left of that for very many objects: the first who asks when the time is over in which they are
/// told without validity has the kernel declare the old ones valid for an instant.
#[test]
fn attributes_for_which_nobody_asks_in_time_can_be_seen_old() {
    let without = Remedies { asked: false, ..Remedies::ALL };
    let found = small().find_map(|case| explore(&case, &without, LIMIT).found);
    let Found { what, trace } =
        found.expect("the hole: if it is closed, decision 0003 is to say so");
    assert_eq!(what, "an old value was seen after a new one");
    assert!(trace.iter().any(|line| line.contains("declares the attributes valid")), "{trace:?}");
}
