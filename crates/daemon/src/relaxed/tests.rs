use super::*;
use crate::install::decide;
use crate::volume::{self, Location, OpenVolume};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use systx_base::{Kind, TxnId};
use systx_store::writeset::{Attrs, Content, Ix, Object, Origin, WriteSet};
use systx_store::{CommitMeta, TxnKind};
use systx_txn::BeginOptions;

/// Long enough to show who does not wait; too short shows nothing wrong.
const A_WHILE: Duration = Duration::from_millis(100);
/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(60);

fn open(dir: &Path) -> Arc<OpenVolume> {
    let dev = std::fs::metadata(dir).unwrap().dev();
    let location = Location { mount: dir.to_owned(), dev, store: dir.join(".systx") };
    Arc::new(volume::open(&location).unwrap())
}

/// A commit that gives a file of the root another mode, decided.
fn decided(volume: &Arc<OpenVolume>, id: u64, name: &str) -> Decided {
    let io = &volume.vol.io;
    let stamp = io.stat_at(&io.root(), name.as_bytes()).unwrap().stamp();
    let origin = Origin::Host { parent: Ix(0), name: name.into(), kind: Kind::File, stamp };
    let attrs = Attrs { mode: Some(0o600), ..Attrs::default() };
    let object = |origin, attrs| Object { origin, attrs, xattrs: vec![], content: Content::Keep };
    let objects = vec![object(Origin::Root, Attrs::default()), object(origin, attrs)];
    let writes = WriteSet { objects, ..WriteSet::default() };
    let meta = CommitMeta {
        txn: TxnId(id),
        kind: TxnKind::Run,
        argv: vec![b"true".to_vec()],
        cwd: b"/".to_vec(),
        uid: 0,
        started: io.now(),
        finished: io.now(),
    };
    volume.vol.engine.begin(TxnId(id), BeginOptions::default());
    let Ok(decided) = decide(volume, TxnId(id), writes, &[], meta) else { panic!("{id} lost") };
    decided
}

/// What is done with a commit when its record is written: it is put in its place, and told of.
fn placed(name: &'static str, to: &Sender<&'static str>) -> Then {
    let to = to.clone();
    Box::new(move |written: Written| {
        assert!(written.place(|_| ()).is_ok(), "{name}");
        to.send(name).unwrap();
    })
}

#[test]
fn they_are_finished_in_their_order_and_a_durable_one_comes_after_those_before_it() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c", "d"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let volume = open(dir.path());
    let (said, says) = channel();
    let relaxed = Relaxed::new();
    let give = |id, name, then: Then| {
        let decided = decided(&volume, id, name);
        decided.relax();
        relaxed.finish(decided, then);
    };
    // The first one keeps the thread from the others.
    let (let_go, held) = channel::<()>();
    let first = placed("a", &said);
    give(
        1,
        "a",
        Box::new(move |written| {
            held.recv_timeout(HANG).unwrap();
            first(written);
        }),
    );
    give(2, "b", placed("b", &said));
    give(3, "c", placed("c", &said));
    let durable = decided(&volume, 4, "d");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(durable.finish(|_| ()).is_ok());
            said.send("d").unwrap();
        });
        let early = says.recv_timeout(A_WHILE);
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "before what came before it");
        let_go.send(()).unwrap();
    });
    let order: Vec<_> = (0..4).map(|_| says.recv_timeout(HANG).unwrap()).collect();
    assert_eq!(order, ["a", "b", "c", "d"]);
    let mut history = volume.store.history().unwrap();
    history.sort_by_key(|entry| entry.lsn);
    let ids: Vec<_> = history.iter().map(|entry| entry.meta.txn.0).collect();
    assert_eq!(ids, [1, 2, 3, 4], "records are in the same order");
    for name in ["a", "b", "c", "d"] {
        let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{name}");
    }
}

#[test]
fn who_decides_one_too_many_waits() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..=MOST).map(|n| n.to_string()).collect();
    for name in &names {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let volume = open(dir.path());
    let relaxed = Relaxed::new();
    let (said, says) = channel();
    let (let_go, held) = channel::<()>();
    let first = placed("first", &said);
    let mut then: Option<Then> = Some(Box::new(move |written| {
        held.recv_timeout(HANG).unwrap();
        first(written);
    }));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (id, name) in (1..).zip(&names) {
                let decided = decided(&volume, id, name);
                decided.relax();
                let then = then.take().unwrap_or_else(|| placed("other", &said));
                relaxed.finish(decided, then);
            }
            said.send("all").unwrap();
        });
        let early = says.recv_timeout(A_WHILE);
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "{MOST} are under way");
        let_go.send(()).unwrap();
    });
    let words: Vec<_> = (0..MOST + 2).map(|_| says.recv_timeout(HANG).unwrap()).collect();
    assert_eq!(words[0], "first");
    assert_eq!(words.iter().filter(|word| **word == "other").count(), MOST);
}
