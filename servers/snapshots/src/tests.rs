use super::*;

fn kept(name: &str) -> (Kept, PathBuf) {
    let dir = std::env::temp_dir().join(format!("systx-snapshots-{name}.{}", std::process::id()));
    (Kept::open(&dir, 10).unwrap(), dir)
}

fn offer(snapshot: Snapshot) -> RequestOfferSnapshot {
    RequestOfferSnapshot { snapshot: Some(snapshot), app_hash: vec![7; 32].into() }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7) as u8).collect()
}

/// Gives all chunks of a snapshot; what became of each, and what was restored.
fn give(
    coming: &mut Coming,
    kept: &Kept,
    snapshot: &Snapshot,
    spoil: impl Fn(u32, &mut Vec<u8>),
) -> (Vec<i32>, Option<(u64, Vec<u8>)>) {
    let (mut results, mut restored) = (Vec::new(), None);
    for chunk in 0..snapshot.chunks {
        let (height, format) = (snapshot.height, snapshot.format);
        let mut loaded =
            kept.load(&RequestLoadSnapshotChunk { height, format, chunk }).chunk.to_vec();
        spoil(chunk, &mut loaded);
        let sender = "them".to_owned();
        let request = RequestApplySnapshotChunk { index: chunk, chunk: loaded.into(), sender };
        let told = coming.chunk(&request, |height, root, bytes| {
            assert_eq!(root, &[7; 32]);
            restored = Some((height, bytes.to_vec()));
            Ok(())
        });
        results.push(told.result);
        if told.result != Applied::Accept as i32 {
            break;
        }
    }
    (results, restored)
}

#[test]
fn what_is_kept_comes_as_it_was_and_the_last_ones_are_kept() {
    let (kept, dir) = kept("kept");
    for height in [10, 20, 30, 40] {
        kept.keep(height, &bytes(2 * CHUNK + height as usize)).unwrap();
    }
    let (heights, oldest, list) = (kept.heights(), kept.oldest(), kept.list());
    let mut coming = Coming::default();
    let last = list.snapshots.last().unwrap();
    assert_eq!(coming.offer(&offer(last.clone())).result, Offered::Accept as i32);
    let (results, restored) = give(&mut coming, &kept, last, |_, _| ());
    let none = kept.load(&RequestLoadSnapshotChunk { height: 10, format: 1, chunk: 0 });
    fs::remove_dir_all(dir).unwrap();
    assert_eq!((heights, oldest), (vec![20, 30, 40], Some(20)));
    assert_eq!(results, [Applied::Accept as i32; 3]);
    assert_eq!(restored, Some((40, bytes(2 * CHUNK + 40))));
    assert!(none.chunk.is_empty());
    assert!(kept.is_due(9, 10) && kept.is_due(5, 31) && !kept.is_due(10, 19));
}

#[test]
fn those_that_come_beside_each_other_are_what_they_say() {
    let (kept, dir) = kept("beside");
    let content = |height: u64| vec![height as u8; 1000 + height as usize];
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (kept, content) = (&kept, &content);
            scope.spawn(move || {
                for height in (first..80).step_by(4) {
                    kept.keep(height, &content(height)).unwrap();
                }
            });
        }
    });
    let list = kept.list().snapshots;
    let mut found = Vec::new();
    for snapshot in &list {
        let mut coming = Coming::default();
        coming.offer(&offer(snapshot.clone()));
        found.push(give(&mut coming, &kept, snapshot, |_, _| ()).1);
    }
    fs::remove_dir_all(dir).unwrap();
    assert_eq!(list.len(), KEPT);
    for (snapshot, found) in list.iter().zip(found) {
        assert_eq!(found, Some((snapshot.height, content(snapshot.height))));
    }
}

#[test]
fn what_was_changed_on_the_way_is_not_taken() {
    let (kept, dir) = kept("spoilt");
    kept.keep(10, &bytes(2 * CHUNK + 5)).unwrap();
    let good = kept.list().snapshots.remove(0);
    let mut coming = Coming::default();
    for spoil in [
        (|chunk| chunk[3] ^= 1) as fn(&mut Vec<u8>),
        |chunk| chunk.truncate(CHUNK / 2),
        |chunk| chunk.push(0),
        Vec::clear,
    ] {
        coming.offer(&offer(good.clone()));
        let (results, restored) = give(&mut coming, &kept, &good, |n, chunk| {
            if n == 1 {
                spoil(chunk);
            }
        });
        assert_eq!(results, [Applied::Accept as i32, Applied::Retry as i32]);
        assert_eq!(restored, None);
    }
    let mut refused = Vec::new();
    for change in [
        (|s: &mut Snapshot| s.hash = vec![1; 32].into()) as fn(&mut Snapshot),
        |s| s.metadata = vec![1; 96].into(),
        |s| s.chunks = 2,
        |s| s.chunks = u32::MAX,
        |s| s.chunks = 0,
        |s| s.format = 2,
    ] {
        let mut snapshot = good.clone();
        change(&mut snapshot);
        refused.push(coming.offer(&offer(snapshot)).result);
        let (results, _) = give(&mut coming, &kept, &good, |_, _| ());
        assert_eq!(results, [Applied::RejectSnapshot as i32]);
    }
    fs::remove_dir_all(dir).unwrap();
    let (reject, format) = (Offered::Reject as i32, Offered::RejectFormat as i32);
    assert_eq!(refused, [reject, reject, reject, reject, reject, format]);
}
