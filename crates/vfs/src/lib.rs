//! POSIX meaning: what every request does to one view.  `errno` is made here and nowhere else.

#![forbid(unsafe_code)]

pub mod api;
pub mod content;
