//! A guarded directory under the test suites of others: what passes on the host's file system
//! passes on a directory that is mounted by `systx mount`. Its life is the business of the suite
//! `mount`.

use std::path::{Path, PathBuf};
use systx_e2e::others::{assert_pjdfstest_as_on_the_host, crate_program, pjdfstest};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Lab, Tree, lab, skip};

/// How directories are mounted: opens are told to the daemon, or not.
const WAYS: [&[&str]; 2] = [&[], &["--fast-open"]];

/// A guarded directory, until it is dropped.
struct Guarded<'a> {
    lab: &'a Lab,
    dir: PathBuf,
}

impl<'a> Guarded<'a> {
    fn new(lab: &'a Lab, name: &str, way: &[&str]) -> Guarded<'a> {
        let dir = lab.path(name);
        std::fs::create_dir_all(&dir).expect("the lab is writable");
        lab.do_systx(["mount", name].iter().chain(way)).ok();
        Guarded { lab, dir }
    }
}

impl Drop for Guarded<'_> {
    fn drop(&mut self) {
        // A failed test may have left processes there; the lab ends them.
        if !std::thread::panicking() {
            self.lab.do_systx([Path::new("umount"), &self.dir]).ok();
        }
    }
}

fn shell(lab: &Lab, dir: &Path, seconds: u64, script: &str) -> Finished {
    let mut command = lab.command("sh");
    command.args(["-c", script]).current_dir(dir);
    finish(command, Limits::seconds(seconds), lab)
}

#[test]
fn pjdfstest_in_a_guarded_directory_is_as_on_the_host() {
    let lab = lab!();
    let script = match pjdfstest(&lab) {
        Ok(script) => script,
        Err(why) => skip!("pjdfstest cannot be had: {why}"),
    };
    let host = shell(&lab, &lab.root(), 120, &script);
    for (n, way) in WAYS.iter().enumerate() {
        let guarded = Guarded::new(&lab, &format!("guarded-{n}"), way);
        let ours = shell(&lab, &guarded.dir, 240, &script);
        assert_pjdfstest_as_on_the_host(&host, &ours);
    }
}

#[test]
fn fsx_in_a_guarded_directory() {
    let lab = lab!();
    let program = match crate_program("fsx", "0.3.2") {
        Ok(program) => program,
        Err(why) => skip!("fsx cannot be had: {why}"),
    };
    for seed in 1..=4 {
        let guarded = Guarded::new(&lab, "guarded", WAYS[seed % 2]);
        let script = format!("{} -q -N 3000 -S {seed} file && cksum file", program.display());
        let host = shell(&lab, &lab.root(), 200, &script).ok();
        let ours = shell(&lab, &guarded.dir, 300, &script).ok();
        assert_eq!(host.out, ours.out, "seed {seed}");
        shell(&lab, &lab.root(), 20, "rm -f file* guarded/file*").ok();
    }
}

#[test]
fn daily_work_in_a_guarded_directory_leaves_what_it_leaves_natively() {
    WAYS.iter().for_each(|way| daily_work(way));
}

fn daily_work(way: &[&str]) {
    let lab = lab!();
    let script = "set -e; umask 022; mkdir -p a/b; for i in $(seq 200); do echo $i > a/f$i; done; \
         cp -a a copy; tar cf all.tar --sort=name a; mkdir x; tar xf all.tar -C x; ln copy/f1 hard; \
         find copy -name '*7' -delete; sed -i s/1/one/ x/a/f1*; mv x/a/b x/c; rm -r a; \
         truncate -s 5G sparse; ln -s copy/f2 link; cat link";
    let guarded = Guarded::new(&lab, "guarded", way);
    let native = lab.path("native");
    std::fs::create_dir(&native).unwrap();
    let want = shell(&lab, &native, 60, script).ok();
    let got = shell(&lab, &guarded.dir, 120, script).ok();
    assert_eq!(want.out, got.out);
    // The archive holds times.
    shell(&lab, &lab.root(), 20, "rm native/all.tar guarded/all.tar native/sparse guarded/sparse")
        .ok();
    let tree = Tree::capture(&native);
    tree.assert_same(&Tree::capture(&guarded.dir), "native against guarded");
    let dir = guarded.dir.clone();
    drop(guarded);
    tree.assert_same(&Tree::capture(&dir), "native against what lies below");
}

/// What an ordinary user may by a supplementary group, and what becomes of set-id bits: by what it
/// is told, and by what lies below. One thing is not as on the host (decision 0003, "Not built"),
/// and is not asked for.
#[test]
fn groups_and_set_id_bits_of_ordinary_users_are_as_on_the_host() {
    if !Path::new("/usr/bin/setpriv").exists() {
        skip!("no setpriv (package util-linux)");
    }
    let lab = lab!();
    let script = r#"umask 022
        user() { setpriv --reuid=12031 --regid=12031 --groups=12031,12500 -- sh -c "$1" 2>&1; }
        look() { stat -c '%n %a %u:%g' "$@"; }
        for g in 12500 12999; do
            echo text > r$g; mkdir d$g s$g
            chown 0:$g r$g d$g s$g; chmod 640 r$g; chmod 770 d$g; chmod 2770 s$g
            user "cat r$g; echo x > d$g/f; mkdir d$g/k; echo x > s$g/f; mkdir s$g/k; ln -s x s$g/l; mkfifo s$g/p"
            look d$g/* s$g/*
        done
        mkdir o; chown 12031:12031 o
        user 'echo > o/a; chgrp 12500 o/a; chgrp 12999 o/a; stat -c %a:%g o/a; chmod 2755 o/a; stat -c %a:%g o/a'
        for mode in 4755 6775 2755 2644 4644; do
            for act in 'echo more >> w' 'echo > w' 'truncate -s 3 w' 'fallocate -l 9000 w' 'fallocate -p -o 0 -l 4096 w' 'chmod u+r w' 'touch w'; do
                for owner in 12031:12031 12031:12999; do
                    echo first > w; chown $owner w; chmod $mode w
                    user "stat -c %a w; $act; stat -c %a w" | tr '\n' ' '
                    echo "$mode $owner $act"
                done
            done
            # Somebody else's, who lets everybody write.
            echo first > w; chown 0:0 w; chmod $mode w; chmod o+w w
            user 'stat -c %a w; echo more >> w; stat -c %a w'
            mv w left$mode
        done"#;
    let native = lab.path("native");
    std::fs::create_dir(&native).unwrap();
    let want = shell(&lab, &native, 60, script).ok();
    assert!(want.out.contains("6755") || want.out.contains("6775"), "{want}");
    for (n, way) in WAYS.iter().enumerate() {
        let guarded = Guarded::new(&lab, &format!("guarded-{n}"), way);
        let got = shell(&lab, &guarded.dir, 60, script).ok();
        assert_eq!(want.out, got.out, "{way:?}");
        let dir = guarded.dir.clone();
        drop(guarded);
        Tree::capture(&native).assert_same(&Tree::capture(&dir), "native against what lies below");
    }
}
