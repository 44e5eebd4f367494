//! Moments of a log-structured volume that is mounted (`--read-only`): whoever reads one sees the
//! volume as it was when it began, and nobody is refused anything for that.  What is the same in a
//! guarded directory is asked by the suite `snapshots`, on a volume with `SYSTX_E2E_FS=volume`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use systx_e2e::open::Open;
use systx_e2e::run::{Limits, Shell, eventually, finish};
use systx_e2e::volume::Mounted;
use systx_e2e::{CONFLICT, FAILED, Finished, Tree, lab};

fn systx(v: &Mounted<'_>, args: &[&str]) -> Finished {
    let mut command = v.lab.systx(args);
    command.current_dir(&v.dir);
    finish(command, Limits::seconds(100), v.lab)
}

fn run(v: &Mounted<'_>, script: &str) -> Finished {
    systx(v, &["run", "--", "sh", "-c", script])
}

/// Files that all say the same number, and a directory that is named after it.
fn round(n: u32) -> String {
    format!(
        "printf {n:08} 1<>in-place; echo {n} > rewritten; echo {n} > new; mv new replaced; \
         rm -rf at-*; mkdir -p at-{n}/below; echo {n} > at-{n}/below/f; ln -f rewritten linked; \
         chmod $((600 + {n} % 8)) in-place; rm -f sparse; truncate -s {n}M sparse"
    )
}

/// Overwrites a file again and again: as much as the volume has, and more.
fn churn(v: &Mounted<'_>, megabytes: u32) {
    let script = format!(
        "for i in $(seq {}); do head -c 4000000 /dev/urandom > churn; sync churn; done",
        megabytes / 4
    );
    v.sh(&script).ok();
}

#[test]
fn a_reader_sees_one_moment_whatever_is_done_beside_it() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh(&format!("head -c 3000000 /dev/urandom > big; {}", round(1))).ok();
    let first = Tree::capture(&v.dir);
    let early = Open::begin(&lab, "v", &["--read-only"]);
    // One is read at once, the other one when everything has been changed.
    let late = Open::begin(&lab, "v", &["--read-only"]);
    first.assert_same(&Tree::capture(&early.path), "at its begin");
    let big = File::open(early.path.join("big")).expect("it is there");
    let check = |what: &str| first.assert_same(&Tree::capture(&early.path), what);
    v.sh(&round(2)).ok();
    check("after plain writes");
    run(&v, &round(3)).ok();
    check("after a commit");
    let second = Tree::capture(&v.dir);
    let third = Open::begin(&lab, "v", &["--read-only"]);
    systx(&v, &["undo"]).ok();
    check("after an undo");
    run(&v, "rm -r at-* in-place big; : > rewritten").ok();
    check("after a removal");
    systx(&v, &["gc", "--keep", "0"]).ok();
    // The log comes round more than once, and the cleaner with it.
    churn(&v, 200);
    check("after the cleaner");
    first.assert_same(&Tree::capture(&late.path), "read at the end");
    second.assert_same(&Tree::capture(&third.path), "a later one");
    let mut bytes = vec![0; 3_000_000];
    big.read_exact_at(&mut bytes, 0).expect("by a descriptor");
    // What is done in one is nobody's business.
    early.sh("echo mine > mine; rm -rf at-*").ok();
    for (n, open) in [early, third, late].iter().enumerate() {
        open.systx(if n == 1 { "abort" } else { "commit" }).ok();
    }
    assert!(!v.path("mine").exists());
    drop(big);
    v.again();
}

#[test]
fn a_run_that_reads_is_of_one_moment_beside_those_that_write() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("for f in a b c d; do echo 0 > $f; done").ok();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 1..=25 {
                run(&v, &format!("for f in a b c d; do echo {n} > $f; done")).ok();
            }
        });
        let mut last = 0;
        while !writer.is_finished() {
            let script = "cat a; cat b; sleep 0.1; cat c; cat d";
            let seen = systx(&v, &["run", "--read-only", "--", "sh", "-c", script]).ok().out;
            let all: Vec<u32> = seen.lines().map(|l| l.parse().expect("a number")).collect();
            assert!(all.len() == 4 && all.iter().all(|n| *n == all[0]), "{all:?}");
            assert!(all[0] >= last, "{last}, and then {all:?}");
            last = all[0];
        }
        writer.join().expect("nothing was refused");
    });
    let outside = ["run", "--read-only", "-C", "/", "--", "cat"];
    let file = v.path("a").display().to_string();
    let seen = systx(&v, &[&outside[..], &[file.as_str()]].concat());
    assert_eq!(seen.ok().out, "25\n", "from elsewhere");
}

#[test]
fn a_full_volume_gives_moments_up_and_goes_on() {
    let lab = lab!();
    let v = Mounted::sized(&lab, "32M");
    v.sh("head -c 12000000 /dev/urandom > f; echo small > g; sync f").ok();
    let open = Open::begin(&lab, "v", &["--read-only"]);
    assert_eq!(open.sh("cat g").ok().out, "small\n");
    let mut command = lab.systx(["run", "--read-only", "--", "sh"]);
    command.current_dir(&v.dir);
    let mut reader = Shell::start(&lab, command);
    assert_eq!(reader.eval("cat g"), "small\n");
    // The file and its past do not fit.
    v.sh("rm f; head -c 12000000 /dev/urandom > f; sync f; echo changed > g").ok();
    for _ in 0..4 {
        v.sh("head -c 12000000 /dev/urandom 1<>f; sync f").ok();
    }
    eventually("given up", || {
        v.sh("head -c 1000000 /dev/urandom 1<>f; sync f").ok();
        open.sh("cat f > /dev/null").code != 0
    });
    let refused = open.sh("cat f | wc -c");
    assert!(refused.err.contains("canceled"), "{refused}");
    let said = open.systx("commit").expect(1);
    assert!(said.err.contains("given up"), "{said}");
    open.systx("abort").ok();
    let (said, code) = reader.try_eval("cat f | wc -c").expect("it lives");
    assert!(said.contains("canceled"), "{code}: {said}");
    let said = reader.exit(0).expect(FAILED);
    assert!(said.err.contains("given up"), "{said}");
    // Full to the brim: what is removed makes room, while one is open, too.
    let again = Open::begin(&lab, "v", &["--read-only"]);
    assert_eq!(again.sh("cat g").ok().out, "changed\n");
    let full = v.sh("cat /dev/zero > filler");
    assert!(full.code != 0 && full.err.contains("No space left"), "{full}");
    v.sh("rm f filler; sync g").ok();
    v.sh("head -c 12000000 /dev/urandom > f; sync f").ok();
    again.systx("abort").ok();
    v.again();
    assert_eq!(v.sh("cat g; stat -c %s f").ok().out, "changed\n12000000\n");
}

#[test]
fn a_volume_is_not_unmounted_under_a_moment_but_by_force() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo old > f; sync f").ok();
    let open = Open::begin(&lab, "v", &["--read-only"]);
    let file = File::open(open.path.join("f")).expect("it is there");
    v.sh("echo new > f").ok();
    let refused = lab.do_systx(["umount", "v"]).expect(CONFLICT);
    assert!(refused.err.contains(&open.id), "{refused}");
    lab.do_systx(["umount", "--force", "v"]).ok();
    lab.do_systx(["fsck", "image"]).ok();
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(fs::read_to_string(v.path("f")).expect("it is there"), "new\n");
    assert!(fs::read_to_string(open.path.join("f")).is_err(), "it went with the mount");
    drop(file);
    let next = Open::begin(&lab, "v", &["--read-only"]);
    v.sh("rm f").ok();
    assert_eq!(next.sh("cat f").ok().out, "new\n");
    next.systx("abort").ok();
}

#[test]
fn a_daemon_that_is_killed_leaves_nothing_of_a_moment() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    for n in 1..=3 {
        v.sh(&format!("{}; sync in-place", round(n))).ok();
        let open = Open::begin(&lab, "v", &["--read-only"]);
        let seen = Tree::capture(&open.path);
        run(&v, &round(10 + n)).ok();
        seen.assert_same(&Tree::capture(&open.path), "before the kill");
        let left = Tree::capture(&v.dir);
        lab.kill_and_come_back();
        assert!(fs::read(open.path.join("in-place")).is_err(), "it went with its daemon");
        left.assert_same(&Tree::capture(&v.dir), "what was committed");
        v.again();
        left.assert_same(&Tree::capture(&v.dir), "what was committed, mounted again");
    }
}
