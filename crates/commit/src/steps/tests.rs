use crate::testing::{Ground, commit_of};
use crate::{Commit, Durable, Placed, Stopped};
use systx_base::TxnId;

fn placed(commit: Commit) -> Result<Placed, Stopped> {
    commit.reserve()?.decide()?.durable().and_then(Durable::place)
}

#[test]
fn a_number_that_was_committed_meanwhile_is_not_committed_again() {
    for ground in Ground::all(&["a", "b"]) {
        let (site, done) =
            (&ground.site, |commit| placed(commit).unwrap_or_else(|why| panic!("{why}")));
        let _ = done(commit_of(7, &[(site, "a")])).release();
        let again = placed(commit_of(7, &[(site, "b")]));
        assert!(matches!(again, Err(Stopped::Taken(TxnId(7)))));
        assert_eq!([ground.mode("a"), ground.mode("b")], [0o600, 0o644]);
        let _ = done(commit_of(8, &[(site, "b")])).release();
        assert_eq!(ground.mode("b"), 0o600);
    }
}
