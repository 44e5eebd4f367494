use crate::dir_store::DirStore;
use crate::error::{CommitError, OpenError};
use crate::testing::{STATE, Scratch, Ws, config, meta};
use crate::trust::{Known, Owner, Registry};
use crate::{Config, Store};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use systx_base::TxnId;

fn me(s: &Scratch) -> Owner {
    let meta = std::fs::metadata(&s.0).unwrap();
    Owner { uid: meta.uid(), gid: meta.gid() }
}

fn open(s: &Scratch) -> Result<DirStore, OpenError> {
    DirStore::open(Config { owner: Some(me(s)), ..config() }, s.io()).map(|(store, _)| store)
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A store with a commit that waits to be installed.
fn committed(s: &Scratch, config: Config) {
    let (store, _) = DirStore::open(config, s.io()).unwrap();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.create("made", "by a record");
    let set = ws.done();
    store.commit(store.reserve(&set).unwrap(), set, meta(1)).unwrap();
}

/// Everything about what is below a directory that a refusal must leave alone.
fn picture(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
            all.push(format!("{path:?} {:o} {} {times:?}", meta.mode(), meta.len()));
            if meta.is_dir() {
                dirs.push(path);
            }
        }
    }
    all.sort();
    all
}

type Tamper = fn(&Scratch);

/// Ways in which somebody else may have had a hand in it.
const TAMPERED: [(&str, Tamper); 11] = [
    ("the directory can be written by all", |s| chmod(&s.path(STATE), 0o777)),
    ("the same, sticky", |s| chmod(&s.path(STATE), 0o1777)),
    ("by a group", |s| chmod(&s.path(STATE), 0o770)),
    ("a directory in it", |s| chmod(&s.path(STATE).join("j"), 0o733)),
    ("a file of the journal", |s| chmod(&s.path(STATE).join("j/00"), 0o602)),
    ("a super block", |s| chmod(&s.path(STATE).join("super.0"), 0o620)),
    ("a further name", |s| {
        std::fs::hard_link(s.path(STATE).join("super.1"), s.path("name")).unwrap();
    }),
    ("a link instead of a file", |s| {
        std::fs::rename(s.path(STATE).join("super.1"), s.path("moved")).unwrap();
        symlink("../moved", s.path(STATE).join("super.1")).unwrap();
    }),
    ("a fifo", |s| {
        let made = std::process::Command::new("mkfifo").arg(s.path(STATE).join("applied")).status();
        assert!(made.unwrap().success());
    }),
    ("a link on the way", |s| {
        std::fs::rename(s.path(STATE), s.path("elsewhere")).unwrap();
        symlink("elsewhere", s.path(STATE)).unwrap();
    }),
    ("all can rename it", |s| chmod(&s.0, 0o777)),
];

#[test]
fn where_others_could_write_nothing_is_believed_and_nothing_changed() {
    for (what, tamper) in TAMPERED {
        let s = Scratch::new();
        committed(&s, config());
        tamper(&s);
        let before = picture(&s.0);
        let refused = open(&s).err();
        assert!(matches!(&refused, Some(OpenError::Unsafe { .. })), "{what}: {refused:?}");
        assert_eq!(picture(&s.0), before, "{what}");
        assert!(!s.path("made").exists(), "{what}");
    }
}

#[test]
fn in_a_sticky_directory_and_below_the_own_group_a_store_counts() {
    for mode in [0o1777, 0o770, 0o775] {
        let s = Scratch::new();
        committed(&s, config());
        chmod(&s.0, mode);
        drop(open(&s).unwrap());
        assert_eq!(s.read("made"), b"by a record");
    }
}

#[test]
fn a_directory_with_other_things_in_it_is_made_no_store() {
    let s = Scratch::new();
    s.write(&format!("{STATE}/letter"), "mine");
    chmod(&s.path(STATE), 0o755);
    let before = picture(&s.0);
    assert!(matches!(open(&s), Err(OpenError::Unsafe { .. })));
    assert_eq!(picture(&s.0), before);
    std::fs::remove_file(s.path(STATE).join("letter")).unwrap();
    drop(open(&s).unwrap());
    assert_eq!(std::fs::metadata(s.path(STATE)).unwrap().mode() & 0o777, 0o700);
}

/// Knows one store.
#[derive(Default)]
struct One(AtomicU64);

impl Known for One {
    fn knows(&self, store: u64) -> bool {
        self.0.load(Ordering::Relaxed) == store
    }
    fn note(&self, store: u64) -> std::io::Result<()> {
        self.0.store(store, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn what_an_unknown_store_has_committed_is_not_installed() {
    let s = Scratch::new();
    let here = Arc::new(One::default());
    let with =
        |known: &Arc<One>| Config { registry: Registry::new(Arc::<One>::clone(known)), ..config() };
    committed(&s, with(&here));
    let before = picture(&s.path(STATE).join("j"));
    let elsewhere = Arc::new(One::default());
    let refused = DirStore::open(with(&elsewhere), s.io()).err();
    assert!(matches!(&refused, Some(OpenError::Unknown { .. })), "{refused:?}");
    assert_eq!(picture(&s.path(STATE).join("j")), before);
    assert!(!s.path("made").exists());
    let (store, report) = DirStore::open(with(&here), s.io()).unwrap();
    assert_eq!(report.finished, [TxnId(1)], "where it was made it is recovered");
    drop(store);
    // With nothing to be installed it is opened anywhere; whoever commits there knows it from then
    // on.
    drop(DirStore::open(with(&elsewhere), s.io()).unwrap());
    assert_eq!(elsewhere.0.load(Ordering::Relaxed), 0);
    let (store, _) = DirStore::open(with(&elsewhere), s.io()).unwrap();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.create("more", "x");
    let set = ws.done();
    store.commit(store.reserve(&set).unwrap(), set, meta(2)).unwrap();
    assert_eq!(Some(elsewhere.0.load(Ordering::Relaxed)), Store::known_as(&store));
}

/// The record of a joint commit names stores that have written nothing yet.
#[test]
fn a_store_is_noted_before_its_number_is_told() {
    let s = Scratch::new();
    let here = Arc::new(One::default());
    let registry = Registry::new(Arc::<One>::clone(&here));
    let (store, _) = DirStore::open(Config { registry, ..config() }, s.io()).unwrap();
    let number = store.number().unwrap();
    assert_eq!(here.0.load(Ordering::Relaxed), number);
}

/// Cannot note anything the first time.
#[derive(Default)]
struct Later(OnceLock<()>);

impl Known for Later {
    fn knows(&self, _store: u64) -> bool {
        true
    }
    fn note(&self, _store: u64) -> std::io::Result<()> {
        let text = "the note cannot be made in /nowhere";
        self.0.set(()).map_or(Ok(()), |()| Err(Error::new(ErrorKind::StorageFull, text)))
    }
}

#[test]
fn what_cannot_be_noted_is_not_committed_and_the_refusal_says_why_and_the_next_commit_is() {
    let s = Scratch::new();
    let registry = Registry::new(Arc::new(Later::default()));
    let (store, _) = DirStore::open(Config { registry, ..config() }, s.io()).unwrap();
    let io = s.io();
    let commit = |txn| {
        let mut ws = Ws::new(&*io);
        ws.create("made", "x");
        let set = ws.done();
        store.commit(store.reserve(&set).unwrap(), set, meta(txn)).map(drop)
    };
    let refused = commit(1).unwrap_err();
    assert!(refused.to_string().contains("in /nowhere"), "{refused}");
    assert!(matches!(refused, CommitError::Io(_)) && !s.path("made").exists());
    commit(2).unwrap();
}
