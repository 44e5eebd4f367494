//! Byte-exact images of every structure.  Each field has a value of its own with bits in its first
//! and last byte; the expected bytes were printed by a C program that filled the structures of the
//! kernel's own header by name, so a field of wrong size, or two that changed places, show.

use zerocopy::IntoBytes;

use crate::wire::{self, Opcode};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[track_caller]
fn assert_image(value: &(impl IntoBytes + zerocopy::Immutable), expected: &[&str]) {
    assert_eq!(hex(value.as_bytes()), expected.concat());
}

#[test]
fn in_header() {
    let value = wire::InHeader {
        len: 0x1000001,
        opcode: 0x1000002,
        unique: 0x100000000000003,
        nodeid: 0x100000000000004,
        uid: 0x1000005,
        gid: 0x1000006,
        pid: 0x1000007,
        total_extlen: 0x108,
        padding: 0x109,
    };
    assert_image(
        &value,
        &["01000001020000010300000000000001040000000000000105000001060000010700000108010901"],
    );
}

#[test]
fn out_header() {
    let value = wire::OutHeader { len: 0x1000001, error: 0x1000002, unique: 0x100000000000003 };
    assert_image(&value, &["01000001020000010300000000000001"]);
}

#[test]
fn entry_out() {
    let value = wire::EntryOut {
        nodeid: 0x100000000000001,
        generation: 0x100000000000002,
        entry_valid: 0x100000000000003,
        attr_valid: 0x100000000000004,
        entry_valid_nsec: 0x1000005,
        attr_valid_nsec: 0x1000006,
        attr: wire::AttrWire {
            ino: 0x100000000000007,
            size: 0x100000000000008,
            blocks: 0x100000000000009,
            atime: 0x10000000000000a,
            mtime: 0x10000000000000b,
            ctime: 0x10000000000000c,
            atimensec: 0x100000d,
            mtimensec: 0x100000e,
            ctimensec: 0x100000f,
            mode: 0x1000010,
            nlink: 0x1000011,
            uid: 0x1000012,
            gid: 0x1000013,
            rdev: 0x1000014,
            blksize: 0x1000015,
            flags: 0x1000016,
        },
    };
    assert_image(
        &value,
        &[
            "01000000000000010200000000000001030000000000000104000000000000010500000106000001",
            "0700000000000001080000000000000109000000000000010a000000000000010b00000000000001",
            "0c000000000000010d0000010e0000010f0000011000000111000001120000011300000114000001",
            "1500000116000001",
        ],
    );
}

#[test]
fn attr_out() {
    let value = wire::AttrOut {
        attr_valid: 0x100000000000001,
        attr_valid_nsec: 0x1000002,
        dummy: 0x1000003,
        attr: wire::AttrWire {
            ino: 0x100000000000004,
            size: 0x100000000000005,
            blocks: 0x100000000000006,
            atime: 0x100000000000007,
            mtime: 0x100000000000008,
            ctime: 0x100000000000009,
            atimensec: 0x100000a,
            mtimensec: 0x100000b,
            ctimensec: 0x100000c,
            mode: 0x100000d,
            nlink: 0x100000e,
            uid: 0x100000f,
            gid: 0x1000010,
            rdev: 0x1000011,
            blksize: 0x1000012,
            flags: 0x1000013,
        },
    };
    assert_image(
        &value,
        &[
            "01000000000000010200000103000001040000000000000105000000000000010600000000000001",
            "0700000000000001080000000000000109000000000000010a0000010b0000010c0000010d000001",
            "0e0000010f00000110000001110000011200000113000001",
        ],
    );
}

#[test]
fn forget_in() {
    let value = wire::ForgetIn { nlookup: 0x100000000000001 };
    assert_image(&value, &["0100000000000001"]);
}

#[test]
fn forget_one() {
    let value = wire::ForgetOne { nodeid: 0x100000000000001, nlookup: 0x100000000000002 };
    assert_image(&value, &["01000000000000010200000000000001"]);
}

#[test]
fn batch_forget_in() {
    let value = wire::BatchForgetIn { count: 0x1000001, dummy: 0x1000002 };
    assert_image(&value, &["0100000102000001"]);
}

#[test]
fn getattr_in() {
    let value =
        wire::GetattrIn { getattr_flags: 0x1000001, dummy: 0x1000002, fh: 0x100000000000003 };
    assert_image(&value, &["01000001020000010300000000000001"]);
}

#[test]
fn setattr_in() {
    let value = wire::SetattrIn {
        valid: 0x1000001,
        padding: 0x1000002,
        fh: 0x100000000000003,
        size: 0x100000000000004,
        lock_owner: 0x100000000000005,
        atime: 0x100000000000006,
        mtime: 0x100000000000007,
        ctime: 0x100000000000008,
        atimensec: 0x1000009,
        mtimensec: 0x100000a,
        ctimensec: 0x100000b,
        mode: 0x100000c,
        unused4: 0x100000d,
        uid: 0x100000e,
        gid: 0x100000f,
        unused5: 0x1000010,
    };
    assert_image(
        &value,
        &[
            "01000001020000010300000000000001040000000000000105000000000000010600000000000001",
            "07000000000000010800000000000001090000010a0000010b0000010c0000010d0000010e000001",
            "0f00000110000001",
        ],
    );
}

#[test]
fn mknod_in() {
    let value =
        wire::MknodIn { mode: 0x1000001, rdev: 0x1000002, umask: 0x1000003, padding: 0x1000004 };
    assert_image(&value, &["01000001020000010300000104000001"]);
}

#[test]
fn mkdir_in() {
    let value = wire::MkdirIn { mode: 0x1000001, umask: 0x1000002 };
    assert_image(&value, &["0100000102000001"]);
}

#[test]
fn rename_in() {
    let value = wire::RenameIn { newdir: 0x100000000000001 };
    assert_image(&value, &["0100000000000001"]);
}

#[test]
fn rename2_in() {
    let value = wire::Rename2In { newdir: 0x100000000000001, flags: 0x1000002, padding: 0x1000003 };
    assert_image(&value, &["01000000000000010200000103000001"]);
}

#[test]
fn link_in() {
    let value = wire::LinkIn { oldnodeid: 0x100000000000001 };
    assert_image(&value, &["0100000000000001"]);
}

#[test]
fn open_in() {
    let value = wire::OpenIn { flags: 0x1000001, open_flags: 0x1000002 };
    assert_image(&value, &["0100000102000001"]);
}

#[test]
fn open_out() {
    let value =
        wire::OpenOut { fh: 0x100000000000001, open_flags: 0x1000002, backing_id: 0x1000003 };
    assert_image(&value, &["01000000000000010200000103000001"]);
}

#[test]
fn create_in() {
    let value = wire::CreateIn {
        flags: 0x1000001,
        mode: 0x1000002,
        umask: 0x1000003,
        open_flags: 0x1000004,
    };
    assert_image(&value, &["01000001020000010300000104000001"]);
}

#[test]
fn release_in() {
    let value = wire::ReleaseIn {
        fh: 0x100000000000001,
        flags: 0x1000002,
        release_flags: 0x1000003,
        lock_owner: 0x100000000000004,
    };
    assert_image(&value, &["010000000000000102000001030000010400000000000001"]);
}

#[test]
fn flush_in() {
    let value = wire::FlushIn {
        fh: 0x100000000000001,
        unused: 0x1000002,
        padding: 0x1000003,
        lock_owner: 0x100000000000004,
    };
    assert_image(&value, &["010000000000000102000001030000010400000000000001"]);
}

#[test]
fn read_in() {
    let value = wire::ReadIn {
        fh: 0x100000000000001,
        offset: 0x100000000000002,
        size: 0x1000003,
        read_flags: 0x1000004,
        lock_owner: 0x100000000000005,
        flags: 0x1000006,
        padding: 0x1000007,
    };
    assert_image(
        &value,
        &["01000000000000010200000000000001030000010400000105000000000000010600000107000001"],
    );
}

#[test]
fn write_in() {
    let value = wire::WriteIn {
        fh: 0x100000000000001,
        offset: 0x100000000000002,
        size: 0x1000003,
        write_flags: 0x1000004,
        lock_owner: 0x100000000000005,
        flags: 0x1000006,
        padding: 0x1000007,
    };
    assert_image(
        &value,
        &["01000000000000010200000000000001030000010400000105000000000000010600000107000001"],
    );
}

#[test]
fn write_out() {
    let value = wire::WriteOut { size: 0x1000001, padding: 0x1000002 };
    assert_image(&value, &["0100000102000001"]);
}

#[test]
fn statfs_out() {
    let value = wire::StatfsOut {
        blocks: 0x100000000000001,
        bfree: 0x100000000000002,
        bavail: 0x100000000000003,
        files: 0x100000000000004,
        ffree: 0x100000000000005,
        bsize: 0x1000006,
        namelen: 0x1000007,
        frsize: 0x1000008,
        padding: 0x1000009,
        ..Default::default()
    };
    assert_image(
        &value,
        &[
            "01000000000000010200000000000001030000000000000104000000000000010500000000000001",
            "06000001070000010800000109000001000000000000000000000000000000000000000000000000",
        ],
    );
}

#[test]
fn setxattr_in() {
    let value = wire::SetxattrIn {
        size: 0x1000001,
        flags: 0x1000002,
        setxattr_flags: 0x1000003,
        padding: 0x1000004,
    };
    assert_image(&value, &["01000001020000010300000104000001"]);
}

#[test]
fn getxattr_in() {
    let value = wire::GetxattrIn { size: 0x1000001, padding: 0x1000002 };
    assert_image(&value, &["0100000102000001"]);
}

#[test]
fn getxattr_out() {
    let value = wire::GetxattrOut { size: 0x1000001, padding: 0x1000002 };
    assert_image(&value, &["0100000102000001"]);
}

#[test]
fn file_lock() {
    let value = wire::FileLock {
        start: 0x100000000000001,
        end: 0x100000000000002,
        kind: 0x1000003,
        pid: 0x1000004,
    };
    assert_image(&value, &["010000000000000102000000000000010300000104000001"]);
}

#[test]
fn lk_in() {
    let value = wire::LkIn {
        fh: 0x100000000000001,
        owner: 0x100000000000002,
        lk: wire::FileLock {
            start: 0x100000000000003,
            end: 0x100000000000004,
            kind: 0x1000005,
            pid: 0x1000006,
        },
        lk_flags: 0x1000007,
        padding: 0x1000008,
    };
    assert_image(
        &value,
        &[
            "01000000000000010200000000000001030000000000000104000000000000010500000106000001",
            "0700000108000001",
        ],
    );
}

#[test]
fn lk_out() {
    let value = wire::LkOut {
        lk: wire::FileLock {
            start: 0x100000000000001,
            end: 0x100000000000002,
            kind: 0x1000003,
            pid: 0x1000004,
        },
    };
    assert_image(&value, &["010000000000000102000000000000010300000104000001"]);
}

#[test]
fn init_in() {
    let value = wire::InitIn {
        major: 0x1000001,
        minor: 0x1000002,
        max_readahead: 0x1000003,
        flags: 0x1000004,
        flags2: 0x1000005,
        ..Default::default()
    };
    assert_image(
        &value,
        &[
            "01000001020000010300000104000001050000010000000000000000000000000000000000000000",
            "000000000000000000000000000000000000000000000000",
        ],
    );
}

#[test]
fn init_out() {
    let value = wire::InitOut {
        major: 0x1000001,
        minor: 0x1000002,
        max_readahead: 0x1000003,
        flags: 0x1000004,
        max_background: 0x105,
        congestion_threshold: 0x106,
        max_write: 0x1000007,
        time_gran: 0x1000008,
        max_pages: 0x109,
        map_alignment: 0x10a,
        flags2: 0x100000b,
        max_stack_depth: 0x100000c,
        request_timeout: 0x10d,
        ..Default::default()
    };
    assert_image(
        &value,
        &[
            "0100000102000001030000010400000105010601070000010800000109010a010b0000010c000001",
            "0d0100000000000000000000000000000000000000000000",
        ],
    );
}

#[test]
fn interrupt_in() {
    let value = wire::InterruptIn { unique: 0x100000000000001 };
    assert_image(&value, &["0100000000000001"]);
}

#[test]
fn ioctl_in() {
    let value = wire::IoctlIn {
        fh: 0x100000000000001,
        flags: 0x1000002,
        cmd: 0x1000003,
        arg: 0x100000000000004,
        in_size: 0x1000005,
        out_size: 0x1000006,
    };
    assert_image(&value, &["0100000000000001020000010300000104000000000000010500000106000001"]);
}

#[test]
fn ioctl_out() {
    let value = wire::IoctlOut {
        result: 0x1000001,
        flags: 0x1000002,
        in_iovs: 0x1000003,
        out_iovs: 0x1000004,
    };
    assert_image(&value, &["01000001020000010300000104000001"]);
}

#[test]
fn fallocate_in() {
    let value = wire::FallocateIn {
        fh: 0x100000000000001,
        offset: 0x100000000000002,
        length: 0x100000000000003,
        mode: 0x1000004,
        padding: 0x1000005,
    };
    assert_image(&value, &["0100000000000001020000000000000103000000000000010400000105000001"]);
}

#[test]
fn lseek_in() {
    let value = wire::LseekIn {
        fh: 0x100000000000001,
        offset: 0x100000000000002,
        whence: 0x1000003,
        padding: 0x1000004,
    };
    assert_image(&value, &["010000000000000102000000000000010300000104000001"]);
}

#[test]
fn lseek_out() {
    let value = wire::LseekOut { offset: 0x100000000000001 };
    assert_image(&value, &["0100000000000001"]);
}

#[test]
fn copy_in() {
    let value = wire::CopyIn {
        fh_in: 0x100000000000001,
        off_in: 0x100000000000002,
        nodeid_out: 0x100000000000003,
        fh_out: 0x100000000000004,
        off_out: 0x100000000000005,
        len: 0x100000000000006,
        flags: 0x100000000000007,
    };
    assert_image(
        &value,
        &[
            "01000000000000010200000000000001030000000000000104000000000000010500000000000001",
            "06000000000000010700000000000001",
        ],
    );
}

#[test]
fn copy_out() {
    let value = wire::CopyOut { bytes_copied: 0x100000000000001 };
    assert_image(&value, &["0100000000000001"]);
}

#[test]
fn dirent_out() {
    let value = wire::DirentOut {
        ino: 0x100000000000001,
        off: 0x100000000000002,
        namelen: 0x1000003,
        kind: 0x1000004,
    };
    assert_image(&value, &["010000000000000102000000000000010300000104000001"]);
}

#[test]
fn notify_inode() {
    let value = wire::NotifyInode {
        ino: 0x100000000000001,
        off: 0x100000000000002,
        len: 0x100000000000003,
    };
    assert_image(&value, &["010000000000000102000000000000010300000000000001"]);
}

#[test]
fn notify_entry() {
    let value =
        wire::NotifyEntry { parent: 0x100000000000001, namelen: 0x1000002, flags: 0x1000003 };
    assert_image(&value, &["01000000000000010200000103000001"]);
}

#[test]
fn notify_delete() {
    let value = wire::NotifyDelete {
        parent: 0x100000000000001,
        child: 0x100000000000002,
        namelen: 0x1000003,
        padding: 0x1000004,
    };
    assert_image(&value, &["010000000000000102000000000000010300000104000001"]);
}

#[test]
fn notify_store() {
    let value = wire::NotifyStore {
        nodeid: 0x100000000000001,
        offset: 0x100000000000002,
        size: 0x1000003,
        padding: 0x1000004,
    };
    assert_image(&value, &["010000000000000102000000000000010300000104000001"]);
}

#[test]
fn notify_retrieve() {
    let value = wire::NotifyRetrieve {
        notify_unique: 0x100000000000001,
        nodeid: 0x100000000000002,
        offset: 0x100000000000003,
        size: 0x1000004,
        padding: 0x1000005,
    };
    assert_image(&value, &["0100000000000001020000000000000103000000000000010400000105000001"]);
}

#[test]
fn notify_prune() {
    let value =
        wire::NotifyPrune { count: 0x1000001, padding: 0x1000002, spare: 0x100000000000003 };
    assert_image(&value, &["01000001020000010300000000000001"]);
}

#[test]
fn ring_entry() {
    let value = wire::RingEntry {
        flags: 0x100000000000001,
        commit_id: 0x100000000000002,
        payload_sz: 0x1000003,
        padding: 0x1000004,
        reserved: 0x100000000000005,
    };
    assert_image(&value, &["0100000000000001020000000000000103000001040000010500000000000001"]);
}

#[test]
fn ring_command() {
    let value = wire::RingCommand {
        flags: 0x100000000000001,
        commit_id: 0x100000000000002,
        qid: 0x103,
        ..Default::default()
    };
    assert_image(&value, &["010000000000000102000000000000010301000000000000"]);
}

#[test]
fn attr_wire() {
    let value = wire::AttrWire {
        ino: 0x100000000000001,
        size: 0x100000000000002,
        blocks: 0x100000000000003,
        atime: 0x100000000000004,
        mtime: 0x100000000000005,
        ctime: 0x100000000000006,
        atimensec: 0x1000007,
        mtimensec: 0x1000008,
        ctimensec: 0x1000009,
        mode: 0x100000a,
        nlink: 0x100000b,
        uid: 0x100000c,
        gid: 0x100000d,
        rdev: 0x100000e,
        blksize: 0x100000f,
        flags: 0x1000010,
    };
    assert_image(
        &value,
        &[
            "01000000000000010200000000000001030000000000000104000000000000010500000000000001",
            "06000000000000010700000108000001090000010a0000010b0000010c0000010d0000010e000001",
            "0f00000110000001",
        ],
    );
}

#[test]
fn opcodes_are_found_by_number_and_fit_the_ring_header() {
    for opcode in Opcode::ALL {
        assert_eq!(Opcode::from_wire(*opcode as u32), Some(*opcode));
        assert!(wire::fixed_len(*opcode) <= wire::RING_OP_LEN);
    }
    for unknown in [0, 7, 19, 54, 4096, u32::MAX] {
        assert_eq!(Opcode::from_wire(unknown), None);
    }
}

#[test]
fn the_ring_header_is_288_bytes() {
    assert_eq!(size_of::<wire::RingHeader>(), 288);
    assert_eq!(std::mem::offset_of!(wire::RingHeader, op_in), 128);
    assert_eq!(std::mem::offset_of!(wire::RingHeader, entry), 256);
}
