use super::*;

fn paths(mounts: &[&Mount]) -> Vec<(u64, String)> {
    mounts.iter().map(|m| (m.id, m.at.display().to_string())).collect()
}

#[test]
fn escapes_optional_fields_and_options() {
    let text =
        br"36 35 98:0 /mnt1 /mnt\0402\134x ro,noexec,noatime master:1 shared:2 - ext3 /dev/root rw
";
    let mounts = parse(text).unwrap();
    assert_eq!(mounts[0].at, Path::new(r"/mnt 2\x"));
    assert_eq!(mounts[0].root, Path::new("/mnt1"));
    assert_eq!((mounts[0].dev, mounts[0].fs.as_str()), ((98, 0), "ext3"));
    assert!(mounts[0].is_read_only());
    let limits = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    assert_eq!(mounts[0].limits, limits);
    assert!(parse(b"36 35 98:0 / /x rw shared:1 ext3").is_err());
    assert!(parse(b"nonsense").is_err());
}

#[test]
fn covered_mounts_are_left_out() {
    let text = b"1 0 8:1 / / rw - ext4 a rw
2 1 0:5 / /dev rw - devtmpfs d rw
3 2 0:6 / /dev/pts rw - devpts p rw
4 3 0:7 / /dev/pts rw - devpts p rw
5 1 0:8 / /a/b rw - tmpfs t rw
6 1 0:9 / /a rw - tmpfs t rw
7 5 0:10 / /a/b/c rw - tmpfs t rw
";
    let mounts = parse(text).unwrap();
    // 3 is covered by 4; 5 and with it 7 lie below the later 6.
    let expect =
        [(1, "/"), (2, "/dev"), (4, "/dev/pts"), (6, "/a")].map(|(i, p)| (i, p.to_owned()));
    assert_eq!(paths(&visible(&mounts)), expect);
}

#[test]
fn a_chroot_and_a_loop_do_no_harm() {
    // No mount at `/`: nothing can be said.
    let mounts = parse(b"1 9 8:1 / /srv rw - ext4 a rw\n").unwrap();
    assert!(visible(&mounts).is_empty());
    let mounts =
        parse(b"1 0 8:1 / / rw - ext4 a rw\n2 3 0:1 / /x rw - t t rw\n3 2 0:2 / /x rw - t t rw\n")
            .unwrap();
    assert_eq!(visible(&mounts).len(), 1);
}

#[test]
fn the_longest_mount_holds_a_path() {
    let text = b"1 0 8:1 / / rw - ext4 a rw
2 1 8:2 / /home rw - ext4 b rw
";
    let mounts = parse(text).unwrap();
    let visible = visible(&mounts);
    let at = |p: &str| holding(&visible, Path::new(p)).map(|m| m.id);
    assert_eq!(at("/home/u"), Some(2));
    assert_eq!(at("/homes"), Some(1));
}

#[test]
fn this_machine_can_be_read() {
    let text = std::fs::read("/proc/self/mountinfo").unwrap();
    let mounts = parse(&text).unwrap();
    let visible = visible(&mounts);
    assert_eq!(visible.first().map(|m| m.at.as_path()), Some(Path::new("/")));
}
