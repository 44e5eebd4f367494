//! Aborts for tests: transactions that lose without an opponent.
//!
//! Whoever tests a program that retries wants each of its attempts to be cut short somewhere, and
//! the program to get through nevertheless. So each kind strikes less as a transaction grows in
//! age, and spares it in the end.

use std::str::FromStr;
use systx_base::TxnId;

/// Which attempts lose, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inject {
    /// Every first attempt, when it is about to be decided.
    Once,
    /// The attempt after `n` lost ones, at the object `n + 1` that it adds; so one that adds `n`
    /// objects loses `n` times at most.
    Each,
    /// By chance, drawn from this seed, the transaction's id and the number of the object: one
    /// object of 16, and half as many with every attempt that lost.
    Random(u64),
}

/// Neither `once` nor `each` nor a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoInject;

impl FromStr for Inject {
    type Err = NoInject;

    fn from_str(s: &str) -> Result<Inject, NoInject> {
        match s {
            "once" => Ok(Inject::Once),
            "each" => Ok(Inject::Each),
            seed => seed.parse().map(Inject::Random).map_err(|_| NoInject),
        }
    }
}

impl Inject {
    /// Whether a transaction of this age loses at the `nth` object that it adds (the first is 1).
    pub(crate) fn strikes_at(self, id: TxnId, age: u32, nth: u32) -> bool {
        match self {
            Inject::Once => false,
            Inject::Each => nth == age.saturating_add(1),
            Inject::Random(seed) => {
                let drawn = step(step(seed ^ id.0).wrapping_add(nth.into()));
                age < 60 && drawn.trailing_zeros() >= 4 + age
            }
        }
    }

    /// Whether one that holds something loses where it would be decided.
    pub(crate) fn strikes_at_end(self, age: u32) -> bool {
        self == Inject::Once && age == 0
    }
}

/// A step of splitmix64.
fn step(n: u64) -> u64 {
    systx_base::mix(n.wrapping_add(0x9e37_79b9_7f4a_7c15))
}
