use super::*;
use systx_protocol::certify::Run;

fn installed(dir: &Path, offer: &Offer, applied: &Applied) {
    crate::install::install(dir, offer, &applied.changed, &Default::default()).unwrap();
}

fn placed(path: &[u8], source: Source) -> Offer {
    Offer { placed: vec![(path.to_vec(), source)], ..Offer::default() }
}

#[test]
fn a_request_that_leads_out_of_the_directory_is_refused_and_changes_nothing() {
    let dir = std::env::temp_dir().join(format!("systx-replicate.{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let model = Model::read(&dir);
    std::fs::remove_dir(&dir).unwrap();
    let mut model = model.unwrap();
    model.apply(&placed(b"l", Source::Symlink(b"/etc".to_vec()))).unwrap();
    let root = model.root();
    let long = [b'x'; 256];
    for path in
        [&b""[..], b".", b"..", b"../x", b"/etc/x", b"a//b", b"x\0", b".replicate/1", b"l/x", &long]
    {
        assert!(model.apply(&placed(path, Source::File)).is_err(), "{}", shown(path));
        let taken = Offer { taken: vec![path.to_vec()], ..Offer::default() };
        assert!(model.apply(&taken).is_err(), "{}", shown(path));
    }
    let content = Some(Content { len: 1, keep: 0, runs: vec![] });
    let through = Set { path: b"l".to_vec(), content, ..Set::default() };
    assert!(model.apply(&Offer { set: vec![through], ..Offer::default() }).is_err());
    let xattrs = vec![(b"user.none".to_vec(), None)];
    let none = Set { path: b"l".to_vec(), xattrs, ..Set::default() };
    assert!(model.apply(&Offer { set: vec![none], ..Offer::default() }).is_err());
    assert_eq!(model.root(), root);
}

/// A directory of this test's own, with these files.
fn with(name: &str, files: &[(&str, &str)], test: impl FnOnce(&Path, Model)) {
    let dir = std::env::temp_dir().join(format!("systx-{name}.{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    for (path, content) in files {
        std::fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
        std::fs::write(dir.join(path), content).unwrap();
    }
    let model = Model::read(&dir).unwrap();
    test(&dir, model);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// One more byte behind the old content.
fn append(path: &[u8], len: u64) -> Offer {
    let runs = vec![Run { offset: len, bytes: b"!".to_vec() }];
    let content = Some(Content { len: len + 1, keep: len, runs });
    Offer { set: vec![Set { path: path.into(), content, ..Set::default() }], ..<_>::default() }
}

/// What one replica cannot read is no reason to refuse: the others would accept it.
#[test]
fn a_replica_that_cannot_read_does_not_refuse() {
    with("unread", &[("a", "one"), ("b", "two")], |dir, mut model| {
        let root = model.root();
        std::fs::remove_file(dir.join("a")).unwrap();
        std::fs::write(dir.join("b"), "2").unwrap();
        for path in [b"a", b"b"] {
            assert!(matches!(model.apply(&append(path, 3)), Err(Failed::Here(_))));
        }
        assert_eq!(model.root(), root);
    });
}

/// Requests of one block that move a file one after another, and one that changes it then.
#[test]
fn what_a_block_moves_is_read_where_the_last_block_has_left_it() {
    with("moved", &[("d/a", "one"), ("e", "two")], |_, mut model| {
        let moved = |from: &[u8], to: &[u8]| Offer {
            taken: vec![from.to_vec()],
            placed: vec![(to.to_vec(), Source::Taken(0))],
            ..Offer::default()
        };
        for (from, to) in [(&b"d"[..], &b"f"[..]), (b"e", b"d"), (b"f", b"e"), (b"e/a", b"g")] {
            model.apply(&moved(from, to)).unwrap();
        }
        let changed = model.apply(&append(b"g", 3)).unwrap();
        let hash = Hash::from(Sha256::digest(b"one!"));
        assert_eq!(changed.changed[0].1.kind, Kind::File(hash));
        model.apply(&append(b"d", 3)).unwrap();
    });
}

/// No file system takes them: a block with that could not be put in its place.
#[test]
fn what_no_file_system_takes_is_refused() {
    with("link", &[("f", "")], |_, mut model| {
        model.apply(&placed(b"l", Source::Symlink(b"x".to_vec()))).unwrap();
        let root = model.root();
        let with = |path: &[u8], key: &[u8], value: &[u8]| Offer {
            set: vec![Set {
                path: path.into(),
                xattrs: vec![(key.into(), Some(value.into()))],
                ..Set::default()
            }],
            ..Offer::default()
        };
        let long = [b"user.".to_vec(), vec![b'x'; 251]].concat();
        let list = b"system.posix_acl_access";
        let deep = [b"d".as_slice(), &b"/d".repeat(1500)].concat();
        let device = Source::Special { kind: Type::CharDev, rdev: 1 << 40 };
        let owner = Some((u32::MAX, 0));
        let owned = Set { path: b"f".to_vec(), owner, ..Set::default() };
        for offer in [
            with(b"l", b"user.a", b"1"),
            with(b"f", b"user.", b"1"),
            with(b"f", b"nobody.a", b"1"),
            with(b"f", &long, b"1"),
            with(b"f", b"user.a", &[0; (64 << 10) + 1]),
            with(b"f", list, b"1"),
            with(b"l", list, &self::list(6)),
            with(b"f", b"system.posix_acl_default", &self::list(6)),
            placed(b"s", Source::Symlink(vec![b'x'; 4096])),
            placed(b"s", Source::Symlink(Vec::new())),
            placed(b"s", device),
            placed(&deep, Source::File),
            placed(b"s", Source::Link(b"no".to_vec())),
            Offer { set: vec![owned], ..Offer::default() },
        ] {
            let done = model.apply(&offer);
            assert!(matches!(done, Err(Failed::Refused(_))), "{offer:?}");
        }
        assert_eq!(model.root(), root);
        for offer in [with(b"l", b"trusted.a", b"1"), with(b"f", list, &self::list(6))] {
            model.apply(&offer).unwrap();
        }
    });
}

/// A list of access: what one user, the group and all others may.
fn list(user: u8) -> Vec<u8> {
    let entry = |tag: u8, may: u8, id: [u8; 4]| [&[tag, 0, may, 0][..], &id].concat();
    let nobody = [255; 4];
    let entries = [
        entry(1, 7, nobody),
        entry(2, user, [9, 0, 0, 0]),
        entry(4, 5, nobody),
        entry(16, 7, nobody),
        entry(32, 0, nobody),
    ];
    [&[2, 0, 0, 0][..], &entries.concat()].concat()
}

/// Lists of access that directories hand on, set-id bits and capabilities that a write takes.
#[test]
fn what_is_installed_is_what_a_start_finds() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root gives files away");
        return;
    }
    with("installed", &[("old", "one"), ("d/x", "")], |dir, mut model| {
        let set = |path: &[u8], mode, xattrs: Vec<(&str, Vec<u8>)>| Set {
            path: path.into(),
            mode,
            xattrs: xattrs.into_iter().map(|(k, v)| (k.into(), Some(v))).collect(),
            ..Set::default()
        };
        let cap = [&[1, 0, 0, 2][..], &[0, 4, 0, 0], &[0; 12]].concat();
        let mut owned = set(b"old", Some(0o6755), vec![("security.capability", cap)]);
        owned.owner = Some((9, 9));
        let hands_on = vec![("system.posix_acl_default", list(6))];
        let first = Offer { set: vec![owned, set(b"d", Some(0o2770), hands_on)], ..<_>::default() };
        let second = Offer {
            placed: vec![
                (b"d/new".to_vec(), Source::File),
                (b"d/below".to_vec(), Source::Dir),
                (b"d/below/l".to_vec(), Source::Symlink(b"x".to_vec())),
            ],
            set: vec![
                set(b"d/new", Some(0o4711), vec![("user.a", b"1".to_vec())]),
                append(b"old", 3).set.remove(0),
            ],
            ..Offer::default()
        };
        for offer in [first, second] {
            let changed = model.apply(&offer).unwrap();
            std::fs::create_dir_all(dir.join(OWN).join("taken")).unwrap();
            installed(dir, &offer, &changed);
            model.is_placed();
        }
        // A link has no permissions of its own.
        let hashes = |model: &Model| -> Vec<_> {
            model.leaves.iter().map(|(path, leaf)| (shown(path), leaf.hash(path))).collect()
        };
        assert_eq!(hashes(&Model::read(dir).unwrap()), hashes(&model));
    });
}

/// What a run of any program may ask for, at random.
fn random(chance: &mut impl FnMut(usize) -> usize) -> Offer {
    const PATHS: [&str; 8] = ["a", "b", "c", "d", "d/a", "d/b", "e", "e/a"];
    let mut path = || PATHS[chance(PATHS.len())].as_bytes().to_vec();
    let (one, two) = (path(), path());
    let number = chance(1000) as u32;
    match chance(12) {
        0 => placed(&one, Source::File),
        1 => placed(&one, Source::Dir),
        2 => placed(&one, Source::Symlink(number.to_string().into())),
        3 => placed(&one, Source::Special { kind: Type::Fifo, rdev: 0 }),
        4..=6 => placed(&one, Source::Link(two)),
        7 => Offer {
            taken: vec![one],
            placed: vec![(two.clone(), Source::Taken(0)), (b"new".into(), Source::Link(two))],
            ..Offer::default()
        },
        8 => Offer { taken: vec![one], ..Offer::default() },
        9 => Offer { taken: vec![one], ..placed(&two, Source::Taken(0)) },
        _ => {
            let runs = vec![Run { offset: 0, bytes: number.to_string().into() }];
            let content = Content { len: 100, keep: 100, runs };
            let file = number.is_multiple_of(2);
            let owner = (!file).then_some((number, number));
            let content = file.then_some(content);
            let key = if number.is_multiple_of(3) { "trusted.a" } else { "user.a" };
            let xattrs = vec![(key.into(), Some(number.to_string().into()))];
            let set = Set { path: one, owner, content, xattrs, ..Set::default() };
            Offer { set: vec![set], ..Offer::default() }
        }
    }
}

/// Names come and go, also further ones of one object, and a start finds what there should be.
#[test]
fn random_requests_leave_what_a_start_finds() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root gives files away");
        return;
    }
    with("random", &[("a", "one")], |dir, mut model| {
        std::fs::create_dir_all(dir.join(OWN).join("taken")).unwrap();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut chance = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let (mut done, mut several) = (0, 0);
        for n in 0..4000 {
            let offer = random(&mut chance);
            let before = model.root();
            match model.apply(&offer) {
                Err(failed) => {
                    assert!(matches!(failed, Failed::Refused(_)), "{n}: {failed:?}");
                    assert_eq!(model.root(), before, "{n}: {offer:?}");
                }
                Ok(applied) => {
                    installed(dir, &offer, &applied);
                    model.is_placed();
                    done += 1;
                    several += usize::from(applied.names.len() > 1);
                }
            }
            if n % 20 == 19 {
                let mut read = Model::read(dir).unwrap();
                assert_eq!(read.root(), model.root(), "{n}: {offer:?}");
            }
        }
        assert!(done > 500 && several > 60, "{done} done, {several} of several names");
    });
}

/// Whoever writes what has several names has changed all of them.
#[test]
fn names_of_what_was_written_through_another_name_are_told() {
    with("names", &[("a", "one")], |_, mut model| {
        model.apply(&placed(b"b", Source::Link(b"a".to_vec()))).unwrap();
        let names = model.apply(&append(b"b", 3)).unwrap().names;
        assert_eq!(names, [Key::At(b"a".to_vec()), Key::At(b"b".to_vec())]);
        let one = model.root();
        let taken = Offer { taken: vec![b"b".to_vec()], ..Offer::default() };
        assert_eq!(model.apply(&taken).unwrap().names, [Key::At(b"a".to_vec())]);
        model.apply(&placed(b"b", Source::File)).unwrap();
        assert_ne!(model.root(), one, "two files are not one");
    });
}

#[test]
fn a_name_outside_of_the_directory_is_refused_at_the_start() {
    with("outside", &[("d/a", "one"), ("b", "")], |dir, _| {
        std::fs::hard_link(dir.join("d/a"), dir.join("d/c")).unwrap();
        assert!(Model::read(&dir.join("d")).is_ok());
        std::fs::hard_link(dir.join("d/a"), dir.join("a")).unwrap();
        let why = Model::read(&dir.join("d")).err().unwrap().to_string();
        assert!(why.contains("outside"), "{why}");
    });
}

/// Names come again as names of one file, and what is not what it should be is not taken.
#[test]
fn a_snapshot_comes_to_the_same_hash_and_nothing_else_does() {
    use crate::snapshot::State;
    with("snapshot", &[("d/a", "one"), ("b", "two")], |dir, _| {
        std::fs::hard_link(dir.join("d/a"), dir.join("c")).unwrap();
        std::os::unix::fs::symlink("x", dir.join("l")).unwrap();
        let mut model = Model::read(dir).unwrap();
        let keys = vec![Key::At(b"b".to_vec())];
        let mut versions = crate::versions::Versions::default();
        versions.add(7, &keys);
        let root = combined(model.root(), versions.digest());
        let state = State::gather(dir, vec![(7, keys)]).unwrap();
        let bytes = state.encode();
        let came = State::decode(&bytes).unwrap();
        let mut checked = came.check(dir, 7, &root).unwrap();
        assert_eq!(checked.model.root(), model.root());
        assert!(came.check(dir, 8, &root).is_err() && came.check(dir, 7, &[0; 32]).is_err());
        let changes: [fn(&mut State); 5] = [
            |state| state.blocks[0].1.clear(),
            |state| state.blocks.insert(0, (6, vec![Key::At(b"z".to_vec())])),
            |state| state.all.placed[0].0 = b"..".to_vec(),
            |state| state.all.set[0].owner = Some((1, 1)),
            |state| drop(state.all.set.remove(0)),
        ];
        for change in changes {
            let mut state = State::decode(&bytes).unwrap();
            change(&mut state);
            assert!(state.check(dir, 7, &root).is_err());
        }
        for end in (0..bytes.len()).step_by(7) {
            assert!(State::decode(&bytes[..end]).is_err(), "{end} bytes of it");
        }
    });
}
