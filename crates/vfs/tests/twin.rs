//! The same random calls on a view and on a directory of the host: results and trees must agree.
//! The host is right by definition; whatever differs is a bug of the view.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(300), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_view_behaves_as_the_host_file_system(ops in proptest::collection::vec(op(), 1..40)) {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: chown needs root");
            return Ok(());
        }
        let (backing, host) = (scratch(), scratch());
        populate(backing.path()).expect("populate");
        populate(host.path()).expect("populate");
        let before = host_tree(backing.path());
        let host = Host(host.path().to_path_buf());
        let twin = Twin::over(backing.path());
        for (i, op) in ops.iter().enumerate() {
            let (want, got) = (host.run(op), twin.run(op));
            prop_assert_eq!(want, got, "call {}: {:?}", i, op);
        }
        prop_assert_eq!(difference(&host_tree(&host.0), &view_tree(&twin.0)), None);
        // Nothing of it reached the backing directory.
        prop_assert_eq!(difference(&before, &host_tree(backing.path())), None);
    }
}
