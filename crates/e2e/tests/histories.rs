//! Isolation as programs see it: recorded histories, and pairs of programs that plain directories
//! fail. The programs are those of the crate `systx-histories`; longer runs of them:
//! docs/TESTING.md.
//!
//! Each comes twice: on a plain directory it must find what is wrong there, or it would find
//! nothing anywhere; in transactions on a guarded one it must find nothing.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use systx_e2e::lab::{built, tool};
use systx_e2e::run::{HANG, Limits, finish};
use systx_e2e::volume::Mounted;
use systx_e2e::{Finished, Lab, lab, skip};

/// What a program found.
struct Found {
    report: Value,
    violated: bool,
}

impl Found {
    fn number(&self, name: &str) -> u64 {
        self.report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.report))
    }
}

/// The programs, where every user of the lab can execute them.
fn programs(lab: &Lab) -> PathBuf {
    let copy = lab.outside().join("systx-histories");
    if !copy.exists() {
        let built = built(&["--bin", "systx-histories"], "systx-histories");
        // By cp: no descriptor that is open for writing is inherited by what another thread starts.
        tool(Command::new("cp").arg(built).arg(&copy)).expect("copy of the programs");
    }
    copy
}

#[track_caller]
fn histories(lab: &Lab, seconds: u64, args: &[&str]) -> Found {
    let mut command = lab.command(programs(lab));
    command.args(args);
    eprintln!("{args:?}:");
    found(finish(command, Limits::seconds(seconds), lab), lab)
}

#[track_caller]
fn found(done: Finished, lab: &Lab) -> Found {
    assert!(done.code == 0 || done.code == 1, "{done}\n{}", lab.daemon_log());
    eprintln!("{}{}", done.out, done.err);
    let report = done.out.lines().last().expect("a report");
    let report = serde_json::from_str(report).unwrap_or_else(|e| panic!("{e}\n{done}"));
    Found { report, violated: done.code == 1 }
}

/// A guarded directory of the lab; its end is that of the lab, or of the test.
struct Guarded<'a> {
    lab: &'a Lab,
    dir: PathBuf,
}

impl Guarded<'_> {
    fn over<'a>(lab: &'a Lab, name: &str) -> Guarded<'a> {
        Guarded::mounted(lab, name, &[])
    }

    fn mounted<'a>(lab: &'a Lab, name: &str, how: &[&str]) -> Guarded<'a> {
        let dir = empty(lab, name);
        lab.do_systx(["mount", text(&dir)].iter().chain(how)).ok();
        Guarded { lab, dir }
    }

    fn path(&self) -> &str {
        self.dir.to_str().expect("the lab's paths are text")
    }

    /// It is an ordinary directory again.
    #[track_caller]
    fn end(self) {
        self.lab.do_systx([Path::new("umount"), &self.dir]).ok();
    }
}

fn empty(lab: &Lab, name: &str) -> PathBuf {
    let dir = lab.path(name);
    std::fs::create_dir(&dir).expect("the lab is writable");
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the lab's paths are text")
}

#[test]
fn plain_calls_have_a_serial_order_and_transactions_without_systx_have_none() {
    let lab = lab!();
    let dir = empty(&lab, "control");
    let plain = ["--txn-workers", "0", "--plain-workers", "4", "--pace", "0", "--ops", "10000"];
    let found = histories(
        &lab,
        60,
        &[&["random", "--arena", text(&dir), "--unguarded"][..], &plain].concat(),
    );
    assert!(!found.violated, "the recorder does not know Linux: {}", found.report);
    assert!(found.number("plain") >= 10_000);

    let dir = empty(&lab, "sensitivity");
    let found =
        histories(&lab, 60, &["random", "--arena", text(&dir), "--unguarded", "--ops", "20000"]);
    assert!(found.violated, "nothing was found where there is no isolation: {}", found.report);
}

/// Transactions beside plain calls; the directory is mounted so, and these are options beside the
/// usual ones.
#[track_caller]
fn recorded(lab: &Lab, mount: &[&str], options: &[&str]) -> Found {
    let guarded = Guarded::mounted(lab, "guarded", mount);
    let seed = std::env::var("SYSTX_SEED").unwrap_or_else(|_| "1".into());
    let args = ["random", "--arena", guarded.path(), "--seed", &seed, "--pace", "2000"];
    let found = histories(lab, 120, &[&args, options].concat());
    let anomaly = found.report["anomaly"].as_str().unwrap_or_default();
    assert!(!found.violated, "{anomaly}\n{}", found.report);
    // By a directory, a file, or a mapping from before the transaction.
    for what in ["committed", "aborted", "plain", "beside"] {
        assert!(found.number(what) > 0, "{what}: {}", found.report);
    }
    let dir = guarded.dir.clone();
    guarded.end();
    std::fs::remove_dir_all(dir).expect("it is the lab's");
    found
}

/// Transactions of the command, with aborts of one kind.
fn random_histories(mount: &[&str], aborts: &str, ops: &str) {
    let lab = lab!();
    let systx = lab.binary();
    recorded(&lab, mount, &["--systx", text(&systx), "--aborts", aborts, "--ops", ops]);
}

#[test]
fn random_histories_on_a_guarded_directory_have_a_serial_order() {
    random_histories(&[], "random", "3000");
}

#[test]
fn so_they_have_where_opens_are_not_told() {
    random_histories(&["--fast-open"], "random", "6000");
    random_histories(&["--fast-open"], "each", "3000");
}

#[test]
fn so_they_have_if_every_transaction_is_aborted_once() {
    random_histories(&[], "once", "2000");
}

#[test]
fn so_they_have_if_every_transaction_is_aborted_after_every_object() {
    random_histories(&[], "each", "3000");
}

/// Transactions of the library, by processes and by threads of one; also those that lost have seen
/// one moment.
fn random_histories_of_the_library(mount: &[&str], more: &[&[&str]]) {
    let lab = lab!();
    let routed = mount.contains(&"--routed");
    let usual = ["--library", "--opaque", "--ops", "6000"];
    for more in more {
        let found = recorded(&lab, mount, &[&usual, *more].concat());
        let descriptors = more.contains(&"--descriptors");
        // Files from before are outside, but for that flag; directories are inside where threads
        // are told by their numbers.
        assert_eq!(found.report["directories"], routed, "{}", found.report);
        assert_eq!(found.number("before") > 0, routed || descriptors, "{}", found.report);
        assert_eq!(found.number("former") > 0, !descriptors, "{}", found.report);
        assert!(found.number("conflicts") > 0, "{}", found.report);
        nothing_is_left_of_transactions(&lab);
    }
}

#[test]
fn random_histories_of_the_library_have_a_serial_order() {
    let each = ["--aborts", "each"];
    random_histories_of_the_library(&[], &[&[], &["--threads"], &each, &["--descriptors"]]);
}

#[test]
fn so_they_have_where_threads_are_told_by_their_numbers() {
    let each = ["--aborts", "each"];
    random_histories_of_the_library(&["--routed"], &[&[], &["--threads"], &each]);
}

#[test]
fn a_maildir_is_listed_whole_in_a_transaction_only() {
    let lab = lab!();
    let dir = empty(&lab, "plain");
    let plain = ["maildir", "--dir", text(&dir), "--rounds", "300", "--meet"];
    let found = histories(&lab, 60, &plain);
    // Which of the two depends on the order in which the file system lists.
    let wrong = found.number("missing") + found.number("twice");
    assert!(found.violated && wrong > 0, "{}", found.report);

    // Nothing counts for a transaction that lost before, so the other program pauses now and then.
    let few = ["--rounds", "30", "--messages", "300", "--pause", "5000"];
    in_transactions(&lab, "maildir", "renames", &few);
}

/// A program in a tight loop is in the way of every listing; but who has lost three times holds it
/// up.
#[test]
fn an_aged_listing_wins_against_a_tight_loop() {
    // A snapshot never loses.
    for (more, losses) in [(&["--read-only"][..], 0), (&[], 3)] {
        let lab = lab!();
        let few = ["--rounds", "50", "--messages", "1000"];
        let found = in_transactions(&lab, "maildir", "renames", &[&few, more].concat());
        assert!(found.number("retries") <= losses * 50, "{}", found.report);
    }
}

/// Directories that change while others look, by processes that `command` starts.
#[track_caller]
fn looked_at(lab: &Lab, dir: &Path, mut command: Command) {
    let seed = std::env::var("SYSTX_SEED").unwrap_or_else(|_| "1".into());
    let args = ["listings", "--dir", text(dir), "--changes", "2000", "--seed", &seed];
    command.args(args);
    let found = found(finish(command, Limits::seconds(200), lab), lab);
    assert!(!found.violated, "{}", found.report);
    for what in ["changes", "listings", "disturbed", "looks", "stats"] {
        assert!(found.number(what) > 0, "{what}: {}", found.report);
    }
}

#[test]
fn who_looks_after_a_change_sees_it() {
    let lab = lab!();
    // Without systx: what Linux promises itself.
    let dir = empty(&lab, "plain");
    looked_at(&lab, &dir, lab.command(programs(&lab)));
    for (name, how) in [("usual", &[][..]), ("fast", &["--fast-open"]), ("routed", &["--routed"])] {
        let guarded = Guarded::mounted(&lab, name, how);
        looked_at(&lab, &guarded.dir, lab.command(programs(&lab)));
        guarded.end();
    }
}

#[test]
fn who_looks_after_a_change_sees_it_in_transactions() {
    let lab = lab!();
    let program = programs(&lab);
    let dir = empty(&lab, "run");
    looked_at(&lab, &dir, lab.systx(["run", "--", text(&program)]));
    assert!(dir.join("two").is_dir(), "it is committed");

    let dir = empty(&lab, "view");
    let begun = lab.do_systx(["begin", "--json", text(&dir)]).ok().json();
    let (id, path) = (&begun["begun"]["id"], &begun["begun"]["path"]);
    let (id, path) = (id.as_str().expect("an id"), path.as_str().expect("a path"));
    looked_at(&lab, Path::new(path), lab.command(&program));
    lab.do_systx(["commit", id]).ok();
    assert!(dir.join("two").is_dir(), "it is committed");
}

#[test]
fn who_looks_after_a_change_sees_it_in_a_log_structured_volume() {
    let lab = lab!();
    let volume = Mounted::new(&lab);
    looked_at(&lab, &volume.dir, lab.command(programs(&lab)));
    let dir = volume.path("run");
    std::fs::create_dir(&dir).expect("it is empty");
    let mut command = lab.systx(["run", "--", text(&programs(&lab))]);
    command.current_dir(&volume.dir);
    looked_at(&lab, &dir, command);
}

/// Through the library there are so many rounds in a second that each may be made to meet a change
/// in its middle: none of them is whole by luck.
#[test]
fn a_change_in_the_middle_of_every_listing_is_in_none_of_them() {
    let lab = lab!();
    let met = ["--meet", "--messages", "300", "--buffer", "4096"];
    let dir = empty(&lab, "plain");
    let plain = ["maildir", "--dir", text(&dir), "--rounds", "1000"];
    let found = histories(&lab, 60, &[&plain, &met[..]].concat());
    assert!(found.violated && found.number("disturbed") == 1000, "{}", found.report);

    for (more, least, most) in [(&[][..], 1, 3), (&["--read-only"][..], 0, 0)] {
        let few = [&["--rounds", "400"], &met[..], more].concat();
        let found = by_library(&lab, "maildir", &few);
        assert_eq!(found.number("disturbed"), 400, "{}", found.report);
        // Who reads while others write has lost at first, and wins when it is old enough; a
        // snapshot does not lose.
        let lost = found.number("retries");
        assert!((400 * least..=400 * most).contains(&lost), "{}", found.report);
    }
}

#[test]
fn a_flip_between_every_check_and_its_open_is_in_none_of_them() {
    if !Path::new("/usr/bin/setpriv").exists() {
        skip!("no setpriv (package util-linux)");
    }
    let lab = lab!();
    for (more, most) in [(&["--read-only"][..], 0), (&[], 3)] {
        let few = [&["--rounds", "100", "--meet", "--depth", "5"], more].concat();
        let found = by_library(&lab, "access", &few);
        let checks = found.number("rounds") + found.number("refused");
        assert!(found.number("disturbed") >= 100, "{}", found.report);
        assert!(found.number("retries") <= most * checks, "{}", found.report);
    }
}

/// Each transaction has descriptors of the same directories: the daemon has closed them.
#[track_caller]
fn nothing_is_left_of_transactions(lab: &Lab) {
    let pid = *lab.daemons().first().expect("a daemon");
    let most = || {
        let mut times: BTreeMap<PathBuf, u32> = BTreeMap::new();
        for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").flatten() {
            let target = std::fs::read_link(fd.path()).unwrap_or_default();
            if target.is_absolute() && !target.starts_with("/dev") {
                *times.entry(target).or_default() += 1;
            }
        }
        times.into_iter().max_by_key(|(_, n)| *n).expect("some are open")
    };
    // The kernel forgets in its own time, and then the daemon does.
    let late = Instant::now() + HANG;
    while most().1 > 8 {
        assert!(Instant::now() < late, "{:?}", most());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One of the pairs on a guarded directory, in transactions of the library.
#[track_caller]
fn by_library(lab: &Lab, program: &str, options: &[&str]) -> Found {
    // A program outside waits for an aged transaction for so long and then wins.  Half a second, as
    // usual, passes on a loaded machine while the reader is not even scheduled.
    let guarded = Guarded::mounted(lab, "guarded", &["--stall", "10000"]);
    let args = [program, "--dir", guarded.path(), "--library"];
    let found = histories(lab, 120, &[&args, options].concat());
    assert!(!found.violated, "{}", found.report);
    nothing_is_left_of_transactions(lab);
    let dir = guarded.dir.clone();
    guarded.end();
    std::fs::remove_dir_all(dir).expect("it is the lab's");
    found
}

/// One of the pairs on a guarded directory: nothing is violated, and the other program did
/// something.
#[track_caller]
fn in_transactions(lab: &Lab, program: &str, other: &str, options: &[&str]) -> Found {
    let guarded = Guarded::over(lab, "guarded");
    let systx = lab.binary();
    let args = [program, "--dir", guarded.path(), "--transaction", text(&systx)];
    let found = histories(lab, 120, &[&args, options].concat());
    assert!(!found.violated, "{}", found.report);
    assert!(found.number(other) > 0, "{}", found.report);
    guarded.end();
    found
}

#[test]
fn access_and_open_mean_one_file_in_a_transaction_only() {
    if !Path::new("/usr/bin/setpriv").exists() {
        skip!("no setpriv (package util-linux)");
    }
    let lab = lab!();
    let dir = empty(&lab, "plain");
    let found = histories(&lab, 60, &["access", "--dir", text(&dir), "--rounds", "10000"]);
    assert!(found.violated && found.number("stolen") > 0, "{}", found.report);

    let few = ["--rounds", "30", "--depth", "10", "--pause", "5000"];
    in_transactions(&lab, "access", "flips", &few);
}

#[test]
fn an_aged_check_wins_against_an_attacker_without_pause() {
    if !Path::new("/usr/bin/setpriv").exists() {
        skip!("no setpriv (package util-linux)");
    }
    // A snapshot never loses.
    for (more, losses) in [(&["--read-only"][..], 0), (&[], 3)] {
        let lab = lab!();
        let few = ["--rounds", "50", "--depth", "10"];
        let found = in_transactions(&lab, "access", "flips", &[&few, more].concat());
        let checks = found.number("rounds") + found.number("refused");
        assert!(found.number("retries") <= losses * checks, "{}", found.report);
    }
}

#[test]
fn passwd_shadow_and_group_agree_in_read_only_transactions() {
    let lab = lab!();
    in_transactions(&lab, "accounts", "snapshots", &["--rounds", "50", "--read-only"]);
}

#[test]
fn passwd_shadow_and_group_agree_in_transactions_only() {
    let lab = lab!();
    let dir = empty(&lab, "plain");
    let found = histories(&lab, 60, &["accounts", "--dir", text(&dir), "--rounds", "100"]);
    assert!(found.violated, "{}", found.report);

    in_transactions(&lab, "accounts", "plain_readings", &["--rounds", "50"]);
}

#[test]
fn so_they_do_if_the_daemon_is_killed() {
    let lab = lab!();
    // The daemon of this lab, and no other: the directory says so.
    let run = lab.root().with_file_name("run");
    let kill = format!("kill -9 $(pgrep -f '^systx daemon --serve --dir {}$')", text(&run));
    let often = ["--rounds", "60", "--crash", &kill, "--crash-every", "300"];
    in_transactions(&lab, "accounts", "crashes", &often);
}
