//! The search: all states that can be reached, each once, the nearest first, so that what is found
//! is found with a trace that cannot be shorter.

use super::state::{Label, State, Who};
use super::{Case, Remedies};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// In a few words.
    pub what: &'static str,
    /// One line for each step from the beginning.
    pub trace: Vec<String>,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Explored {
    /// States that were looked at.
    pub states: usize,
    /// The first thing that is wrong.
    pub found: Option<Found>,
}

fn steps(state: &State, case: &Case, r: &Remedies) -> Vec<(Label, State)> {
    let mut out = Vec::new();
    state.reader_steps(case, &mut out);
    state.mutator_steps(case, &mut out);
    state.daemon_steps(case, r, &mut out);
    state.commit_steps(case, r, &mut out);
    out
}

fn line((who, what, of): Label) -> String {
    let who = match who {
        Who::Reader(n) => format!("reader {n}"),
        Who::Mutator => "mutator".into(),
        Who::Daemon => "daemon".into(),
        Who::Commit => "commit".into(),
    };
    format!("{who:8}  {what} {of}").trim_end().into()
}

/// Goes through all states of a case under a protocol; stops at the first that is wrong, or after
/// `limit` states.
///
/// # Panics
/// If there are more than `limit` states: a case that was not searched to its end shows nothing.
pub fn explore(case: &Case, r: &Remedies, limit: usize) -> Explored {
    // By position: a state, and the position it was first reached from.
    let mut states = vec![(State::new(case), 0)];
    let mut known = HashMap::from([(states[0].0.clone(), 0)]);
    let (mut ways, mut ends) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < states.len() {
        assert!(states.len() <= limit, "more than {limit} states: {}", case.describe());
        let state = states[at].0.clone();
        let next = steps(&state, case, r);
        let wrong = if next.is_empty() { state.judge(case) } else { state.wrong };
        if let Some(what) = wrong {
            let trace = trace(&states, at, case, r);
            return Explored { states: states.len(), found: Some(Found { what, trace }) };
        }
        if next.is_empty() {
            ends.push(at);
        }
        for (_, next) in next {
            let to = match known.entry(next) {
                Entry::Occupied(old) => *old.get(),
                Entry::Vacant(new) => {
                    states.push((new.key().clone(), at));
                    *new.insert(states.len() - 1)
                }
            };
            ways.push((to, at));
        }
        at += 1;
    }
    let found = endless(states.len(), ways, ends).map(|at| Found {
        what: "the end cannot be reached any more",
        trace: trace(&states, at, case, r),
    });
    Explored { states: states.len(), found }
}

/// The first state from which no way leads to an end; `ways` are the steps, backwards.
fn endless(states: usize, mut ways: Vec<(usize, usize)>, mut ends: Vec<usize>) -> Option<usize> {
    ways.sort_unstable();
    let mut reached = vec![false; states];
    while let Some(end) = ends.pop() {
        if !std::mem::replace(&mut reached[end], true) {
            let first = ways.partition_point(|(to, _)| *to < end);
            ends.extend(ways[first..].iter().take_while(|(to, _)| *to == end).map(|w| w.1));
        }
    }
    reached.iter().position(|reached| !reached)
}

/// The way to a state, by looking for each step once more.
fn trace(states: &[(State, usize)], mut at: usize, case: &Case, r: &Remedies) -> Vec<String> {
    let mut lines = Vec::new();
    while at != 0 {
        let (state, from) = &states[at];
        let steps = steps(&states[*from].0, case, r);
        let label = steps.into_iter().find(|(_, next)| next == state).map(|(label, _)| label);
        lines.push(line(label.expect("a state is reached by a step of the one it came from")));
        at = *from;
    }
    lines.reverse();
    lines
}
