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

#[test]
fn the_protocol_stands() {
    for case in small() {
        if let Some(Found { what, trace }) = explore(&case, &Remedies::ALL, LIMIT).found {
            panic!("{what}: {}\n{}", case.describe(), trace.join("\n"));
        }
    }
}

#[test]
fn no_remedy_is_idle() {
    for (name, remedies) in Remedies::each_without() {
        // Two readers of two accesses only where one step of each is not enough.
        let large = cases(2, 2).into_iter().filter(|c| c.mutation.is_none());
        let found = small()
            .chain(large)
            .find_map(|case| explore(&case, &remedies, LIMIT).found.map(|found| (case, found)));
        let Some((case, Found { what, trace })) = found else {
            panic!("nothing is wrong without {name}");
        };
        println!("\nwithout {name}: {what} [{}]\n  {}", case.describe(), trace.join("\n  "));
    }
}

/// Decision 0003 as first written invalidated again in the fence whatever was answered old.  Each of
/// the three locks that a held mutation keeps then stops the commit that it is held for.
#[test]
fn what_a_held_mutation_locks_out_has_to_be_settled_before_the_decision() {
    let unsettled = Remedies { settled: false, ..Remedies::ALL };
    for mutation in [Mutation::Directory, Mutation::Write, Mutation::Mapped] {
        let stuck = small().filter(|c| c.mutation == Some(mutation)).find_map(|case| {
            explore(&case, &unsettled, LIMIT).found.filter(|f| f.what == "nobody can go on")
        });
        assert!(stuck.is_some(), "{mutation:?}");
    }
    for case in small().filter(|c| c.mutation.is_none() && !c.later_kernel) {
        let found = explore(&case, &unsettled, LIMIT).found;
        assert!(found.is_none(), "{}: {found:?}", case.describe());
    }
}

/// There INVAL_ENTRY does not wait for lookups in flight, so each further one needs its Barrier.
#[test]
fn on_later_kernels_a_name_is_not_invalidated_again_without_a_barrier() {
    let unsettled = Remedies { settled: false, ..Remedies::ALL };
    let mut found = small()
        .filter(|c| c.mutation.is_none() && c.later_kernel)
        .filter_map(|case| explore(&case, &unsettled, LIMIT).found);
    assert!(found.any(|f| f.what == "something stale stays in a cache"));
}

/// A page that was stored to through a mapping and not flushed stops the fence.
#[test]
fn mapped_pages_have_to_be_flushed() {
    let without = Remedies { flush: false, ..Remedies::ALL };
    let mut mapped = small().filter(|c| c.mutation == Some(Mutation::Mapped));
    assert!(mapped.any(|case| explore(&case, &without, LIMIT).found.is_some()));
}
