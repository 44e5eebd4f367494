//! What in a run is not isolated as everything else is: rules by path, each with who says so.

use super::{HostPath, Listed};
use serde::{Deserialize, Serialize};

/// How what is at a path is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Empty in the run, dropped at the end.
    Private,
    /// The original, not isolated.
    Passthrough,
    /// The original, not isolated: it is not protected (`systx protect off`).
    Unprotected,
    /// Seen in the run, not committed.
    NoCommit,
    /// Appended behind what others append meanwhile.
    AppendMerge,
}

impl Class {
    /// Its name, as in JSON and in `.systxignore`.
    pub fn name(self) -> &'static str {
        match self {
            Class::Private => "private",
            Class::Passthrough => "passthrough",
            Class::Unprotected => "unprotected",
            Class::NoCommit => "no-commit",
            Class::AppendMerge => "append-merge",
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// How what matches is treated.
    pub class: Class,
    /// A path; of the last two classes a pattern in gitignore(5) syntax, rooted at `/` (see
    /// [`crate::patterns`]).
    pub path: HostPath,
    /// Who says so: `built in` and perhaps why, a file, or an option.
    pub from: String,
}

/// A rule that holds for an open transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleInUse {
    /// The rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// How many paths it has decided about so far; `None`: that is not known.
    pub used: Option<u64>,
}

/// An open transaction in detail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// As listings show it.
    #[serde(flatten)]
    pub listed: Listed,
    /// What in it is not isolated as everything else is.
    pub classes: Vec<RuleInUse>,
}
