//! `systx syscalls`: what becomes of each system call in a transaction of a thread.

use crate::output::{self, Out};
use crate::problem::Problem;
use serde::Serialize;
use systx_calls::{Class, TABLE, count};

#[derive(Serialize)]
struct Told {
    counts: Vec<Counted>,
    calls: Vec<Listed>,
}

#[derive(Serialize)]
struct Counted {
    class: &'static str,
    calls: usize,
}

#[derive(Serialize)]
struct Listed {
    number: u16,
    name: &'static str,
    class: &'static str,
    why: &'static str,
}

/// Lists them.
///
/// # Errors
/// None.
pub fn syscalls(out: Out) -> Result<i32, Problem> {
    if out.json {
        let counted = |class: Class| Counted { class: class.name(), calls: count(class) };
        let calls = TABLE.iter().map(|call| Listed {
            number: call.number,
            name: call.name,
            class: call.class.name(),
            why: call.why,
        });
        let told = Told { counts: Class::ALL.map(counted).into(), calls: calls.collect() };
        out.json("syscalls", &told);
        return Ok(0);
    }
    let mut text = String::new();
    for call in TABLE {
        let class = call.class.name();
        text.push_str(&format!("{:>3} {:<23} {class:<13}  {}\n", call.number, call.name, call.why));
    }
    let counts = Class::ALL.map(|class| format!("{} {}", count(class), class.name()));
    text.push_str(&format!("{} calls: {}\n", TABLE.len(), counts.join(", ")));
    output::print(&text);
    Ok(0)
}
