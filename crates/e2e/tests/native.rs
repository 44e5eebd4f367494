//! Calls in a view against the same calls natively on the same file system, one by one: what each
//! answers, and what is seen of it then.  The table of calls is `native.py`.

use rustix::fs::XattrFlags;
use systx_e2e::lab::find_program;
use systx_e2e::{Finished, Fs, Lab, Tree, lab, needs, skip};

/// Where they are made: each time in an empty directory with one old file.
const PLACES: [&str; 3] = ["native", "run", "guarded"];

fn prepare(lab: &Lab) {
    lab.write("native.py", include_str!("native.py"));
    for place in PLACES {
        lab.write(format!("{place}/old"), "old\n");
        // Of which the calls change nothing but by stores.
        let stored = lab.write(format!("{place}/stored later"), "x".repeat(8192));
        if lab.uid() == 0 {
            let caps = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
            let set =
                rustix::fs::setxattr(&stored, "security.capability", caps, XattrFlags::empty());
            set.expect("root may give capabilities");
        }
    }
}

/// What an ordinary user's run answers otherwise: its namespace has no other ids, which chown(2)
/// looks at before it looks for rights.
fn but_for_chown(said: &str) -> String {
    let other = |line: &str| line.contains("chown") && line.contains("EINVAL");
    let line = |l: &str| if other(l) { l.replace("EINVAL", "EPERM") } else { l.to_owned() };
    said.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Every line that is not as natively.
fn differences(native: &Finished, other: &Finished, how: &str) -> Vec<String> {
    let (native, other): (Vec<_>, Vec<_>) =
        (native.out.lines().collect(), other.out.lines().collect());
    let mut found: Vec<String> = (native.iter().zip(&other))
        .filter(|(native, other)| native != other)
        .map(|(native, other)| format!("{how}: {other}\n  natively: {native}"))
        .collect();
    if native.len() != other.len() {
        found.push(format!("{how}: {} lines, natively {}", other.len(), native.len()));
    }
    found
}

fn on(fs: Fs) {
    if find_program("python3").is_none() {
        skip!("no python3 to make the calls");
    }
    for user in [false, true] {
        let lab = match Lab::on(fs) {
            Ok(lab) if user => lab.as_user(),
            Ok(lab) => lab,
            Err(why) => skip!("{}: {why}", fs.name()),
        };
        prepare(&lab);
        let native = lab.native("cd native && python3 ../native.py").ok();
        let mut run = lab.run(&[], "cd run && python3 ../native.py").ok();
        if user {
            run.out = but_for_chown(&run.out);
        }
        let after = Tree::capture(lab.path("native"));
        after.assert_same(&Tree::capture(lab.path("run")), "native against committed");
        let whose = if user { "a user" } else { "root" };
        let mut found = differences(&native, &run, &format!("{whose} in a run"));
        if !user {
            lab.do_systx(["mount", "guarded"]).ok();
            let guarded = lab.native("cd guarded && python3 ../native.py").ok();
            found.extend(differences(&native, &guarded, "in a guarded directory"));
            lab.do_systx(["umount", "guarded"]).ok();
            after.assert_same(&Tree::capture(lab.path("guarded")), "native against guarded");
        }
        assert!(found.is_empty(), "on {}:\n{}", fs.name(), found.join("\n"));
    }
}

#[test]
fn calls_answer_as_natively_on_ext4() {
    on(Fs::Ext4);
}

#[test]
fn calls_answer_as_natively_on_xfs() {
    on(Fs::Xfs);
}

#[test]
fn calls_answer_as_natively_on_btrfs() {
    on(Fs::Btrfs);
}

#[test]
fn calls_answer_as_natively_on_tmpfs() {
    on(Fs::Tmpfs);
}

/// The project of each file and directory below the argument.
const PROJECTS: &str = r#"
import fcntl, os, stat, struct, sys
def project(name, give=None):
    told, fd = bytearray(28), os.open(name, os.O_RDONLY)
    fcntl.ioctl(fd, 0x801c581f, told)
    flags, size, extents, number = struct.unpack_from('4I', told)
    if give:
        struct.pack_into('4I', told, 0, flags | 0x200 * os.path.isdir(name), size, extents, give)
        fcntl.ioctl(fd, 0x401c5820, told)
    os.close(fd)
    return number, bool(flags & 0x200)
def show(top):
    for at, dirs, files in sorted(os.walk(top)):
        for name in sorted(dirs + files):
            path = os.path.join(at, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                print(os.path.relpath(path, top), *project(path))
def prepare(top):
    os.chdir(top)
    for name, number in ('given', 7), ('other', 8):
        os.mkdir(name)
        project(name, number)
        for n in 'old', 'kept', 'goes':
            open(f'{name}/{n}', 'w').write(n)
    for name in 'alone', 'free', 'linked':
        open(name, 'w').write(name)
    project('alone', 9)
    os.mkdir('given/dir')
    os.symlink('alone', 'alone-link')
prepare(sys.argv[2]) if sys.argv[1] == 'prepare' else show(sys.argv[2])
"#;

const IN_PROJECTS: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(call, *names):
    try: print(*names, call(*names) or 'ok')
    except OSError as e: print(*names, errno.errorcode[e.errno])
def exchange(a, b):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), 2): raise OSError(ctypes.get_errno(), '')
for n in range(300): open(f'given/{n}', 'w').write(str(n))
open('given/large', 'w').write('x' * 3000000)
os.makedirs('given/d/e')
for place in 'given/d/f', 'given/d/e/f', 'given/old', 'given/kept', 'alone':
    open(place, 'w').write('new' * 1000)
os.symlink('old', 'given/link')
os.makedirs('made/e')
open('made/f', 'w').write('f')
for names in [
        ('free', 'given/free'), ('given/old', 'other/x'), ('made', 'given/made'),
        ('made/f', 'given/f'), ('given/d/f', 'given/g'), ('given/goes', 'gone'),
        ('given/dir', 'made/dir'), ('made/dir', 'other/e'), ('free', 'given/old'),
        ('given/2', 'given/d/2'), ('alone-link', 'given/alone-link')]:
    attempt(os.rename, *names)
for names in [
        ('linked', 'given/linked'), ('given/1', 'given/one'), ('given/1', 'other/one'),
        ('given/3', 'three')]:
    attempt(os.link, *names)
for names in [('free', 'given/old'), ('given/4', 'given/d'), ('given/5', 'other/old')]:
    attempt(exchange, *names)
"#;

/// Directories that give a project to all that is in them: the file system moves nothing else into
/// them, which is not the time to find out after the decision.
#[test]
fn what_is_made_in_a_project_belongs_to_it() {
    needs!("python3");
    let lab = lab!(Fs::Xfs);
    lab.write("projects.py", PROJECTS);
    lab.write("work.py", IN_PROJECTS);
    for place in ["native", "run"] {
        lab.native(&format!("mkdir {place} && python3 projects.py prepare {place}")).ok();
    }
    let projects = |place| lab.native(&format!("python3 projects.py show {place}")).ok().out;
    let before = projects("run");
    let native = lab.native("cd native && python3 ../work.py").ok();
    let run = lab.run(&[], "cd run && python3 ../work.py").ok();
    let found = differences(&native, &run, "run");
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(native.out.contains("EXDEV"), "{native}");
    let native = Tree::capture(lab.path("native"));
    native.assert_same(&Tree::capture(lab.path("run")), "native against committed");
    let after = projects("run");
    assert_eq!(after, projects("native"));
    for (how, want) in [("undo", before), ("redo", after)] {
        lab.do_systx([how]).ok();
        assert_eq!(projects("run"), want, "{how}");
    }
}

/// Gives each directory that it is told, and makes, one policy; the key stays in the kernel.
const ENCRYPTS: &str = r#"
import fcntl, os, struct, sys
key = bytearray(struct.pack('<II32sII32s', 2, 0, b'', 64, 0, b'') + bytes(range(64)))
fcntl.ioctl(os.open('.', os.O_RDONLY), 0xc0506617, key)
for name in sys.argv[1:]:
    os.mkdir(name)
    policy = struct.pack('<BBBBB3s16s', 2, 1, 4, 2, 0, b'', bytes(key[8:24]))
    fcntl.ioctl(os.open(name, os.O_RDONLY), 0x800c6613, policy)
"#;

const IN_ENCRYPTED: &str = r#"
import errno, os, sys
def attempt(name, call):
    try: call(); print(name, 'ok')
    except OSError as e: print(name, errno.errorcode[e.errno])
def write(name, text, how):
    with open(name, how) as f: f.write(text)
os.chdir(sys.argv[1])
print('read', open('old').read().strip(), os.readlink('link'), sorted(os.listdir('dir')))
attempt('create', lambda: write('new', 'new', 'w'))
attempt('rewrite', lambda: write('old', 'OLD', 'r+'))
attempt('replace', lambda: (write('dir/x', 'saved', 'w'), os.rename('dir/x', 'dir/kept')))
attempt('mkdir', lambda: os.makedirs('deep/er'))
attempt('symlink', lambda: os.symlink('old', 'other'))
attempt('chmod', lambda: os.chmod('dir', 0o711))
attempt('unlink', lambda: os.unlink('goes'))
attempt('move in', lambda: os.rename('../beside/moves', 'moves'))
attempt('link in', lambda: os.link('../beside/links', 'links'))
attempt('beside', lambda: write('../beside/new', 'new', 'w'))
"#;

/// The file system takes nothing into an encrypted directory that was made outside of it: a call is
/// the time to find out, not the time after the decision. With a store in it all of it works.
#[test]
fn an_encrypted_directory_is_changed_by_a_store_that_is_encrypted_alike() {
    needs!("python3", "tune2fs");
    let lab = lab!(Fs::Ext4);
    lab.write("encrypts.py", ENCRYPTS);
    lab.write("work.py", IN_ENCRYPTED);
    lab.native("tune2fs -O encrypt $(findmnt -no SOURCE -T .)").ok();
    let made = lab.native("python3 encrypts.py native apart within");
    if made.code != 0 {
        skip!("the kernel encrypts no directories: {made}");
    }
    let fill = "mkdir beside; touch beside/moves beside/links; for d in native apart within; do
        (cd $d; mkdir dir; echo old > old; echo goes > goes; echo kept > dir/kept; ln -s old link)
        done; touch within/moves native/moves";
    lab.native(fill).ok();
    let native = lab.native("python3 work.py native").ok();
    let before = Tree::capture(lab.path("apart"));
    let apart = lab.run(&[], "python3 work.py apart").ok();
    Tree::capture(lab.path("apart")).assert_same(&before, "the store is not encrypted");
    let (read, refused) = apart.out.split_once('\n').expect("lines");
    assert_eq!(Some(read), native.out.lines().next());
    let (beside, refused): (Vec<_>, Vec<_>) =
        refused.lines().partition(|line| line.starts_with("beside"));
    assert_eq!((beside, refused.len()), (vec!["beside ok"], 9), "{apart}");
    assert!(refused.iter().all(|line| line.ends_with(" ENOTSUP")), "{apart}");
    let store = lab.path("within/store");
    let within = lab.run(&["--store", store.to_str().unwrap()], "python3 work.py within").ok();
    let others: Vec<_> = within.out.lines().filter(|line| line.ends_with("ENOTSUP")).collect();
    let want = ["move in ENOTSUP", "link in ENOTSUP", "beside ENOTSUP"];
    assert_eq!(others, want, "what is not encrypted is not changed by that store: {within}");
    assert_eq!(differences(&native, &within, "within").len(), want.len(), "{within}");
    std::fs::remove_dir_all(store).expect("the store");
    let native = Tree::capture(lab.path("native"));
    native.assert_same(&Tree::capture(lab.path("within")), "native against committed");
}
