//! Frozen snapshots of a guarded directory: whatever plain programs and transactions do beside it,
//! a read-only transaction sees one moment, never conflicts, and leaves nothing behind.  With
//! `SYSTX_E2E_FS=volume` those of a log-structured volume, all of which is guarded.
//!
//! Whatever may hang does so in a process with a limit, never in the test itself.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use systx_e2e::lab::find_program;
use systx_e2e::run::{HANG, Limits, finish};
use systx_e2e::{CONFLICT, Finished, Fs, Lab, Tree, lab, skip};

/// Files of the stair.
const STAIR: usize = 5;

fn sh(lab: &Lab, script: &str) -> Finished {
    let mut command = lab.command("sh");
    command.args(["-c", script]);
    finish(command, Limits::default(), lab)
}

/// Guards `g`, unless everything is.
#[track_caller]
fn guard(lab: &Lab, way: &[&str]) {
    if lab.fs != Fs::Volume {
        lab.do_systx(["mount", "g"].iter().chain(way)).ok();
    }
}

#[track_caller]
fn unguard(lab: &Lab) {
    if lab.fs != Fs::Volume {
        lab.do_systx(["umount", "g"]).ok();
    }
}

/// An open read-only transaction.
struct Snapshot<'a> {
    lab: &'a Lab,
    id: String,
    path: PathBuf,
}

impl<'a> Snapshot<'a> {
    #[track_caller]
    fn begin(lab: &'a Lab, dir: &str) -> Snapshot<'a> {
        let dir = lab.path(dir);
        let dir = dir.to_str().expect("UTF-8");
        let json = lab.do_systx(["begin", "--read-only", "--json", dir]).ok().json();
        let text = |name: &str| json["begun"][name].as_str().expect("a string").to_owned();
        Snapshot { lab, id: text("id"), path: PathBuf::from(text("path")) }
    }

    /// What is in it, read by another process.
    fn tree(&self) -> Tree {
        Tree::capture(&self.path)
    }

    fn commit(&self) -> Finished {
        self.lab.do_systx(["commit", &self.id])
    }
}

/// A script that goes on until its file is removed; ended with the test, however that ends.
struct Busy<'a> {
    lab: &'a Lab,
    child: Child,
    flag: PathBuf,
}

impl<'a> Busy<'a> {
    /// `script` is the inside of a loop over `$i` from 1.
    fn start(lab: &'a Lab, name: &str, script: &str) -> Busy<'a> {
        let flag = lab.outside().join(name);
        fs::write(&flag, "").expect("the lab's own");
        let mut command = lab.command("sh");
        let systx = lab.binary();
        let text = format!(
            "i=1; while [ -e '{}' ]; do {script}; echo $i > '{}'.round; i=$((i+1)); done",
            flag.display(),
            flag.display()
        );
        command.args(["-c", &text]).env("SYSTX", systx);
        let child = command.spawn().expect("sh");
        Busy { lab, child, flag }
    }

    /// How often it has come round.
    fn rounds(&self) -> u64 {
        let path = self.flag.with_extension("round");
        fs::read_to_string(path).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    }

    /// Waits until it has begun a round and ended it: the one under way may have done its work.
    fn go_on(&mut self) {
        let before = self.rounds();
        self.lab.until("the next round", || {
            assert!(self.child.try_wait().expect("ours").is_none(), "it has ended");
            self.rounds() > before + 1
        });
    }

    fn stop(mut self) {
        fs::remove_file(&self.flag).expect("it is there");
        assert!(self.child.wait().expect("ours").success(), "the busy script failed");
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.flag);
        let deadline = Instant::now() + HANG;
        while self.child.try_wait().is_ok_and(|end| end.is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A plain program writes its round into one file after the other, in each of the ways in which
/// files are changed, and moves a name on: at any moment the numbers are a stair.
const CLIMB: &str = "set -e; cd g; n=$(printf %08d $i); o=$(printf %08d $((i-1))); \
     mv d/at-$o d/at-$n; printf $n 1<>s0; printf $n > d/new; mv d/new s1; \
     ln d/at-$n d/two; printf $n 1<>s2; rm d/two; \
     mkdir -p t/$n/x; printf $n > t/$n/x/f; rm -rf t/$o; printf $n 1<>s3; \
     mv s4 d/away; printf $n 1<>d/away; mv d/away s4; cd ..";

/// Transactions write theirs into files all at once.
const TOGETHER: &str = "set -e; n=$(printf %08d $i); \
     $SYSTX run -- sh -c \"cd g/u; printf $n 1<>a; printf $n > b; printf $n > new; mv new c; \
     mkdir dir-$n; printf $n > dir-$n/f; rm -rf dir-$(printf %08d $((i-1)))\" 2>/dev/null";

/// Tests with programs that never pause run one after the other.
static BUSY: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn busy_tree(lab: &Lab, way: &[&str]) {
    sh(
        lab,
        "mkdir -p g/d g/u/dir-00000000 g/t/00000000/x; cd g; : > d/at-00000000; \
         printf 00000000 > t/00000000/x/f; printf 00000000 > u/dir-00000000/f; \
         for f in s0 s1 s2 s3 s4 u/a u/b u/c; do printf 00000000 > $f; done; \
         for i in $(seq 300); do echo $i > d/other-$i; done",
    )
    .ok();
    guard(lab, way);
}

/// That a copy is of one moment; which.
#[track_caller]
fn moment(top: &Path) -> (u64, u64) {
    let number = |name: &str| -> u64 {
        let text = fs::read_to_string(top.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        text.parse().unwrap_or_else(|e| panic!("{name}: {text:?}: {e}"))
    };
    let numbers = |dir: &str, prefix: &str| -> Vec<u64> {
        let names = fs::read_dir(top.join(dir)).expect("a directory");
        let names = names.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8"));
        let mut all: Vec<u64> =
            names.filter_map(|n| n.strip_prefix(prefix)?.parse().ok()).collect();
        all.sort_unstable();
        all
    };
    let at = numbers("d", "at-");
    assert_eq!(at.len(), 1, "one name, whatever it is: {at:?}");
    // `s4` may be away, under another name; never both, never none.
    let away = top.join("d/away").exists();
    assert_ne!(away, top.join("s4").exists(), "a file that is moved is somewhere");
    let mut stair = vec![at[0]];
    stair.extend((0..STAIR - 1).map(|i| number(&format!("s{i}"))));
    stair.push(number(if away { "d/away" } else { "s4" }));
    for pair in stair.windows(2) {
        assert!(pair[0] >= pair[1], "not one moment: {stair:?}");
    }
    assert!(stair[0] - stair[stair.len() - 1] <= 1, "not one moment: {stair:?}");
    assert_eq!(numbers("d", "other-").len(), 300);
    for n in numbers("t", "") {
        assert!(n + 1 >= stair[0] && n <= stair[0], "{n} of {stair:?}");
    }
    let all = numbers("u", "dir-");
    assert_eq!(all.len(), 1, "half of a commit: {all:?}");
    for name in ["u/a", "u/b", "u/c", &format!("u/dir-{:08}/f", all[0])] {
        assert_eq!(number(name), all[0], "half of a commit: {name}");
    }
    (stair[0], all[0])
}

/// Descriptors by which the daemon holds what has no name any more.
fn held(lab: &Lab) -> usize {
    let pids = lab.daemons();
    assert_eq!(pids.len(), 1, "{pids:?}");
    let fds = fs::read_dir(format!("/proc/{}/fd", pids[0])).expect("it lives");
    let links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let root = lab.root();
    links
        .filter(|to| to.starts_with(&root) && to.to_string_lossy().ends_with(" (deleted)"))
        .filter(|to| !to.starts_with(root.join(".systx")))
        .count()
}

#[test]
fn tar_of_a_busy_tree_is_of_one_moment_and_never_conflicts() {
    tar_of_a_busy_tree(&[]);
    tar_of_a_busy_tree(&["--fast-open"]);
}

fn tar_of_a_busy_tree(way: &[&str]) {
    let lab = lab!();
    if find_program("tar").is_none() {
        skip!("there is no tar");
    }
    let _alone = BUSY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    busy_tree(&lab, way);
    let mut plain = Busy::start(&lab, "plain", CLIMB);
    let mut transactions = Busy::start(&lab, "transactions", TOGETHER);
    let copies = lab.outside();
    let mut seen = Vec::new();
    for n in 0..8 {
        plain.go_on();
        transactions.go_on();
        let name = format!("{}/{n}", copies.display());
        let tar = format!(
            "mkdir {name} && {} run --read-only -- tar -C g -c . > {name}.tar && \
             tar -C {name} -x < {name}.tar",
            lab.binary().display()
        );
        sh(&lab, &tar).ok();
        seen.push(moment(Path::new(&name)));
    }
    plain.stop();
    transactions.stop();
    assert!(seen.windows(2).all(|s| s[0].0 < s[1].0 && s[0].1 < s[1].1), "{seen:?}");
    lab.until("nothing is held", || held(&lab) == 0);
    unguard(&lab);
}

#[test]
fn what_many_programs_have_open_for_writing_is_read_whole_or_not_at_all() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    lab.native("mkdir g; for n in $(seq 200); do echo $n >g/$n; done").ok();
    guard(&lab, &[]);
    let open = "import sys\nheld = [open(f'g/{n + 1}', 'r+b') for n in range(200)]\n\
        for line in sys.stdin:\n\
        \x20   while len(held) > int(line): held.pop().close()\n\
        \x20   print('open:', len(held), flush=True)\n";
    let mut command = lab.command("python3");
    command.args(["-c", open]);
    let mut writers = systx_e2e::run::Dialogue::start(&lab, command);
    let mut keep = |number: u32| {
        writers.send(&format!("{number}\n"));
        writers.wait_for(&format!("open: {number}\n"));
    };
    let all = "cat g/* >sum && wc -l <sum";
    keep(200);
    let done = lab.run(&[], all);
    assert_ne!(done.code, 0);
    assert!(done.err.contains("200 of the files that were read are open for writing"), "{done}");
    assert!(!lab.path("sum").exists());
    assert_eq!(lab.run(&["--read-only"], "cat g/* | wc -l").ok().out, "200\n");
    for number in [100, 0] {
        keep(number);
        assert_eq!(lab.run(&[], all).ok().out, "200\n");
    }
    writers.close().ok();
    unguard(&lab);
}

#[test]
fn a_path_view_stays_as_it_was_and_several_are_of_several_moments() {
    let lab = lab!();
    let _alone = BUSY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    busy_tree(&lab, &[]);
    let start = fs::metadata(lab.path("g/s0")).expect("it is there").len();
    let mut plain = Busy::start(&lab, "plain", CLIMB);
    let mut transactions = Busy::start(&lab, "transactions", TOGETHER);
    let mut open = Vec::new();
    for _ in 0..4 {
        plain.go_on();
        transactions.go_on();
        let snapshot = Snapshot::begin(&lab, "g");
        // One is looked at now, the next one only at the end.
        let early = (open.len() % 2 == 0).then(|| (moment(&snapshot.path), snapshot.tree()));
        open.push((snapshot, early));
    }
    plain.go_on();
    transactions.go_on();
    let mut moments = Vec::new();
    for (snapshot, early) in &open {
        let now = (moment(&snapshot.path), snapshot.tree());
        if let Some((then, tree)) = early {
            assert_eq!(*then, now.0);
            tree.assert_same(&now.1, "the same snapshot later");
        }
        moments.push(now.0);
    }
    assert!(moments.windows(2).all(|m| m[0].0 < m[1].0 && m[0].1 < m[1].1), "{moments:?}");
    // Out of order.
    for at in [2, 0, 1, 0] {
        let (snapshot, _) = open.remove(at);
        snapshot.commit().ok();
        assert!(!snapshot.path.exists());
        for (other, _) in &open {
            moment(&other.path);
        }
    }
    plain.stop();
    transactions.stop();
    lab.until("nothing is held", || held(&lab) == 0);
    assert_eq!(fs::metadata(lab.path("g/s0")).expect("it is there").len(), start);
    unguard(&lab);
}

#[test]
fn removed_replaced_cut_and_stored_through_mappings() {
    let lab = lab!();
    sh(
        &lab,
        "mkdir -p g/tree/a/b g/u; cd g; for i in 1 2 3; do echo $i > tree/a/b/$i; done; ln -s a/b tree/link; \
         head -c 3000000 /dev/urandom > big; cp big sparse; truncate -s 9M sparse; echo x >> sparse; \
         echo one > hard; ln hard u/hard; echo mode > mode; chmod 640 mode; mkfifo fifo; echo old > mapped",
    )
    .ok();
    guard(&lab, &[]);
    let has_xattrs = lab.has("g/mode")
        && find_program("setfattr").is_some()
        && sh(&lab, "setfattr -n user.key -v before g/mode").code == 0;
    // A store through a shared mapping that the kernel has not written back is of this moment, too.
    let mapped = rw(&lab.path("g/mapped"));
    let python = find_program("python3").is_some();
    let mut store = None;
    if python {
        let script = "import mmap,sys; f=open('g/mapped','r+b'); m=mmap.mmap(f.fileno(),4); m[0:3]=b'new'; \
                      print('stored',flush=True); sys.stdin.readline()";
        let mut command = lab.command("python3");
        command.args(["-c", script]).stdin(std::process::Stdio::piped());
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("python3");
        let mut line = [0; 6];
        child.stdout.as_mut().expect("piped").read_exact(&mut line).expect("it says so");
        store = Some(Reaped(child));
    }
    let before = Tree::capture(lab.path("g"));
    let snapshot = Snapshot::begin(&lab, "g");
    let open = File::open(snapshot.path.join("big")).expect("it is there");
    let big = fs::read(lab.path("g/big")).expect("it is there");
    sh(
        &lab,
        "set -e; cd g; rm -rf tree; mkdir tree; echo 4 > tree/a; : > big; echo short > sparse; echo two > u/hard; \
         rm hard; chmod 600 mode; rm fifo; mkdir fifo; mv mode moved; echo later > mapped",
    )
    .ok();
    if has_xattrs {
        sh(&lab, "setfattr -n user.key -v after g/moved").ok();
    }
    lab.run(&[], "cd g; rm -rf tree u; mkdir -p u/v; echo new > moved; echo by > big; rm sparse")
        .ok();
    lab.do_systx(["gc", "--keep", "0"]).ok();
    before.assert_same(&snapshot.tree(), "a snapshot after all that");
    if python {
        assert_eq!(fs::read(snapshot.path.join("mapped")).expect("it is there"), b"new\n");
    }
    let mut buf = vec![0; big.len()];
    open.read_exact_at(&mut buf, 0).expect("all of it");
    assert!(buf == big, "by a descriptor");
    // It is read-only: what is done in it is nobody's business, and goes.
    fs::write(snapshot.path.join("mine"), "x").ok();
    snapshot.commit().ok();
    assert!(!lab.has("g/mine"));
    open.read_exact_at(&mut buf, 0).expect("what is open stays as it was");
    assert!(buf == big);
    drop((open, mapped, store));
    lab.until("nothing is held", || held(&lab) == 0);
    unguard(&lab);
}

/// A process that ends with the test.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn rw(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

#[test]
fn below_the_mount_and_outside_of_it_changes_are_named() {
    let lab = lab!();
    lab.write("g/f", "old\n");
    lab.write("h/f", "old\n");
    guard(&lab, &[]);
    let outside = if lab.fs == Fs::Volume { 0 } else { CONFLICT };
    for (change, code) in [("echo new > g/f", 0), ("echo new > h/f", outside)] {
        let mut shell = lab.shell(&["--read-only"]);
        assert_eq!(shell.eval("cat h/f; ls g"), shell.eval("cat h/f; ls g"));
        sh(&lab, change).ok();
        shell.eval("cat g/f h/f");
        let done = shell.exit(0).expect(code);
        if code != 0 {
            done.says("h/f");
        }
    }
    unguard(&lab);
}

#[test]
fn a_killed_daemon_takes_its_snapshots_with_it_and_the_next_one_makes_new_ones() {
    let lab = lab!();
    lab.write("g/f", "old\n");
    guard(&lab, &[]);
    let snapshot = Snapshot::begin(&lab, "g");
    assert_eq!(fs::read_to_string(snapshot.path.join("f")).expect("it is there"), "old\n");
    sh(&lab, "echo new > g/f; rm -f g/none; echo more > g/more; sync g/f").ok();
    assert_eq!(fs::read_to_string(snapshot.path.join("f")).expect("it is there"), "old\n");
    lab.kill_and_come_back();
    assert_eq!(lab.read("g/f"), "new\n");
    assert!(fs::read(snapshot.path.join("f")).is_err(), "it went with its daemon");
    let next = Snapshot::begin(&lab, "g");
    sh(&lab, "echo third > g/f; rm g/more").ok();
    assert_eq!(fs::read_to_string(next.path.join("f")).expect("it is there"), "new\n");
    assert_eq!(fs::read_to_string(next.path.join("more")).expect("it is there"), "more\n");
    next.commit().ok();
    unguard(&lab);
}
