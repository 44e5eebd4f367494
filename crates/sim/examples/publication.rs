//! Publication explored deeper than the tests do, with traces of what each remedy prevents:
//! `cargo run --release -p systx-sim --example publication -- [readers] [accesses]`

use std::time::Instant;
use systx_sim::publication::{Remedies, cases, explore};

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let (readers, accesses) = (args.next().unwrap_or(2), args.next().unwrap_or(3));
    let accesses = u8::try_from(accesses).expect("a small number");
    let start = Instant::now();
    let (mut states, mut wrong) = (0, 0);
    for case in cases(readers, accesses) {
        let result = explore(&case, &Remedies::ALL, usize::MAX);
        states += result.states;
        println!("{:9} states  {}", result.states, case.describe());
        if let Some(found) = result.found {
            wrong += 1;
            println!("WRONG: {}\n  {}", found.what, found.trace.join("\n  "));
        }
    }
    println!("all: {states} states, {wrong} cases wrong, {:.1} s", start.elapsed().as_secs_f64());
    for (name, remedies) in Remedies::each_without() {
        let mut shortest: Option<(String, systx_sim::publication::Found)> = None;
        for case in cases(2, 2) {
            let found = explore(&case, &remedies, usize::MAX).found;
            let shorter = |f: &systx_sim::publication::Found| {
                shortest.as_ref().is_none_or(|(_, s)| f.trace.len() < s.trace.len())
            };
            if let Some(found) = found.filter(shorter) {
                shortest = Some((case.describe(), found));
            }
        }
        match shortest {
            Some((case, found)) => {
                println!(
                    "\nwithout {name}: {} [{case}]\n  {}",
                    found.what,
                    found.trace.join("\n  ")
                );
            }
            None => println!("\nwithout {name}: NOTHING FOUND"),
        }
    }
    if wrong > 0 {
        std::process::exit(1);
    }
}
