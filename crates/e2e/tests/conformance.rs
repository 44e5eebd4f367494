//! Test suites of others: pjdfstest and fsx (Rust packages). Each runs on the host's file system
//! first and then inside a run; what passes there must pass here. More of others: the suite
//! `suites`.

use systx_e2e::others::{assert_pjdfstest_as_on_the_host, crate_program, pjdfstest};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Lab, lab, long, skip};

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
