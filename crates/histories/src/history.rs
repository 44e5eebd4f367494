//! What a client can say of an execution: units, when each began and ended, and what it saw.
//!
//! The world is a set of *cells*, each with a number in it; 0 is what a cell holds that nobody
//! wrote: a name that stands for nothing, a hole. Everything that the recorder does to files is a
//! few [`Atom`]s on cells. Their meaning is all that the checker knows of file systems.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A place that holds one value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Cell {
    /// One record of a file's content.
    Slot(u32, u32),
    /// The length of a file, in records.
    Size(u32),
    /// The permission bits of a file.
    Mode(u32),
    /// What a name in a directory stands for.
    Entry(u32, u32),
}

impl Cell {
    /// The independent part of the world that it belongs to: no atom touches two of them.
    pub fn object(self) -> Object {
        match self {
            Cell::Slot(file, _) | Cell::Size(file) => Object::Content(file),
            Cell::Mode(file) => Object::Mode(file),
            // A rename may connect any two names.
            Cell::Entry(..) => Object::Names,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Slot(file, slot) => write!(f, "file {file} record {slot}"),
            Cell::Size(file) => write!(f, "size of file {file}"),
            Cell::Mode(file) => write!(f, "mode of file {file}"),
            Cell::Entry(dir, name) => write!(f, "name {name} in directory {dir}"),
        }
    }
}

/// Cells that some atom may connect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Object {
    /// Records and length of a file.
    Content(u32),
    /// Permission bits of a file.
    Mode(u32),
    /// All names.
    Names,
}

/// The smallest thing that a request sees or does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Atom {
    /// It saw this value there.
    Is(Cell, u64),
    /// It saw that there is something, not what.
    Present(Cell),
    /// It wrote this value, whatever was there.
    Set(Cell, u64),
    /// It wrote a record at the end of a file.
    Append(u32, u64),
    /// It set the length of a file.
    Truncate(u32, u32),
    /// What the first name stands for got the second one, which loses what it stood for.  The
    /// first stands for something.  Nothing happens if both stand for the same.
    Rename(Cell, Cell),
    /// It looked up a name that stands for something, and keeps what.
    Resolve(Cell),
    /// It gave what it has looked up a second name, which stands for nothing.
    Bind(Cell),
}

impl Atom {
    /// Changes nothing, and has only one meaning whenever its expectation holds.
    pub fn is_pure(&self) -> bool {
        matches!(self, Atom::Is(..) | Atom::Present(_))
    }

    /// What it is about.
    pub fn object(&self) -> Object {
        match *self {
            Atom::Is(cell, _)
            | Atom::Present(cell)
            | Atom::Set(cell, _)
            | Atom::Rename(cell, _)
            | Atom::Resolve(cell)
            | Atom::Bind(cell) => cell.object(),
            Atom::Append(file, _) | Atom::Truncate(file, _) => Object::Content(file),
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Is(cell, 0) => write!(f, "saw nothing at {cell}"),
            Atom::Is(cell, value) => write!(f, "saw {} at {cell}", Value(*value)),
            Atom::Present(cell) => write!(f, "saw something at {cell}"),
            Atom::Set(cell, 0) => write!(f, "emptied {cell}"),
            Atom::Set(cell, value) => write!(f, "wrote {} to {cell}", Value(*value)),
            Atom::Append(file, value) => write!(f, "appended {} to file {file}", Value(*value)),
            Atom::Truncate(file, len) => write!(f, "cut file {file} to {len} records"),
            Atom::Rename(from, to) => write!(f, "renamed {from} to {to}"),
            Atom::Resolve(cell) => write!(f, "looked up {cell}"),
            Atom::Bind(cell) => write!(f, "linked what it had looked up to {cell}"),
        }
    }
}

/// A written value, as [`token`] made it.
pub struct Value(pub u64);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 >> 32, self.0 & 0xffff_ffff) {
            (0, number) => write!(f, "{number}"),
            (process, number) => write!(f, "{process}.{number}"),
        }
    }
}

/// A value that no other write of a run uses: of which process, and its how manieth.
pub fn token(process: u32, number: u32) -> u64 {
    (u64::from(process) + 1) << 32 | u64::from(number)
}

/// What takes effect at once.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    /// In this order.
    pub atoms: Vec<Atom>,
    /// How it was done, for messages: by which call.
    pub how: String,
}

/// What a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// All steps take effect at once.
    Transaction,
    /// A plain call: its steps are requests, one after the other, others may come between them.
    Call,
    /// A plain call whose steps only look, in an order that nobody knows.
    Survey,
}

/// How a unit ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It took effect.
    Done,
    /// It took no effect.  What it saw until then must still be of one moment.
    Aborted,
    /// Nobody knows, or it never ended: it took effect, at any later time, or not.
    Unknown,
}

/// A transaction or a plain call of one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unit {
    /// Which process; a process does one unit after the other, but for plain calls in the middle of
    /// its transaction.
    pub process: u32,
    /// What it is.
    pub kind: Kind,
    /// How it ended.
    pub outcome: Outcome,
    /// A moment before its first request.
    pub begin: u64,
    /// A moment after its last answer.
    pub end: u64,
    /// What it did and saw.
    pub steps: Vec<Step>,
}

impl Unit {
    /// Nothing of it stays.
    pub fn is_pure(&self) -> bool {
        self.outcome == Outcome::Aborted
            || self.steps.iter().all(|s| s.atoms.iter().all(Atom::is_pure))
    }

    /// In words, without its steps.
    pub fn name(&self) -> String {
        let what = match (self.kind, self.outcome) {
            (Kind::Transaction, Outcome::Done) => "transaction",
            (Kind::Transaction, Outcome::Aborted) => "aborted transaction",
            (Kind::Transaction, Outcome::Unknown) => "transaction with an unknown end",
            (Kind::Call | Kind::Survey, Outcome::Unknown) => "unfinished call",
            (Kind::Call | Kind::Survey, _) => "plain call",
        };
        format!("{what} of process {}", self.process)
    }
}

/// What the world holds; cells that are not in it hold 0.
pub type State = BTreeMap<Cell, u64>;

/// All that was recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// Before the first unit.
    #[serde(with = "pairs")]
    pub initial: State,
    /// In any order.
    pub units: Vec<Unit>,
}

/// Maps with keys that are no strings, as JSON.
mod pairs {
    use super::{Cell, State};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(state: &State, to: S) -> Result<S::Ok, S::Error> {
        state.iter().collect::<Vec<_>>().serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<State, D::Error> {
        Ok(Vec::<(Cell, u64)>::deserialize(from)?.into_iter().collect())
    }
}
