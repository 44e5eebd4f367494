//! A log-structured volume of an ordinary user's, which fusermount3 mounts: what works in it, what
//! nobody else gets at, what survives whom, and what is refused.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use systx_e2e::lab::{USER, find_program, guard_mounts, systx_binary, tool};
use systx_e2e::run::{Dialogue, Limits, Shell, finish};
use systx_e2e::volume::{Mounted, shell};
use systx_e2e::{Finished, Lab, lab, skip};

macro_rules! user_lab {
    () => {
        match lab!().as_known_user() {
            Ok(lab) => lab,
            Err(why) => skip!("{why}"),
        }
    };
}

/// A directory of the lab's user.
fn directory(lab: &Lab, name: &str) {
    lab.native(&format!("mkdir -p {name}")).ok();
}

/// That a command fails, and what it says.
#[track_caller]
fn refused(done: &Finished, why: &str) {
    assert!(done.code != 0 && done.err.contains(why), "{why}: {done}");
}

/// `systx` as root, whose daemon is another one, apart from the machine's.
fn as_root(lab: &Lab, args: &[&str]) -> Finished {
    let run = lab.outside().join("run-root");
    fs::create_dir_all(&run).unwrap();
    fs::set_permissions(&run, PermissionsExt::from_mode(0o700)).unwrap();
    let mut command = Command::new(systx_binary());
    command.args(args).current_dir(lab.root()).env("SYSTX_RUNTIME_DIR", run);
    finish(command, Limits::default(), lab)
}

/// Without sets of ids, owners and devices, which need privileges.
const WORK: &str = "set -e; umask 022; mkdir -p a/b; \
     for i in $(seq 200); do echo $i > a/f$i; done; \
     cp -a a copy; tar cf all.tar --sort=name a; mkdir x; tar xf all.tar -C x; ln copy/f1 hard; \
     find copy -name '*7' -delete; sed -i s/1/one/ x/a/f1*; mv x/a/b x/c; rm -r a; \
     ln -s copy/f2 link; cat link; mkfifo fifo; chmod 2711 x; chmod 4755 copy/f3; \
     touch -d 2001-02-03 copy/f5; rm all.tar";

#[test]
fn a_user_works_in_a_volume_as_in_a_directory_also_after_it_was_mounted_again() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    directory(&lab, "native");
    let native = lab.path("native");
    let want = shell(&lab, &native, 60, WORK).ok();
    assert_eq!(want.out, v.sh(WORK).ok().out);
    // By a user's eyes: nobody else sees it.
    let seen = |dir: &Path| {
        let script = "find . -type d -printf '%p d %m %U %G\n' \
             -o -printf '%p %y %m %n %s %U %G %l\n'; \
             find . -type f -exec cksum {} +; stat -c %Y copy/f5";
        let out = shell(&lab, dir, 60, script).ok().out;
        let mut lines: Vec<_> = out.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let tree = seen(&native);
    assert!(tree.iter().any(|line| line.starts_with("./copy/f3 f 4755")), "{tree:?}");
    assert_eq!(tree, seen(&v.dir), "native against the volume");
    v.again();
    assert_eq!(tree, seen(&v.dir), "native against the volume, mounted again");
    let listed = lab.do_systx(["mount"]).ok().out;
    assert!(listed.contains("volume in") && listed.contains(v.dir.to_str().unwrap()), "{listed}");
    // By those who know nothing of systx.
    shell(&lab, &lab.root(), 20, "fusermount3 -u v").ok();
    lab.until("it is closed", || lab.do_systx(["fsck", "image"]).code == 0);
    assert!(guard_mounts(&lab.root()).is_empty());
    // The other commands.
    for (size, is) in [("96M", 96), ("+16M", 112)] {
        lab.do_systx(["grow", "image", size]).ok();
        let space = lab.do_systx(["df", "image", "--json"]).ok().json();
        let bytes = space["space"]["size"].as_u64().unwrap();
        assert!(bytes > (is - 6) << 20 && bytes <= is << 20, "{size}: {space}");
    }
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(tree, seen(&v.dir), "native against the volume, after it was grown");
}

#[test]
fn nobody_else_enters_and_nothing_in_it_gives_rights() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    let uid = lab.uid().to_string();
    v.sh("set -e; chmod 777 .; echo mine > f; chmod 666 f; cp $(command -v id) id; chmod 6755 id")
        .ok();
    // The user whom no machine knows, and root.
    let ids = [format!("--reuid={USER}"), format!("--regid={USER}")];
    for ids in [&ids[..], &[]] {
        let script = format!("cat {}", v.path("f").display());
        let mut command = Command::new("setpriv");
        command.args(ids).args(["--clear-groups", "--", "sh", "-c", &script]);
        let done = finish(command, Limits::default(), &lab);
        assert!(done.code != 0 && done.err.contains("denied"), "{ids:?}: {done}");
    }
    // What only root may, and what nobody may for somebody else.
    for call in ["chown 0 f", "chgrp 0 f", "mknod null c 1 3", "setfattr -n trusted.a -v b f"] {
        if find_program(call.split(' ').next().unwrap()).is_some() {
            refused(&v.sh(call), "not permitted");
        }
    }
    assert_eq!(v.sh("stat -c %u:%g f").ok().out, format!("{uid}:{uid}\n"));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(v.dir.to_str().unwrap())).unwrap();
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
}

/// An image that root has made, with what would give rights on a disk of root's.
#[test]
fn an_image_of_somebody_else_gives_no_rights_and_no_daemon_dies_of_it() {
    let lab = user_lab!();
    let (image, w) = (lab.outside().join("theirs"), lab.outside().join("w"));
    let (file, dir) = (image.to_str().unwrap(), w.to_str().unwrap());
    fs::create_dir(&w).unwrap();
    as_root(&lab, &["mkfs", file, "--size", "4M"]).ok();
    as_root(&lab, &["mount", file, dir]).ok();
    let id = find_program("id").expect("coreutils");
    let script = format!(
        "set -e; cd {dir}; cp {} id; chmod 4755 id; mknod null c 1 3; chmod 666 null; \
         echo secret > secret; chmod 600 secret; mkdir -m 777 all; echo open > all/open; \
         for i in 1 2 3 4 5; do echo $i > f$i; done; sync f5",
        id.display()
    );
    tool(Command::new("sh").args(["-c", &script])).unwrap();
    // Root's daemon has it open.
    std::os::unix::fs::chown(&image, Some(lab.uid()), Some(lab.uid())).unwrap();
    directory(&lab, "v");
    refused(&lab.do_systx(["mount", file, "v"]), "mounted by another daemon");
    as_root(&lab, &["umount", dir]).ok();
    lab.do_systx(["mount", file, "v"]).ok();
    refused(&as_root(&lab, &["mount", file, dir]), "mounted by another daemon");
    let v = lab.path("v");
    let sh = |script: &str| shell(&lab, &v, 20, script);
    assert_eq!(sh("./id -u").ok().out, format!("{}\n", lab.uid()));
    refused(&sh("cat null"), "denied");
    refused(&sh("cat secret"), "denied");
    refused(&sh("echo x > new"), "denied");
    refused(&sh("chmod 777 ."), "not permitted");
    assert_eq!(
        sh("cat all/open; echo mine > all/mine; stat -c %u all/mine").ok().out,
        format!("open\n{}\n", lab.uid())
    );
    lab.do_systx(["umount", "v"]).ok();
    // Cut off, or damaged anywhere.
    let whole = fs::read(&image).unwrap();
    let mut refusals = 0;
    for n in 0..16 {
        let mut bytes =
            whole[..if n % 4 == 3 { whole.len() * n / 16 } else { whole.len() }].to_vec();
        for at in (n * 512..bytes.len()).step_by(4096 * (1 + n)).take(600) {
            bytes[at] ^= 0x55;
        }
        lab.write("torn", &bytes);
        let done = lab.do_systx(["mount", "torn", "v"]);
        if done.code == 0 {
            sh("ls -lR . > /dev/null; cat f* all/* > /dev/null; true").ok();
            lab.do_systx(["umount", "v"]).ok();
        } else {
            assert!(done.err.contains("torn"), "{done}");
            refusals += 1;
        }
        assert!(guard_mounts(&v).is_empty(), "{done}");
        assert_eq!(lab.daemons().len(), 1, "it died\n{}", lab.daemon_log());
    }
    assert!(refusals >= 6, "{refusals}");
    fs::write(lab.path("torn"), &whole).unwrap();
    lab.do_systx(["mount", "torn", "v"]).ok();
    assert_eq!(sh("cat f5").ok().out, "5\n");
    lab.do_systx(["umount", "v"]).ok();
}

#[test]
fn what_a_user_has_fsynced_survives_the_daemon_and_its_keeper() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    directory(&lab, "w");
    for round in 0..3 {
        v.sh(&format!("echo {round} > r{round}; sync r{round}; mkdir d{round}")).ok();
        lab.do_systx(["snapshot", "v", &format!("s{round}")]).ok();
        if round == 1 {
            lab.do_systx(["mount", "image", "w", "--at", "s0"]).ok();
        }
        lab.kill_and_come_back();
        assert_eq!(v.sh(&format!("cat r{round}; ls -d d*")).ok().out.lines().count(), 2 + round);
    }
    assert_eq!(shell(&lab, &lab.path("w"), 20, "cat r*").ok().out, "0\n", "the snapshot");
    // Nobody brings it back, and what is open says so.
    v.sh("echo last > last; sync last").ok();
    lab.kill_daemon_and_keeper();
    assert_ne!(v.sh("cat last").code, 0, "nobody serves it");
    assert!(lab.do_systx(["mount"]).ok().out.contains("volume in"));
    assert_eq!(v.sh("cat last").ok().out, "last\n");
    assert_eq!(guard_mounts(&v.dir).len(), 1, "the dead one is gone");
    // Nothing was written below the mount.
    lab.do_systx(["umount", "w"]).ok();
    v.umount();
    assert_eq!(fs::read_dir(&v.dir).unwrap().count(), 0);
    lab.do_systx(["mount", "image", "v"]).ok();
}

/// Somebody ends the connection, as the kernel lets the user do, or the keeper of a daemon that
/// hangs.
#[test]
fn a_users_connection_that_breaks_is_made_again() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("echo kept > kept; sync kept").ok();
    let listed = lab.do_systx(["mount", "--json"]).ok().json();
    let device = listed["volumes"][0]["dev"].as_u64().expect("a number");
    let (uid, connection) = (lab.uid(), rustix::fs::minor(device));
    // Where fusectl is not mounted at its place, in a namespace where it is.
    let script = format!(
        "cd /sys/fs/fuse/connections && if ! [ -e {connection} ]; then \
         mount -t fusectl none . && cd /sys/fs/fuse/connections; fi && \
         exec setpriv --reuid={uid} --regid={uid} --clear-groups \
         sh -c 'echo 1 > {connection}/abort'"
    );
    tool(Command::new("unshare").args(["-m", "sh", "-c", &script])).unwrap();
    lab.until("it is mounted again", || v.sh("cat kept").out == "kept\n");
    assert_eq!(guard_mounts(&v.dir).len(), 1, "the dead one is gone");
}

/// Root's daemon has guests then, and knows nothing of this volume.
#[test]
fn a_users_transaction_in_the_users_volume_is_not_asked_of_root() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    fs::create_dir(lab.path("g")).unwrap();
    as_root(&lab, &["mount", "g"]).ok();
    let guests = lab.outside().join("run-root-guests");
    assert!(guests.exists(), "root's daemon takes guests");
    for dir in ["v", "g"] {
        let mut command = lab.command("sh");
        command.args(["-c", "exec \"$SYSTX\" begin \"$1\"", "sh", dir]);
        command.env("SYSTX", lab.binary()).env("SYSTX_GUESTS_DIR", &guests);
        let begun = finish(command, Limits::default(), &lab).ok();
        let id = begun.out.split(' ').next().unwrap().to_owned();
        match dir {
            "v" => lab.do_systx(["abort", &id]).ok(),
            _ => as_root(&lab, &["abort", &id]).ok(),
        };
    }
    assert_eq!(v.sh("ls").ok().out, "");
    as_root(&lab, &["umount", "g"]).ok();
}

#[test]
fn a_users_snapshots_are_mounted_beside_the_live_tree() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    directory(&lab, "w");
    v.sh("echo then > f; mkdir d").ok();
    lab.do_systx(["snapshot", "v", "monday"]).ok();
    v.sh("echo now > f; rmdir d").ok();
    lab.do_systx(["mount", "image", "w", "--at", "monday"]).ok();
    let at = |name: &str, script: &str| shell(&lab, &lab.path(name), 20, script);
    assert_eq!(at("w", "cat f; ls -d d").ok().out, "then\nd\n");
    refused(&at("w", "echo x > f"), "Read-only");
    directory(&lab, "none");
    refused(&lab.do_systx(["mount", "image", "none", "--at", "tuesday"]), "no snapshot");
    assert!(guard_mounts(&lab.path("none")).is_empty(), "nothing is left");
    assert_eq!(at("v", "cat f; ls").ok().out, "now\nf\n");
    v.umount();
    assert_eq!(at("w", "cat f").ok().out, "then\n", "alone");
    lab.do_systx(["mount", "image", "v"]).ok();
    refused(&lab.do_systx(["snapshot", "v", "monday", "--delete"]), "is mounted");
    lab.do_systx(["umount", "w"]).ok();
    lab.do_systx(["snapshot", "image", "monday", "--delete"]).ok();
    assert_eq!(v.sh("cat f").ok().out, "now\n");
}

#[test]
fn a_users_volume_in_use_is_not_unmounted_but_by_force_and_loses_nothing() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    let mut command = lab.command("sh");
    command.args(["-c", "cd v && exec sh"]);
    let mut held = Shell::start(&lab, command);
    held.eval("exec 8> held; echo written >&8");
    let done = lab.do_systx(["umount", "v"]);
    refused(&done, "in use");
    assert!(done.err.contains("sh"), "it is named: {done}");
    lab.do_systx(["umount", "--force", "v"]).ok();
    held.try_eval("echo more >&8");
    assert!(guard_mounts(&v.dir).is_empty());
    lab.do_systx(["fsck", "image"]).ok();
    held.begin_exit(0);
    held.finished();
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(v.sh("cat held").ok().out, "written\n");
}

/// What runs a program that its user may not read hides what it holds; the kernel knows.
#[test]
fn a_users_volume_that_somebody_unseen_uses_is_not_unmounted() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    let cat = lab.outside().join("cat");
    let found = find_program("cat").expect("coreutils");
    tool(Command::new("install").args(["-m", "711"]).arg(found).arg(&cat)).unwrap();
    let mut command = lab.command("sh");
    command.args(["-c", "cd v && exec 8> held && exec \"$1\"", "sh"]).arg(&cat);
    let mut hidden = Dialogue::start(&lab, command);
    hidden.send("it runs\n");
    hidden.wait_for("it runs");
    let done = lab.do_systx(["umount", "v"]);
    refused(&done, "in use");
    assert!(!done.err.contains("cat"), "the test shows nothing if it is seen: {done}");
    v.sh("test -e held").ok();
    hidden.close().ok();
}

#[test]
fn what_a_user_cannot_mount_is_refused_with_the_reason_and_nothing_is_left() {
    let lab = user_lab!();
    lab.do_systx(["mkfs", "image", "--size", "8M"]).ok();
    directory(&lab, "v");
    let check = |done: Finished, why: &str| {
        refused(&done, why);
        assert!(guard_mounts(&lab.root()).is_empty(), "{done}");
        let listed = lab.do_systx(["mount", "--json"]).ok().json();
        assert_eq!(listed["volumes"].as_array().map(Vec::len), Some(0), "{done}");
        lab.do_systx(["fsck", "image"]).ok();
    };
    let mount = |file: &str, dir: &str| lab.do_systx(["mount", file, dir]);
    // Of root's directory, and root's image that may be read.
    fs::create_dir(lab.path("roots")).unwrap();
    fs::set_permissions(lab.path("roots"), PermissionsExt::from_mode(0o755)).unwrap();
    check(mount("image", "roots"), "roots");
    fs::copy(lab.path("image"), lab.path("theirs")).unwrap();
    fs::set_permissions(lab.path("theirs"), PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(fs::metadata(lab.path("theirs")).unwrap().uid(), 0);
    check(mount("theirs", "v"), "you may not read and write it");
    check(mount("nothing", "v"), "mkfs");
    lab.write("foreign", vec![b'x'; 1 << 20]);
    check(mount("foreign", "v"), "not a volume");
    // Its name is no option of the mount.
    lab.native("mv image 'image,suid,allow_other'").ok();
    mount("image,suid,allow_other", "v").ok();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(lab.path("v").to_str().unwrap())).unwrap();
    assert!(line.contains("nosuid") && line.contains("image,suid,allow_other"), "{line}");
    assert!(fs::read_dir(lab.path("v")).is_err(), "root is not let in");
    lab.do_systx(["umount", "v"]).ok();
    lab.native("mv 'image,suid,allow_other' image").ok();
    mount("image", "v").ok();
    lab.do_systx(["umount", "v"]).ok();
}

#[test]
fn without_fusermount3_a_user_is_told_what_to_install() {
    let lab = lab!().as_user();
    lab.do_systx(["mkfs", "image", "--size", "8M"]).ok();
    directory(&lab, "v");
    // A PATH with nothing but what starts systx here.
    let path = lab.outside().join("few");
    fs::create_dir(&path).unwrap();
    let setpriv = find_program("setpriv").expect("the lab's user is made by it");
    std::os::unix::fs::symlink(setpriv, path.join("setpriv")).unwrap();
    let mut command = lab.systx(["mount", "image", "v"]);
    command.env("PATH", &path);
    let done = finish(command, Limits::default(), &lab);
    refused(&done, "no fusermount3");
    refused(&done, "package fuse3");
    lab.do_systx(["fsck", "image"]).ok();
}
