//! Ways in for the fuzz targets: the decoders of what recovery and undo read from disk.

use crate::history::{Commit, History};
use crate::super_block::{BYTES, Super};

/// A journal made up from these bytes is read as recovery reads it.
pub fn journal(bytes: &[u8]) {
    crate::journal::fuzzing::scan_made_up(bytes);
}

/// These bytes as a history file, as a bundle of histories and as a super block, each with a sum
/// that is right, and as the body of a journal record.
pub fn history(bytes: &[u8]) {
    if let Ok(history) = History::decode(&summed(bytes.to_vec())) {
        assert!(History::decode(&history.encode()).is_ok());
    }
    if let Ok(commit) = Commit::decode_record(bytes) {
        assert!(Commit::decode_record(&commit.encode_record()).is_ok());
    }
    crate::bundle::read_made_up(bytes);
    let mut block = bytes.to_vec();
    block.resize(BYTES - 4, 0);
    let _ = Super::decode(&summed(block));
}

/// These bytes as a decision about a joint commit, as the numbers of orders and as the mark, each
/// with a sum that is right.
pub fn side_files(bytes: &[u8]) {
    crate::decisions::read_made_up(&summed(bytes.to_vec()));
    crate::orders::read_made_up(&summed(bytes.to_vec()));
    let _ = crate::mark::Mark::decode(&summed(bytes.to_vec()));
}

fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}
