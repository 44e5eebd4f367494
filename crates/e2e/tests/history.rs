//! What becomes of committed transactions: which one an undo means, how much history is kept, what
//! it shows later.

use systx_e2e::lab;
use systx_e2e::lab::Fs;
use systx_e2e::lab::find_program;
use systx_e2e::run::{Finished, Limits, Running, finish};
use systx_e2e::{Lab, skip};

/// `systx` in a directory of the lab.
fn at(lab: &Lab, dir: &str, args: &[&str]) -> Finished {
    let mut command = lab.systx(args);
    command.current_dir(lab.path(dir));
    finish(command, Limits::default(), lab)
}

fn run_in(lab: &Lab, dir: &str, script: &str) -> String {
    let done = at(lab, dir, &["run", "--", "sh", "-c", script]).ok();
    let id = done.err.split("committed ").nth(1).and_then(|rest| rest.get(..8));
    id.unwrap_or_else(|| panic!("nothing committed: {done}")).to_owned()
}

fn projects(lab: &Lab) {
    for dir in ["one/src", "two/src", "three"] {
        std::fs::create_dir_all(lab.path(dir)).expect("a project");
    }
}

#[test]
fn an_undo_takes_the_last_transaction_of_the_directory_that_it_is_said_in() {
    let lab = lab!();
    projects(&lab);
    let mine = run_in(&lab, "one", "echo 1 > src/a");
    let others = run_in(&lab, "two", "echo 2 > b");
    let place = lab.path("one").display().to_string();
    let done = at(&lab, "one", &["undo"]).ok().says(&mine).says(&format!("in {place}"));
    done.says(&others).says("elsewhere");
    assert!(!lab.has("one/src/a") && lab.has("two/b"));

    // Back again, by the one that the directory means as well.
    at(&lab, "two", &["undo"]).ok();
    at(&lab, "one", &["redo"]).ok();
    assert!(lab.has("one/src/a") && !lab.has("two/b"));
    at(&lab, "two", &["redo"]).ok();

    // In a directory above both it is the last of all.
    let said = at(&lab, ".", &["undo", "-n"]).ok().err;
    assert!(
        said.contains("would undo") && said.contains("/two") && !said.contains("elsewhere"),
        "{said}"
    );
}

#[test]
fn where_nothing_was_done_nothing_is_undone_and_the_last_one_is_named() {
    let lab = lab!();
    projects(&lab);
    let id = run_in(&lab, "one", "echo 1 > a");
    let before = lab.tree();
    for word in ["undo", "redo"] {
        let done = at(&lab, "three", &[word]).expect(1);
        let there =
            if word == "undo" { format!("systx undo {id}") } else { "nothing to redo".into() };
        assert!(done.err.contains(&there), "{done}");
        before.assert_same(&lab.tree(), "a refused undo");
    }
    // --root names the directory as well as the file system.
    let root = lab.path("three").display().to_string();
    at(&lab, "one", &["undo", "--root", &root]).expect(1);
    at(&lab, "three", &["undo", "-C", &lab.path("one").display().to_string()]).ok();
    assert!(!lab.has("one/a"));
}

#[test]
fn what_was_run_in_a_directory_or_moved_it_is_of_that_directory() {
    let lab = lab!();
    projects(&lab);
    // As `make install` does: it is run in one place and changes another.
    let install = run_in(&lab, "one", "echo 1 > ../three/installed");
    run_in(&lab, "two", "echo 2 > b");
    for dir in ["one", "three"] {
        at(&lab, dir, &["undo", "-n"]).ok().says(&install);
    }
    let moved = run_in(&lab, ".", "mv one uno");
    at(&lab, "uno/src", &["undo", "-n"]).ok().says(&moved);
    let attributes = run_in(&lab, ".", "chmod 700 two");
    let done = at(&lab, "two/src", &["undo"]).expect(1);
    assert!(done.err.contains(&attributes), "{done}");
}

#[test]
fn an_undo_is_told_as_what_it_takes_back_the_other_way_round() {
    let lab = lab!();
    lab.write("kept/x", "x\n");
    let last = |lab: &Lab, text: &str| {
        let log = lab.do_systx(["log", "-n", "1"]).ok().out;
        assert!(log.contains(text), "{text}: {log}");
    };
    lab.run(&[], "mkdir -p new/deep; echo 1 > new/deep/a; echo 22 > kept/y")
        .ok()
        .says("4 added; 5 bytes");
    last(&lab, "4 added; 5 bytes");
    lab.do_systx(["undo"]).ok().says("4 deleted");
    last(&lab, "4 deleted");
    lab.do_systx(["redo"]).ok().says("4 added");
    last(&lab, "4 added");
    lab.run(&[], "rm -r new kept").ok().says("6 deleted");
    last(&lab, "6 deleted");
    lab.do_systx(["undo"]).ok().says("6 added");
    assert_eq!(lab.read("new/deep/a"), "1\n");
}

/// Bytes that are free on the lab's file system.
fn free(lab: &Lab) -> u64 {
    let stat = rustix::fs::statvfs(lab.root()).expect("statvfs");
    stat.f_bavail * stat.f_bsize
}

/// Fills the file system but for so many bytes. A volume keeps no room for fallocate(2).
fn fill(lab: &Lab, but: u64) {
    let size = free(lab).saturating_sub(but);
    let make = match lab.fs {
        Fs::Volume => format!("tr '\\0' f < /dev/zero | head -c {size} > filler"),
        _ => format!("fallocate -l {size} filler"),
    };
    lab.native(&format!("{make}; sync -f .")).ok();
}

fn log(lab: &Lab) -> Vec<serde_json::Value> {
    let log = lab.do_systx(["log", "--json"]).ok().json();
    log["log"].as_array().expect("entries").clone()
}

fn collected(lab: &Lab, args: &[&str]) -> (u64, u64, u64) {
    let json = lab.do_systx(["gc", "--json"].iter().chain(args)).ok().json();
    let number = |name: &str| json["collected"][name].as_u64().expect("a number");
    (number("transactions"), number("bytes"), number("remaining"))
}

/// Makes files of so many megabytes, and removes each in a run.
fn remove_files(lab: &Lab, count: usize, megabytes: usize) {
    for n in 0..count {
        lab.native(&format!("head -c {megabytes}M /dev/zero | tr '\\0' x > f{n}")).ok();
    }
    for n in 0..count {
        lab.run(&[], &format!("rm f{n}")).ok();
    }
}

#[test]
fn a_commit_that_finds_no_room_forgets_the_oldest_undos_and_says_so() {
    let lab = lab!();
    remove_files(&lab, 5, 10);
    assert!(log(&lab).iter().all(|e| e["undoable"] == true));
    // So that it is not the bound that makes room.
    lab.kill_daemon();
    fill(&lab, 5 << 20);
    let five = "for i in 1 2 3 4; do head -c 5M /dev/zero | tr '\\0' g > g$i; done";
    lab.run(&[], five).ok().says("forgot how to undo").says("make room");
    assert!(lab.has("g4"));
    // The log still has all; the latest can be undone, and those that went cannot.
    let entries = log(&lab);
    assert_eq!(entries.len(), 6);
    assert!(entries[0]["undoable"] == true && entries[5]["undoable"] == false);
    let oldest = entries[5]["id"].as_str().expect("an id").to_owned();
    lab.do_systx(["log"]).ok().out.contains("cannot be undone any more");
    let done = lab.do_systx(["undo", &oldest]).expect(1);
    assert!(done.err.contains("cannot be undone any more") && done.err.contains("gc"), "{done}");
    lab.do_systx(["undo"]).ok();
    assert!(!lab.has("g4"));
}

#[test]
fn where_no_room_can_be_made_nothing_is_forgotten_and_the_order_that_makes_it_is_named() {
    let lab = lab!();
    remove_files(&lab, 1, 30);
    fill(&lab, 5 << 20);
    let before = lab.tree();
    let five = "for i in 1 2 3 4; do head -c 5M /dev/zero | tr '\\0' g > g$i; done";
    let done = lab.run(&[], five);
    assert!(done.code != 0 && done.err.contains("systx gc --keep 0"), "{done}");
    before.assert_same(&lab.tree(), "no room");
    assert!(log(&lab)[0]["undoable"] == true);
    let would = collected(&lab, &["-n", "--keep", "0"]);
    assert!(would.0 == 1 && would.1 >= 30 << 20, "{would:?}");
    assert_eq!(collected(&lab, &["--keep", "0"]), would);
    lab.run(&[], five).ok();
}

#[test]
fn history_is_bounded_without_an_order_and_the_latest_stays() {
    let lab = lab!();
    remove_files(&lab, 5, 60);
    // A tenth of 768 MB is one of them; the bound is kept beside the commits.
    lab.until("the history is bounded", || {
        log(&lab).iter().filter(|e| e["undoable"] == true).count() == 1
    });
    assert_eq!(log(&lab).len(), 5);
    assert_eq!(collected(&lab, &["-n"]).0, 0);
    lab.do_systx(["undo"]).ok();
    assert!(lab.has("f4") && !lab.has("f3"));
    assert_eq!(std::fs::metadata(lab.path("f4")).expect("it is back").len(), 60 << 20);
}

#[test]
fn gc_and_its_dry_run_agree_and_the_log_survives() {
    let lab = lab!();
    remove_files(&lab, 4, 3);
    let before = log(&lab).len();
    for limits in [&["--keep", "3"][..], &["--max-size", "4M"], &[], &["--keep", "0"]] {
        let would = collected(&lab, &[&["-n"][..], limits].concat());
        let did = collected(&lab, limits);
        assert_eq!(would, did, "{limits:?}");
        assert_eq!(log(&lab).len(), before, "{limits:?}");
    }
    assert!(log(&lab).iter().all(|e| e["undoable"] == false));
    let done = lab.do_systx(["undo"]).expect(1);
    assert!(done.err.contains("nothing to undo"), "{done}");
    // Another daemon finds the same.
    lab.kill_daemon();
    assert_eq!(log(&lab).len(), before);
    lab.do_systx(["log", "-n", "0"]).ok();
    assert!(!lab.do_systx(["log", "-n", "0"]).ok().err.contains("nothing was committed"));
}

#[test]
fn a_refused_undo_does_not_deny_what_was_done_there() {
    let lab = lab!();
    for dir in ["a", "b", "c"] {
        lab.write(format!("{dir}/f"), "0\n");
        lab.run(&[], &format!("echo 1 > {dir}/f")).ok();
    }
    let dir = |name: &str| lab.path(name).to_str().unwrap().to_owned();
    lab.do_systx(["undo", "-C", &dir("a")]).ok();
    for (word, place) in [("undo", "a"), ("redo", "b")] {
        let none = lab.do_systx([word, "-C", &dir(place)]).expect(1);
        assert!(none.err.contains(&format!("nothing to {word} in {}", dir(place))), "{none}");
        assert!(!none.err.contains("no transaction changed"), "{none}");
    }
}

#[test]
fn of_two_undos_at_once_one_is_done() {
    let lab = lab!();
    for round in 0..5 {
        lab.run(&[], &format!("echo {round} > f")).ok();
        let id = lab.logged_ids().remove(0);
        let start = || Running::start(lab.systx(["undo", &id]), Limits::default());
        let both = [start(), start()].map(|r| r.finish(&lab));
        let done = both.iter().filter(|d| d.code == 0).count();
        assert_eq!(done, 1, "{} {}", both[0], both[1]);
        assert!(!lab.has("f"));
    }
}

#[test]
fn a_collection_beside_undos_and_a_daemon_that_is_killed_in_it_lose_nothing() {
    let lab = lab!();
    let wanted = "the content before";
    for round in 0..6 {
        lab.write("f", wanted);
        lab.native("mkdir -p d; cd d; seq 2000 | xargs touch").ok();
        lab.run(&[], "echo other > f; rm -r d").ok();
        let undo = Running::start(lab.systx(["undo"]), Limits::default());
        let gc = Running::start(lab.systx(["gc", "--keep", "0"]), Limits::default());
        if round % 2 == 1 {
            lab.kill_daemon();
        }
        let (undo, _gc) = (undo.finish(&lab), gc.finish(&lab));
        lab.do_systx(["recover"]).ok();
        // All of it, or nothing, whoever was first; and what is left in the log can be looked at.
        match lab.has("d") {
            true => assert!(lab.read("f") == wanted && lab.has("d/2000"), "{undo}"),
            false => assert!(lab.read("f") == "other\n" && undo.code != 0, "{undo}"),
        }
        log(&lab);
        lab.do_systx(["gc", "--keep", "0"]).ok();
        lab.native("rm -rf d").ok();
    }
}

#[test]
fn an_undo_that_is_blocked_names_who_changed_what_and_what_to_do() {
    let lab = lab!();
    lab.run(&[], "echo 1 > a; echo 1 > b; echo 1 > c").ok();
    let first = lab.logged_ids().remove(0);
    lab.write("a", "by hand\n");
    let done = lab.do_systx(["undo", &first]).expect(1);
    let a = lab.path("a").display().to_string();
    assert!(done.err.contains(&format!("{a} (by a program outside")), "{done}");
    assert!(done.err.contains("by hand") && !done.err.contains("came later first"), "{done}");
    lab.run(&[], "echo 2 > b").ok();
    let second = lab.logged_ids().remove(0);
    let done = lab.do_systx(["undo", &first]).expect(1);
    assert!(done.err.contains(&format!("systx undo {second}")), "{done}");
    // The rest can be taken back, a path at a time.
    lab.do_systx(["undo", &first, "c"]).ok();
    assert!(!lab.has("c") && lab.read("b") == "2\n" && lab.read("a") == "by hand\n");
    lab.do_systx(["undo"]).ok();
    assert!(lab.has("c"), "the undo of a part is a transaction like another");
    let done = lab.do_systx(["undo", &first, "nowhere"]).expect(1);
    assert!(done.err.contains("changed nothing at"), "{done}");
}

#[test]
fn the_log_of_a_path_has_what_changed_it() {
    let lab = lab!();
    projects(&lab);
    let one = run_in(&lab, "one", "echo 1 > src/a");
    let two = run_in(&lab, "two", "echo 2 > b");
    let moved = run_in(&lab, ".", "mv one uno");
    let ids = |args: &[&str]| systx_e2e::run::ids(&lab.do_systx(args).ok().json());
    assert_eq!(ids(&["log", "--json", "one/src/a"]), [moved.clone(), one]);
    assert_eq!(ids(&["log", "--json", "uno"]), [moved]);
    assert_eq!(ids(&["log", "--json", "-n", "1", "two", "three"]), [two]);
    let none = lab.do_systx(["log", "three"]).ok();
    assert!(none.err.contains("no transaction in the log changed anything there"), "{none}");
}

#[test]
fn what_is_told_is_what_was_written() {
    let lab = lab!();
    lab.native("truncate -s 2G large; head -c 1M /dev/zero | tr '\\0' x > real").ok();
    let done = lab.run(&[], "printf y | dd of=large bs=1 seek=1000000000 conv=notrunc status=none");
    done.ok().says("1 modified; 4.1 kB");
    lab.run(&[], "printf y | dd of=real bs=1 conv=notrunc status=none").ok().says("; 4.1 kB");
    lab.run(&[], "head -c 1M /dev/zero | tr '\\0' z > real").ok().says("; 1.0 MB");
    // What is written and not committed is named.
    let done = lab.run(&["--read-only"], "echo x > new; rm real").ok();
    done.says("read-only: 2 changes dropped").says("/new").says("/real");
    assert!(lab.has("real") && !lab.has("new"));
}

/// What `diff ID` shows must be what git makes of the two trees.
#[test]
fn a_committed_transaction_is_shown_with_both_sides_also_after_later_changes_and_undone() {
    let lab = lab!();
    let long: String = (0..3000).map(|n| format!("line {n}\n")).collect();
    for (file, text) in [("text", "one\ntwo\n"), ("gone", "bye\n"), ("from", "moved\n")] {
        lab.write(file, text);
    }
    lab.write("long", &long);
    lab.write("dir/sub/deep", "deep\n");
    lab.write("dir/other", "other\n");
    std::os::unix::fs::symlink("text", lab.path("link")).expect("a link");
    let script = "printf 'one\n2\n' > text; rm gone; mv from to; rm -r dir; mkdir new; \
                  echo x > new/x; sed -i '1500s/.*/changed/' long; printf 'changed\n' | \
                  dd of=long bs=1 seek=20000 conv=notrunc status=none; ln -sf long link; \
                  chmod 600 to; \
                  setfattr -n user.a -v 1 to; cp long set; chown 5:6 set; chmod 6755 set; \
                  setfattr -n user.b -v 2 set; mknod null c 1 3; mkfifo pipe; \
                  mkdir -m 1777 sticky; setfattr -n user.c -v 3 sticky; chown 7 sticky";
    if find_program("setfattr").is_none() {
        skip!("no setfattr");
    }
    lab.run(&["--on-exit=keep"], script).ok();
    let id = lab.open_ids().remove(0);
    let sort = |text: &str| {
        let mut parts: Vec<_> = text.split("diff --git ").map(str::to_owned).collect();
        parts.sort();
        parts
    };
    let open = lab.do_systx(["diff", &id]).ok().out;
    let names = lab.do_systx(["diff", "--name-status", &id]).ok().out;
    let stat = lab.do_systx(["diff", "--stat", &id]).ok().out;
    lab.do_systx(["commit", &id]).ok();
    let committed = lab.do_systx(["diff", &id]).ok().out;
    assert_eq!(sort(&committed), sort(&open), "as before the commit");
    let same = |what: &str| {
        assert_eq!(lab.do_systx(["diff", &id]).ok().out, committed, "{what}");
        assert_eq!(lab.do_systx(["diff", "--name-status", &id]).ok().out, names, "{what}");
        assert_eq!(lab.do_systx(["diff", "--stat", &id]).ok().out, stat, "{what}");
        let shown = lab.do_systx(["show", &id, "--json"]).ok().json();
        let shown = &shown["transaction"];
        assert!(shown["summary"]["bytes"].as_u64() > Some(0), "{what}: {shown}");
        let text = shown["changes"].as_array().expect("changes").iter();
        let text = text.filter(|c| c["path"].as_str().is_some_and(|p| p.ends_with("/text")));
        let sizes: Vec<_> =
            text.map(|c| (c["old"]["size"].as_u64(), c["new"]["size"].as_u64())).collect();
        assert_eq!(sizes, [(Some(8), Some(6))], "{what}");
    };
    same("right after");
    lab.do_systx(["undo"]).ok();
    same("undone");
    lab.do_systx(["redo"]).ok();
    same("redone");
    // Later transactions change the same files in place, replace and remove them.
    lab.run(&[], "printf '3\n' >> text; printf 'again\n' | dd of=long bs=1 seek=100 conv=notrunc")
        .ok();
    same("appended to, overwritten in place");
    lab.run(&[], "echo anew > t; mv t text; rm -r new; mv to elsewhere; mkdir dir").ok();
    same("replaced, removed, moved");
    lab.kill_daemon();
    same("another daemon");
    // What somebody outside has changed since is not known, and nothing else is shown in its place.
    lab.write("long", "by hand\n");
    let now = lab.do_systx(["diff", &id, "long"]).ok().out;
    assert!(now.contains("no longer known") && !now.contains("by hand"), "{now}");
    let text = lab.do_systx(["diff", &id, "text"]).ok().out;
    assert!(text.contains("-two") && text.contains("+2"), "{text}");
}
