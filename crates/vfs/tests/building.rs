//! What the kernel may keep while a session puts a view together: what is read either way, and
//! nothing of what was only glimpsed. It asks again for that, and for the rest it need not.

mod common;

use common::*;
use std::fs;
use std::time::Duration;
use systx_base::{BUILT, NodeId};
use systx_txn::Isolation;
use systx_vfs::api::*;

/// The thread that builds.
const BUILDER: Caller = Caller { uid: 0, gid: 0, tid: 7 };

fn look_up(view: &dyn Requests, parent: NodeId, name: &[u8]) -> Option<NodeId> {
    match view.serve(BUILDER, Request::Lookup { parent, name }) {
        Ok(Answer::Found(found)) => found.map(|entry| entry.node),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_kernel_keeps_the_roots_attributes_and_nothing_that_was_glimpsed() {
    let dir = scratch();
    fs::create_dir(dir.path().join("way")).expect("mkdir");
    let view = open_view(&open_volume(dir.path()), 1, Isolation::Serializable);
    view.built_by(BUILDER.tid);
    let nothing = Some(Duration::ZERO);
    let way = look_up(&*view, NodeId::ROOT, b"way").expect("it is there");
    let name = view.valid(NodeId::ROOT, Some(b"way"));
    assert_eq!((name.name, name.attr), (nothing, nothing), "a name that nobody has asked for");
    assert_eq!(view.valid(way, None).attr, nothing, "what it means");
    assert_eq!(view.valid(NodeId::ROOT, None).attr, None, "each walk would ask for it");
    look_up(&*view, NodeId::ROOT, BUILT.as_bytes());
    assert_eq!(view.valid(way, None).attr, None);
    assert_eq!(view.valid(NodeId::ROOT, Some(b"way")).name, None);
}
