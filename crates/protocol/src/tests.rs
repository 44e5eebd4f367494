use super::*;

fn back<T: Serialize + serde::de::DeserializeOwned>(v: &T) -> T {
    serde_json::from_str(&serde_json::to_string(v).unwrap()).unwrap()
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

fn requests() -> Vec<Request> {
    let undo = Undo { place: place(), id: Some(TxnId(u64::MAX)), paths: vec![], dry_run: true };
    vec![
        Request::Hello { version: 1, release: "x".into() },
        Request::Progress { connection: 3 },
        Request::Begin(Begin {
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
        Request::Attach(Attach {
            id: TxnId(1),
            volume: 1,
            pid: 2,
            mnt_ns: 3,
            connection: 4,
            rules: vec![rule(Class::Private), rule(Class::Passthrough)],
        }),
        Request::Finish(Finish {
            id: TxnId(1),
            end: End::Keep,
            code: Some(3),
            deferred: vec![vec!["systemctl".into(), "restart".into()]],
        }),
        Request::BeginOpen(BeginOpen {
            place: place(),
            isolation: Isolation::Serializable,
            read_only: false,
            nice: Some(-5),
            policy: None,
            transport: Transport::Auto,
            retry: Some(TxnId(3)),
        }),
        Request::Doom { id: TxnId(9) },
        Request::WaitFor { id: TxnId(9), limit_ms: 5 },
        Request::List,
        Request::Top,
        Request::Status { id: TxnId(1) },
        Request::Diff { target: Target::Open { id: TxnId(1) }, paths: vec!["/x".into()] },
        Request::Content {
            target: Target::Committed { place: place(), id: TxnId(1) },
            path: "/x".into(),
            version: Version::Old,
            limit: 1,
        },
        Request::Commit { id: TxnId(1), paths: vec![] },
        Request::Abort { id: TxnId(1) },
        Request::Enter { id: TxnId(1) },
        Request::Leave { id: TxnId(1) },
        Request::Log { place: place(), limit: None, paths: vec!["/p".into()] },
        Request::Deferred(None),
        Request::Deferred(Some(place())),
        Request::Settle(Settle { place: None, id: TxnId(1), left: vec![vec!["true".into()]] }),
        Request::Undo(undo.clone()),
        Request::Redo(undo),
        Request::Recover { place: place(), trusted: true },
        Request::Gc(Gc { place: place(), keep: Some(1), max_bytes: None, dry_run: false }),
        Request::Inspect(place()),
        Request::Mount(Mount {
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
        Request::Umount(Umount { dir: "/g".into(), force: false }),
        Request::Guarded,
        Request::MountVolume(MountVolume {
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
        Request::Volumes,
        Request::Snapshots(Snapshots {
            volume: "/v".into(),
            change: SnapshotChange::Make("monday".into()),
        }),
        Request::Protect(Protect { path: Some("/p".into()), change: Some(false), mnt_ns: 4 }),
        Request::Shutdown { force: true },
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
    }
}

fn activity() -> VolumeActivity {
    VolumeActivity {
        volume: "/".into(),
        open: true,
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

fn replies() -> Vec<Reply> {
    let failure = Failure::new(FailureKind::Space, "no space").hint("gc").path("/s");
    let outcomes = vec![
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
    let mut all: Vec<Reply> = outcomes.into_iter().map(Reply::Outcome).collect();
    let volume = VolumeFacts {
        root: "/".into(),
        dev: 5,
        store: "/.s".into(),
        guarded: vec![GuardedAt { dir: "/g".into(), mount: 3, dev: 8 }],
    };
    all.extend([
        Reply::Hello { version: 1, release: "r".into(), pid: 2, connection: 3 },
        Reply::Begun(Begun {
            id: TxnId(1),
            timestamp: 2,
            volume: volume.clone(),
            others: vec![volume.clone()],
            notes: vec![],
            details: vec![],
            unprotected: vec!["/p".into()],
        }),
        Reply::BegunOpen(BegunOpen {
            id: TxnId(1),
            path: "/run/v".into(),
            directory: "/g".into(),
            volume: volume.clone(),
            notes: vec![],
        }),
        Reply::Attached(Attached { transport: Transport::Dev }),
        Reply::Doom(Some(conflict())),
        Reply::Doom(None),
        Reply::Ended(true),
        Reply::List(vec![listed()]),
        Reply::Top(vec![activity()]),
        Reply::Deferred(vec![Deferred { id: TxnId(1), actions: vec![vec!["true".into()]] }]),
        Reply::Status(Box::new(Status {
            listed: listed(),
            classes: vec![RuleInUse { rule: rule(Class::NoCommit), used: Some(3) }],
        })),
        Reply::Changes(vec![change()]),
        Reply::Content { total: 1, unknown: false },
        Reply::Entered(Entered {
            volume,
            others: vec![],
            live: Some(3),
            mounted: None,
            unprotected: vec![],
        }),
        Reply::Protection(vec![Protection {
            path: "/p/q".into(),
            protected: false,
            mark: Some("/p".into()),
            notes: vec![],
        }]),
        Reply::Log(vec![LogEntry {
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
        Reply::Undone(Undone {
            target: TxnId(1),
            argv: vec![],
            cwd: "/srv".into(),
            notes: vec!["a note".into()],
            changes: vec![change()],
            outcome: None,
        }),
        Reply::Recovered(Recovered::default()),
        Reply::Collected(Collected::default()),
        Reply::Inspected(Inspected::default()),
        Reply::Mounted(Mounted::Guarded(guarded())),
        Reply::Mounted(Mounted::InUse { holders: vec![holder()] }),
        Reply::Unmounted(Unmounted::Done { dir: "/g".into(), cut: vec![holder()], notes: vec![] }),
        Reply::Unmounted(Unmounted::InUse { holders: vec![], mounts: vec!["/g/m".into()] }),
        Reply::Guarded(vec![guarded()]),
        Reply::MountedVolume(mounted_volume()),
        Reply::Volumes(vec![mounted_volume()]),
        Reply::Snapshots(vec![VolumeSnapshot {
            name: "monday".into(),
            time: Time { secs: 1, nanos: 2 },
            keeps: 4096,
            of: None,
        }]),
        Reply::Progress(Some(Progress { phase: Phase::Saving, done: 1, total: 2 })),
        Reply::Progress(None),
        Reply::Done,
        Reply::Failed(failure),
    ]);
    all
}

#[test]
fn every_request_round_trips() {
    for r in requests() {
        assert_eq!(back(&r), r);
    }
}

#[test]
fn every_reply_round_trips() {
    for r in replies() {
        assert_eq!(back(&r), r);
    }
}

fn text<T: Serialize>(messages: &[T]) -> Vec<String> {
    messages.iter().map(|m| serde_json::to_string(m).unwrap()).collect()
}

/// Who is served by a daemon that began before the program was changed relies on these bytes: where
/// they have to change, so does [`VERSION`].
#[test]
fn every_message_travels_as_these_bytes() {
    let now = [text(&requests()), text(&replies())].concat();
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
