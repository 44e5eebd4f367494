use super::*;
use crate::dir_store::DirStore;
use crate::dir_store::tests::{everything, populate, pretty};
use crate::io::Class;
use crate::overlay_of;
use crate::testing::*;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// An overlay file system on a scratch directory, unmounted at the end.
struct Overlaid {
    below: PathBuf,
    options: std::ffi::CString,
    /// Its root is the overlay's.
    s: Scratch,
}

impl Overlaid {
    /// With `fill` in the lower layer; `None` where none can be mounted.
    fn new(base: &str, options: &str, fill: impl Fn(&Scratch)) -> Option<Overlaid> {
        let s = Scratch::on(base);
        let below = PathBuf::from(format!("{}-layers", s.0.display()));
        std::fs::create_dir(&below).unwrap();
        for layer in ["lower", "upper", "work"] {
            std::fs::create_dir(below.join(layer)).unwrap();
        }
        let lower = Scratch(below.join("lower"));
        fill(&lower);
        std::mem::forget(lower);
        let at = |layer: &str| below.join(layer).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}{options}",
            at("lower"),
            at("upper"),
            at("work")
        );
        let options = std::ffi::CString::new(options).unwrap();
        // By a call: a child process would hold the locks of other tests' stores for a moment.
        let none = MountFlags::empty();
        let mounted = mount("overlay", &s.0, "overlay", none, options.as_c_str());
        let made = Overlaid { below, options, s };
        match mounted {
            Ok(()) => return Some(made),
            Err(Errno::PERM | Errno::NODEV) => {}
            Err(e) => panic!("no overlay: {e}"),
        }
        println!("SKIPPED: an overlay cannot be mounted here");
        None
    }

    /// As after a restart: nothing of it is in any cache.
    fn mount_again(&self) {
        unmount(&self.s.0, UnmountFlags::empty()).unwrap();
        let none = MountFlags::empty();
        mount("overlay", &self.s.0, "overlay", none, self.options.as_c_str()).unwrap();
    }

    /// What is in the upper layer, but for the store.
    fn copied_up(&self) -> Vec<String> {
        let upper = std::fs::read_dir(self.below.join("upper")).unwrap();
        let names = upper.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != STATE).collect()
    }
}

impl Drop for Overlaid {
    fn drop(&mut self) {
        let _ = unmount(&self.s.0, UnmountFlags::DETACH);
        let _ = std::fs::remove_dir_all(&self.below);
    }
}

const KINDS: [&str; 2] = ["", ",userxattr"];

/// The lower layer.  No file of two names: which of them are met is for views to tell.
fn fill(s: &Scratch) {
    populate(s);
    std::fs::remove_file(s.path("link2")).unwrap();
    std::fs::remove_dir_all(s.path("moved")).unwrap();
    s.write("link2", "two names");
    s.write("doomed/deep/deeper/f", "f");
    s.write("doomed/first", "1");
    std::os::unix::fs::symlink("c", s.path("doomed/deep/sym")).unwrap();
    std::fs::create_dir(s.path("doomed/deep/empty")).unwrap();
    s.write("replaced/sub/f", "f");
    s.write("replaced/away", "away");
}

/// What is in the upper layer: only such a directory may be moved.
fn above(s: &Scratch) {
    s.write("moved/e", "e");
    // Parts in both layers.
    s.write("doomed/deep/upper", "u");
    std::fs::remove_file(s.path("doomed/d")).unwrap();
}

fn is_movable(o: &Overlaid, name: &[u8]) -> Result<bool> {
    let io = o.s.io();
    overlay_of(&io, STATE.as_bytes()).unwrap().unwrap().is_movable(&io.root(), name)
}

/// All that a commit may do, to directories of the lower layer, too.
fn changes(store: &DirStore, io: &dyn Io) -> Result<(WriteSet, Vec<crate::staging::Slot>)> {
    let mut ws = Ws::new(io);
    everything(&mut ws);
    let slot = store.stage()?;
    io.write_at(slot.handle(), &[b's'; 9000], 0)?;
    let inner = ws.mkdir();
    let file = ws.slot_file(slot.id());
    ws.bind_in(inner, "slot", file);
    // A directory gives way to another one, and a file gets the name of the directory that it was
    // in.
    let away = ws.host("replaced/away");
    ws.bind("replaced", Some(inner));
    ws.bind("away", Some(away));
    let first = ws.host("doomed/first");
    let doomed = ws.set.binds.iter_mut().find(|bind| bind.name == b"doomed").unwrap();
    doomed.target = Some(first);
    Ok((ws.done(), vec![slot]))
}

#[test]
fn what_a_lower_layer_has_is_changed_undone_and_redone() {
    for (base, kind) in bases().iter().flat_map(|b| KINDS.map(|kind| (b, kind))) {
        let Some(o) = Overlaid::new(base, kind, fill) else { return };
        above(&o.s);
        let before = o.s.tree();
        let store = o.s.store();
        let (set, slots) = changes(&store, &*o.s.io()).unwrap();
        run(&store, 1, set);
        drop(slots);
        let after = o.s.tree();
        assert!(
            after["doomed"].contains(" 1 ") && after.contains_key("replaced/slot"),
            "{after:?}"
        );
        undo(&store, 1, 2);
        pretty(&format!("undone, {base}{kind}"), &o.s.tree(), &before);
        undo(&store, 2, 3);
        pretty(&format!("redone, {base}{kind}"), &o.s.tree(), &after);
        undo(&store, 3, 4);
        pretty(&format!("undone again, {base}{kind}"), &o.s.tree(), &before);
    }
}

/// From opening the store to the checkpoint; whether the commit was acknowledged, and whether all
/// was done.
fn life(s: &Scratch, io: Arc<dyn Io>) -> (bool, bool) {
    let Ok((store, _)) = DirStore::open(config(), io) else { return (false, false) };
    let Ok((set, slots)) = changes(&store, &*s.io()) else { return (false, false) };
    let Ok(reservation) = store.reserve(&set) else { return (false, false) };
    let Ok(committed) = store.commit(reservation, set, meta(1)) else { return (false, false) };
    drop(slots);
    let applied = store.apply(committed.lsn).is_ok();
    (true, applied && store.checkpoint().is_ok())
}

/// Every so many calls, another set of them for each kind and class.
const STRIDE: u64 = 7;

#[test]
fn a_process_that_dies_at_any_call_leaves_before_or_after_on_an_overlay() {
    let base = &bases()[0];
    for (k, kind) in KINDS.into_iter().enumerate() {
        let make = || {
            let made = Overlaid::new(base, kind, fill);
            made.inspect(|o| above(&o.s))
        };
        let Some(whole) = make() else { return };
        let before = whole.s.tree();
        let counted = Dying::after(whole.s.io(), u64::MAX);
        assert_eq!(life(&whole.s, counted.clone()), (true, true));
        let after = whole.s.tree();
        for (c, class) in [Class::Strong, Class::Weak].into_iter().enumerate() {
            let mut seen = [0; 2];
            let first = (k * 2 + c) as u64 * 2 % STRIDE;
            for n in (first..counted.calls() + 60).step_by(STRIDE as usize) {
                let Some(o) = make() else { return };
                let (acknowledged, _) = life(&o.s, Dying::of_class(o.s.io(), n, class));
                let what = format!("{class:?}{kind}, dead after {n} calls");
                // A recovery that dies, too.
                let again = Dying::of_class(o.s.io(), n % 97, class);
                drop(DirStore::open(config(), again));
                let again = Dying::of_class(o.s.io(), u64::MAX, class);
                let (store, report) = DirStore::open(config(), again.clone()).expect(&what);
                assert_eq!(report.outside, [], "{what}");
                let now = o.s.tree();
                assert!(!acknowledged || now != before, "{what}: an acknowledged commit is lost");
                seen[usize::from(now != before)] += 1;
                if now != before {
                    pretty(&what, &now, &after);
                }
                assert!(!o.s.path(STATE).join("conflict").exists(), "{what}");
                assert!(names(&*o.s.io(), &store.ground.layout.temp).unwrap().is_empty(), "{what}");
                drop(store);
                let (store, report) = DirStore::open(config(), again).expect(&what);
                assert_eq!(report, crate::RecoveryReport::default(), "{what}: not complete");
                if now != before {
                    undo(&store, 1, 2);
                    pretty(&format!("{what}, undone"), &o.s.tree(), &before);
                }
            }
            assert!(seen[0] > 10 && seen[1] > 20, "{class:?}{kind}: {seen:?}");
        }
    }
}

#[test]
fn nothing_is_copied_up_before_a_commit() {
    let Some(o) = Overlaid::new(&bases()[0], "", fill) else { return };
    let store = o.s.store();
    let io = o.s.io();
    let mut ws = Ws::new(&*io);
    ws.rewrite("plain", "rewritten");
    ws.remove("doomed");
    store.reserve(&ws.done()).unwrap();
    for dir in ["doomed", "dir"] {
        assert!(!is_movable(&o, dir.as_bytes()).unwrap());
    }
    assert_eq!(o.copied_up(), [""; 0]);
    std::fs::create_dir(o.s.path("new")).unwrap();
    assert!(is_movable(&o, b"new").unwrap());
    assert!(o.s.path("new").exists() && !o.s.path("doomed/p").exists());
}

#[test]
fn a_directory_is_not_moved_when_somebody_has_emptied_what_is_in_the_way() {
    let Some(o) = Overlaid::new(&bases()[0], "", fill) else { return };
    let _open = o.s.store();
    std::fs::remove_dir_all(o.s.path(STATE).join("p/p")).unwrap();
    std::fs::create_dir(o.s.path("new")).unwrap();
    assert!(is_movable(&o, b"new").is_err());
    assert!(o.s.path("new").exists());
}

#[test]
fn names_that_a_file_keeps_are_not_parted_from_it() {
    for kind in KINDS {
        let linked = |s: &Scratch| {
            s.write("f", "old");
            for name in ["d/g", "unmet"] {
                std::fs::create_dir_all(s.path("d")).unwrap();
                std::fs::hard_link(s.path("f"), s.path(name)).unwrap();
            }
        };
        let Some(o) = Overlaid::new(&bases()[0], kind, linked) else { return };
        let store = o.s.store();
        let io = o.s.io();
        let mut ws = Ws::new(&*io);
        ws.patch("f", 3, 3, &[(0, b"new")]);
        let (file, dir) = (ws.host("f"), ws.host("d"));
        ws.set.kept = vec![crate::writeset::Kept { file, dir, name: b"g".to_vec() }];
        run(&store, 1, ws.done());
        let meta = |name: &str| std::fs::metadata(o.s.path(name)).unwrap();
        let read = |name: &str| String::from_utf8(o.s.read(name)).unwrap();
        assert_eq!(["f", "d/g", "unmet"].map(read), ["new", "new", "old"]);
        assert_eq!((meta("f").ino(), meta("f").nlink()), (meta("d/g").ino(), 2));
        undo(&store, 1, 2);
        assert_eq!(["f", "d/g", "unmet"].map(read), ["old"; 3]);
    }
}

#[test]
fn who_changes_a_file_between_the_look_and_the_commit_is_noticed() {
    let Some(o) = Overlaid::new(&bases()[0], "", fill) else { return };
    let store = o.s.store();
    let io = o.s.io();
    let mut ws = Ws::new(&*io);
    ws.patch("plain", 13, 13, &[(0, b"ours")]);
    let set = ws.done();
    o.s.write("plain", "theirs        ");
    let refused = store.commit(store.reserve(&set).unwrap(), set, meta(1));
    assert!(matches!(refused, Err(crate::CommitError::Changed { .. })), "{refused:?}");
    assert_eq!(o.s.read("plain"), b"theirs        ");
}

#[test]
fn how_it_is_mounted_is_told() {
    let Some(o) = Overlaid::new(&bases()[0], ",userxattr,volatile", fill) else { return };
    let told = described(std::fs::metadata(&o.s.0).unwrap().dev());
    for word in ["1 lower layer", "userxattr", "volatile: nothing survives a power cut"] {
        assert!(told.contains(word), "{told}");
    }
    assert_eq!(o.s.store().class(), Class::Memory);
}

#[test]
fn what_a_commit_changes_is_copied_up_before_its_installation() {
    for kind in KINDS {
        let Some(o) = Overlaid::new(&bases()[0], kind, fill) else { return };
        above(&o.s);
        let before = o.s.tree();
        let store = o.s.store();
        let (set, slots) = changes(&store, &*o.s.io()).unwrap();
        let committed = store.commit(store.reserve(&set).unwrap(), set, meta(1)).unwrap();
        drop(slots);
        pretty("not installed", &o.s.tree(), &before);
        let upper = o.below.join("upper");
        for path in
            ["plain", "big", "gone", "sym", "link1", "doomed/deep/deeper/f", "replaced/sub/f"]
        {
            assert!(upper.join(path).symlink_metadata().is_ok(), "{path}{kind}");
        }
        store.apply(committed.lsn).unwrap();
    }
}

#[test]
fn numbers_outlast_a_commit_and_the_mount() {
    for kind in KINDS {
        let Some(o) = Overlaid::new(&bases()[1], kind, fill) else { return };
        let before = o.s.tree();
        let store = o.s.store();
        let io = o.s.io();
        let mut ws = Ws::new(&*io);
        let sym = ws.host("sym");
        ws.bind("sym2", Some(sym));
        ws.rename("plain", "plain2");
        ws.create("dir/sub/new", "new");
        run(&store, 1, ws.done());
        let numbers = || {
            let paths = ["sym", "sym2", "plain2", "dir/sub", "dir/sub/new"];
            paths.map(|p| std::fs::symlink_metadata(o.s.path(p)).unwrap().ino())
        };
        let then = numbers();
        drop((store, io));
        o.mount_again();
        assert_eq!(numbers(), then, "{kind}");
        undo(&o.s.store(), 1, 2);
        pretty(&format!("undone{kind}"), &o.s.tree(), &before);
    }
}

#[test]
fn what_was_done_in_a_directory_is_undone_after_it_was_removed_and_brought_back() {
    let Some(o) = Overlaid::new(&bases()[0], "", fill) else { return };
    let before = o.s.tree();
    let store = o.s.store();
    let io = o.s.io();
    let mut ws = Ws::new(&*io);
    ws.remove("doomed/deep/sym");
    let deep = ws.host("doomed/deep");
    ws.obj(deep).attrs.mode = Some(0o700);
    run(&store, 1, ws.done());
    let mut ws = Ws::new(&*io);
    ws.remove("doomed");
    run(&store, 2, ws.done());
    assert!(!o.s.path("doomed").exists());
    undo(&store, 2, 3);
    undo(&store, 1, 4);
    pretty("both undone", &o.s.tree(), &before);
}

/// The transaction knows the file by a name outside of the directory that it removes.
#[test]
fn a_further_name_in_a_removed_directory_comes_back_with_it() {
    for kind in KINDS {
        let Some(o) = Overlaid::new(&bases()[0], kind, |s| s.write("doomed/f", "f")) else {
            return;
        };
        std::fs::hard_link(o.s.path("doomed/f"), o.s.path("known")).unwrap();
        let before = o.s.tree();
        let store = o.s.store();
        let io = o.s.io();
        let mut ws = Ws::new(&*io);
        let known = ws.host("known");
        ws.bind("further", Some(known));
        ws.remove("doomed");
        run(&store, 1, ws.done());
        let after = o.s.tree();
        undo(&store, 1, 2);
        pretty(&format!("undone{kind}"), &o.s.tree(), &before);
        undo(&store, 2, 3);
        pretty(&format!("redone{kind}"), &o.s.tree(), &after);
    }
}
