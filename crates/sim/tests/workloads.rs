//! The workloads and their write sets, before any store sees them.

#![allow(clippy::unwrap_used)]

use systx_sim::model::{Model, Op};
use systx_sim::workload::{self, CALLS};
use systx_sim::{Profile, SimFs, tree};
use systx_store::writeset::{Content, SlotId};

fn start() -> (SimFs, Model) {
    let sim = SimFs::new(Profile::STRONG);
    workload::base(&sim).unwrap();
    let model = Model::read(&sim, &|_| false).unwrap();
    (sim, model)
}

#[test]
fn a_model_read_from_a_tree_is_that_tree() {
    let (sim, model) = start();
    let found = tree::read(&sim, &|_| false).unwrap();
    assert_eq!(tree::diff(&found, &model.tree()), "");
    assert_eq!(found[&b"B/l"[..]].nlink, 2);
    assert_eq!(found[&b"B/l"[..]].same_as, b"B/b");
}

#[test]
fn every_call_occurs_in_some_pair() {
    let (_, model) = start();
    let pairs = workload::bounded(&model, 2);
    for op in CALLS {
        assert!(pairs.iter().flatten().flatten().any(|o| o == op), "{op:?}");
    }
    assert!(workload::bounded(&model, 1).len() > 25);
    assert!(pairs.len() > 1500, "{}", pairs.len());
}

#[test]
fn every_write_set_obeys_the_contract() {
    let (sim, model) = start();
    for len in 1..=2 {
        for workload in workload::bounded(&model, len).iter().filter(|w| w.len() == 1) {
            let draft = workload::drafts(&model, workload).unwrap().remove(0);
            let mut slots = 0;
            let mut stage = |_: &[u8]| {
                slots += 1;
                Ok(SlotId(slots))
            };
            let set = draft.write_set(&sim, 8192, &mut stage).unwrap();
            assert_eq!(set.check(), Ok(()), "{workload:?}\n{set:#?}");
        }
    }
}

#[test]
fn write_sets_say_what_changed_and_nothing_else() {
    let (sim, model) = start();
    let set_of = |txn: &[Op]| {
        let draft = workload::drafts(&model, &[txn.to_vec()]).unwrap().remove(0);
        draft.write_set(&sim, 100_000, &mut |_| unreachable!()).unwrap()
    };
    let set = set_of(&[Op::Write("A/a", 5000, 10)]);
    assert!(set.binds.is_empty());
    let Content::Patch { len, keep, extents } = &set.objects[2].content else { panic!("{set:?}") };
    assert_eq!((*len, *keep, extents.len()), (9000, 9000, 1));
    assert_eq!((extents[0].offset, extents[0].data.len()), (4096, 4096));

    // Made and removed again: nothing happened.
    let set = set_of(&[Op::Create("A/b", 100), Op::Unlink("A/b")]);
    assert!(set.binds.is_empty() && set.objects.len() == 1);

    let set = set_of(&[Op::Truncate("A/a", 5000), Op::Truncate("A/a", 9000)]);
    let cut = set.objects.iter().any(|o| matches!(o.content, Content::Patch { keep: 5000, .. }));
    assert!(cut, "{set:?}");
}
