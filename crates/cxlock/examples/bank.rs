//! Transfers between accounts from several threads, now and then with a line of output.

use cxlock::{Cause, CxLock, Hardware, Native, TxCell};

fn main() {
    let accounts: Vec<_> = (0..64).map(|_| TxCell::new(100i64)).collect();
    let bank = CxLock::new(accounts);
    std::thread::scope(|s| {
        for thread in 0..4usize {
            let bank = &bank;
            s.spawn(move || {
                for i in 0..10_000usize {
                    let (from, to) = ((i * 7 + thread) % 64, (i * 13 + 5) % 64);
                    bank.optimistic(|t, accounts| {
                        accounts[from].update(t, |n| n - 1);
                        accounts[to].update(t, |n| n + 1);
                    });
                }
                bank.optimistic(|t, accounts| {
                    let sum: i64 = accounts.iter().map(|account| account.get(t)).sum();
                    t.io(|| println!("thread {thread}: the sum is {sum}"));
                });
            });
        }
    });
    let stats = bank.stats();
    println!("transactions in this processor: {}", Native.present());
    println!("{} sections, {} as transactions", stats.acquisitions, stats.optimistic);
    for cause in Cause::ALL {
        println!("  undone by {cause:?}: {}", stats.restarts(cause));
    }
}
