use crate::api::Reply;
pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";
pub struct Inherited { pub mode: u32, pub access: Option<Vec<u8>>, pub default: Option<Vec<u8>> }
pub fn inherit(_: &[u8], _: u32, _: bool) -> Reply<Inherited> { todo!() }
pub fn chmod(_: &[u8], _: u32) -> Reply<Vec<u8>> { todo!() }
pub fn mode(_: &[u8]) -> Reply<u32> { todo!() }
pub fn equiv_mode(_: &[u8]) -> Reply<Option<u32>> { todo!() }
