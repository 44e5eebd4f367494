//! The plain view of a guarded directory under the test suites of others: what passes on the host's
//! file system passes on a directory that is mounted through the view.  Served by an example program
//! of the fuse crate; `systx` itself has no part in it yet.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use systx_e2e::lab::built;
use systx_e2e::others::{assert_pjdfstest_as_on_the_host, crate_program, pjdfstest};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Lab, Tree, lab, skip};

/// The program that guards a directory until its standard input ends.
fn plain_mount() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        built(&["-p", "systx-fuse", "--example", "plain-mount"], "examples/plain-mount")
    })
}

/// A guarded directory, until it is dropped.
struct Guarded {
    dir: PathBuf,
    server: Child,
}

impl Guarded {
    fn new(lab: &Lab, name: &str) -> Guarded {
        let dir = lab.path(name);
        std::fs::create_dir_all(&dir).expect("the lab is writable");
        let mut server = lab.command(plain_mount());
        server.arg(&dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = server.spawn().expect("plain-mount starts");
        let mut line = String::new();
        let out = server.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("it says that it is ready");
        assert_eq!(line, "ready\n");
        Guarded { dir, server }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let ended = self.server.wait();
        if !ended.is_ok_and(|status| status.success()) {
            // It did not get to it: nothing may stay mounted.
            let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
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
    let guarded = Guarded::new(&lab, "guarded");
    let host = shell(&lab, &lab.root(), 120, &script);
    let ours = shell(&lab, &guarded.dir, 240, &script);
    assert_pjdfstest_as_on_the_host(&host, &ours);
}

#[test]
fn fsx_in_a_guarded_directory() {
    let lab = lab!();
    let program = match crate_program("fsx", "0.3.2") {
        Ok(program) => program,
        Err(why) => skip!("fsx cannot be had: {why}"),
    };
    let guarded = Guarded::new(&lab, "guarded");
    for seed in 1..=4 {
        let script = format!("{} -q -N 3000 -S {seed} file && cksum file", program.display());
        let host = shell(&lab, &lab.root(), 200, &script).ok();
        let ours = shell(&lab, &guarded.dir, 300, &script).ok();
        assert_eq!(host.out, ours.out, "seed {seed}");
        shell(&lab, &lab.root(), 20, "rm -f file* guarded/file*").ok();
    }
}

#[test]
fn daily_work_in_a_guarded_directory_leaves_what_it_leaves_natively() {
    let lab = lab!();
    let script = "set -e; umask 022; mkdir -p a/b; for i in $(seq 200); do echo $i > a/f$i; done; \
         cp -a a copy; tar cf all.tar --sort=name a; mkdir x; tar xf all.tar -C x; ln copy/f1 hard; \
         find copy -name '*7' -delete; sed -i s/1/one/ x/a/f1*; mv x/a/b x/c; rm -r a; \
         truncate -s 5G sparse; ln -s copy/f2 link; cat link";
    let guarded = Guarded::new(&lab, "guarded");
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
