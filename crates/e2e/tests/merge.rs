//! Files that a run appends to while others append to them: both have what they wrote; anything
//! else that happens to such a file is a conflict as ever.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use systx_e2e::lab;
use systx_e2e::lab::Lab;

/// All files `*.log` are appended to.
const MERGE: &[&str] = &["--merge", "*.log"];
const CONFLICT: i32 = 75;

fn append(lab: &Lab, name: &str, text: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).open(lab.path(name)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn what_others_append_meanwhile_stays_and_comes_first() {
    let lab = lab!();
    // Nothing, less than a page, exactly one, and so much that it goes to a staging slot.
    for old in [0, 7, 4096, 5000, 600_000] {
        let old = "o".repeat(old);
        for mine in ["mine\n".repeat(2), "m".repeat(400_000)] {
            lab.write("a.log", &old);
            let inode = lab.path("a.log").metadata().unwrap().ino();
            let mut run = lab.shell(MERGE);
            let half = mine.len() / 2;
            lab.write("mine", &mine);
            run.eval("head -c $(($(stat -c %s mine) / 2)) mine >> a.log");
            append(&lab, "a.log", "theirs\n");
            run.eval(&format!("tail -c +{} mine >> a.log", half + 1));
            append(&lab, "a.log", "more\n");
            run.exit(0).ok().says("merged").says("12 bytes");
            assert!(lab.read("a.log") == format!("{old}theirs\nmore\n{mine}"), "{}", old.len());
            let is_same = lab.path("a.log").metadata().unwrap().ino() == inode;
            assert!(is_same, "whoever has it open goes on appending to it");
        }
    }
}

#[test]
fn two_runs_append_to_one_file_and_both_commit() {
    let lab = lab!();
    lab.write("a.log", "old\n");
    let (mut a, mut b) = (lab.shell(MERGE), lab.shell(MERGE));
    for i in 0..3 {
        a.eval(&format!("echo a{i} >> a.log"));
        b.eval(&format!("echo b{i} >> a.log"));
    }
    b.exit(0).ok();
    append(&lab, "a.log", "plain\n");
    a.exit(0).ok().says("merged");
    assert_eq!(lab.read("a.log"), "old\nb0\nb1\nb2\nplain\na0\na1\na2\n");
}

#[test]
fn a_file_that_nobody_else_touched_is_appended_to_as_ever() {
    let lab = lab!();
    lab.write("a.log", "old\n");
    let done = lab.run(MERGE, "echo x >> a.log; cat a.log; echo y >> a.log").ok();
    assert_eq!(done.out, "old\nx\n");
    assert!(!done.err.contains("merged"), "{done}");
    assert_eq!(lab.read("a.log"), "old\nx\ny\n");
}

/// A run that does something to a.log, then something happens outside, and perhaps it does
/// something more.
fn case(options: &[&str], inside: &str, outside: &str, after: &str) -> (i32, String) {
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(why) => panic!("{why}"),
    };
    lab.write("a.log", "old1\nold2\n");
    let mut run = lab.shell(options);
    run.eval(inside);
    lab.native(outside).ok();
    if !after.is_empty() && run.try_eval(after).is_none() {
        return (run.finished().code, lab.read("a.log"));
    }
    run.begin_exit(0);
    let code = run.finished().code;
    (code, lab.read("a.log"))
}

#[test]
fn whatever_is_not_appending_is_a_conflict_as_ever() {
    let _ = lab!();
    let (mine, theirs) = ("echo mine >> a.log", "echo theirs >> a.log");
    let grown = "old1\nold2\ntheirs\n";
    for (options, inside, outside, after, left) in [
        // Another class, or none.
        (&[][..], mine, theirs, "", grown),
        (&["--merge", "*.txt"], mine, theirs, "", grown),
        // What was there was read, before or after; overwritten; cut; taken away.
        (MERGE, "cat a.log; echo mine >> a.log", theirs, "", grown),
        (MERGE, mine, theirs, "cat a.log", grown),
        (
            MERGE,
            "echo mine >> a.log; printf X | dd of=a.log conv=notrunc 2>/dev/null",
            theirs,
            "",
            grown,
        ),
        (MERGE, mine, theirs, "printf X | dd of=a.log conv=notrunc", grown),
        (MERGE, "echo mine > a.log", theirs, "", grown),
        (MERGE, "echo mine >> a.log; mv a.log b.log", theirs, "", grown),
        (MERGE, "rm a.log", theirs, "", grown),
        // Outside: cut, cut and written anew, another file, other rights.
        (MERGE, mine, "echo cut > a.log", "", "cut\n"),
        (MERGE, mine, "echo something quite different > a.log", "", "something quite different\n"),
        (MERGE, mine, "cp a.log b; mv b a.log; echo new >> a.log", "", "old1\nold2\nnew\n"),
        (MERGE, mine, "chmod 600 a.log", "", "old1\nold2\n"),
    ] {
        let (code, found) = case(options, inside, outside, after);
        assert_eq!(
            (code, found.as_str()),
            (CONFLICT, left),
            "{options:?} {inside} / {outside} / {after}"
        );
    }
}

#[test]
fn who_has_read_the_file_conflicts_with_who_appends_to_it() {
    let lab = lab!();
    lab.write("a.log", "old\n");
    for reader_is_older in [true, false] {
        let mut older = lab.shell(MERGE);
        older.eval(":");
        let mut younger = lab.shell(MERGE);
        younger.eval(":");
        let (mut reader, mut writer) =
            if reader_is_older { (older, younger) } else { (younger, older) };
        assert_eq!(reader.eval("cat a.log"), "old\n");
        writer.eval("echo new >> a.log");
        writer.begin_exit(0);
        let written = writer.finished().code;
        reader.begin_exit(0);
        let read = reader.finished().code;
        let ends = if reader_is_older { (0, CONFLICT) } else { (CONFLICT, 0) };
        assert_eq!((read, written), ends, "reader is older: {reader_is_older}");
    }
    assert_eq!(lab.read("a.log"), "old\nnew\n");
}

#[test]
fn undo_leaves_what_others_appended_before_and_is_refused_after() {
    let lab = lab!();
    lab.write("a.log", "old\n");
    let mut run = lab.shell(MERGE);
    run.eval("echo mine >> a.log; echo x > other");
    append(&lab, "a.log", "theirs\n");
    run.exit(0).ok();
    lab.do_systx(["undo"]).ok();
    assert_eq!(lab.read("a.log"), "old\ntheirs\n");
    lab.do_systx(["redo"]).ok();
    assert_eq!(lab.read("a.log"), "old\ntheirs\nmine\n");
    append(&lab, "a.log", "later\n");
    assert!(lab.do_systx(["undo"]).expect(1).err.contains("a.log"));
    assert_eq!(lab.read("a.log"), "old\ntheirs\nmine\nlater\n");
    assert!(lab.has("other"));
}

#[test]
fn a_part_is_committed_without_merging() {
    let lab = lab!();
    lab.write("a.log", "old\n");
    let options = ["--merge", "*.log", "--on-exit=keep"];
    lab.run(&options, "echo mine >> a.log; echo x > b").ok();
    let id = lab.open_ids().remove(0);
    let path = |name: &str| lab.path(name).display().to_string();
    append(&lab, "a.log", "theirs\n");
    lab.do_systx(["commit", &id, &path("b")]).ok();
    lab.do_systx(["commit", &id]).ok();
    assert_eq!(lab.read("a.log"), "old\ntheirs\nmine\n");

    lab.run(&options, "echo again >> a.log; echo y > b").ok();
    let id = lab.open_ids().remove(0);
    lab.do_systx(["commit", &id, &path("a.log")]).ok();
    assert_eq!(lab.read("a.log"), "old\ntheirs\nmine\nagain\n");
    // What was committed of it is a file like any other to the rest.
    append(&lab, "a.log", "more\n");
    lab.do_systx(["commit", &id]).expect(CONFLICT);
    assert_eq!(lab.read("a.log"), "old\ntheirs\nmine\nagain\nmore\n");
    assert_eq!(lab.read("b"), "x\n");
}

#[test]
fn the_classes_are_told() {
    let lab = lab!();
    lab.write(".systxignore", "[append-merge]\n/here/*.txt\n");
    let shown = lab.do_systx(["config", "--merge", "*.log"]).ok().out;
    let line = |what: &str| shown.lines().find(|l| l.contains(what)).unwrap_or_default().to_owned();
    let here = format!("{}/here/*.txt", lab.root().display());
    for (what, from) in
        [("/var/log/**/*.log", "built in"), (&here, ".systxignore"), ("/**/*.log", "--merge")]
    {
        let line = shown.lines().find(|l| l.contains(what) && l.contains(from));
        assert!(line.is_some_and(|l| l.starts_with("append-merge")), "{what}: {shown}");
    }
    assert!(line("/var/log/journal").contains('!'), "{shown}");
    assert!(!lab.do_systx(["config", "--no-merge"]).ok().out.contains("append-merge"));
}

#[test]
fn status_tells_which_classes_hold_for_a_transaction_by_whom_and_what_it_did_there() {
    let lab = lab!();
    let ignore = "*.o\n[passthrough]\n/p\n/absent\n[append-merge]\n/here.txt\n";
    lab.write(".systxignore", ignore);
    for name in ["p/x", "a.log", "here.txt", "b.log", "c.log"] {
        lab.write(name, "old\n");
    }
    let options =
        ["--merge", "*.log", "--exclude", "./drop", "--private-tmp", "--on-exit=keep"].as_slice();
    let mut run = lab.shell(options);
    run.eval("echo 1 > x.o; mkdir d; echo 2 > d/y.o; echo k > kept; echo x > p/x");
    run.eval("echo l >> a.log; cat here.txt; echo m >> here.txt; cat b.log; stat c.log");
    let id = lab.open_ids().remove(0);
    let status = || lab.do_systx(["status", &id, "--json"]).ok().json()["transaction"].clone();
    let file = lab.path(".systxignore").display().to_string();
    let at = |name: &str| lab.path(name).display().to_string();
    let classes = |status: &serde_json::Value| {
        let all = status["classes"].as_array().unwrap_or_else(|| panic!("{status}")).clone();
        let text = |v: &serde_json::Value| v.as_str().expect("a text").to_owned();
        let of = |r: &serde_json::Value| {
            (text(&r["class"]), text(&r["path"]), text(&r["from"]), r["used"].as_u64())
        };
        all.iter().map(of).collect::<Vec<_>>()
    };
    let places = [
        ("private", "/run", "built in"),
        ("private", "/tmp", "--private-tmp"),
        ("passthrough", "/proc", "built in"),
        ("passthrough", &at("p"), file.as_str()),
    ];
    let used = [
        ("no-commit", at("**/*.o"), file.as_str(), 2),
        ("no-commit", at("drop"), "--exclude", 0),
        ("append-merge", "/var/log/**/*.log".into(), "built in", 0),
        // What was read is like any other file from then on, what was looked at is not appended to.
        ("append-merge", at("here.txt"), file.as_str(), 0),
        ("append-merge", "/**/*.log".into(), "--merge", 1),
    ];
    let check = |status: &serde_json::Value| {
        let classes = classes(status);
        let has = |class: &str, path: &str, from: &str, used| {
            let one = (class.to_owned(), path.to_owned(), from.to_owned(), used);
            assert!(classes.contains(&one), "{one:?} in {classes:?}");
        };
        places.iter().for_each(|(class, path, from)| has(class, path, from, None));
        used.iter().for_each(|(class, path, from, n)| has(class, path, from, Some(*n)));
        assert!(!classes.iter().any(|(_, path, ..)| path.ends_with("absent")), "{classes:?}");
    };
    check(&status());
    run.exit(0).ok();
    // Also of what is kept.
    check(&status());
    let text = lab.do_systx(["status", &id]).ok().out;
    let line = format!("no-commit: {} ({file}); 2 paths so far", at("**/*.o"));
    let logs = "append-merge: /var/log/**/*.log, /var/log/syslog, /var/log/messages and ";
    assert!(text.contains(&line) && text.contains(logs), "{text}");
    let all = lab.do_systx(["status", &id, "-v"]).ok().out;
    assert!(all.contains("!/var/log/journal/**") && !text.contains("journal"), "{all}");
    assert!(!lab.do_systx(["status"]).ok().out.contains("append-merge"), "short without an id");
    lab.do_systx(["abort", &id]).ok();
    assert_eq!(lab.read("p/x"), "x\n");
    // Where nothing is merged nothing is said to be.
    let mut snapshot = lab.shell(&["--isolation=snapshot"]);
    snapshot.eval("true");
    let id = lab.open_ids().remove(0);
    let told = lab.do_systx(["status", &id]).ok().out;
    assert!(told.contains("private: /run") && !told.contains("append-merge"), "{told}");
    snapshot.exit(0).ok();
    // One with a path has none of its own.
    let begun = lab.do_systx(["begin", ".", "--json"]).ok().json();
    let id = begun["begun"]["id"].as_str().expect("an id");
    let told = lab.do_systx(["status", id, "--json"]).ok().json();
    assert_eq!(classes(&told["transaction"]), []);
    assert!(!lab.do_systx(["status", id]).ok().out.contains("classes"));
    lab.do_systx(["abort", id]).ok();
}
