//! Calls in a view against the same calls natively on the same file system, one by one: what each
//! answers, and what is seen of it then.  The table of calls is `native.py`.

use rustix::fs::XattrFlags;
use systx_e2e::lab::find_program;
use systx_e2e::{Finished, Fs, Lab, Tree, skip};

/// Where they are made: each time in an empty directory with one old file.
const PLACES: [&str; 3] = ["native", "run", "guarded"];

fn prepare(lab: &Lab) {
    lab.write("native.py", include_str!("native.py"));
    for place in PLACES {
        lab.write(format!("{place}/old"), "old\n");
        // Of which the calls change nothing but by stores.
        let stored = lab.write(format!("{place}/stored later"), "x".repeat(8192));
        if lab.uid() == 0 {
            let caps = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
            let set =
                rustix::fs::setxattr(&stored, "security.capability", caps, XattrFlags::empty());
            set.expect("root may give capabilities");
        }
    }
}

/// What an ordinary user's run answers otherwise: its namespace has no other ids, which chown(2)
/// looks at before it looks for rights.
fn but_for_chown(said: &str) -> String {
    let other = |line: &str| line.contains("chown") && line.contains("EINVAL");
    let line = |l: &str| if other(l) { l.replace("EINVAL", "EPERM") } else { l.to_owned() };
    said.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Every line that is not as natively.
fn differences(native: &Finished, other: &Finished, how: &str) -> Vec<String> {
    let (native, other): (Vec<_>, Vec<_>) =
        (native.out.lines().collect(), other.out.lines().collect());
    let mut found: Vec<String> = (native.iter().zip(&other))
        .filter(|(native, other)| native != other)
        .map(|(native, other)| format!("{how}: {other}\n  natively: {native}"))
        .collect();
    if native.len() != other.len() {
        found.push(format!("{how}: {} lines, natively {}", other.len(), native.len()));
    }
    found
}

fn on(fs: Fs) {
    if find_program("python3").is_none() {
        skip!("no python3 to make the calls");
    }
    for user in [false, true] {
        let lab = match Lab::on(fs) {
            Ok(lab) if user => lab.as_user(),
            Ok(lab) => lab,
            Err(why) => skip!("{}: {why}", fs.name()),
        };
        prepare(&lab);
        let native = lab.native("cd native && python3 ../native.py").ok();
        let mut run = lab.run(&[], "cd run && python3 ../native.py").ok();
        if user {
            run.out = but_for_chown(&run.out);
        }
        let after = Tree::capture(lab.path("native"));
        after.assert_same(&Tree::capture(lab.path("run")), "native against committed");
        let whose = if user { "a user" } else { "root" };
        let mut found = differences(&native, &run, &format!("{whose} in a run"));
        if !user {
            lab.do_systx(["mount", "guarded"]).ok();
            let guarded = lab.native("cd guarded && python3 ../native.py").ok();
            found.extend(differences(&native, &guarded, "in a guarded directory"));
            lab.do_systx(["umount", "guarded"]).ok();
            after.assert_same(&Tree::capture(lab.path("guarded")), "native against guarded");
        }
        assert!(found.is_empty(), "on {}:\n{}", fs.name(), found.join("\n"));
    }
}

#[test]
fn calls_answer_as_natively_on_ext4() {
    on(Fs::Ext4);
}

#[test]
fn calls_answer_as_natively_on_xfs() {
    on(Fs::Xfs);
}

#[test]
fn calls_answer_as_natively_on_btrfs() {
    on(Fs::Btrfs);
}

#[test]
fn calls_answer_as_natively_on_tmpfs() {
    on(Fs::Tmpfs);
}
