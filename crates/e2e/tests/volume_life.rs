//! A volume at the edges of its life as a mount: other mount namespaces, a volume that has stopped,
//! commands that come at once, and commands about it while programs work in it.

use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use systx_e2e::run::{Limits, Running, finish};
use systx_e2e::volume::Mounted;
use systx_e2e::{CONFLICT, Finished, Fs, Lab, lab, skip};

/// A process in a mount namespace of its own, which has what was mounted when it began.
struct Apart<'a> {
    lab: &'a Lab,
    child: Child,
}

impl<'a> Apart<'a> {
    /// What is mounted and unmounted outside is so here where `propagation` says it.
    fn new(lab: &'a Lab, propagation: &str) -> Apart<'a> {
        let mut command = lab.command("unshare");
        command.args(["-m", "--propagation", propagation, "sh", "-c", "echo apart; read line"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        Apart { lab, child }
    }

    /// Does something there, in the lab.
    fn sh(&self, script: &str) -> Finished {
        let (pid, root) = (self.child.id().to_string(), self.lab.root());
        let mut command = self.lab.command("nsenter");
        command.args(["-m", "-t", &pid, "sh", "-c", "cd \"$1\" && exec sh -c \"$2\"", "sh"]);
        command.arg(root).arg(script);
        finish(command, Limits::default(), self.lab)
    }

    /// Nobody serves what this asks for there: `ENOTCONN`, or `ECONNABORTED` if the kernel has the
    /// request before it has the end.
    fn is_refused(&self, script: &str) {
        let end = self.sh(script);
        let says = ["not connected", "connection abort"].iter().any(|text| end.err.contains(text));
        assert!(end.code != 0 && says, "{end}");
    }

    /// Unmounts something outside; whether it is said that it is still mounted there.  Other tests
    /// have their own namespaces.
    fn is_told_of_the_end_of(&self, what: &str) -> bool {
        let end = self.lab.do_systx(["umount", "--json", what]).ok().json();
        let notes = end["unmounted"]["notes"].as_array().unwrap();
        let named = format!("mount namespace of process {} (", self.child.id());
        notes.iter().any(|note| note.as_str().unwrap().contains(&named))
    }
}

/// The id of what is mounted there.
fn mount_id(lab: &Lab, dir: &str) -> String {
    let script = format!("findmnt -n -o ID --mountpoint {dir}");
    lab.native(&script).ok().out.trim().to_owned()
}

/// Mounts until one has this id, if the next ones do: it is in the directory that is returned. They
/// stay, so that each has another one.
fn mount_with(lab: &Lab, id: &str, prefix: &str) -> Option<String> {
    let script = format!(
        "for n in $(seq 16); do d={prefix}$n; mkdir $d && mount -t tmpfs tmpfs $d || exit 1; \
         [ $(findmnt -n -o ID --mountpoint $PWD/$d) != {id} ] || {{ echo $d; break; }}; done"
    );
    let found = lab.native(&script).ok().out.trim().to_owned();
    (!found.is_empty()).then_some(found)
}

impl Drop for Apart<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nothing there can be written to what is unmounted, so nothing is lost; and the user is told.
#[test]
fn a_volume_that_another_mount_namespace_has_is_dead_there_and_the_user_is_told() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo here > here").ok();
    for (round, what) in ["v", "image"].into_iter().enumerate() {
        let apart = Apart::new(&lab, "private");
        apart.sh(&format!("cat v/here && echo {round} > v/there-{round}")).ok();
        assert!(apart.is_told_of_the_end_of(what));
        apart.is_refused("echo lost > v/lost");
        apart.is_refused("cat v/here");
        lab.do_systx(["fsck", "image"]).ok();
        v.mount();
        assert_eq!(v.sh(&format!("cat there-{round}")).ok().out, format!("{round}\n"));
        // It is another mount, which is not seen there.
        apart.is_refused("cat v/here");
        apart.sh("umount v && test ! -e v/here").ok();
    }
    // Whoever is gone, or has it unmounted, is not named.
    let apart = Apart::new(&lab, "private");
    apart.sh("umount v").ok();
    assert!(!apart.is_told_of_the_end_of("v"));
    v.mount();
}

/// By umount(8), which the daemon does not hear of as long as it serves another namespace.
#[test]
fn a_volume_that_is_left_to_another_mount_namespace_is_served_there_until_it_is_ended() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let apart = Apart::new(&lab, "private");
    let elsewhere = "not mounted in this mount namespace";
    assert!(!lab.do_systx(["mount"]).ok().out.contains(elsewhere));
    lab.native("umount v").ok();
    assert!(lab.do_systx(["mount"]).ok().out.contains(elsewhere));
    assert!(!apart.sh(&format!("{} mount", lab.binary().display())).out.contains(elsewhere));
    apart.sh("echo after > v/after; sync v/after; cat v/after").ok();
    lab.native("mkdir w").ok();
    // Never two at once.
    lab.do_systx(["mount", "image", "w"]).expect(1).says("is mounted already");
    lab.do_systx(["fsck", "image"]).expect(CONFLICT);
    assert!(apart.is_told_of_the_end_of("v"));
    apart.is_refused("echo lost > v/lost");
    v.mount();
    assert_eq!(v.sh("cat after; ls").ok().out, "after\nafter\n");
}

/// The kernel gives the id of a mount that is gone to the next one: neither is what has it now
/// taken away, nor is it what was there before.
#[test]
fn a_mount_with_the_id_of_one_that_umount_has_taken_away_is_another_one() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    lab.write("g/file", "plain\n");
    lab.do_systx(["mount", "g"]).ok();
    let systx = lab.binary().display().to_string();
    for (what, remount) in [("v", "mount image v"), ("g", "mount g")] {
        let taken = (0..8).find_map(|attempt| {
            let apart = Apart::new(&lab, "private");
            let id = mount_id(&lab, what);
            lab.native(&format!("umount {what}")).ok();
            let other = mount_with(&lab, &id, &format!("{what}{attempt}-"));
            if other.is_none() {
                lab.do_systx(["umount", what]).ok();
                lab.do_systx(remount.split(' ')).ok();
            }
            other.map(|other| (apart, id, other))
        });
        let Some((apart, id, other)) = taken else {
            skip!("the ids went to mounts of other programs");
        };
        lab.write(format!("{other}/file"), "other\n");
        lab.native(&format!("cd {other} && {systx} run -- sh -c 'echo more >> file'")).ok();
        assert!(apart.is_told_of_the_end_of(what));
        assert_eq!(mount_id(&lab, &other), id);
        assert_eq!(lab.read(format!("{other}/file")), "other\nmore\n");
    }
    v.mount();
    lab.native("umount -l [vg]?-*").ok();
}

/// As what is guarded, below which the directory is.
#[test]
fn a_guarded_directory_that_another_mount_namespace_has_is_dead_there_and_the_user_is_told() {
    let lab = lab!();
    lab.write("g/file", "plain\n");
    lab.do_systx(["mount", "g"]).ok();
    let apart = Apart::new(&lab, "private");
    apart.sh("echo there >> g/file").ok();
    assert!(apart.is_told_of_the_end_of("g"));
    apart.is_refused("cat g/file");
    apart.sh("umount g && cat g/file").ok();
    assert_eq!(lab.read("g/file"), "plain\nthere\n");
}

/// The command that asks for the end of a mount is killed, at some moment: the volume is mounted or
/// it is not, what was synced is there, and nobody is in the way of the next mount.
#[test]
fn a_umount_that_is_killed_is_done_or_not_and_loses_nothing() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let mut killed = 0;
    for n in 0..16u32 {
        v.sh(&format!("echo {n} > f{n}; sync f{n}; head -c 2000000 /dev/urandom > bulk")).ok();
        let mut umount = Running::start(lab.systx(["umount", "v"]), Limits::default());
        // Somewhere on its way.
        std::thread::sleep(Duration::from_millis(u64::from(n) * 3));
        killed += u32::from(!umount.ended());
        umount.signal(Signal::KILL);
        umount.finish(&lab);
        let again = lab.do_systx(["umount", "v"]);
        assert!([0, 1].contains(&again.code), "{n}: {again}");
        lab.until("it is closed", || lab.do_systx(["fsck", "image"]).code == 0);
        v.mount();
        let all: String = (0..=n).map(|n| format!("{n}\n")).collect();
        let script = format!("for n in $(seq 0 {n}); do cat f$n; done; wc -c < bulk");
        assert_eq!(v.sh(&script).ok().out, all + "2000000\n", "{n}");
    }
    assert!(killed > 0, "all had ended before");
}

/// As with systemd, where all mounts are shared: what goes with a mount is no use of it, and what
/// stays is.
#[test]
fn where_mounts_are_shared_those_that_stay_are_named_and_those_that_go_along_are_not() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.umount();
    lab.native("mount --bind . . && mount --make-shared . && mkdir too && mount --bind . too").ok();
    // The one that is seen at the path of the lab.
    let sh = |script: &str| lab.native(&format!("cd $PWD && {script}"));
    let systx = lab.binary().display().to_string();
    sh(&format!("{systx} mount image v && echo kept > v/kept")).ok();
    let slave = Apart::new(&lab, "slave");
    slave.sh("cat v/kept too/v/kept").ok();
    sh("mkdir -p w && mount --bind v w").ok();
    sh(&format!("{systx} umount v")).expect(CONFLICT).says("is also mounted at");
    sh("cat w/kept v/kept && umount w").ok();
    assert!(!slave.is_told_of_the_end_of("v"));
    slave.sh("test ! -e v/kept && test ! -e too/v/kept").ok();
    sh("umount too").ok();
    lab.native("at=$PWD; cd / && umount \"$at\"").ok();
    v.mount();
    v.sh("cat kept").ok();
}

/// Of two that come at once one has it ended, and the other one is told that there is nothing.
#[test]
fn what_cannot_be_unmounted_is_said_by_what_was_named() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo kept > kept").ok();
    lab.native("mkdir w").ok();
    lab.do_systx(["snapshot", "v", "monday"]).ok();
    lab.do_systx(["mount", "image", "w", "--at", "monday"]).ok();
    let refused = lab.do_systx(["umount", "image"]).expect(1).says("/w").says("/v");
    refused.says("name the directory");
    lab.do_systx(["umount", "w"]).ok();
    let at_once = ["v", "image"].map(|what| {
        let umount = lab.systx(["umount", what]);
        move |lab: &Lab| finish(umount, Limits::default(), lab)
    });
    let ends = std::thread::scope(|scope| {
        let both = at_once.map(|umount| scope.spawn(|| umount(&lab)));
        both.map(|end| end.join().unwrap())
    });
    let refused: Vec<_> = ends.iter().filter(|end| end.code != 0).collect();
    let [refused] = refused[..] else { panic!("{} and {}", ends[0], ends[1]) };
    let says = ["is mounted nowhere", "no volume is mounted on it"];
    assert!(refused.code == 1 && says.iter().any(|s| refused.err.contains(s)), "{refused}");
    lab.do_systx(["fsck", "image"]).ok();
    v.mount();
    v.sh("cat kept").ok();
}

/// A volume of 32 MB whose image has holes, on a file system of which somebody else has the room.
fn on_a_full_disk(lab: &Lab) -> Mounted<'_> {
    let v = Mounted::sized(lab, "32M");
    v.umount();
    lab.native("cp --sparse=always image sparse && mv sparse image").ok();
    v.mount();
    v.sh("echo before > before; sync before").ok();
    let mut fill = File::create(lab.path("fill")).unwrap();
    while fill.write_all(&[7; 1 << 14]).and_then(|()| fill.sync_data()).is_ok() {}
    v
}

fn write_and_sync(path: &Path) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&vec![1; 1 << 20])?;
    file.sync_all()
}

/// Whoever looks is told, and what is said to be done helps.
#[test]
fn a_volume_that_has_stopped_says_so_with_why_and_what_to_do() {
    let lab = match Lab::sized(Fs::Ext4, 96) {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    let v = on_a_full_disk(&lab);
    assert!(!lab.do_systx(["mount"]).ok().out.contains("stopped"));
    let failed = (0..40).find(|n| write_and_sync(&v.path(&format!("f{n}"))).is_err());
    let failed = failed.expect("the disk is full");
    let is_told = |text: &str| {
        let parts = ["stopped: ", "No space left", "make room", "umount", "mount it again"];
        parts.iter().all(|part| text.contains(part))
    };
    let listed = lab.do_systx(["mount"]).ok().out;
    assert!(is_told(&listed), "{listed}");
    let json = lab.do_systx(["mount", "--json"]).ok().json();
    assert!(is_told(&format!("stopped: {}", json["volumes"][0]["stopped"])), "{json}");
    let top = lab.do_systx(["top", "--once"]).ok().out;
    assert!(is_told(&top), "{top}");
    for about in ["df", "fsck"] {
        let refused = lab.do_systx([about, "image"]).expect(CONFLICT);
        assert!(is_told(&refused.err), "{about}: {refused}");
    }
    // What is there can be read.
    assert_eq!(fs::read_to_string(v.path("before")).unwrap(), "before\n");
    fs::remove_file(lab.path("fill")).unwrap();
    let _ = lab.do_systx(["umount", "v"]);
    lab.do_systx(["fsck", "image"]).ok();
    v.mount();
    assert!(!lab.do_systx(["mount"]).ok().out.contains("stopped"));
    for n in 0..failed {
        assert_eq!(fs::read(v.path(&format!("f{n}"))).unwrap(), vec![1; 1 << 20], "f{n}");
    }
    write_and_sync(&v.path("after")).unwrap();
}
