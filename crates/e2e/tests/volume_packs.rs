//! Options of `mkfs`, mounted: of a volume that compresses what is cold programs, runs and undo
//! notice only the space, and of the size of its pages and segments nothing.

use std::time::Instant;
use systx_e2e::lab;
use systx_e2e::lab::systx_binary;
use systx_e2e::run::{HANG, Limits, finish};
use systx_e2e::volume::{Mounted, shell};

/// Makes 40 files of what becomes smaller, 200 kB each.
const FILL: &str = "mkdir -p cold; for n in $(seq 40); do \
    yes \"line of $n\" | head -c 200000 > cold/$n; done; sync cold/1; cat cold/* | sha256sum";
/// Blocks of 4096 bytes that these take.
const FULL: u64 = 40 * 49;
const SUM: &str = "cat cold/* | sha256sum";

/// Blocks of 4096 bytes in use.
fn used(v: &Mounted<'_>) -> u64 {
    let said = v.sh("stat -f -c '%b %f' .").ok().out;
    let numbers: Vec<u64> = said.split_whitespace().map(|n| n.parse().unwrap()).collect();
    numbers[0] - numbers[1]
}

/// Something is written again and again, so that there are checkpoints, with pauses, which are the
/// times in which the cleaner compresses, until so little is in use.
fn until_used_is_below(v: &Mounted<'_>, blocks: u64) {
    let begun = Instant::now();
    while used(v) >= blocks {
        let now = used(v);
        assert!(begun.elapsed() < HANG, "{now} blocks are in use, not {blocks}");
        v.sh("head -c 3000000 /dev/urandom > hot; sync hot; rm hot; sync .; sleep 0.3").ok();
    }
}

#[test]
fn programs_runs_and_undo_beside_the_cleaner_that_compresses() {
    let lab = lab!();
    let v = Mounted::packing(&lab, "48M");
    let sum = v.sh(FILL).ok().out;
    until_used_is_below(&v, FULL / 4);
    assert_eq!(v.sh(SUM).ok().out, sum);
    // A run changes some of it while a program changes some other, and undo brings it back.
    let change = "set -e; sed -i s/line/word/ cold/7; echo more >> cold/8; rm cold/9; \
        dd if=/dev/zero of=cold/10 bs=4096 count=3 seek=9 conv=notrunc 2>/dev/null";
    let within = |args: &[&str]| {
        let mut command = lab.systx(args);
        command.current_dir(&v.dir);
        command
    };
    std::thread::scope(|s| {
        let run = within(&["run", "--", "sh", "-c", change]);
        let run = s.spawn(|| finish(run, Limits::default(), &lab));
        v.sh("printf changed | dd of=cold/20 bs=1 seek=5000 conv=notrunc 2>/dev/null").ok();
        run.join().unwrap().ok();
    });
    assert_ne!(v.sh(SUM).ok().out, sum);
    finish(within(&["undo"]), Limits::default(), &lab).ok();
    v.sh("tail -c +5001 cold/20 | head -c 7 | grep -q changed").ok();
    let restored = "yes 'line of 20' | head -c 200000 > cold/20";
    v.sh(restored).ok();
    assert_eq!(v.sh(SUM).ok().out, sum);
    // What was changed becomes cold again; a new mount has the same, and the check finds nothing.
    v.again();
    assert_eq!(v.sh(SUM).ok().out, sum);
    until_used_is_below(&v, FULL / 3);
    assert_eq!(v.sh(SUM).ok().out, sum);
    v.umount();
    lab.do_systx(["fsck", "image"]).ok();
    assert!(lab.do_systx(["df", "image", "--json"]).ok().out.contains("\"compression\":\"zstd\""));
    v.mount();
}

#[test]
fn a_volume_that_is_not_mounted_is_compressed_by_the_command() {
    let lab = lab!();
    let v = Mounted::sized(&lab, "48M");
    let sum = v.sh(FILL).ok().out;
    v.umount();
    lab.do_systx(["snapshot", "image", "all"]).ok();
    // What a stream brings is as it was written; nobody has been idle there yet.
    lab.do_systx(["mkfs", "copy", "--size", "48M", "--compression", "zstd"]).ok();
    let systx = systx_binary().display();
    shell(&lab, &lab.root(), 60, &format!("{systx} send image | {systx} receive copy")).ok();
    let used = || {
        let said = lab.do_systx(["df", "copy", "--json"]).ok().out;
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["space"]["used"].as_u64().unwrap_or_else(|| panic!("{said}"))
    };
    let before = used();
    lab.do_systx(["snapshot", "copy", "all", "--delete"]).ok();
    let said = lab.do_systx(["clean", "copy", "--policy", "idle"]).ok().err;
    assert!(said.contains("became"), "{said}");
    assert!(used() * 3 < before, "{} of {before}", used());
    lab.do_systx(["fsck", "copy"]).ok();
    lab.do_systx(["mount", "copy", "v"]).ok();
    assert_eq!(v.sh(SUM).ok().out, sum);
}

#[test]
fn segments_and_pages_are_as_large_as_was_said() {
    let lab = lab!();
    let said = lab.do_systx(["mkfs", "image", "--size", "64M", "--segment", "512K"]).ok().err;
    assert!(said.contains("segments of 524.3 kB"), "{said}");
    for (option, size, why) in [
        ("--segment", "100K", "no size for a segment"),
        ("--segment", "64M", "24 segments are needed"),
        ("--page", "12K", "no size for a page"),
        ("--page", "128K", "no size for a page"),
    ] {
        let refused = lab.do_systx(["mkfs", "image", "--size", "64M", option, size, "--force"]);
        assert_eq!(refused.code, 1, "{}", refused.err);
        assert!(refused.err.contains(why), "{}", refused.err);
    }
    lab.do_systx(["fsck", "image"]).ok();
}

/// Programs and a run overwrite parts of the same pages at once; undo takes the run back and leaves
/// the programs' part.
#[test]
fn programs_runs_and_undo_on_a_volume_of_larger_pages() {
    let lab = lab!();
    let v = Mounted::paged(&lab, "48M", "16K");
    v.sh("head -c 4000000 /dev/urandom > f; sync f; cp f before").ok();
    let sum = |of: &str| v.sh(&format!("sha256sum < {of}")).ok().out;
    let before = sum("f");
    // Every second block of 4096 bytes is the run's, in some of them a part.
    let each = |from: u64, text: &str, bytes: u64| {
        format!(
            "for n in $(seq {from} 14 900); do printf '%s %{bytes}s' {text} $n | \
             dd of=f bs=4096 seek=$n conv=notrunc 2>/dev/null; done; sync f"
        )
    };
    let within = |args: &[&str]| {
        let mut command = lab.systx(args);
        command.current_dir(&v.dir);
        command
    };
    let change = format!("{}; {}", each(0, "run", 4092), each(2, "run", 20));
    std::thread::scope(|s| {
        let run = within(&["run", "--retries", "20", "--", "sh", "-c", &change]);
        let run = s.spawn(|| finish(run, Limits::default(), &lab));
        v.sh(&each(1, "program", 100)).ok();
        run.join().unwrap().ok();
    });
    let both = sum("f");
    finish(within(&["undo"]), Limits::default(), &lab).ok();
    v.sh("cp f after; cp before f; sync f").ok();
    v.sh(&each(1, "program", 100)).ok();
    assert_eq!(sum("f"), sum("after"), "what the program wrote stays, the run is taken back");
    v.again();
    assert_eq!(sum("f"), sum("after"));
    assert_eq!(sum("before"), before);
    assert_ne!(both, before);
    v.umount();
    lab.do_systx(["fsck", "image"]).ok();
    assert!(lab.do_systx(["df", "image", "--json"]).ok().out.contains("\"page_size\":16384"));
    // What is sent is the content: a copy has pages of its own size.
    lab.do_systx(["snapshot", "image", "all"]).ok();
    lab.do_systx(["mkfs", "copy", "--size", "48M", "--page", "64K", "--force"]).ok();
    let systx = systx_binary().display();
    shell(&lab, &lab.root(), 60, &format!("{systx} send image | {systx} receive copy")).ok();
    lab.do_systx(["fsck", "copy"]).ok();
    lab.do_systx(["mount", "copy", "v"]).ok();
    assert_eq!(sum("before"), before);
    assert_eq!(sum("f"), sum("after"));
}
