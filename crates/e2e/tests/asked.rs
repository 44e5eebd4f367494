//! What a run says and asks beside its command: who aborted it, what becomes of the work of a
//! shell, why it cannot begin; what it costs while nothing happens; what a shell offers to
//! complete.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use systx_e2e::lab::{find_program, tool};
use systx_e2e::run::{Dialogue, Limits, eventually, finish};
use systx_e2e::{FAILED, Lab, lab, skip};

#[test]
fn who_aborted_a_run_is_told() {
    let lab = lab!();
    for options in [&[][..], &["--retries=2"]] {
        let mut shell = lab.shell(options);
        shell.eval("echo x > new");
        let id = lab.open_ids().remove(0);
        lab.do_systx(["abort", &id]).ok();
        let done = shell.finished().expect(FAILED);
        let done = done.says(&format!("transaction {id} was aborted by user root"));
        let done = done.says(&format!("abort {id}, process ")).says("nothing committed");
        assert!(!done.err.contains("no open transaction"), "{done}");
        assert!(!lab.has("new") && lab.open_ids().is_empty());
    }
    let mut shell = lab.shell(&["--json"]);
    shell.eval("echo x > new");
    let id = lab.open_ids().remove(0);
    lab.do_systx(["abort", &id]).ok();
    let done = shell.finished().expect(FAILED);
    let report = done.err.lines().find(|line| line.starts_with('{')).expect("a report");
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    let why = report["run"]["aborted_because"].as_str().unwrap_or_default();
    assert!(why.contains("was aborted by user root"), "{done}");
}

/// A shell at a terminal in a run, and what comes after it.
fn at_a_terminal<'a>(lab: &'a Lab, options: &str) -> Dialogue<'a> {
    let line = format!(
        "{} run {options} -- bash --norc --noprofile; echo code $?",
        lab.binary().display()
    );
    let mut command = lab.command("script");
    command.args(["-qc", &line, "/dev/null"]).env("PS1", "READY> ").env("SHELL", "/bin/sh");
    let mut terminal = Dialogue::start(lab, command);
    terminal.wait_for("READY> ");
    terminal
}

const QUESTION: &str = "show the [d]iff? ";

#[test]
fn what_becomes_of_the_work_of_a_shell_is_asked() {
    let lab = lab!();
    if find_program("script").is_none() {
        skip!("no script(1) to make a terminal with");
    }
    for (answer, committed, kept) in [("c\n", true, 0), ("a\n", false, 0), ("k\n", false, 1)] {
        let mut terminal = at_a_terminal(&lab, "");
        terminal.send("echo x > new; false\n");
        terminal.wait_for("READY> ");
        terminal.send("\u{4}");
        terminal.wait_for(QUESTION);
        terminal.send("what\n");
        terminal.wait_for(QUESTION);
        terminal.send("d\n");
        terminal.wait_for("+x");
        terminal.wait_for(QUESTION);
        assert!(!lab.has("new"));
        terminal.send(answer);
        terminal.wait_for("code 1");
        terminal.close();
        assert_eq!((lab.has("new"), lab.open_ids().len()), (committed, kept), "{answer}");
        let _ = std::fs::remove_file(lab.path("new"));
    }
}

#[test]
fn work_is_kept_where_nobody_answers() {
    let lab = lab!();
    if find_program("script").is_none() {
        skip!("no script(1) to make a terminal with");
    }
    // The end of input, `^C`, and a terminal that is gone.
    for key in ["\u{4}", "\u{3}", ""] {
        let mut terminal = at_a_terminal(&lab, "");
        terminal.send("echo x > new\n");
        terminal.wait_for("READY> ");
        terminal.send("\u{4}");
        terminal.wait_for(QUESTION);
        let script = lab.processes().into_iter().find(|pid| comm(*pid) == "script");
        if key.is_empty() {
            let pid = rustix::process::Pid::from_raw(script.expect("it runs") as i32);
            let kill = rustix::process::Signal::KILL;
            rustix::process::kill_process(pid.expect("a number"), kill).unwrap();
        } else {
            terminal.send(key);
            terminal.wait_for("kept as ");
        }
        terminal.close();
        eventually("it is kept", || state_of_all(&lab) == ["kept"]);
        assert!(!lab.has("new"));
        lab.do_systx(["abort", &lab.open_ids().remove(0)]).ok();
    }
}

fn comm(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn state_of_all(lab: &Lab) -> Vec<String> {
    let json = lab.do_systx(["list", "--json"]).ok().json();
    let all = json["transactions"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|t| Some(t["state"].as_str()?.to_owned())).collect()
}

#[test]
fn nothing_is_asked_without_need() {
    let lab = lab!();
    // Without a terminal: as ever, a shell that fails has failed.
    let input = lab.outside().join("input");
    std::fs::write(&input, "echo x > new; false\n").unwrap();
    for (options, kept) in [(&["run"][..], 0), (&["run", "--on-exit=ask"], 1)] {
        let mut command = lab.systx(options.iter().chain(&["--", "sh"]));
        command.stdin(std::fs::File::open(&input).unwrap());
        finish(command, Limits::default(), &lab).expect(1);
        assert!(!lab.has("new"));
        assert_eq!(lab.open_ids().len(), kept);
    }
    lab.do_systx(["abort", &lab.open_ids().remove(0)]).ok();
    if find_program("script").is_none() {
        skip!("no script(1) to make a terminal with");
    }
    // Nothing was changed; or it is said beforehand what is to be.
    for (options, work) in [("", "true"), ("--on-exit=commit", "echo y > other")] {
        let mut terminal = at_a_terminal(&lab, options);
        terminal.send(&format!("{work}\n"));
        terminal.wait_for("READY> ");
        terminal.send("exit 0\n");
        let rest = terminal.wait_for("code 0");
        assert!(!rest.contains("[c]ommit"), "{rest}");
        terminal.close();
    }
    assert!(lab.has("other"));
}

/// How often a process has been given the processor, all threads together.
fn turns(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let of = |thread: &Path| {
        let text = std::fs::read_to_string(thread.join("status")).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
        lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
    };
    threads.flatten().map(|thread| of(&thread.path())).sum()
}

/// How often a process has read something: each look reads something of every process that there
/// is.
fn reads(pid: u32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("syscr: "));
    line.and_then(|n| n.parse().ok()).expect("a number")
}

fn processes_of_the_machine() -> usize {
    let is_one = |name: &std::ffi::OsStr| name.to_str().is_some_and(|n| n.parse::<u32>().is_ok());
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter(|entry| is_one(&entry.file_name())).count()
}

/// The kernel tells of every opening of a device, whoever it was.  Each was a look at everything
/// that
/// the run had open.
#[test]
fn devices_that_others_open_cost_a_server_that_waits_next_to_nothing() {
    const SERVER: &str = "import sys\nprint('READY', flush=True)\nsys.stdin.readline()\n\
        d = open('/dev/fuse')\nprint('OPENED', flush=True)\nsys.stdin.readline()";
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3 to write a server in");
    }
    let mut server = Dialogue::start(&lab, lab.systx(["run", "--", "python3", "-c", SERVER]));
    server.wait_for("READY");
    let client = client_of(&lab);
    // Its own looks come ever more rarely: in the time that counts there are one or two, and some
    // more should the server be woken by chance.  It were more than ninety.
    let (begun, mut before) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(14) {
        if begun.elapsed() < Duration::from_secs(4) {
            before = reads(client);
        }
        drop(std::fs::File::open("/dev/fuse").expect("everybody may"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let (spent, look) = (reads(client) - before, processes_of_the_machine());
    assert!(spent < 40 * look, "{spent} reads where a look has {look}");
    // Its own is told of.
    let before = reads(client);
    server.send("open\n");
    server.wait_for("OPENED");
    // Several times, so that one look was over.
    eventually("it looks", || reads(client) - before > 7 * look);
    server.send("end\n");
    let done = server.close();
    assert!(done.err.contains("python3 opened /dev/fuse"), "{done}");
}

fn client_of(lab: &Lab) -> u32 {
    let is_it = |pid: &u32| {
        comm(*pid) == "systx" && {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|b| *b == 0).nth(1) == Some(b"run")
        }
    };
    lab.processes().into_iter().find(is_it).expect("it runs")
}

/// A look now and then would be ten turns a second, as it was.
#[test]
fn a_server_that_waits_costs_nothing() {
    const SERVER: &str = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); \
                          s.listen(); print('READY', flush=True); s.accept()";
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3 to write a server in");
    }
    let mut server = Dialogue::start(&lab, lab.systx(["run", "--", "python3", "-c", SERVER]));
    server.wait_for("READY");
    let (client, daemon) = (client_of(&lab), lab.daemons()[0]);
    // Looks get rarer, each pause twice the one before, and end; but for those that others cause
    // who open a device just then.
    eventually("both sleep most of ten seconds", || {
        let before = (turns(client), turns(daemon));
        std::thread::sleep(std::time::Duration::from_secs(10));
        let after = (turns(client), turns(daemon));
        after.0 - before.0 <= 7 && after.1 - before.1 <= 10
    });
    // And yet what it does is told.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(client as i32).expect("a number"),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let done = server.close();
    assert!(done.err.contains("python3 listened on tcp 127.0.0.1:"), "{done}");
}

#[test]
fn the_daemon_is_known_by_its_name() {
    let lab = lab!();
    lab.run(&[], "true").ok();
    let daemons = lab.daemons();
    assert_eq!(daemons.len(), 1);
    assert_eq!(comm(daemons[0]), "systx");
}

/// Why, and what to do; not the number of an error.
#[test]
fn why_a_file_system_cannot_be_used_is_told() {
    let lab = lab!();
    if lab.fs == systx_e2e::Fs::Tmpfs {
        skip!("a tmpfs would take its content along");
    }
    lab.run(&[], "echo x > new").ok();
    lab.kill_all();
    let root = lab.root().display().to_string();
    tool(Command::new("mount").args(["-o", "remount,ro", &root])).unwrap();
    for args in [&["run", "--", "true"][..], &["run", "--read-only", "--", "true"], &["log"]] {
        let done = lab.do_systx(args);
        assert_ne!(done.code, 0, "{done}");
        let done = done.says("is mounted read-only").says("mount -o remount,rw");
        let done = done.says(&root);
        assert!(
            !done.err.lines().any(|l| l.starts_with("systx") && l.contains("os error")),
            "{done}"
        );
    }
    tool(Command::new("mount").args(["-o", "remount,rw", &root])).unwrap();
    lab.run(&[], "echo y > new").ok();
}

#[test]
fn why_a_user_cannot_begin_is_told() {
    let lab = match Lab::new() {
        Ok(lab) => lab.as_user(),
        Err(why) => skip!("{why}"),
    };
    // Theirs, but nothing can be made in it.
    use std::os::unix::fs::PermissionsExt;
    let root = lab.root();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o555)).unwrap();
    let done = lab.run_argv(&[], &["true"]);
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(done.code, FAILED, "{done}");
    let done = done.says("no permission for ").says("--store DIR");
    assert!(!done.err.lines().any(|l| l.starts_with("systx") && l.contains("os error")), "{done}");
}

/// As a shell does: what is offered for the last word of a line that is typed in the volume.
fn offered(lab: &Lab, line: &str) -> Vec<String> {
    // The script, and what bash calls when TAB is pressed.
    let ask = format!(
        "PATH={}:$PATH; source <(systx completions bash); COMP_WORDS=({line}); \
         COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9; \
         _clap_complete_systx systx \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\" 2>/dev/null; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        lab.binary().parent().expect("a directory").display(),
    );
    let mut bash = lab.command("bash");
    bash.args(["-c", &ask]);
    let words = finish(bash, Limits::default(), lab).ok().out;
    words.lines().map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

/// Options, and the ids that a command takes.
#[test]
fn a_shell_completes_options_and_ids() {
    let lab = lab!();
    if find_program("bash").is_none() {
        skip!("no bash to ask");
    }
    assert_eq!(offered(&lab, "systx run --on-"), ["--on-exit"]);
    let ids = |line: &str| {
        let words = offered(&lab, line).into_iter();
        words.filter(|word| !word.starts_with('-')).collect::<Vec<_>>()
    };
    // Nothing is open, and nobody has to say so.
    assert_eq!(ids("systx abort ''"), [""; 0]);
    lab.run(&[], "echo one > f").ok();
    lab.run(&["--on-exit=keep"], "echo two > f").ok();
    let (open, committed) = (lab.open_ids(), lab.logged_ids());
    assert_eq!((open.len(), committed.len()), (1, 1));
    for command in ["status", "enter", "commit", "abort", "begin . --retry"] {
        assert_eq!(ids(&format!("systx {command} ''")), open, "{command}");
    }
    for command in ["show", "undo", "redo", "services --run", "services --drop"] {
        assert_eq!(ids(&format!("systx {command} ''")), committed, "{command}");
    }
    let mut both = [open.clone(), committed].concat();
    let mut found = ids("systx diff ''");
    both.sort();
    found.sort();
    assert_eq!(found, both);
    // From the first characters on.
    assert_eq!(ids(&format!("systx commit {}", &open[0][..2])), open);
    assert_eq!(ids("systx commit x"), [""; 0]);
}
