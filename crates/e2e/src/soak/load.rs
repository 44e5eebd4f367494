//! One cycle of the load: work of every kind, the same each time.

use super::threads::{self, Program};
use crate::lab::{built, tool};
use crate::open::Open;
use crate::run::{Finished, Limits, Running, finish};
use crate::{CONFLICT, Lab, OUTSIDE};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user that no machine has: a guest, and whose program has threads without any privilege.
const USER: u32 = 12071;

/// The lab and what works there from the first cycle to the last.
pub struct Load<'a> {
    lab: &'a Lab,
    /// The soak's own binary and that of `systx`, where the user can execute them.
    soak: PathBuf,
    systx: PathBuf,
    /// The judge of locks.
    histories: PathBuf,
    /// With threads that go into views, and with those that the daemon tells by their numbers.
    programs: [Program; 2],
    /// What the counter of runs should say.
    counted: u64,
    /// Transactions that lost.
    pub lost: u64,
}

/// Who starts something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Root,
    User,
}

impl<'a> Load<'a> {
    /// Makes the directories: `g` is guarded, `r` is routed and the user's, `p` is plain.
    pub fn new(lab: &'a Lab) -> Load<'a> {
        lab.native(
            "mkdir g g/threads g/guest g/past r p; echo 0 >g/count; \
             for i in $(seq 50); do echo $i >g/f$i; echo $i >p/f$i; done; \
             for i in $(seq 5); do echo $i >g/past/f$i; done",
        )
        .ok();
        for dir in ["r", "g/guest"] {
            chown(lab.path(dir), Some(USER), Some(USER)).expect("root may");
        }
        lab.do_systx(["mount", "g"]).ok();
        lab.do_systx(["mount", "--routed", "r"]).ok();
        let own = std::env::current_exe().expect("a binary");
        let [soak, systx] = [("soak", own), ("systx", lab.binary())].map(|(name, from)| {
            let copy = lab.outside().join(name);
            tool(Command::new("cp").arg(from).arg(&copy)).expect("a copy");
            std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).expect("ours");
            copy
        });
        // What a command of the user's says to a daemon of its own.
        let run = lab.outside().join("run");
        std::fs::create_dir(&run).expect("ours");
        std::fs::set_permissions(&run, PermissionsExt::from_mode(0o700)).expect("ours");
        chown(&run, Some(USER), Some(USER)).expect("root may");
        let start = |who, dir| {
            let dir = lab.path(dir);
            Program::start(command(lab, who, &soak), &dir)
        };
        let programs = [start(Who::Root, "g/threads"), start(Who::User, "r")];
        let histories = built(&["--bin", "systx-histories"], "systx-histories");
        Load { lab, soak, systx, histories, programs, counted: 0, lost: 0 }
    }

    /// Programs that live as long as this.
    pub fn pids(&self) -> Vec<u32> {
        self.programs.iter().map(Program::pid).collect()
    }

    /// Programs that lock files of the guarded directory, plain ones and each in a run; they fail
    /// if two are inside at once.
    fn locks(&self, cycle: usize) -> Command {
        let run = format!("{} -q run --on-exit=abort --", self.systx.display());
        let mut command = self.lab.command(&self.histories);
        command.args(["locks", "--seconds", "2", "--workers", "4", "--no-late-duplicates"]);
        command.args(["--by", "", "--by", &run, "--seed", &cycle.to_string(), "--dir"]);
        command.arg(self.lab.path("g"));
        command
    }

    /// Work of every kind, and a look at what became of it.
    pub fn cycle(&mut self, cycle: usize) {
        let lab = self.lab;
        let start = |command| Running::start(command, Limits::seconds(300));
        // Plain programs in the guarded directory, while transactions come and go.
        let mut plain = lab.command("sh");
        plain.args(["-ec", "cd g; for i in $(seq 60); do echo $i >new; mv new f$((i % 50 + 1)); cat f7 >/dev/null; ls >/dev/null; \
             mkdir d; : >d/x; rm -r d; done"]);
        let plain = start(plain);
        let locks = start(self.locks(cycle));
        // The same counter, several at a time: some lose.
        let count = "n=$(cat g/count); echo $((n + 1)) >g/count";
        let racers: Vec<Running> = (0..3)
            .map(|_| start(lab.systx(["run", "--retries", "3", "--", "sh", "-c", count])))
            .collect();
        // A snapshot of all that.
        let snapshot = Open::begin(lab, "g", &["--read-only"]);
        let before = snapshot.sh("cat f* past/f* | cksum").ok().out;
        self.programs.iter_mut().for_each(Program::go_on);
        self.runs();
        self.guests();
        self.path_views(cycle);
        for racer in racers {
            match racer.finish(lab) {
                Finished { code: 0, .. } => self.counted += 1,
                Finished { code: CONFLICT, .. } => self.lost += 1,
                other => {
                    panic!("{other}\n{}", if other.code == OUTSIDE { "(from outside)" } else { "" })
                }
            }
        }
        for program in &mut self.programs {
            self.lost += program.done(lab).lost;
        }
        plain.finish(lab).ok();
        locks.finish(lab).ok();
        // Names that were there go, others come, and content changes.
        lab.native("cd g/past; rm f1; echo new >f2; echo more >>f3; mv f4 f6; mkdir d; : >d/f")
            .ok();
        let after = snapshot.sh("cat f* past/f* | cksum; test ! -e past/d").ok().out;
        assert_eq!(after, before, "the same snapshot later");
        snapshot.systx("commit").ok();
        lab.run(&["--read-only"], "cat g/f* g/past/f* >/dev/null").ok();
        lab.native("cd g/past; rm -r d; mv f6 f4; echo 2 >f2; echo 3 >f3; echo 1 >f1").ok();
        self.alone();
        let reached: u64 = lab.read("g/count").trim().parse().expect("a number");
        assert_eq!(
            reached, self.counted,
            "commits that were acknowledged, and the file that counts them"
        );
    }

    /// Runs that commit, abort and fail.
    fn runs(&self) {
        let made = "mkdir p/m g/m; for i in $(seq 30); do echo $i >p/m/$i; ln p/m/$i g/m/$i; done; rm -r g/m; mv p/m p/n; rm -r p/n";
        self.lab.run(&[], made);
        self.lab.run(&["--on-exit=abort"], "rm -rf g/f* g/past p/*");
        assert_ne!(self.lab.run(&[], "echo lost >g/f3; false").code, 0);
    }

    /// The user's transactions in the directory that root guards: one that commits, one that is
    /// dropped.
    fn guests(&mut self) {
        for end in ["commit", "abort"] {
            let begun = self.guest("exec $SYSTX begin --json g").ok().json();
            let text = |name: &str| begun["begun"][name].as_str().expect("a string").to_owned();
            let (id, path) = (text("id"), text("path"));
            let work = format!(
                "cd {path}/guest && mkdir d && echo {end} >d/{end} && mv d/{end} {end} && rmdir d && ls .. >/dev/null"
            );
            // What lists a directory that others change may have lost.
            let done = self.guest(&format!("{work}; exec $SYSTX {end} {id}"));
            if done.code != 0 {
                assert_eq!(done.code, CONFLICT, "{done}");
                self.lost += 1;
                self.guest(&format!("exec $SYSTX abort {id}")).ok();
            }
        }
        assert!(!self.lab.has("g/guest/abort") && !self.lab.has("g/guest/d"));
    }

    /// Transactions with a path, with a file that is open over their ends.
    fn path_views(&mut self, cycle: usize) {
        let views = ["g", "p", "g"].map(|dir| Open::begin(self.lab, dir, &[]));
        for (n, view) in views.iter().enumerate() {
            // What lists a directory, or reads files, that others change may lose by that.
            let script = format!("echo {cycle} >v{n} && cat f* >/dev/null");
            view.sh(&script);
            let open = std::fs::File::open(view.path.join(format!("v{n}")));
            // The middle one is aborted, the others commit or have lost; who has a file open stays
            // so.
            let done = view.systx(if n == 1 { "abort" } else { "commit" });
            if done.code != 0 {
                self.lost += 1;
                view.systx("abort");
            }
            drop(open);
        }
    }

    /// What is certain only while nobody else is there.
    fn alone(&mut self) {
        let lab = self.lab;
        // A lost conflict.
        let loser = Open::begin(lab, "g", &[]);
        loser.sh("cat f3 && echo x >mine").ok();
        lab.native("echo 3 >g/f3").ok();
        assert_eq!(loser.systx("commit").code, CONFLICT);
        loser.systx("abort").ok();
        self.lost += 1;
        // A commit of the guest's.
        let begun = self.guest("exec $SYSTX begin --json g/guest").ok().json();
        let (id, path) = (&begun["begun"]["id"], &begun["begun"]["path"]);
        self.guest(&format!("echo x >{path}/commit && exec $SYSTX commit {id}")).ok();
        // Kept, and dropped then.
        lab.run(&["--on-exit=keep"], "echo kept >p/kept").ok();
        for id in lab.open_ids() {
            lab.do_systx(["abort", &id]).ok();
        }
        // Programs that are killed inside of a transaction.
        for (who, dir) in [(Who::Root, "g/threads"), (Who::Root, "r"), (Who::User, "r")] {
            threads::kill_one(lab, command(lab, who, &self.soak), &lab.path(dir));
        }
    }

    /// A script of the user's; `$SYSTX` is the program.
    fn guest(&self, script: &str) -> Finished {
        let mut sh = command(self.lab, Who::User, Path::new("sh"));
        sh.args(["-c", script])
            .env("SYSTX", &self.systx)
            .env("SYSTX_GUESTS_DIR", self.lab.root().with_file_name("run-guests"))
            .env("SYSTX_RUNTIME_DIR", self.lab.outside().join("run"))
            .env("HOME", "/nonexistent");
        finish(sh, Limits::default(), self.lab)
    }
}

/// A program, without any privilege if it is the user's.
fn command(lab: &Lab, who: Who, program: &Path) -> Command {
    if who == Who::Root {
        return lab.command(program);
    }
    let mut command = lab.command("setpriv");
    command
        .args([format!("--reuid={USER}"), format!("--regid={USER}")])
        .args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"])
        .arg(program);
    command
}
