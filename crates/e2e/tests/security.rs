//! What somebody who is not root, or who prepares a medium, may try against root's daemon and
//! against other users': each test is such an attempt, made for real, and says which rule of
//! docs/SECURITY.md it is held by.

#[path = "security/bounds.rs"]
mod bounds;
#[path = "security/opening.rs"]
mod opening;
#[path = "security/ranks.rs"]
mod ranks;
#[path = "security/runtime.rs"]
mod runtime;
#[path = "security/stores.rs"]
mod stores;
#[path = "security/world.rs"]
mod world;
