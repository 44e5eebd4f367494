//! The guard: what serves plain programs beside views, and brings commits to them.
//!
//! A view knows of all this only as its [`Neighbours`](systx_vfs::neighbours::Neighbours); what it
//! tells of its nodes to who goes on with them is [`Handover`](systx_vfs::handover::Handover).
//!
//! - [`shared`]: a volume with all that works on it; what the others here meet at.
//! - [`plain`]: view 0 of a guarded directory. [`zero`]: what alias roots ask of a view 0,
//!   [`change`]: what one of its requests changes, `sys`: system calls on descriptors.
//! - [`publication`]: how a commit becomes visible at one instant, in all that the kernel caches.
//! - [`inode_locks`], [`landing`]: what plain programs have in flight, in content and in the rest.
//! - [`past`]: what open snapshots need of what has been changed since.
//! - [`retired`]: a view after its commit; `ground`: what that works on.
//! - [`aliases`]: threads that see transactions of their own in one mount; `behalf`: who asks the
//!   mount for whom.

#![deny(unsafe_code)]

pub mod aliases;
mod behalf;
pub mod change;
mod ground;
pub mod inode_locks;
pub mod landing;
pub mod past;
pub mod plain;
pub mod publication;
pub mod retired;
pub mod shared;
mod sys;
pub mod zero;
