//! Ordinary users' transactions on a directory that root has guarded: their own, with the rights
//! that they have, and none of the others'; and what they may try beyond that.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use systx_e2e::lab::{LIBRARY, SONAME, built, find_program, tool};
use systx_e2e::shared::{ANN, BOB, Shared};
use systx_e2e::{CONFLICT, skip};

/// With a guarded directory `g` that several users share.
fn shared() -> Result<Shared, String> {
    let shared = Shared::new()?;
    let make = "umask 022; mkdir -p g/ann g/bob g/all g/closed/in g/sticky; \
                echo secret > g/all/secret; chmod 600 g/all/secret; echo both > g/all/both; \
                chmod 666 g/all/both; chmod 777 g/all; echo roots > g/sticky/roots; \
                chmod 666 g/sticky/roots; chmod 1777 g/sticky; chmod 700 g/closed; \
                echo in > g/closed/in/f; chmod 777 g/closed/in; chmod 700 g/bob; mkdir -p out";
    shared.lab.native(make).ok();
    for (name, uid) in [("ann", ANN), ("bob", BOB)] {
        chown(shared.lab.path("g").join(name), Some(uid), Some(uid)).expect("root may");
    }
    shared.lab.do_systx(["mount", "g"]).ok();
    Ok(shared)
}

fn owner(path: impl AsRef<Path>) -> (u32, u32) {
    let meta = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{:?}: {e}", path.as_ref()));
    (meta.uid(), meta.gid())
}

macro_rules! shared {
    () => {
        match shared() {
            Ok(shared) => shared,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn a_user_has_the_rights_of_that_user_in_a_transaction_and_at_its_commit() {
    let s = shared!();
    let (id, path) = s.begin(ANN, "g");
    assert_eq!(s.list(ANN), std::slice::from_ref(&id));
    let at = path.display();
    s.sh(ANN, &format!("set -e; cd {at}; echo new > ann/new; mkdir -p all/dir; echo x > all/dir/x; echo mine >> all/both; cat all/both")).ok();
    // Each fails exactly as outside.
    let all = [
        "echo x > bob/x",
        "ls bob",
        "cat all/secret",
        "echo x > all/secret",
        "chmod 666 all/secret",
        "chown $(id -u) all/secret",
        "echo x > x",
        "mkdir x",
        "rm sticky/roots",
        "mv sticky/roots sticky/moved",
        "cat closed/in/f",
        "ls closed",
        "mknod all/dev c 1 3",
        "chown 0 ann/new",
        "ln all/secret all/link",
    ];
    for call in all {
        for top in [path.clone(), s.lab.path("g")] {
            s.refused(ANN, &format!("cd {} && {call}", top.display()));
        }
    }
    s.sh(ANN, &format!("cd {at}; echo changed > sticky/roots; chmod 4711 ann/new; exec $SYSTX diff --name-status {id}")).ok();
    assert!(!s.lab.has("g/ann/new"), "before the commit");
    s.sh(ANN, &format!("exec $SYSTX commit {id}")).ok();
    assert_eq!(
        (s.lab.read("g/ann/new"), owner(s.lab.path("g/ann/new"))),
        ("new\n".into(), (ANN, ANN))
    );
    assert_eq!(owner(s.lab.path("g/all/dir/x")), (ANN, ANN));
    assert_eq!(
        (s.lab.read("g/sticky/roots"), owner(s.lab.path("g/sticky/roots"))),
        ("changed\n".into(), (0, 0))
    );
    assert_eq!(fs::metadata(s.lab.path("g/ann/new")).expect("there").mode() & 0o7777, 0o4711);
    assert_eq!(s.lab.read("g/all/both"), "both\nmine\n");
    assert_eq!(s.list(ANN), [""; 0]);
    assert!(!path.exists());
    // Rights that are taken away count at the commit.
    let (id, path) = s.begin(ANN, "g");
    s.sh(ANN, &format!("echo again > {}/all/both", path.display())).ok();
    s.lab.native("chmod 600 g/all/both").ok();
    assert_eq!(s.sh(ANN, &format!("$SYSTX commit {id}")).code, CONFLICT);
    assert_eq!(s.lab.read("g/all/both"), "both\nmine\n");
    s.sh(ANN, &format!("exec $SYSTX abort {id}")).ok();
    s.lab.do_systx(["umount", "g"]).ok();
}

#[test]
fn another_users_transaction_does_not_exist() {
    let s = shared!();
    let (anns, ann) = s.begin(ANN, "g");
    let (bobs, bob) = s.begin(BOB, "g/bob");
    s.sh(
        ANN,
        &format!("echo anns > {}/all/both; echo new > {}/ann/new", ann.display(), ann.display()),
    )
    .ok();
    assert_eq!((s.list(ANN), s.list(BOB)), (vec![anns.clone()], vec![bobs.clone()]));
    assert_eq!(s.lab.open_ids().len(), 2, "root sees all");
    for command in ["status", "commit", "abort", "diff", "enter"] {
        let said = s.refused(BOB, &format!("$SYSTX {command} {anns}"));
        assert!(!said.contains("all/both"), "{said}");
    }
    s.refused(BOB, &format!("$SYSTX begin --retry {anns} g/bob"));
    let (at, room) = (ann.display(), ann.parent().expect("below").display());
    for call in [
        format!("ls {at}"),
        format!("cat {at}/all/both"),
        format!("ls {room}"),
        format!("echo x > {at}/all/x"),
        format!("cd {at}"),
        format!("ls {}/../{ANN}", bob.display()),
        format!("cat {}/../../../all/both", bob.display()),
        // Nobody puts anything where views are, not even their user.
        format!("touch {room}/x"),
        format!("mkdir {}/x", s.guests().display()),
    ] {
        s.refused(BOB, &call);
    }
    for call in [
        format!("touch {room}/x"),
        format!("rmdir {at}"),
        format!("mv {at} {room}/x"),
        format!("chmod 777 {room}"),
    ] {
        s.refused(ANN, &call);
    }
    // Who loses to somebody else is not told to whom.
    let (rival, path) = s.begin(BOB, "g");
    s.sh(BOB, &format!("echo bobs > {}/all/both", path.display()));
    let said = s.sh(BOB, &format!("$SYSTX commit {rival}; $SYSTX status {rival}"));
    assert!(!format!("{said:?}").contains(&anns), "{said:?}");
    s.sh(BOB, &format!("$SYSTX abort {rival}"));
    s.sh(ANN, &format!("exec $SYSTX commit {anns}")).ok();
    s.sh(BOB, &format!("exec $SYSTX abort {bobs}")).ok();
    assert_eq!(s.lab.read("g/all/both"), "anns\n");
    s.lab.do_systx(["umount", "g"]).ok();
}

#[test]
fn what_a_user_may_remove_but_not_read_is_not_shown() {
    let s = shared!();
    let (id, path) = s.begin(ANN, "g/all");
    s.sh(ANN, &format!("cd {}; rm -f secret; echo own > own", path.display())).ok();
    let shown = s.sh(ANN, &format!("$SYSTX diff {id}"));
    let text = format!("{shown:?}");
    assert!(text.contains("own") && !text.contains("-secret"), "{text}");
    s.sh(ANN, &format!("exec $SYSTX commit {id}")).ok();
    assert!(!s.lab.has("g/all/secret") && s.lab.has("g/all/own"), "as by rm");
    s.lab.do_systx(["umount", "g"]).ok();
}

/// What the file system keeps for the superuser (`mkfs.ext4 -m`) is not for others: in a guarded
/// directory as beside it, and not by a commit.
#[test]
fn what_is_reserved_for_root_is_not_for_others() {
    let s = shared!();
    let kind = s.lab.native("stat -f -c %T .").ok().out;
    if !kind.starts_with("ext") || find_program("tune2fs").is_none() {
        skip!("no ext4, or no tune2fs (package e2fsprogs): nothing is reserved");
    }
    // Half of all blocks; then all but 16 MiB of the others are taken.
    let reserve = "tune2fs -m 50 $(findmnt -no SOURCE --target .) && sync && mkdir n && chmod 777 n && \
         set -- $(stat -f -c '%a %S' .) && fallocate -l $(($1 * $2 - 16777216)) taken && sync";
    s.lab.native(reserve).ok();
    let fill = |file: &str| {
        let full = s.refused(ANN, &format!("LC_ALL=C dd if=/dev/zero of={file} bs=16k"));
        assert!(full.contains("No space left"), "{full}");
        let filled = fs::metadata(s.lab.path(file)).expect("it is there").len();
        s.lab.native(&format!("rm {file}; sync")).ok();
        filled
    };
    let native = fill("n/f");
    assert!(native > 8 << 20, "{native}");
    let guarded = fill("g/all/f");
    assert!(native.abs_diff(guarded) <= 256 << 10, "{native} beside it, {guarded} in it");

    let (id, view) = s.begin(ANN, "g/all");
    let staged =
        s.refused(ANN, &format!("dd if=/dev/zero of={}/f bs=16k count=1536", view.display()));
    assert!(staged.contains("No space left"), "{staged}");
    s.refused(ANN, &format!("exec $SYSTX commit {id}"));
    s.sh(ANN, &format!("exec $SYSTX abort {id}"));
    assert!(!s.lab.has("g/all/f"), "nothing of it is committed");

    s.lab.native("dd if=/dev/zero of=g/all/roots bs=16k count=1536").ok();
    s.lab.do_systx(["umount", "g"]).ok();
}

#[test]
fn no_user_can_use_up_the_daemon() {
    let s = shared!();
    let fill =
        "for i in 1 2 3 4 5 6 7 8; do $SYSTX begin g >/dev/null || exit 9; done; ! $SYSTX begin g";
    s.sh(ANN, fill).ok().says("transactions of one user");
    s.begin(BOB, "g");
    let clear = "$SYSTX list --json | grep -o '\"id\":\"[0-9a-f]*\"' | cut -d'\"' -f4 | while read id; do $SYSTX abort $id; done";
    s.sh(ANN, clear).ok();
    assert_eq!(s.list(ANN), [""; 0]);
    s.begin(ANN, "g");
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    // Frames that no client of ours sends, and connections that say nothing.
    let script = r#"
import socket, struct, json, os, array, glob
path = glob.glob(os.environ["SYSTX_GUESTS_DIR"] + "/*.sock")[0]
def connect():
    s = socket.socket(socket.AF_UNIX); s.settimeout(300); s.connect(path); return s
def send(s, message, fds=()):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    s.sendmsg([struct.pack("<II", len(body), 0) + body], rights)
def receive(s):
    head = b""
    while len(head) < 8:
        got = s.recv(8 - len(head))
        if not got: return None
        head += got
    n, blob = struct.unpack("<II", head); body = b""
    while len(body) < n + blob:
        got = s.recv(n + blob - len(body))
        if not got: return None
        body += got
    return json.loads(body[:n])
def greet(s, version):
    send(s, {"request": "hello", "args": {"version": version, "release": "x"}}); return receive(s)
first = connect(); spoken = greet(first, 0)["value"]["version"]; first.close()
def hello():
    s = connect(); version = greet(s, spoken)
    assert "hello" in json.dumps(version), version
    return s
def ask(request, args=None, fds=()):
    s = hello(); message = {"request": request}
    if args is not None: message["args"] = args
    send(s, message, fds); answer = receive(s); s.close()
    return json.dumps(answer)
place = {"cwd": "/root", "root": "/", "store": None}
begin = {"place": place, "isolation": "serializable", "read_only": False, "nice": -20, "transport": "auto", "retry": None}
for request, args in [("shutdown", {"force": True}), ("guarded", None), ("top", None), ("recover", place),
                      ("log", {"place": place, "limit": None}), ("inspect", place), ("deferred", None), ("deferred", place),
                      ("settle", {"place": None, "id": "00000001", "left": []})]:
    answer = ask(request, args)
    assert answer == "null" or "failed" in answer, (request, answer)
top = os.environ["TOP"]
refused = [("/etc", os.O_PATH), ("/", os.O_PATH), ("/proc/self", os.O_PATH), (top, os.O_PATH), (top + "/g/all/both", os.O_RDONLY)]
for path_, flags in refused:
    fd = os.open(path_, flags); answer = ask("begin_open", begin, [fd]); os.close(fd)
    assert "failed" in answer and "guarded" in answer, (path_, answer)
assert "failed" in ask("begin_open", begin), "without a descriptor"
fd = os.open(top + "/g/all", os.O_PATH)
assert "failed" in ask("begin_open", begin, [fd, fd]), "with two"
# The path that it names means nothing.
answer = ask("begin_open", begin, [fd])
assert "begun" in answer and top + "/g/all" in answer, answer
for bytes_ in [b"", b"{", b"\xff" * 100, b'{"request":"status","args":{"id":"zz"}}']:
    s = hello(); send(s, bytes_); receive(s); s.close()
s = hello(); s.sendall(struct.pack("<II", 1 << 31, 1 << 31)); assert receive(s) is None
s = hello(); s.sendall(struct.pack("<II", 1 << 20, 0)); assert receive(s) is None
idle = [connect() for _ in range(30)]
import sys; print("done", file=sys.stderr, flush=True)
"#;
    let file = s.lab.outside().join("attack.py");
    fs::write(&file, script).expect("ours");
    let run = format!("TOP={} python3 {} < /dev/null", s.lab.root().display(), file.display());
    s.sh(ANN, &run).ok().says("done");
    // It goes on for everybody.
    s.begin(BOB, "g/bob");
    assert_eq!(s.lab.daemons().len(), 1);
    for id in s.lab.open_ids() {
        s.lab.do_systx(["abort", &id]).ok();
    }
    s.lab.do_systx(["umount", "g"]).ok();
}

/// A program that begins with a scope, adds a line to its file, and ends; it says how that went.
const SCOPED: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <systx.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 3 || chdir(argv[1])) return perror(argv[1]), 2;
    const struct systx_path scope[] = {{argv[2], SYSTX_WRITE, 0}};
    if (xbegin_scoped(0, scope, 1)) return printf("not begun: %s\n", strerror(errno)), 1;
    FILE *file = fopen(argv[2], "a");
    if (!file || fprintf(file, "scoped\n") < 0 || fclose(file))
        return printf("not written: %s\n", strerror(errno)), 1;
    if (xend()) return printf("not committed: %s\n", strerror(errno)), 1;
    puts("committed");
    return 0;
}
"#;

#[test]
fn a_users_program_with_a_scope_is_one_of_the_directory_and_begins_none_in_a_view() {
    if find_program("cc").is_none() {
        skip!("there is no C compiler");
    }
    let s = shared!();
    let out = s.lab.outside();
    // Where these users can execute and load it.
    let library = built(&["--lib"], LIBRARY);
    fs::write(out.join("scoped.c"), SCOPED).expect("ours");
    let mut copy = std::process::Command::new("cp");
    tool(copy.arg(&library).arg(out.join(SONAME))).expect("a copy");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lib/include");
    let mut cc = std::process::Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(out.join("scoped"));
    cc.arg(out.join("scoped.c")).arg("-I").arg(include).arg(out.join(SONAME));
    cc.arg(format!("-Wl,-rpath,{}", out.display()));
    tool(&mut cc).expect("a program");
    for name in ["scoped", SONAME] {
        fs::set_permissions(out.join(name), PermissionsExt::from_mode(0o755)).expect("ours");
    }
    let program = out.join("scoped").display().to_string();
    let g = s.lab.path("g").display().to_string();
    let told = |uid, how: &str, dir: &str, path: &str| {
        let done = s.sh(uid, &format!("{how} {program} {dir} {path}"));
        done.out.trim_end().to_owned()
    };
    // Which needs a namespace of its own, as the daemon of the directory is root's.
    let exec = "$SYSTX exec --";
    assert_eq!(told(ANN, "", &g, "all/both"), "not begun: Operation not permitted");
    let first = s.sh(ANN, &format!("{exec} {program} {g} all/both"));
    if first.err.contains("user namespace") {
        skip!("user namespaces are not allowed here");
    }
    assert_eq!(first.out, "committed\n", "{first}");
    assert_eq!(told(ANN, exec, &g, "ann/new"), "committed");
    assert_eq!(s.lab.read("g/all/both"), "both\nscoped\n");
    assert_eq!(owner(s.lab.path("g/ann/new")), (ANN, ANN));
    // What the user has no right to cannot be claimed, whether it is there or not.
    for path in ["bob/x", "new", "closed/in/f"] {
        assert_eq!(told(ANN, exec, &g, path), "not begun: Permission denied", "{path}");
    }
    // What may be replaced can be, and is not written for that.
    assert_eq!(told(ANN, exec, &g, "all/secret"), "not written: Permission denied");
    // It wins against transactions with a path that have the same, the user's own and others'.
    let (anns, ann) = s.begin(ANN, "g");
    let (bobs, bob) = s.begin(BOB, "g");
    s.sh(BOB, &format!("echo bobs >> {}/all/both", bob.display())).ok();
    assert_eq!(told(ANN, exec, &g, "all/both"), "committed");
    assert_eq!(s.sh(BOB, &format!("$SYSTX commit {bobs}")).code, CONFLICT);
    s.sh(BOB, &format!("exec $SYSTX abort {bobs}")).ok();
    // In a view there is no second transaction; the first one goes on.
    let view = ann.display().to_string();
    s.sh(ANN, &format!("echo anns > {view}/ann/more")).ok();
    let nowhere = "not begun: Inappropriate ioctl for device";
    assert_eq!(told(ANN, exec, &view, "ann/more"), nowhere);
    assert_eq!(told(ANN, exec, &format!("{view}/ann"), "more"), nowhere);
    // Nor does a transaction of the directory reach into it.
    let across = format!("{view}/ann/more");
    assert_eq!(told(ANN, exec, &g, &across), "not begun: Invalid cross-device link");
    s.sh(ANN, &format!("exec $SYSTX commit {anns}")).ok();
    assert_eq!(s.lab.read("g/ann/more"), "anns\n");
    assert_eq!(s.lab.read("g/all/both"), "both\nscoped\nscoped\n");
    assert!(s.lab.open_ids().is_empty());
    s.lab.do_systx(["umount", "g"]).ok();
}
