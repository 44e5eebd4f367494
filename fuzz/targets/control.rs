//! Any bytes as a message of the control connection, in either direction.
#![no_main]

use systx_protocol as protocol;
use systx_protocol::call::{self, Reply, Request};

/// As a message of each of these calls: what belongs to it is read only when the call is known.
macro_rules! read {
    ($message:expr => $($call:path),* $(,)?) => {
        $(let _ = $message.read::<$call>();)*
    };
    ($message:expr) => {
        read!($message => protocol::Attach, protocol::Begin, protocol::BeginOpen, protocol::Finish,
            protocol::Gc, protocol::Mount, protocol::MountVolume, protocol::Protect,
            protocol::Settle, protocol::Snapshots, protocol::Umount, protocol::Undo, call::Content,
            call::Deferred, call::Diff, call::Doom, call::Enter, call::Guarded, call::Hello,
            call::Inspect, call::List, call::Log, call::Progress, call::Recover, call::Status,
            call::Top, call::Volumes, call::WaitFor)
    };
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        read!(request);
    }
    if let Ok(reply) = serde_json::from_slice::<Reply>(bytes) {
        read!(reply);
    }
});
