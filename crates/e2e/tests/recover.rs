//! `systx recover`, also with `--all`: every store of the user is looked at, wherever it is, and
//! what was recovered is told once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;
use systx_e2e::lab::{one, watch};
use systx_e2e::run::{HANG, Limits, Running, finish, wait_readable};
use systx_e2e::stop::Stop;
use systx_e2e::{Finished, Lab, Shell, lab};

const BEFORE: &str = "rm -rf new dir; printf old > file";
const WORK: &str = "printf new > file; mkdir dir; printf x > dir/x; printf n > new";
/// The call that makes a record durable.
const RECORD: &str = "pwritev2";
const FINISHED: &str = "1 committed transactions installed";
const NOTHING: &str = "nothing to recover";

/// A user's directories, and where the user is at home.
struct User {
    lab: Lab,
    home: PathBuf,
}

impl User {
    /// Root, or an ordinary user: the volume is root's, who gives the user nothing but the
    /// directories `u` and `v`.
    fn new(lab: Lab, ordinary: bool) -> User {
        let lab = if ordinary { lab.as_user() } else { lab };
        let home = lab.outside().join("home");
        fs::create_dir_all(&home).unwrap();
        lab.give(&home);
        let root = lab.root();
        std::os::unix::fs::chown(&root, Some(0), Some(0)).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        for dir in ["u", "v"] {
            fs::create_dir(root.join(dir)).unwrap();
            lab.give(&root.join(dir));
        }
        User { lab, home }
    }

    fn systx(&self, dir: &str, args: &[&str]) -> Command {
        let mut command = self.lab.systx(args);
        command.env("HOME", &self.home).current_dir(self.lab.path(dir));
        command
    }

    fn ask(&self, dir: &str, args: &[&str]) -> Finished {
        finish(self.systx(dir, args), Limits::default(), &self.lab).ok()
    }

    fn reset(&self, dir: &str) {
        self.lab.native(&format!("cd {dir} && {BEFORE}")).ok();
    }

    /// A run in a directory, with these options, whose daemon dies at its `n`-th call from the
    /// commit's record on.
    fn die(&self, dir: &str, options: &[&str], n: Option<usize>) {
        let args = [&["run"], options, &["--", "sh"]].concat();
        let mut run = Shell::start(&self.lab, self.systx(dir, &args));
        run.eval(WORK);
        let daemon = one(self.lab.daemons());
        let gone = watch(daemon);
        let pid = rustix::process::Pid::from_raw(daemon as i32).unwrap();
        let stop = Stop::from_call(pid, RECORD, n);
        run.begin_exit(0);
        let told = run.finished().code == 0;
        assert_eq!(told, n.is_none(), "{}", self.lab.daemon_log());
        if told {
            self.lab.kill_daemon();
        }
        assert!(wait_readable(&gone, Instant::now() + HANG), "it lives");
        stop.wait();
    }

    /// Leaves a transaction that is committed and not installed.
    fn half_install(&self, dir: &str, options: &[&str]) {
        // The first commit makes the store.
        self.reset(dir);
        self.die(dir, options, None);
        self.reset(dir);
        self.die(dir, options, Some(2));
        assert_eq!(self.lab.read(format!("{dir}/file")), "old", "nothing is in place yet");
    }

    fn assert_installed(&self, dir: &str) {
        for (name, content) in [("file", "new"), ("dir/x", "x"), ("new", "n")] {
            assert_eq!(self.lab.read(format!("{dir}/{name}")), content, "{dir}/{name}");
        }
    }
}

/// How often a text has another.
fn count(said: &Finished, what: &str) -> usize {
    format!("{}{}", said.out, said.err).matches(what).count()
}

fn all_stores_are_found(ordinary: bool) {
    let user = User::new(lab!(), ordinary);
    // In the topmost directory of an ordinary user, or at the root of the file system; and where
    // `--store` says.
    let own = user.lab.path("v/own");
    let elsewhere = ["--store", own.to_str().unwrap()];
    user.half_install("u", &[]);
    user.half_install("v", &elsewhere);
    // One that has nothing to do, in the state directory of the home.
    fs::create_dir_all(user.home.join("w")).unwrap();
    user.lab.give(&user.home.join("w"));
    let mut run = user.systx("u", &["run", "--", "sh", "-c", "echo here > here"]);
    run.current_dir(user.home.join("w"));
    finish(run, Limits::default(), &user.lab).ok();
    user.lab.kill_daemon();
    let said = user.ask("/", &["recover", "--all"]);
    assert_eq!(count(&said, FINISHED), 2, "{said}");
    user.assert_installed("u");
    user.assert_installed("v");
    // Told once, by this daemon and by the next one.
    let again = |dir: &str, args: &[&str]| {
        let said = user.ask(dir, args);
        assert_eq!((count(&said, FINISHED), count(&said, "recovery finished")), (0, 0), "{said}");
        said
    };
    for _ in 0..2 {
        let said = again("/", &["recover", "--all"]);
        assert!(count(&said, NOTHING) >= 2, "{said}");
        assert_eq!(count(&again("u", &["recover"]), NOTHING), 1);
        again("u", &["run", "--", "true"]);
        again("v", &[&["run"], &elsewhere[..], &["--", "true"]].concat());
        user.lab.kill_daemon();
    }
}

#[test]
fn all_stores_of_root_are_found_and_what_was_recovered_is_told_once() {
    all_stores_are_found(false);
}

#[test]
fn all_stores_of_a_user_are_found_and_what_was_recovered_is_told_once() {
    all_stores_are_found(true);
}

#[test]
fn who_comes_first_is_told_whatever_asks() {
    let user = User::new(lab!(), true);
    user.half_install("u", &[]);
    let said = user.ask("u", &["run", "--", "cat", "file"]);
    assert!(said.out.ends_with("new"), "{said}");
    assert_eq!(count(&said, "recovery finished"), 1, "{said}");
    let said = user.ask("u", &["recover"]);
    assert_eq!((count(&said, FINISHED), count(&said, NOTHING)), (0, 1), "{said}");
}

#[test]
fn of_two_that_recover_at_once_one_is_told() {
    let user = User::new(lab!(), true);
    for _ in 0..2 {
        user.half_install("u", &[]);
        let args = [&["recover"][..], &["recover", "--all"]];
        let running = args.map(|args| Running::start(user.systx("u", args), Limits::default()));
        let said = running.map(|run| run.finish(&user.lab).ok());
        let told: Vec<usize> = said.iter().map(|said| count(said, FINISHED)).collect();
        assert_eq!(told.iter().sum::<usize>(), 1, "{told:?}\n{}\n{}", said[0], said[1]);
        user.assert_installed("u");
        user.lab.kill_daemon();
    }
}

#[test]
fn who_has_no_store_is_told_so() {
    let user = User::new(lab!(), true);
    let said = user.ask("u", &["recover", "--all"]);
    assert_eq!(count(&said, "you have no store here"), 1, "{said}");
}
