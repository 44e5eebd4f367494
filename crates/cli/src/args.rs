//! The command line, for clap.

mod images;

pub use images::{
    Clean, CleanPolicy, Compress, Fsck, Grow, Growth, Image, Mkfs, Receive, Send, Snapshot,
    Snapshots,
};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use systx_protocol::modes::{Way, chosen};
use systx_protocol::{Policy, STALL_MS_MAX};

/// Run commands as transactions: all of what they do to files happens, or none of it.
#[derive(Debug, Parser)]
#[command(name = "systx", version, about, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  systx run -- make install              all of it, or nothing if it fails
  systx run --on-exit=keep -- ./migrate  look before you commit: systx diff ID; systx commit ID
  systx log; systx undo                  what was committed; take the last one back

Exit codes of run: CMD's own; 75 lost a conflict, try again; 76 committed, but an outside change was
met and kept; 124 time limit; 125 systx failed; 126 CMD cannot be executed; 127 CMD not found.
Other commands: 0 done; 1 failed; 2 bad usage; 75, 76 as above.";

const GC_HELP: &str = "\
Without --keep and --max-size the usual bound is kept, as it is after commits by itself: undos take at most a
tenth of the file system, and no more than is free then; they reach 30 days back; the latest transaction can
be undone in any case.  A commit that finds no room first forgets how to undo the oldest transactions, and
says so.  Transactions that cannot be undone any more stay in the log, the latest 10000 of them.";

const PROTECT_HELP: &str = "\
Examples:
  systx protect off target   what is done in target is done at once, also in transactions
  systx protect target/x.o   says that it is not protected, as target is not
  systx protect on target    from now on what transactions do there is theirs again
  systx protect              lists what you have marked";

/// `systx protect`.
#[derive(Clone, Debug, Args)]
pub struct Protect {
    /// Whether PATH is to be protected; or PATH, to be told whether it is [default: lists what is
    /// marked]
    #[arg(value_name = "on|off|PATH", value_hint = ValueHint::AnyPath)]
    pub first: Option<PathBuf>,
    /// The file or directory; what is in a directory goes with it
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub path: Option<PathBuf>,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Machine-readable output (of run: on stderr)
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// Which volume a command is about.
#[derive(Clone, Debug, Default, Args)]
pub struct Where {
    /// Change to DIR first
    #[arg(short = 'C', value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Take the file system that holds DIR instead of that of the working directory
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Keep journal and staging area in DIR, which must be on the same file system
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command as one transaction
    Run(Box<Run>),
    /// Begin a transaction that is a directory: prints its id and the path to work below
    Begin(Begin),
    /// List open transactions
    #[command(visible_alias = "ls")]
    List,
    /// Show the state of an open transaction (of all, without ID)
    Status(OptionalId),
    /// Watch what goes on: transactions, conflicts, commits per second (q ends it)
    Top(Top),
    /// Show what a transaction changed
    Diff(Diff),
    /// Run a command (a shell, without CMD) inside an open transaction
    Enter(Enter),
    /// Commit an open or kept transaction, or a part of it
    Commit(Commit),
    /// Drop an open transaction
    #[command(visible_alias = "discard", alias = "rollback")]
    Abort(Id),
    /// List committed transactions
    Log(Log),
    /// Show a committed transaction
    Show(Show),
    /// List, do or forget what committed transactions wanted of service managers
    Services(Services),
    /// Show what of a run is isolated, and where each rule comes from
    Config(Config),
    /// Undo a committed transaction, with a new one
    Undo(Undo),
    /// Take back an undo
    Redo(Redo),
    /// Finish or discard what a crash left
    Recover(Recover),
    /// Give back space that is kept for undos
    #[command(after_help = GC_HELP)]
    Gc(Gc),
    /// Guard a directory (every process goes through systx), or mount a log-structured volume;
    /// lists both, without arguments
    Mount(Mount),
    /// End that: it is an ordinary directory again, or the volume is closed
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    /// Show what is protected; have a file or directory outside of transactions (off), or not (on)
    #[command(after_help = PROTECT_HELP)]
    Protect(Protect),
    /// Make a log-structured volume in a file or on a block device
    #[command(after_help = images::MKFS_HELP)]
    Mkfs(Mkfs),
    /// Check a log-structured volume that nobody has mounted
    Fsck(Fsck),
    /// Make a log-structured volume larger
    Grow(Grow),
    /// Show how full a log-structured volume is
    Df(Image),
    /// Write a snapshot of a log-structured volume to standard output, for backup
    #[command(after_help = images::SEND_HELP)]
    Send(Send),
    /// Apply what send wrote, from standard input, to another log-structured volume
    Receive(Receive),
    /// Make, or remove, a snapshot of a log-structured volume
    Snapshot(Snapshot),
    /// List the snapshots of a log-structured volume, or remove those that have served
    Snapshots(Snapshots),
    /// Give space of a log-structured volume back that is spread over its segments
    Clean(Clean),
    /// Check what this machine allows
    Doctor(Doctor),
    /// Run a program that uses libsystx without privilege: it may change its own mount namespaces
    Exec(Exec),
    /// List all system calls, and what becomes of each in a transaction of a thread
    Syscalls,
    /// Print a completion script
    Completions(Completions),
    /// Write the man pages of all commands
    Manual(Manual),
    /// The daemon itself; started on demand
    #[command(hide = true)]
    Daemon {
        /// Its own business.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

/// What happens when CMD has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnExit {
    /// Commit; a failed CMD is aborted
    Commit,
    /// Drop everything
    Abort,
    /// Keep the transaction open for review, whether CMD succeeded or not
    Keep,
    /// At a terminal, ask, whether CMD succeeded or not; elsewhere keep
    Ask,
}

/// Isolation level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IsolationArg {
    /// As if transactions ran one after the other
    Serializable,
    /// First committer wins on what was written; stale reads are only reported
    Snapshot,
}

/// What happens to processes that CMD leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeftoversArg {
    /// Wait for them
    Wait,
    /// Give them a second, then end them
    Kill,
    /// Give them a second, then end them and abort
    Abort,
}

/// What becomes of actions on services after the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServicesArg {
    /// They are carried out
    Run,
    /// At a terminal, ask; elsewhere they wait for `systx services`
    Ask,
    /// They are named and dropped
    Skip,
}

/// What is done about conflicts.
#[derive(Clone, Debug, Args)]
pub struct Conflicts {
    /// Run CMD again, up to N times, when it lost a conflict
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub retries: u32,
    /// Who wins conflicts, before the older one does (if not given: as `systx mount --policy` says)
    #[arg(long, value_enum, value_name = "POLICY")]
    pub policy: Option<PolicyArg>,
}

/// What counts in a conflict before age does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyArg {
    /// The more urgent thread
    Osprio,
    /// Nothing: the older one wins
    Timestamp,
    /// The more urgent thread, then the one that has read and written more
    Size,
    /// The same, with what attempts have read and written that lost
    Karma,
    /// Nothing; who comes later to a page of a file waits until the other one has ended
    TwoPhase,
}

impl From<PolicyArg> for Policy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::Osprio => Self::Osprio,
            PolicyArg::Timestamp => Self::Timestamp,
            PolicyArg::Size => Self::Size,
            PolicyArg::Karma => Self::Karma,
            PolicyArg::TwoPhase => Self::TwoPhase,
        }
    }
}

/// How the kernel's requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum TransportArg {
    /// io_uring where the kernel has it
    Auto,
    /// io_uring only
    IoUring,
    /// /dev/fuse
    Dev,
}

/// `systx run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// What happens when CMD has ended [default: commit; ask, for an interactive shell at a
    /// terminal]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_exit: Option<OnExit>,
    #[command(flatten)]
    pub conflicts: Conflicts,
    /// Commit nothing; fail if what CMD read changed meanwhile
    #[arg(long)]
    pub read_only: bool,
    /// How strongly CMD is isolated
    #[arg(long, value_enum, default_value = "serializable", value_name = "LEVEL")]
    pub isolation: IsolationArg,
    /// What is of another class.
    #[command(flatten)]
    pub classes: Classes,
    /// Run CMD without network: only a loopback interface of its own
    #[arg(long)]
    pub no_net: bool,
    /// What happens to processes that CMD leaves behind
    #[arg(long, value_enum, default_value = "kill", value_name = "WHAT")]
    pub leftovers: LeftoversArg,
    /// What its new content may take, in memory and on disk (bytes, or 100M, 2G); beyond it writes
    /// fail (EDQUOT)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub limit_size: Option<u64>,
    /// Address space of each process (bytes, or 100M, 2G)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub limit_memory: Option<u64>,
    /// Processes and threads in the run; not for root
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit_processes: Option<u64>,
    /// Processor time of each process (seconds, or 90s, 5m, 2h)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub limit_time: Option<Duration>,
    /// What becomes of actions on services (systemctl restart, ...), which wait for the commit
    #[arg(long, value_enum, default_value = "run", value_name = "WHAT")]
    pub services: ServicesArg,
    /// End and abort everything after this time (seconds, or 90s, 5m, 2h)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// How requests travel between kernel and daemon
    #[arg(long, value_enum, default_value = "auto", value_name = "HOW")]
    pub transport: TransportArg,
    /// Where.
    #[command(flatten)]
    pub place: Where,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD",
          value_hint = ValueHint::CommandWithArguments)]
    pub argv: Vec<OsString>,
}

/// `systx begin`.
#[derive(Clone, Debug, Args)]
pub struct Begin {
    /// What the new path shows
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// How strongly it is isolated
    #[arg(long, value_enum, default_value = "serializable", value_name = "LEVEL")]
    pub isolation: IsolationArg,
    /// A snapshot: nothing will be committed
    #[arg(long)]
    pub read_only: bool,
    /// Another attempt of this one, which lost and is dropped: grows senior with each, until it
    /// wins
    #[arg(long, value_name = "ID")]
    pub retry: Option<String>,
    /// Who wins conflicts: lower values do (if not given: the nice value or real-time priority that
    /// the thread which works in it has at that moment)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub nice: Option<i32>,
    /// Who wins conflicts, before the older one does (if not given: as `systx mount --policy` says)
    #[arg(long, value_enum, value_name = "POLICY")]
    pub policy: Option<PolicyArg>,
    /// How requests travel between kernel and daemon
    #[arg(long, value_enum, default_value = "auto", value_name = "HOW")]
    pub transport: TransportArg,
    /// Keep journal and staging area here, which must be on the same file system
    #[arg(long, value_name = "STORE")]
    pub store: Option<PathBuf>,
}

/// One transaction.
#[derive(Clone, Debug, Args)]
pub struct Id {
    /// Its id, or the first characters of it
    pub id: String,
}

/// Perhaps one transaction.
#[derive(Clone, Debug, Args)]
pub struct OptionalId {
    /// Its id, or the first characters of it
    pub id: Option<String>,
}

/// `systx top`.
#[derive(Clone, Debug, Args)]
pub struct Top {
    /// Once, then end
    #[arg(long)]
    pub once: bool,
    /// How often (seconds, or 5m)
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1")]
    pub interval: Duration,
}

/// `systx diff`.
#[derive(Clone, Debug, Args)]
pub struct Diff {
    /// The transaction, open or committed
    pub id: String,
    /// Only these paths and what is below them
    pub paths: Vec<PathBuf>,
    /// How.
    #[command(flatten)]
    pub format: DiffFormat,
    /// Exit with 1 if there are changes
    #[arg(long)]
    pub exit_code: bool,
    /// Where committed ones are looked for.
    #[command(flatten)]
    pub place: Where,
}

/// How changes are shown.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct DiffFormat {
    /// Letters and paths only
    #[arg(long, conflicts_with_all = ["name_only", "stat"])]
    pub name_status: bool,
    /// Paths only
    #[arg(long, conflicts_with = "stat")]
    pub name_only: bool,
    /// Paths with the number of changed lines
    #[arg(long)]
    pub stat: bool,
    /// End every line of --name-status and --name-only with NUL
    #[arg(short = 'z')]
    pub nul: bool,
}

/// `systx enter`.
#[derive(Clone, Debug, Args)]
pub struct Enter {
    /// The transaction
    pub id: String,
    /// Change to DIR first
    #[arg(short = 'C', value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// The command and its arguments; $SHELL if there is none
    #[arg(trailing_var_arg = true, value_name = "CMD",
          value_hint = ValueHint::CommandWithArguments)]
    pub argv: Vec<OsString>,
}

/// `systx exec`.
#[derive(Clone, Debug, Args)]
pub struct Exec {
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "SERVER",
          value_hint = ValueHint::CommandWithArguments)]
    pub argv: Vec<OsString>,
}

/// `systx commit`.
#[derive(Clone, Debug, Args)]
pub struct Commit {
    /// The transaction
    pub id: String,
    /// Only these paths and what is below them; the rest stays kept
    pub paths: Vec<PathBuf>,
    /// Only show what would be committed
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// What becomes of actions on services that its command wanted after the commit
    #[arg(long, value_enum, default_value = "run", value_name = "WHAT")]
    pub services: ServicesArg,
}

/// `systx log`.
#[derive(Clone, Debug, Args)]
pub struct Log {
    /// Only transactions that changed something at these paths, or below
    pub paths: Vec<PathBuf>,
    /// At most N
    #[arg(short = 'n', long, value_name = "N")]
    pub limit: Option<u64>,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// `systx show`.
#[derive(Clone, Debug, Args)]
pub struct Show {
    /// The transaction
    pub id: String,
    /// How.
    #[command(flatten)]
    pub format: DiffFormat,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// `systx services`.
#[derive(Clone, Debug, Args)]
pub struct Services {
    /// Carry out what this transaction wanted
    #[arg(long, value_name = "ID", conflicts_with = "drop")]
    pub run: Option<String>,
    /// Forget what this transaction wanted
    #[arg(long, value_name = "ID")]
    pub drop: Option<String>,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// Which paths are not isolated and committed as usual.
#[derive(Clone, Debug, Default, Args)]
pub struct Classes {
    /// Do not commit changes of paths that match (gitignore syntax; may be repeated)
    #[arg(long, visible_alias = "no-commit", value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Append to files that match behind what others append meanwhile, as to logs (may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub merge: Vec<String>,
    /// Append-merge nothing, logs neither
    #[arg(long, conflicts_with = "merge")]
    pub no_merge: bool,
    /// Do not isolate existing paths that match: CMD works on the originals (may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub passthrough: Vec<String>,
    /// Do not read .systxignore files
    #[arg(long)]
    pub no_ignore: bool,
    /// Make /tmp an empty directory that is dropped at the end
    #[arg(long)]
    pub private_tmp: bool,
}

/// `systx config`.
#[derive(Clone, Debug, Args)]
pub struct Config {
    /// What is of another class.
    #[command(flatten)]
    pub classes: Classes,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// `systx redo`.
#[derive(Clone, Debug, Args)]
pub struct Redo {
    /// The undo, or what it undid; without ID the latest undo of this directory
    pub id: Option<String>,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// `systx undo`.
#[derive(Clone, Debug, Args)]
pub struct Undo {
    /// The transaction; without ID the latest one that changed something in this directory, or was
    /// run in it
    pub id: Option<String>,
    /// Only what it changed at these paths, or below
    pub paths: Vec<PathBuf>,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// `systx recover`.
#[derive(Clone, Debug, Args)]
pub struct Recover {
    /// All stores of this user that are there now
    #[arg(long, conflicts_with_all = ["root", "store"])]
    pub all: bool,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// `systx gc`.
#[derive(Clone, Debug, Args)]
pub struct Gc {
    /// Of the newest N transactions keep how to undo them, of no others
    #[arg(long, value_name = "N")]
    pub keep: Option<u64>,
    /// Keep at most SIZE for undos (bytes, or 100M, 2G), of the newest transactions
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// `systx mount`.
#[derive(Clone, Debug, Args)]
pub struct Mount {
    /// The directory; or, with DIR behind it, the image or block device of a log-structured
    /// volume
    #[arg(value_name = "DIR|FILE")]
    pub dir: Option<PathBuf>,
    /// Where to mount the volume in FILE
    #[arg(value_name = "DIR", conflicts_with_all = ["force", "store"])]
    pub on: Option<PathBuf>,
    /// A snapshot of the volume, read-only, beside the live tree or without it: its name; or a time
    /// as `systx snapshots` shows it (2026-11-26, "2026-11-26 14:00"; UTC), or the id of a
    /// transaction, which mean the last one before then
    #[arg(long, value_name = "SNAPSHOT|TIME|ID", requires = "on")]
    pub at: Option<String>,
    /// Programs have transactions of their threads in the volume (libsystx), as in a guarded
    /// directory. Opening and closing a file then asks the daemon, and so does a file lock
    #[arg(long, requires = "on")]
    pub threads: bool,
    /// Also if processes hold something in it, which they can then change past the guard
    #[arg(short, long, requires = "dir")]
    pub force: bool,
    /// Keep the volume's journal and staging area in DIR, which must be on the same file system
    #[arg(long, value_name = "DIR", requires = "dir")]
    pub store: Option<PathBuf>,
    /// How requests travel between kernel and daemon
    #[arg(long, value_enum, default_value = "auto", value_name = "HOW", requires = "dir")]
    pub transport: TransportArg,
    /// How long a change by a program outside may be held for a transaction that has lost three
    /// times before; 0: never, such a transaction may then go on losing [default: 500]
    #[arg(long, value_name = "MS", requires = "dir",
          value_parser = clap::value_parser!(u64).range(0..=STALL_MS_MAX))]
    pub stall: Option<u64>,
    /// Who wins conflicts between transactions in it, before the older one does; one that has lost
    /// three times is before all that have not [default: osprio]
    #[arg(long, value_enum, value_name = "POLICY", requires = "dir")]
    pub policy: Option<PolicyArg>,
    /// Threads have transactions in it without any privilege: their requests are told from others'
    /// by the thread's number. For small directories: the kernel remembers no names and listings
    /// then, and each stat(2) or open(2) asks the daemon, also those of programs without
    /// transactions
    #[arg(long, requires = "dir")]
    pub routed: bool,
    /// Opening and closing a file asks nobody, so programs that open many (grep, git, compilers)
    /// are as fast as without the guard. Then programs have no transactions of their own here
    /// (libsystx), only runs and paths, and file locks of programs here exclude no program that
    /// reaches the files otherwise
    #[arg(long, requires = "dir")]
    pub fast_open: bool,
    /// No transaction is committed in it that the process does not agree with that listens at
    /// SOCKET, and programs outside of transactions change nothing
    #[arg(long, value_name = "SOCKET", requires = "dir")]
    pub certifier: Option<PathBuf>,
}

impl Mount {
    /// What is wanted. Which of these exclude each other is not for clap to know.
    #[must_use]
    pub fn modes(&self) -> Vec<Way> {
        chosen([
            (self.fast_open, Way::FastOpen),
            (self.routed, Way::Routed),
            (self.certifier.is_some(), Way::Certifier),
            (self.threads, Way::Thread),
            (self.at.is_some(), Way::Moment),
            (self.on.is_some(), Way::Volume),
        ])
    }
}

/// `systx umount`.
#[derive(Clone, Debug, Args)]
pub struct Umount {
    /// The directory; or the image of a volume, if that is mounted in one place
    pub dir: PathBuf,
    /// Also if processes use it: what they have open there answers with an error from then on
    #[arg(short, long)]
    pub force: bool,
}

/// `systx doctor`.
#[derive(Clone, Debug, Args)]
pub struct Doctor {
    /// As root: switch FUSE over io_uring on, until the next boot
    #[arg(long)]
    pub fix: bool,
    /// With --fix: after each boot, too
    #[arg(long, requires = "fix")]
    pub permanent: bool,
    /// Where.
    #[command(flatten)]
    pub place: Where,
}

/// `systx completions`.
#[derive(Clone, Debug, Args)]
pub struct Completions {
    /// For which shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `systx manual`.
#[derive(Clone, Debug, Args)]
pub struct Manual {
    /// Where to; made if it is not there
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `90`, `1.5`, `90s`, `5m`, `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1.0),
        Some((at, 'm')) => (&text[..at], 60.0),
        Some((at, 'h')) => (&text[..at], 3600.0),
        _ => (text, 1.0),
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|n| Duration::try_from_secs_f64(n * unit).ok())
        .filter(|d| !d.is_zero())
        .ok_or_else(|| "not a time: give seconds, or 90s, 5m, 2h".into())
}

/// `4096`, `100K`, `100M`, `2G`, `1T`.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    // A sign is none of the digits, for parse it would be.
    Some(number)
        .filter(|number| number.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|number| number.parse::<u64>().ok())
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| "not a size: give bytes, or 100M, 2G".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_belongs_to_the_command_is_left_to_it() {
        let cli = Cli::parse_from(["systx", "run", "-v", "ls", "-l", "--json", "--", "-q"]);
        let Command::Run(run) = cli.command else { panic!("run") };
        assert_eq!(run.argv, ["ls", "-l", "--json", "--", "-q"]);
        assert!(!cli.global.json && cli.global.verbose == 1 && !cli.global.quiet);
        let cli = Cli::parse_from(["systx", "run", "--json", "--", "--", "x"]);
        let Command::Run(run) = cli.command else { panic!("run") };
        assert_eq!(run.argv, ["--", "x"]);
        assert!(cli.global.json);
    }

    #[test]
    fn times_and_sizes() {
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("-1").is_err() && duration("0").is_err() && duration("x").is_err());
        assert!(duration("1e30").is_err());
        assert_eq!(size("2K"), Ok(2048));
        assert!(size("99999999999999G").is_err() && size("").is_err() && size("+2K").is_err());
    }
}
