//! What others can make root's daemon take, show, and leave on a file.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use systx_e2e::lab::find_program;
use systx_e2e::run::{Limits, finish};
use systx_e2e::shared::{ANN, BOB, Shared};
use systx_e2e::users;
use systx_e2e::{Finished, skip};

const GUEST_SOCKET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/security/guest_socket.py");

/// Garbage, again and again, on as many connections as there are.
const FLOOD: &str = r#"python3 - <<'END'
import os, socket, struct
names = [n for n in os.listdir(os.environ["SYSTX_GUESTS_DIR"]) if n.endswith(".sock")]
where = os.path.join(os.environ["SYSTX_GUESTS_DIR"], names[0])
for n in range(5000):
    s = socket.socket(socket.AF_UNIX)
    s.connect(where)
    try:
        s.sendall(b"no frame at all, %d" % n)
    except (BrokenPipeError, ConnectionResetError):
        pass
    s.close()
END"#;

#[test]
fn a_guest_does_not_fill_the_log() {
    let s = users!();
    s.lab.do_systx(["mount", "g"]).ok();
    let before = s.lab.daemon_log().len();
    s.sh(ANN, FLOOD).ok();
    let grown = s.lab.daemon_log().len() - before;
    assert!(grown < 16 << 10, "{grown} bytes");
    // Nor hides what others do.
    s.sh(BOB, &FLOOD.replace("5000", "1")).ok();
    s.lab.until("bob is noted", || s.lab.daemon_log()[before..].contains(&BOB.to_string()));
    s.lab.do_systx(["umount", "g"]).ok();
}

/// Everything that a person may read on a terminal, whatever the names are.
#[test]
fn names_do_nothing_to_a_terminal() {
    let s = users!();
    let name = r"$(printf 'a\033]0;title\007\033[2Jb\nsysty: committed\302\233m\177\342\200\256c')";
    // The content of a patch that is piped is exact, and the target of a link is content.
    let script = format!("mkdir \"g/{name}\"; cd \"g/{name}\"; echo x > \"{name}\"; echo y > f");
    s.lab.run(&[], &script).ok();
    let shown = |args: &[&str]| {
        let done = s.lab.do_systx(args.iter().copied());
        for text in [&done.out, &done.err] {
            let acts = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
            assert!(!text.contains(acts), "{args:?}: {text:?}");
            assert!(!text.lines().any(|line| line.starts_with("sysx: committed")), "{text:?}");
        }
        done
    };
    let id = s.lab.logged_ids().pop().expect("one");
    let odd = s.lab.path("g").join("a\u{1b}[2Jb\nc");
    let odd = odd.to_str().expect("text");
    shown(&["log"]).ok();
    shown(&["show", &id]).ok();
    shown(&["show", "--stat", &id]);
    shown(&["show", "--name-status", &id]);
    shown(&["services"]);
    shown(&["doctor"]);
    shown(&["diff", odd]);
    shown(&["mount", odd]);
    shown(&["run", "-C", odd, "--", "true"]);
    shown(&["run", "--", odd]);
    shown(&["show", odd]);
    std::fs::create_dir(odd).expect("a directory");
    let begun = s.lab.do_systx(["begin", "--json", odd]).ok().json();
    let open = begun["begun"]["id"].as_str().expect("an id").to_owned();
    // Exact where programs read.
    assert!(begun["begun"]["directory"].to_string().contains("\\u001b[2Jb\\nc"), "{begun}");
    let path = begun["begun"]["path"].as_str().expect("a path");
    s.lab.native(&format!("cd {path}; echo new > \"{name}\"")).ok();
    shown(&["list"]).ok();
    shown(&["status", &open]).ok();
    shown(&["diff", &open]).ok();
    shown(&["diff", "--stat", &open]).ok();
    shown(&["top", "--once"]).ok();
    shown(&["abort", &open]).ok();
    shown(&["undo", &id]);
}

/// xattr(7): they exist for administrators alone.
#[test]
fn trusted_attributes_are_listed_to_administrators_only() {
    let s = users!();
    if find_program("setfattr").is_none() || find_program("python3").is_none() {
        skip!("no setfattr (package attr) or no python3");
    }
    let made = s.lab.native(
        "echo x > g/f; chmod 644 g/f; setfattr -n trusted.t -v 1 g/f; setfattr -n user.u -v 1 g/f",
    );
    if made.code != 0 {
        skip!("no extended attributes here: {}", made.err);
    }
    s.lab.do_systx(["mount", "g"]).ok();
    let list = "python3 -c 'import os, sys; print(os.listxattr(sys.argv[1]))'";
    assert_eq!(s.sh(ANN, &format!("{list} g/f")).ok().out.trim(), "['user.u']");
    let viewed = format!("set -- $($SYSTX begin g); {list} $2/f; $SYSTX abort $1 >/dev/null");
    assert_eq!(s.sh(ANN, &viewed).ok().out.trim(), "['user.u']");
    let less =
        format!("setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin sh -c \"{list} g/f\"");
    assert_eq!(
        s.lab.native(&less.replace('"', "\\\"").replace("\\\"", "\"")).ok().out.trim(),
        "['user.u']"
    );
    for all in [s.lab.native(&format!("{list} g/f")), s.lab.run(&[], &format!("{list} g/f"))] {
        let out = all.ok().out;
        assert!(out.contains("'trusted.t'") && out.contains("'user.u'"), "{out}");
    }
    s.lab.do_systx(["umount", "g"]).ok();
}

/// Calls that change the content beside write(2), by who may write a set-id file of root: what is
/// left of the bits.
const CONTENT: [&str; 5] = [
    "fallocate -l 8192 f",
    "fallocate -n -l 16384 f",
    "fallocate -p -o 0 -l 4096 f",
    "fallocate -z -o 0 -l 4096 f",
    "python3 -c 'import os; a=os.open(\"src\",0); b=os.open(\"f\",1); assert os.copy_file_range(a,b,10)==10'",
];

/// The modes after each of them, in a directory; what fails there is left out of the comparison
/// with others.
fn modes(s: &Shared, by: Option<u32>, prepare: &str, dir: &str) -> Vec<String> {
    let mut all = Vec::new();
    for call in CONTENT {
        for mode in ["4777", "2777", "6777", "4766"] {
            let make = format!(
                "cd g; rm -f f src; head -c 12288 /dev/zero > f; head -c 100 /dev/zero > src; chmod 644 src; chmod {mode} f"
            );
            s.lab.native(&make).ok();
            let script =
                format!("{prepare} {dir} {{ {call} 2>/dev/null || echo failed; }} && stat -c %a f");
            let done = match by {
                Some(uid) => s.sh(uid, &script),
                None => s.lab.native(&script),
            };
            all.push(format!("{call} of {mode}: {}", done.ok().out.trim()));
        }
    }
    all
}

#[test]
fn set_id_bits_go_with_the_content_as_on_the_host() {
    let s = users!();
    if find_program("fallocate").is_none() || find_program("python3").is_none() {
        skip!("no fallocate (package util-linux) or no python3");
    }
    std::fs::set_permissions(s.lab.path("g"), PermissionsExt::from_mode(0o777)).expect("ours");
    let native = modes(&s, Some(ANN), "", "cd g &&");
    let roots = modes(&s, None, "", "cd g &&");
    assert!(native.iter().any(|line| line.ends_with(": 777")), "{native:?}");
    let own = format!("set -- $({} begin g);", s.lab.binary().display());
    s.lab.do_systx(["mount", "g"]).ok();
    assert_eq!(modes(&s, Some(ANN), "", "cd g &&"), native, "view 0");
    let view = "set -- $($SYSTX begin g); trap '$SYSTX abort $1 >/dev/null' EXIT;";
    assert_eq!(modes(&s, Some(ANN), view, "cd $2 &&"), native, "a transaction");
    let retired = "set -- $($SYSTX begin g); cd $2; $SYSTX commit $1 >/dev/null;";
    assert_eq!(modes(&s, Some(ANN), retired, ""), native, "a view after its commit");
    assert_eq!(modes(&s, None, "", "cd g &&"), roots, "root in view 0");
    let roots_view = format!("{own} trap '{} abort $1 >/dev/null' EXIT;", s.lab.binary().display());
    assert_eq!(modes(&s, None, &roots_view, "cd $2 &&"), roots, "root in a transaction");
    s.lab.do_systx(["umount", "g"]).ok();
}

/// Everybody may read the list of mounts.
#[test]
fn the_list_of_mounts_tells_nothing_of_others_transactions() {
    let s = users!();
    s.lab.native("mkdir -p g/quietly/kept; chmod 755 g g/quietly g/quietly/kept").ok();
    s.lab.do_systx(["mount", "g"]).ok();
    let begun = s.sh(ANN, "exec $SYSTX begin --json g/quietly/kept").ok().json();
    let id = begun["begun"]["id"].as_str().expect("an id").to_owned();
    let path = begun["begun"]["path"].as_str().expect("a path").to_owned();
    let seen = s.sh(BOB, "cat /proc/self/mountinfo").ok().out;
    assert!(!seen.contains(&id) && !seen.contains("quietly"), "{seen}");
    // It is the directory, and nothing above it.
    let inside = format!("cd {path} && touch /dev/null && ls -a .. >/dev/null; stat -c %i . g");
    let _ = s.sh(ANN, &inside);
    assert_eq!(
        s.sh(ANN, &format!("stat -c %i {path}")).ok().out,
        s.lab.native("stat -c %i g/quietly/kept").ok().out
    );
    s.sh(ANN, &format!("exec $SYSTX abort {id}")).ok();
    s.lab.do_systx(["umount", "g"]).ok();
}

/// On eight connections: asks for the guest's own content, and hardly takes it. Says how many of
/// the answers were on their way at once, until the first of them was given up.
const SLOW: &str = r#"set -e
set -- $($SYSTX -q begin g/ann)
head -c 40000000 /dev/zero | tr '\0' x > $2/f
python3 - $1 $PWD/g/ann/f <<'END'
import os, select, sys
from guest_client import *
all = [connect() for n in range(8)]
for s in all:
    send(s, content(sys.argv[1], sys.argv[2], "new"))
most, ended = 0, False
while not ended:
    poll = select.poll()
    for s in all:
        poll.register(s, select.POLLIN)
    on_the_way = 0
    for fd, events in poll.poll(200):
        ended = ended or bool(events & select.POLLHUP)
        on_the_way += not events & select.POLLHUP
        # Slowly, but always a little.
        os.read(fd, 1 << 10)
    most = max(most, on_the_way)
    select.poll().poll(50)
print(most)
END
$SYSTX -q abort $1 >&2"#;

/// What a guest does with its own words; `python3` finds `guest_client.py`.
fn talk(s: &Shared, script: &str) -> Finished {
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/security/guest_client.py");
    let client = s.publish(Path::new(client), "guest_client.py");
    let mut command = s.command(ANN, script);
    command.env("PYTHONPATH", client.parent().expect("a directory"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    finish(command, Limits::default(), &s.lab)
}

/// Asks for the content of a name, where the guest's own file and one of root's change places.
const SWAPPED: &str = r#"set -e
set -- $($SYSTX -q begin g/ann)
cd $2; echo own > own; : > there; mv own there
cat > /dev/null < there
PLACE=$OLDPWD/g/ann python3 - $1 <<'END'
import ctypes, os, sys, threading
from guest_client import *
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, EXCHANGE = -100, 2
ends = False
def swap():
    while not ends:
        if libc.renameat2(AT_FDCWD, b"there", AT_FDCWD, b"roots", EXCHANGE) != 0:
            raise OSError(ctypes.get_errno())
threading.Thread(target=swap, daemon=True).start()
s, answers = connect(), set()
for n in range(int(os.environ.get("ROUNDS", "3000"))):
    for version in "old", "new":
        send(s, content(sys.argv[1], os.environ["PLACE"] + "/there", version))
        reply, bytes = receive(s)
        answers.add(bytes.decode())
ends = True
print(sorted(answers))
END
cd /; $SYSTX -q abort $1 >&2"#;

/// Who may give a file another name may not always read it.
#[test]
fn content_of_others_is_not_shown_whatever_name_it_has_just_got() {
    let s = users!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    let make = "chmod 755 g; mkdir g/ann; umask 077; echo secret > g/ann/roots";
    s.lab.native(&format!("{make}; chown {ANN} g/ann")).ok();
    s.lab.do_systx(["mount", "g"]).ok();
    let answers = talk(&s, SWAPPED).ok().out;
    assert!(answers.contains("own") && !answers.contains("secret"), "{answers}");
    s.lab.do_systx(["umount", "g"]).ok();
}

#[test]
fn who_does_not_read_has_one_answer_waiting_and_not_for_ever() {
    let s = users!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    s.lab.native(&format!("chmod 755 g; mkdir g/ann; chown {ANN} g/ann")).ok();
    s.lab.do_systx(["mount", "g"]).ok();
    let most = talk(&s, SLOW).ok().out;
    // The next may have begun before the end of the one that was given up is seen.
    assert!(["1", "2"].contains(&most.trim()), "{most} at once");
    s.lab.do_systx(["umount", "g"]).ok();
}

/// Frames that break every rule, requests of everybody, descriptors of all kinds, those that write
/// slowly or do not read, and too many of them: the daemon answers others meanwhile, and is what it
/// was afterwards.
#[test]
fn whatever_comes_over_the_guests_socket_the_daemon_serves_on() {
    let s = users!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    s.lab.native("chmod 755 g; echo one > g/f; mkdir g/bob; chown 12032 g/bob").ok();
    s.lab.do_systx(["mount", "g"]).ok();
    let daemon = s.lab.daemons();
    let facts = || {
        let pid = daemon[0];
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let of = |field: &str| {
            let line = status.lines().find(|line| line.starts_with(field)).expect("a field");
            line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number")
        };
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").count() as u64;
        (of("VmRSS:"), of("Threads:"), open)
    };
    let script = s.publish(Path::new(GUEST_SOCKET), "guest_socket.py");
    let seed = std::env::var("SYSTX_SEED").unwrap_or_else(|_| "1".into());
    eprintln!("SYSTX_SEED={seed}");
    let rounds = std::env::var("SYSTX_ROUNDS").unwrap_or_else(|_| {
        if std::env::var_os("SYSTX_LONG").is_some() { "5000" } else { "200" }.into()
    });
    // What the first transaction opens stays open.
    let bobs = "set -e; set -- $($SYSTX begin g/bob); echo x > $2/x; $SYSTX commit $1";
    s.sh(BOB, bobs).ok();
    let before = facts();
    let log = s.lab.daemon_log().len();
    let script = format!("exec python3 {} {seed} {rounds}", script.display());
    // It goes on until it is told to end: its last connections are open meanwhile.
    let mut noisy = s.command(ANN, &script);
    noisy.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut noisy = noisy.spawn().expect("it starts");
    let mut line = String::new();
    let out = noisy.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("text");
    assert_eq!(line, "here\n", "the daemon answered what it may not");
    s.sh(BOB, &bobs.replace('x', "y")).ok();
    assert_eq!(s.lab.read("g/bob/y"), "y\n");
    drop(noisy.stdin.take());
    assert!(noisy.wait().expect("it ends").success());
    assert_eq!(s.lab.daemons(), daemon, "the same process");
    s.lab.until("what it took is given back", || {
        let now = facts();
        now.1 <= before.1 + 8 && now.2 <= before.2 + 8
    });
    assert!(facts().0 < before.0 + (64 << 10), "{before:?} {:?}", facts());
    assert!(s.lab.open_ids().is_empty());
    let text = s.lab.daemon_log();
    assert!(text.len() - log < 64 << 10, "{}", text.len() - log);
    assert!(!text.contains("panicked"), "{text}");
    s.lab.do_systx(["umount", "g"]).ok();
}
