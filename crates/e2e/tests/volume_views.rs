//! Views with a path in a log-structured volume that is mounted: what is of such volumes alone.
//! Everything else of such views is asked by the suite `views`, on a volume with
//! `SYSTX_E2E_FS=volume`.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use systx_e2e::open::Open;
use systx_e2e::run::{Limits, Running, eventually, finish};
use systx_e2e::volume::Mounted;
use systx_e2e::{CONFLICT, Lab, lab};

fn rw(path: &std::path::Path) -> File {
    File::options().read(true).write(true).open(path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

fn content(file: &File) -> String {
    let mut bytes = vec![0; 1 << 16];
    let n = file.read_at(&mut bytes, 0).expect("it is served");
    String::from_utf8_lossy(&bytes[..n]).into_owned()
}

fn run(v: &Mounted<'_>, script: &str) {
    let mut command = v.lab.systx(["run", "--", "sh", "-c", script]);
    command.current_dir(&v.dir);
    finish(command, Limits::seconds(60), v.lab).ok();
}

#[test]
fn whoever_uses_a_view_that_has_ended_uses_the_volume() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    for end in ["commit", "abort"] {
        v.sh("echo old > f; sync f").ok();
        let open = Open::begin(&lab, "v", &[]);
        open.sh("echo new > f").ok();
        let file = rw(&open.path.join("f"));
        let refused = lab.do_systx(["umount", "v"]).expect(CONFLICT);
        assert!(refused.err.contains(&open.id), "{refused}");
        open.systx(end).ok();
        let refused = lab.do_systx(["umount", "v"]).expect(CONFLICT);
        // By name: it is this process.
        let own = format!("{} (", std::process::id());
        assert!(refused.err.contains("in use") && refused.err.contains(&own), "{end}: {refused}");
        lab.do_systx(["umount", "--force", "v"]).ok();
        let errno = file.write_at(b"x", 0).unwrap_err().raw_os_error();
        // The kernel says which, by how the connection ended.
        let ended = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
        assert!(ended.contains(&errno), "{end}: {errno:?}");
        // The image is closed, whole, and can be mounted while that descriptor is still open.
        lab.do_systx(["fsck", "image"]).ok();
        lab.do_systx(["mount", "image", "v"]).ok();
        let want = if end == "commit" { "new\n" } else { "old\n" };
        assert_eq!(fs::read_to_string(v.path("f")).unwrap(), want);
        drop(file);
    }
    // Once nobody has it open any more, nothing is in the way.
    let open = Open::begin(&lab, "v", &[]);
    let file = rw(&open.path.join("f"));
    open.systx("commit").ok();
    drop(file);
    v.again();
}

#[test]
fn an_old_descriptor_is_the_file_also_when_commits_and_undo_rewrite_it() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("seq 3000 > f; seq 3000 > script; chmod 755 script").ok();
    let open = Open::begin(&lab, "v", &[]);
    open.sh("echo first > f; echo first > made").ok();
    let [f, made, script] = ["f", "made", "script"].map(|name| rw(&open.path.join(name)));
    open.systx("commit").ok();
    for round in 0..3 {
        let text = format!("round {round}\n");
        run(&v, &format!("for f in f made script; do printf '{text}' > $f; done"));
        for (file, name) in [(&f, "f"), (&made, "made"), (&script, "script")] {
            eventually(name, || content(file) == text);
            let (old, now) = (file.metadata().unwrap(), v.path(name).metadata().unwrap());
            assert_eq!(old.ino(), now.ino(), "{name}");
            file.write_all_at(b"ROUND", 0).unwrap();
            let read = fs::read_to_string(v.path(name)).unwrap();
            assert_eq!(read, text.replace("round", "ROUND"), "{name}");
        }
    }
    run(&v, "echo away > f");
    eventually("the commit", || content(&f) == "away\n");
    let mut undo = lab.systx(["undo"]);
    undo.current_dir(&v.dir);
    finish(undo, Limits::seconds(60), &lab).ok();
    eventually("the undo", || content(&f) == "ROUND 2\n");
    // What has no name any more is there for who has it open, and gone with that.
    v.sh("rm made f").ok();
    made.write_all_at(b"still", 0).unwrap();
    assert!(content(&made).starts_with("still"));
    assert_eq!(made.metadata().unwrap().nlink(), 0);
    drop((f, made, script));
    v.again();
}

#[test]
fn a_write_through_an_old_descriptor_is_a_plain_write_and_its_program_is_named() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo 1 > f; echo 1 > g").ok();
    let first = Open::begin(&lab, "v", &[]);
    let mut shell = lab.command("sh");
    shell.current_dir(&first.path);
    let mut shell = systx_e2e::Shell::start(&lab, shell);
    shell.eval("exec 3<>f; echo 2 > g");
    first.systx("commit").ok();
    let reader = Open::begin(&lab, "v", &[]);
    reader.sh("cat f; echo mine > mine").ok();
    shell.eval("echo from-the-shell >&3");
    // Plain programs see it at once.
    assert_eq!(v.sh("cat f g").ok().out, "from-the-shell\n2\n");
    let lost = reader.systx("commit").expect(CONFLICT);
    let named = lost.err.contains("v/f") && lost.err.contains("changed by sh (process");
    assert!(named, "{lost}");
    reader.systx("abort").ok();
    assert!(!v.path("mine").exists());
    // In the working directory, too.
    shell.eval("echo x > x; mkdir sub; mv x sub/y; rm g");
    assert_eq!(v.sh("cat sub/y; ls").ok().out, "x\nf\nsub\n");
    shell.exit(0).ok();
}

/// Programs that have an ended view open beside runs that make two files equal again and again:
/// who has seen one of a pair never finds the other one older, by names in that view.
#[test]
fn an_ended_view_shows_no_half_of_later_commits() {
    const COMMITS: u32 = 15;
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo 0 > x; echo 0 > y").ok();
    let open = Open::begin(&lab, "v", &[]);
    let dir = File::open(&open.path).unwrap();
    open.sh("echo begun > begun").ok();
    open.systx("commit").ok();
    let at = |name: &str| format!("/proc/self/fd/{}/{name}", std::os::fd::AsRawFd::as_raw_fd(&dir));
    let number = |name: &str| {
        let text = fs::read_to_string(at(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        text.trim().parse::<u32>().unwrap_or_else(|e| panic!("{name} {text:?}: {e}"))
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            loop {
                let (x, y) = (number("x"), number("y"));
                assert!(x <= y, "{x} {y}");
                if y == COMMITS {
                    return;
                }
            }
        });
        for n in 1..=COMMITS {
            run(&v, &format!("echo {n} > x.new; mv x.new x; echo {n} > y.new; mv y.new y"));
        }
        reader.join().expect("no half was seen");
    });
}

#[test]
fn a_daemon_that_is_killed_leaves_all_of_a_views_commit_or_nothing() {
    let lab: Lab = lab!();
    let v = Mounted::new(&lab);
    v.begin_rounds();
    let mut committed = 0;
    for round in 1..=5_u64 {
        let open = Open::begin(&lab, "v", &[]);
        let work = format!(
            "echo {round} > a; echo {round} > d/b; rm d/at-*; echo {round} > d/at-{round}; \
             head -c 3000000 /dev/zero > d/filler"
        );
        open.sh(&work).ok();
        // What is open over the commit is asked about in the mount itself, where it may be killed.
        let held = [rw(&open.path.join("a")), rw(&open.path.join("d/filler"))];
        let running = Running::start(lab.systx(["commit", &open.id]), Limits::seconds(60));
        // Some are killed before they decide, others after that.
        std::thread::sleep(std::time::Duration::from_millis((round - 1) * 12));
        lab.kill_and_come_back();
        let end = running.finish(&lab);
        drop(held);
        committed = v.all_or_nothing(committed, round, (end.code == 0, &end.to_string()));
        v.again();
    }
}

/// Where an image is does not matter to its mount, but an image without a name has no other way.
#[test]
fn a_volume_whose_image_was_removed_is_unmounted_by_force_only() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let elsewhere = lab.path("elsewhere");
    v.sh("echo kept > kept").ok();
    fs::rename(&v.image, &elsewhere).unwrap();
    v.umount();
    fs::rename(&elsewhere, &v.image).unwrap();
    v.mount();
    fs::create_dir(lab.path("then")).unwrap();
    lab.do_systx(["snapshot", "v", "now"]).ok();
    lab.do_systx(["mount", "image", "then", "--at", "now"]).ok();
    fs::remove_file(&v.image).unwrap();
    lab.do_systx(["umount", "then"]).ok();
    let refused = lab.do_systx(["umount", "v"]);
    assert!(refused.code == 1 && refused.err.contains("was removed"), "{refused}");
    assert_eq!(v.sh("cat kept").ok().out, "kept\n");
    lab.do_systx(["umount", "--force", "v"]).ok();
    lab.do_systx(["mkfs", "image", "--size", "16M"]).ok();
    v.mount();
}

/// A shell that was in a mount whose daemon was killed is nowhere: its directory was not removed.
#[test]
fn a_command_in_a_mount_that_is_gone_says_that() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let systx = lab.binary().display().to_string();
    let daemon = systx_e2e::lab::one(lab.daemons());
    let dir = v.dir.display();
    let done = v.sh(&format!(
        "kill -9 {daemon}; until ls {dir} > /dev/null 2>&1; do :; done; {systx} run -- true"
    ));
    assert!(done.code != 0 && done.err.contains("mounted again"), "{done}");
}
