//! Scopes: what a transaction declares before it begins, for callers that cannot try again.
//!
//! A *scope* is a set of [`Claim`]s. It gets all of them at once or none, in the order of arrival:
//! it waits, with nothing held, for those in line before it, and for running ones, that claim any
//! of the same in a way that conflicts. Then its transaction begins. While that runs, others lose
//! where they go for what it claims, and where it goes for what they have before it came; within
//! its claims it loses to no transaction. Beyond them it contends as an aged one, and loses where
//! others claim.
//!
//! No circle of waits: a running transaction never waits for a scope, and one in line waits for
//! running ones and for those before it in line only. No starvation within its claims: from its
//! turn on nobody else gets hold of them anew, so who is in its way is decided already, or loses.
//!
//! The scope of a guest counts among guests: nobody else waits for it, or loses by going there.
//!
//! Plain mutations are above all this, see `plain.rs`: a transaction with a scope has them held as
//! an aged one does.

use crate::object::ObjectRef;
use std::collections::{BTreeMap, HashMap};
use systx_base::{Oid, TxnId};

/// A part of a volume that can be claimed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// What a name stands for.
    Name {
        /// The directory.
        dir: Oid,
        /// The name.
        name: Box<[u8]>,
    },
    /// Which names are in a directory, and what each of them stands for.
    Names(Oid),
    /// Attributes, length and content of an inode; of a directory, the attributes.
    Inode(Oid),
}

impl Part {
    /// What an object is part of.
    pub(crate) fn of(o: ObjectRef<'_>) -> Part {
        match o {
            ObjectRef::Entry { dir, name } => Part::Name { dir, name: name.into() },
            ObjectRef::List(dir) => Part::Names(dir),
            ObjectRef::Attr(oid) | ObjectRef::Size(oid) | ObjectRef::Pages { oid, .. } => {
                Part::Inode(oid)
            }
        }
    }

    fn oid(&self) -> Oid {
        match self {
            Part::Name { dir: oid, .. } | Part::Names(oid) | Part::Inode(oid) => *oid,
        }
    }

    /// Whether two have something in common.
    pub(crate) fn overlaps(&self, other: &Part) -> bool {
        match (self, other) {
            (Part::Name { dir, .. }, Part::Names(all))
            | (Part::Names(all), Part::Name { dir, .. }) => dir == all,
            _ => self == other,
        }
    }

    /// Whether an object is part of this.
    fn contains(&self, o: ObjectRef<'_>) -> bool {
        match (self, o) {
            (Part::Name { dir, name }, ObjectRef::Entry { dir: of, name: asked }) => {
                *dir == of && **name == *asked
            }
            (Part::Names(dir), ObjectRef::Entry { dir: of, .. } | ObjectRef::List(of)) => {
                *dir == of
            }
            (
                Part::Inode(inode),
                ObjectRef::Attr(of) | ObjectRef::Size(of) | ObjectRef::Pages { oid: of, .. },
            ) => *inode == of,
            _ => false,
        }
    }
}

/// One part of a scope.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Claim {
    /// Of what.
    pub part: Part,
    /// To be written, or only read.
    pub write: bool,
}

/// Who gets in line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimant {
    /// The transaction that is still to begin.
    pub id: TxnId,
    /// For those who wait for it.
    pub client: u32,
    /// See [`crate::BeginOptions`].
    pub guest: bool,
}

/// Who is before a scope in line, or has begun.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// The transaction, which runs, or will be this one.
    pub by: TxnId,
    /// What it was lined up for, see [`crate::Engine::line_up`].
    pub client: u32,
    /// It has had its turn.
    pub runs: bool,
    /// What the one who waits wants of the same.
    pub part: Part,
}

/// One that waits in line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InLine {
    /// The transaction that it will be.
    pub id: TxnId,
    /// What it was lined up for, see [`crate::Engine::line_up`].
    pub client: u32,
    /// Who has to be waited for; `None`: it is its turn.
    pub ahead: Option<Ahead>,
}

/// One in line, or running.
struct Scope {
    id: TxnId,
    client: u32,
    guest: bool,
    /// Sorted by the inode, each part once.
    claims: Vec<Claim>,
    /// It has had its turn.
    runs: bool,
}

impl Scope {
    fn claims_on(&self, oid: Oid) -> impl Iterator<Item = &Claim> {
        let from = self.claims.partition_point(|c| c.part.oid() < oid);
        self.claims[from..].iter().take_while(move |c| c.part.oid() == oid)
    }
}

/// The scopes of a volume.
#[derive(Default)]
pub(crate) struct Scopes {
    /// In the order of arrival.
    line: BTreeMap<u64, Scope>,
    places: HashMap<TxnId, u64>,
    /// Who claims something of an inode.
    claimed: HashMap<Oid, Vec<u64>>,
    last: u64,
    running: usize,
}

impl Scopes {
    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    /// See [`crate::Engine::line_up`].
    pub(crate) fn line_up(
        &mut self,
        Claimant { id, client, guest }: Claimant,
        mut claims: Vec<Claim>,
        since: Option<u64>,
    ) -> u64 {
        // Who had that place before begins anew.
        let before = since.and_then(|place| Some(self.line.get(&place)?.id));
        self.remove(before.unwrap_or(id));
        let key = |c: &Claim| (c.part.oid(), c.part.clone(), !c.write);
        claims.sort_by_cached_key(key);
        claims.dedup_by(|later, kept| later.part == kept.part);
        let place = since.unwrap_or(self.last + 1);
        self.last = self.last.max(place);
        for claim in &claims {
            let by = self.claimed.entry(claim.part.oid()).or_default();
            if by.last() != Some(&place) {
                by.push(place);
            }
        }
        self.places.insert(id, place);
        self.line.insert(place, Scope { id, client, guest, claims, runs: false });
        place
    }

    /// It ends, has lost, or waits no more; whether it was there.
    pub(crate) fn remove(&mut self, id: TxnId) -> bool {
        let Some(place) = self.places.remove(&id) else { return false };
        let Some(scope) = self.line.remove(&place) else { return false };
        self.running -= usize::from(scope.runs);
        for claim in &scope.claims {
            let oid = claim.part.oid();
            if let Some(by) = self.claimed.get_mut(&oid) {
                by.retain(|other| *other != place);
                if by.is_empty() {
                    self.claimed.remove(&oid);
                }
            }
        }
        true
    }

    fn of(&self, id: TxnId) -> Option<(u64, &Scope)> {
        let place = *self.places.get(&id)?;
        Some((place, self.line.get(&place)?))
    }

    /// Who has to be waited for.
    pub(crate) fn ahead(&self, id: TxnId) -> Option<Ahead> {
        let (place, scope) = self.of(id)?;
        if scope.runs {
            return None;
        }
        scope.claims.iter().find_map(|mine| {
            let oid = mine.part.oid();
            let others = self.claimed.get(&oid)?.iter().filter(|other| **other != place);
            let others = others.map(|at| (*at, &self.line[at]));
            let counts = |other: &Scope| !other.guest || scope.guest;
            let mut others =
                others.filter(|(at, other)| counts(other) && (*at < place || other.runs));
            let (_, other) = others.find(|(_, other)| {
                let meets = |c: &Claim| (c.write || mine.write) && c.part.overlaps(&mine.part);
                other.claims_on(oid).any(meets)
            })?;
            let (by, client, runs) = (other.id, other.client, other.runs);
            Some(Ahead { by, client, runs, part: mine.part.clone() })
        })
    }

    /// See [`crate::Engine::in_line`].
    pub(crate) fn waiting(&self) -> Vec<InLine> {
        let waiting = self.line.values().filter(|scope| !scope.runs);
        let of = |s: &Scope| InLine { id: s.id, client: s.client, ahead: self.ahead(s.id) };
        waiting.map(of).collect()
    }

    /// It has its turn, if it is in line and nobody is ahead.
    pub(crate) fn admit(&mut self, id: TxnId) -> Result<(), Ahead> {
        if let Some(ahead) = self.ahead(id) {
            return Err(ahead);
        }
        if let Some(scope) = self.places.get(&id).and_then(|place| self.line.get_mut(place)) {
            self.running += usize::from(!scope.runs);
            scope.runs = true;
        }
        Ok(())
    }

    pub(crate) fn runs(&self, id: TxnId) -> bool {
        self.of(id).is_some_and(|(_, scope)| scope.runs)
    }

    /// Whether an object is within the claims of a transaction.
    pub(crate) fn covers(&self, id: TxnId, o: ObjectRef<'_>, write: bool) -> bool {
        let Some((_, scope)) = self.of(id) else { return false };
        scope.claims_on(o.oid()).any(|c| {
            // Of a list, writing is what the writer of a name does to it.
            let by_name = write && matches!((&c.part, o), (Part::Name { .. }, ObjectRef::List(_)));
            (c.write || !write) && (c.part.contains(o) || by_name)
        })
    }

    /// The running scopes with a claim that an access, of a `guest`, conflicts with, and whether
    /// that is to be written.  What is in the accessing transaction's own scope (`sure`) conflicts
    /// only with scopes that outrank it.
    pub(crate) fn claimants(
        &self,
        o: ObjectRef<'_>,
        write: bool,
        (guest, sure): (bool, bool),
    ) -> impl Iterator<Item = (TxnId, bool)> {
        let claimed = if self.running == 0 { None } else { self.claimed.get(&o.oid()) };
        let scopes = claimed.into_iter().flatten().map(|at| &self.line[at]);
        let counts = move |s: &&Scope| if s.guest { guest && !sure } else { guest || !sure };
        let scopes = scopes.filter(move |s| s.runs && counts(s));
        scopes.filter_map(move |scope| {
            let meets = |c: &&Claim| (c.write || write) && c.part.contains(o);
            scope.claims_on(o.oid()).find(meets).map(|c| (scope.id, c.write))
        })
    }
}
