//! Pipes, FIFOs, terminals and logs.

use crate::{errno, read};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use systx::Flags;

/// How many bytes there are for others, asked in a pause.
fn waiting(of: impl std::os::fd::AsFd) -> u64 {
    let id = systx::xpause().unwrap();
    let n = rustix::io::ioctl_fionread(of).unwrap();
    systx::xresume(id).unwrap();
    n
}

fn some(from: &mut impl Read, n: usize) -> String {
    let mut bytes = vec![0; n];
    from.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// What is written to outside waits for the commit.
pub fn written(dir: &Path) {
    fs::write(dir.join("a"), "a").unwrap();
    let (mut reader, mut writer) = io::pipe().unwrap();
    let fifo = dir.parent().unwrap().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut from_fifo = File::from(
        rustix::fs::open(&fifo, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .unwrap(),
    );
    for commit in [false, true] {
        let tx = systx::begin(dir, Flags::PIPES_HELD).unwrap();
        writer.write_all(b"one ").unwrap();
        let n = writer
            .write_vectored(&[io::IoSlice::new(b"two "), io::IoSlice::new(b"three")])
            .unwrap();
        assert_eq!(n, 9);
        // One that is opened inside leads outside, too.
        let mut to_fifo = File::options().write(true).open(&fifo).unwrap();
        to_fifo.write_all(b"fifo").unwrap();
        // More than a pipe has room for, with nobody who reads.
        writer.write_all(&vec![b'x'; 300_000]).unwrap();
        assert_eq!((waiting(&reader), waiting(&from_fifo)), (0, 0));
        // Programs that move pages do it otherwise then.
        let refused = rustix::pipe::splice(
            &from_fifo,
            None,
            &writer,
            None,
            1,
            rustix::pipe::SpliceFlags::NONBLOCK,
        );
        assert_eq!(refused, Err(rustix::io::Errno::INVAL));
        if commit {
            // The commit waits for who reads; for a thread from inside it would wait before.
            let all = std::thread::scope(|s| {
                let id = systx::xpause().unwrap();
                let reading = s.spawn(|| some(&mut reader, 300_013));
                systx::xresume(id).unwrap();
                tx.commit().unwrap();
                reading.join().unwrap()
            });
            assert!(all.starts_with("one two threex"), "{}", &all[..20]);
            assert_eq!(some(&mut from_fifo, 4), "fifo");
        } else {
            tx.abort().unwrap();
            assert_eq!(rustix::io::ioctl_fionread(&reader).unwrap(), 0);
            std::mem::forget(to_fifo);
        }
    }
    // A reader that is gone: told at once, or too late to be told.
    let tx = systx::begin(dir, Flags::PIPES_HELD).unwrap();
    writer.write_all(b"never read").unwrap();
    let id = systx::xpause().unwrap();
    drop(reader);
    systx::xresume(id).unwrap();
    assert_eq!(errno(writer.write_all(b"more")), Some(libc::EPIPE));
    fs::write(dir.join("a"), "committed").unwrap();
    tx.commit().unwrap();
    assert_eq!(read(dir.join("a")), "committed");
    // To children, through pipes from inside, it goes at once.
    let tx = systx::begin(dir, Flags::PIPES_HELD).unwrap();
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"to and fro").unwrap();
    let told = cat.wait_with_output().unwrap();
    assert_eq!(told.stdout, b"to and fro");
    tx.commit().unwrap();
}

/// What is read from outside is there again after an abort, for whoever reads then.
pub fn taken(dir: &Path) {
    let (mut reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"hello, world").unwrap();
    for (commit, left) in [(false, 12), (true, 5)] {
        let tx = systx::begin(dir, Flags::PIPES_HELD).unwrap();
        assert_eq!(some(&mut reader, 4), "hell");
        let (mut a, mut b) = ([0; 2], [0; 9]);
        let n = reader
            .read_vectored(&mut [io::IoSliceMut::new(&mut a), io::IoSliceMut::new(&mut b)])
            .unwrap();
        assert_eq!((n, &a), (2, b"o,"));
        assert_eq!(some(&mut reader, 1), " ");
        if commit {
            tx.commit().unwrap();
        } else {
            tx.abort().unwrap();
        }
        assert_eq!(rustix::io::ioctl_fionread(&reader).unwrap(), left);
    }
    assert_eq!(some(&mut reader, 5), "world");
    // Much of it, that comes while it is read; it is all back.
    const MUCH: usize = 300_000;
    let text: Vec<u8> = (0..MUCH).map(|n| (n % 251) as u8).collect();
    let mut bytes = vec![0; MUCH];
    let tx = systx::begin(dir, Flags::PIPES_HELD).unwrap();
    // Threads are not intercepted: this one is outside, but for paths.
    let sent = text.clone();
    let sending = std::thread::spawn(move || {
        sent.chunks(7919).for_each(|part| writer.write_all(part).unwrap());
    });
    reader.read_exact(&mut bytes).unwrap();
    assert!(bytes == text);
    sending.join().unwrap();
    // Nobody writes any more.
    assert_eq!(reader.read(&mut bytes).unwrap(), 0);
    tx.abort().unwrap();
    let mut again = Vec::new();
    reader.read_to_end(&mut again).unwrap();
    assert!(again == text);
    // Without waiting.
    let (mut reader, _writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK)
        .map(|(r, w)| (File::from(r), w))
        .unwrap();
    let tx = systx::begin(dir, Flags::PIPES_HELD).unwrap();
    assert_eq!(errno(reader.read(&mut bytes)), Some(libc::EAGAIN));
    tx.commit().unwrap();
}

/// Output to terminals, and to logs elsewhere, waits if that is wanted.
pub fn output(dir: &Path) {
    use rustix::pty::OpenptFlags;
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut terminal = File::from(rustix::fs::open(&name, flags, Mode::empty()).unwrap());
    let log = dir.parent().unwrap().join("log");
    let mut logging = File::options().append(true).create(true).open(&log).unwrap();
    for commit in [false, true] {
        let tx = systx::begin(dir, Flags::OUTPUT_HELD).unwrap();
        terminal.write_all(b"shown\n").unwrap();
        logging.write_all(b"logged\n").unwrap();
        assert_eq!((waiting(&master), read(&log).as_str()), (0, ""));
        if commit {
            tx.commit().unwrap();
            assert_eq!(read(&log), "logged\n");
            let mut master = File::from(master.try_clone().unwrap());
            assert_eq!(some(&mut master, 7), "shown\r\n");
        } else {
            tx.abort().unwrap();
            assert_eq!(rustix::io::ioctl_fionread(&master).unwrap(), 0);
            assert_eq!(read(&log), "");
        }
    }
    // Without the flag it is not held.
    let tx = systx::begin(dir, Flags::DESCRIPTORS).unwrap();
    logging.write_all(b"at once\n").unwrap();
    assert_eq!(read(&log), "logged\nat once\n");
    tx.abort().unwrap();
}
