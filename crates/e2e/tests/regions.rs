//! Transactions of threads whose system calls are intercepted, by libsystx in the helper
//! `systx-e2e-regions`, which checks each case where it happens; and the table of all calls.

use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use systx_e2e::lab::tool;
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Lab, lab, skip};

/// A guarded directory, until it is dropped.
struct Guarded<'a> {
    lab: &'a Lab,
    dir: PathBuf,
}

impl<'a> Guarded<'a> {
    fn new(lab: &'a Lab) -> Guarded<'a> {
        let dir = lab.path("guarded");
        finish(lab.guard_for_threads("guarded", &[]), Limits::default(), lab).ok();
        Guarded { lab, dir }
    }

    fn program(&self, case: &str) -> Command {
        let mut command = self.lab.command(env!("CARGO_BIN_EXE_systx-e2e-regions"));
        command.arg(case).arg(&self.dir);
        command
    }

    fn case(&self, case: &str) -> Finished {
        let done = finish(self.program(case), Limits::seconds(240), self.lab).ok();
        let open = self.lab.open_ids();
        assert!(open.is_empty(), "{case} left {open:?}");
        self.lab.native("rm -rf guarded/*").ok();
        done
    }
}

impl Drop for Guarded<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.lab.do_systx(["umount", "guarded"]).ok();
        }
    }
}

#[test]
fn earlier_descriptors_are_in_the_transaction() {
    let lab = lab!();
    let guarded = Guarded::new(&lab);
    for case in
        ["commit", "abort", "names", "below", "others", "directory", "paused", "threads", "again"]
    {
        guarded.case(&format!("earlier-{case}"));
    }
}

#[test]
fn earlier_descriptors_of_children_are_in_the_transaction() {
    let lab = lab!();
    Guarded::new(&lab).case("earlier-children");
}

/// Nothing is lost, and nothing of an attempt that was not committed is there.
#[test]
fn threads_signals_processes_and_pipes_all_at_once() {
    let lab = lab!();
    let guarded = Guarded::new(&lab);
    let rounds = if std::env::var_os("SYSTX_LONG").is_some() { 1000 } else { 15 };
    let mut program = guarded.program("stress");
    program.arg(rounds.to_string());
    let done = finish(program, Limits::seconds(400), &lab).ok();
    println!("{}", done.err);
    assert!(lab.open_ids().is_empty());
}

/// What they do before they execute a program, whatever way they are made.
#[test]
fn calls_of_processes_that_are_made_inside_are_intercepted() {
    let lab = lab!();
    let guarded = Guarded::new(&lab);
    for case in ["others", "offsets", "own", "sent", "handlers", "refused", "programs", "lost"] {
        guarded.case(&format!("children-{case}"));
    }
}

#[test]
fn an_abort_closes_descriptors_from_inside_and_brings_closed_ones_back() {
    let lab = lab!();
    let guarded = Guarded::new(&lab);
    guarded.case("made");
    guarded.case("closed");
}

#[test]
fn calls_that_cannot_be_undone_are_refused_as_the_flags_say() {
    let lab = lab!();
    let told = Guarded::new(&lab).case("refused");
    assert_eq!(told.err.matches("systx: not in the transaction: sendto").count(), 1, "{told}");
}

#[test]
fn what_programs_do_otherwise_works_as_ever() {
    let lab = lab!();
    Guarded::new(&lab).case("process");
}

#[test]
fn signals_to_others_wait_for_the_commit() {
    let lab = lab!();
    Guarded::new(&lab).case("held");
}

#[test]
fn signals_from_others_wait_for_the_end_or_come_again() {
    let lab = lab!();
    let guarded = Guarded::new(&lab);
    for case in ["deferred", "speculative", "flooded", "masks"] {
        guarded.case(case);
    }
}

/// Whatever the registers of the processor take of an alternate stack.
#[test]
fn handlers_have_room_while_a_call_waits() {
    let lab = lab!();
    Guarded::new(&lab).case("room");
}

#[test]
fn what_goes_through_pipes_waits_for_the_commit_or_is_given_back() {
    let lab = lab!();
    let guarded = Guarded::new(&lab);
    for case in ["written", "taken", "output"] {
        guarded.case(case);
    }
}

/// The races of handlers in the TxOS paper (7.6): each is shown first, and then with the handler in
/// a transaction.
#[test]
fn handlers_in_transactions_have_no_races() {
    let lab = lab!();
    let guarded = Guarded::new(&lab);
    guarded.case("freed-twice");
    guarded.case("half-done");
}

/// A user that no machine has.
const USER: u32 = 12033;

#[test]
fn programs_without_privilege_have_transactions_when_they_are_launched() {
    let lab = lab!();
    let guarded = Guarded::new(&lab);
    chown(&guarded.dir, Some(USER), Some(USER)).expect("root may");
    // Where the user can execute them.
    let copy = |from: &Path, name: &str| {
        let to = lab.outside().join(name);
        tool(Command::new("cp").arg(from).arg(&to)).expect("a copy");
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755)).expect("ours");
        to
    };
    let systx = copy(&lab.binary(), "systx");
    let program = copy(Path::new(env!("CARGO_BIN_EXE_systx-e2e-regions")), "regions");
    let run = |launcher: &[&OsStr], case: &str| {
        let mut command = lab.command("setpriv");
        command
            .args([format!("--reuid={USER}"), format!("--regid={USER}")])
            .args(["--clear-groups", "--no-new-privs", "--"])
            .args(launcher)
            .arg(&program)
            .args([OsStr::new(case), guarded.dir.as_os_str()]);
        let done = finish(command, Limits::seconds(240), &lab);
        lab.native("rm -rf guarded/*").ok();
        done
    };
    let plain = run(&[], "earlier-commit");
    assert!(plain.code != 0 && plain.err.contains("code: 1,"), "EPERM: {plain}");
    let launched = [systx.as_os_str(), OsStr::new("exec"), OsStr::new("--")];
    let first = run(&launched, "earlier-commit");
    if first.code != 0 && first.err.contains("user namespace") {
        skip!("user namespaces are not allowed here");
    }
    first.ok();
    for case in
        ["earlier-abort", "earlier-children", "made", "deferred", "held", "process", "privilege"]
    {
        run(&launched, case).ok();
    }
    assert!(lab.open_ids().is_empty());
    let none =
        run(&[systx.as_os_str(), OsStr::new("exec"), OsStr::new("--"), OsStr::new("/none")], "");
    assert_eq!(none.code, 127, "{none}");
}

#[test]
fn all_system_calls_are_listed() {
    let lab = lab!();
    let text = lab.do_systx(["syscalls"]).ok().out;
    assert!(
        text.lines().any(|line| line.starts_with(" 62 kill ") && line.contains("held back")),
        "{text}"
    );
    assert!(text.ends_with(" refused\n"), "{text}");
    let told = lab.do_systx(["syscalls", "--json"]).ok().out;
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let calls = told["syscalls"]["calls"].as_array().expect("a list").len();
    let counts = told["syscalls"]["counts"].as_array().expect("a list");
    let sum: u64 = counts.iter().filter_map(|count| count["calls"].as_u64()).sum();
    assert_eq!((calls as u64, counts.len()), (sum, 4));
    assert_eq!(text.lines().count(), calls + 1);
}
