//! Measures of the structure of this workspace's code, taken from its syntax.
//!
//! | module | measures |
//! |---|---|
//! | [`source`] | finds and parses the files of a crate, without its tests |
//! | [`cycles`] | modules of a crate that depend on each other in a circle |
//! | [`sizes`] | lines of code, long functions, wide structs, types with many methods |
//! | [`modes`] | conditions on a mode outside of the mode's home |
//! | [`calls`] | places in which one control call and one request are written |
//!
//! Modules are those of a crate's root, each with all that is below it.

pub mod calls;
pub mod cycles;
pub mod modes;
pub mod sizes;
pub mod source;
