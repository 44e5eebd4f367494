//! The protocol's words for how a view is served, and those of the server of FUSE.

use crate::protocol::Transport;

/// What the server is to use.
pub(crate) fn of_server(transport: Transport) -> systx_fuse::Transport {
    match transport {
        Transport::Auto => systx_fuse::Transport::Auto,
        Transport::IoUring => systx_fuse::Transport::IoUring,
        Transport::Dev => systx_fuse::Transport::DevFuse,
    }
}

/// What a connection uses.
pub(crate) fn of(connection: &systx_fuse::Connection) -> Transport {
    match connection.transport() {
        systx_fuse::Transport::IoUring => Transport::IoUring,
        _ => Transport::Dev,
    }
}
