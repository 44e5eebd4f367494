//! Test suites of others: pjdfstest and fsx (Rust packages), stress-ng with --verify.  Each runs on the
//! host's file system first and then inside a run; what passes there must pass here.

use systx_e2e::lab::find_program;
use systx_e2e::others::{assert_pjdfstest_as_on_the_host, crate_program, pjdfstest};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Lab, lab, skip};

fn long() -> bool {
    std::env::var_os("SYSTX_LONG").is_some()
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

#[test]
fn pjdfstest_inside_is_as_on_the_host() {
    let lab = lab!();
    let script = match pjdfstest(&lab) {
        Ok(script) => script,
        Err(why) => skip!("pjdfstest cannot be had: {why}"),
    };
    let host = outside(&lab, 120, &script);
    lab.native("rm -rf p").ok();
    let ours = inside(&lab, 240, &script);
    assert_pjdfstest_as_on_the_host(&host, &ours);
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
