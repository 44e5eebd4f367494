//! Directories in which somebody else decides about commits (`systx mount --certifier`), and
//! volumes with `SYSTX_E2E_FS=volume`: the certifier is in the test.  What a certifier makes of it
//! is shown by `servers/replicate/test`.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Fs, Lab, lab};
use systx_protocol::certify::{Key, Offer, READY, Source, Verdict, receive, send};

/// Where that directory is before it is guarded: of a volume it is all.
fn before(lab: &Lab) -> PathBuf {
    if lab.fs == Fs::Volume { lab.root() } else { lab.path("guarded") }
}

/// A guarded directory with these files, or a volume, whose certifier answers each offer with the
/// next of these; `None`: by nothing, and it goes.
fn certified(
    lab: &Lab,
    files: &[(&str, &str)],
    verdicts: Vec<Option<Verdict>>,
) -> (PathBuf, Receiver<Offer>) {
    let (socket, dir) = (lab.outside().join("certifier"), lab.path("guarded"));
    for (name, content) in files {
        lab.write(before(lab).join(name), content);
    }
    let listener = UnixListener::bind(&socket).unwrap();
    let (to, offers) = channel();
    std::thread::spawn(move || {
        for verdict in verdicts {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[READY]).unwrap();
            // What cannot be offered is not.
            let Ok(offer) = receive(&mut stream) else { continue };
            to.send(Offer::decode(&offer).unwrap()).unwrap();
            if let Some(verdict) = verdict {
                send(&mut stream, &verdict.encode()).unwrap();
            }
        }
    });
    let how = ["--certifier", socket.to_str().unwrap()];
    finish(lab.guard_for_threads("guarded", &how), Limits::default(), lab).ok();
    (dir, offers)
}

/// A run there.
fn run(lab: &Lab, options: &[&str], script: &str) -> Finished {
    lab.run(&[&["-C", "guarded"], options].concat(), script)
}

fn done(lab: &Lab) {
    lab.do_systx(["umount", "guarded"]).ok();
}

#[test]
fn what_is_offered_is_what_was_changed_with_what_was_read_and_nothing_is_done_here() {
    let lab = lab!();
    let files = [("old", "one\n"), ("d/x", "x\n")];
    let (dir, offers) = certified(&lab, &files, vec![Some(Verdict::Committed)]);
    let script = "cat old; ls d; mv d e; echo new > e/y; chmod 600 old; test -e no; true";
    run(&lab, &[], script).ok();
    let offer = offers.recv().unwrap();
    assert_eq!(offer.taken, [b"d".to_vec()]);
    let placed = [(b"e".to_vec(), Source::Taken(0)), (b"e/y".to_vec(), Source::File)];
    assert_eq!(offer.placed, placed);
    let old = offer.set.iter().find(|set| set.path == b"old").unwrap();
    assert_eq!((old.mode, old.content.as_ref()), (Some(0o600), None));
    let new = offer.set.iter().find(|set| set.path == b"e/y").unwrap();
    assert_eq!(new.content.as_ref().unwrap().runs[0].bytes, b"new\n");
    for key in [
        Key::At(b"old".to_vec()),
        Key::At(b"no".to_vec()),
        Key::At(b"d".to_vec()),
        Key::Names(b"d".to_vec()),
    ] {
        assert!(offer.reads.contains(&key), "{key:?} in {:?}", offer.reads);
    }
    assert!(!offer.reads.contains(&Key::Names(Vec::new())), "nobody has listed it");
    assert!(dir.join("d/x").exists() && !dir.join("e").exists());
    assert!(lab.open_ids().is_empty());
    done(&lab);
}

fn text(path: &[u8]) -> &str {
    std::str::from_utf8(path).unwrap()
}

fn taken(offer: &Offer) -> Vec<&str> {
    offer.taken.iter().map(|path| text(path)).collect()
}

/// Each name, and what it stands for.
fn placed(offer: &Offer) -> Vec<(&str, String)> {
    let told = |source: &Source| match source {
        Source::Link(to) => format!("link to {}", text(to)),
        other => format!("{other:?}"),
    };
    offer.placed.iter().map(|(path, source)| (text(path), told(source))).collect()
}

#[test]
fn further_names_and_special_files_are_offered() {
    let lab = lab!();
    lab.write(before(&lab).join("a"), "one\n");
    lab.write(before(&lab).join("d/x"), "x\n");
    std::fs::hard_link(before(&lab).join("a"), before(&lab).join("b")).unwrap();
    let (_dir, offers) = certified(&lab, &[], vec![Some(Verdict::Committed); 5]);

    let script = "ln a g; ln d/x e; mv d f; echo two > n; ln n m; mkfifo p; mknod q c 1 3";
    run(&lab, &[], script).ok();
    let offer = offers.recv().unwrap();
    assert_eq!(taken(&offer), ["d"]);
    let want = [
        ("f", "Taken(0)"),
        ("m", "File"),
        ("p", "Special { kind: Fifo, rdev: 0 }"),
        ("q", "Special { kind: CharDev, rdev: 259 }"),
        ("e", "link to f/x"),
        ("g", "link to a"),
        ("n", "link to m"),
    ];
    let of = |all: &[(&'static str, &str)]| -> Vec<_> {
        all.iter().map(|(path, source)| (*path, (*source).to_owned())).collect()
    };
    assert_eq!(placed(&offer), of(&want));

    // Of two names of one file one moves, and a third one comes; then one goes, and what the other
    // one names is written.
    run(&lab, &[], "cat b; mv a z; ln b y").ok();
    let offer = offers.recv().unwrap();
    assert_eq!(taken(&offer), ["a"]);
    assert_eq!(placed(&offer), of(&[("y", "Taken(0)"), ("z", "link to y")]));
    run(&lab, &[], "rm a; echo more >> b").ok();
    let offer = offers.recv().unwrap();
    assert_eq!((taken(&offer), placed(&offer)), (vec!["a"], vec![]));
    assert_eq!(offer.set.iter().find(|set| set.content.is_some()).unwrap().path, b"b");

    // Both go, and nothing of the file is there to be set.
    run(&lab, &[], "echo more >> b; rm a b; echo other > b").ok();
    let offer = offers.recv().unwrap();
    assert_eq!((taken(&offer), placed(&offer)), (vec!["a", "b"], of(&[("b", "File")])));
    let written = offer.set.iter().find(|set| set.content.is_some()).unwrap();
    assert_eq!(written.content.as_ref().unwrap().runs[0].bytes, b"other\n");

    // The name that is left was never met.
    let lost = run(&lab, &[], "echo more >> b; rm b");
    assert_eq!(lost.code, 125, "{}", lost.err);
    assert!(lost.err.contains("only name by which it is known"), "{}", lost.err);
    done(&lab);
}

#[test]
fn each_verdict_is_told_and_one_that_does_not_come_is_no_commit() {
    let lab = lab!();
    let conflict = Verdict::Conflict { path: b"a".to_vec(), words: "was before it".into() };
    let refused = Verdict::Refused { words: "not on Sundays".into() };
    let (dir, offers) = certified(&lab, &[], vec![Some(conflict), Some(refused), None]);
    let lost = run(&lab, &[], "echo 1 > a");
    assert_eq!(lost.code, 75, "{}", lost.err);
    assert!(lost.err.contains("guarded/a"), "{}", lost.err);
    let refused = run(&lab, &[], "echo 2 > a");
    assert_eq!(refused.code, 125, "{}", refused.err);
    assert!(refused.err.contains("not on Sundays"), "{}", refused.err);
    let gone = run(&lab, &[], "echo 3 > a");
    assert_eq!(gone.code, 125, "{}", gone.err);
    assert!(gone.err.contains("look whether it is there"), "{}", gone.err);
    let away = run(&lab, &[], "echo 4 > a");
    assert_eq!(away.code, 125, "{}", away.err);
    assert!(away.err.contains("is not there"), "{}", away.err);
    assert_eq!(offers.iter().count(), 3);
    assert!(!dir.join("a").exists());
    assert!(lab.open_ids().is_empty());
    done(&lab);
}

#[test]
fn nothing_is_changed_that_the_certifier_is_not_asked_about() {
    let lab = lab!();
    let (dir, _offers) = certified(&lab, &[("old", "one\n")], Vec::new());
    let native =
        lab.native("echo 2 > guarded/old; mkdir guarded/d; rm guarded/old; cat guarded/old");
    assert_eq!(native.out, "one\n", "{}", native.err);
    assert_eq!(native.err.matches("Read-only file system").count(), 3, "{}", native.err);
    let kept = run(&lab, &["--on-exit=keep"], "echo 2 > old; echo 2 > other");
    assert_eq!(kept.code, 0, "{}", kept.err);
    let id = &lab.open_ids()[0];
    let part = lab.do_systx(["commit", id, "guarded/old"]);
    assert_eq!(part.code, 1, "{}", part.err);
    assert!(part.err.contains("certifier"), "{}", part.err);
    lab.do_systx(["abort", id]).ok();
    if lab.fs != Fs::Volume {
        // What lies elsewhere is as ever, also while nobody listens.
        lab.run(&[], "cat guarded/old; echo 2 > elsewhere").ok();
    }
    // After a daemon that was killed it is asked, too.
    lab.kill_and_come_back();
    let native = lab.native("echo 2 > guarded/old");
    assert!(native.err.contains("Read-only file system"), "{}", native.err);
    assert_eq!(std::fs::read_to_string(dir.join("old")).unwrap(), "one\n");
    done(&lab);
}
