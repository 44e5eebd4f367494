//! Files that several processes have mapped, in every place: what anybody reads, copies or is told
//! of their content is what the kernel's pages hold, and what is stored behind the end of a file is
//! no part of it (`mapped.py`, decision 0021).

use std::path::Path;
use systx_e2e::cases::Guarded;
use systx_e2e::lab::{LIBRARY, built, find_program};
use systx_e2e::run::{Dialogue, Limits, finish};
use systx_e2e::spots::{Spot, Work, cases, visit};
use systx_e2e::{Fs, Lab, lab, long, skip};

const HISTORIES: &str = include_str!("mapped.py");

/// The histories of some seeds, each in a directory of its own below the current one.
fn histories(seeds: std::ops::Range<u32>, operations: u32, more: &str) -> String {
    format!(
        "d=$PWD; cat > mapped.py <<'SYSTX_END'\n{HISTORIES}\nSYSTX_END\n\
         for seed in $(seq {} {}); do mkdir $seed; \
         python3 -B mapped.py $d/$seed $seed {operations} {more}; done; rm mapped.py",
        seeds.start,
        seeds.end - 1
    )
}

/// What a history says is there is what is there when nobody has it mapped any more.
const LEFT: &str = "grep / > sums; sha256sum --quiet -c sums";

/// Each place has histories of its own.
#[test]
fn random_histories_of_mapped_files_everywhere() {
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    let (each, operations) = if long() { (20, 500) } else { (1, 250) };
    for (n, case) in (0u32..).zip(cases(0, true)) {
        let script = histories(n * each..(n + 1) * each, operations, "");
        let work = Work { prepare: "", script: &script, check: LEFT, seconds: 300 };
        if let Err(why) = visit(case, &work) {
            assert_ne!(case.spot, Spot::Host);
            eprintln!("left out: {case:?}: {why}");
        }
    }
}

#[test]
fn random_histories_of_mapped_files_in_transactions_of_threads() {
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    let operations = if long() { 2000 } else { 250 };
    let library = built(&["--lib"], LIBRARY);
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python");
    for routed in [false, true] {
        let lab = lab!();
        if routed && lab.fs == Fs::Volume {
            continue;
        }
        let guarded =
            if routed { Guarded::routed(&lab, "python3") } else { Guarded::new(&lab, "python3") };
        let script = histories(900..902, operations, if routed { "alone" } else { "transaction" });
        let mut command = lab.command("sh");
        command.args(["-ec", &script]).current_dir(&guarded.dir);
        command.env("SYSTX_LIBRARY", &library).env("PYTHONPATH", &python);
        let done = finish(command, Limits::seconds(300), &lab).ok();
        let check =
            format!("cd guarded; sha256sum --quiet -c <<'SYSTX_END'\n{}SYSTX_END\n", done.out);
        lab.native(&check).ok();
    }
}

/// Has `g/f` mapped: `store AT TEXT` stores, `show AT LEN` tells what is there, both answered by a
/// line.
const HOLDER: &str = "import ctypes, mmap, os, sys\n\
    libc = ctypes.CDLL(None)\n\
    libc.mmap.restype = ctypes.c_void_p\n\
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n\
    at = libc.mmap(None, 1 << 20, 3, mmap.MAP_SHARED, os.open('g/f', os.O_RDWR), 0)\n\
    print('mapped', flush=True)\n\
    for line in sys.stdin:\n \
        what, offset, text = line.split()\n \
        if what == 'store': ctypes.memmove(at + int(offset), text.encode(), len(text)); print('stored', flush=True)\n \
        else: print(ctypes.string_at(at + int(offset), int(text)), flush=True)\n";

fn holder(lab: &Lab) -> Dialogue<'_> {
    let mut command = lab.command("python3");
    command.args(["-c", HOLDER]);
    let mut holder = Dialogue::start(lab, command);
    holder.wait_for("mapped\n");
    holder
}

/// What a transaction reads of a file that plain programs have mapped is what they have stored,
/// also where all of the file was a hole.
#[test]
fn a_transaction_copies_what_plain_programs_have_stored() {
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    for option in [&[][..], &["--fast-open"]] {
        let copies = ["cp g/f copy", "tar -cSf t g/f; tar -xOf t > copy", "cat g/f > copy"];
        for (n, copy) in copies.into_iter().enumerate() {
            let lab = lab!();
            lab.native("mkdir g; truncate -s 1M g/f").ok();
            if !lab.guards("g", option) {
                continue;
            }
            let mut holder = holder(&lab);
            holder.send(&format!("store 50000{n} middle\n"));
            holder.wait_for("stored\n");
            lab.run(&["--retries", "5"], copy).ok();
            lab.native("cmp g/f copy; tr -d '\\0' < copy | grep -qx middle").ok();
            holder.close().ok();
            lab.unguard("g");
        }
    }
}

/// The same of a file that a commit makes longer.
#[test]
fn what_was_stored_behind_the_end_is_gone_when_a_commit_makes_the_file_longer() {
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    let grow = [
        "truncate -s 8192 g/f",
        "printf x | dd of=g/f bs=1 seek=300 conv=notrunc status=none; truncate -s 8192 g/f",
        "fallocate -l 8192 g/f",
        "cp g/f g/n; truncate -s 8192 g/n; mv g/n g/f",
    ];
    for option in [&[][..], &["--fast-open"], &["--routed"]] {
        let lab = lab!();
        lab.native("mkdir g").ok();
        if !lab.guards("g", option) {
            continue;
        }
        for script in &grow {
            lab.native("printf '%0100d' 0 | tr 0 T > g/f").ok();
            let mut holder = holder(&lab);
            holder.send("store 150 behind\n");
            holder.wait_for("stored\n");
            lab.run(&["--retries", "5"], script).ok();
            let seen = lab.native("od -An -c -j 148 -N 10 g/f | tr -d ' \\n'").ok();
            assert_eq!(seen.out, "\\0".repeat(10), "{option:?}: {script}");
            // Of one that was moved away nobody promises anything.
            if !script.contains("mv") {
                holder.send("show 150 6\n");
                holder.wait_for(&format!("b'{}'\n", "\\x00".repeat(6)));
            }
            holder.close().ok();
            let below = lab.do_systx(["run", "--", "od", "-An", "-c", "-j148", "-N10", "g/f"]).ok();
            assert_eq!(
                below.out.replace([' ', '\n'], ""),
                "\\0".repeat(10),
                "{option:?}: {script}"
            );
        }
        lab.unguard("g");
    }
}
