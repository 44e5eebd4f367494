//! A transaction over two file systems, and often a third in memory, whose daemon is killed at its
//! n-th system call, then recovery, also with one of the two unmounted at first, or with disks that
//! have lost what was not synced.  All of it is on all of them, or none.
//!
//! n goes over the calls that a commit makes, from the end of the command until the decision is
//! forgotten: those around each synced write, and some of the others, chosen by `SYSTX_SEED`, or
//! all (`SYSTX_LONG=1`). The command waits at its end until the daemon is watched.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Instant;
use systx_e2e::lost::reaches_the_disk;
use systx_e2e::random::Random;
use systx_e2e::room::Room;
use systx_e2e::run::{HANG, wait_readable};
use systx_e2e::stop::Stop;
use systx_e2e::tree::Detail;
use systx_e2e::{Fs, Tree, room};

/// How many calls are looked at without `SYSTX_LONG`, beside those around synced writes.
const OTHERS: usize = 6;

/// After so many trials the stores are made anew: looking through a long history takes time.
const HISTORY: usize = 20;

/// What others do while a file system is not there.
const MEANWHILE: &str = "echo meanwhile > meanwhile";

const SIDES: [&str; 3] = ["a", "b", "m"];

/// In `w` on each of them.  The attributes of `template` are made by the test.
const PREPARE: &str = "mkdir w && cd w && mkdir dir empty sub mode && echo k > dir/k && echo s > sub/s && \
    echo old > file && head -c 20000 /dev/zero > pages && head -c 300000 /dev/zero > many && echo from > from && echo onto > onto && \
    echo gone > gone && echo old > old && ln -s target link && echo a > attr && echo same > same && echo t > template";

const WORK: &str = "echo new > made; echo again > file; head -c 70000 /dev/zero | tr '\\0' n > big; head -c 400000 /dev/zero | tr '\\0' s > staged; \
    for f in pages many; do printf X | dd of=$f bs=1 seek=9000 conv=notrunc 2>/dev/null; done; mv old dir/moved; mv -f from onto; rm gone; \
    mkdir -p new/deep; echo deep > new/deep/x; rmdir empty; mv sub renamed; ln -s there fresh; ln -sfn there link; \
    chmod 700 mode; chmod 4755 dir/k; cp --attributes-only --preserve=xattr template attr; ln same hard";

/// The file system that is unmounted when recovery begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Absent {
    None,
    /// The one whose store takes part.
    Part,
    /// The one whose store decides: the first by its path.
    Decider,
    /// None, but the disks of some went away with what they were not told to keep, and came back:
    /// the kernel runs on.
    Disks,
}

struct Crash {
    room: Room,
    before: [Tree; 3],
    after: [Tree; 3],
    /// By which the command says that it is done, and by which it is told to go on.
    done: fs::File,
    go: fs::File,
}

/// How a trial ended.
struct Ended {
    what: String,
    told: bool,
    calls: Vec<&'static str>,
}

impl Crash {
    fn new(room: Room) -> Crash {
        let pairs = SIDES.map(|which| {
            let prepare = || {
                room.sh(&format!("cd {which} && {PREPARE}")).ok();
                let template = room.path(&format!("{which}/w/template"));
                for name in ["user.one", "user.two"] {
                    let flags = rustix::fs::XattrFlags::empty();
                    rustix::fs::setxattr(&template, name, b"value", flags).unwrap();
                }
                Tree::capture(room.path(which))
            };
            let before = prepare();
            room.sh(&format!("cd {which}/w && {WORK}")).ok();
            let after = Tree::capture(room.path(which));
            room.sh(&format!("rm -r {which}/w")).ok();
            prepare();
            (before, after)
        });
        let before = pairs.each_ref().map(|(before, _)| before.clone());
        let after = pairs.map(|(_, after)| after);
        for (before, after) in before.iter().zip(&after) {
            assert!(before.differences(after).len() > 15);
        }
        room.sh("mkdir /run/e2e && mkfifo /run/e2e/done /run/e2e/go").ok();
        let [done, go] = ["done", "go"].map(|fifo| {
            let path = room.path(&format!("/run/e2e/{fifo}"));
            fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
        });
        Crash { room, before, after, done, go }
    }

    /// What the trees are of a transaction that was made, with the third file system or without.
    fn wanted(&self, third: bool) -> [&Tree; 3] {
        let m = if third { &self.after[2] } else { &self.before[2] };
        [&self.after[0], &self.after[1], m]
    }

    /// A run that the daemon does not survive: it dies at its `n`-th call, or, if there are fewer,
    /// when all is done.
    fn die(&mut self, n: Option<usize>, third: bool) -> Ended {
        let dirs = if third { "a b m" } else { "a b" };
        let script = format!(
            "exec 8</run/e2e/go 9>/run/e2e/done; cd a && $S run -q -- sh -c 'cd ..; for d in {dirs}; do \
             (cd $d/w; {}) || exit 1; done; echo >&9; read -r _ <&8'",
            WORK.replace('\'', "'\\''")
        );
        let mut run = self.room.command(&script);
        // A file, which can be read while the run goes on.
        let said = self.room.path("/run/e2e/said");
        let file = fs::File::create(&said).unwrap();
        let mut run = run.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        let said = || fs::read_to_string(&said).unwrap_or_default();
        if !wait_readable(&self.done, Instant::now() + HANG) {
            let ended = run.try_wait();
            panic!("the command does not end; the run: {ended:?}, it said:\n{}", said());
        }
        self.done.read_exact(&mut [0]).unwrap();
        let daemon = self.room.processes(&["daemon"]);
        let [daemon] = daemon[..] else { panic!("one daemon: {daemon:?}") };
        let stop = Stop::at_call(daemon, n);
        self.go.write_all(b"\n").unwrap();
        let told = run.wait().unwrap().code() == Some(0);
        // The journals forget it after the answer, and the decider its decision after them.
        self.room.wait("the end of the commit", |room| {
            room.processes(&["daemon"]).is_empty() || (told && self.kept("a", "d").is_empty())
        });
        self.room.kill_daemon();
        let calls = stop.wait();
        let at = calls.last().copied().unwrap_or_default();
        let said = said();
        let reached = n == Some(calls.len());
        let what = match n {
            Some(n) if reached => format!("killed at call {n}, {at}, over {dirs}"),
            _ => format!("over {dirs}, killed after the commit"),
        };
        assert!(told || reached, "the run failed by itself: {said}");
        Ended { what: format!("{what}, told: {told}"), told, calls }
    }

    /// Names in a directory of a store.
    fn kept(&self, which: &str, dir: &str) -> Vec<String> {
        let path = self.room.path(&format!("{which}/.systx/{dir}"));
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    fn recover(&self, which: &str) -> String {
        self.room.sh(&format!("cd {which} && $S recover")).ok()
    }

    /// As the transaction, or its absence, leaves a file system.
    fn is_after(&self, side: usize, third: bool, what: &str) -> bool {
        let found = Tree::capture(self.room.path(SIDES[side]));
        let (before, after) = (&self.before[side], self.wanted(third)[side]);
        let from_before = before.differences(&found);
        let from_after = after.differences(&found);
        assert!(
            from_before.is_empty() || from_after.is_empty(),
            "{what}: {} is neither before nor after\nagainst before:\n  {}\nagainst after:\n  {}",
            SIDES[side],
            from_before.join("\n  "),
            from_after.join("\n  "),
        );
        from_after.is_empty()
    }

    /// With everything there.  Whichever is recovered, the others are, too.
    fn recover_all(&self, random: &mut Random) {
        self.recover(["a", "b"][random.below(2) as usize]);
    }

    /// One disk or both go away and come back.
    fn lose_disks(&self, random: &mut Random) {
        for which in [&SIDES[..1], &SIDES[1..2], &SIDES[..2]][random.below(3) as usize] {
            let path = self.room.path(which);
            reaches_the_disk(&path.join(".systx"), &path.join("w"), random);
            self.room.lose_disk(which);
        }
    }

    /// `b` is not there, and then is; whether it was waited for.
    fn recover_without_part(
        &self,
        what: &str,
        told: bool,
        third: bool,
        random: &mut Random,
    ) -> bool {
        let room = &self.room;
        let done = self.after[1].differences(&Tree::capture(room.path("b"))).is_empty();
        room.umount("b");
        let said = self.recover("a");
        let there = self.is_after(0, third, what);
        assert!(there || !told, "{what}: lost where it was decided");
        let waits = said.contains("waits in");
        if waits {
            assert!(there, "{what}: waited for what is not there\n{said}");
            for said in [&said, &room.sh("cd a && $S doctor").text] {
                assert!(said.contains("waits in") && said.contains("/b/.systx"), "{what}: {said}");
            }
        } else {
            assert!(done || !there, "{what}: nobody says that b has yet to be finished\n{said}");
        }
        if waits {
            // It is remembered for as long as it takes.
            assert_eq!(self.kept("a", "d").len(), 1, "{what}");
        }
        let held = Tree::capture(room.path("a"));
        // The rest goes on meanwhile.
        for which in ["a", "m"] {
            room.sh(&format!("cd {which} && $S run -q -- sh -c '{MEANWHILE}'")).ok();
            room.sh(&format!("cat {which}/meanwhile && rm {which}/meanwhile")).ok();
        }
        if random.below(2) == 0 {
            room.kill_daemon();
        }
        room.mount("b");
        self.recover_all(random);
        held.assert_same(&Tree::capture(room.path("a")), what);
        waits
    }

    /// `a`, which decides, is not there, and then is; whether it was waited for.
    fn recover_without_decider(
        &self,
        what: &str,
        told: bool,
        third: bool,
        random: &mut Random,
    ) -> bool {
        let room = &self.room;
        room.umount("a");
        let names = |said: &str| {
            let named = said.contains("waits for the store in") && said.contains("/a/.systx");
            assert!(named, "{what}: {said}");
        };
        let waits = [1, 2].map(|side| {
            let which = SIDES[side];
            let then = self.closely(which);
            let said = room.sh(&format!("cd {which} && $S recover"));
            if said.code == Some(0) {
                let what = &format!("{what}\n{}", said.text);
                let there = self.is_after(side, third, what);
                assert!(there || !told, "{what}: lost where it takes part");
                return false;
            }
            assert!(side == 1 || third, "{what}: {}", said.text);
            names(&said.text);
            let now = self.closely(which);
            then.0.assert_same(&now.0, &format!("{what}: {which} is touched while it waits"));
            assert_eq!(then.1, now.1, "{what}: {which} is touched while it waits");
            true
        });
        // Where nothing waits, work goes on, and who begins it is told where it cannot.
        for (which, _) in SIDES[1..].iter().zip(waits).filter(|(_, waits)| !waits) {
            let said = room.sh(&format!("cd {which} && $S run -- sh -c '{MEANWHILE}'")).ok();
            room.sh(&format!("cat {which}/meanwhile && rm {which}/meanwhile")).ok();
            if waits.contains(&true) {
                names(&said);
            }
        }
        if random.below(2) == 0 {
            room.kill_daemon();
        }
        room.mount("a");
        // Who decides knows the others, and who waited knows whom to ask; who has finished has
        // forgotten.
        let waited = SIDES[1..].iter().zip(waits).filter(|(_, waits)| *waits);
        let mut ask: Vec<_> = waited.map(|(which, _)| *which).collect();
        if ask.is_empty() || random.below(2) == 0 {
            ask = vec!["a"];
        }
        for which in ask {
            self.recover(which);
        }
        waits.contains(&true)
    }

    /// Also what shows that somebody has put something back.
    fn closely(&self, which: &str) -> (Tree, Vec<(u64, i64, i64)>) {
        let tree = Tree::capture_with(self.room.path(which), Detail { times: true, holes: true });
        let paths = tree.paths().map(|path| self.room.path(which).join(path));
        let stamps = paths.map(|path| fs::symlink_metadata(path).unwrap());
        let stamps = stamps.map(|m| (m.ino(), m.ctime(), m.ctime_nsec())).collect();
        (tree, stamps)
    }

    /// Nothing that was on its way is left, of whatever became of it.
    fn assert_clean(&self, what: &str) {
        let room = &self.room;
        // What was done meanwhile may still have been in the journals.
        for last in [false, true] {
            room.kill_daemon();
            for which in SIDES {
                let said = self.recover(which);
                let nothing = said.contains("nothing to recover") && !said.contains("waits");
                assert!(nothing || !last, "{what}: {which}: {said}");
            }
        }
        for which in SIDES {
            for dir in ["d", "t", "o", "conflict"] {
                let left = self.kept(which, dir);
                assert!(left.is_empty(), "{what}: left in {which}/.systx/{dir}: {left:?}");
            }
            for slot in self.kept(which, "s") {
                let meta = fs::metadata(room.path(&format!("{which}/.systx/s/{slot}"))).unwrap();
                assert_eq!((meta.len(), meta.nlink()), (0, 1), "{what}: {which}: slot {slot}");
            }
            // What undo keeps is of transactions that there are.
            let log = room.sh(&format!("cd {which} && $S log --limit 100000")).ok();
            let history: BTreeSet<String> = log
                .lines()
                .filter_map(|line| line.split(' ').next())
                .map(|id| format!("{id:0>16}"))
                .collect();
            for name in self.kept(which, "g") {
                let txn = name.split('.').next().unwrap_or_default();
                assert!(history.contains(txn), "{what}: {which}/.systx/g/{name} of no transaction");
            }
        }
    }

    /// The last transaction on a file system but for what was done meanwhile: its number, and
    /// whether it is an undo.
    fn last(&self, which: &str) -> (String, bool) {
        let log = self.room.sh(&format!("cd {which} && $S log --limit 40")).ok();
        let own = |line: &&str| !line.contains("meanwhile") && !line.starts_with("systx:");
        let line = log.lines().skip(1).find(own).unwrap_or_default();
        let id = line.split_whitespace().next().unwrap_or_default();
        (id.to_owned(), line.contains("(undoes "))
    }

    /// One crash and its recovery.
    fn trial(
        &mut self,
        absent: Absent,
        n: Option<usize>,
        third: bool,
        random: &mut Random,
    ) -> Trial {
        let ended = self.die(n, third);
        let what = &format!("{}, {absent:?} absent", ended.what);
        let waited = match absent {
            Absent::None => {
                self.recover_all(random);
                false
            }
            Absent::Disks => {
                self.lose_disks(random);
                self.recover_all(random);
                false
            }
            Absent::Part => self.recover_without_part(what, ended.told, third, random),
            Absent::Decider => self.recover_without_decider(what, ended.told, third, random),
        };
        let sides = [0, 1, 2].map(|side| self.is_after(side, third, what));
        // Where it changes nothing, there is no telling.
        let sides = if third { &sides[..] } else { &sides[..2] };
        let there = sides[0];
        assert!(sides.iter().all(|side| *side == there), "{what}: on some of them only: {sides:?}");
        assert!(there || !ended.told, "{what}: it is lost");
        self.assert_clean(what);
        let [(last, taken_back), other] = ["a", "b"].map(|which| self.last(which));
        assert_eq!((&last, taken_back), (&other.0, other.1), "{what}");
        assert!(last.is_empty() || there != taken_back, "{what}: there: {there}, last: {last}");
        if there {
            self.room.sh(&format!("cd b && $S undo {last}")).ok();
        }
        for (before, now) in self.before.iter().zip(self.room.trees()) {
            before.assert_same(&now, &format!("{what}, undone"));
        }
        Trial { there, waited, calls: ended.calls }
    }

    /// The next commit is the first one of its stores.
    fn forget_stores(&self) {
        self.room.kill_daemon();
        self.room.sh("rm -rf a/.systx b/.systx m/.systx").ok();
    }
}

/// What became of a transaction.
struct Trial {
    there: bool,
    waited: bool,
    calls: Vec<&'static str>,
}

/// At which calls the daemon dies, of so many.
fn chosen(calls: &[&str], random: &mut Random) -> BTreeSet<usize> {
    let all = calls.len();
    if std::env::var_os("SYSTX_LONG").is_some() {
        return (1..=all).collect();
    }
    let synced = (1..=all).filter(|n| ["pwritev2", "syncfs", "fsync"].contains(&calls[n - 1]));
    let around = synced.flat_map(|n| [n, n + 1]);
    let at = |i: usize| i * all / OTHERS;
    let mut within = |i: usize| at(i) + 1 + random.below((at(i + 1) - at(i)) as u64) as usize;
    around.chain((0..OTHERS).map(&mut within)).collect()
}

/// `first`: of commits that are the first of their stores.
fn trials(kinds: [Fs; 2], absents: &[Absent], first: bool) {
    let room = room!(kinds);
    let mut random = Random::from_environment();
    let mut crash = Crash::new(room);
    let (mut seen, mut waited, mut all) = ([0, 0], 0, 0);
    for third in [false, true] {
        if !first {
            crash.trial(Absent::None, None, third, &mut random);
        }
        let calls = crash.trial(Absent::None, None, third, &mut random).calls;
        assert!(calls.len() > 50, "{} calls of a commit are counted", calls.len());
        all += calls.len();
        for (k, n) in chosen(&calls, &mut random).into_iter().enumerate() {
            if first || k % HISTORY == HISTORY - 1 {
                crash.forget_stores();
            }
            if !first && k % HISTORY == HISTORY - 1 {
                crash.trial(Absent::None, None, third, &mut random);
            }
            let absent = absents[random.below(absents.len() as u64) as usize];
            let trial = crash.trial(absent, Some(n), third, &mut random);
            seen[usize::from(trial.there)] += 1;
            waited += usize::from(trial.waited);
        }
        crash.forget_stores();
    }
    let [before, after] = seen;
    eprintln!("{all} calls, {absents:?}: {before} before, {after} after, {waited} waited for");
    assert!(before > 0 && after > 0, "{before} before, {after} after");
    let waits = |absent: &Absent| matches!(absent, Absent::Part | Absent::Decider);
    assert!(waited > 0 || !absents.iter().any(waits), "nothing was waited for");
}

#[test]
fn a_daemon_that_is_killed_at_any_call_of_a_commit_leaves_all_or_nothing() {
    trials([Fs::Ext4, Fs::Xfs], &[Absent::None], false);
}

#[test]
fn the_first_commit_of_a_store_is_all_or_nothing() {
    trials([Fs::Ext4, Fs::Xfs], &[Absent::None, Absent::Part, Absent::Decider], true);
}

#[test]
fn a_part_that_is_absent_is_finished_when_it_is_there_again() {
    trials([Fs::Xfs, Fs::Ext4], &[Absent::Part], false);
}

#[test]
fn a_part_waits_for_a_decider_that_is_absent() {
    trials([Fs::Ext4, Fs::Btrfs], &[Absent::Decider], false);
}

#[test]
fn disks_that_come_back_without_what_was_not_synced_have_all_or_nothing() {
    let room = room!([Fs::Ext4, Fs::Xfs]);
    let mut random = Random::from_environment();
    let mut crash = Crash::new(room);
    crash.trial(Absent::None, None, false, &mut random);
    let calls = crash.trial(Absent::None, None, false, &mut random).calls;
    // From the first record on: what is installed then is not synced before the checkpoints.
    let durable = calls.iter().position(|call| *call == "pwritev2").unwrap();
    let all = std::env::var_os("SYSTX_LONG").is_some();
    let chosen: BTreeSet<usize> = match all {
        true => (durable + 1..=calls.len()).collect(),
        false => (0..12)
            .map(|_| durable + 1 + random.below((calls.len() - durable) as u64) as usize)
            .collect(),
    };
    let mut seen = [0, 0];
    for n in chosen {
        let trial = crash.trial(Absent::Disks, Some(n), false, &mut random);
        seen[usize::from(trial.there)] += 1;
    }
    assert!(seen[1] > 0, "{seen:?}");
}
