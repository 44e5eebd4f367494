//! The command of the suite `as_command`: see `systx_e2e::probe`.

fn main() {
    std::process::exit(systx_e2e::probe::main());
}
