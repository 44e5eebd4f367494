//! Which parts of a transaction are not isolated as everything else is, and what it has done there: for `systx status`.

use crate::protocol::{Class, Isolation, Rule, RuleInUse};
use crate::transaction::Transaction;
use systx_base::sync::{Mutex, rank};

/// What the client has told of one transaction.
pub struct Told(Mutex<Vec<Rule>>);

impl Default for Told {
    fn default() -> Self {
        Told(Mutex::new(rank::LEAF, Vec::new()))
    }
}

impl Told {
    /// At the begin: the patterns.
    pub fn patterns(&self, rules: Vec<Rule>) {
        *self.0.lock() = rules;
    }

    /// How a view was put together, instead of what was told of an earlier one.
    pub fn places(&self, rules: Vec<Rule>) {
        let mut told = self.0.lock();
        told.retain(|rule| is_pattern(rule.class));
        told.splice(..0, rules);
    }

    fn get(&self) -> Vec<Rule> {
        self.0.lock().clone()
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
