//! Verdicts: who has lost has lost for good, to whom it is said that it did, and with the right
//! advice.

use std::path::{Path, PathBuf};
use systx_e2e::lab::chmod;
use systx_e2e::run::{Limits, Shell, finish};
use systx_e2e::{CONFLICT, Finished, Fs, Lab, Tree, lab};

/// Begins a transaction with a path; its id and the path.
fn begin(lab: &Lab, options: &[&str]) -> (String, PathBuf) {
    let begun = lab.do_systx(["begin"].iter().chain(options).chain(&["."])).ok();
    let (id, path) = begun.out.trim().split_once(' ').expect("an id and a path");
    (id.to_owned(), PathBuf::from(path))
}

fn sh(lab: &Lab, at: &Path, script: &str) -> Finished {
    lab.native(&format!("cd {} && {{ {script}; }}", at.display()))
}

fn state(lab: &Lab, id: &str) -> String {
    let list = lab.do_systx(["list", "--json"]).ok().json().to_string();
    let of = list.split(id).nth(1).unwrap_or_else(|| panic!("no {id} in {list}"));
    let state = of.split("\"state\":\"").nth(1).expect("a state");
    state.split('"').next().expect("text").to_owned()
}

/// Kept, or with a path: a commit that has lost to a program outside was the last word. It is lost,
/// nothing more is done in it, and it beats nobody.
#[test]
fn who_has_lost_at_its_commit_beats_nobody_any_more() {
    let lab = lab!();
    for with_path in [false, true] {
        lab.native("echo one > f; echo one > other").ok();
        let work = "cat f; echo mine > other";
        let (id, path) = match with_path {
            true => {
                let (id, path) = begin(&lab, &[]);
                sh(&lab, &path, work).ok();
                (id, Some(path))
            }
            false => {
                lab.run(&["--on-exit=keep"], work).ok();
                (lab.open_ids().pop().expect("it is kept"), None)
            }
        };
        lab.native("echo outside >> f").ok();
        let lost = lab.do_systx(["commit", &id]).expect(CONFLICT);
        assert!(lost.err.contains("/f"), "{lost}");
        assert_eq!(state(&lab, &id), "doomed", "which list shows as lost");
        if let Some(path) = path {
            let late = sh(&lab, &path, "echo late > late");
            assert!(late.code != 0 && late.err.contains("cancel"), "{late}");
        }
        // What it has written is as free as if it were not there.
        lab.run(&["--retries", "0"], "cat other; echo theirs > other").ok();
        assert_eq!(lab.read("other"), "theirs\n");
        // It says the same again.
        let again = lab.do_systx(["commit", &id]).expect(CONFLICT);
        assert!(again.err.contains("/f"), "{again}");
        lab.do_systx(["abort", &id]).ok();
    }
}

/// Under snapshot isolation who replaced a file is found at the end, and was another transaction.
#[test]
fn a_file_that_a_transaction_has_replaced_is_not_said_to_be_an_outsiders() {
    let lab = lab!();
    lab.native("echo one > f").ok();
    let (id, path) = begin(&lab, &["--isolation=snapshot"]);
    sh(&lab, &path, "cat f; echo mine > new; mv new f").ok();
    lab.run(&[], "echo theirs > new; mv new f").ok();
    let winner = lab.logged_ids().remove(0);
    let lost = lab.do_systx(["commit", &id]).expect(CONFLICT);
    assert!(lost.err.contains(&winner) && !lost.err.contains("outside"), "{lost}");
    lab.do_systx(["abort", &id]).ok();
    // By a program outside it is one.
    let (id, path) = begin(&lab, &["--isolation=snapshot"]);
    sh(&lab, &path, "cat f; echo mine > new; mv new f").ok();
    lab.native("echo outside > new; mv new f").ok();
    let lost = lab.do_systx(["commit", &id]).expect(CONFLICT);
    assert!(lost.err.contains("outside"), "{lost}");
    lab.do_systx(["abort", &id]).ok();
}

/// A part of a transaction is a transaction of its own for the moment of its commit; what it loses
/// is told as such.
#[test]
fn a_part_that_loses_has_a_conflict_and_was_not_aborted() {
    let lab = lab!();
    lab.native("echo one > f; echo one > g").ok();
    let (older, its) = begin(&lab, &[]);
    sh(&lab, &its, "cat f").ok();
    let (id, path) = begin(&lab, &["--isolation=snapshot"]);
    sh(&lab, &path, "echo more >> f; echo more >> g").ok();
    let file = lab.path("f");
    let lost = lab.do_systx(["commit", &id, file.to_str().expect("text")]).expect(CONFLICT);
    assert!(lost.err.contains("/f") && lost.err.contains(&older), "{lost}");
    assert!(!lost.err.contains("aborted"), "{lost}");
    // The rest is as it was.
    let rest = lab.path("g");
    lab.do_systx(["commit", &id, rest.to_str().expect("text")]).ok();
    assert_eq!((lab.read("f"), lab.read("g")), ("one\n".into(), "one\nmore\n".into()));
    lab.do_systx(["abort", &id]).ok();
    lab.do_systx(["abort", &older]).ok();
}

/// In a conflict a part is as urgent as the whole.
#[test]
fn a_part_is_as_urgent_as_its_transaction() {
    let lab = lab!();
    for (reader, writer, wins) in [("0", "-5", true), ("3", "5", false), ("5", "3", true)] {
        lab.native("echo one > f").ok();
        let (older, its) = begin(&lab, &["--nice", reader]);
        sh(&lab, &its, "cat f").ok();
        let (id, path) = begin(&lab, &["--nice", writer, "--isolation=snapshot"]);
        sh(&lab, &path, "echo more >> f").ok();
        let file = lab.path("f");
        let done = lab.do_systx(["commit", &id, file.to_str().expect("text")]);
        assert_eq!(done.code, if wins { 0 } else { CONFLICT }, "{reader} {writer}: {done}");
        assert_eq!(state(&lab, &older), if wins { "doomed" } else { "open" });
        lab.do_systx(["abort", &id]).ok();
        lab.do_systx(["abort", &older]).ok();
    }
}

/// Also to take something back is as urgent as who asks for it.
#[test]
fn an_undo_is_as_urgent_as_who_asks_for_it() {
    let lab = lab!();
    for (reader, asks, wins) in [("-2", "-20", true), ("3", "5", false)] {
        lab.native("echo one > f").ok();
        lab.run(&[], "echo two > f").ok();
        let (older, its) = begin(&lab, &["--nice", reader]);
        sh(&lab, &its, "cat f").ok();
        let mut undo = lab.command("nice");
        undo.args(["-n", asks]).arg(lab.binary()).arg("undo");
        let done = finish(undo, Limits::default(), &lab);
        assert_eq!(done.code, if wins { 0 } else { CONFLICT }, "{reader} {asks}: {done}");
        assert_eq!(lab.read("f"), if wins { "one\n" } else { "two\n" });
        lab.do_systx(["abort", &older]).ok();
    }
}

/// Other isolation helps only who has read what it lost over, and not written there as well.
#[test]
fn snapshot_isolation_is_not_advised_where_the_file_was_written_as_well() {
    let lab = lab!();
    let advice = "--isolation=snapshot";
    for writes in [false, true] {
        lab.native("head -c 12288 /dev/zero > f").ok();
        let (older, its) = begin(&lab, &[]);
        let (id, path) = begin(&lab, &[]);
        sh(&lab, &path, "cat f >/dev/null").ok();
        if writes {
            sh(&lab, &path, "printf x | dd of=f bs=4096 seek=2 conv=notrunc status=none").ok();
        }
        sh(&lab, &its, "printf x | dd of=f bs=4096 seek=0 conv=notrunc status=none").ok();
        let lost = lab.do_systx(["commit", &id]).expect(CONFLICT);
        assert_eq!(lost.err.contains(advice), !writes, "{lost}");
        lab.do_systx(["abort", &id]).ok();
        lab.do_systx(["abort", &older]).ok();
    }
}

/// What the session passes through to put the view together, no program has read.
#[test]
fn the_way_to_a_mount_that_nobody_took_is_not_read() {
    let lab = lab!();
    lab.native("mkdir src; echo theirs > src/s").ok();
    let there = "mkdir -p x/y/m && mount --bind src x/y/m";
    let gone = "umount x/y/m && rm -r x";
    for uses in [false, true] {
        for keeps in [false, true] {
            lab.native(there).ok();
            let options: &[&str] = if keeps { &["--on-exit=keep"] } else { &["--retries", "0"] };
            let mut shell = lab.shell(options);
            shell.eval("echo mine > f");
            if uses {
                // The mount is there, on whatever way, and afterwards as well.
                shell.eval("[ $(cat x/y/m/s) = theirs ] && cd x/y/m/.. && [ $(cat m/s) = theirs ]");
                assert_eq!(shell.eval("pwd -P").trim(), lab.path("x/y").to_str().expect("text"));
            }
            // Not used by programs, it may also be given another name by another transaction.
            if !uses {
                lab.native("umount x/y/m").ok();
                lab.run(&["--retries", "0"], "mv x z; mv z x; chmod 700 x/y").ok();
                lab.native("mount --bind src x/y/m").ok();
            }
            lab.native(gone).ok();
            let lost = if uses { CONFLICT } else { 0 };
            if keeps {
                shell.exit(0);
                let id = lab.open_ids().pop().expect("it is kept");
                lab.do_systx(["commit", &id]).expect(lost);
                if uses {
                    lab.do_systx(["abort", &id]).ok();
                }
            } else {
                shell.begin_exit(0);
                let ended = shell.finished().expect(lost);
                assert_eq!(ended.err.contains("x/y") || ended.err.contains("/x"), uses, "{ended}");
            }
            lab.native("rm -f f").ok();
        }
    }
}

/// Where something is mounted, a program may come later: it then sees what is there by then.
#[test]
fn a_directory_on_the_way_to_a_mount_is_seen_as_it_is_when_a_program_comes_there() {
    let lab = lab!();
    lab.native("mkdir -p src x/m; mount --bind src x/m").ok();
    let mut shell = lab.shell(&["--retries", "0"]);
    shell.eval("true");
    lab.native("chmod 751 x; echo new > x/f; mkdir w; chmod 700 w").ok();
    assert_eq!(shell.eval("stat -c %a x; cat x/f").trim(), "751\nnew");
    shell.eval("echo mine >> x/f");
    shell.exit(0);
    assert_eq!(lab.read("x/f"), "new\nmine\n");
    // It is another one by now.
    let mut shell = lab.shell(&["--retries", "0"]);
    shell.eval("true");
    lab.native("umount x/m; mv x old; mkdir x; echo other > x/f").ok();
    assert_eq!(shell.eval("cat x/f; ls -d old x").trim(), "other\nold\nx");
    shell.exit(0);
}

/// A number that is used again names another object: identity is number and birth.
#[test]
fn who_has_removed_a_file_has_nothing_to_do_with_the_next_one_of_that_number() {
    let lab = lab!();
    lab.native("echo one > f").ok();
    lab.run(&["--on-exit=keep"], "rm f").ok();
    let kept = lab.open_ids().pop().expect("it is kept");
    let again = "n=$(stat -c %i f); rm f; for i in $(seq 300); do \
        echo x > g$i; [ $(stat -c %i g$i) = $n ] && mv g$i again && exit; done; exit 7";
    let made = lab.native(again);
    if made.code == 7 {
        eprintln!("SKIPPED: {} did not use the number again", lab.fs.name());
    } else {
        made.ok();
        lab.run(&["--retries", "0"], "cat again; echo more >> again; chmod 640 again").ok();
        assert_eq!(lab.read("again"), "x\nmore\n");
    }
    lab.do_systx(["commit", &kept]).expect(CONFLICT);
    lab.do_systx(["abort", &kept]).ok();
}

/// An older transaction, in which something is done before a younger one comes.
enum Older<'l> {
    Path(String, PathBuf),
    Run(Shell<'l>),
}

impl<'l> Older<'l> {
    fn begin(lab: &'l Lab, with_path: bool, options: &[&str]) -> Older<'l> {
        if with_path {
            let (id, path) = begin(lab, options);
            return Older::Path(id, path);
        }
        let retries = ["--retries", "0"];
        let options: Vec<&str> = options.iter().chain(&retries).copied().collect();
        Older::Run(lab.shell(&options))
    }

    /// In the directory `at`.
    fn does(&mut self, lab: &Lab, at: &str, script: &str) -> String {
        let script = format!("(cd {at} && {{ {script}; }})");
        match self {
            Older::Path(_, path) => sh(lab, path, &script).ok().out,
            Older::Run(shell) => shell.eval(&script),
        }
    }

    /// Commits, which ends with this code.
    fn commits(self, lab: &Lab, code: i32) {
        match self {
            Older::Path(id, _) => {
                lab.do_systx(["commit", &id]).expect(code);
                if code != 0 {
                    lab.do_systx(["abort", &id]).ok();
                }
            }
            Older::Run(mut shell) => {
                shell.begin_exit(0);
                shell.finished().expect(code);
            }
        }
    }
}

const BY_NAME: [&str; 4] = [
    "python3 -c 'import os; print(os.listdir(\"d\"))'",
    "ls d",
    "find d -type f -name '?'",
    "echo d/*",
];
/// The last two are two processes, of which one lists and another one looks.
const BY_LOOKING: [&str; 4] =
    ["ls -l d", "find d -name '?' -size -9000", "ls d; ls -l d", "stat -c %n $(echo d/*)"];
const CHANGES: [&str; 3] = ["echo more >> d/f", "chmod 640 d/h", "touch -d 2001-01-01 d/g"];

/// What is listed by name may be changed by a younger transaction and by programs outside; what was
/// looked at may not.
fn listed(lab: &Lab, place: &str, with_path: bool, options: &[&str]) {
    let at = lab.path(place);
    let at = at.to_str().expect("text");
    let there = |script: &str| format!("cd {at} && {{ {script}; }}");
    let younger = |script: &str, code: i32| {
        lab.run(&["--retries", "0"], &there(script)).expect(code);
    };
    for (how, looks) in
        BY_NAME.map(|how| (how, false)).into_iter().chain(BY_LOOKING.map(|how| (how, true)))
    {
        let case = format!("{place}, {with_path}, {options:?}, {how}");
        eprintln!("{case}");
        let files = "rm -rf d mine && mkdir d && echo one > d/f && echo one > d/g && \
            ln d/g d/h && ln -s f d/l";
        lab.native(&there(files)).ok();
        let mut older = Older::begin(lab, with_path, options);
        let seen = older.does(lab, place, how);
        assert!(["f", "g", "h"].iter().all(|name| seen.contains(name)), "{case}: {seen}");
        older.does(lab, place, "echo mine > mine");
        if looks {
            // It is older, and wins; against a program outside nobody does.
            CHANGES.iter().for_each(|change| younger(change, CONFLICT));
            lab.native(&there("echo outside >> d/f")).ok();
            older.commits(lab, CONFLICT);
            continue;
        }
        CHANGES.iter().for_each(|change| younger(change, 0));
        lab.native(&there("echo outside >> d/f; chmod 600 d/f")).ok();
        // It comes later, and sees what is there by then.
        let seen = older.does(lab, place, "stat -c '%a %h' d/f d/g; tail -n 1 d/f");
        assert_eq!(seen, "600 1\n640 2\noutside\n", "{case}");
        older.does(lab, place, "echo mine >> d/f");
        // Names do count.
        younger("echo new > d/new", CONFLICT);
        older.commits(lab, 0);
        let now = lab.read(format!("{place}/d/f"));
        assert_eq!(now, "one\nmore\noutside\nmine\n", "{case}");
        assert_eq!(lab.read(format!("{place}/mine")), "mine\n", "{case}");
    }
}

/// A listing reads names. What the files are like, only who asks for it has read.
#[test]
fn who_lists_below_a_path_has_read_names_and_nothing_of_the_files() {
    let lab = lab!();
    listed(&lab, ".", true, &[]);
    listed(&lab, ".", true, &["--transport=dev"]);
}

#[test]
fn who_lists_in_a_run_has_read_names_and_nothing_of_the_files() {
    let lab = lab!();
    listed(&lab, ".", false, &[]);
    listed(&lab, ".", false, &["--transport=dev"]);
}

#[test]
fn who_lists_in_a_guarded_directory_has_read_names_and_nothing_of_the_files() {
    let lab = lab!();
    for transport in ["auto", "dev"] {
        lab.native("mkdir guarded").ok();
        lab.do_systx(["mount", "guarded", "--transport", transport]).ok();
        listed(&lab, "guarded", false, &["--transport", transport]);
        lab.do_systx(["umount", "guarded"]).ok();
        lab.native("rm -r guarded").ok();
    }
}

/// A program that uses what it lists gets it with the next listing: then that is read.
#[test]
fn what_a_program_is_told_with_a_listing_is_read() {
    let lab = lab!();
    lab.native("mkdir a b; for n in $(seq 50); do echo x > a/$n; echo x > b/$n; done").ok();
    lab.write("uses.py", "import os\n[os.stat('a/' + n) for n in os.listdir('a')]\n");
    for looks in [false, true] {
        let (older, its) = begin(&lab, &[]);
        let walk = if looks { "ls -lR a b" } else { "python3 uses.py; ls b" };
        sh(&lab, &its, walk).ok();
        // Each is read, whether it came with the listing or was asked for, or none is.
        for n in 1..=50 {
            let change = format!("echo more >> b/{n}");
            if n % 10 < 2 {
                lab.run(&["--retries", "0"], &change).expect(if looks { CONFLICT } else { 0 });
            }
        }
        lab.do_systx(["commit", &older]).ok();
    }
}

/// What the file system has no place for is refused by the call, not by the commit.
#[test]
fn attributes_of_a_kind_that_the_file_system_does_not_have_are_refused_at_once() {
    kinds_of_attributes(&lab!());
}

#[test]
fn attributes_of_a_kind_that_a_volume_does_not_have_are_refused_at_once() {
    kinds_of_attributes(&lab!(Fs::Volume));
}

fn kinds_of_attributes(lab: &Lab) {
    let calls = "import os\ndef answer(call, *args):\n  try: return call(*args)\n  except OSError as e: return e.errno\n\
        open('new', 'w').close()\nfor f in 'f', 'new':\n  for k in 'com.apple.x', 'none.x', 'user.x':\n    \
        print(f, k, answer(os.getxattr, f, k), answer(os.setxattr, f, k, b'1'), answer(os.removexattr, f, k))";
    lab.native("echo one > f").ok();
    lab.write("calls.py", calls);
    let outside = lab.native("python3 calls.py; rm new").ok().out;
    assert_eq!(lab.run(&[], "python3 calls.py").ok().out, outside);
}

/// What a user may write and does not own: what is allowed there is done, what is not is refused by
/// the call, and nobody from outside has changed it.
#[test]
fn who_changes_a_file_of_others_that_all_may_write_is_not_told_of_outsiders() {
    let lab = lab!().as_user();
    let works = [
        "echo more >> FILE",
        "echo other > FILE",
        "printf x | dd of=FILE conv=notrunc status=none",
        ": > FILE",
        "truncate -s 9000 FILE",
        "touch FILE",
        "cp /etc/hostname FILE",
        "echo a >> FILE; echo b > FILE; echo c >> FILE",
        "ln FILE other; echo more >> other",
        "rm -f FILE; echo anew > FILE",
        "mv FILE other; echo more >> other",
        "mv -f new FILE",
        "chmod 600 FILE",
        "touch -d @1000 FILE",
        "touch -m FILE",
        "python3 -c 'import os; os.chown(\"FILE\", -1, -1)'",
        "setfattr -n user.x -v 1 FILE",
        "setfacl -m o:r FILE",
        "chown $(id -u) FILE; echo more >> FILE",
    ];
    let mut found = Vec::new();
    for work in works {
        for (mode, sticky) in [(0o666, false), (0o777, true), (0o606, false)] {
            for size in [4, 300_000] {
                let [native, inside] = ["native", "inside"].map(|name| {
                    let dir = lab.path(name);
                    let _ = std::fs::remove_dir_all(&dir);
                    std::fs::create_dir(&dir).expect("root may");
                    chmod(&dir, if sticky { 0o1777 } else { 0o777 });
                    std::fs::write(dir.join("FILE"), "x".repeat(size)).expect("root may");
                    chmod(&dir.join("FILE"), mode);
                    lab.write(format!("{name}/new"), "new");
                    dir
                });
                let script = |dir: &Path| format!("cd {} && {{ {work}; }} 2>&1", dir.display());
                let outside = lab.native(&script(&native));
                let done = lab.run(&["--retries", "0"], &script(&inside));
                let differ = Tree::capture(&native).differences(&Tree::capture(&inside));
                let said = outside.out.replace(native.to_str().expect("UTF-8"), "");
                let same = done.out.replace(inside.to_str().expect("UTF-8"), "") == said;
                if !same || done.code != outside.code || (done.code == 0 && !differ.is_empty()) {
                    let how = format!("{work}, {mode:o}, {size}, {differ:?}");
                    found.push(format!("{how}\n{outside}\n{done}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
