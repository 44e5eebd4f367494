//! Is there a serial order?  A search over all orders that real time allows, which replays them.
//!
//! Three things keep it short.  A step that only looks and fits now can be placed now: whatever
//! order completes this one otherwise, it completes it also so; hence only steps that change
//! something are tried out.  A place (which steps were placed, and the world that they made) from
//! which there was no way is never entered again.  And only units that overlap in time have two
//! orders.  A version order is never needed: values that are written once make it follow from what
//! was seen, and where nobody looked, every order is tried.

use crate::history::{Atom, History, Kind, Outcome, State, Unit};
use crate::world::{Contradiction, World, hash};
use std::collections::HashSet;

/// A step of a unit, by their positions in the history; of a transaction, the first stands for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Position in `History::units`.
    pub unit: usize,
    /// Position in `Unit::steps`.
    pub step: usize,
}

/// What keeps a unit from being the next one.
#[derive(Clone, Copy, Debug)]
pub struct Blocked {
    /// What cannot be placed.
    pub placed: Placed,
    /// Why.
    pub why: Contradiction,
}

/// What was found.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// An order in which everything has its place.
    Serializable(Vec<Placed>),
    /// There is none.  The longest beginning of one, and what could not follow it.
    Anomaly(Vec<Placed>, Vec<Blocked>),
    /// The search was given up after so many steps.
    Undecided(u64),
}

impl Verdict {
    /// There is an order.
    pub fn is_serializable(&self) -> bool {
        matches!(self, Verdict::Serializable(_))
    }

    /// There is none.
    pub fn is_anomaly(&self) -> bool {
        matches!(self, Verdict::Anomaly(..))
    }
}

/// Steps after which a search is given up, unless told otherwise.
pub const LIMIT: u64 = 50_000_000;

/// Decides.
pub fn check(history: &History) -> Verdict {
    check_within(history, LIMIT)
}

/// Decides, or gives up after so many steps.
pub fn check_within(history: &History, limit: u64) -> Verdict {
    struct First {
        order: Option<Vec<Placed>>,
        longest: Vec<Placed>,
        blocked: Vec<Blocked>,
    }
    impl Visitor for First {
        fn complete(&mut self, order: Vec<Placed>, _: &World) -> bool {
            self.order = Some(order);
            true
        }
        fn stuck(&mut self, length: usize, how: &mut dyn FnMut() -> (Vec<Placed>, Vec<Blocked>)) {
            if length >= self.longest.len() {
                (self.longest, self.blocked) = how();
            }
        }
    }
    let mut first = First { order: None, longest: Vec::new(), blocked: Vec::new() };
    if !Search::new(history).run(limit, &mut first) {
        return Verdict::Undecided(limit);
    }
    match first.order {
        Some(order) => Verdict::Serializable(order),
        None => Verdict::Anomaly(first.longest, first.blocked),
    }
}

/// All worlds that a serial order can end with, or nothing if there are more than `most` or the
/// search takes too long.
pub fn ends(history: &History, most: usize, limit: u64) -> Option<Vec<State>> {
    struct All {
        most: usize,
        seen: Vec<State>,
    }
    impl Visitor for All {
        fn complete(&mut self, _: Vec<Placed>, world: &World) -> bool {
            let state = world.state();
            if !self.seen.contains(&state) {
                self.seen.push(state);
            }
            self.seen.len() > self.most
        }
        fn stuck(&mut self, _: usize, _: &mut dyn FnMut() -> (Vec<Placed>, Vec<Blocked>)) {}
    }
    let mut all = All { most, seen: Vec::new() };
    let whole = Search::new(history).run(limit, &mut all);
    (whole && all.seen.len() <= most).then_some(all.seen)
}

/// Every dead end of the search, at most so many: an order that cannot be continued, and why.
pub fn dead_ends(history: &History, most: usize) -> Vec<(Vec<Placed>, Vec<Blocked>)> {
    struct Dead(usize, Vec<(Vec<Placed>, Vec<Blocked>)>);
    impl Visitor for Dead {
        fn complete(&mut self, _: Vec<Placed>, _: &World) -> bool {
            true
        }
        fn stuck(&mut self, _: usize, how: &mut dyn FnMut() -> (Vec<Placed>, Vec<Blocked>)) {
            if self.1.len() < self.0 {
                self.1.push(how());
            }
        }
    }
    let mut dead = Dead(most, Vec::new());
    Search::new(history).run(LIMIT, &mut dead);
    dead.1
}

trait Visitor {
    /// Everything has its place; true ends the search.
    fn complete(&mut self, order: Vec<Placed>, world: &World) -> bool;
    /// Nothing can follow an order of this length.
    fn stuck(&mut self, length: usize, how: &mut dyn FnMut() -> (Vec<Placed>, Vec<Blocked>));
}

/// How far the units of a queue were placed.
#[derive(Clone, Copy, Default)]
struct Position {
    /// Position in the queue.
    unit: usize,
    /// Which steps of that unit, one bit each; of calls that is a run of ones from the lowest.
    done: u64,
    /// What it has looked up.
    held: u64,
}

struct Search<'a> {
    units: &'a [Unit],
    /// Units of which each ended before the next began, so that their order is known.
    queues: Vec<Vec<usize>>,
    at: Vec<Position>,
    world: World,
    /// What was placed: the queue, where it stood before, the step, the world before.
    trail: Vec<(usize, Position, usize, usize)>,
    dead: HashSet<u128>,
    work: u64,
}

/// A choice: the queue and the step of its head.
type Choice = (usize, usize);

fn end(unit: &Unit) -> u64 {
    if unit.outcome == Outcome::Unknown { u64::MAX } else { unit.end }
}

impl<'a> Search<'a> {
    fn new(history: &'a History) -> Search<'a> {
        let units = &history.units;
        let mut sorted: Vec<usize> = (0..units.len())
            .filter(|u| !units[*u].steps.is_empty())
            // Nobody has to place it, and nobody would notice.
            .filter(|u| units[*u].outcome != Outcome::Unknown || !units[*u].is_pure())
            .collect();
        sorted.sort_by_key(|u| (units[*u].begin, end(&units[*u])));
        let mut queues: Vec<Vec<usize>> = Vec::new();
        for unit in sorted {
            let fits = |q: &Vec<usize>| {
                q.last().is_some_and(|last| end(&units[*last]) < units[unit].begin)
            };
            match queues.iter().position(fits) {
                Some(queue) => queues[queue].push(unit),
                None => queues.push(vec![unit]),
            }
        }
        Search {
            units,
            at: vec![Position::default(); queues.len()],
            queues,
            world: World::new(&history.initial),
            trail: Vec::new(),
            dead: HashSet::new(),
            work: 0,
        }
    }

    fn head(&self, queue: usize) -> Option<usize> {
        self.queues[queue].get(self.at[queue].unit).copied()
    }

    /// Real time lets the heads of these queues come next.
    fn ready(&self) -> Vec<usize> {
        let heads = (0..self.queues.len()).filter_map(|q| self.head(q));
        let first_end = heads.map(|u| end(&self.units[u])).min().unwrap_or(u64::MAX);
        let mut ready: Vec<usize> = (0..self.queues.len())
            .filter(|q| self.head(*q).is_some_and(|u| self.units[u].begin <= first_end))
            .collect();
        ready.sort_by_key(|q| self.head(*q).map(|u| end(&self.units[u])));
        ready
    }

    /// Which steps of a queue's head may come next.
    fn next_steps(&self, queue: usize) -> Vec<usize> {
        let Some(unit) = self.head(queue) else { return Vec::new() };
        let (unit, done) = (&self.units[unit], self.at[queue].done);
        match unit.kind {
            Kind::Transaction => vec![0],
            Kind::Call => vec![done.trailing_ones() as usize],
            Kind::Survey => (0..unit.steps.len()).filter(|s| done & (1 << s) == 0).collect(),
        }
    }

    /// The atoms that a choice stands for.
    fn atoms(&self, (queue, step): Choice) -> impl Iterator<Item = Atom> + use<'a> {
        let units = self.units;
        let unit = self.head(queue).map(|u| &units[u]);
        let steps = unit.map_or(&[][..], |u| match u.kind {
            Kind::Transaction => &u.steps[..],
            _ => &u.steps[step..=step],
        });
        steps.iter().flat_map(|s| s.atoms.iter().copied())
    }

    fn is_pure(&self, choice: Choice) -> bool {
        let aborted =
            self.head(choice.0).is_some_and(|u| self.units[u].outcome == Outcome::Aborted);
        aborted || self.atoms(choice).all(|a| a.is_pure())
    }

    /// Places a step, or says what contradicts it.
    fn place(&mut self, choice: Choice) -> Result<(), Contradiction> {
        self.work += 1;
        let (queue, step) = choice;
        let Some(unit) = self.head(queue).map(|u| &self.units[u]) else { return Ok(()) };
        let mark = self.world.mark();
        let before = self.at[queue];
        let mut held = before.held;
        for atom in self.atoms(choice) {
            if let Err(why) = self.world.perform(atom, &mut held) {
                self.world.back_to(mark);
                return Err(why);
            }
        }
        if unit.outcome == Outcome::Aborted {
            self.world.back_to(mark);
        }
        let done = before.done | 1 << step;
        let all = unit.kind == Kind::Transaction || done.count_ones() as usize == unit.steps.len();
        self.at[queue] = match all {
            true => Position { unit: before.unit + 1, done: 0, held: 0 },
            false => Position { done, held, ..before },
        };
        self.trail.push((queue, before, step, mark));
        Ok(())
    }

    fn back_to(&mut self, length: usize) {
        while self.trail.len() > length {
            if let Some((queue, before, _, mark)) = self.trail.pop() {
                self.world.back_to(mark);
                self.at[queue] = before;
            }
        }
    }

    /// Places what only looks and fits, until nothing more does.
    fn absorb(&mut self) {
        loop {
            let before = self.trail.len();
            for queue in self.ready() {
                let mut placed = true;
                while placed {
                    placed = false;
                    for step in self.next_steps(queue) {
                        let fits = self.is_pure((queue, step)) && self.is_ready(queue);
                        if fits && self.place((queue, step)).is_ok() {
                            placed = true;
                            break;
                        }
                    }
                }
            }
            if self.trail.len() == before {
                return;
            }
        }
    }

    fn is_ready(&self, queue: usize) -> bool {
        let Some(begin) = self.head(queue).map(|u| self.units[u].begin) else { return false };
        (0..self.queues.len()).filter_map(|q| self.head(q)).all(|u| end(&self.units[u]) >= begin)
    }

    fn is_complete(&self) -> bool {
        let unplaced = |q: usize| self.queues[q][self.at[q].unit..].iter();
        (0..self.queues.len())
            .all(|q| unplaced(q).all(|u| self.units[*u].outcome == Outcome::Unknown))
    }

    fn key(&self) -> u128 {
        let at = self.at.iter().enumerate();
        at.fold(self.world.fingerprint(), |key, (q, at)| {
            key ^ hash(&[u64::MAX, q as u64, at.unit as u64, at.done, at.held])
        })
    }

    fn order(&self) -> Vec<Placed> {
        let placed = |(queue, before, step, _): &(usize, Position, usize, usize)| Placed {
            unit: self.queues[*queue][before.unit],
            step: *step,
        };
        self.trail.iter().map(placed).collect()
    }

    /// The choices that change something, the unit that ends first before others.
    fn choices(&self) -> Vec<Choice> {
        let ready = self.ready().into_iter();
        ready
            .flat_map(|q| self.next_steps(q).into_iter().map(move |s| (q, s)))
            .filter(|choice| !self.is_pure(*choice))
            .collect()
    }

    fn blocked(&mut self) -> Vec<Blocked> {
        let mut out = Vec::new();
        for queue in self.ready() {
            for step in self.next_steps(queue) {
                let length = self.trail.len();
                let Some(unit) = self.head(queue) else { continue };
                match self.place((queue, step)) {
                    Ok(()) => self.back_to(length),
                    Err(why) => out.push(Blocked { placed: Placed { unit, step }, why }),
                }
            }
        }
        out
    }

    /// Goes through all orders; false if it was given up.
    fn run(&mut self, limit: u64, visitor: &mut dyn Visitor) -> bool {
        struct Frame {
            length: usize,
            key: u128,
            choices: std::vec::IntoIter<Choice>,
            followed: bool,
        }
        let mut frames: Vec<Frame> = Vec::new();
        let mut entering = true;
        loop {
            if self.work > limit {
                return false;
            }
            if entering {
                self.absorb();
                let key = self.key();
                if self.dead.contains(&key) {
                    entering = false;
                    continue;
                }
                if self.is_complete() && visitor.complete(self.order(), &self.world) {
                    return true;
                }
                let choices = self.choices().into_iter();
                frames.push(Frame { length: self.trail.len(), key, choices, followed: false });
            }
            entering = false;
            let Some(frame) = frames.last_mut() else { return true };
            let length = frame.length;
            if self.trail.len() > length {
                self.back_to(length);
            }
            match frame.choices.next() {
                Some(choice) => {
                    if self.place(choice).is_ok() {
                        frame.followed = true;
                        entering = true;
                    }
                }
                None => {
                    let (key, followed) = (frame.key, frame.followed);
                    if !followed && !self.is_complete() {
                        visitor.stuck(length, &mut || (self.order(), self.blocked()));
                    }
                    self.dead.insert(key);
                    frames.pop();
                }
            }
        }
    }
}
