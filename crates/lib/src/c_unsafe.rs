//! The interface of `systx.h`: results as C has them, errors in `errno`.

#![allow(unsafe_code)]

use crate::{Begin, Declared, Flags, set_patience, thread};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// `struct systx_status`.
#[repr(C)]
pub struct CStatus {
    state: u32,
    retries: u32,
    id: u64,
    opponent: u64,
    path: [c_char; 1032],
    words: [c_char; 496],
}

fn result<T>(none: T, run: impl FnOnce() -> io::Result<T>) -> T {
    // A panic must not go up into C.
    let done = catch_unwind(AssertUnwindSafe(run));
    let errno = match done {
        Ok(Ok(value)) => return value,
        Ok(Err(e)) => e.raw_os_error().unwrap_or(libc::EIO),
        Err(_) => libc::EIO,
    };
    // SAFETY: `errno` of this thread is there as long as the thread is.
    unsafe { *libc::__errno_location() = errno };
    none
}

fn path<'a>(dir: *const c_char) -> Option<&'a Path> {
    if dir.is_null() {
        return None;
    }
    // SAFETY: the header asks for a string that ends with NUL and outlives the call.
    Some(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(dir) }.to_bytes())))
}

fn done(run: impl FnOnce() -> io::Result<()>) -> c_int {
    result(-1, || run().map(|()| 0))
}

/// See `systx.h`.
// SAFETY: the name is not that of anything in the C library.
#[unsafe(no_mangle)]
pub extern "C" fn systx_use(dir: *const c_char) -> c_int {
    done(|| {
        thread::use_dir(path(dir));
        Ok(())
    })
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn systx_begin_at(dir: *const c_char, flags: u32) -> c_int {
    done(|| thread::xbegin(path(dir), Flags::from_bits(flags)))
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn xbegin(flags: u32) -> c_int {
    done(|| thread::xbegin(None, Flags::from_bits(flags)))
}

/// `struct systx_begin`.
#[repr(C)]
pub struct CBegin {
    flags: u32,
    /// How many `scope` has.
    paths: u32,
    order: *const c_char,
    number: u64,
    /// Not there in programs that were compiled before it was, which have 0 `paths`.
    scope: *const CPath,
}

/// `struct systx_path`.
#[repr(C)]
pub struct CPath {
    path: *const c_char,
    access: u32,
    reserved: u32,
}

/// `SYSTX_READ`.
const READ: u32 = 1;

/// The paths of a scope.
///
/// # Safety
/// `scope` points to `paths` of them, or is null.
unsafe fn scope<'a>(scope: *const CPath, paths: u32) -> io::Result<Vec<Declared<'a>>> {
    if scope.is_null() {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    // SAFETY: the caller says so.
    let all = unsafe { std::slice::from_raw_parts(scope, paths as usize) };
    let declared = all.iter().map(|c| {
        let known = c.access <= READ && c.reserved == 0;
        let path = path(c.path).filter(|_| known);
        let path = path.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(Declared { path, write: c.access != READ })
    });
    declared.collect()
}

/// The name of an order.
fn name<'a>(order: *const c_char) -> io::Result<&'a str> {
    if order.is_null() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: as in `path`.
    let name = unsafe { CStr::from_ptr(order) };
    name.to_str().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// See `systx.h`.
///
/// # Safety
/// `begin` points to a `struct systx_begin`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn systx_begin_with(dir: *const c_char, begin: *const CBegin) -> c_int {
    done(|| {
        if begin.is_null() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        // SAFETY: the caller says that it points to one; its last field need not be there.
        let (flags, paths, order, number) =
            unsafe { ((*begin).flags, (*begin).paths, (*begin).order, (*begin).number) };
        let order = if order.is_null() { None } else { Some((name(order)?, number)) };
        let scope = match paths {
            0 => Vec::new(),
            // SAFETY: with paths it is there, and so are they.
            _ => unsafe { scope((*begin).scope, paths)? },
        };
        thread::xbegin(path(dir), Begin { flags: Flags::from_bits(flags), order, scope })
    })
}

/// See `systx.h`.
///
/// # Safety
/// `paths` points to `number` of `struct systx_path`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xbegin_scoped(flags: u32, paths: *const CPath, number: u32) -> c_int {
    done(|| {
        // No path would be no scope.
        if number == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the caller says so.
        let scope = unsafe { scope(paths, number)? };
        thread::xbegin(None, Begin { flags: Flags::from_bits(flags), order: None, scope })
    })
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn xbegin_ordered(flags: u32, order: *const c_char, number: u64) -> c_int {
    done(|| {
        let order = Some((name(order)?, number));
        let scope = Vec::new();
        thread::xbegin(None, Begin { flags: Flags::from_bits(flags), order, scope })
    })
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn systx_reset_order(dir: *const c_char, order: *const c_char, next: u64) -> c_int {
    done(|| thread::reset_order(path(dir), name(order)?, next))
}

/// See `systx.h`.
///
/// # Safety
/// `next` points to a `uint64_t`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn systx_next_order(
    dir: *const c_char,
    order: *const c_char,
    next: *mut u64,
) -> c_int {
    done(|| {
        if next.is_null() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        let number = thread::next_order(path(dir), name(order)?)?;
        // SAFETY: the caller says so.
        unsafe { next.write(number) };
        Ok(())
    })
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn systx_patience(milliseconds: u32) -> c_int {
    done(|| {
        set_patience(std::time::Duration::from_millis(milliseconds.into()));
        Ok(())
    })
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn xend() -> c_int {
    done(thread::xend)
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn xabort() -> c_int {
    done(thread::xabort)
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn xpause() -> u64 {
    result(0, thread::xpause)
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn xresume(id: u64) -> c_int {
    done(|| thread::xresume(id))
}

/// See `systx.h`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn xid() -> u64 {
    thread::xid()
}

/// See `systx.h`.
///
/// # Safety
/// `out` points to a `struct systx_status`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xstatus(out: *mut CStatus) -> c_int {
    done(|| {
        let status = thread::xstatus()?;
        let mut c = CStatus {
            state: status.state as u32,
            retries: status.retries,
            id: status.id,
            opponent: status.opponent,
            path: [0; 1032],
            words: [0; 496],
        };
        copy(&mut c.path, &status.path);
        copy(&mut c.words, status.words.as_bytes());
        if out.is_null() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        // SAFETY: the caller says that it points to one.
        unsafe { out.write(c) };
        Ok(())
    })
}

/// As a string, cut where there is no room.
fn copy(to: &mut [c_char], from: &[u8]) {
    let room = to.len() - 1;
    for (to, from) in to.iter_mut().zip(from.iter().take(room)) {
        *to = *from as c_char;
    }
}
