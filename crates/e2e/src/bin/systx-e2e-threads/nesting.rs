//! Begins: inside of others of the same thread, and while the daemon ends.

use crate::{SERIALIZABLE, rewrite};
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use systx_e2e::cases::{errno, eventually, outside, read};

/// They are part of the outermost one.
pub fn case(dir: &Path) {
    let a = dir.join("a");
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    let id = systx::xid();
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    assert_eq!(systx::xid(), id, "flat");
    fs::write(&a, "inner").unwrap();
    systx::xend().unwrap();
    assert_eq!(outside(&a), None, "the inner end commits nothing");
    systx::xend().unwrap();
    assert_eq!(outside(&a).as_deref(), Some("inner"));
    assert_eq!(errno(systx::xend()), Some(libc::EINVAL));
    // An inner abort is that of the whole.
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
    fs::write(&a, "dropped").unwrap();
    systx::xabort().unwrap();
    assert_eq!((systx::xid(), read(&a)), (0, "inner".into()));
    assert_eq!(errno(systx::xabort()), Some(libc::EINVAL));
    // An inner one that fails drops the whole, also if the outer one goes on: that is still inside.
    let failed = systx::atomic(dir, SERIALIZABLE, |tx| {
        let inner = systx::atomic(dir, SERIALIZABLE, |_| -> io::Result<()> {
            fs::write(&a, "of the inner one")?;
            Err(io::Error::other("failed"))
        });
        assert!(inner.is_err() && tx.id() != 0);
        fs::write(&a, "of the outer one")?;
        assert_eq!(outside(&a).as_deref(), Some("inner"), "it is not outside");
        Ok(())
    });
    assert_eq!(errno(failed), Some(libc::ECANCELED));
    assert_eq!((systx::xid(), read(&a)), (0, "inner".into()));
    rewrite(&a, "next", SERIALIZABLE).unwrap();
    assert_eq!(read(&a), "next", "that was of the last one");
}

/// The daemon ends while it is asked for a begin.
pub fn unasked(dir: &Path) {
    for _ in 0..2 {
        println!("ready");
        io::stdout().flush().unwrap();
        io::stdin().read_exact(&mut [0]).unwrap();
        eventually("the directory is back", || {
            let told = errno(systx::xbegin(Some(dir), SERIALIZABLE));
            assert!(matches!(told, None | Some(libc::ENOTCONN)), "{told:?}");
            told.is_none()
        });
        systx::xend().unwrap();
    }
}
