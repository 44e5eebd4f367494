use super::*;
use crate::mountinfo::parse;

/// `id parent major:minor root at fs`, one a line.
fn mounts(text: &str) -> Vec<Mount> {
    let text: String = text
        .lines()
        .map(|l| {
            let (place, fs) = l.trim().rsplit_once(' ').unwrap();
            format!("{place} rw - {fs} src rw\n")
        })
        .collect();
    parse(text.as_bytes()).unwrap()
}

const HOST: &str = "1 0 8:1 / / ext4
    2 1 0:2 / /proc proc
    3 1 0:3 / /sys sysfs
    4 3 0:4 / /sys/fs/cgroup cgroup2
    5 1 0:5 / /dev devtmpfs
    6 5 0:6 / /dev/pts devpts
    7 5 0:7 / /dev/shm tmpfs
    8 1 0:8 / /run tmpfs
    9 8 0:9 / /run/user/1000 tmpfs
    10 1 8:2 / /home ext4
    11 10 0:11 / /home/u/mnt fuse.sshfs
    12 10 8:1 /var/data /home/data ext4";

fn wish(volume: &str) -> Wish {
    Wish {
        volume: volume.into(),
        passthrough: vec![],
        unprotected: vec![],
        private: vec![("/run".into(), 0o755), ("/dev/shm".into(), 0o1777)],
        guarded: vec![],
        others: vec![],
    }
}

fn show(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .map(|s| match s {
            Step::RootVolume(0) => "volume / <- .".to_owned(),
            Step::RootVolume(n) => format!("volume {n}: / <- ."),
            Step::RootHost => "host /".to_owned(),
            Step::Volume { volume: 0, sub, at } => {
                format!("volume {} <- {}", at.display(), sub.display())
            }
            Step::Volume { volume, sub, at } => {
                format!("volume {volume}: {} <- {}", at.display(), sub.display())
            }
            Step::Host { at } => format!("host {}", at.display()),
            Step::Limit { at, limits } => {
                let all = systx_base::proc::LIMITS;
                let names = all.iter().filter(|(_, limit)| limits.bits() & limit != 0);
                let names: Vec<_> = names.map(|(name, _)| *name).collect();
                format!("{} {}", names.join(","), at.display())
            }
            Step::Private { at, mode } => format!("private {} {mode:o}", at.display()),
        })
        .collect()
}

#[test]
fn the_root_file_system_is_the_volume() {
    let plan = plan(&mounts(HOST), &wish("/")).unwrap();
    assert_eq!(
        show(&plan),
        [
            "volume / <- .",
            "host /dev",
            "private /dev/shm 1777",
            "host /home",
            "ro /home",
            "volume /home/data <- var/data",
            "ro /home/u/mnt",
            "host /proc",
            "private /run 755",
            "host /sys",
        ]
    );
}

#[test]
fn another_mount_is_the_volume() {
    let plan = plan(&mounts(HOST), &wish("/home")).unwrap();
    assert_eq!(
        show(&plan),
        [
            "host /",
            "ro /",
            "private /dev/shm 1777",
            "volume /home <- ",
            "host /home/data",
            "ro /home/data",
            "host /home/u/mnt",
            "ro /home/u/mnt",
            "private /run 755",
        ]
    );
}

#[test]
fn a_plain_directory_is_the_volume_wherever_it_can_be_seen() {
    let text = "1 0 8:1 / / ext4
        2 1 0:2 / /proc proc
        3 1 8:1 /srv /mnt/bind ext4
        4 1 8:1 /srv/tree/sub /mnt/deep ext4
        5 1 8:1 /etc /mnt/etc ext4
        6 1 0:9 / /srv/tree/tmp tmpfs";
    let plan =
        plan(&mounts(text), &Wish { volume: "/srv/tree".into(), ..Wish::default() }).unwrap();
    assert_eq!(
        show(&plan),
        [
            "host /",
            "ro /",
            "host /dev",
            "ro /mnt/bind",
            "volume /mnt/bind/tree <- ",
            "volume /mnt/deep <- sub",
            "ro /mnt/etc",
            "volume /srv/tree <- ",
            "host /srv/tree/tmp",
            "ro /srv/tree/tmp",
            "host /sys",
        ]
    );
    assert_eq!(plan.notes.len(), 1);
    assert!(plan.notes[0].starts_with("/mnt/etc is another part"));
}

#[test]
fn a_volume_inside_a_private_place_stays_in_sight() {
    let plan = plan(&mounts(HOST), &wish("/dev/shm/tree")).unwrap();
    let steps = show(&plan);
    let private = steps.iter().position(|s| s == "private /dev/shm 1777").unwrap();
    assert_eq!(steps[private + 1], "volume /dev/shm/tree <- ");
    // And a private place that is the volume is not private.
    let plan = super::plan(&mounts(HOST), &wish("/dev/shm")).unwrap();
    assert!(show(&plan).contains(&"volume /dev/shm <- ".to_owned()));
    assert!(!show(&plan).iter().any(|s| s.starts_with("private /dev/shm")));
}

#[test]
fn what_is_excluded_is_the_host_and_writable() {
    let mut wish = wish("/");
    wish.passthrough = vec!["/home/u".into(), "/run/docker.sock".into(), "/var/cache".into()];
    let plan = plan(&mounts(HOST), &wish).unwrap();
    let steps = show(&plan);
    for step in ["host /home/u", "host /run/docker.sock", "host /var/cache"] {
        assert!(steps.contains(&step.to_owned()), "{step} in {steps:?}");
    }
    // With what is mounted in it.
    assert!(!steps.contains(&"ro /home/u/mnt".to_owned()), "{steps:?}");
    assert!(!steps.iter().any(|s| s == "ro /var/cache" || s == "ro /home/u"), "{steps:?}");
}

#[test]
fn the_volume_itself_cannot_be_excluded() {
    let mut wish = wish("/home");
    wish.passthrough = vec!["/".into()];
    assert!(matches!(plan(&mounts(HOST), &wish), Err(PlanError::ExcludesVolume { .. })));
    wish.passthrough = vec!["/home".into()];
    assert!(matches!(plan(&mounts(HOST), &wish), Err(PlanError::ExcludesVolume { .. })));
}

#[test]
fn a_volume_that_is_mounted_in_what_is_not_protected_shows_its_view() {
    let mut wish = wish("/home");
    wish.unprotected = vec!["/home/u".into(), "/var/cache".into()];
    let steps = show(&plan(&mounts(HOST), &wish).unwrap());
    for step in ["host /home/u", "host /var/cache"] {
        assert!(steps.contains(&step.to_owned()), "{step} in {steps:?}");
    }
    let text = "1 0 8:1 / / ext4\n2 1 8:2 / /srv/x/vol ext4";
    wish.volume = "/srv/x/vol".into();
    wish.unprotected = vec!["/srv/x".into(), "/srv/x/vol/cache".into()];
    wish.private.clear();
    let steps = show(&plan(&mounts(text), &wish).unwrap());
    let of =
        |step: &str| steps.iter().position(|s| s == step).unwrap_or_else(|| panic!("{steps:?}"));
    let order = ["host /srv/x", "volume /srv/x/vol <- ", "host /srv/x/vol/cache"].map(of);
    assert!(order.is_sorted(), "{steps:?}");
}

#[test]
fn kernel_trees_and_chroots_are_refused() {
    assert!(matches!(plan(&mounts(HOST), &wish("/proc")), Err(PlanError::KernelTree(_))));
    assert!(matches!(plan(&mounts(HOST), &wish("/sys/fs/cgroup")), Err(PlanError::KernelTree(_))));
    assert_eq!(plan(&mounts("5 4 8:1 / /srv ext4"), &wish("/")), Err(PlanError::NoRoot));
}

#[test]
fn mounts_that_are_read_only_already_are_left_alone() {
    let text = b"1 0 8:1 / / rw - ext4 a rw
2 1 8:2 / /usr ro - ext4 b ro
";
    let plan =
        plan(&parse(text).unwrap(), &Wish { volume: "/".into(), ..Wish::default() }).unwrap();
    assert_eq!(show(&plan), ["volume / <- .", "host /dev", "host /proc", "host /sys", "host /usr"]);
}

/// By whichever mount: of the volume, of a part of it, of a further one, of a directory around it.
#[test]
fn a_view_allows_no_more_than_the_hosts_mount_at_the_same_place() {
    let text = b"1 0 8:1 / / rw,nosuid - ext4 a rw
2 1 8:2 / /home rw,nodev,noexec,relatime - ext4 b rw
3 1 8:1 /srv/data /data ro,nosymfollow - ext4 a rw
4 1 0:30 /@srv /srv rw - btrfs c rw
5 1 0:30 / /mnt/top rw,noexec - btrfs c rw
";
    let others = ["/home", "/srv"].map(PathBuf::from).to_vec();
    let wish = Wish { volume: "/".into(), others, ..Wish::default() };
    assert_eq!(
        show(&plan(&parse(text).unwrap(), &wish).unwrap()),
        [
            "volume / <- .",
            "volume /data <- srv/data",
            "ro,nosymfollow /data",
            "host /dev",
            "volume 1: /home <- ",
            "nodev,noexec /home",
            "host /mnt/top",
            "ro /mnt/top",
            "volume 2: /mnt/top/@srv <- ",
            "noexec /mnt/top/@srv",
            "host /proc",
            "volume 2: /srv <- ",
            "host /sys",
            "nosuid /",
        ]
    );
}

#[test]
fn parents_come_before_children_whatever_the_names() {
    // `/a-b` sorts between `/a` and `/a/b` as text, not as a path.
    let text = "1 0 8:1 / / ext4
        2 1 0:2 / /a tmpfs
        3 1 0:3 / /a-b tmpfs
        4 2 8:1 /x /a/b ext4";
    let plan = plan(&mounts(text), &Wish { volume: "/".into(), ..Wish::default() }).unwrap();
    let steps = show(&plan);
    let at = |s: &str| steps.iter().position(|x| x == s).unwrap();
    assert!(at("host /a") < at("volume /a/b <- x"));
}

fn guarded(volume: &str) -> Wish {
    Wish { guarded: vec![Guarded { mount: 50, dev: (0, 50) }], ..wish(volume) }
}

/// As if the mount over the directory were not there.
#[test]
fn the_view_shows_what_lies_below_a_guarded_directory() {
    let with = format!("{HOST}\n50 1 0:50 / /srv/g fuse.systx");
    assert_eq!(plan(&mounts(&with), &guarded("/")), plan(&mounts(HOST), &wish("/")));
    // Another user's, or a view's, stays what it is.
    let steps = show(&plan(&mounts(&with), &wish("/")).unwrap());
    assert!(steps.contains(&"host /srv/g".to_owned()), "{steps:?}");
}

#[test]
fn what_is_mounted_inside_a_guarded_directory_stays() {
    let with = format!("{HOST}\n50 1 0:50 / /srv/g fuse.systx\n51 50 8:9 / /srv/g/disk xfs");
    let steps = show(&plan(&mounts(&with), &guarded("/")).unwrap());
    assert!(steps.contains(&"host /srv/g/disk".to_owned()), "{steps:?}");
    assert!(!steps.iter().any(|s| s.ends_with(" /srv/g")), "{steps:?}");
}

#[test]
fn the_root_of_a_volume_can_be_guarded() {
    let with = format!("{HOST}\n50 10 0:50 / /home fuse.systx");
    assert_eq!(plan(&mounts(&with), &guarded("/home")), plan(&mounts(HOST), &wish("/home")));
}

/// `mount --bind /srv/g/sub /mnt`, after /srv/g was guarded.
#[test]
fn a_bind_mount_of_a_guarded_directory_is_a_part_of_the_volume() {
    let with = format!("{HOST}\n50 1 0:50 / /srv/g fuse.systx\n51 1 0:50 /sub /mnt fuse.systx");
    let steps = show(&plan(&mounts(&with), &guarded("/")).unwrap());
    assert!(steps.contains(&"volume /mnt <- srv/g/sub".to_owned()), "{steps:?}");
}

#[test]
fn several_volumes_show_each_at_its_places() {
    let text = "1 0 8:1 / / ext4
        2 1 0:2 / /proc proc
        3 1 8:2 / /home ext4
        4 3 0:9 / /home/u/mem tmpfs
        5 1 8:2 /u/src /mnt/src ext4
        6 1 0:30 /@srv /srv btrfs
        7 1 0:30 / /mnt/top btrfs";
    let others = ["/", "/srv"].map(PathBuf::from).to_vec();
    let wish = Wish { volume: "/home".into(), others, ..Wish::default() };
    let plan = plan(&mounts(text), &wish).unwrap();
    assert_eq!(
        show(&plan),
        [
            "volume 1: / <- .",
            "host /dev",
            "volume /home <- ",
            "host /home/u/mem",
            "ro /home/u/mem",
            "volume /mnt/src <- u/src",
            "host /mnt/top",
            "ro /mnt/top",
            "volume 2: /mnt/top/@srv <- ",
            "host /proc",
            "volume 2: /srv <- ",
            "host /sys",
        ]
    );
}

#[test]
fn further_volumes_are_the_local_file_systems_that_can_be_written() {
    let text = "1 0 8:1 / / ext4
        2 1 0:2 / /proc proc
        3 1 8:2 / /home ext4
        4 3 0:9 / /home/u/mem tmpfs
        5 1 8:2 /u/src /mnt/src ext4
        6 1 0:30 /@srv /srv btrfs
        7 1 0:31 / /net nfs4
        8 1 0:32 / /fuse fuse.sshfs
        9 1 0:33 / /run tmpfs
        10 9 0:34 / /run/user/7 tmpfs
        11 1 0:35 / /over overlay
        12 1 8:3 / /efi vfat
        13 1 8:1 /etc /mnt/etc ext4
        14 1 0:36 / /tmp tmpfs";
    let found = |volume: &str| {
        let list = super::further(&mounts(text), Path::new(volume), &["/srv".into()]);
        list.into_iter().map(|p| p.display().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(found("/"), ["/home", "/home/u/mem"]);
    assert_eq!(found("/home"), ["/", "/home/u/mem"]);
    // Of overlays the root of a container only.
    let text = "1 0 0:30 / / overlay
        2 1 8:2 / /src ext4
        3 1 0:31 / /other/merged overlay";
    assert_eq!(super::further(&mounts(text), Path::new("/src"), &[]), [Path::new("/")]);
}
