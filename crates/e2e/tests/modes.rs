//! Which modes exclude each other (`systx_protocol::modes`): the real program is asked for each
//! pair, and says what the table says, or does it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::net::UnixListener;
use systx_e2e::room::Room;
use systx_e2e::shared::{ANN, Shared};
use systx_e2e::volume::Mounted;
use systx_e2e::{Finished, Fs, Lab, lab, room, skip, users};
use systx_protocol::certify::READY;
use systx_protocol::modes::{EXCLUSIONS, Way, excluded};

use Way::{
    Certifier, FastOpen, Guarded, Guest, Helper, Inner, LimitProcesses, Moment, NoNet, OnExit,
    Overlay, Part, Path, Quotas, ReadOnly, Root, Routed, Several, Snapshot, Thread, Undo,
    Unprotected, User, Volume,
};

/// How a directory is mounted.
const HOW: [Way; 3] = [FastOpen, Routed, Certifier];
/// What is done in one.
const WORK: [Way; 6] = [Path, Thread, Snapshot, ReadOnly, Part, Undo];
/// What is done on an overlay.
const ON_OVERLAY: [Way; 5] = [Guarded, Path, Snapshot, ReadOnly, Undo];
/// What a volume is asked for.
const OF_VOLUME: [Way; 8] = [FastOpen, Routed, Certifier, Thread, Guarded, Path, Snapshot, Undo];
/// What is done where something is not protected.
const UNPROTECTED: [Way; 6] = [Thread, Path, Snapshot, ReadOnly, FastOpen, Certifier];
/// What a guest's transaction meets.
const OF_GUEST: [Way; 4] = [Snapshot, ReadOnly, Unprotected, Quotas];
/// With which a run in a run is begun.
const INSIDE: [Way; 4] = [OnExit, ReadOnly, NoNet, Snapshot];
/// The others.
const ALONE: [(Way, Way); 6] = [
    (Thread, Moment),
    (Guarded, User),
    (Helper, Unprotected),
    (Root, LimitProcesses),
    (Part, Several),
    (Certifier, Several),
];

/// The table is tried as a whole.
#[test]
fn each_row_is_tried() {
    let with = |one: Way, others: &[Way]| others.iter().map(|o| (one, *o)).collect::<Vec<_>>();
    let mut tried: BTreeSet<(Way, Way)> = ALONE.into_iter().collect();
    for how in HOW {
        tried.extend(with(how, &HOW).into_iter().chain(with(how, &WORK)));
    }
    for (one, others) in [
        (Overlay, &ON_OVERLAY[..]),
        (Volume, &OF_VOLUME),
        (Unprotected, &UNPROTECTED),
        (Guest, &OF_GUEST),
        (Inner, &INSIDE),
    ] {
        tried.extend(with(one, others));
    }
    for row in EXCLUSIONS {
        let (one, other) = row.modes();
        assert!(tried.contains(&(one, other)) || tried.contains(&(other, one)), "{one}, {other}");
    }
}

/// That what came of two modes is what the table says, about this.
#[track_caller]
fn judge(one: Way, other: Way, about: impl Display, done: &Finished) {
    let what = format!("{one}, {other}: {done}");
    let Some(row) = excluded(one, other) else { return assert_eq!(done.code, 0, "{what}") };
    assert_ne!(done.code, 0, "{what}");
    if [one, other].contains(&Thread) && done.what.contains("driven") {
        return assert_eq!(done.code, 95, "EOPNOTSUPP: {what}");
    }
    assert!(done.err.contains(&row.says(&about)), "{}\n{what}", row.says(about));
    assert!(done.err.contains(&row.instead(&about)), "{}\n{what}", row.instead(about));
}

/// A thread's transaction, begun and dropped; its errno is the exit code.
fn thread(lab: &Lab, dir: &str) -> Finished {
    let helper = env!("CARGO_BIN_EXE_systx-e2e-threads");
    lab.native(&format!(
        "said=$(printf 'begin\\nabort\\n' | {helper} driven {dir} | sed -n 2p) || exit 99; \
         echo \"driven: $said\" >&2; case $said in error*) exit ${{said#error }};; esac"
    ))
}

/// A transaction with a path, committed; dropped if it cannot be.
fn path(lab: &Lab, dir: &str) -> Finished {
    let begun = lab.do_systx(["begin", dir]);
    let Some((id, path)) = begun.out.trim().split_once(' ') else { return begun };
    lab.native(&format!("echo path > {path}/by-path")).ok();
    let done = lab.do_systx(["commit", id]);
    if done.code != 0 {
        lab.do_systx(["abort", id]).ok();
    }
    done
}

/// A part of what a run has left.
fn part(lab: &Lab, dir: &str) -> Finished {
    lab.run(&["--on-exit=keep"], &format!("echo 2 > {dir}/part; echo 2 > {dir}/rest")).ok();
    let id = lab.open_ids().pop().expect("it is kept");
    let part = format!("{dir}/part");
    let done = lab.do_systx(["commit", id.as_str(), part.as_str()]);
    lab.do_systx(["abort", &id]).ok();
    done
}

/// What is to be done in a directory of the lab.
fn work(lab: &Lab, what: Way, dir: &str) -> Finished {
    let look = format!("cat {dir}/f > /dev/null; echo 2 > elsewhere");
    match what {
        Path => path(lab, dir),
        Thread => thread(lab, dir),
        Part => part(lab, dir),
        Snapshot => lab.run(&["--isolation=snapshot"], &look),
        ReadOnly => lab.run(&["--read-only"], &look),
        Undo => lab.do_systx(["undo", "-C", dir]),
        _ => lab.do_systx(["mount", dir].iter().chain(option(what))),
    }
}

/// How `systx mount` is asked for it.
fn option(how: Way) -> &'static [&'static str] {
    match how {
        FastOpen => &["--fast-open"],
        Routed => &["--routed"],
        Certifier => &["--certifier", "/run/nobody"],
        Thread => &["--threads"],
        _ => &[],
    }
}

#[test]
fn a_directory_is_mounted_in_ways_that_go_together() {
    let lab = lab!(Fs::Ext4);
    lab.native("mkdir g").ok();
    for (at, one) in HOW.iter().enumerate() {
        for other in &HOW[at + 1..] {
            let options = [option(*one), option(*other)].concat();
            let done = lab.do_systx(["mount", "g"].iter().chain(&options));
            judge(*one, *other, "g", &done);
            if done.code == 0 {
                lab.do_systx(["umount", "g"]).ok();
            }
        }
    }
}

#[test]
fn work_in_a_guarded_directory_goes_with_how_it_is_mounted() {
    let lab = lab!(Fs::Ext4);
    for how in HOW {
        lab.native("mkdir -p g; echo 1 > g/f; touch g/part g/rest").ok();
        lab.run(&[], "echo 2 > g/f").ok();
        lab.do_systx(["mount", "g"].iter().chain(option(how))).ok();
        for what in WORK {
            let about = lab.path("g").display().to_string();
            judge(how, what, about, &work(&lab, what, "g"));
        }
        lab.do_systx(["umount", "g"]).ok();
    }
}

#[test]
fn what_an_overlay_does_not_give_is_said() {
    let lab = match Lab::overlaid("", "mkdir dir; echo 1 > dir/f") {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    lab.run(&[], "echo 2 > dir/f").ok();
    let about = lab.root().display().to_string();
    ON_OVERLAY.iter().for_each(|what| judge(Overlay, *what, &about, &work(&lab, *what, "dir")));
}

#[test]
fn what_a_volume_does_not_give_is_said() {
    let lab = lab!(Fs::Ext4);
    {
        let v = Mounted::for_threads(&lab);
        v.sh("mkdir d; echo 1 > d/f").ok();
        let run = format!("cd v && {} run -- sh -c 'echo 2 > d/f'", lab.binary().display());
        lab.native(&run).ok();
        let about = v.dir.display().to_string();
        for what in [Thread, Guarded, Path, Snapshot, Undo] {
            let dir = if what == Thread { "v" } else { "v/d" };
            judge(Volume, what, &about, &work(&lab, what, dir));
        }
    }
    for how in [FastOpen, Routed] {
        let done = lab.do_systx(["mount", "image", "v"].iter().chain(option(how)));
        judge(Volume, how, "image", &done);
    }
    let both = [option(Thread), option(Certifier)].concat();
    let done = lab.do_systx(["mount", "image", "v"].iter().chain(&both));
    judge(Volume, Certifier, "image", &done);
    lab.do_systx(["umount", "v"]).ok();
    lab.native("mkdir m").ok();
    let moment = lab.do_systx(["mount", "image", "m", "--at", "now", "--threads"]);
    judge(Thread, Moment, "image", &moment);
}

#[test]
fn who_cannot_have_what_is_not_protected_is_told() {
    let lab = lab!(Fs::Ext4);
    for what in UNPROTECTED {
        lab.native("mkdir -p g/cache; echo 1 > g/f").ok();
        lab.do_systx(["protect", "off", "g/cache"]).ok();
        let is_way = HOW.contains(&what);
        if !is_way {
            lab.do_systx(["mount", "g"]).ok();
        }
        let done = work(&lab, what, "g");
        judge(Unprotected, what, lab.path("g/cache").display(), &done);
        if !is_way || done.code == 0 {
            lab.do_systx(["umount", "g"]).ok();
        }
        lab.do_systx(["protect", "on", "g/cache"]).ok();
    }
}

#[test]
fn an_ordinary_user_is_told_what_only_root_can_have() {
    let lab = match Lab::on(Fs::Ext4).and_then(Lab::as_known_user) {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    lab.native("mkdir -p g/cache").ok();
    judge(Guarded, User, "g", &lab.do_systx(["mount", "g"]));
    lab.do_systx(["protect", "off", "g/cache"]).ok();
    // fusermount3 would have to mount it.
    let begun = lab.do_systx(["begin", "g"]);
    judge(Helper, Unprotected, lab.path("g/cache").display(), &begun);
}

/// A guest's transaction, begun and dropped.
fn guests(s: &Shared, options: &str) -> Finished {
    s.sh(
        ANN,
        &format!(
            "begun=$($SYSTX begin {options} g/ann) || exit; set -- $begun; exec $SYSTX abort $1"
        ),
    )
}

#[test]
fn a_guest_is_told_what_guests_do_not_have() {
    let s = users!();
    if s.lab.fs != Fs::Ext4 {
        skip!("quotas are those of ext4");
    }
    let prepare = format!("mkdir -p g/ann/cache; chown -R {ANN} g/ann");
    s.lab.native(&prepare).ok();
    s.lab.do_systx(["mount", "g"]).ok();
    for what in OF_GUEST {
        let done = match what {
            Snapshot => guests(&s, "--isolation=snapshot"),
            ReadOnly => guests(&s, "--read-only"),
            Unprotected => {
                s.lab.do_systx(["protect", "off", "g/ann/cache"]).ok();
                let done = guests(&s, "");
                s.lab.do_systx(["protect", "on", "g/ann/cache"]).ok();
                done
            }
            _ => {
                let remount = format!("mount -o remount,usrquota {}", s.lab.root().display());
                if s.lab.native(&remount).code != 0 {
                    eprintln!("left out: quotas: the kernel has none");
                    continue;
                }
                guests(&s, "")
            }
        };
        judge(Guest, what, s.lab.path("g/ann/cache").display(), &done);
    }
    s.lab.do_systx(["umount", "g"]).ok();
}

#[test]
fn a_run_in_a_run_is_told_what_belongs_to_the_outer_one() {
    let lab = lab!(Fs::Ext4);
    let binary = lab.binary().display().to_string();
    for what in INSIDE {
        let option = match what {
            OnExit => "--on-exit=keep",
            ReadOnly => "--read-only",
            NoNet => "--no-net",
            _ => "--isolation=snapshot",
        };
        let script = format!("echo $SYSTX_TXN; exec {binary} run {option} -- true");
        let done = lab.run(&[], &script);
        judge(Inner, what, done.out.trim(), &done);
    }
    let limited = lab.do_systx(["run", "--limit-processes=5", "--", "true"]);
    judge(Root, LimitProcesses, "", &limited);
}

#[test]
fn several_file_systems_are_not_committed_by_parts_or_past_a_certifier() {
    let room: Room = room!();
    let both = "echo 2 > dir/k; echo 2 > ../b/file";
    let said = |row: (Way, Way), about: &str, text: &str| {
        let row = excluded(row.0, row.1).expect("it is in the table");
        for words in [row.says(about), row.instead(about)] {
            assert!(text.contains(&words), "{words}\n{text}");
        }
    };
    room.sh(&format!("cd a && $S run --on-exit keep -- sh -c '{both}'")).ok();
    let id = "$($S list --json | grep -o '\"id\": *\"[0-9a-f]*\"' | head -1 | cut -d'\"' -f4)";
    let script = "$S commit $id $D/a/dir $D/b/file; code=$?; $S abort $id; exit $code";
    let part = room.sh(&format!("id={id}; {script}"));
    said((Part, Several), "", &part.failed());
    let listener = UnixListener::bind(room.dir().join("certifier")).expect("it is writable");
    std::thread::spawn(move || {
        // It is never asked for more than whether it is there.
        let mut asked = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(&[READY]);
            asked.push(stream);
        }
    });
    room.sh("$S mount a/dir --certifier $D/certifier").ok();
    let run = room.sh(&format!("cd a && $S run -- sh -c '{both}'"));
    said((Certifier, Several), &room.dir().join("a/dir").display().to_string(), &run.failed());
    room.sh("$S umount a/dir").ok();
}
