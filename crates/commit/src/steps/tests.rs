use crate::testing::{commit_of, open};
use crate::{Commit, Durable, Placed, Stopped};
use std::os::unix::fs::PermissionsExt;
use systx_base::TxnId;

fn placed(commit: Commit) -> Result<Placed, Stopped> {
    commit.reserve()?.decide()?.durable().and_then(Durable::place)
}

#[test]
fn a_number_that_was_committed_meanwhile_is_not_committed_again() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let mode = |name| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
    let (site, before) = (open(dir.path()), mode("b"));
    let _ = placed(commit_of(7, &[(&site, "a")])).unwrap_or_else(|why| panic!("{why}")).release();
    let again = placed(commit_of(7, &[(&site, "b")]));
    assert!(matches!(again, Err(Stopped::Taken(TxnId(7)))));
    assert_eq!(mode("b"), before);
    let other = placed(commit_of(8, &[(&site, "b")])).unwrap_or_else(|why| panic!("{why}"));
    let _ = other.release();
    assert_ne!(mode("b"), before);
}
