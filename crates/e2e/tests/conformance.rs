//! Test suites of others: pjdfstest and fsx (Rust packages), stress-ng with --verify.  Each runs on the
//! host's file system first and then inside a run; what passes there must pass here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use systx_e2e::lab::find_program;
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Lab, cache, lab, skip};

fn long() -> bool {
    std::env::var_os("SYSTX_LONG").is_some()
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

fn inside(lab: &Lab, seconds: u64, script: &str) -> Finished {
    let mut command = lab.systx(["run", "--on-exit=abort", "--", "sh", "-c"]);
    command.arg(script);
    finish(command, Limits::seconds(seconds), lab)
}

fn outside(lab: &Lab, seconds: u64, script: &str) -> Finished {
    let mut command = lab.command("sh");
    command.args(["-c", script]);
    finish(command, Limits::seconds(seconds), lab)
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

/// What passes on the host and cannot in a view, with the reason.
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
fn pjdfstest_inside_is_as_on_the_host() {
    let lab = lab!();
    let program = match crate_program("pjdfstest", "0.2.2") {
        Ok(program) => program,
        Err(why) => skip!("pjdfstest cannot be had: {why}"),
    };
    let config = lab.outside().join("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST).unwrap();
    let script =
        format!("mkdir p; chmod 777 p; {} -c {} -p p", program.display(), config.display());
    let host = outside(&lab, 120, &script);
    lab.native("rm -rf p").ok();
    let ours = inside(&lab, 240, &script);
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
    eprintln!(
        "pjdfstest: {} tests, {passed} passed, {} worse than the host",
        results.len(),
        worse.len()
    );
    assert!(worse.is_empty(), "pass on the host, not inside: {worse:#?}\n{ours}");
}

#[test]
fn fsx_inside() {
    let lab = lab!();
    let program = match crate_program("fsx", "0.3.2") {
        Ok(program) => program,
        Err(why) => skip!("fsx cannot be had: {why}"),
    };
    let (seeds, ops) = if long() { (20, 20_000) } else { (4, 3000) };
    for seed in 1..=seeds {
        // The crate exercises reads, writes, maps, truncation, fallocate, copy_file_range and more,
        // and compares with its own idea of the file after each.
        let script = format!("{} -q -N {ops} -S {seed} file && cksum file", program.display());
        let host = outside(&lab, 200, &script).ok();
        lab.native("rm -f file*").ok();
        let ours = inside(&lab, 300, &script);
        assert_eq!(ours.code, 0, "seed {seed}\n{ours}");
        assert_eq!(host.out, ours.out, "seed {seed}");
    }
    // And what is committed is what the program left.
    let script = format!("{} -q -N 1000 -S 99 kept && cksum kept", program.display());
    let done = lab.run(&[], &script).ok();
    let native = lab.native("cksum kept").ok();
    assert_eq!(done.out.lines().last(), native.out.lines().last());
}

#[test]
fn stress_ng_with_verify_inside() {
    let lab = lab!();
    if find_program("stress-ng").is_none() {
        skip!("no stress-ng");
    }
    let seconds = if long() { 20 } else { 2 };
    // File system stressors that need neither other mounts nor /proc.
    let stressors = [
        "access",
        "chdir",
        "chmod",
        "chown",
        "copy-file",
        "dentry",
        "dir",
        "dirdeep",
        "dirmany",
        "dup",
        "fallocate",
        "fiemap",
        "filename",
        "flock",
        "fpunch",
        "fstat",
        "hdd",
        "iomix",
        "lease",
        "link",
        "locka",
        "lockf",
        "lockofd",
        "metamix",
        "mknod",
        "mmapfork",
        "open",
        "readahead",
        "rename",
        "revio",
        "seek",
        "sendfile",
        "symlink",
        "sync-file",
        "touch",
        "unlink",
        "utime",
        "verity",
        "xattr",
    ];
    let mut worse = Vec::new();
    for stressor in stressors {
        let script = format!(
            "mkdir s; stress-ng --{stressor} 1 --timeout {seconds} --verify --temp-path s \
             --hdd-bytes 4M --iomix-bytes 4M --dirdeep-inodes 500 --dirmany-filsize 0 -q 2>&1; \
             code=$?; rm -rf s; exit $code"
        );
        let host = outside(&lab, 60, &script);
        if host.code != 0 {
            eprintln!("{stressor}: not passed on the host either ({})", host.code);
            continue;
        }
        let ours = inside(&lab, 120, &script);
        if ours.code != 0 {
            worse.push(format!("{stressor}: {}: {}", ours.code, ours.out.trim()));
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
