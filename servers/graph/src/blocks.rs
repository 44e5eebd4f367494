//! Graphs and recorded blocks from a seed, and blocks as text: a request on each line, and an empty
//! line at the end of each block.

use crate::request::{Op, Request};
use crate::wrong;
use std::collections::HashSet;
use std::io::{self, Write};

/// So many different edges.
///
/// # Errors
/// There cannot be so many.
pub fn edges(vertices: u32, count: u64, seed: u64) -> io::Result<Vec<[u32; 2]>> {
    let most = u64::from(vertices) * u64::from(vertices.saturating_sub(1)) / 2;
    if count > most {
        return Err(wrong(format!("{vertices} vertices have {most} edges at the most")));
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut found = HashSet::new();
    let mut edges = Vec::new();
    while (edges.len() as u64) < count {
        let [u, v] = [random.u32(..vertices), random.u32(..vertices)];
        if u != v && found.insert([u.min(v), u.max(v)]) {
            edges.push([u, v]);
        }
    }
    Ok(edges)
}

/// What blocks are made of.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Of the graph.
    pub vertices: u32,
    /// How many blocks.
    pub blocks: u32,
    /// Requests of each.
    pub size: u32,
    /// Of 100 requests so many change the graph: as many adds as deletes.
    pub writes: u32,
    /// Of 100 others so many ask for an edge, the rest for a path.
    pub exists: u32,
}

/// Writes recorded blocks. Half of the deletes are about edges that were added.
///
/// # Errors
/// The writer's.
pub fn record(mix: Mix, seed: u64, to: &mut impl Write) -> io::Result<()> {
    // Not the numbers that a graph of the same seed was made of: all searches would be for its edges.
    let mut random = fastrand::Rng::with_seed(!seed);
    let mut added = Vec::new();
    for _ in 0..mix.blocks {
        for _ in 0..mix.size {
            let mut ends = [random.u32(..mix.vertices), random.u32(..mix.vertices)];
            let op = if random.u32(..100) < mix.writes {
                ends[1] = if ends[0] == ends[1] { (ends[0] + 1) % mix.vertices } else { ends[1] };
                if random.bool() {
                    added.push(ends);
                    Op::Add
                } else {
                    if !added.is_empty() && random.bool() {
                        ends = added.swap_remove(random.usize(..added.len()));
                    }
                    Op::Delete
                }
            } else if random.u32(..100) < mix.exists {
                Op::Exists
            } else {
                Op::Path
            };
            writeln!(to, "{}", Request { op, ends })?;
        }
        writeln!(to)?;
    }
    Ok(())
}

/// Recorded blocks from their text.
pub fn read(text: &str, vertices: u32) -> Vec<Vec<Option<Request>>> {
    let mut blocks = vec![Vec::new()];
    for line in text.lines() {
        match line {
            "" => blocks.push(Vec::new()),
            line => {
                let request = Request::parse(line.as_bytes(), vertices);
                blocks.last_mut().into_iter().for_each(|block| block.push(request));
            }
        }
    }
    if blocks.last().is_some_and(Vec::is_empty) {
        blocks.pop();
    }
    blocks
}
