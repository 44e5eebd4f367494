//! Directories in which somebody else decides about commits (`systx mount --certifier`): the
//! certifier is in the test.  What a certifier makes of it is shown by `servers/replicate/test`.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use systx_e2e::{Lab, lab};
use systx_protocol::certify::{Key, Offer, READY, Source, Verdict, receive, send};

/// A guarded directory, whose certifier answers each offer with the next of these; `None`: by
/// nothing, and it goes.
fn certified(lab: &Lab, verdicts: Vec<Option<Verdict>>) -> (PathBuf, Receiver<Offer>) {
    let (socket, dir) = (lab.outside().join("certifier"), lab.path("guarded"));
    std::fs::create_dir_all(&dir).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let (to, offers) = channel();
    std::thread::spawn(move || {
        for verdict in verdicts {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[READY]).unwrap();
            let offer = receive(&mut stream).unwrap();
            to.send(Offer::decode(&offer).unwrap()).unwrap();
            if let Some(verdict) = verdict {
                send(&mut stream, &verdict.encode()).unwrap();
            }
        }
    });
    let words = ["mount".into(), dir.clone(), "--certifier".into(), socket];
    lab.do_systx(words).ok();
    (dir, offers)
}

fn done(lab: &Lab) {
    lab.do_systx(["umount", "guarded"]).ok();
}

#[test]
fn what_is_offered_is_what_was_changed_with_what_was_read_and_nothing_is_done_here() {
    let lab = lab!();
    lab.write("guarded/old", "one\n");
    lab.write("guarded/d/x", "x\n");
    let (dir, offers) = certified(&lab, vec![Some(Verdict::Committed)]);
    let script = "cd guarded; cat old; ls d; mv d e; echo new > e/y; chmod 600 old; test -e no";
    let script = format!("{script}; true");
    lab.run(&[], &script).ok();
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

#[test]
fn each_verdict_is_told_and_one_that_does_not_come_is_no_commit() {
    let lab = lab!();
    let conflict = Verdict::Conflict { path: b"a".to_vec(), words: "was before it".into() };
    let refused = Verdict::Refused { words: "not on Sundays".into() };
    let (dir, offers) = certified(&lab, vec![Some(conflict), Some(refused), None]);
    let lost = lab.run(&[], "echo 1 > guarded/a");
    assert_eq!(lost.code, 75, "{}", lost.err);
    assert!(lost.err.contains("guarded/a"), "{}", lost.err);
    let refused = lab.run(&[], "echo 2 > guarded/a");
    assert_eq!(refused.code, 125, "{}", refused.err);
    assert!(refused.err.contains("not on Sundays"), "{}", refused.err);
    let gone = lab.run(&[], "echo 3 > guarded/a");
    assert_eq!(gone.code, 125, "{}", gone.err);
    assert!(gone.err.contains("look whether it is there"), "{}", gone.err);
    let away = lab.run(&[], "echo 4 > guarded/a");
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
    lab.write("guarded/old", "one\n");
    let (dir, _offers) = certified(&lab, Vec::new());
    let native =
        lab.native("echo 2 > guarded/old; mkdir guarded/d; rm guarded/old; cat guarded/old");
    assert_eq!(native.out, "one\n", "{}", native.err);
    assert_eq!(native.err.matches("Read-only file system").count(), 3, "{}", native.err);
    let kept = lab.run(&["--on-exit=keep"], "echo 2 > guarded/old; echo 2 > elsewhere");
    assert_eq!(kept.code, 0, "{}", kept.err);
    let id = &lab.open_ids()[0];
    let part = lab.do_systx(["commit", id, "guarded/old"]);
    assert_eq!(part.code, 1, "{}", part.err);
    assert!(part.err.contains("certifier"), "{}", part.err);
    lab.do_systx(["abort", id]).ok();
    // What lies elsewhere is as ever, also while nobody listens.
    lab.run(&[], "cat guarded/old; echo 2 > elsewhere").ok();
    // After a daemon that was killed it is asked, too.
    lab.kill_and_come_back();
    let native = lab.native("echo 2 > guarded/old");
    assert!(native.err.contains("Read-only file system"), "{}", native.err);
    assert_eq!(std::fs::read_to_string(dir.join("old")).unwrap(), "one\n");
    done(&lab);
}
