//! Which modes exclude each other, with what is said then and what to do instead: one table. Who
//! refuses asks it, docs/SEMANTICS.md shows it ([`list`]), and a test tries each pair.

use super::{Failure, FailureKind};
use FailureKind::{Invalid, State, Unsupported};
use std::fmt::{self, Display, Formatter};

/// A way in which something is done, or a kind of place in which it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// `systx mount DIR`.
    Guarded,
    /// `systx mount --fast-open DIR`, and a volume without `--threads`.
    FastOpen,
    /// `systx mount --routed DIR`.
    Routed,
    /// `systx mount --certifier SOCKET`.
    Certifier,
    /// An overlay file system.
    Overlay,
    /// A log-structured volume that is mounted.
    Volume,
    /// `systx mount --at SNAPSHOT FILE DIR`.
    Moment,
    /// A file system that keeps quotas.
    Quotas,
    /// `systx protect off PATH`.
    Unprotected,
    /// `systx begin DIR`.
    Path,
    /// The same of who may not mount: fusermount3 does it.
    Helper,
    /// Another user's than the daemon's.
    Guest,
    /// A transaction of a thread.
    Thread,
    /// `--isolation=snapshot`.
    Snapshot,
    /// `systx commit ID PATH`.
    Part,
    /// A transaction on several file systems.
    Several,
    /// `systx undo`, and `systx redo`.
    Undo,
    /// What an ordinary user does.
    User,
    /// What root does.
    Root,
    /// A run inside a run.
    Inner,
    /// `systx run --on-exit=` anything but `commit`.
    OnExit,
    /// `systx run --read-only`.
    ReadOnly,
    /// `systx run --no-net`.
    NoNet,
    /// `systx run --limit-processes N`.
    LimitProcesses,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 24] = [
        Way::Guarded,
        Way::FastOpen,
        Way::Routed,
        Way::Certifier,
        Way::Overlay,
        Way::Volume,
        Way::Moment,
        Way::Quotas,
        Way::Unprotected,
        Way::Path,
        Way::Helper,
        Way::Guest,
        Way::Thread,
        Way::Snapshot,
        Way::Part,
        Way::Several,
        Way::Undo,
        Way::User,
        Way::Root,
        Way::Inner,
        Way::OnExit,
        Way::ReadOnly,
        Way::NoNet,
        Way::LimitProcesses,
    ];
}

/// As the documents call it.
impl Display for Way {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Guarded => "a guarded directory",
            Way::FastOpen => "`--fast-open`",
            Way::Routed => "`--routed`",
            Way::Certifier => "`--certifier`",
            Way::Overlay => "an overlay file system",
            Way::Volume => "a log-structured volume",
            Way::Moment => "a snapshot of a volume (`--at`)",
            Way::Quotas => "a file system with quotas",
            Way::Unprotected => "what is not protected",
            Way::Path => "`systx begin`",
            Way::Helper => "a view that fusermount3 mounts",
            Way::Guest => "a guest's transaction",
            Way::Thread => "a thread's transaction",
            Way::Snapshot => "`--isolation=snapshot`",
            Way::Part => "`systx commit ID PATH`",
            Way::Several => "several file systems",
            Way::Undo => "`systx undo`",
            Way::User => "an ordinary user",
            Way::Root => "root",
            Way::Inner => "a run inside a run",
            Way::OnExit => "`--on-exit`",
            Way::ReadOnly => "`--read-only`",
            Way::NoNet => "`--no-net`",
            Way::LimitProcesses => "`--limit-processes`",
        })
    }
}

/// Two modes that exclude each other.
#[derive(Debug, PartialEq, Eq)]
pub struct Exclusion {
    modes: (Way, Way),
    kind: FailureKind,
    /// What is said; `{}` stands for what it is about.
    says: &'static str,
    /// What to do; `{}` as above.
    instead: &'static str,
}

const fn row(
    one: Way,
    other: Way,
    kind: FailureKind,
    says: &'static str,
    instead: &'static str,
) -> Exclusion {
    Exclusion { modes: (one, other), kind, says, instead }
}

/// The table.
pub const EXCLUSIONS: &[Exclusion] = &[
    row(
        Way::FastOpen,
        Way::Routed,
        Invalid,
        "{} cannot be mounted both --fast-open and --routed: nobody is told of opens under the \
         one, and the other rests on that",
        "--fast-open for programs that open many files, --routed for threads without privilege",
    ),
    row(
        Way::FastOpen,
        Way::Certifier,
        Invalid,
        "{} cannot be mounted both --fast-open and --certifier: nobody is told of opens under the \
         one, and the other refuses those that would write",
        "leave --fast-open out",
    ),
    row(
        Way::FastOpen,
        Way::Thread,
        Unsupported,
        "threads have no transactions in {}, where nobody is told of opens",
        "mount the directory without --fast-open, a volume with --threads",
    ),
    row(
        Way::FastOpen,
        Way::Volume,
        Invalid,
        "{} is a log-structured volume, which takes no --fast-open",
        "leave it out: opens there ask nobody unless the volume is mounted with --threads",
    ),
    row(
        Way::Routed,
        Way::Volume,
        Invalid,
        "{} is a log-structured volume, which takes no --routed",
        "mount it with --threads; systx exec starts programs without privilege",
    ),
    row(
        Way::Guarded,
        Way::Volume,
        Unsupported,
        "{} is a log-structured volume: there are no guarded directories on one yet",
        "all of it is guarded: systx run and systx begin work there, and threads where it is \
         mounted with --threads",
    ),
    row(
        Way::Thread,
        Way::Moment,
        Invalid,
        "a snapshot is read-only: threads have no transactions in it",
        "mount the volume itself with --threads",
    ),
    row(Way::Guarded, Way::Overlay, Unsupported, ON_OVERLAY, ELSEWHERE),
    row(Way::Path, Way::Overlay, Unsupported, ON_OVERLAY, ELSEWHERE),
    row(
        Way::Guarded,
        Way::User,
        Unsupported,
        "only root can guard a directory: every process is to go through the mount over it, and \
         the kernel lets an ordinary user mount only for processes of their own",
        "sudo systx mount DIR; `systx run` needs no guarded directory",
    ),
    row(
        Way::Guest,
        Way::Snapshot,
        Unsupported,
        "another user's daemon has serializable transactions only",
        "leave --isolation=snapshot out",
    ),
    row(
        Way::Guest,
        Way::Quotas,
        Unsupported,
        "quotas are switched on there, and a commit would not keep to yours",
        "change the files without a transaction",
    ),
    row(
        Way::Guest,
        Way::Unprotected,
        Unsupported,
        "{} is not protected, which other users' transactions cannot have",
        PROTECT,
    ),
    row(
        Way::Helper,
        Way::Unprotected,
        Unsupported,
        "{} is not protected, which views that fusermount3 mounts cannot have",
        PROTECT,
    ),
    row(
        Way::Thread,
        Way::Unprotected,
        Unsupported,
        "{} is not protected, which transactions of threads cannot have",
        PROTECT,
    ),
    row(
        Way::Certifier,
        Way::Unprotected,
        Invalid,
        "{} is not protected, which a directory with a certifier cannot have",
        PROTECT,
    ),
    row(Way::Certifier, Way::Path, State, NOT_ASKED, ASKED),
    row(Way::Certifier, Way::Part, State, NOT_ASKED, ASKED),
    row(Way::Certifier, Way::Several, State, NOT_ASKED, ASKED),
    row(Way::Certifier, Way::Undo, State, NOT_ASKED, ASKED),
    row(Way::Inner, Way::OnExit, Invalid, JOINED, "leave it out"),
    row(Way::Inner, Way::ReadOnly, Invalid, JOINED, "leave it out"),
    row(Way::Inner, Way::NoNet, Invalid, JOINED, "leave it out"),
    row(
        Way::Root,
        Way::LimitProcesses,
        Unsupported,
        "--limit-processes: the kernel does not bind root's processes by number",
        "as another user: systx run -- setpriv --reuid=... CMD; or in a container",
    ),
    row(
        Way::Part,
        Way::Several,
        Unsupported,
        "these paths are on several file systems",
        "commit those of one file system at a time, or all of the transaction",
    ),
];

const ON_OVERLAY: &str = "{} is an overlay file system, on which a file that is open for reading \
                          stays the old one when it is first changed: only `systx run` works there";
const ELSEWHERE: &str = "use a directory of another file system, such as a volume of the container";
const PROTECT: &str = "systx protect on {}";
const NOT_ASKED: &str = "{} has a certifier, which is not asked this way";
const ASKED: &str = "transactions of threads and whole ones of `systx run` are committed there, \
                     which change nothing elsewhere";
const JOINED: &str = "inside transaction {} a run joins it: its changes are committed or dropped \
                      with it, so --on-exit and --read-only have no meaning here; --no-net is for \
                      the outer run";

impl Exclusion {
    /// Which.
    #[must_use]
    pub fn modes(&self) -> (Way, Way) {
        self.modes
    }

    /// What is said, about this.
    #[must_use]
    pub fn says(&self, what: impl Display) -> String {
        self.says.replace("{}", &what.to_string())
    }

    /// What to do instead.
    #[must_use]
    pub fn instead(&self, what: impl Display) -> String {
        self.instead.replace("{}", &what.to_string())
    }

    /// The same as an answer.
    #[must_use]
    pub fn failure(&self, what: impl Display) -> Failure {
        Failure::new(self.kind, self.says(&what)).hint(self.instead(what))
    }
}

/// Those of these modes that are chosen.
#[must_use]
pub fn chosen<const N: usize>(all: [(bool, Way); N]) -> Vec<Way> {
    all.into_iter().filter_map(|(is, mode)| is.then_some(mode)).collect()
}

/// The row of two modes, if they exclude each other.
#[must_use]
pub fn excluded(one: Way, other: Way) -> Option<&'static Exclusion> {
    EXCLUSIONS.iter().find(|row| row.modes == (one, other) || row.modes == (other, one))
}

/// Refuses modes of which two exclude each other, with words about this.
///
/// # Errors
/// Two of them do.
pub fn check(modes: &[Way], what: impl Display) -> Result<(), Failure> {
    let both = |row: &&Exclusion| modes.contains(&row.modes.0) && modes.contains(&row.modes.1);
    EXCLUSIONS.iter().find(both).map_or(Ok(()), |row| Err(row.failure(what)))
}

/// The answer to two modes of which it is known that they meet; about this.
#[must_use]
pub fn refusal(one: Way, other: Way, what: impl Display) -> Failure {
    match excluded(one, other) {
        Some(row) => row.failure(what),
        None => Failure::new(FailureKind::Internal, format!("{one} and {other} go together")),
    }
}

/// The list for the documents, in lines of up to 100 columns.
#[must_use]
pub fn list() -> String {
    let mut all = String::new();
    for row in EXCLUSIONS {
        let ((one, other), says) = (row.modes, row.says("PATH"));
        let item = format!("- **{one}; {other}**: {says}. Instead: {}.", row.instead("PATH"));
        let mut width = 0;
        for word in item.split(' ') {
            let long = word.chars().count();
            if width == 0 {
                width = long;
            } else if width + 1 + long <= 100 {
                all.push(' ');
                width += 1 + long;
            } else {
                all.push_str("\n  ");
                width = 2 + long;
            }
            all.push_str(word);
        }
        all.push('\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_stands_once_and_no_mode_excludes_itself() {
        for row in EXCLUSIONS {
            let (one, other) = row.modes;
            assert_ne!(one, other);
            assert_eq!(excluded(other, one), Some(row), "both ways");
            let same = |row: &&Exclusion| row.modes == (one, other) || row.modes == (other, one);
            let times = EXCLUSIONS.iter().filter(same).count();
            assert_eq!(times, 1, "{one} and {other}");
            assert!(Way::ALL.contains(&one) && Way::ALL.contains(&other));
        }
        let mut all = Way::ALL.to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), Way::ALL.len());
        assert_eq!(check(&[Way::Path, Way::Volume, Way::Snapshot], "x"), Ok(()));
        let refused = check(&[Way::Path, Way::Snapshot, Way::Overlay], "/x").unwrap_err();
        assert!(refused.message.starts_with("/x is an overlay"), "{refused}");
    }

    /// `SYSTX_WRITE_DOCS=1` puts the list there.
    #[test]
    fn the_document_shows_the_list() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SEMANTICS.md");
        let text = std::fs::read_to_string(page).unwrap();
        let first = format!("- **{}; {}**", EXCLUSIONS[0].modes.0, EXCLUSIONS[0].modes.1);
        let begin = text.find(&first).expect("a list of them");
        let end = begin + text[begin..].find("\n\n").expect("more text") + 1;
        if std::env::var_os("SYSTX_WRITE_DOCS").is_some() {
            let now = format!("{}{}{}", &text[..begin], list(), &text[end..]);
            std::fs::write(page, now).unwrap();
        } else {
            assert_eq!(&text[begin..end], list(), "SYSTX_WRITE_DOCS=1 writes it there");
        }
    }
}
