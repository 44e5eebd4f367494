//! Transactions of threads where the daemon tells them by their numbers (`systx mount --routed`):
//! as root, and as an ordinary user without any privilege. Most cases are those of the suite
//! `threads`.

use std::io::Write;
use std::os::unix::fs::chown;
use std::process::Command;
use systx_e2e::cases::{Guarded, eventually, line, started};
use systx_e2e::lab::find_program;
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Lab, lab, skip};

/// A user that no machine has.
const USER: u32 = 12051;

const HELPER: &str = env!("CARGO_BIN_EXE_systx-e2e-threads");

/// Whose program it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Root,
    User,
}

use Who::{Root, User};

/// A routed directory of this one.
fn routed(lab: &Lab, who: Who) -> Guarded<'_> {
    let guarded = Guarded::routed(lab, HELPER);
    if who == User {
        chown(&guarded.dir, Some(USER), Some(USER)).expect("root may");
    }
    guarded
}

/// The helper with a case, without any privilege if it is the user's.
fn program(lab: &Lab, guarded: &Guarded<'_>, who: Who, case: &str, number: u32) -> Command {
    let program = guarded.program(case, number);
    if who == Root {
        return program;
    }
    let mut command = lab.command("setpriv");
    command
        .args([format!("--reuid={USER}"), format!("--regid={USER}")])
        .args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"])
        .arg(program.get_program())
        .args(program.get_args());
    command
}

/// Runs cases to their ends, each in an empty directory.
fn cases(who: Who, cases: &[(&str, u32)]) {
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    let guarded = routed(&lab, who);
    for (case, number) in cases {
        let command = program(&lab, &guarded, who, case, *number);
        finish(command, Limits::seconds(100), &lab).ok();
        eventually("no transaction is left", || lab.open_ids().is_empty());
        lab.native("rm -rf guarded/*").ok();
    }
}

fn no_setpriv() -> bool {
    find_program("setpriv").is_none()
}

const ONE: &[(&str, u32)] = &[
    ("siblings", 0),
    ("abort", 0),
    ("nesting", 0),
    ("pause", 0),
    ("refused", 0),
    ("conflict", 0),
    ("read-only", 0),
    ("descriptors", 0),
    ("top", 0),
    ("death", 0),
    ("special", 1),
];

const OWN: &[(&str, u32)] = &[
    ("places", 0),
    ("names", 0),
    ("mapped", 0),
    ("made-inside", 0),
    ("executed", 0),
    ("rights", 0),
    ("unsupported", 0),
];

#[test]
fn a_transaction_of_one_thread() {
    cases(Root, ONE);
}

#[test]
fn a_transaction_of_one_thread_of_a_user_without_privilege() {
    if no_setpriv() {
        skip!("no setpriv (package util-linux)");
    }
    cases(User, ONE);
}

#[test]
fn names_and_places_belong_to_who_asks() {
    cases(Root, OWN);
}

#[test]
fn names_and_places_belong_to_who_asks_without_privilege() {
    if no_setpriv() {
        skip!("no setpriv (package util-linux)");
    }
    cases(User, OWN);
}

#[test]
fn without_privilege_there_is_none_where_it_is_not_routed() {
    if no_setpriv() {
        skip!("no setpriv (package util-linux)");
    }
    let lab = lab!();
    let guarded = Guarded::new(&lab, HELPER);
    chown(&guarded.dir, Some(USER), Some(USER)).expect("root may");
    let command = program(&lab, &guarded, User, "unprivileged", 0);
    finish(command, Limits::seconds(100), &lab).ok();
}

/// Beside programs without transactions, which make names in the same directory and always see sums
/// that are right.
#[test]
fn contending_threads_lose_no_update_beside_plain_programs() {
    if no_setpriv() {
        skip!("no setpriv (package util-linux)");
    }
    let lab = lab!();
    let guarded = routed(&lab, User);
    let rounds = if std::env::var_os("SYSTX_LONG").is_some() { 2000 } else { 150 };
    let (mut child, mut out) = started(program(&lab, &guarded, User, "contend", rounds));
    eventually("it has begun", || lab.has("guarded/b"));
    let plain = "cd guarded; for i in 1 2 3 4 5 6 7 8 9 10; do mkdir d$i; echo $i > d$i/f; ls > /dev/null; test $(cat d$i/f) = $i; \
         mv d$i/f g; test $(cat g) = $i; rm g; rmdir d$i; test ! -e d$i; stat a b > /dev/null; done";
    lab.native(&format!("set -e; {plain}")).ok();
    let told = line(&mut out);
    assert!(told.ends_with("attempts lost"), "{told}");
    assert_eq!(line(&mut out), "ok");
    assert!(child.wait().expect("it ends").success());
    assert!(lab.open_ids().is_empty());
    let moved = rounds * 3;
    let (a, b) = (lab.read("guarded/a"), lab.read("guarded/b"));
    assert_eq!((a, b.trim()), ((1000 - i64::from(moved)).to_string(), moved.to_string().as_str()));
}

#[test]
fn a_program_that_is_killed_leaves_nothing_and_its_numbers_mean_nobody() {
    let lab = lab!();
    let guarded = routed(&lab, Root);
    let (mut child, mut out) = started(guarded.program("hang", 0));
    assert_eq!(line(&mut out), "open");
    assert_eq!(lab.open_ids().len(), 1);
    assert!(!lab.has("guarded/a"), "it is nobody else's");
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    eventually("the dead program's transaction is dropped", || lab.open_ids().is_empty());
    assert!(!lab.has("guarded/a"));
}

/// It is routed again when it is back; and nothing of what the thread does before it knows is
/// plain.
#[test]
fn a_thread_that_is_inside_when_the_daemon_is_killed_is_refused_until_it_knows() {
    if no_setpriv() {
        skip!("no setpriv (package util-linux)");
    }
    for who in [Root, User] {
        let lab = lab!();
        let guarded = routed(&lab, who);
        let (mut child, mut out) = started(program(&lab, &guarded, who, "daemon", 1));
        let mut say = child.stdin.take().expect("a pipe");
        for round in 0..4 {
            assert_eq!(line(&mut out), "open", "round {round}: {}", lab.daemon_log());
            // At last it may be asked before the directory is back.
            match round {
                3 => lab.kill_daemon(),
                _ => lab.kill_and_come_back(),
            }
            // For everybody else it is as ever.
            if round < 3 {
                lab.native("echo plain > guarded/plain; cat guarded/plain; rm guarded/plain").ok();
            }
            say.write_all(b"\n").expect("it reads");
        }
        assert_eq!(line(&mut out), "ok");
        assert!(child.wait().expect("it ends").success());
        assert!(!lab.has("guarded/never"));
        let told = lab.do_systx(["mount", "--json"]).ok().json();
        assert_eq!(told["guarded"][0]["routed"], true, "{told}");
    }
}

#[test]
fn a_transaction_that_is_aborted_from_outside_is_over() {
    let lab = lab!();
    let guarded = routed(&lab, Root);
    let (mut child, mut out) = started(guarded.program("hang", 0));
    assert_eq!(line(&mut out), "open");
    let open = lab.open_ids();
    lab.do_systx(["abort", &open[0]]).ok();
    assert!(lab.open_ids().is_empty());
    drop(child.stdin.take());
    child.wait().expect("it ends");
    assert!(!lab.has("guarded/a"));
}
