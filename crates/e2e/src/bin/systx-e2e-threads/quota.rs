//! At the limit of a quota.

use super::{SERIALIZABLE, rewrite, told_to_go_on};
use std::fs;
use std::path::Path;
use systx::Flags;
use systx_e2e::cases::{errno, read};

/// Ends that a quota has no room for, until there is some; who drives this sees to both.
pub fn case(dir: &Path) {
    let [a, b] = ["a", "b"].map(|name| dir.join(name));
    fs::write(&a, "old").unwrap();
    rewrite(&a, "before", SERIALIZABLE).unwrap();
    for flags in [SERIALIZABLE, Flags::RELAXED] {
        systx::xbegin(Some(dir), flags).unwrap();
        fs::write(&a, "after").unwrap();
        fs::write(&b, "made").unwrap();
        println!("ready");
        told_to_go_on();
        assert_eq!(errno(systx::xend()), Some(libc::EDQUOT));
        let status = systx::xstatus().unwrap();
        assert!(status.words.contains("quota"), "{status:?}");
        assert_eq!((systx::xid(), read(&a).as_str(), b.exists()), (0, "before", false));
        // What changes nothing needs nothing.
        systx::xbegin(Some(dir), flags).unwrap();
        assert_eq!(read(&a), "before");
        systx::xend().unwrap();
        println!("refused");
        told_to_go_on();
    }
    rewrite(&a, "after", SERIALIZABLE).unwrap();
    assert_eq!(read(&a), "after");
}
