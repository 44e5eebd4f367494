//! Who may less than root: what is out of reach of an ordinary user, and what root in a container
//! may not.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use systx_e2e::confine::{LOOKING, in_container, without_calls};
use systx_e2e::lab::{find_program, tool};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{FAILED, Finished, Lab, Tree, lab, skip};

/// Ids that no machine has.
const ANN: u32 = 12041;
const BOB: u32 = 12042;

/// A script of root in a mount namespace of its own, with all that it starts; `$SYSTX` is the
/// program, `$U` in front of a command has an ordinary user do it.
fn apart(lab: &Lab, script: &str) -> Finished {
    let mut command = lab.command("unshare");
    let user = format!("setpriv --reuid={ANN} --regid={ANN} --clear-groups --");
    command
        .args(["-m", "--propagation", "private", "sh", "-c", script])
        .env("SYSTX", lab.binary())
        .env("U", user)
        .env("SYSTX_RUNTIME_DIR", lab.root().with_file_name("run"));
    finish(command, Limits::default(), lab)
}

#[test]
fn mounts_out_of_reach_keep_nobody_from_a_run() {
    let lab = lab!();
    if find_program("setpriv").is_none() || find_program("unshare").is_none() {
        skip!("no setpriv or no unshare (package util-linux)");
    }
    let own = lab.root().with_file_name("run");
    // Root's mounts behind a closed door, as those of container engines: of other file systems, and
    // of parts of the volume.
    let script = format!(
        "set -e; mkdir -p -m 700 closed; mkdir -p closed/tmpfs closed/part closed/self closed/other part mine; echo in > closed/in; \
         cp \"$SYSTX\" systx; chmod 755 systx; chown {ANN} mine . {own}; \
         mount -t tmpfs none closed/tmpfs; mount --bind part closed/part; mount --bind closed/self closed/self; mount --bind /proc/sys closed/other; \
         for only in 1 ''; do export SYSTX_ONE_FILE_SYSTEM=$only; \
           $U ./systx run -- sh -c 'echo new > mine/new; ! ls closed 2>&1'; \
           test \"$(cat mine/new)\" = new; rm mine/new; \
         done",
        own = own.display()
    );
    let done = apart(&lab, &script).ok();
    assert!(done.out.contains("Permission denied"), "{done}");
    lab.kill_all();
}

/// `systx` of root with the rights that container engines give.
fn contained(lab: &Lab, args: &[&str]) -> Finished {
    let mut command = in_container(lab, lab.binary());
    command.args(args);
    finish(command, Limits::default(), lab)
}

fn owner(lab: &Lab, path: &str) -> (u32, u32) {
    let meta = lab.path(path).symlink_metadata().unwrap_or_else(|e| panic!("{path}: {e}"));
    (meta.uid(), meta.gid())
}

#[test]
fn root_in_a_container_changes_owners_and_users_in_a_run() {
    let lab = lab!();
    if find_program("setpriv").is_none() {
        skip!("no setpriv (package util-linux)");
    }
    lab.write("old", "old\n");
    let mut mount = in_container(&lab, "mount");
    mount.args(["-t", "tmpfs", "none", "."]);
    assert_ne!(finish(mount, Limits::default(), &lab).code, 0, "it has no right to mount");
    // As package managers do: files of others, work as somebody else, in groups of their own.
    let user = format!("setpriv --reuid={ANN} --regid={ANN} --groups {BOB} --");
    let work = format!(
        "set -e; test $(id -u) = 0; echo a > a; mkdir d; chown {ANN}:{BOB} a d; chown {BOB} old; \
         {user} sh -c 'test $(id -u) = {ANN}; echo mine > d/mine; ! echo x > x; id -G' > ids; \
         chown -h 65534:65533 d/mine; cp /usr/bin/id who; chown {BOB} who; chmod 4755 who; \
         {user} ./who -u > who-it-is; test \"$(stat -c '%u %g' a)\" = '{ANN} {BOB}'"
    );
    contained(&lab, &["run", "--", "sh", "-c", &work]).ok();
    assert_eq!(owner(&lab, "a"), (ANN, BOB));
    assert_eq!(owner(&lab, "d"), (ANN, BOB));
    assert_eq!(owner(&lab, "old"), (BOB, 0));
    assert_eq!(owner(&lab, "d/mine"), (65534, 65533));
    assert_eq!(lab.read("ids"), format!("{ANN} {BOB}\n"));
    assert_eq!(lab.read("who-it-is"), format!("{BOB}\n"), "set-id programs are what they are");
    assert_eq!(owner(&lab, "who"), (BOB, 0));
    // What is kept is entered with the same ids.
    contained(&lab, &["run", "--on-exit=keep", "--", "chown", &ANN.to_string(), "old"]).ok();
    let json = contained(&lab, &["list", "--json"]).ok().json();
    let [id] = &systx_e2e::run::ids(&json)[..] else { panic!("{json}") };
    contained(&lab, &["enter", id, "--", "chown", &format!(":{ANN}"), "old"]).ok();
    assert_eq!(owner(&lab, "old"), (BOB, 0));
    contained(&lab, &["commit", id]).ok();
    assert_eq!(owner(&lab, "old"), (ANN, ANN));
    contained(&lab, &["undo", id]).ok();
    assert_eq!(owner(&lab, "old"), (BOB, 0));
}

/// Who has closed a file has no lock of it any more, also where the daemon may not look at what
/// processes have open.
#[test]
fn locks_end_with_their_descriptions_where_nobody_may_look() {
    let lab = lab!();
    let transports = ["auto", "dev"];
    for (n, transport) in transports.into_iter().enumerate() {
        let lock = format!("lock{n}");
        // An flock and a lock by fcntl(2), each taken again by others, without waiting, once it was
        // closed.
        let work = format!(
            "set -e; echo > {lock}; flock -n {lock} true; \
             for i in $(seq 30); do flock -n {lock} true || echo still locked; \
               (exec 9<{lock}; flock -n 9; exec 9<&-; flock -n {lock} true || echo closed, and still locked); done; \
             exec 8<{lock}; flock -n {lock} true || echo who has it open is no owner; \
             mkfifo ready stop; (exec 9<{lock}; flock -n 9; sh -c 'echo > ready; read x < stop' &); \
             read x < ready; flock -n {lock} true && echo an inherited lock was lost; \
             echo > stop; flock {lock} true; rm ready stop; echo done"
        );
        let mut command = lab.systx(["run", "--transport", transport, "--", "sh", "-c", &work]);
        without_calls(&mut command, LOOKING);
        let done = finish(command, Limits::default(), &lab).ok();
        assert_eq!(done.out, "done\n", "{transport}: {done}");
        assert!(lab.has(&lock));
    }
}

#[test]
fn records_end_with_their_descriptions_where_nobody_may_look() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    // Of a process, and of a description, whose names no module has before Python 3.9.
    let work = r#"
import fcntl, os, signal, struct
signal.alarm(240)
OFD_SETLK, OFD_SETLKW = 37, 38
record = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
def another_can(lock):
    pid = os.fork()
    if pid: return os.waitpid(pid, 0)[1] == 0
    try: fcntl.fcntl(os.open("f", os.O_RDWR), lock, record)
    except OSError: os._exit(1)
    os._exit(0)
for wait, lock in (fcntl.F_SETLK, fcntl.F_SETLK), (OFD_SETLKW, OFD_SETLK):
    for _ in range(20):
        fd = os.open("f", os.O_RDWR | os.O_CREAT)
        fcntl.fcntl(fd, wait, record)
        assert not another_can(lock), "locked"
        after = os.open("f", os.O_RDWR)
        os.close(fd)
        # The end of a description is told of a moment later.
        if lock == fcntl.F_SETLK: assert another_can(lock), "closed"
        fcntl.fcntl(after, wait, record)
        os.close(after)
print("done")
"#;
    let script = lab.outside().join("records.py");
    std::fs::write(&script, work).expect("ours");
    let script = script.display().to_string();
    let mut command = lab.systx(["run", "--", "python3", &script]);
    without_calls(&mut command, LOOKING);
    assert_eq!(finish(command, Limits::default(), &lab).ok().out, "done\n");
}

/// The owner gives the right to write in the view, and what is written behind the end of a file
/// asks for no right to read.
#[test]
fn a_user_writes_to_files_of_the_same_user_that_cannot_be_read() {
    let lab = lab!().as_user();
    let page = "x".repeat(4096);
    for (name, text) in [("empty", ""), ("page", &*page), ("full", "old\n")] {
        let path = lab.write(name, text);
        std::fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
    }
    let mode = |name| lab.path(name).metadata().unwrap().permissions().mode() & 0o777;
    lab.run(&[], "chmod 600 empty; echo new > empty; chmod 600 page; echo more >> page").ok();
    assert_eq!((lab.read("empty"), lab.read("page")), ("new\n".into(), page.clone() + "more\n"));
    assert_eq!((mode("empty"), mode("page")), (0o600, 0o600));
    lab.do_systx(["undo"]).ok();
    assert_eq!((lab.read("empty"), lab.read("page")), (String::new(), page));
    assert_eq!((mode("empty"), mode("page")), (0, 0));
    lab.do_systx(["redo"]).ok();
    assert_eq!((lab.read("page").len(), mode("empty")), (4101, 0o600));
    // What an undo would need cannot be had: the file is named.
    lab.run(&[], "chmod 600 full; echo new > full").expect(FAILED).says("undo needs of full");
    assert_eq!((lab.read("full"), mode("full")), ("old\n".into(), 0));
}

/// Which calls for files of others succeed, of those that change no directory of others.
const OTHERS: &str = r#"
ask() { what=$1; shift; "$@" >/dev/null 2>&1 && echo "$what yes" || echo "$what no"; }
cd work
for dir in own open sticky closed; do
  for file in plain secret shared link fifo; do
    echo "$dir/$file"
    it=$dir/$file
    [ $file = fifo ] || ask read cat $it
    [ $file = fifo ] || ask append sh -c "echo more >> $it"
    ask mode chmod 700 $it
    ask time touch -h -d 2020-01-01 $it
    # One that is made in a sticky directory could not be taken back, by an undo neither.
    [ $dir = sticky ] || ask link ln -P $it $dir/$file.hard
    ask rename mv -f $it $dir/$file.moved
    ask back mv -f $dir/$file.moved $it
    ask away mv -f $it own/$dir.$file
    ask remove rm -f $dir/$file own/$dir.$file
  done
  ask replace sh -c "echo mine > own/mine; mv -f own/mine $dir/replaced"
done
"#;

/// What an ordinary user may do with others' files by the rights of the directory, the user may do
/// in a run.
#[test]
fn a_user_removes_and_renames_files_of_others_where_the_directory_allows_it() {
    let lab = lab!().as_user();
    let prepare = format!(
        "rm -rf work; mkdir work; cd work; mkdir own open sticky closed; \
         for d in own open sticky closed; do echo 1 > $d/plain; echo 1 > $d/secret; \
         echo 1 > $d/shared; chmod 600 $d/secret; chmod 666 $d/shared; ln -s plain $d/link; \
         mkfifo $d/fifo; echo 1 > $d/replaced; done; \
         chown {0}:{0} own; chmod 777 open; chmod 1777 sticky",
        lab.uid()
    );
    let tree = || Tree::capture(lab.path("work"));
    let prepared = || {
        let mut sh = std::process::Command::new("sh");
        tool(sh.args(["-ec", &prepare]).current_dir(lab.root())).expect("a tree");
        tree()
    };
    prepared();
    let native = lab.native(OTHERS).ok();
    let after = tree();
    let before = prepared();
    let inside = lab.run(&[], OTHERS).ok();
    let differs = native.out.lines().zip(inside.out.lines()).find(|(want, got)| want != got);
    assert_eq!(differs, None, "{inside}\nnatively: {}", native.out);
    after.assert_same(&tree(), "native against committed");
    lab.do_systx(["undo"]).ok();
    before.assert_same(&tree(), "undone");
}

/// What programs try in each of its arguments; `$U` in front of a command has an ordinary user do
/// it.
const PROBE: &str = r#"
ask() { said=$("$@" 2>/dev/null) && echo yes $said || echo no; }
for dir; do
  cd $dir
  set -- "$(ask sh -c 'echo > new && rm new')" "$(ask sh -c ': < null')" "$(ask ./id -u)" \
    "$(ask $U ./id -u)" "$(ask test -s link)"
  echo "$(cat name): writes $1, opens a device $2, executes $3, becomes $4, follows $5"
done
"#;

/// Each limit, of a mount of a part of the volume and of another file system: what programs try
/// there, they are answered natively, in a run, and (where one can begin) below a view's path.
#[test]
fn a_mount_allows_inside_what_it_allows_outside() {
    let lab = lab!();
    if find_program("setpriv").is_none() || find_program("unshare").is_none() {
        skip!("no setpriv or no unshare (package util-linux)");
    }
    lab.write("probe", PROBE);
    let script = r#"set -e; umask 022; chmod 755 .
        for l in ro nosuid nodev noexec nosymfollow; do
          mkdir part.$l far.$l; mount --bind part.$l part.$l
          mount -t tmpfs -o mode=755 none far.$l; dirs="$dirs $PWD/part.$l $PWD/far.$l"
          for d in part.$l far.$l; do
            cp "$(command -v id)" $d/id; chmod 4755 $d/id; ln -s id $d/link; echo $d > $d/name
            mknod $d/null c 1 3; chmod 666 $d/null; mount -o remount,bind,$l $d
          done
        done
        sh probe $dirs; sh probe $dirs > native
        SYSTX_ONE_FILE_SYSTEM= $SYSTX run -- sh probe $dirs > inside; diff native inside >&2
        # Where something can be written a view can begin; nobody else gets into it.
        U=; : > native; : > inside
        for l in nosuid nodev noexec nosymfollow; do
          sh probe $PWD/part.$l >> native
          set -- $($SYSTX begin $PWD/part.$l 2> hints)
          sh probe $2 >> inside; $SYSTX abort $1 2> hints
        done
        diff native inside >&2"#;
    let done = apart(&lab, script).ok();
    for limited in [
        "ro: writes no, opens a device yes, executes yes 0, becomes yes 0, follows yes",
        "nosuid: writes yes, opens a device yes, executes yes 0, becomes yes 12041, follows yes",
        "nodev: writes yes, opens a device no, executes yes 0, becomes yes 0, follows yes",
        "noexec: writes yes, opens a device yes, executes no, becomes no, follows yes",
        "nosymfollow: writes yes, opens a device yes, executes yes 0, becomes yes 0, follows no",
    ] {
        for place in ["part", "far"] {
            assert!(done.out.contains(&format!("{place}.{limited}\n")), "{limited}: {done}");
        }
    }
    lab.kill_all();
}
