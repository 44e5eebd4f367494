use super::call::{Reply, Request};
use super::*;

fn back<T: Serialize + serde::de::DeserializeOwned>(v: &T) -> T {
    serde_json::from_str(&serde_json::to_string(v).unwrap()).unwrap()
}

/// How that is asked; whoever is asked understands it.
#[track_caller]
fn asked<C: Call + PartialEq + std::fmt::Debug>(call: &C) -> String {
    let request = Request::new(call).unwrap();
    assert_eq!(back(&request).read::<C>().as_ref(), Ok(call));
    serde_json::to_string(&request).unwrap()
}

/// How that is answered; whoever asked understands it.
#[track_caller]
fn answered<C: Call<Answer: PartialEq + std::fmt::Debug>>(answer: &C::Answer) -> String {
    let reply = Reply::new::<C>(answer).unwrap();
    assert_eq!(back(&reply).read::<C>().as_ref(), Ok(answer));
    serde_json::to_string(&reply).unwrap()
}

fn failed(failure: &Failure) -> String {
    let reply = Reply::failed(failure).unwrap();
    assert_eq!(back(&reply).read::<call::List>().as_ref(), Err(failure));
    serde_json::to_string(&reply).unwrap()
}

fn place() -> Place {
    Place { cwd: "/home/u".into(), root: Some("/srv".into()), store: None }
}

fn conflict() -> Conflict {
    Conflict {
        path: HostPath(b"/a/\xff".to_vec()),
        part: Part::List,
        opponent: Opponent::Transaction {
            id: TxnId(7),
            argv: vec!["make".into()],
            ended: true,
            uid: None,
        },
        stale_only: true,
        stale: vec!["/a".into()],
    }
}

fn requests() -> Vec<String> {
    let undo = Undo { place: place(), id: Some(TxnId(u64::MAX)), paths: vec![], dry_run: true };
    vec![
        asked(&call::Hello { version: 1, release: "x".into() }),
        asked(&call::Progress { connection: 3 }),
        asked(&Begin {
            place: place(),
            argv: vec!["sh".into(), HostPath(vec![0xc3, 0x28])],
            isolation: Isolation::Snapshot,
            read_only: true,
            policy: Some(Policy::Timestamp),
            losses: 2,
            timestamp: Some(u64::MAX),
            rules: vec![rule(Class::NoCommit), rule(Class::AppendMerge)],
            limit_bytes: Some(1),
            transport: Transport::IoUring,
            others: vec!["/home".into()],
        }),
        asked(&Attach {
            id: TxnId(1),
            volume: 1,
            pid: 2,
            mnt_ns: 3,
            connection: 4,
            rules: vec![rule(Class::Private), rule(Class::Passthrough)],
        }),
        asked(&Finish {
            id: TxnId(1),
            end: End::Keep,
            code: Some(3),
            deferred: vec![vec!["systemctl".into(), "restart".into()]],
        }),
        asked(&BeginOpen {
            place: place(),
            isolation: Isolation::Serializable,
            read_only: false,
            nice: Some(-5),
            policy: None,
            transport: Transport::Auto,
            retry: Some(TxnId(3)),
        }),
        asked(&call::Doom { id: TxnId(9) }),
        asked(&call::WaitFor { id: TxnId(9), limit_ms: 5 }),
        asked(&call::List),
        asked(&call::Top),
        asked(&call::Status { id: TxnId(1) }),
        asked(&call::Diff { target: Target::Open { id: TxnId(1) }, paths: vec!["/x".into()] }),
        asked(&call::Content {
            target: Target::Committed { place: place(), id: TxnId(1) },
            path: "/x".into(),
            version: Version::Old,
            limit: 1,
        }),
        asked(&call::Commit { id: TxnId(1), paths: vec![] }),
        asked(&call::Abort { id: TxnId(1) }),
        asked(&call::Enter { id: TxnId(1) }),
        asked(&call::Leave { id: TxnId(1) }),
        asked(&call::Log { place: place(), limit: None, paths: vec!["/p".into()] }),
        asked(&call::Deferred(None)),
        asked(&call::Deferred(Some(place()))),
        asked(&Settle { place: None, id: TxnId(1), left: vec![vec!["true".into()]] }),
        asked(&undo.clone()),
        asked(&call::Redo(undo)),
        asked(&call::Recover { place: place(), trusted: true }),
        asked(&Gc { place: place(), keep: Some(1), max_bytes: None, dry_run: false }),
        asked(&call::Inspect(place())),
        asked(&Mount {
            dir: HostPath(b"/g\xff".to_vec()),
            store: None,
            mnt_ns: 4,
            force: true,
            transport: Transport::Auto,
            stall_ms: 7,
            policy: Policy::Karma,
            routed: true,
            fast_open: false,
            certifier: None,
        }),
        asked(&Umount { dir: "/g".into(), force: false }),
        asked(&call::Guarded),
        asked(&MountVolume {
            file: HostPath(b"/image\xff".to_vec()),
            dir: "/v".into(),
            mnt_ns: 4,
            transport: Transport::Dev,
            snapshot: Some("monday".into()),
            threads: Some(ForThreads {
                stall_ms: 7,
                policy: Policy::Karma,
                certifier: Some("/run/certifier".into()),
            }),
        }),
        asked(&call::Volumes),
        asked(&Snapshots { volume: "/v".into(), change: SnapshotChange::Make("monday".into()) }),
        asked(&Protect { path: Some("/p".into()), change: Some(false), mnt_ns: 4 }),
        asked(&call::Shutdown { force: true }),
    ]
}

fn holder() -> Holder {
    let held = Held { how: HeldAs::Map, path: HostPath(b"/g/\xff".to_vec()) };
    Holder { pid: 3, command: "sh".into(), held: vec![held] }
}

fn guarded() -> GuardedDir {
    GuardedDir {
        dir: "/g".into(),
        volume: "/".into(),
        store: "/.systx".into(),
        dev: 5,
        transport: Transport::IoUring,
        stall_ms: 500,
        policy: Policy::Size,
        routed: false,
        fast_open: false,
        certifier: None,
        past: vec![holder()],
        notes: vec!["n".into()],
    }
}

fn change() -> Change {
    let side = Side {
        mode: 0o100644,
        uid: 0,
        gid: 0,
        size: 3,
        mtime: Time { secs: -1, nanos: 2 },
        target: Some("t".into()),
        rdev: 0,
    };
    Change {
        kind: ChangeKind::Renamed,
        path: "/n".into(),
        from: Some("/o".into()),
        old: Some(side.clone()),
        new: Some(side),
        content: true,
        bytes: 3,
        xattrs: vec!["user.a".into()],
        dropped: false,
    }
}

fn rule(class: Class) -> Rule {
    Rule { class, path: HostPath(b"/var/log/**/\xff".to_vec()), from: "built in".into() }
}

fn listed() -> Listed {
    Listed {
        id: TxnId(1),
        state: State::Kept,
        argv: vec![],
        cwd: "/".into(),
        volume: "/".into(),
        begun: Time { secs: 1, nanos: 2 },
        code: None,
        isolation: Isolation::Serializable,
        read_only: false,
        pid: None,
        view: Some("/v".into()),
        summary: Summary::default(),
        conflict: Some(conflict()),
        deferred: vec![],
        limited: true,
        full: false,
    }
}

fn mounted_volume() -> MountedVolume {
    MountedVolume {
        file: "/image".into(),
        dir: "/v".into(),
        label: "l".into(),
        dev: 9,
        transport: Transport::Dev,
        snapshot: None,
        threads: None,
        which: (8, 1),
        dead: false,
        stopped: Some("s".into()),
    }
}

fn activity() -> VolumeActivity {
    VolumeActivity {
        volume: "/".into(),
        open: true,
        stopped: None,
        counts: Counts { begun: 1, ..Counts::default() },
        guarded: vec![],
        runs: vec![],
        transactions: vec![],
        line: vec![InLine {
            position: 1,
            pid: 2,
            tid: 3,
            argv: vec![],
            since: Time { secs: 1, nanos: 2 },
            behind: Some(Behind { path: "/p".into(), by: Before::Transaction(TxnId(4)) }),
        }],
        remembered: Remembered::default(),
    }
}

fn replies() -> Vec<String> {
    let failure = Failure::new(FailureKind::Space, "no space").hint("gc").path("/s");
    let outcomes = [
        Outcome::Committed {
            id: TxnId(1),
            summary: Summary { added: 1, ..Summary::default() },
            outside: vec![OutsideChange { path: "/p".into(), saved: None, what: "w".into() }],
            stale: vec![],
            dropped: 1,
            notes: vec!["n".into()],
        },
        Outcome::Aborted { summary: Summary::default() },
        Outcome::Kept { summary: Summary::default() },
        Outcome::Conflict { conflict: conflict(), kept: false },
        Outcome::Refused { failure: failure.clone(), kept: true },
        Outcome::Unfinished { id: TxnId(7), failure: failure.clone(), kept: true },
    ];
    let mut all: Vec<String> = outcomes.iter().map(answered::<Finish>).collect();
    let volume = VolumeFacts {
        root: "/".into(),
        dev: 5,
        store: "/.s".into(),
        guarded: vec![GuardedAt { dir: "/g".into(), mount: 3, dev: 8 }],
    };
    all.extend([
        answered::<call::Hello>(&call::Greeting {
            version: 1,
            release: "r".into(),
            pid: 2,
            connection: 3,
        }),
        answered::<Begin>(&Begun {
            id: TxnId(1),
            timestamp: 2,
            volume: volume.clone(),
            others: vec![volume.clone()],
            notes: vec![],
            details: vec![],
            unprotected: vec!["/p".into()],
        }),
        answered::<BeginOpen>(&BegunOpen {
            id: TxnId(1),
            path: "/run/v".into(),
            directory: "/g".into(),
            volume: volume.clone(),
            notes: vec![],
        }),
        answered::<Attach>(&Attached { transport: Transport::Dev }),
        answered::<call::Doom>(&Some(conflict())),
        answered::<call::Doom>(&None),
        answered::<call::WaitFor>(&true),
        answered::<call::List>(&vec![listed()]),
        answered::<call::Top>(&vec![activity()]),
        answered::<call::Deferred>(&vec![Deferred {
            id: TxnId(1),
            actions: vec![vec!["true".into()]],
        }]),
        answered::<call::Status>(&Status {
            listed: listed(),
            classes: vec![RuleInUse { rule: rule(Class::NoCommit), used: Some(3) }],
        }),
        answered::<call::Diff>(&vec![change()]),
        answered::<call::Content>(&Content { total: 1, ..Content::default() }),
        answered::<call::Enter>(&Entered {
            volume,
            others: vec![],
            live: Some(3),
            mounted: None,
            unprotected: vec![],
        }),
        answered::<Protect>(&vec![Protection {
            path: "/p/q".into(),
            protected: false,
            mark: Some("/p".into()),
            notes: vec![],
        }]),
        answered::<call::Log>(&vec![LogEntry {
            id: TxnId(1),
            time: Time::default(),
            argv: vec![],
            cwd: "/".into(),
            summary: Summary::default(),
            undoes: Some(TxnId(2)),
            undone_by: None,
            undoable: true,
            deferred: vec![],
        }]),
        answered::<Undo>(&Undone {
            target: TxnId(1),
            argv: vec![],
            cwd: "/srv".into(),
            notes: vec!["a note".into()],
            changes: vec![change()],
            outcome: None,
        }),
        answered::<call::Recover>(&Recovered::default()),
        answered::<Gc>(&Collected::default()),
        answered::<call::Inspect>(&Inspected::default()),
        answered::<Mount>(&Mounted::Guarded(guarded())),
        answered::<Mount>(&Mounted::InUse { holders: vec![holder()] }),
        answered::<Umount>(&Unmounted::Done {
            dir: "/g".into(),
            cut: vec![holder()],
            notes: vec![],
        }),
        answered::<Umount>(&Unmounted::InUse { holders: vec![], mounts: vec!["/g/m".into()] }),
        answered::<call::Guarded>(&vec![guarded()]),
        answered::<MountVolume>(&mounted_volume()),
        answered::<call::Volumes>(&vec![mounted_volume()]),
        answered::<Snapshots>(&vec![VolumeSnapshot {
            name: "monday".into(),
            time: Time { secs: 1, nanos: 2 },
            keeps: 4096,
            of: None,
        }]),
        answered::<call::Progress>(&Some(Progress { phase: Phase::Saving, done: 1, total: 2 })),
        answered::<call::Progress>(&None),
        answered::<call::Leave>(&()),
        failed(&failure),
    ]);
    all
}

/// Who is served by a daemon that began before the program was changed relies on these bytes: where
/// they have to change, so does [`VERSION`].
#[test]
fn every_message_travels_as_these_bytes() {
    let now = [requests(), replies()].concat();
    let then: Vec<&str> = include_str!("tests/messages.jsonl").lines().collect();
    for (now, then) in now.iter().zip(&then) {
        assert_eq!(now, then);
    }
    assert_eq!(now.len(), then.len());
}

#[test]
fn paths_are_text_where_they_can_be_and_bytes_where_they_cannot() {
    assert_eq!(serde_json::to_string(&HostPath::from("/é")).unwrap(), "\"/é\"");
    assert_eq!(serde_json::to_string(&HostPath(vec![0xff])).unwrap(), "[255]");
}
