//! A log-structured volume that is mounted by `systx mount FILE DIR`: what programs rely on of a
//! file system, what survives whom, and what is refused.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;
use systx_e2e::lab::{one, systx_binary, watch};
use systx_e2e::mapped::Mapped;
use systx_e2e::others::{assert_pjdfstest_as_on_the_host, crate_program, pjdfstest};
use systx_e2e::run::{HANG, Limits, Running, finish, wait_readable};
use systx_e2e::shared::{ANN, BOB, Shared};
use systx_e2e::volume::{Mounted, shell};
use systx_e2e::{Fs, Lab, Tree, lab, skip};

const WORK: &str = "set -e; umask 022; mkdir -p a/b; \
     for i in $(seq 200); do echo $i > a/f$i; done; \
     cp -a a copy; tar cf all.tar --sort=name a; mkdir x; tar xf all.tar -C x; ln copy/f1 hard; \
     find copy -name '*7' -delete; sed -i s/1/one/ x/a/f1*; mv x/a/b x/c; rm -r a; \
     truncate -s 5G sparse; ln -s copy/f2 link; cat link; mkfifo fifo; chmod 2711 x; \
     chmod 4755 copy/f3; chown 12:34 copy/f4; touch -d 2001-02-03 copy/f5";

#[test]
fn daily_work_leaves_what_it_leaves_natively_also_after_it_was_mounted_again() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let native = lab.path("native");
    fs::create_dir(&native).unwrap();
    let want = shell(&lab, &native, 60, WORK).ok();
    assert_eq!(want.out, v.sh(WORK).ok().out);
    // The archive holds times; a sparse file is long to read.
    shell(&lab, &native, 20, "rm all.tar sparse").ok();
    v.sh("test $(stat -c %s sparse) = 5368709120 && test $(stat -c %b sparse) = 0").ok();
    v.sh("rm all.tar sparse").ok();
    let tree = Tree::capture(&native);
    tree.assert_same(&Tree::capture(&v.dir), "native against the volume");
    v.again();
    tree.assert_same(&Tree::capture(&v.dir), "native against the volume, mounted again");
}

#[test]
fn pjdfstest_on_a_volume_is_as_on_the_host() {
    let lab = lab!();
    let script = match pjdfstest(&lab) {
        Ok(script) => script,
        Err(why) => skip!("pjdfstest cannot be had: {why}"),
    };
    let v = Mounted::new(&lab);
    let host = shell(&lab, &lab.root(), 120, &script);
    let ours = shell(&lab, &v.dir, 240, &script);
    assert_pjdfstest_as_on_the_host(&host, &ours);
}

#[test]
fn fsx_on_a_volume() {
    let lab = lab!();
    let program = match crate_program("fsx", "0.3.2") {
        Ok(program) => program,
        Err(why) => skip!("fsx cannot be had: {why}"),
    };
    let v = Mounted::new(&lab);
    for seed in 1..=3 {
        let script = format!("{} -q -N 2000 -S {seed} file && cksum file", program.display());
        let host = shell(&lab, &lab.root(), 200, &script).ok();
        assert_eq!(host.out, v.sh(&script).ok().out, "seed {seed}");
        shell(&lab, &lab.root(), 20, "rm -f file* v/file*").ok();
    }
}

/// What a program has fsynced is there after the daemon was killed; what it has not is there as
/// some prefix of its calls.  Programs find the volume again without anybody's help.
#[test]
fn what_was_fsynced_survives_the_daemon() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    for round in 0..3 {
        let name = |n: i32| format!("{round}-{n}");
        for n in 0..20 {
            let mut file = File::create(v.path(&name(n))).unwrap();
            file.write_all(name(n).repeat(5000).as_bytes()).unwrap();
            fs::rename(v.path(&name(n)), v.path(&format!("{}.done", name(n)))).unwrap();
            if n == 10 {
                file.sync_all().unwrap();
            }
        }
        lab.kill_and_come_back();
        let there = |n: &i32| v.path(&format!("{}.done", name(*n))).exists();
        let found: Vec<i32> = (0..20).filter(there).collect();
        assert!(found.len() >= 11, "{found:?}\n{}", lab.daemon_log());
        assert_eq!(found, (0..found.len() as i32).collect::<Vec<_>>(), "not a prefix");
        for n in found {
            let content = fs::read_to_string(v.path(&format!("{}.done", name(n)))).unwrap();
            assert_eq!(content, name(n).repeat(5000));
        }
    }
}

/// Nobody brings it back, and it is mounted by hand.
#[test]
fn an_image_whose_daemon_and_keeper_were_killed_is_mounted_again() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let mut file = File::create(v.path("kept")).unwrap();
    file.write_all(b"kept").unwrap();
    file.sync_all().unwrap();
    lab.kill_daemon_and_keeper();
    assert!(file.write_all(b"more").is_err(), "nobody serves it");
    drop(file);
    // The next daemon mounts what was mounted.
    assert!(lab.do_systx(["mount"]).ok().out.contains("volume in"));
    assert_eq!(fs::read(v.path("kept")).unwrap(), b"kept");
}

/// Below is a directory of which nobody would see what programs write there, once the volume is
/// mounted again.
#[test]
fn a_volume_that_cannot_be_brought_back_stays_dead_until_it_is_unmounted() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo kept > kept; sync kept").ok();
    let away = lab.path("away");
    let lose = || {
        fs::rename(&v.image, &away).unwrap();
        lab.kill_and_come_back();
        let refused = fs::write(v.path("x"), "lost").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOTCONN), "{}", lab.daemon_log());
        let listed = lab.do_systx(["mount"]).ok().out;
        assert!(listed.contains("volume in") && listed.contains("dead"), "{listed}");
        fs::rename(&away, &v.image).unwrap();
    };
    lose();
    // The next daemon can.
    lab.kill_and_come_back();
    assert_eq!(fs::read_to_string(v.path("kept")).unwrap(), "kept\n");
    lose();
    fs::create_dir(lab.path("w")).unwrap();
    let twice = lab.do_systx(["mount", "image", "w"]);
    assert!(twice.code != 0 && twice.err.contains("systx umount"), "{twice}");
    let over = lab.do_systx(["mount", "image", "v"]);
    assert!(over.code != 0 && over.err.contains("systx umount"), "{over}");
    v.umount();
    assert_eq!(fs::read_dir(&v.dir).unwrap().count(), 0, "something was written below");
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(fs::read_to_string(v.path("kept")).unwrap(), "kept\n");
    assert!(!lab.do_systx(["mount"]).ok().out.contains("dead"));
}

/// Programs would go on in a volume that they do not mean.
#[test]
fn another_image_at_the_path_is_not_mounted_in_the_place_of_the_first() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo kept > kept; sync kept").ok();
    let away = lab.path("away");
    let new = || {
        lab.do_systx(["mkfs", "image", "--size", "16M"]).ok();
    };
    let copied = || {
        fs::copy(&away, &v.image).unwrap();
    };
    let others: [&dyn Fn(); 2] = [&new, &copied];
    for other in others {
        fs::rename(&v.image, &away).unwrap();
        other();
        lab.kill_and_come_back();
        let refused = fs::write(v.path("x"), "astray").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOTCONN), "{}", lab.daemon_log());
        assert!(lab.daemon_log().contains("is another image"), "{}", lab.daemon_log());
        fs::remove_file(&v.image).unwrap();
        fs::rename(&away, &v.image).unwrap();
        // The next daemon can.
        lab.kill_and_come_back();
        assert_eq!(fs::read_to_string(v.path("kept")).unwrap(), "kept\n", "{}", lab.daemon_log());
    }
}

#[test]
fn a_volume_for_which_no_daemon_can_be_started_stays_dead_until_one_can() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo kept > kept; sync kept").ok();
    let keeper = watch(one(lab.keepers()));
    // What is in the way of the next daemon.
    let socket = lab.runtime_file("sock");
    fs::remove_file(&socket).unwrap();
    fs::create_dir(&socket).unwrap();
    lab.kill_daemon();
    assert!(wait_readable(&keeper, Instant::now() + HANG), "the keeper tries for ever");
    let refused = fs::write(v.path("x"), "lost").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTCONN), "{}", lab.daemon_log());
    fs::remove_dir(&socket).unwrap();
    assert!(lab.do_systx(["mount"]).ok().out.contains("volume in"), "{}", lab.daemon_log());
    assert_eq!(fs::read_to_string(v.path("kept")).unwrap(), "kept\n");
    v.umount();
    assert_eq!(fs::read_dir(&v.dir).unwrap().count(), 0, "something was written below");
    lab.do_systx(["mount", "image", "v"]).ok();
}

/// What nobody has fsynced is durable a few seconds later.
#[test]
fn what_nobody_has_fsynced_is_durable_after_a_while() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    fs::write(v.path("file"), "content").unwrap();
    // Another copy of the image is as after a power cut.
    lab.until("it is in the image", || {
        fs::copy(&v.image, lab.path("copy")).unwrap();
        fs::create_dir_all(lab.path("w")).unwrap();
        lab.do_systx(["mount", "copy", "w"]).ok();
        let there = fs::read(lab.path("w/file")).is_ok_and(|content| content == b"content");
        lab.do_systx(["umount", "w"]).ok();
        there
    });
}

#[test]
fn two_users_work_on_a_volume_at_once_and_owners_and_modes_count() {
    let shared = match Shared::new() {
        Ok(shared) => shared,
        Err(why) => skip!("{why}"),
    };
    let v = Mounted::new(&shared.lab);
    fs::set_permissions(&v.dir, PermissionsExt::from_mode(0o1777)).unwrap();
    let dir = v.dir.display();
    let script = format!(
        "cd {dir} && umask 077 && for i in $(seq 150); do echo $i >> log-$(id -u); \
         mkdir $(id -u)-$i; mv $(id -u)-$i done-$(id -u)-$i; (flock 9; echo x >> all) 9>>lock; done"
    );
    shared.lab.native("umask 0; touch v/all v/lock").ok();
    let both = [ANN, BOB].map(|uid| shared.command(uid, &script).spawn().unwrap());
    for mut child in both {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(v.path("all")).unwrap().len(), 2 * 2 * 150);
    for uid in [ANN, BOB] {
        let log = fs::metadata(v.path(&format!("log-{uid}"))).unwrap();
        assert_eq!((log.uid(), log.gid(), log.mode() & 0o777), (uid, uid, 0o600));
        let dirs = fs::read_dir(&v.dir).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_str().unwrap().starts_with(&format!("done-{uid}-"))
        });
        assert_eq!(dirs.count(), 150);
    }
    // Of the other's.
    assert!(shared.sh(ANN, &format!("cat {dir}/log-{BOB}")).code != 0);
    assert!(shared.sh(ANN, &format!("rm -f {dir}/log-{BOB}")).code != 0);
    shared.sh(BOB, &format!("cat {dir}/log-{BOB}")).ok();
}

#[test]
fn mappings_of_two_processes_and_calls_show_one_content() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let script = "import mmap, os
f = os.open('m', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 1 << 20)
m = mmap.mmap(f, 1 << 20)
pid = os.fork()
if pid == 0:
    n = mmap.mmap(os.open('m', os.O_RDWR), 1 << 20)
    n[4096:4101] = b'child'; os._exit(0)
os.waitpid(pid, 0)
assert m[4096:4101] == b'child'
m[8192:8198] = b'parent'
assert os.pread(f, 6, 8192) == b'parent'
os.pwrite(f, b'call', 12288)
assert m[12288:12292] == b'call'
os.ftruncate(f, 6000); os.ftruncate(f, 1 << 20)
assert m[8192:8198] == bytes(6)
m[0:4] = b'last'; m.close(); os.close(f)";
    fs::write(lab.path("script.py"), script).unwrap();
    v.sh("python3 ../script.py").ok();
    v.again();
    let file = File::open(v.path("m")).unwrap();
    let mut first = [0; 4];
    file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(&first, b"last");
}

#[test]
fn files_without_names_holes_attributes_and_lists_are_as_on_the_host() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let script = "import os, errno
d = os.getcwd()
f = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600); os.write(f, b'nameless')
print(os.fstat(f).st_nlink)
os.link(f'/proc/self/fd/{f}', 'named', src_dir_fd=f, follow_symlinks=True)
print(os.fstat(f).st_nlink)
print(open('named').read())
g = os.open('gone', os.O_RDWR | os.O_CREAT); os.write(g, b'still here'); os.unlink('gone')
print(os.pread(g, 20, 0), os.fstat(g).st_nlink)
h = os.open('holes', os.O_RDWR | os.O_CREAT); os.pwrite(h, b'x', 1 << 20); os.pwrite(h, b'y', 0)
print(os.lseek(h, 0, os.SEEK_HOLE), os.lseek(h, 5000, os.SEEK_DATA))
try: os.lseek(h, 2 << 20, os.SEEK_DATA)
except OSError as e: print(errno.errorcode[e.errno])
os.setxattr('named', 'user.a', b'1'); os.setxattr('named', 'trusted.b', b'22')
print(os.getxattr('named', 'user.a'), sorted(os.listxattr('named')))
for n, s in (('user.a', os.XATTR_CREATE), ('user.c', os.XATTR_REPLACE), ('odd.a', 0)):
    try: os.setxattr('named', n, b'', s)
    except OSError as e: print(errno.errorcode[e.errno])
os.removexattr('named', 'user.a'); print(os.listxattr('named'))
os.makedirs('many')
for i in range(3000): open(f'many/{i}', 'w').close()
seen = []
with os.scandir('many') as it:
    for e in it:
        seen.append(e.name); os.rename(e.path, f'many/{e.name}-moved')
print(len(set(name.split('-')[0] for name in seen)), len(os.listdir('many')))
";
    fs::write(lab.path("script.py"), script).unwrap();
    fs::create_dir(lab.path("native")).unwrap();
    let want = shell(&lab, &lab.path("native"), 60, "python3 ../script.py").ok();
    assert_eq!(want.out, v.sh("python3 ../script.py").ok().out);
    v.again();
    let mut named = String::new();
    File::open(v.path("named")).unwrap().read_to_string(&mut named).unwrap();
    assert_eq!(named, "nameless");
}

/// A full volume says so, before anything is half done, and everything on it can be removed.
#[test]
fn a_full_volume_says_so_and_can_be_emptied() {
    let lab = lab!();
    lab.do_systx(["mkfs", "small", "--size", "8M"]).ok();
    fs::create_dir(lab.path("w")).unwrap();
    lab.do_systx(["mount", "small", "w"]).ok();
    let dir = lab.path("w");
    let mut full = false;
    let mut written = 0;
    for n in 0..100 {
        let mut file = File::create(dir.join(format!("f{n}"))).unwrap();
        match file.write_all(&[n; 256 << 10]) {
            Ok(()) => written += 1,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
                full = true;
                break;
            }
        }
    }
    assert!(full && written > 4, "{written}");
    for n in 0..written {
        let content = fs::read(dir.join(format!("f{n}"))).unwrap();
        assert!(content.len() == 256 << 10 && content.iter().all(|b| *b == n), "f{n}");
    }
    // What has its room already takes none.
    shell(&lab, &dir, 60, "fallocate -l 256K f1 && ! fallocate -l 2M f1 && rm f*").ok();
    fs::write(dir.join("again"), vec![7; 1 << 20]).unwrap();
    lab.do_systx(["umount", "w"]).ok();
    lab.do_systx(["fsck", "small"]).ok();
}

/// Writes to a file until there is no room for so much more.
fn fill(path: &Path) -> File {
    let mut how = File::options();
    let mut file = how.read(true).write(true).create(true).truncate(true).open(path).unwrap();
    fill_up(&mut file);
    file
}

fn fill_up(file: &mut File) {
    let error = std::iter::repeat_with(|| file.write_all(&[7; 64 << 10])).find_map(Result::err);
    assert_eq!(error.unwrap().raw_os_error(), Some(libc::ENOSPC));
    assert!(file.metadata().unwrap().len() > 1 << 21);
}

/// What nobody has any more is room for the very next call, in whatever way it went.
#[test]
fn what_was_removed_is_room_for_the_next_call() {
    for is_for_threads in [false, true] {
        let lab = lab!();
        let mounted = if is_for_threads { Mounted::sized_for_threads } else { Mounted::sized };
        let v = mounted(&lab, "8M");
        let (big, next) = (v.path("big"), v.path("next"));
        let closed = || drop(fill(&big));
        let ways: [(&str, &dyn Fn()); 7] = [
            ("removed", &|| {
                closed();
                fs::remove_file(&big).unwrap();
            }),
            ("replaced", &|| {
                fs::write(v.path("small"), b"").unwrap();
                fs::write(v.path("room"), vec![6; 1 << 19]).unwrap();
                closed();
                // A new name takes room.
                fs::remove_file(v.path("room")).unwrap();
                fs::rename(v.path("small"), &big).unwrap();
            }),
            ("cut off", &|| {
                closed();
                File::options().write(true).open(&big).unwrap().set_len(0).unwrap();
            }),
            ("removed while open", &|| {
                let open = fill(&big);
                fs::remove_file(&big).unwrap();
                drop(open);
            }),
            ("removed while mapped", &|| {
                let open = fill(&big);
                let map = Mapped::shared(&open, 1 << 16);
                assert_eq!(map.get(5), 7);
                drop(open);
                fs::remove_file(&big).unwrap();
                drop(map);
            }),
            ("never named", &|| {
                let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                fill_up(&mut File::from(rustix::fs::open(&v.dir, flags, mode).unwrap()));
            }),
            ("removed by a run", &|| {
                closed();
                let mut run = lab.systx(["run", "--", "rm", "big"]);
                run.current_dir(&v.dir);
                finish(run, Limits::default(), &lab).ok();
            }),
        ];
        for (way, remove) in ways {
            let rounds = if way == "removed by a run" { 3 } else { 10 };
            for round in 0..rounds {
                remove();
                let done = fs::write(&next, vec![8; 1 << 20]);
                done.unwrap_or_else(|e| panic!("{is_for_threads}, {way}, {round}: {e}"));
                fs::remove_file(&next).unwrap();
                let file = File::create(&next).unwrap();
                let whole = rustix::fs::FallocateFlags::empty();
                let done = rustix::fs::fallocate(&file, whole, 0, 1 << 20);
                done.unwrap_or_else(|e| panic!("{is_for_threads}, {way}, {round}, ahead: {e}"));
                drop(file);
                fs::remove_file(&next).unwrap();
                let _ = fs::remove_file(&big);
            }
        }
    }
}

/// Btrfs writes nothing in place unless it is told to, and an image there that wants new room for
/// each write stops for good once others have filled the disk.
#[test]
fn an_image_on_a_full_btrfs_goes_on() {
    let lab = match Lab::sized(Fs::Btrfs, 256) {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    let v = Mounted::new(&lab);
    let mut fill = File::create(lab.path("fill")).unwrap();
    while fill.write_all(&[7; 1 << 16]).and_then(|()| fill.sync_data()).is_ok() {}
    for round in 0..3_u8 {
        for n in 0..20 {
            let mut file = File::create(v.path(&format!("f{n}"))).unwrap();
            file.write_all(&vec![round; 200_000]).unwrap();
            file.sync_all().unwrap_or_else(|e| panic!("{e}\n{}", lab.daemon_log()));
        }
        lab.kill_and_come_back();
        for n in 0..20 {
            let content = fs::read(v.path(&format!("f{n}"))).unwrap();
            assert!(content == vec![round; 200_000], "f{n}, round {round}");
        }
    }
}

#[test]
fn what_cannot_be_mounted_is_refused_with_the_reason() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    fs::create_dir(lab.path("w")).unwrap();
    let refused = |file: &str, dir: &str, why: &str| {
        let done = lab.do_systx(["mount", file, dir]);
        assert!(done.code != 0 && done.err.contains(why), "{file} {dir}: {}", done.err);
        assert_eq!(fs::read_dir(lab.path("w")).unwrap().count(), 0);
    };
    refused("image", "w", "is mounted already, on");
    refused("nothing", "w", "mkfs");
    refused("w", "w", "neither a file nor a block device");
    refused("image", "v", "is mounted already");
    lab.write("foreign", vec![b'x'; 1 << 20]);
    refused("foreign", "w", "not a volume");
    lab.write("empty", "");
    lab.write("nothing-in-it", "");
    refused("empty", "w", "not a volume");
    fs::write(v.path("inner"), "").unwrap();
    refused("v/inner", "w", "mounted by systx");
    // What somebody needs would be hidden.
    fs::create_dir(lab.path("x")).unwrap();
    lab.do_systx(["mkfs", "x/image", "--size", "16M"]).ok();
    refused("x/image", "x", "would hide");
    refused("x/image", ".", "where something is mounted");
    refused("x/image", "empty", "this is none");
    // Somebody else has it open.
    let other = fs::OpenOptions::new().write(true).open(lab.path("empty")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    refused("empty", "w", "another process works on it");
    let done = lab.do_systx(["fsck", "nothing-in-it"]);
    assert!(done.code != 0 && done.err.contains("not a volume"), "{}", done.err);
    // The commands for volumes that are not mounted.
    for command in ["fsck", "df", "clean"] {
        let done = lab.do_systx([command, "image"]);
        assert!(done.code != 0 && done.err.contains("is mounted"), "{}", done.err);
    }
    let done = lab.do_systx(["mount", "image"]);
    assert!(done.err.contains("systx mount FILE DIR"), "{}", done.err);
    // It is guarded as a whole already.
    fs::create_dir(v.path("d")).unwrap();
    assert!(lab.do_systx(["mount", "v/d"]).code != 0);
}

/// A volume cut off at any length, or with a byte changed anywhere at its beginning, is refused or
/// works; no daemon dies of it.
/// By another path it is the same volume.
#[test]
fn an_image_and_the_loop_device_that_shows_it_are_not_open_at_once() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo kept > kept").ok();
    fs::create_dir(lab.path("w")).unwrap();
    let attached = shell(&lab, &lab.root(), 20, "losetup -f --show image");
    if attached.code != 0 {
        skip!("no loop device can be had: {}", attached.err);
    }
    let device = attached.out.trim();
    let refused = |args: &[&str]| {
        let done = lab.do_systx(args);
        assert_eq!(done.code, 75, "{done}");
        assert!(done.err.contains("another process works on it"), "{done}");
    };
    refused(&["mount", device, "w"]);
    refused(&["fsck", device]);
    refused(&["mkfs", "--force", device]);
    v.umount();
    lab.do_systx(["mount", device, "w"]).ok();
    refused(&["mount", "image", "v"]);
    refused(&["snapshot", "image", "one"]);
    lab.do_systx(["umount", "w"]).ok();
    shell(&lab, &lab.root(), 20, &format!("losetup -d {device}")).ok();
    // What somebody else has there is not written over either.
    let other = "truncate -s 8M other && mkfs.ext4 -q other && mount -o loop other w";
    shell(&lab, &lab.root(), 20, other).ok();
    refused(&["mkfs", "--force", "other"]);
    shell(&lab, &lab.root(), 20, "umount w").ok();
    v.mount();
    assert_eq!(fs::read_to_string(v.path("kept")).unwrap(), "kept\n");
}

#[test]
fn a_torn_image_is_refused_and_the_daemon_lives() {
    let lab = lab!();
    let v = Mounted::sized(&lab, "4M");
    v.sh("for i in 1 2 3 4 5; do echo $i > f$i; done; sync f1").ok();
    v.umount();
    let whole = fs::read(&v.image).unwrap();
    fs::create_dir(lab.path("w")).unwrap();
    let torn = lab.path("torn");
    let mut before = Vec::new();
    let mut refusals = 0;
    for (n, cut) in (0..12).map(|n| (n, whole.len() * n / 12)).chain([(12, whole.len())]) {
        fs::write(&torn, &whole[..cut]).unwrap();
        if n % 2 == 0 {
            // The super block and its copy, the checkpoints, the log.
            let mut file = fs::OpenOptions::new().write(true).open(&torn).unwrap();
            for at in [n * 512, n * 4096 + 8, cut.saturating_sub(4000)] {
                file.seek(SeekFrom::Start(at as u64)).unwrap();
                file.write_all(b"damage").unwrap();
            }
        }
        let done = lab.do_systx(["mount", "torn", "w"]);
        if done.code == 0 {
            shell(&lab, &lab.path("w"), 20, "ls -l > /dev/null; cat f* > /dev/null; true").ok();
            lab.do_systx(["umount", "w"]).ok();
        } else {
            assert!(done.err.contains("torn"), "{}", done.err);
            refusals += 1;
        }
        let daemons = lab.daemons();
        assert!(before.is_empty() || before == daemons, "it died\n{}", lab.daemon_log());
        before = daemons;
    }
    assert!(refusals >= 6, "{refusals}");
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(fs::read_to_string(v.path("f5")).unwrap(), "5\n");
}

#[test]
fn a_volume_in_use_is_not_unmounted_but_by_force_and_loses_nothing() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let mut file = File::create(v.path("held")).unwrap();
    file.write_all(b"written").unwrap();
    let refused = lab.do_systx(["umount", "v"]);
    assert!(refused.code != 0 && refused.err.contains("in use"), "{}", refused.err);
    lab.do_systx(["umount", "--force", "v"]).ok();
    assert_eq!(file.write_all(b"more").unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    assert_eq!(fs::read_dir(&v.dir).unwrap().count(), 0);
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(fs::read(v.path("held")).unwrap(), b"written");
    // By those who know nothing of systx.
    shell(&lab, &lab.root(), 20, "umount v").ok();
    lab.until("it is closed", || lab.do_systx(["fsck", "image"]).code == 0);
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(fs::read(v.path("held")).unwrap(), b"written");
}

/// Of what `systx snapshots` says of a volume: the names, oldest first.
fn kept(lab: &Lab, volume: &str) -> Vec<String> {
    let listed = lab.do_systx(["snapshots", volume, "--json"]).ok().json();
    let all = listed["snapshots"].as_array().expect("a list");
    all.iter().map(|s| s["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_snapshot_is_mounted_beside_the_live_tree_and_nothing_changes_it() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    fs::create_dir(lab.path("w")).unwrap();
    // A sparse file is long to read.
    v.sh(WORK).ok();
    v.sh("truncate -s 1M sparse").ok();
    // Stored through a mapping, and on no way to the volume yet.
    let script = "import mmap, os, subprocess, sys
f = os.open('mapped', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 8192)
m = mmap.mmap(f, 8192); m[0:6] = b'before'
subprocess.run([sys.argv[1], 'snapshot', '.', 'monday'], check=True)
m[0:6] = b'behind'";
    fs::write(lab.path("script.py"), script).unwrap();
    let systx = systx_binary().display();
    v.sh(&format!("python3 ../script.py {systx}")).ok();
    // The capture reads what is there now; of the mapping, what was there then.
    let then = Tree::capture(&v.dir).without(|p| p == Path::new("mapped"));
    v.sh("rm -r copy; echo new > hard; mv all.tar other; mkdir y; setfattr -n user.a -v b x").ok();
    lab.do_systx(["mount", "image", "w", "--at", "monday"]).ok();
    let shows_it = || {
        let now = Tree::capture(lab.path("w"));
        assert_eq!(&fs::read(lab.path("w/mapped")).unwrap()[..6], b"before");
        now.without(|p| p == Path::new("mapped"))
    };
    then.assert_same(&shows_it(), "then, against the snapshot");
    let change = shell(&lab, &lab.path("w"), 20, "echo x > hard || mkdir z || rm mapped");
    assert!(change.code != 0 && change.err.contains("Read-only"), "{}", change.err);
    let refused = lab.do_systx(["snapshot", "v", "monday", "--delete"]);
    assert!(refused.code != 0 && refused.err.contains("is mounted"), "{}", refused.err);
    lab.do_systx(["snapshot", "w", "tuesday"]).expect(1).says("shows the snapshot \"monday\"");
    lab.do_systx(["protect", "off", "w/hard"]).expect(1).says("is mounted read-only");
    assert_eq!(kept(&lab, "v"), ["monday"]);
    // Both come back; the volume stays open as long as one of them is there.
    fs::write(v.path("fsynced"), "1").unwrap();
    File::open(v.path("fsynced")).unwrap().sync_all().unwrap();
    lab.kill_and_come_back();
    then.assert_same(&shows_it(), "then, against the snapshot, after a kill");
    assert_eq!(fs::read(v.path("fsynced")).unwrap(), b"1");
    fs::write(v.path("last"), "2").unwrap();
    v.umount();
    then.assert_same(&shows_it(), "then, against the snapshot alone");
    lab.kill_and_come_back();
    assert!(lab.do_systx(["fsck", "image"]).err.contains("is mounted"));
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(fs::read(v.path("last")).unwrap(), b"2");
    lab.do_systx(["umount", "w"]).ok();
    lab.do_systx(["snapshot", "image", "monday", "--delete"]).ok();
    assert!(kept(&lab, "v").is_empty());
}

/// Which image is meant is not a question of its path.
#[test]
fn snapshots_of_a_renamed_image_are_made_by_its_new_name_and_of_another_one_by_the_old() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo here > here").ok();
    fs::rename(&v.image, lab.path("renamed")).unwrap();
    lab.do_systx(["mkfs", "image", "--size", "16M"]).ok();
    lab.do_systx(["snapshot", "renamed", "mounted"]).ok();
    // A name may be anything but a path, and makes no line of its own.
    lab.do_systx(["snapshot", "v", "two\nlines"]).ok();
    lab.do_systx(["snapshot", "image", "other"]).ok();
    for volume in ["renamed", "v"] {
        assert_eq!(kept(&lab, volume), ["mounted", "two\nlines"]);
        let listed = lab.do_systx(["snapshots", volume]).ok().out;
        let names: Vec<_> = listed.lines().map(|line| line.rsplit("  ").next()).collect();
        assert_eq!(names, [Some("mounted"), Some("two\\nlines")]);
    }
    assert_eq!(kept(&lab, "image"), ["other"]);
    lab.do_systx(["umount", "renamed"]).ok();
    assert!(!v.path("here").exists());
    lab.do_systx(["mount", "renamed", "v"]).ok();
    lab.do_systx(["snapshot", "image", "later"]).ok();
    for since in ["later", "other"] {
        let done = lab.do_systx(["send", "image", "other", "--since", since]);
        assert!(done.code != 0 && done.err.contains(&format!("{since:?}")), "{done}");
        assert!(done.err.contains("is not from before \"other\""), "{done}");
    }
}

#[test]
fn which_snapshot_is_meant_is_said_by_name_or_time() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    fs::create_dir(lab.path("w")).unwrap();
    for name in ["one", "two"] {
        fs::write(v.path("f"), name).unwrap();
        lab.do_systx(["snapshot", "v", name]).ok();
    }
    fs::write(v.path("f"), "now").unwrap();
    assert_eq!(kept(&lab, "v"), ["one", "two"]);
    assert_eq!(kept(&lab, "image"), ["one", "two"]);
    let taken = lab.do_systx(["snapshot", "v", "one"]);
    assert!(taken.code != 0 && taken.err.contains("already"), "{}", taken.err);
    let refused = |at: &str, why: &str| {
        let done = lab.do_systx(["mount", "image", "w", "--at", at]);
        assert!(done.code != 0 && done.err.contains(why), "{at}: {}", done.err);
        assert_eq!(fs::read_dir(lab.path("w")).unwrap().count(), 0);
    };
    refused("three", "there is no snapshot");
    refused("1999-12-31", "no snapshot is as old");
    let shows = |at: &str, what: &str| {
        lab.do_systx(["mount", "image", "w", "--at", at]).ok();
        assert_eq!(fs::read_to_string(lab.path("w/f")).unwrap(), what);
        lab.do_systx(["umount", "w"]).ok();
    };
    shows("one", "one");
    shows("2100-01-01", "two");
    // Of a volume that nobody has mounted.
    v.umount();
    shows("one", "one");
    assert_eq!(kept(&lab, "image"), ["one", "two"]);
    let nothing = lab.do_systx(["snapshot", "v", "three"]);
    assert!(nothing.err.contains("no log-structured volume"), "{}", nothing.err);
    lab.do_systx(["mount", "image", "v"]).ok();
}

#[test]
fn snapshots_that_no_rule_keeps_are_removed_but_not_those_that_are_mounted() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    fs::create_dir(lab.path("w")).unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        lab.do_systx(["snapshot", "v", name]).ok();
    }
    lab.do_systx(["mount", "image", "w", "--at", "b"]).ok();
    let all = ["a", "b", "c", "d", "e"];
    lab.do_systx(["snapshots", "v", "--prune", "--last", "2", "-n"]).ok();
    assert_eq!(kept(&lab, "v"), all);
    let nothing_kept = ["--prune", "--daily", "0"];
    for unclear in [&["--prune"][..], &["--last", "2"], &nothing_kept] {
        assert_ne!(lab.do_systx([&["snapshots", "v"], unclear].concat()).code, 0);
        assert_eq!(kept(&lab, "v"), all);
    }
    let done = lab.do_systx(["snapshots", "v", "--prune", "--last", "2"]).ok();
    assert!(done.err.contains("\"b\" is kept: it is mounted"), "{}", done.err);
    assert_eq!(kept(&lab, "v"), ["b", "d", "e"]);
    lab.do_systx(["umount", "w"]).ok();
    v.umount();
    lab.do_systx(["snapshots", "image", "--prune", "--monthly", "1"]).ok();
    assert_eq!(kept(&lab, "image"), ["e"]);
    lab.do_systx(["mount", "image", "v"]).ok();
}

/// The removal of one is by its name, and two that prune have the same in mind.
#[test]
fn two_that_prune_at_once_both_succeed() {
    let lab = lab!();
    let _v = Mounted::new(&lab);
    for n in 0..20 {
        lab.do_systx(["snapshot", "v", &format!("s{n:02}")]).ok();
    }
    let prune = || lab.systx(["snapshots", "v", "--prune", "--last", "1"]);
    let both = [(); 2].map(|()| Running::start(prune(), Limits::default()));
    for one in both {
        let done = one.finish(&lab).ok();
        assert!(done.err.contains("1 kept"), "{done}");
    }
    assert_eq!(kept(&lab, "v"), ["s19"]);
}

#[test]
fn a_copy_that_was_looked_at_takes_the_next_difference() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    fs::create_dir(lab.path("w")).unwrap();
    lab.do_systx(["mkfs", "copy", "--size", "64M"]).ok();
    let mut since = String::new();
    for day in ["monday", "tuesday", "wednesday"] {
        v.sh(&format!("echo {day} > {day}; ls > list")).ok();
        lab.do_systx(["snapshot", "v", day]).ok();
        v.umount();
        let systx = systx_binary().display();
        let pipe = format!("{systx} send image {day} {since} | {systx} receive copy");
        shell(&lab, &lab.root(), 30, &pipe).ok();
        since = format!("--since {day}");
        lab.do_systx(["mount", "image", "v"]).ok();
        // Also the live tree of the copy, as long as nothing is changed there.
        for at in [&["--at", day][..], &[]] {
            lab.do_systx(["mount", "copy", "w"].iter().chain(at)).ok();
            let (then, now) = (Tree::capture(&v.dir), Tree::capture(lab.path("w")));
            then.assert_same(&now, day);
            lab.do_systx(["umount", "w"]).ok();
        }
    }
    lab.do_systx(["fsck", "copy"]).ok();
}
