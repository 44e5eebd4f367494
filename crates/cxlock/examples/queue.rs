//! A queue between threads: who finds it empty sleeps; two locks are one section where they must
//! be.

use cxlock::{CxCondvar, CxLock, TxCell};

struct Ring {
    items: [TxCell<u64>; 16],
    from: TxCell<u64>,
    to: TxCell<u64>,
}

fn main() {
    let cells = std::array::from_fn(|_| TxCell::new(0));
    let ring = CxLock::new(Ring { items: cells, from: TxCell::new(0), to: TxCell::new(0) });
    let (done, changed) = (CxLock::new(TxCell::new(0u64)), CxCondvar::new());
    std::thread::scope(|s| {
        s.spawn(|| {
            for item in 1..=1000 {
                ring.wait(&changed, |t, ring| {
                    let to = ring.to.get(t);
                    if to - ring.from.get(t) == 16 {
                        return None;
                    }
                    ring.items[(to % 16) as usize].set(t, item);
                    ring.to.set(t, to + 1);
                    changed.notify_all(t);
                    Some(())
                });
            }
        });
        for _ in 0..1000 {
            ring.wait(&changed, |t, ring| {
                let from = ring.from.get(t);
                if from == ring.to.get(t) {
                    return None;
                }
                let item = ring.items[(from % 16) as usize].get(t);
                ring.from.set(t, from + 1);
                // Taken from the one and added to the other, or neither.
                done.optimistic_in(t, |t, sum| sum.update(t, |sum| sum + item));
                changed.notify_all(t);
                Some(())
            });
        }
    });
    println!("the sum is {}", done.into_inner().into_inner());
}
