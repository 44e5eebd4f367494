//! What a user sees of `systx run`: outcomes, exit codes, signals, streams, who sees what when,
//! review, undo.

use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use systx_e2e::run::{Limits, Running, Shell, eventually, finish};
use systx_e2e::{CANNOT_EXEC, CONFLICT, NOT_FOUND, lab, skip};

/// What a machine does not have skips a test; what goes wrong on one that has it all does not.
#[test]
fn a_lab_that_cannot_be_made_fails_its_test() {
    const BROKEN: &str = "/nonexistent/systx-e2e";
    let _lab = lab!();
    if std::env::var_os("SYSTX_E2E_DIR").is_some_and(|dir| dir == BROKEN) {
        return;
    }
    let mut again = Command::new(std::env::current_exe().expect("own path"));
    again
        .args(["--exact", "a_lab_that_cannot_be_made_fails_its_test"])
        .env("SYSTX_E2E_DIR", BROKEN);
    let done = again.output().expect("it starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(!done.status.success() && said.contains("1 failed"), "{said}");
}

/// Each process of this chain starts the next one and ends.  As a keeper that is killed does: a
/// daemon that no list had lived on, and had the volume that the next command was to check.
#[test]
fn a_lab_finds_processes_that_hand_on_while_it_looks() {
    let lab = lab!();
    let goes_on = lab.outside().join("goes-on");
    std::fs::write(&goes_on, "").expect("ours");
    let runtime = lab.outside().with_file_name("run");
    let link = r#"[ ! -e "$1" ] || sh -c "$0" "$0" "$1" &"#;
    let mut chain = Command::new("sh");
    chain.args(["-c", link, link]).arg(&goes_on).env("SYSTX_RUNTIME_DIR", &runtime);
    assert!(chain.status().expect("sh").success());
    let missed = (0..100).filter(|_| lab.processes().is_empty()).count();
    std::fs::remove_file(&goes_on).expect("ours");
    assert_eq!(missed, 0, "of 100 lists");
    eventually("the chain ends", || lab.processes().is_empty());
}

#[test]
fn without_network_only_the_own_loopback_is_there() {
    let lab = lab!();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec 2>/dev/null; : > /dev/tcp/127.0.0.1/{port}");
    lab.run_argv(&[], &["bash", "-c", &connect]).ok();
    lab.run_argv(&["--no-net"], &["bash", "-c", &connect]).expect(1);
    let own = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); \
               socket.create_connection(s.getsockname())";
    lab.run_argv(&["--no-net"], &["python3", "-c", own]).ok();
    let nested = format!("{} run --no-net -- true", lab.binary().display());
    lab.run(&[], &nested).expect(125).says("--no-net");
}

#[test]
fn an_installation_of_systx_has_all_its_parts() {
    let lab = lab!();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install");
    let to = lab.path("dest");
    let install = |prefix: &str| {
        let mut command = std::process::Command::new(script);
        command.arg("--binary").arg(systx_e2e::lab::systx_binary());
        command.arg("--destdir").arg(&to).args(["--prefix", prefix]);
        systx_e2e::lab::tool(&mut command).unwrap();
    };
    install("/usr");
    // Over the one that is there.
    install("/usr");
    let version = |program: &std::path::Path| {
        systx_e2e::lab::tool(std::process::Command::new(program).arg("--version")).unwrap()
    };
    assert_eq!(version(&to.join("usr/bin/systx")), version(systx_e2e::lab::systx_binary()));
    let unit =
        std::fs::read_to_string(to.join("etc/systemd/system/systx-recover.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/systx recover --all\n"), "{unit}");
    let completion = to.join("usr/share/bash-completion/completions/systx");
    assert!(std::fs::read_to_string(completion).unwrap().contains("complete "));
    // A page for each command that help names.
    let pages = to.join("usr/share/man/man1");
    let help =
        systx_e2e::lab::tool(std::process::Command::new(to.join("usr/bin/systx")).arg("help"));
    let help = help.unwrap();
    let commands = help.lines().skip_while(|l| *l != "Commands:").skip(1);
    let commands: Vec<&str> = (commands.take_while(|l| l.starts_with("  ")))
        .filter_map(|l| l.strip_prefix("  ")?.split([' ', ',']).next().filter(|c| !c.is_empty()))
        .filter(|c| *c != "help")
        .collect();
    assert!(commands.len() > 15, "{help}");
    let mut all = vec![pages.join("systx.1")];
    all.extend(commands.iter().map(|c| pages.join(format!("systx-{c}.1"))));
    let missing: Vec<_> = all.iter().filter(|page| !page.is_file()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for page in &all {
        let text = std::fs::read_to_string(page).unwrap();
        for section in [".SH \"EXIT STATUS\"", ".SH EXAMPLES"] {
            assert_eq!(text.matches(section).count(), 1, "{}: {section}", page.display());
        }
    }
    assert_eq!(systx_e2e::pages::complaints(&all), "");
    assert!(std::fs::read_to_string(pages.join("systx-run.1")).unwrap().contains("on\\-exit"));
}

#[test]
fn success_commits() {
    let lab = lab!();
    lab.write("there", "before\n");
    lab.run(&[], "echo inside > new; echo more >> there; mkdir d; echo x > d/y").ok();
    assert_eq!(lab.read("new"), "inside\n");
    assert_eq!(lab.read("there"), "before\nmore\n");
    assert_eq!(lab.read("d/y"), "x\n");
}

#[test]
fn a_failed_command_is_never_committed() {
    let lab = lab!();
    lab.write("there", "before\n");
    let before = lab.tree();
    for options in [&[][..], &["--on-exit=commit"], &["--on-exit=abort"]] {
        let script = "echo x > new; echo y > there; mkdir -p a/b; exit 3";
        lab.run(options, script).expect(3);
        before.assert_same(&lab.tree(), "a failed command");
    }
    assert!(lab.open_ids().is_empty());
}

#[test]
fn abort_drops_everything() {
    let lab = lab!();
    lab.write("there", "before\n");
    lab.write("dir/file", "x\n");
    let before = lab.tree();
    lab.run(
        &["--on-exit=abort"],
        "echo x > new; echo y > there; rm -r dir; mv there elsewhere; ln -s a link; chmod 700 .",
    )
    .ok();
    before.assert_same(&lab.tree(), "an aborted run");
}

#[test]
fn exit_codes_are_the_commands_own() {
    let lab = lab!();
    for code in [0, 1, 2, 74, 76, 99, 124, 200, 255] {
        lab.run(&[], &format!("exit {code}")).expect(code);
    }
    lab.run_argv(&[], &["systx-e2e-no-such-program"]).expect(NOT_FOUND);
    let plain = lab.write("plain", "#!/bin/sh\n");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    lab.run_argv(&[], &["./plain"]).expect(CANNOT_EXEC);
}

#[test]
fn a_signal_that_ends_the_command_is_reported_as_the_shell_does() {
    let lab = lab!();
    for signal in ["TERM", "KILL", "HUP", "USR1"] {
        let number = Signal::from_named_raw(match signal {
            "TERM" => 15,
            "KILL" => 9,
            "HUP" => 1,
            _ => 10,
        });
        let number = number.expect("a signal").as_raw();
        lab.run(&[], &format!("echo x > new; kill -{signal} $$")).expect(128 + number);
        assert!(!lab.has("new"), "a command that was killed is not committed");
    }
}

#[test]
fn a_signal_to_systx_reaches_the_command() {
    let lab = lab!();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::USR1, "USR1")] {
        let mut shell = lab.shell(&[]);
        shell.eval(&format!("trap 'echo got {name} > caught; trap - {name}' {name}"));
        shell.signal(signal);
        // The shell runs its traps between commands; until then the signal may be on its way.
        shell.eval(
            "for i in $(seq 10000); do [ -e caught ] && break; sleep 0.01; done; [ -e caught ]",
        );
        assert!(!lab.has("caught"));
        shell.exit(0).ok();
        assert_eq!(lab.read("caught"), format!("got {name}\n"));
        std::fs::remove_file(lab.path("caught")).unwrap();
    }
}

#[test]
fn arguments_arrive_untouched() {
    let lab = lab!();
    let awkward =
        ["", " ", "a b", "*", "$HOME", "'", "\"", "--", "-x", "--on-exit=abort", "\n", "ü"];
    let mut argv = vec!["sh", "-c", "printf '<%s>' \"$@\"; echo; [ \"$1\" = '' ]", "sh"];
    argv.extend(awkward);
    let done = lab.run_argv(&[], &argv).ok();
    let wanted: String = awkward.iter().map(|a| format!("<{a}>")).collect();
    assert_eq!(done.out, format!("{wanted}\n"));
    // Bytes that are no UTF-8.
    use std::os::unix::ffi::OsStrExt;
    let raw = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let mut command = lab.systx(["run", "--", "sh", "-c", "printf %s \"$1\" | od -An -tx1", "sh"]);
    command.arg(raw);
    let done = finish(command, Limits::default(), &lab).ok();
    assert_eq!(done.out.trim(), "ff fe");
}

#[test]
fn streams_pass_through() {
    let lab = lab!();
    let mut command = lab.systx(["run", "--", "sh", "-c", "cat; echo to stderr >&2"]);
    let input = lab.outside().join("input");
    std::fs::write(&input, "line 1\nline 2\n").unwrap();
    command.stdin(std::fs::File::open(&input).unwrap());
    let done = finish(command, Limits::default(), &lab).ok();
    assert_eq!(done.out, "line 1\nline 2\n");
    assert!(done.err.contains("to stderr"));
}

#[test]
fn nothing_is_said_when_nothing_happened() {
    let lab = lab!();
    let done = lab.run_argv(&[], &["true"]).ok();
    assert_eq!((done.out.as_str(), done.err.as_str()), ("", ""));
}

#[test]
fn the_environment_passes_through() {
    let lab = lab!();
    let mut command =
        lab.systx(["run", "--", "sh", "-c", "echo \"$SOMETHING_OF_MINE\"; pwd; umask"]);
    command.env("SOMETHING_OF_MINE", "a b");
    let done = finish(command, Limits::default(), &lab).ok();
    let native = lab.native("umask").ok();
    assert_eq!(done.out, format!("a b\n{}\n{}", lab.root().display(), native.out));
}

#[test]
fn a_terminal_passes_through() {
    let lab = lab!();
    if systx_e2e::lab::find_program("script").is_none() {
        skip!("no script(1) to make a terminal with");
    }
    let binary = lab.binary();
    let inner = "test -t 0 && test -t 1 && test -t 2 && tty && stty size >/dev/null && echo a-tty";
    let line = format!("{} run -- sh -c '{inner}'", binary.display());
    let mut command = lab.command("script");
    command.args(["-qec", &line, "/dev/null"]);
    let done = finish(command, Limits::default(), &lab).ok();
    assert!(done.out.contains("a-tty"), "{done}");
}

#[test]
fn interrupt_from_the_terminal_ends_the_command_and_nothing_is_left() {
    let lab = lab!();
    if systx_e2e::lab::find_program("script").is_none() {
        skip!("no script(1) to make a terminal with");
    }
    let before = lab.tree();
    let inner = "echo x > new; echo ready; sleep 1000";
    let line = format!("{} run -- sh -c '{inner}'; echo code $?", lab.binary().display());
    let mut command = lab.command("script");
    command.args(["-qc", &format!("sh -c 'trap : INT; {}'", line.replace('\'', "'\\''"))]);
    command.arg("/dev/null");
    let mut terminal = systx_e2e::run::Dialogue::start(&lab, command);
    terminal.wait_for("ready");
    // A shell that is just about to start a program may take the signal for one that concerns
    // neither.
    let comm = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    eventually("sleep is started", || lab.processes().iter().any(|pid| comm(pid) == "sleep\n"));
    terminal.send("\u{3}");
    let rest = terminal.wait_for("code ");
    assert!(!rest.is_empty());
    terminal.close();
    before.assert_same(&lab.tree(), "an interrupted run");
}

#[test]
fn nobody_outside_sees_anything_before_the_end() {
    let lab = lab!();
    lab.write("a", "old a\n");
    lab.write("dir/b", "old b\n");
    let before = lab.tree();
    let mut shell = lab.shell(&[]);
    shell.eval("echo new a > a; rm dir/b; mkdir made; echo c > made/c; mv dir moved; sync -f .");
    before.assert_same(&lab.tree(), "while the command runs");
    assert_eq!(
        shell.eval("cat a moved/../made/c; ls -d a dir made moved 2>&1; true"),
        "new a\nc\nls: cannot access 'dir': No such file or directory\na\nmade\nmoved\n"
    );
    shell.exit(0).ok();
    assert_eq!(lab.read("a"), "new a\n");
    assert_eq!(lab.read("made/c"), "c\n");
    assert!(!lab.has("dir") && lab.has("moved") && !lab.has("moved/b"));
}

#[test]
fn two_runs_do_not_see_each_other() {
    let lab = lab!();
    let mut one = lab.shell(&[]);
    one.eval("echo 1 > one");
    let mut two = lab.shell(&[]);
    two.eval("echo 2 > two");
    // To look is a conflict, which the younger one loses; seen is nothing.
    assert_eq!(one.eval("cat one; cat two 2>/dev/null || echo absent"), "1\nabsent\n");
    let other = two.try_eval("cat one");
    assert!(other.is_none_or(|(out, code)| code != 0 && !out.contains('1')));
    one.exit(0).ok();
    two.exit(0).expect(systx_e2e::CONFLICT);
    assert!(lab.has("one") && !lab.has("two"));
    // Without looking, both commit.
    let mut one = lab.shell(&[]);
    let mut two = lab.shell(&[]);
    one.eval("echo 3 > three");
    two.eval("echo 4 > four");
    one.exit(0).ok();
    two.exit(0).ok();
    assert_eq!((lab.read("three"), lab.read("four")), ("3\n".into(), "4\n".into()));
}

#[test]
fn keep_review_commit() {
    let lab = lab!();
    lab.write("changed", "one\ntwo\nthree\n");
    lab.write("gone", "bye\n");
    lab.write("old-name", "content that moves along\n");
    lab.write("mode", "x\n");
    let before = lab.tree();
    lab.run(
        &["--on-exit=keep"],
        "sed -i s/two/2/ changed; rm gone; mv old-name new-name; chmod 755 mode; \
         echo hello > added; ln -s added link; head -c 100000 /dev/urandom > binary",
    )
    .ok();
    before.assert_same(&lab.tree(), "a kept run");
    let open = lab.open_ids();
    assert_eq!(open.len(), 1);
    let id = open[0].as_str();
    lab.do_systx(["status", id]).ok();
    lab.do_systx(["status", id, "--json"]).ok().json();

    let names = lab.do_systx(["diff", id, "--name-status"]).ok().out;
    let has = |letter: &str, path: &str| {
        names.lines().any(|l| l.starts_with(letter) && l.trim_end().ends_with(path))
    };
    assert!(has("A", "added") && has("A", "link") && has("A", "binary"), "{names}");
    assert!(has("D", "gone") && has("R", "new-name") && has("M", "changed"), "{names}");
    assert!(names.contains("mode"), "{names}");

    let patch = lab.do_systx(["diff", id]).ok().out;
    for wanted in ["-two", "+2", "diff --git", "new file mode 100644", "rename from", "rename to"] {
        assert!(patch.contains(wanted), "{wanted:?} is not in\n{patch}");
    }
    for wanted in ["deleted file mode", "old mode 100644", "new mode 100755", "120000", "inary"] {
        assert!(patch.contains(wanted), "{wanted:?} is not in\n{patch}");
    }
    let stat = lab.do_systx(["diff", id, "--stat"]).ok().out;
    assert!(stat.contains("changed"), "{stat}");
    lab.do_systx(["diff", id, "--json"]).ok().json();

    // An id may be shortened as long as it is unique.
    lab.do_systx(["commit", &id[..6]]).ok();
    assert_eq!(lab.read("changed"), "one\n2\nthree\n");
    assert_eq!(lab.read("added"), "hello\n");
    assert!(!lab.has("gone") && !lab.has("old-name") && lab.has("new-name") && lab.has("link"));
    assert_eq!(std::fs::metadata(lab.path("mode")).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(lab.open_ids().is_empty());
}

#[test]
fn a_unified_diff_can_be_applied_with_git() {
    let lab = lab!();
    if systx_e2e::lab::find_program("git").is_none() {
        skip!("no git");
    }
    lab.write("w/text", "a\nb\nc\n");
    lab.write("w/no-newline", "last");
    lab.write("w/gone", "x\n");
    lab.run_argv(&["--on-exit=keep"], &[
        "sh", "-c", "cd w; printf 'a\\nB\\nc\\nd\\n' > text; printf other > no-newline; rm gone; echo n > new",
    ])
    .ok();
    let id = lab.open_ids().remove(0);
    let patch = lab.do_systx(["diff", &id]).ok().out;
    let file = lab.outside().join("patch");
    std::fs::write(&file, patch).unwrap();
    // Real paths are absolute: git takes them relative to the root.
    let copy = lab.outside().join("copy");
    let script = format!(
        "cp -a {w} {copy} && cd {copy} && git apply --unsafe-paths -p$(({n}+1)) {patch} && cat text no-newline new && test ! -e gone",
        w = lab.path("w").display(),
        copy = copy.display(),
        n = lab.path("w").components().count() - 1,
        patch = file.display(),
    );
    let done = lab.native(&script).ok();
    assert_eq!(done.out, "a\nB\nc\nd\nothern\n");
}

#[test]
fn keep_then_abort() {
    let lab = lab!();
    let before = lab.tree();
    lab.run(&["--on-exit=keep"], "echo x > new").ok();
    let id = lab.open_ids().remove(0);
    lab.do_systx(["abort", &id]).ok();
    before.assert_same(&lab.tree(), "kept, then aborted");
    assert!(lab.open_ids().is_empty());
    assert_ne!(lab.do_systx(["commit", &id]).code, 0, "it is gone");
}

#[test]
fn a_kept_run_can_be_entered_and_goes_on() {
    let lab = lab!();
    lab.run(&["--on-exit=keep"], "echo 1 > file; (exec 9>open; echo y >&9)").ok();
    let id = lab.open_ids().remove(0);
    let done = lab.do_systx(["enter", &id, "--", "sh", "-c", "cat file open; echo 2 >> file"]).ok();
    assert_eq!(done.out, "1\ny\n");
    assert!(!lab.has("file"));
    let done = lab.do_systx(["enter", &id, "--", "sh", "-c", "cat file; exit 7"]);
    assert_eq!((done.code, done.out.as_str()), (7, "1\n2\n"));
    // Not while somebody is inside and may be half-way.
    let mut inside = Shell::start(&lab, lab.systx(["enter", &id, "--", "sh"]));
    inside.eval("echo 3 >> file");
    let refused = lab.do_systx(["commit", &id]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("somebody is in transaction"), "{}", refused.err);
    assert!(!lab.has("file"));
    inside.eval("echo 4 >> file");
    inside.exit(0);
    lab.do_systx(["commit", &id]).ok();
    assert_eq!(lab.read("file"), "1\n2\n3\n4\n");
}

#[test]
fn part_of_a_kept_run_can_be_committed() {
    let lab = lab!();
    lab.run(&["--on-exit=keep"], "mkdir a b; echo 1 > a/x; echo 2 > b/y; echo 3 > c").ok();
    let id = lab.open_ids().remove(0);
    let a = lab.path("a");
    lab.do_systx(["commit", &id, a.to_str().unwrap()]).ok();
    assert_eq!(lab.read("a/x"), "1\n");
    assert!(!lab.has("b") && !lab.has("c"));
    let rest = lab.open_ids();
    assert_eq!(rest.len(), 1, "the rest stays kept");
    lab.do_systx(["commit", &rest[0]]).ok();
    assert_eq!((lab.read("b/y"), lab.read("c")), ("2\n".into(), "3\n".into()));
}

#[test]
fn undo_and_redo() {
    let lab = lab!();
    lab.write("text", "old\n");
    lab.write("gone", "bye\n");
    lab.write("dir/deep/file", "x\n");
    lab.write("unrelated", "1\n");
    let before = lab.tree();
    lab.run(
        &[],
        "echo new > text; rm gone; mv dir moved; echo a > added; ln added linked; chmod 600 text",
    )
    .ok();
    let after = lab.tree();
    let log = lab.logged_ids();
    assert_eq!(log.len(), 1);
    lab.do_systx(["show", &log[0]]).ok();
    lab.do_systx(["show", &log[0], "--json"]).ok().json();

    // "text" is there and changed; "gone" comes back; "added", "linked" and the new place of "dir"
    // go.
    let undone = lab.do_systx(["undo", &log[0]]).ok();
    let undone = undone.says("1 modified").says("1 added").says("2 deleted");
    undone.says("1 renamed");
    before.assert_same(&lab.tree(), "undone");
    lab.do_systx(["redo"]).ok();
    after.assert_same(&lab.tree(), "redone");
    lab.do_systx(["undo"]).ok();
    before.assert_same(&lab.tree(), "undone again");
    // What others did to other files in between is not touched.
    lab.do_systx(["redo"]).ok();
    lab.write("unrelated", "2\n");
    lab.do_systx(["undo"]).ok();
    assert_eq!(lab.read("unrelated"), "2\n");
    assert_eq!(lab.read("text"), "old\n");
}

#[test]
fn undo_refuses_where_later_changes_overlap_and_names_them() {
    let lab = lab!();
    lab.write("text", "old\n");
    lab.run(&[], "echo new > text; echo b > other").ok();
    let first = lab.logged_ids().remove(0);
    lab.run(&[], "echo newer > text").ok();
    let before = lab.tree();
    let done = lab.do_systx(["undo", &first]);
    assert!(done.code != 0, "{done}");
    assert!(done.err.contains("text"), "{done}");
    before.assert_same(&lab.tree(), "a refused undo");

    // The same for a later change by someone outside.
    lab.do_systx(["undo"]).ok();
    lab.write("other", "mine\n");
    let before = lab.tree();
    let done = lab.do_systx(["undo", &first]);
    assert!(done.code != 0 && done.err.contains("other"), "{done}");
    before.assert_same(&lab.tree(), "a refused undo");
}

#[test]
fn read_only_commits_nothing() {
    let lab = lab!();
    lab.write("a", "1\n");
    let before = lab.tree();
    let done = lab
        .run(&["--read-only"], "cat a; echo x > new 2>/dev/null; cat new 2>/dev/null; true")
        .ok();
    assert!(done.out.starts_with("1\n"));
    before.assert_same(&lab.tree(), "a read-only run");
    // A file that changes under the reader is named.
    let mut shell = lab.shell(&["--read-only"]);
    shell.eval("cat a");
    lab.write("a", "2\n");
    let done = shell.exit(0).expect(systx_e2e::CONFLICT);
    assert!(done.err.contains("a"), "{done}");
}

#[test]
fn dash_c_changes_the_directory_and_the_volume() {
    let lab = lab!();
    lab.write("sub/x", "1\n");
    let mut command = lab.systx(["run", "-C"]);
    command.arg(lab.path("sub")).args(["--", "sh", "-c", "pwd; echo 2 > y"]);
    command.current_dir("/");
    let done = finish(command, Limits::default(), &lab).ok();
    assert_eq!(done.out, format!("{}\n", lab.path("sub").display()));
    assert_eq!(lab.read("sub/y"), "2\n");
}

#[test]
fn a_time_limit_ends_the_command_and_leaves_nothing() {
    let lab = lab!();
    let before = lab.tree();
    lab.run(&["--timeout", "1"], "echo x > new; sleep 1000").expect(systx_e2e::TIMED_OUT);
    before.assert_same(&lab.tree(), "after a time limit");
    assert!(lab.open_ids().is_empty());
}

#[test]
fn processes_that_are_left_behind_do_not_outlive_the_run() {
    let lab = lab!();
    let done =
        lab.run(&["--leftovers=kill"], "sleep 1000 </dev/null >/dev/null 2>&1 & echo x > new");
    done.ok();
    assert_eq!(lab.read("new"), "x\n");
    let left: Vec<_> = lab
        .processes()
        .into_iter()
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"sleep")
        })
        .collect();
    assert!(left.is_empty(), "{left:?} still run");
    // A leftover that ends soon may finish its work.
    lab.run(&["--leftovers=wait"], "(sleep 0.3; echo late > late) </dev/null >/dev/null 2>&1 &")
        .ok();
    assert_eq!(lab.read("late"), "late\n");
    // And if leftovers abort, nothing is committed.
    let before = lab.tree();
    let done =
        lab.run(&["--leftovers=abort"], "sleep 1000 </dev/null >/dev/null 2>&1 & echo y > other");
    assert!(done.code != 0, "{done}");
    before.assert_same(&lab.tree(), "leftovers that abort");
}

#[test]
fn a_run_in_a_run_joins_it() {
    let lab = lab!();
    let before = lab.tree();
    let inner =
        format!("echo 1 > a; {} run -- sh -c 'cat a; echo 2 > b'; cat b", lab.binary().display());
    let done = lab.run(&["--on-exit=abort"], &inner).ok();
    assert_eq!(done.out, "1\n2\n");
    before.assert_same(&lab.tree(), "the outer run aborted");
    lab.run(&[], &inner).ok();
    assert_eq!((lab.read("a"), lab.read("b")), ("1\n".into(), "2\n".into()));
}

#[test]
fn private_places_are_dropped_and_named() {
    let lab = lab!();
    let done = lab
        .run(&["--private-tmp"], "echo x > /tmp/mine; echo y > /dev/shm/mine; cat /tmp/mine")
        .ok();
    assert_eq!(done.out, "x\n");
    assert!(!std::path::Path::new("/tmp/mine").exists());
    assert!(!std::path::Path::new("/dev/shm/mine").exists());
    assert!(done.err.contains("/dev/shm"), "what was left in a private place is named\n{done}");
}

#[test]
fn a_write_elsewhere_is_refused() {
    let lab = lab!();
    let target = lab.outside().join("file");
    let done = lab.run(&[], &format!("echo x > {}", target.display()));
    assert!(done.code != 0, "{done}");
    assert!(done.err.contains("Read-only file system"), "{done}");
    assert!(!target.exists());
}

#[test]
fn what_is_excluded_by_its_path_is_not_committed_however_the_path_is_written() {
    let lab = lab!();
    let inside = lab.path("d").join("x").display().to_string();
    std::fs::create_dir_all(lab.path("d/e")).expect("a directory");
    std::os::unix::fs::symlink("d", lab.path("link")).expect("a link");
    let by_link = lab.path("link/x").display().to_string();
    let everything = format!("{}/*", lab.path("d").display());
    for given in [&inside, &by_link, &everything, "./d/x", "d/x", "../mnt/d/x", "x"] {
        lab.write("d/x", "kept");
        lab.write("other", "gone");
        let done = lab.run(&["--exclude", given], "rm d/x other").ok();
        assert!(lab.has("d/x") && !lab.has("other"), "{given}: {done}");
    }
    // What names nothing there is told where something of that name is here.
    lab.write("d/x", "gone");
    let done = lab.run(&["--exclude", "/d/x"], "rm d/x").ok();
    assert!(done.err.contains("./d/x") && !lab.has("d/x"), "{done}");
}

#[test]
fn excluded_paths() {
    let lab = lab!();
    lab.write("log/a", "1\n");
    lab.run(&["--exclude", "*.tmp"], "echo x > keep; echo y > drop.tmp; mkdir d; echo z > d/e.tmp")
        .ok();
    assert!(lab.has("keep") && lab.has("d"));
    assert!(!lab.has("drop.tmp") && !lab.has("d/e.tmp"));
}

/// What is passed through is met by who mounts it in the view, and not by the command.
#[test]
fn a_file_that_is_passed_through_is_no_conflict_with_itself() {
    let lab = lab!();
    for path in ["p/file", "p/replaced", "isolated"] {
        lab.write(path, "old\n");
    }
    let through = ["--passthrough", "p/file", "--passthrough", "p/repl*"];
    lab.run(&through, "echo new > p/file; chmod 600 p/file; cat p/file > made").ok();
    assert_eq!((lab.read("p/file"), lab.read("made")), ("new\n".into(), "new\n".into()));
    // Nor is what others do to it.
    let mut shell = lab.shell(&through);
    assert_eq!(shell.eval("echo 1 > of-the-run; cat p/file"), "new\n");
    lab.native("echo newer > p/file; echo x > x; mv x p/replaced").ok();
    assert_eq!(shell.eval("cat p/file"), "newer\n");
    shell.exit(0).ok();
    assert!(lab.has("of-the-run"));
    // Everything else is.
    let mut shell = lab.shell(&through);
    assert_eq!(shell.eval("cat isolated p/other 2>&1 | head -1"), "old\n");
    lab.native("echo x >> isolated").ok();
    shell.exit(0).expect(CONFLICT);
}

#[test]
fn an_ignore_file_has_two_meanings() {
    let lab = lab!();
    lab.write(".systxignore", "*.pyc\n/out\n[passthrough]\n/cache\n");
    lab.write("cache/old", "1\n");
    lab.write("out/old", "1\n");
    lab.run(&["--on-exit=abort"], "echo x > a.pyc; echo y > cache/new; echo z > out/new").ok();
    assert!(lab.has("cache/new"), "not isolated: the command works on the originals");
    assert!(!lab.has("a.pyc") && !lab.has("out/new"));
    lab.run(
        &[],
        "echo x > a.pyc; cat cache/new; echo 2 > out/old; echo z > out/new; echo k > kept",
    )
    .ok();
    assert!(!lab.has("a.pyc") && !lab.has("out/new") && lab.has("kept"), "not committed");
    assert_eq!(lab.read("out/old"), "1\n");
    lab.run(&["--no-ignore"], "echo x > a.pyc").ok();
    assert!(lab.has("a.pyc"));
}

#[test]
fn a_failed_command_can_be_kept_for_review() {
    let lab = lab!();
    let before = lab.tree();
    lab.run(&["--on-exit=keep"], "echo half > work; exit 3").expect(3);
    before.assert_same(&lab.tree(), "a kept run");
    let id = lab.open_ids().remove(0);
    assert!(lab.do_systx(["diff", &id]).ok().out.contains("+half"));
    lab.do_systx(["commit", "-n", &id]).ok();
    before.assert_same(&lab.tree(), "a dry run of a commit");
    lab.do_systx(["abort", &id]).ok();
    before.assert_same(&lab.tree(), "aborted after review");
}

/// What is said, nobody may be there to read; what was done counts.
#[test]
fn the_exit_code_is_the_commands_when_nobody_reads_what_is_said() {
    let lab = lab!();
    let systx = lab.binary().display().to_string();
    let with_closed_pipe = |script: &str| {
        let program = format!(
            "import os, subprocess, sys; r, w = os.pipe(); os.close(r); \
             sys.exit(subprocess.run(['{systx}', 'run', '-v', '--', 'sh', '-c', '{script}'], stderr=w).returncode)"
        );
        lab.native(&format!("python3 -c \"{program}\"")).code
    };
    assert_eq!(with_closed_pipe("echo 1 > made"), 0);
    assert_eq!(lab.read("made"), "1\n");
    assert_eq!(with_closed_pipe("echo 2 > made; exit 3"), 3);
    assert_eq!(lab.read("made"), "1\n");
    for (how, path) in [("2>&-", "closed"), ("2>/dev/full", "full"), (">&- 2>&- <&-", "none")] {
        let said = lab.native(&format!("{systx} run -v -- sh -c 'echo 1 > {path}' {how}; echo $?"));
        assert_eq!((said.out.trim(), lab.read(path).trim()), ("0", "1"), "{how}");
        let said = lab
            .native(&format!("{systx} run -v -- sh -c 'echo 2 > {path}; exit 3' {how}; echo $?"));
        assert_eq!((said.out.trim(), lab.read(path).trim()), ("3", "1"), "{how}");
    }
    let error = lab.native(&format!("{systx} undo no-such-id 2>/dev/full; echo $?"));
    assert_eq!(error.out.trim(), "1");
}

#[test]
fn json_everywhere() {
    let lab = lab!();
    let done = lab.run(&["--json"], "echo x > new >&2").ok();
    assert!(
        done.out.lines().chain(done.err.lines()).any(|l| l.trim_start().starts_with('{')),
        "{done}"
    );
    for args in [&["list", "--json"][..], &["log", "--json"], &["doctor", "--json"]] {
        lab.do_systx(args).json();
    }
}

#[test]
fn many_runs_at_once_in_one_directory() {
    let lab = lab!();
    lab.write("shared", "unchanged\n");
    let runs: Vec<_> = (0..8)
        .map(|n| {
            let script =
                format!("cat shared; echo {n} > file-{n}; mkdir dir-{n}; mv file-{n} dir-{n}/");
            Running::start(lab.systx(["run", "--", "sh", "-c", &script]), Limits::default())
        })
        .collect();
    for run in runs {
        run.finish(&lab).ok();
    }
    for n in 0..8 {
        assert_eq!(lab.read(format!("dir-{n}/file-{n}")), format!("{n}\n"));
    }
}

#[test]
fn the_daemon_ends_when_idle_or_told_and_comes_back() {
    let lab = lab!();
    lab.run(&[], "echo 1 > a").ok();
    lab.kill_daemon();
    lab.run(&[], "cat a; echo 2 > b").ok();
    assert_eq!(lab.read("b"), "2\n");
}
