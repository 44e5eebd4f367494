//! Prints what closes the circles of a crate: `cargo run -p systx-structure --example arrows
//! CRATE`.

use anyhow::{Context, Result};
use systx_structure::{cycles, source};

fn main() -> Result<()> {
    let name = std::env::args().nth(1).context("usage: arrows CRATE")?;
    let own = source::files(&source::workspace(), &name)?;
    let circles = cycles::circles(&own);
    for (from, to) in cycles::arrows(&own) {
        if circles.iter().any(|c| c.contains(&from) && c.contains(&to)) {
            println!("{from} -> {to}");
        }
    }
    Ok(())
}
