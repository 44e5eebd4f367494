//! The commands for log-structured volumes, as a user calls them: on image files, without a daemon.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use systx_base::{Kind, Time};
use systx_lfs::device::FileDevice;
use systx_lfs::format::ROOT;
use systx_lfs::{Limits, Shape, Volume};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_systx"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }
    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
    /// What a command that succeeds says as JSON.
    fn json(&self, args: &[&str]) -> Value {
        let out = self.run(&[args, &["--json"]].concat());
        assert!(out.status.success(), "{args:?}: {out:?}");
        serde_json::from_slice(&out.stdout).unwrap()
    }
    /// What a command that fails says, which names a remedy.
    fn refused(&self, code: i32, args: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains("hint: "), "{args:?} names no remedy: {text}");
        text
    }
    fn is_whole(&self, image: &str) {
        let checked = self.json(&["fsck", image])["checked"]["findings"].clone();
        assert_eq!(checked, serde_json::json!([]), "{image}");
    }
    fn volume(&self, name: &str) -> Volume {
        let device = FileDevice::open(&self.path(name)).unwrap();
        let clock = Arc::new(Time::default);
        Volume::open(Arc::new(device), clock, 1, Limits::default()).unwrap()
    }
    /// Makes a file in a volume.
    fn put(&self, image: &str, name: &str, content: &[u8]) {
        let volume = self.volume(image);
        volume
            .plain(|ops| {
                let f = ops.create(ROOT, name.as_bytes(), &Shape::new(Kind::File, 0o644))?;
                ops.write(f, 0, content)
            })
            .unwrap();
        volume.close().unwrap();
    }
    /// The names in a volume.
    fn names(&self, image: &str) -> Vec<String> {
        let listed = self.volume(image).look(|ops| ops.list(ROOT, None, 100)).unwrap();
        listed.into_iter().map(|(name, _)| String::from_utf8(name).unwrap()).collect()
    }
    fn stream(&self, args: &[&str], to: &str) -> String {
        let out = File::create(self.path(to)).unwrap();
        let out = self.command(args).stdout(out).output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{args:?}: {text}");
        text
    }
    fn received(&self, image: &str, from: &str) -> Output {
        let from = File::open(self.path(from)).unwrap();
        self.command(&["receive", image]).stdin(from).output().unwrap()
    }
}

fn number(of: &Value, what: &str) -> u64 {
    of[what].as_u64().unwrap_or_else(|| panic!("{what}: {of}"))
}

#[test]
fn a_new_image_is_checked_measured_and_made_larger() {
    let place = Place::new();
    let made = place.json(&["mkfs", "disk", "--size", "8M", "--label", "work"])["made"].clone();
    assert_eq!((number(&made, "size"), &made["label"]), (8 << 20, &"work".into()));
    assert_eq!(std::fs::metadata(place.path("disk")).unwrap().len(), 8 << 20);
    place.is_whole("disk");
    let before = place.json(&["df", "disk"])["space"].clone();
    assert_eq!((&before["label"], number(&before, "snapshots")), (&"work".into(), 0));
    place.put("disk", "f", &[1; 100_000]);
    let used = number(&place.json(&["df", "disk"])["space"], "used");
    assert!(used > number(&before, "used") + 100_000, "{used} {before}");
    let grown = place.json(&["grow", "disk", "16M"])["grown"].clone();
    assert_eq!((number(&grown, "before"), number(&grown, "size")), (8 << 20, 16 << 20));
    let after = place.json(&["df", "disk"])["space"].clone();
    assert!(number(&after, "total") > number(&before, "total") + (5 << 20), "{before} {after}");
    place.is_whole("disk");
    assert_eq!(place.names("disk"), ["f"]);
    // A device that has become larger: the volume takes all of it.
    File::options().write(true).open(place.path("disk")).unwrap().set_len(20 << 20).unwrap();
    place.is_whole("disk");
    assert_eq!(number(&place.json(&["grow", "disk"])["grown"], "size"), 20 << 20);
    place.refused(1, &["grow", "disk"]);
    assert!(place.refused(1, &["grow", "disk", "4M"]).contains("does not shrink"));
    place.is_whole("disk");
}

/// The copy of the super block is no longer in the last block of a file that is made longer.
#[test]
fn a_volume_grows_also_by_the_copy_of_its_super_block() {
    let place = Place::new();
    place.json(&["mkfs", "disk", "--size", "4M"]);
    place.put("disk", "f", b"1");
    damage(&place.path("disk"), 0);
    place.json(&["grow", "disk", "6M"]);
    place.is_whole("disk");
    assert_eq!(place.names("disk"), ["f"]);
}

/// What somebody may need is not written over.
#[test]
fn a_volume_is_made_over_nothing_but_by_force() {
    let place = Place::new();
    place.json(&["mkfs", "disk", "--size", "4M"]);
    place.put("disk", "mine", b"x");
    let text = place.refused(75, &["mkfs", "disk"]);
    assert!(text.contains("disk: it is not empty: it has a log-structured volume"), "{text}");
    assert_eq!(place.names("disk"), ["mine"]);
    std::fs::write(place.path("text"), [vec![0; 3 << 20], b"data".to_vec()].concat()).unwrap();
    assert!(place.refused(75, &["mkfs", "text", "--size", "8M"]).contains("text: it is not empty"));
    assert_eq!(std::fs::metadata(place.path("text")).unwrap().len(), (3 << 20) + 4);
    // A file of holes or zeros has nothing.
    File::create(place.path("holes")).unwrap().set_len(4 << 20).unwrap();
    place.json(&["mkfs", "holes"]);
    std::fs::write(place.path("zeros"), vec![0; 4 << 20]).unwrap();
    place.json(&["mkfs", "zeros"]);
    place.json(&["mkfs", "disk", "--force"]);
    assert_eq!(place.names("disk"), [""; 0]);
    // What is in use is in use, also for --force.
    let held = place.volume("disk");
    assert!(place.refused(75, &["mkfs", "disk", "--force"]).contains("another process"));
    drop(held);
}

#[test]
fn what_cannot_be_a_volume_is_refused_and_stays() {
    let place = Place::new();
    place.refused(1, &["mkfs", "disk"]);
    place.refused(1, &["mkfs", "disk", "--size", "1M"]);
    place.refused(1, &["mkfs", "disk", "--size", "900000T"]);
    place.refused(1, &["mkfs", "no/such/disk", "--size", "4M"]);
    place.refused(1, &["mkfs", "."]);
    place.refused(1, &["mkfs", "/dev/null", "--force"]);
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 0);
    std::fs::write(place.path("text"), "not a volume").unwrap();
    for command in ["fsck", "df", "grow", "snapshots", "send", "receive", "clean"] {
        for file in ["text", "nothing", "."] {
            let text = place.refused(1, &[command, file]);
            assert!(text.contains(&format!("systx: {file}: ")), "{command}: {text}");
        }
    }
    assert_eq!(std::fs::read(place.path("text")).unwrap(), b"not a volume");
}

#[test]
fn a_volume_that_is_in_use_is_left_alone() {
    let place = Place::new();
    place.json(&["mkfs", "disk", "--size", "4M"]);
    let held = place.volume("disk");
    for command in ["fsck", "df", "grow", "snapshots", "send", "receive", "clean"] {
        let text = place.refused(75, &[command, "disk"]);
        assert!(text.contains("disk: it is mounted, or another process works on it"), "{text}");
    }
    place.refused(75, &["snapshot", "disk", "now"]);
    held.close().unwrap();
    place.json(&["df", "disk"]);
}

#[test]
fn snapshots_are_made_listed_and_removed() {
    let place = Place::new();
    place.json(&["mkfs", "disk", "--size", "4M"]);
    place.put("disk", "a", b"1");
    place.json(&["snapshot", "disk", "one"]);
    assert!(place.refused(1, &["snapshot", "disk", "one"]).contains("\"one\" already"));
    place.refused(1, &["snapshot", "disk", "two", "--delete"]);
    let bad = place.run(&["snapshot", "disk", "a/b"]);
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    let listed = place.json(&["snapshots", "disk"])["snapshots"].clone();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &"one".into()));
    place.json(&["snapshot", "disk", "one", "--delete"]);
    assert_eq!(place.json(&["snapshots", "disk"])["snapshots"], serde_json::json!([]));
}

/// A lost image comes back from the last whole stream and the differences after it.
#[test]
fn a_copy_follows_by_streams_and_refuses_what_does_not_fit() {
    let place = Place::new();
    place.json(&["mkfs", "disk", "--size", "8M"]);
    place.refused(1, &["send", "disk"]);
    place.put("disk", "a", &[7; 50_000]);
    place.json(&["snapshot", "disk", "one"]);
    place.stream(&["send", "disk"], "whole");
    place.put("disk", "b", b"2");
    place.json(&["snapshot", "disk", "two"]);
    let said = place.stream(&["send", "disk", "--since", "one"], "more");
    assert!(said.contains("sent \"two\" since \"one\""), "{said}");
    place.refused(1, &["send", "disk", "one", "--since", "none"]);

    place.json(&["mkfs", "copy", "--size", "6M"]);
    let early = place.received("copy", "more");
    assert_eq!(early.status.code(), Some(1), "a difference to nothing: {early:?}");
    // Cut off: nothing changes.
    let whole = std::fs::read(place.path("whole")).unwrap();
    std::fs::write(place.path("cut"), &whole[..whole.len() / 2]).unwrap();
    let cut = place.received("copy", "cut");
    assert!(String::from_utf8_lossy(&cut.stderr).contains("nothing has changed"), "{cut:?}");
    assert_eq!(place.names("copy"), [""; 0]);
    assert!(place.received("copy", "whole").status.success());
    assert_eq!(place.names("copy"), ["a"]);
    let again = place.received("copy", "whole");
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(place.received("copy", "more").status.success());
    assert_eq!(place.names("copy"), ["a", "b"]);
    let names = |file: &str| {
        let all = place.json(&["snapshots", file])["snapshots"].clone();
        all.as_array().unwrap().iter().map(|s| s["name"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("copy"), names("disk"));
    place.is_whole("copy");
}

fn damage(image: &Path, block: u64) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, block * 4096 + 30).unwrap();
    file.write_all_at(&[!byte[0]], block * 4096 + 30).unwrap();
}

/// Damage is named, and never passed over by an older state.
#[test]
fn damage_is_named_with_its_block_and_what_to_do() {
    let place = Place::new();
    place.json(&["mkfs", "disk", "--size", "4M"]);
    place.put("disk", "a", b"1");
    damage(&place.path("disk"), 1);
    let found = place.run(&["fsck", "disk"]);
    assert_eq!(found.status.code(), Some(1));
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(text.starts_with("disk: Checkpoint at block 1: "), "{text}");
    // The next openings make it whole.
    place.put("disk", "b", b"2");
    place.is_whole("disk");
    let both = |region: [u64; 2]| region.iter().for_each(|at| damage(&place.path("disk"), *at));
    let refused = [[1, 2], [3, 4]].map(|region| {
        both(region);
        let out = place.run(&["df", "disk"]);
        both(region);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        let named = text.contains(&format!("damaged Checkpoint at block {}", region[0]));
        assert!(out.status.success() || named && text.contains("systx receive"), "{text}");
        !out.status.success()
    });
    assert!(refused[0] != refused[1], "one of both regions has the newest checkpoint");
    assert_eq!(place.names("disk"), ["a", "b"]);
}

/// Nobody goes on from an older state, in which what was lost is never told, but who says so.
#[test]
fn a_log_that_breaks_off_is_opened_when_somebody_gives_up_what_is_lost() {
    let place = Place::new();
    place.json(&["mkfs", "disk", "--size", "4M"]);
    place.json(&["snapshot", "disk", "empty"]);
    let volume = place.volume("disk");
    for name in [b"a", b"b", b"c"] {
        volume.plain(|ops| ops.create(ROOT, name, &Shape::new(Kind::File, 0o644))).unwrap();
        volume.sync().unwrap();
    }
    drop(volume);
    let image = std::fs::read(place.path("disk")).unwrap();
    let summaries = image.chunks_exact(4096).zip(0..).filter(|(b, _)| b.starts_with(b"SXPC"));
    let position = |block: &[u8]| u64::from_le_bytes(block[32..40].try_into().unwrap());
    let mut pieces: Vec<(u64, u64)> = summaries.map(|(b, at)| (position(b), at)).collect();
    pieces.sort_unstable();
    let [.., (_, second), _] = pieces[..] else { panic!("{pieces:?}") };
    damage(&place.path("disk"), second);
    for command in [&["clean", "disk"][..], &["snapshot", "disk", "late"]] {
        let text = place.refused(1, command);
        assert!(text.contains(&format!("damaged Summary at block {second}")), "{text}");
    }
    assert!(place.refused(1, &["fsck", "disk"]).contains("--cut-log"));
    place.stream(&["send", "disk", "empty"], "stream");
    let cut = place.json(&["fsck", "disk", "--cut-log"]);
    assert_eq!(cut["checked"]["findings"], serde_json::json!([]));
    assert_eq!(place.names("disk"), ["a"]);
}

#[test]
fn cleaning_loses_nothing_and_stops_where_it_should() {
    let place = Place::new();
    place.json(&["mkfs", "disk", "--size", "8M"]);
    for n in 0..8 {
        place.put("disk", &format!("f{n}"), &[n; 300_000]);
    }
    let volume = place.volume("disk");
    for round in 0..160 {
        let name = format!("f{}", round % 8);
        volume
            .plain(|ops| {
                let f = ops.lookup(ROOT, name.as_bytes())?.ino;
                ops.write(f, round * 37 % 70 * 4096, &[9; 4096])
            })
            .unwrap();
        volume.sync().unwrap();
    }
    volume.close().unwrap();
    let before = place.names("disk");
    let idle = place.json(&["clean", "disk", "--policy", "idle"])["cleaned"].clone();
    assert!(number(&idle, "coalesced") > 0, "{idle}");
    for policy in ["greedy", "cost-benefit"] {
        let done = place.json(&["clean", "disk", "--policy", policy])["cleaned"].clone();
        assert!(number(&done, "free") >= number(&done, "free_before"), "{done}");
    }
    let done = place.json(&["clean", "disk", "--until", "1%"])["cleaned"].clone();
    assert_eq!((number(&done, "moved"), number(&done, "emptied")), (0, 0), "enough is free");
    place.is_whole("disk");
    assert_eq!(place.names("disk"), before);
    assert_eq!(place.run(&["clean", "disk", "--until", "x"]).status.code(), Some(2));
}
