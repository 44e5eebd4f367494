use super::*;
use proptest::prelude::*;

/// One page whose bytes are all `n`, or several.
fn data(room: &Room, pages: u64, n: u8) -> Data {
    let bytes = (0..pages).flat_map(|i| vec![n.wrapping_add(i as u8); PAGE as usize]).collect();
    room.keep(bytes).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// What is added first stays, as in a table of pages.
    #[test]
    fn agrees_with_a_table(adds in prop::collection::vec((0u64..40, 1u64..9, 1u8..200), 1..30)) {
        let room = Room::new();
        let mut extents = [Extents::default(), Extents::default()];
        let mut tables = [BTreeMap::new(), BTreeMap::new()];
        for (i, (first, pages, n)) in adds.iter().enumerate() {
            let at = i % 2;
            let kept = data(&room, *pages, *n);
            let missing = extents[at].missing(*first..first + pages);
            let free: Vec<u64> =
                (*first..first + pages).filter(|p| !tables[at].contains_key(p)).collect();
            prop_assert_eq!(missing.into_iter().flatten().collect::<Vec<_>>(), free);
            extents[at].add(*first..first + pages, &kept, 0);
            for page in *first..first + pages {
                let value = n.wrapping_add((page - first) as u8);
                tables[at].entry(page).or_insert(value);
            }
        }
        let [mut all, later] = extents;
        let [mut table, other] = tables;
        all.add_all(later);
        for (page, n) in other {
            table.entry(page).or_insert(n);
        }
        let mut got = BTreeMap::new();
        for piece in all.pieces(0..u64::MAX) {
            for page in piece.pages.clone() {
                let mut buf = vec![0; PAGE as usize];
                let at = piece.offset + (page - piece.pages.start) * PAGE;
                piece.data.read(&mut buf, at).unwrap();
                prop_assert!(buf.iter().all(|b| *b == buf[0]));
                prop_assert_eq!(got.insert(page, buf[0]), None, "twice");
            }
        }
        prop_assert_eq!(got, table);
        drop(all);
        prop_assert_eq!(room.memory(), 0);
    }
}

#[test]
fn zeros_cost_nothing() {
    let room = Room::with_memory(0);
    let zeros = room.keep(vec![0; 8192]).unwrap();
    let mut buf = [1; 100];
    zeros.read(&mut buf, 4000).unwrap();
    assert_eq!(buf, [0; 100]);
    assert!(room.keep(vec![1; 4096]).is_err(), "no slots, no memory");
}
