//! What the calls do to the content of one file.

use crate::state::{Body, PAGE, Page};
use crate::world::{Res, World};
use rustix::io::Errno;

/// Longest file, as on ext4 with 4096-byte blocks.
pub(super) const MAX_SIZE: u64 = 16 << 40;

pub(super) fn end_of(offset: u64, len: u64) -> Res<u64> {
    let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
    if end > i64::MAX as u64 { Err(Errno::INVAL) } else { Ok(end) }
}

/// The pages that `offset..end` touches, each with the part of it inside the page.
pub(super) fn pages(offset: u64, end: u64) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let page = PAGE as u64;
    (offset / page..end.div_ceil(page)).map(move |n| {
        let from = offset.saturating_sub(n * page).min(page) as usize;
        let to = (end - n * page).min(page) as usize;
        (n, from..to)
    })
}

/// Writes as much as there is room for.
pub(super) fn write(w: &mut World, ino: u64, data: &[u8], offset: u64) -> Res<()> {
    let end = end_of(offset, data.len() as u64)?;
    if data.is_empty() {
        return Ok(());
    }
    if end > MAX_SIZE {
        return Err(Errno::FBIG);
    }
    w.strip_capability(ino);
    let mut done = offset;
    let mut result = Ok(());
    for (n, part) in pages(offset, end) {
        let fresh = u64::from(!has_block(w, ino, n));
        if let Err(full) = w.room(fresh, 0) {
            result = Err(full);
            break;
        }
        let len = part.len();
        let mut bytes = w.page(ino, n).map_or([0; PAGE], |p| *p.bytes());
        let at = (done - offset) as usize;
        bytes[part].copy_from_slice(&data[at..at + len]);
        w.set_page(ino, n, Some(Page::new(bytes)));
        done += len as u64;
    }
    if done > offset {
        let time = w.time();
        w.set_meta(ino, |m| {
            m.size = m.size.max(done);
            m.mtime = time;
        });
    }
    result
}

pub(super) fn has_block(w: &World, ino: u64, n: u64) -> bool {
    match w.inode(ino).map(|i| &i.body) {
        Ok(Body::File { pages, reserved }) => pages.contains_key(&n) || reserved.contains(&n),
        _ => false,
    }
}

pub(super) fn read(w: &World, ino: u64, buf: &mut [u8], offset: u64) -> Res<usize> {
    let size = w.inode(ino)?.meta.size;
    let end = end_of(offset, buf.len() as u64)?.min(size);
    if offset >= end {
        return Ok(0);
    }
    for (n, part) in pages(offset, end) {
        let at = (n * PAGE as u64 + part.start as u64 - offset) as usize;
        let out = &mut buf[at..at + part.len()];
        match w.page(ino, n) {
            Some(page) => out.copy_from_slice(&page.bytes()[part]),
            None => out.fill(0),
        }
    }
    Ok((end - offset) as usize)
}

/// Zeros `offset..end` of the existing pages, and drops those that it covers whole.
pub(super) fn clear(w: &mut World, ino: u64, offset: u64, end: u64) {
    let existing: Vec<u64> = match w.inode(ino).map(|i| &i.body) {
        Ok(Body::File { pages, .. }) => {
            let last = end.div_ceil(PAGE as u64);
            pages
                .range(offset / PAGE as u64..last.max(offset / PAGE as u64))
                .map(|(n, _)| *n)
                .collect()
        }
        _ => return,
    };
    for n in existing {
        let start = n * PAGE as u64;
        let from = offset.saturating_sub(start).min(PAGE as u64) as usize;
        let to = (end - start).min(PAGE as u64) as usize;
        if from == 0 && to == PAGE {
            w.set_page(ino, n, None);
        } else if let Some(page) = w.page(ino, n) {
            let mut bytes = *page.bytes();
            bytes[from..to].fill(0);
            w.set_page(ino, n, Some(Page::new(bytes)));
        }
    }
}

pub(super) fn set_len(w: &mut World, ino: u64, len: u64) -> Res<()> {
    if len > i64::MAX as u64 {
        return Err(Errno::INVAL);
    }
    if len > MAX_SIZE {
        return Err(Errno::FBIG);
    }
    w.strip_capability(ino);
    let old = w.inode(ino)?.meta.size;
    if len <= old {
        clear(w, ino, len, old.next_multiple_of(PAGE as u64));
        // Also what was allocated beyond the end, where the length stays the same.
        w.unreserve(ino, len.div_ceil(PAGE as u64)..);
    }
    let time = w.time();
    w.set_meta(ino, |m| {
        m.size = len;
        m.mtime = time;
    });
    Ok(())
}

pub(super) fn next_data(w: &World, ino: u64, offset: u64) -> Res<Option<(u64, u64)>> {
    let inode = w.inode(ino)?;
    let Body::File { pages, .. } = &inode.body else { return Err(Errno::INVAL) };
    let (page, size) = (PAGE as u64, inode.meta.size);
    if offset >= size {
        return Ok(None);
    }
    let Some((first, _)) = pages.range(offset / page..size.div_ceil(page)).next() else {
        return Ok(None);
    };
    let end = (*first..).find(|n| !pages.contains_key(n)).map_or(size, |n| (n * page).min(size));
    Ok(Some((offset.max(first * page), end)))
}
