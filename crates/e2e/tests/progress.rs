//! How far a long commit is, on a terminal, and nowhere else. A frozen disk makes every commit
//! long.

use systx_e2e::lab::{Frozen, Lab, find_program};
use systx_e2e::run::{Dialogue, Limits, finish};
use systx_e2e::{FAILED, Fs, lab, skip};

/// What a line begins with that tells how far something is.
const PHASES: [&str; 4] = ["checking", "saving for undo", "syncing", "installing"];

/// Why this cannot be seen here.
fn impossible(lab: &Lab) -> Option<&'static str> {
    let no_script = || find_program("script").is_none();
    let no_terminal = || no_script().then_some("no script(1) to make a terminal with");
    Frozen::impossible(lab).or_else(no_terminal)
}

/// A command on a terminal of its own.
fn on_terminal<'a>(lab: &'a Lab, line: &str) -> Dialogue<'a> {
    let mut command = lab.command("script");
    command.args(["-qec", line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
    Dialogue::start(lab, command)
}

/// A run that makes `count` files in `dir` and ends when a line is typed.
fn run(lab: &Lab, options: &str, dir: &str, count: u32) -> String {
    let make = format!(
        "mkdir {dir}; seq {count} | sed s,^,{dir}/, | xargs touch; echo re\"\"ady; read go"
    );
    format!("{} run {options} -- sh -c '{make}'", lab.binary().display())
}

/// The number behind ` of `, after what comes before it was waited for.
fn total(terminal: &mut Dialogue<'_>, phase: &str) -> u64 {
    terminal.wait_for(&format!("systx: {phase} ["));
    terminal.wait_for(" of ");
    let text = terminal.wait_for("\u{1b}[");
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|e| panic!("{e}: {text:?}"))
}

#[test]
fn a_terminal_shows_how_far_a_commit_and_an_undo_are() {
    let lab = lab!();
    if let Some(why) = impossible(&lab) {
        skip!("{why}");
    }
    // The store is there.
    lab.run(&[], "echo x > first").ok();
    let mut terminal = on_terminal(&lab, &run(&lab, "", "many", 3000));
    terminal.wait_for("ready");
    let frozen = lab.freeze();
    terminal.send("\n");
    let names = total(&mut terminal, "checking");
    assert!(names >= 3000, "{names}");
    // A commit that is under way is not ended by this.
    terminal.send("\u{3}");
    drop(frozen);
    let rest = terminal.wait_for("committed");
    let is_gone = rest.contains("\u{1b}[2K") && !rest.contains('\n');
    assert!(is_gone, "the line was taken back: {rest:?}");
    // script(1) passes it on when it gets to that: perhaps only when all is committed, and then it
    // ends the client.
    let ended = terminal.close();
    assert!([0, 130].contains(&ended.code), "{ended:?}");
    assert_eq!(std::fs::read_dir(lab.path("many")).unwrap().count(), 3000);

    let frozen = lab.freeze();
    let mut terminal = on_terminal(&lab, &format!("{} undo", lab.binary().display()));
    let names = total(&mut terminal, "checking");
    assert!(names >= 3000, "{names}");
    drop(frozen);
    let rest = terminal.wait_for("undone");
    let is_gone = rest.contains("\u{1b}[2K") && !rest.contains('\n');
    assert!(is_gone, "the line was taken back: {rest:?}");
    terminal.close().ok();
    assert!(!lab.has("many"));
}

/// Holds a lease of a file: whoever opens that to write waits, and the holder says so.
const LEASE: &str = "import fcntl, os, signal, sys\n\
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})\n\
    fcntl.fcntl(os.open(sys.argv[1], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)\n\
    print('held', flush=True)\n\
    signal.sigwait({signal.SIGIO})\n\
    print('wanted', flush=True)\n\
    sys.stdin.read()\n";

#[test]
fn a_terminal_shows_how_far_a_recovery_is() {
    let lab = lab!();
    for program in ["script", "python3"] {
        if find_program(program).is_none() {
            skip!("there is no {program}");
        }
    }
    lab.write("held", "old\n");
    lab.run(&[], "echo x > first").ok();
    let mut run = lab.shell(&[]);
    run.eval("mkdir many; seq 3000 | sed s,^,many/, | xargs touch; echo new >> held");
    let lease = || {
        let mut holder = lab.command("python3");
        holder.args(["-c", LEASE]).arg(lab.path("held"));
        let mut holder = Dialogue::start(&lab, holder);
        holder.wait_for("held");
        holder
    };
    // So the daemon is killed when the run is committed, and nothing of it is in place yet.
    let mut held = lease();
    run.begin_exit(0);
    held.wait_for("wanted");
    lab.kill_daemon();
    run.finished().expect(FAILED);
    held.close().ok();
    assert!(!lab.has("many"));

    let mut held = lease();
    let mut terminal = on_terminal(&lab, &format!("{} recover", lab.binary().display()));
    held.wait_for("wanted");
    let names = total(&mut terminal, "installing");
    assert!(names >= 3000, "{names}");
    held.close().ok();
    let rest = terminal.wait_for("1 committed transactions installed");
    let is_gone = rest.contains("\u{1b}[2K") && !rest.contains('\n');
    assert!(is_gone, "the line was taken back: {rest:?}");
    terminal.close().ok();
    assert_eq!(std::fs::read_dir(lab.path("many")).unwrap().count(), 3000);
    assert_eq!(lab.read("held"), "old\nnew\n");
}

#[test]
fn without_a_terminal_or_with_quiet_nothing_of_it_is_printed() {
    let lab = lab!();
    if let Some(why) = impossible(&lab) {
        skip!("{why}");
    }
    lab.run(&[], "echo x > first").ok();
    let err = lab.outside().join("err");
    let mut piped = lab.command("sh");
    piped.args(["-c", &format!("{} 2>{}", run(&lab, "", "piped", 10), err.display())]);
    let mut piped = Dialogue::start(&lab, piped);
    let mut quiet = on_terminal(&lab, &run(&lab, "--quiet", "quiet", 10));
    let mut json = on_terminal(&lab, &run(&lab, "--json", "json", 10));
    let mut shown = on_terminal(&lab, &run(&lab, "", "shown", 10));
    for run in [&mut piped, &mut quiet, &mut json, &mut shown] {
        run.wait_for("ready");
    }
    let frozen = lab.freeze();
    for run in [&mut piped, &mut quiet, &mut json, &mut shown] {
        run.send("\n");
    }
    // The others have waited as long as this one, which began last, and says nothing else.
    shown.wait_for("systx: ");
    drop(frozen);
    shown.close().ok();
    piped.close().ok();
    let texts =
        [std::fs::read_to_string(err).unwrap(), quiet.close().ok().out, json.close().ok().out];
    assert!(texts[0].contains("committed") && texts[2].contains("committed"), "{texts:?}");
    for text in &texts {
        let line = |phase: &&str| text.contains(&format!("systx: {phase}"));
        assert!(!PHASES.iter().any(line) && !text.contains('\u{1b}'), "{text:?}");
    }
}

#[test]
fn a_hundred_thousand_files_show_every_phase() {
    if std::env::var_os("SYSTX_LONG").is_none() {
        skip!("long");
    }
    let lab = match Lab::sized(Fs::default_for_suites(), 2000) {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    if let Some(why) = impossible(&lab) {
        skip!("{why}");
    }
    let mut terminal = on_terminal(&lab, &run(&lab, "", "many", 100_000));
    terminal.wait_for("ready");
    terminal.send("\n");
    assert!(total(&mut terminal, "installing") >= 100_000);
    terminal.wait_for("committed");
    terminal.close().ok();
    let mut command = lab.command(lab.binary());
    command.arg("undo");
    let undone = finish(command, Limits::default(), &lab).ok();
    assert!(!undone.err.contains('\u{1b}') && !lab.has("many"), "{undone}");
}
