//! The least part of a history that still has no serial order, and why, in words.
//!
//! Every step of the reduction keeps this true: if the whole had an order, so would the part.
//! Hence a part without an order convicts the whole.

use crate::history::{Atom, Cell, History, Kind, Object, Outcome, State, Unit, Value};
use crate::search::{self, Blocked, Placed, Verdict, check_within, dead_ends, ends};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

/// Steps for each check during the reduction.
const LIMIT: u64 = 2_000_000;

fn fails(history: &History) -> bool {
    check_within(history, LIMIT).is_anomaly()
}

/// What had begun by `moment`; what had not ended then may have taken effect or not.
fn until(history: &History, moment: u64) -> History {
    let begun = history.units.iter().filter(|u| u.begin <= moment);
    let units = begun.cloned().map(|mut unit| {
        if unit.end > moment && unit.outcome == Outcome::Done {
            unit.outcome = Outcome::Unknown;
        }
        unit
    });
    // An aborted transaction that had not ended has seen only a part of what it saw.
    let units = units.filter(|u| u.outcome != Outcome::Aborted || u.end <= moment).collect();
    History { initial: history.initial.clone(), units }
}

/// The first moment by which it cannot be explained any more.
fn shortest(history: &History) -> History {
    let moments: BTreeSet<u64> = history.units.iter().map(|u| u.end).collect();
    let moments: Vec<u64> = moments.into_iter().collect();
    let (mut low, mut high) = (0, moments.len().saturating_sub(1));
    while low < high {
        let middle = (low + high) / 2;
        if fails(&until(history, moments[middle])) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let cut = moments.get(low).map(|moment| until(history, *moment));
    cut.filter(fails).unwrap_or_else(|| history.clone())
}

/// Without anything about one independent part of the world.
fn without(history: &History, object: Object) -> History {
    let mut out = history.clone();
    for unit in &mut out.units {
        for step in &mut unit.steps {
            step.atoms.retain(|a| a.object() != object);
        }
    }
    tidy(out)
}

fn tidy(mut history: History) -> History {
    for unit in &mut history.units {
        // A plain call's steps are numbered by bits; an empty one says nothing.
        unit.steps.retain(|s| !s.atoms.is_empty());
    }
    history.units.retain(|u| !u.steps.is_empty());
    history
}

fn objects(history: &History) -> BTreeSet<Object> {
    let steps = history.units.iter().flat_map(|u| &u.steps);
    steps.flat_map(|s| &s.atoms).map(Atom::object).collect()
}

/// Leaves out units that leave nothing, as many as possible.
fn without_lookers(mut history: History) -> History {
    let mut size = history.units.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        while at < history.units.len() {
            let mut fewer = history.clone();
            let mut n = 0;
            let chunk = at..at + size;
            fewer.units.retain(|unit| {
                n += 1;
                !(unit.is_pure() && chunk.contains(&(n - 1)))
            });
            if fewer.units.len() < history.units.len() && fails(&fewer) {
                at += size - (history.units.len() - fewer.units.len()).min(size);
                history = fewer;
            } else {
                at += size;
            }
        }
        if size == 1 {
            return history;
        }
        size = size.div_ceil(2);
    }
}

/// Units beyond which no cycle is looked for while a history is reduced.
const FEW: usize = 100;

/// Begins as late as possible: at a moment at which nothing was under way, and at which there is
/// only one world that everything before can have led to.  Not so late that a cycle is lost: it
/// says more than what the world held.  Nor, if possible, the last unit that changed something.
fn without_the_beginning(history: History) -> History {
    let mut moments: Vec<u64> = history.units.iter().map(|u| u.begin).collect();
    moments.sort_unstable();
    let mut latest = None;
    for moment in moments.into_iter().rev() {
        let ended = |u: &Unit| u.outcome != Outcome::Unknown && u.end < moment;
        if history.units.iter().any(|u| u.begin < moment && !ended(u)) {
            continue;
        }
        let (before, after): (Vec<Unit>, Vec<Unit>) =
            history.units.iter().cloned().partition(|u| u.begin < moment);
        if before.is_empty() {
            break;
        }
        let before = History { initial: history.initial.clone(), units: before };
        let Some(worlds) = ends(&before, 1, LIMIT) else { continue };
        let [world] = &worlds[..] else { continue };
        let rest = History { initial: world.clone(), units: after };
        if fails(&rest) {
            if rest.units.len() > FEW {
                return latest.unwrap_or(rest);
            }
            if cycle(&rest).is_some() {
                return rest;
            }
            let tells = |h: &History| h.units.iter().any(|u| !u.is_pure());
            if latest.as_ref().is_none_or(|l| !tells(l) && tells(&rest)) {
                latest = Some(rest);
            }
        }
    }
    match latest {
        Some(latest) if history.units.len() > FEW || cycle(&history).is_none() => latest,
        _ => history,
    }
}

/// Leaves out single observations.
fn without_observations(mut history: History) -> History {
    for unit in (0..history.units.len()).rev() {
        for step in (0..history.units[unit].steps.len()).rev() {
            for atom in (0..history.units[unit].steps[step].atoms.len()).rev() {
                if !history.units[unit].steps[step].atoms[atom].is_pure() {
                    continue;
                }
                let mut fewer = history.clone();
                fewer.units[unit].steps[step].atoms.remove(atom);
                if fails(&fewer) {
                    history = fewer;
                }
            }
        }
    }
    tidy(history)
}

/// The smallest part that was found which has no serial order; `None` if the whole has one, or if
/// that cannot be decided.
pub fn reduce(history: &History) -> Option<History> {
    if !matches!(search::check(history), Verdict::Anomaly(..)) {
        return None;
    }
    let mut history = shortest(history);
    for object in objects(&history) {
        let fewer = without(&history, object);
        if fails(&fewer) {
            history = fewer;
        }
    }
    history = without_lookers(history);
    history = without_the_beginning(history);
    history = without_observations(without_lookers(history));
    let touched = objects(&history);
    history.initial.retain(|cell, _| touched.contains(&cell.object()));
    history.units.sort_by_key(|u| (u.begin, u.end));
    Some(history)
}

/// Why one unit must come before another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It had ended before the other began.
    Time,
    /// The other saw what it wrote.
    Seen(Cell, u64),
    /// It saw what the other replaced.
    Replaced(Cell, u64),
}

/// A fact: the first unit must come before the second, for a reason.
pub type Edge = (usize, usize, Reason);

/// Values and where they come from, as far as it can be said without a search.
struct Facts<'a> {
    initial: &'a State,
    units: &'a [Unit],
    /// Cells that hold each value at most once: who wrote which value to them.
    writers: BTreeMap<Cell, Vec<(usize, u64)>>,
    /// What units saw that they did not write themselves before.
    seen: Vec<(usize, Cell, u64)>,
}

impl<'a> Facts<'a> {
    fn new(history: &'a History) -> Facts<'a> {
        let mut facts = Facts {
            initial: &history.initial,
            units: &history.units,
            writers: BTreeMap::new(),
            seen: Vec::new(),
        };
        let mut appended: BTreeMap<u64, usize> = BTreeMap::new();
        for (u, unit) in history.units.iter().enumerate() {
            let mut own = BTreeSet::new();
            let mut uncertain = BTreeSet::new();
            for atom in unit.steps.iter().flat_map(|s| &s.atoms) {
                match *atom {
                    Atom::Set(cell, value) => {
                        own.insert(cell);
                        if unit.outcome != Outcome::Aborted {
                            facts.writers.entry(cell).or_default().push((u, value));
                        }
                    }
                    Atom::Append(file, value) => {
                        uncertain.insert(file);
                        if unit.outcome != Outcome::Aborted {
                            appended.insert(value, u);
                        }
                    }
                    Atom::Truncate(file, _) => {
                        uncertain.insert(file);
                    }
                    Atom::Is(cell, value) => {
                        let file = match cell {
                            Cell::Slot(file, _) => Some(file),
                            _ => None,
                        };
                        if !own.contains(&cell) && file.is_none_or(|f| !uncertain.contains(&f)) {
                            facts.seen.push((u, cell, value));
                        }
                    }
                    Atom::Present(_) | Atom::Rename(..) | Atom::Resolve(_) | Atom::Bind(_) => {}
                }
            }
        }
        // A record that was appended is seen by its value alone.
        for (_, cell, value) in &facts.seen {
            if let (Cell::Slot(..), Some(unit)) = (cell, appended.get(value)) {
                let known = facts.writers.entry(*cell).or_default();
                if !known.contains(&(*unit, *value)) {
                    known.push((*unit, *value));
                }
            }
        }
        facts
    }

    /// Values come to this cell once and never again.
    fn is_unique(&self, cell: Cell) -> bool {
        let moves =
            |a: &Atom| matches!(a, Atom::Rename(..) | Atom::Bind(_)) && a.object() == cell.object();
        let cuts = |a: &Atom| matches!(a, Atom::Truncate(..)) && a.object() == cell.object();
        let mut steps = self.units.iter().flat_map(|u| &u.steps);
        if steps.any(|s| s.atoms.iter().any(|a| moves(a) || cuts(a))) {
            return false;
        }
        let values: Vec<u64> = self.writers.get(&cell).into_iter().flatten().map(|w| w.1).collect();
        values.iter().collect::<BTreeSet<_>>().len() == values.len() && !values.contains(&0)
    }

    fn edges(&self) -> Vec<Edge> {
        let mut edges: Vec<Edge> = Vec::new();
        for (a, first) in self.units.iter().enumerate() {
            for (b, second) in self.units.iter().enumerate() {
                if first.outcome != Outcome::Unknown && first.end < second.begin {
                    edges.push((a, b, Reason::Time));
                }
            }
        }
        for (reader, cell, value) in &self.seen {
            for (writer, wrote) in self.writers.get(cell).into_iter().flatten() {
                if wrote == value && writer != reader && *value != 0 {
                    edges.push((*writer, *reader, Reason::Seen(*cell, *value)));
                }
            }
        }
        self.replacements(&mut edges);
        edges
    }

    /// Who saw a value comes before everybody who wrote the cell after that value was there.
    fn replacements(&self, edges: &mut Vec<Edge>) {
        loop {
            let before = edges.len();
            let reach = reachable(self.units.len(), edges);
            for (reader, cell, value) in &self.seen {
                if !self.is_unique(*cell) {
                    continue;
                }
                let writers = self.writers.get(cell);
                let origin = writers.into_iter().flatten().find(|w| w.1 == *value).map(|w| w.0);
                // Of a value that was there to begin with, every writer came after.
                let initial = self.initial.get(cell).copied().unwrap_or(0) == *value;
                for (later, _) in writers.into_iter().flatten() {
                    if later == reader || Some(*later) == origin {
                        continue;
                    }
                    let sees_it = self.seen.contains(&(*later, *cell, *value));
                    let after = origin.map_or(initial, |origin| reach[origin][*later]);
                    let edge = (*reader, *later, Reason::Replaced(*cell, *value));
                    if (sees_it || after) && !edges.contains(&edge) {
                        edges.push(edge);
                    }
                }
            }
            if edges.len() == before {
                return;
            }
        }
    }
}

fn reachable(n: usize, edges: &[Edge]) -> Vec<Vec<bool>> {
    let mut reach = vec![vec![false; n]; n];
    for (a, b, _) in edges {
        reach[*a][*b] = true;
    }
    for k in 0..n {
        let through = reach[k].clone();
        for row in reach.iter_mut().filter(|row| row[k]) {
            for (to, step) in row.iter_mut().zip(&through) {
                *to |= step;
            }
        }
    }
    reach
}

/// A shortest cycle of facts among the units of a small history, if the facts that follow from
/// values and times alone make one.  Units that may not have happened are in none, unless somebody
/// saw what they wrote.
pub fn cycle(history: &History) -> Option<Vec<Edge>> {
    let facts = Facts::new(history);
    let mut edges = facts.edges();
    // The requests of a plain call may be on both sides of another unit.
    let one = |u: &Unit| u.kind == Kind::Transaction || u.steps.len() == 1;
    let happened = |u: usize| {
        one(&history.units[u]) && history.units[u].outcome != Outcome::Unknown
            || one(&history.units[u])
                && edges.iter().any(|(a, _, why)| *a == u && matches!(why, Reason::Seen(..)))
    };
    let happened: Vec<bool> = (0..history.units.len()).map(happened).collect();
    edges.retain(|(a, b, _)| happened[*a] && happened[*b]);
    let mut best: Option<Vec<Edge>> = None;
    for start in 0..history.units.len() {
        let mut from: Vec<Option<usize>> = vec![None; history.units.len()];
        let mut queue = VecDeque::from([start]);
        'search: while let Some(at) = queue.pop_front() {
            for (e, (a, b, _)) in edges.iter().enumerate() {
                if *a != at || from[*b].is_some() {
                    continue;
                }
                from[*b] = Some(e);
                if *b == start {
                    break 'search;
                }
                queue.push_back(*b);
            }
        }
        let Some(mut e) = from[start] else { continue };
        let mut way = vec![edges[e].clone()];
        while edges[e].0 != start {
            let Some(previous) = from[edges[e].0] else { break };
            e = previous;
            way.push(edges[e].clone());
        }
        way.reverse();
        if best.as_ref().is_none_or(|b| way.len() < b.len()) {
            best = Some(way);
        }
    }
    best
}

fn letter(n: usize) -> String {
    match u8::try_from(n).ok().filter(|n| *n < 26) {
        Some(n) => char::from(b'A' + n).to_string(),
        None => format!("U{n}"),
    }
}

fn describe(out: &mut String, n: usize, unit: &Unit, origin: u64) {
    let since = |t: u64| t.saturating_sub(origin) as f64 / 1e3;
    let ended = match unit.outcome {
        Outcome::Unknown => String::new(),
        _ => format!("{:.3}", since(unit.end)),
    };
    let (name, begin) = (unit.name(), since(unit.begin));
    let _ = writeln!(out, "  {}  {name}, {begin:.3} to {ended} µs", letter(n));
    for step in &unit.steps {
        let atoms: Vec<String> = step.atoms.iter().map(ToString::to_string).collect();
        let how = if step.how.is_empty() { String::new() } else { format!(" ({})", step.how) };
        let _ = writeln!(out, "       {}{how}", atoms.join(", "));
    }
}

fn why(blocked: &Blocked, history: &History) -> String {
    let holds = match blocked.why.holds {
        0 => "there is nothing".to_owned(),
        value => {
            let wrote = |u: &Unit| {
                u.outcome != Outcome::Aborted
                    && u.steps
                        .iter()
                        .flat_map(|s| &s.atoms)
                        .any(|a| matches!(a, Atom::Set(_, v) | Atom::Append(_, v) if *v == value))
            };
            let by = history.units.iter().position(wrote).map(letter);
            let by = by.map_or_else(|| ", from the beginning".into(), |by| format!(", by {by}"));
            format!("there is {}{by}", Value(value))
        }
    };
    let unit = letter(blocked.placed.unit);
    format!("{unit} {}, but {holds} at {}", blocked.why.atom, blocked.why.cell)
}

fn chain(order: &[Placed], history: &History) -> String {
    let mut names: Vec<String> = Vec::new();
    for placed in order {
        let unit = &history.units[placed.unit];
        let whole = unit.steps.len() == 1 || unit.kind == Kind::Transaction;
        let name = letter(placed.unit);
        names.push(if whole { name } else { format!("{name}{}", placed.step + 1) });
    }
    if names.is_empty() { "at the beginning".into() } else { format!("after {}", names.join(" ")) }
}

/// What was seen although no unit of the history that took effect wrote it.
fn groundless(history: &History, whole: &History) -> Vec<String> {
    let writes = |u: &Unit, value: u64| {
        let mut atoms = u.steps.iter().flat_map(|s| &s.atoms);
        atoms.any(|a| matches!(a, Atom::Set(_, v) | Atom::Append(_, v) if *v == value))
    };
    let mut out = Vec::new();
    for (n, unit) in history.units.iter().enumerate() {
        for atom in unit.steps.iter().flat_map(|s| &s.atoms) {
            let Atom::Is(cell @ (Cell::Slot(..) | Cell::Entry(..)), value) = *atom else {
                continue;
            };
            if value == 0 || whole.initial.values().any(|v| *v == value) {
                continue;
            }
            let mut by = whole.units.iter().filter(|u| writes(u, value));
            let (who, value) = (letter(n), Value(value));
            match by.next() {
                None => out.push(format!("{who} saw {value} at {cell}, which nobody wrote.")),
                Some(by) if by.outcome == Outcome::Aborted => {
                    let by = format!("an {}", by.name());
                    out.push(format!("{who} saw {value} at {cell}, which {by} wrote."));
                }
                Some(_) => {}
            }
        }
    }
    out
}

/// A reduced history in words: its units, the cycle or all dead ends.  `whole` is what it was
/// reduced from.
pub fn words(history: &History, whole: &History) -> String {
    let mut out = String::from("No serial order explains these units:\n");
    let origin = history.units.iter().map(|u| u.begin).min().unwrap_or(0);
    let cycle = cycle(history);
    let concerned = |n: usize| cycle.as_ref().is_none_or(|c| c.iter().any(|e| e.0 == n));
    let mut cells = BTreeSet::new();
    for (n, unit) in history.units.iter().enumerate().filter(|(n, _)| concerned(*n)) {
        describe(&mut out, n, unit, origin);
        let atoms = unit.steps.iter().flat_map(|s| &s.atoms);
        cells.extend(atoms.map(Atom::object));
    }
    let initial = history.initial.iter().filter(|(c, v)| **v != 0 && cells.contains(&c.object()));
    let initial: Vec<String> = initial.map(|(c, v)| format!("{} at {c}", Value(*v))).collect();
    if !initial.is_empty() {
        let _ = writeln!(out, "At the beginning there was {}.", initial.join(", "));
    }
    for line in groundless(history, whole) {
        let _ = writeln!(out, "{line}");
    }
    if let Some(cycle) = cycle {
        let _ = writeln!(out, "Each must come before the next, and the last before the first:");
        for (a, b, reason) in cycle {
            let (a, b) = (letter(a), letter(b));
            let why = match reason {
                Reason::Time => format!("it ended before {b} began"),
                Reason::Seen(cell, v) => format!("{b} saw what it wrote, {} at {cell}", Value(v)),
                Reason::Replaced(cell, 0) => format!("it saw nothing at {cell}, where {b} wrote"),
                Reason::Replaced(cell, v) => {
                    format!("it saw {} at {cell}, which {b} replaced", Value(v))
                }
            };
            let _ = writeln!(out, "  {a} before {b}: {why}");
        }
        return out;
    }
    const MOST: usize = 12;
    out.push_str("Every order that real time allows ends somewhere:\n");
    let all = dead_ends(history, MOST + 1);
    for (order, blocked) in all.iter().take(MOST) {
        let whys: Vec<String> = blocked.iter().map(|b| why(b, history)).collect();
        let _ = writeln!(out, "  {}: {}", chain(order, history), whys.join("; "));
    }
    if all.len() > MOST {
        out.push_str("  and more\n");
    }
    out
}

/// Checks a history; if it has no serial order, says why in words.
///
/// # Errors
/// The reduced anomaly in words, or that the search was given up.
pub fn verify(history: &History) -> Result<(), String> {
    let odd = |u: &&Unit| u.end < u.begin || u.kind != Kind::Transaction && u.steps.len() > 64;
    if let Some(unit) = history.units.iter().find(odd) {
        return Err(format!(
            "Not a history: a {} ends before it begins, or has more than 64 steps.",
            unit.name()
        ));
    }
    match search::check(history) {
        Verdict::Serializable(_) => Ok(()),
        Verdict::Undecided(steps) => Err(format!("Undecided after {steps} steps of the search.")),
        Verdict::Anomaly(..) => {
            let reduced = reduce(history).unwrap_or_else(|| history.clone());
            Err(words(&reduced, history))
        }
    }
}
