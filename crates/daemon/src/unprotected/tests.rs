use super::*;

fn marks(paths: &[&str]) -> Vec<Mark> {
    let mark = |path: &&str| Mark { path: (*path).into(), ino: 7, born: Some((1, 2)) };
    paths.iter().map(mark).collect()
}

fn bytes(version: u32, marks: Vec<Mark>) -> Vec<u8> {
    serde_json::to_vec(&List { version, marks }).unwrap()
}

fn list() -> (tempfile::TempDir, PathBuf, Unprotected) {
    let dir = tempfile::tempdir().unwrap();
    let top = std::fs::canonicalize(dir.path()).unwrap();
    std::fs::create_dir(top.join("ledger")).unwrap();
    let list = Unprotected { of_root: None, ..Unprotected::new(&top.join("ledger")) };
    (dir, top, list)
}

fn mark(list: &Unprotected, path: &Path) {
    list.add(path, &look(path).unwrap()).unwrap();
}

#[test]
fn what_cannot_be_believed_is_not_used() {
    let good = bytes(VERSION, marks(&["/srv/a", "/srv/b c"]));
    assert_eq!(decode(&good).unwrap(), marks(&["/srv/a", "/srv/b c"]));
    for cut in 0..good.len() {
        assert!(decode(&good[..cut]).is_err(), "{cut}");
    }
    for at in 0..good.len() {
        // Whatever comes of it, it does not end the daemon.
        let mut bad = good.clone();
        bad[at] ^= 0x15;
        let _ = decode(&bad);
    }
    assert!(decode(&bytes(VERSION + 1, Vec::new())).is_err());
    for path in ["srv/a", "/", "/srv/../etc", "/srv//a", "/srv/a/", "/srv/./a", "/srv/a\0", ""] {
        assert!(decode(&bytes(VERSION, marks(&[path]))).is_err(), "{path:?}");
    }
    assert!(decode(&bytes(VERSION, marks(&["/a"; MARKS_MAX + 1]))).is_err());
    assert!(decode(&vec![b' '; MAX_BYTES as usize + 1]).is_err());
}

#[test]
fn a_mark_holds_for_what_was_marked_and_all_that_is_in_it() {
    let (_dir, top, list) = list();
    let (cache, beside) = (top.join("cache"), top.join("cache2"));
    std::fs::create_dir_all(cache.join("deep")).unwrap();
    std::fs::create_dir(&beside).unwrap();
    assert_eq!(list.mark_of(&cache), None);
    mark(&list, &cache);
    mark(&list, &cache);
    assert_eq!(list.own().unwrap().len(), 1);
    for inside in [&cache, &cache.join("deep")] {
        assert_eq!(list.mark_of(inside).as_ref(), Some(&cache), "{inside:?}");
    }
    assert_eq!(list.mark_of(&beside), None);
    assert_eq!(list.any_in(&top).as_ref(), Some(&cache));
    assert_eq!(list.any_in(&cache.join("deep")).as_ref(), Some(&cache));
    assert_eq!(list.any_in(&beside), None);
    // It does not go along, and what comes to its place has none.
    std::fs::rename(&cache, top.join("moved")).unwrap();
    assert_eq!((list.mark_of(&cache), list.mark_of(&top.join("moved"))), (None, None));
    std::fs::create_dir(&cache).unwrap();
    assert_eq!(list.mark_of(&cache), None);
    std::fs::remove_dir(&cache).unwrap();
    std::os::unix::fs::symlink("moved", &cache).unwrap();
    assert_eq!(list.mark_of(&cache), None);
    std::fs::remove_file(&cache).unwrap();
    // It is the same again.
    std::fs::rename(top.join("moved"), &cache).unwrap();
    assert_eq!(list.mark_of(&cache).as_ref(), Some(&cache));
    list.remove(&cache).unwrap();
    assert_eq!(list.mark_of(&cache), None);
}

#[test]
fn the_store_of_a_volume_is_protected() {
    let (_dir, top, list) = list();
    for dir in ["v/.systx", "v/cache/store"] {
        std::fs::create_dir_all(top.join(dir)).unwrap();
    }
    let at = |store: &str| Location { mount: top.join("v"), dev: 0, store: top.join(store) };
    mark(&list, &top.join("v/cache"));
    let now = |location| list.beside(std::iter::once(&location)).map(|(now, _)| now);
    assert_eq!(now(at("v/.systx")).unwrap(), [HostPath::from(top.join("v/cache"))]);
    for store in ["v/cache/store", "v/cache", "v"] {
        assert!(now(at(store)).unwrap_err().hint.unwrap().contains("v/cache"), "{store}");
    }
}

#[test]
fn roots_list_holds_for_others_if_it_is_roots() {
    let (_dir, top, own) = list();
    std::fs::create_dir(top.join("cache")).unwrap();
    mark(&own, &top.join("cache"));
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(read(&own.own, uid).unwrap().len(), 1);
    assert!(read(&own.own, uid + 1).is_err(), "another user's");
    let of_root = Some(own.own.clone());
    let other = Unprotected { own: top.join("none"), of_root, uid: own.uid };
    let (marks, notes) = other.marks();
    let is_root = uid == 0;
    assert_eq!((marks.len(), notes.len()), if is_root { (1, 0) } else { (0, 1) });
    std::fs::set_permissions(&own.own, std::fs::Permissions::from_mode(0o666)).unwrap();
    let (marks, notes) = own.marks();
    assert_eq!((marks.len(), notes.len()), (0, 1), "everything is protected, and that is told");
    assert!(own.add(&top.join("cache"), &look(&top).unwrap()).is_err());
}
