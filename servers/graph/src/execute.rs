//! Executing requests, and who executes which of a block.

use crate::file::Edges;
use crate::request::{Answer, Op, Request};
use std::io;
use std::ops::Range;

/// A block: what is not a request has its place in it as well.
pub type Block = [Option<Request>];

/// Memory of a search, for one after another.
#[derive(Default)]
pub struct Search {
    row: Vec<u64>,
    seen: Vec<u64>,
    from: Vec<u32>,
    line: Vec<u32>,
}

impl Search {
    /// A shortest path, both ends included, or an empty one. Of several it is the one that a
    /// search finds which goes through vertices by their numbers: the graph decides, and nothing
    /// else.
    ///
    /// # Errors
    /// The file's.
    pub fn path(&mut self, edges: &Edges<'_>, [start, end]: [u32; 2]) -> io::Result<Vec<u32>> {
        if start == end {
            return Ok(vec![start]);
        }
        let words = edges.words();
        self.row.resize(words, 0);
        self.seen.clear();
        self.seen.resize(words, 0);
        self.from.resize(edges.layout.vertices as usize, 0);
        self.line.clear();
        self.line.push(start);
        self.seen[start as usize / 64] |= 1 << (start % 64);
        let mut next = 0;
        while let Some(&vertex) = self.line.get(next) {
            next += 1;
            edges.row(vertex, &mut self.row)?;
            if self.row[end as usize / 64] >> (end % 64) & 1 == 1 {
                self.from[end as usize] = vertex;
                return Ok(self.way_back(start, end));
            }
            for word in 0..words {
                let mut new = self.row[word] & !self.seen[word];
                self.seen[word] |= new;
                while new != 0 {
                    let found = word as u32 * 64 + new.trailing_zeros();
                    new &= new - 1;
                    // A damaged file may have more bits than vertices.
                    if let Some(from) = self.from.get_mut(found as usize) {
                        *from = vertex;
                        self.line.push(found);
                    }
                }
            }
        }
        Ok(Vec::new())
    }

    fn way_back(&self, start: u32, end: u32) -> Vec<u32> {
        let mut path = vec![end];
        let mut at = end;
        while at != start {
            at = self.from[at as usize];
            path.push(at);
        }
        path.reverse();
        path
    }
}

/// Executes a part of a block: all that changes the graph up to the part's end, since the part
/// depends on it, and what only reads if it is in the part. Answers are those of the part, and with
/// `changes` those of all changes.
///
/// # Errors
/// The file's.
pub fn execute(
    edges: &mut Edges<'_>,
    search: &mut Search,
    block: &Block,
    part: &Range<usize>,
    changes: bool,
) -> io::Result<Vec<(usize, Answer)>> {
    let mut answers = Vec::new();
    for (n, request) in block[..part.end].iter().enumerate() {
        let here = part.contains(&n);
        let answer = match request {
            None => Answer::Invalid,
            Some(Request { op: Op::Add, ends }) => Answer::Is(edges.set(*ends, true)?),
            Some(Request { op: Op::Delete, ends }) => Answer::Is(edges.set(*ends, false)?),
            Some(_) if !here => continue,
            Some(Request { op: Op::Exists, ends }) => Answer::Is(edges.has(*ends)?),
            Some(Request { op: Op::Path, ends }) => Answer::Path(search.path(edges, *ends)?),
        };
        if here || changes {
            answers.push((n, answer));
        }
    }
    Ok(answers)
}

/// Cuts a block into at most so many parts, with as many searches in each: everything else takes
/// next to no time. The last part ends with the block.
pub fn parts(block: &Block, most: usize) -> Vec<Range<usize>> {
    let searches: Vec<usize> = (0..block.len())
        .filter(|n| matches!(block[*n], Some(Request { op: Op::Path, .. })))
        .collect();
    let count = most.min(searches.len()).max(1);
    // A part begins with its first search; the first one with the block.
    let begin = |part: usize| match part {
        0 => 0,
        part if part == count => block.len(),
        part => searches[part * searches.len() / count],
    };
    (0..count).map(|part| begin(part)..begin(part + 1)).collect()
}
