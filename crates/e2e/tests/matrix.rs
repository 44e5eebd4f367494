//! One core scenario on each file system, as root and as an ordinary user, over io_uring and over
//! /dev/fuse.

use std::path::Path;
use systx_e2e::{CONFLICT, Fs, Lab, skip};

fn io_uring_is_on() -> bool {
    std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
        .is_ok_and(|v| v.trim() == "Y")
}

fn cells(fs: Fs, ordinary: bool) {
    for transport in ["io_uring", "dev"] {
        if transport == "io_uring" && !io_uring_is_on() {
            eprintln!("left out: io_uring: /sys/module/fuse/parameters/enable_uring is not Y");
            continue;
        }
        let lab = match Lab::on(fs) {
            Ok(lab) => lab,
            Err(why) => skip!("{}: {why}", fs.name()),
        };
        let lab = if ordinary { lab.as_user() } else { lab };
        eprintln!("{} {} {transport}", fs.name(), if ordinary { "user" } else { "root" });
        scenario(&lab, &format!("--transport={transport}"));
    }
}

/// Each kind of change that an ordinary user can make, commit, abort, keep, undo, both conflicts.
fn scenario(lab: &Lab, transport: &str) {
    lab.native(
        "mkdir -p d/sub e; echo 1 > d/1; echo 2 > d/2; ln d/1 d/hard; ln -s 1 d/soft; \
         head -c 300000 /dev/zero | tr '\\0' b > big; echo run > mode; chmod 644 mode; touch -d @1000 mode",
    )
    .ok();
    let before = tree(lab);
    let work = "cat d/1 big >/dev/null; echo new > new; mkdir -p n/m; echo x > n/m/x; mv d/2 e/two; rm d/soft; \
        ln big e/big2; printf Z | dd of=big bs=1 seek=150000 conv=notrunc 2>/dev/null; chmod 755 mode; mkfifo fifo; \
        mv d moved; echo more >> moved/1; ln -s nowhere s; truncate -s 1M sparse; touch -d @2000 e; \
        for i in $(seq 50); do echo $i > n/$i; done; rm n/2*; sync -f .";

    let done = lab.run(&[transport, "--on-exit=abort"], work).ok();
    assert_eq!(done.out, "");
    before.assert_same(&tree(lab), "aborted");
    lab.run(&[transport], &format!("{work}; exit 9")).expect(9);
    before.assert_same(&tree(lab), "failed");

    lab.run(&[transport, "--on-exit=keep"], work).ok();
    before.assert_same(&tree(lab), "kept");
    let id = lab.open_ids().remove(0);
    lab.do_systx(["diff", &id]).ok();
    lab.do_systx(["abort", &id]).ok();
    before.assert_same(&tree(lab), "kept, then aborted");

    lab.run(&[transport], work).ok();
    let after = tree(lab);
    assert_eq!(lab.read("moved/1"), "1\nmore\n");
    assert_eq!(lab.read("moved/hard"), "1\nmore\n");
    assert_eq!(lab.read("e/two"), "2\n");
    assert!(lab.read("big").len() == 300_000 && lab.read("big").contains('Z'));
    assert!(!lab.has("d") && lab.has("s") && lab.has("fifo") && !lab.has("n/20") && lab.has("n/3"));
    for path in after.paths() {
        let owner =
            std::os::unix::fs::MetadataExt::uid(&lab.path(path).symlink_metadata().unwrap());
        assert_eq!(owner, lab.uid(), "owner of {}", path.display());
    }
    lab.do_systx(["undo"]).ok();
    before.assert_same(&tree(lab), "undone");
    lab.do_systx(["redo"]).ok();
    after.assert_same(&tree(lab), "redone");

    // An outside edit, and another transaction.
    let mut one = lab.shell(&[transport]);
    one.eval("cat new > copy");
    lab.native("echo outside > new").ok();
    one.exit(0).expect(CONFLICT);
    assert_eq!(lab.read("new"), "outside\n");
    assert!(!lab.has("copy"));
    let mut one = lab.shell(&[transport]);
    let mut two = lab.shell(&[transport]);
    one.try_eval("cat mode; echo one > mode");
    two.try_eval("cat mode; echo two > mode");
    one.begin_exit(0);
    two.begin_exit(0);
    let mut codes = [one.finished().code, two.finished().code];
    codes.sort_unstable();
    assert_eq!(codes, [0, CONFLICT]);
    lab.do_systx(["gc"]).ok();
    lab.do_systx(["recover"]).ok();
    lab.do_systx(["doctor"]).ok();
}

/// Without the places where an ordinary user's store may be.
fn tree(lab: &Lab) -> systx_e2e::Tree {
    lab.tree().without(|p| p.starts_with(".local") || p.starts_with(".systx") || p == Path::new(""))
}

macro_rules! matrix {
    ($($name:ident: $fs:expr, $ordinary:expr;)*) => {
        $(#[test]
        fn $name() {
            cells($fs, $ordinary);
        })*
    };
}

matrix! {
    ext4_root: Fs::Ext4, false;
    ext4_user: Fs::Ext4, true;
    ext4_without_journal_root: Fs::Ext4NoJournal, false;
    ext4_without_journal_user: Fs::Ext4NoJournal, true;
    xfs_root: Fs::Xfs, false;
    xfs_user: Fs::Xfs, true;
    btrfs_root: Fs::Btrfs, false;
    btrfs_user: Fs::Btrfs, true;
    tmpfs_root: Fs::Tmpfs, false;
    tmpfs_user: Fs::Tmpfs, true;
    overlay_root: Fs::Overlay, false;
    overlay_user: Fs::Overlay, true;
}
