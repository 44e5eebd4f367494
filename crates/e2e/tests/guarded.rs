//! The plain view of a guarded directory under the test suites of others: what passes on the host's
//! file system passes on a directory that is mounted through the view.  Served by an example program
//! of the fuse crate; `systx` itself has no part in it yet.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use systx_e2e::lab::{find_program, tool};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Lab, Tree, cache, lab, skip};

/// The program that guards a directory until its standard input ends.
fn plain_mount() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // .../target/PROFILE/deps/suite-0123
        let exe = std::env::current_exe().expect("own path");
        let profile = exe.ancestors().nth(2).expect("target/PROFILE/deps").to_owned();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "-q", "-p", "systx-fuse", "--example", "plain-mount"]);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        cargo.arg("--target-dir").arg(profile.parent().expect("target"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        tool(&mut cargo).expect("plain-mount must build");
        profile.join("examples/plain-mount")
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

/// A published Rust program, at a fixed version.
fn crate_program(name: &str, version: &str) -> Result<PathBuf, String> {
    if let Some(found) = find_program(name) {
        return Ok(found);
    }
    let dir = cache::get(&format!("{name}-{version}"), |dir| {
        cache::shell(
            dir,
            &format!(
                "env -u CARGO_TARGET_DIR cargo install -q --debug --locked --root . --target-dir build --version {version} {name} && rm -rf build"
            ),
        )
    })?;
    Ok(dir.join("bin").join(name))
}

const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
utimensat = {}
utime_now = {}
rename_ctime = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"#;

/// What passes on the host and cannot here, with the reason.
const KNOWN: &[(&str, &str)] = &[(
    "link::link_count_max",
    "asks pathconf for the most links, and libc answers by file system type: 127 for one it does not know",
)];

/// Outcome by test name.
fn pjdfstest_results(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter(|line| !line.starts_with(char::is_whitespace) && line.contains("::"))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        })
        .collect()
}

#[test]
fn pjdfstest_in_a_guarded_directory_is_as_on_the_host() {
    let lab = lab!();
    let program = match crate_program("pjdfstest", "0.2.2") {
        Ok(program) => program,
        Err(why) => skip!("pjdfstest cannot be had: {why}"),
    };
    let config = lab.outside().join("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST).unwrap();
    let script =
        format!("mkdir p; chmod 777 p; {} -c {} -p p", program.display(), config.display());
    let guarded = Guarded::new(&lab, "guarded");
    let host = shell(&lab, &lab.root(), 120, &script);
    let ours = shell(&lab, &guarded.dir, 240, &script);
    let (host_results, results) = (pjdfstest_results(&host.out), pjdfstest_results(&ours.out));
    assert!(host_results.len() > 300, "{host}");
    let worse: Vec<_> = host_results
        .iter()
        .filter(|(_, outcome)| *outcome == "ok")
        .filter(|(name, _)| results.get(*name).is_none_or(|o| o != "ok"))
        .map(|(name, _)| name.as_str())
        .filter(|name| KNOWN.iter().all(|(known, _)| known != name))
        .collect();
    let passed = results.values().filter(|o| *o == "ok").count();
    eprintln!("pjdfstest: {} tests, {passed} passed, {} worse", results.len(), worse.len());
    assert!(worse.is_empty(), "pass on the host, not here: {worse:#?}\n{ours}");
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
