//! What a client asks for: one line of text each.

use std::fmt;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Make the edge.
    Add,
    /// Remove the edge.
    Delete,
    /// Is there the edge?
    Exists,
    /// A shortest path.
    Path,
}

/// A request about two vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub op: Op,
    /// The vertices.
    pub ends: [u32; 2],
}

impl Request {
    /// From `add 1 2`, `delete 1 2`, `exists 1 2` or `path 1 2`. What follows a further blank is
    /// not looked at: it tells requests apart that ask for the same. `None` if it is not of this
    /// form, or about vertices that a graph of so many does not have.
    pub fn parse(line: &[u8], vertices: u32) -> Option<Request> {
        let mut words = std::str::from_utf8(line).ok()?.splitn(4, ' ');
        let op = match words.next()? {
            "add" => Op::Add,
            "delete" => Op::Delete,
            "exists" => Op::Exists,
            "path" => Op::Path,
            _ => return None,
        };
        let mut vertex = || words.next()?.parse().ok().filter(|v| *v < vertices);
        let ends = [vertex()?, vertex()?];
        let request = Request { op, ends };
        (!request.is_write() || ends[0] != ends[1]).then_some(request)
    }

    /// It may change the graph.
    pub fn is_write(&self) -> bool {
        matches!(self.op, Op::Add | Op::Delete)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::Add => "add",
            Op::Delete => "delete",
            Op::Exists => "exists",
            Op::Path => "path",
        };
        write!(f, "{op} {} {}", self.ends[0], self.ends[1])
    }
}

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was not a request.
    Invalid,
    /// Of [`Op::Add`] and [`Op::Delete`]: whether the graph has changed; of [`Op::Exists`]:
    /// whether the edge is there.
    Is(bool),
    /// Of [`Op::Path`]: the vertices on the way, both ends included; none: there is no way.
    Path(Vec<u32>),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Invalid => f.write_str("invalid"),
            Answer::Is(is) => f.write_str(if *is { "yes" } else { "no" }),
            Answer::Path(path) if path.is_empty() => f.write_str("no way"),
            Answer::Path(path) => {
                let words: Vec<String> = path.iter().map(u32::to_string).collect();
                f.write_str(&words.join(" "))
            }
        }
    }
}
