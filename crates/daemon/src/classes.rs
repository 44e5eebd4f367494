//! Which parts of a transaction are not isolated as everything else is, and what it has done there:
//! for `systx status`.

use crate::protocol::{Class, HostPath, Isolation, Rule, RuleInUse};
use crate::transaction::Transaction;
use std::collections::BTreeSet;
use systx_base::sync::{Mutex, rank};

/// What the client has told of one transaction.
pub struct Told {
    rules: Mutex<Vec<Rule>>,
    /// What any of its views has passed through.
    passed: Mutex<BTreeSet<Vec<u8>>>,
}

impl Default for Told {
    fn default() -> Self {
        Told {
            rules: Mutex::new(rank::LEAF, Vec::new()),
            passed: Mutex::new(rank::LEAF, BTreeSet::new()),
        }
    }
}

impl Told {
    /// At the begin: the patterns, and what is not protected.
    pub fn patterns(&self, rules: Vec<Rule>, unprotected: &[HostPath]) {
        let (class, from) = (Class::Unprotected, "systx protect off");
        let marks = unprotected.iter().cloned();
        let marks = marks.map(|path| Rule { class, path, from: from.into() });
        *self.rules.lock() = marks.chain(rules).collect();
    }

    /// What is not protected, for as long as it lives.
    pub fn unprotected(&self) -> Vec<HostPath> {
        let rules = self.rules.lock();
        let marks = rules.iter().filter(|rule| rule.class == Class::Unprotected);
        marks.map(|rule| rule.path.clone()).collect()
    }

    /// Before a view is put together: what will be mounted over it there.
    pub fn passed_through(&self, rules: &[Rule]) {
        let rules = rules.iter().filter(|rule| rule.class == Class::Passthrough);
        self.passed.lock().extend(rules.map(|rule| rule.path.0.clone()));
    }

    /// Whether a view shows the original there. It was met all the same, by who mounted that: how
    /// it changes, by the transaction's own programs above all, is nobody's conflict.
    pub fn is_passed_through(&self, path: &[u8]) -> bool {
        self.passed.lock().contains(path)
    }

    /// How a view was put together, instead of what was told of an earlier one.
    pub fn places(&self, rules: Vec<Rule>) {
        let mut told = self.rules.lock();
        told.retain(|rule| is_pattern(rule.class) || rule.class == Class::Unprotected);
        told.splice(..0, rules);
    }

    fn get(&self) -> Vec<Rule> {
        self.rules.lock().clone()
    }
}

fn is_pattern(class: Class) -> bool {
    matches!(class, Class::NoCommit | Class::AppendMerge)
}

/// The patterns of one class, as [`crate::patterns::Patterns::compile`] takes them.
pub fn of_class(rules: &[Rule], class: Class) -> Vec<String> {
    let of = rules.iter().filter(|rule| rule.class == class);
    of.map(|rule| rule.path.display().into_owned()).collect()
}

impl Transaction {
    /// The rules that hold for it, and how many paths each has decided about.
    pub fn classes(&self) -> Vec<RuleInUse> {
        let mut rules = self.told.get();
        // Nothing is merged elsewhere, see `systx_vfs::growing`.
        let merges = self.terms.isolation == Isolation::Serializable
            && self.parts().any(|part| part.volume.guarded().is_empty());
        rules.retain(|rule| rule.class != Class::AppendMerge || merges);
        let (terms, changes) = (&self.terms, self.changes());
        let dropped = changes.iter().filter(|c| c.dropped);
        let dropped = dropped.filter_map(|c| terms.patterns.which(&c.path.0));
        let dropped: Vec<_> = dropped.map(|by| (Class::NoCommit, by)).collect();
        let merged: Vec<_> = self.parts().flat_map(|part| part.view.appended_to()).collect();
        let merged = merged.iter().filter_map(|path| terms.merged.which(path));
        let decided: Vec<_> =
            dropped.into_iter().chain(merged.map(|by| (Class::AppendMerge, by))).collect();
        let mut shown: Vec<RuleInUse> = rules
            .into_iter()
            .map(|rule| RuleInUse { used: is_pattern(rule.class).then_some(0), rule })
            .collect();
        for (class, by) in decided {
            // If one stands there twice, the last one counts.
            let is_it = |r: &&mut RuleInUse| r.rule.class == class && r.rule.path.display() == by;
            if let Some(used) = shown.iter_mut().rev().find(is_it).and_then(|r| r.used.as_mut()) {
                *used += 1;
            }
        }
        shown
    }
}
