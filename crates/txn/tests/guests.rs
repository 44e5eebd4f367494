//! Guests: whatever the transaction of another user is, has declared, or has lost before, it is in
//! nobody's way who is none. Among themselves guests have the rules of everybody, and progress.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;
use systx_base::{Oid, OrderName, TxnId};
use systx_txn::{
    Access, BeginOptions, Claim, Claimant, Conflict, Engine, Isolation, Object, ObjectRef,
    Opponent, Order, Part, Patience, Plain, Side, Stall, Status,
};

const FILE: Oid = Oid(3);
const O: ObjectRef<'static> = ObjectRef::Pages { oid: FILE, first: 0, last: 0 };

const GUEST: TxnId = TxnId(1);
const OWN: TxnId = TxnId(2);

/// What might make a transaction strong.
#[derive(Clone, Copy, Debug)]
struct How {
    age: u32,
    priority: i32,
    scope: bool,
    order: bool,
    asleep: bool,
}

fn all() -> Vec<How> {
    let mut all = Vec::new();
    for age in [0, 100] {
        for priority in [-20, 0, 19] {
            for bits in 0..8 {
                let [scope, order, asleep] = [1, 2, 4].map(|bit| bits & bit != 0);
                all.push(How { age, priority, scope, order, asleep });
            }
        }
    }
    all
}

fn claims() -> Vec<Claim> {
    vec![Claim { part: Part::Inode(FILE), write: true }]
}

fn begin(e: &Engine, id: TxnId, how: How, guest: bool) {
    if how.scope {
        e.line_up(Claimant { id, client: 0, guest }, claims(), None);
        e.await_scope(id, Duration::ZERO).unwrap();
    }
    // The older one is the guest.
    let timestamp = Some(id.0);
    let How { age, priority, .. } = how;
    e.begin(id, BeginOptions { age, priority, guest, timestamp, ..BeginOptions::default() });
    if how.order {
        let group = OrderName { owner: u32::from(guest), name: b"g"[..].into() };
        e.enlist(id, &Order { group, number: 0 }, &Arc::default()).unwrap();
    }
    if how.asleep {
        e.defer_while(id, || true);
    }
}

#[test]
fn a_guest_loses_to_everybody_else_whoever_comes_first() {
    for guest in all() {
        for own in all() {
            for (mine, theirs) in
                [(Side::Read, Side::Write), (Side::Write, Side::Read), (Side::Write, Side::Write)]
            {
                for guest_first in [true, false] {
                    let e = Engine::new();
                    begin(&e, GUEST, guest, true);
                    begin(&e, OWN, own, false);
                    let ask = |id, side| match side {
                        Side::Read => e.read(id, O),
                        Side::Write => e.write(id, O),
                    };
                    let said = || format!("{guest:?} {own:?} {mine:?} {theirs:?} {guest_first}");
                    if guest_first {
                        // It may lose at once, to what was declared.
                        ask(GUEST, theirs);
                        assert_eq!(ask(OWN, mine), Access::Granted, "{}", said());
                    } else {
                        assert_eq!(ask(OWN, mine), Access::Granted, "{}", said());
                        assert_eq!(ask(GUEST, theirs), Access::Doomed, "{}", said());
                    }
                    assert_eq!(e.status(GUEST), Some(Status::Doomed), "{}", said());
                    assert_eq!(e.conflict(GUEST).unwrap().opponent, Opponent::Txn(OWN));
                    assert_eq!(e.decide(OWN), Ok(()), "{}", said());
                }
            }
        }
    }
}

#[test]
fn a_scope_waits_for_no_guests_and_theirs_wait_for_it() {
    let line = |e: &Engine, id, guest| e.line_up(Claimant { id, client: 0, guest }, claims(), None);
    for begun in [true, false] {
        let e = Engine::new();
        line(&e, GUEST, true);
        if begun {
            e.await_scope(GUEST, Duration::ZERO).unwrap();
            e.begin(GUEST, BeginOptions { guest: true, ..BeginOptions::default() });
        }
        line(&e, OWN, false);
        assert_eq!(e.await_scope(OWN, Duration::ZERO), Ok(()), "begun: {begun}");
        e.begin(OWN, BeginOptions::default());
        let third = TxnId(3);
        line(&e, third, true);
        assert!(e.await_scope(third, Duration::ZERO).is_err(), "begun: {begun}");
        if !begun {
            // It was before it in line, and has to wait all the same for who runs.
            assert_eq!(e.await_scope(GUEST, Duration::ZERO).unwrap_err().by, OWN);
        } else {
            assert_eq!(e.read(GUEST, O), Access::Doomed);
        }
        assert_eq!(e.write(OWN, O), Access::Granted);
    }
}

#[test]
fn an_attempt_after_a_loss_does_not_wait_for_a_guests() {
    let e = Engine::new();
    let object = || Object::Pages { oid: FILE, first: 0, last: 0 };
    let (mine, theirs) = (Side::Write, Side::Write);
    let lost = |opponent| Conflict { object: object(), opponent, mine, theirs };
    let over = [lost(Opponent::Outside)];
    let limit = Patience::of(Duration::from_secs(600));
    let guest = BeginOptions { guest: true, age: 100, ..BeginOptions::default() };
    let turn = e.await_turn(GUEST, &guest, &over, limit);
    e.begin(GUEST, guest);
    let own = e.await_turn(OWN, &BeginOptions::default(), &over, limit);
    drop((turn, own));
}

#[test]
fn nothing_is_held_for_an_aged_guest() {
    let e = Engine::new();
    let aged = BeginOptions { age: 100, guest: true, ..BeginOptions::default() };
    e.begin(GUEST, aged);
    assert!(!e.reserve(GUEST));
    assert_eq!(e.read(GUEST, O), Access::Granted);
    let by = systx_txn::Caller::new(1, 1, b"");
    let Plain::Decided(mutation) = e.plain_mutation(&[O], by, Stall::Bounded) else {
        panic!("it was held");
    };
    assert_eq!(mutation.doomed(), [GUEST]);
}

/// One guest after another comes in the way of each; what lost comes again, older and aged.
#[test]
fn among_guests_who_keeps_losing_wins_at_some_point() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let e = Engine::new();
        let options = BeginOptions { guest: true, isolation, ..BeginOptions::default() };
        let mut timestamp = None;
        let mut attempts = 0;
        loop {
            let id = TxnId(1000 + attempts);
            let begun = e.begin(
                id,
                BeginOptions { age: attempts as u32, priority: 19, timestamp, ..options.clone() },
            );
            timestamp = Some(begun.0);
            assert_eq!(e.write(id, O), Access::Granted);
            let rival = TxnId(2000 + attempts);
            e.begin(rival, BeginOptions { priority: -20, ..options.clone() });
            let won = e.write(rival, O) == Access::Doomed;
            e.abort(rival);
            if won {
                assert_eq!(e.decide(id), Ok(()));
                break;
            }
            e.abort(id);
            attempts += 1;
            assert!(attempts < 10, "no progress");
        }
        assert_eq!(attempts, 3);
    }
}
