//! Who yields to whom: other users' transactions are in nobody's way who lets them have some.

use std::path::PathBuf;
use systx_e2e::CONFLICT;
use systx_e2e::shared::{ANN, BOB, Shared};
use systx_e2e::users;

fn begin(s: &Shared, uid: u32, options: &str) -> (String, PathBuf) {
    let said = s.sh(uid, &format!("exec $SYSTX begin {options} g")).ok();
    let (id, path) = said.out.trim().split_once(' ').expect("an id and a path");
    (id.to_owned(), PathBuf::from(path))
}

/// It only reads, is older, and has lost more often than anything of root's: root's runs commit at
/// their first attempt all the same, and it loses.
#[test]
fn an_open_transaction_of_a_guest_does_not_keep_roots_runs_from_committing() {
    let s = users!();
    s.lab.native("echo one > g/f; chmod 755 g").ok();
    s.lab.do_systx(["mount", "g"]).ok();
    let mut lines = 1;
    let mut before: Option<String> = None;
    // It is aged after three losses.
    for round in 0..6 {
        let retry = before.map(|id| format!("--retry {id}")).unwrap_or_default();
        let (id, path) = begin(&s, ANN, &retry);
        let read = s.sh(ANN, &format!("cat {}/f", path.display())).ok();
        assert_eq!(read.out.lines().count(), lines);
        s.lab.run(&["--retries", "0"], "echo more >> g/f").ok();
        lines += 1;
        assert_eq!(s.lab.read("g/f").lines().count(), lines, "round {round}");
        let lost = s.sh(ANN, &format!("exec $SYSTX commit {id}"));
        assert_eq!(lost.code, CONFLICT, "{lost}");
        before = Some(id);
    }
    // Whoever comes second: a guest that goes for what a run has read is the one that loses.
    let (id, path) = begin(&s, ANN, &format!("--retry {}", before.expect("one")));
    let script = format!(
        "cat g/f >/dev/null; setpriv --reuid={ANN} --regid={ANN} --clear-groups true; echo x >> g/f"
    );
    s.sh(ANN, &format!("cat {}/f", path.display())).ok();
    s.lab.run(&["--retries", "0"], &script).ok();
    s.sh(ANN, &format!("exec $SYSTX abort {id}")).ok();
    s.lab.do_systx(["umount", "g"]).ok();
}

/// Nor by urgency: a guest's is never above 0, and that of a run may be far below.
#[test]
fn a_run_that_is_nice_is_not_behind_guests() {
    let s = users!();
    s.lab.native("echo one > g/f").ok();
    s.lab.do_systx(["mount", "g"]).ok();
    let (id, path) = begin(&s, ANN, "");
    s.sh(ANN, &format!("cat {}/f", path.display())).ok();
    let run = "nice -n 19 $SYSTX run --retries 0 -- sh -c 'echo more >> g/f'";
    let run = run.replace("$SYSTX", &s.lab.binary().display().to_string());
    s.lab.native(&run).ok();
    s.sh(ANN, &format!("exec $SYSTX abort {id}")).ok();
    assert_eq!(s.lab.read("g/f"), "one\nmore\n");
    s.lab.do_systx(["umount", "g"]).ok();
}

/// Among themselves guests have the rules of everybody: the older one goes on, and who keeps losing
/// wins at last.
#[test]
fn guests_make_progress_beside_each_other() {
    let s = users!();
    s.lab.native("echo one > g/f; chmod 666 g/f; chmod 777 g").ok();
    s.lab.do_systx(["mount", "g"]).ok();
    let (anns, ann) = begin(&s, ANN, "");
    let (bobs, bob) = begin(&s, BOB, "");
    s.sh(ANN, &format!("echo ann >> {}/f", ann.display())).ok();
    s.refused(BOB, &format!("echo bob >> {}/f", bob.display()));
    assert_eq!(s.sh(BOB, &format!("exec $SYSTX commit {bobs}")).code, CONFLICT);
    s.sh(ANN, &format!("exec $SYSTX commit {anns}")).ok();
    let (again, bob) = begin(&s, BOB, &format!("--retry {bobs}"));
    s.sh(BOB, &format!("echo bob >> {}/f; exec $SYSTX commit {again}", bob.display())).ok();
    assert_eq!(s.lab.read("g/f"), "one\nann\nbob\n");
    s.lab.do_systx(["umount", "g"]).ok();
}
