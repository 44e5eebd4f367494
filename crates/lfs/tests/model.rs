//! Random operations on a volume and on a naive tree: the same answers, the same tree, also after
//! opening again, with checkpoints and cleaning in between.

#![allow(clippy::unwrap_used)]

mod common;

use common::acts::{Act, Model, act, plain, run};
use common::{BLOCKS, budget, cluster_of, fresh_clusters, open, tree};
use proptest::prelude::*;
use systx_lfs::fsck::check as check_volume;
use systx_lfs::{Greedy, Txn};

#[derive(Clone, Debug)]
enum Step {
    Plain(Act),
    Commit(Vec<Act>),
    Abort(Vec<Act>),
    Sync,
    Checkpoint,
    /// What lies there becomes cold, and is compressed.
    Pack,
    Clean,
    /// The volume is left without a word and opened again: what was not synced may be gone.
    Crash,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => act().prop_map(Step::Plain),
        4 => prop::collection::vec(act(), 1..8).prop_map(Step::Commit),
        1 => prop::collection::vec(act(), 1..8).prop_map(Step::Abort),
        1 => Just(Step::Sync),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Pack),
        1 => Just(Step::Clean),
        1 => Just(Step::Crash),
        1 => Just(Step::Close),
    ]
}

fn check(steps: &[Step], cluster: u32) {
    let (disk, mut volume) = fresh_clusters(BLOCKS, cluster);
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Plain(act) => {
                let done = volume.plain(|ops| run(ops, *act)).map_err(|e| e.errno());
                assert_eq!(done, model.run(*act), "{act:?}");
            }
            Step::Commit(acts) | Step::Abort(acts) => {
                let mut txn = Txn::new();
                let mut inside = model.clone();
                for act in acts {
                    let done = volume.within(&mut txn, |ops| run(ops, *act));
                    assert_eq!(done.map_err(|e| e.errno()), inside.run(*act), "{act:?}");
                }
                let own = volume.within(&mut txn, common::dump).unwrap();
                assert_eq!(plain(&own), inside.plain());
                if matches!(step, Step::Commit(_)) {
                    volume.commit(txn).unwrap();
                    model = inside;
                }
            }
            Step::Sync => volume.sync().unwrap(),
            Step::Checkpoint => volume.checkpoint().unwrap(),
            Step::Pack => {
                volume.checkpoint().unwrap();
                volume.pack().unwrap();
            }
            Step::Clean => drop(volume.clean(&Greedy, volume.space().free_segments + 2).unwrap()),
            Step::Crash => {
                volume.sync().unwrap();
                drop(volume);
                volume = open(disk.clone()).unwrap();
            }
            Step::Close => {
                volume.close().unwrap();
                volume = open(disk.clone()).unwrap();
            }
        }
        assert_eq!(plain(&tree(&volume)), model.plain(), "after {step:?}");
    }
    volume.sync().unwrap();
    drop(volume);
    assert_eq!(check_volume(disk, common::clock()).unwrap().findings, []);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300 * budget() as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn a_volume_is_as_a_tree_in_memory(
        steps in prop::collection::vec(step(), 1..60), seed in any::<u64>()
    ) {
        check(&steps, cluster_of(seed));
    }
}
