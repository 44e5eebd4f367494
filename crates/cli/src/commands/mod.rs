//! One file per command.

pub mod abort;
pub mod ask;
pub mod begin;
pub mod commit;
pub mod completions;
pub mod config;
pub mod daemon;
pub mod diff;
pub mod doctor;
pub mod enter;
pub mod exec;
pub mod gc;
pub mod list;
pub mod log;
pub mod manual;
pub mod mount;
pub mod recover;
pub mod run;
pub mod services;
pub mod show;
pub mod status;
pub mod syscalls;
pub mod top;
pub mod undo;
