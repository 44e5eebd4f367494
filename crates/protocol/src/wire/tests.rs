use super::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Long enough that a piece comes and goes in it many times.
const PATIENCE: Duration = Duration::from_millis(400);
const NOW_AND_THEN: Duration = Duration::from_millis(5);

/// What happens meanwhile, again and again.
fn beside<T>(mut again: impl FnMut() + Send, what: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(SeqCst) {
                again();
                std::thread::sleep(NOW_AND_THEN);
            }
        });
        let done = what();
        ends.store(true, SeqCst);
        done
    })
}

#[track_caller]
fn took_too_long(error: &WireError) {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    assert!(matches!(error, WireError::Io(e) if [TimedOut, WouldBlock].contains(&e.kind())));
}

#[test]
fn who_reads_a_little_now_and_then_is_not_waited_for() {
    let (a, b) = UnixStream::pair().unwrap();
    let read = || drop((&b).read(&mut [0; 4096]));
    let sent = beside(read, || send_within(&a, &"x", &vec![7; MAX_BLOB], PATIENCE));
    took_too_long(&sent.unwrap_err());
}

#[test]
fn who_writes_a_little_now_and_then_is_not_waited_for() {
    for beginning in
        [vec![], vec![255, 255, 0, 0, 0, 0, 0], [9000u32.to_le_bytes(), [0; 4]].concat()]
    {
        let (a, b) = UnixStream::pair().unwrap();
        (&b).write_all(&beginning).unwrap();
        let mut more = [0xff, 0xff, 0, 0, 0, 0, 0, 0].into_iter().skip(beginning.len());
        let write = || drop((&b).write(&[more.next().unwrap_or(b' ')]));
        let got = beside(write, || receive_within::<String>(&a, 1 << 16, PATIENCE));
        took_too_long(&got.unwrap_err());
    }
}

#[test]
fn who_is_quick_enough_gets_all_of_it() {
    let (a, b) = UnixStream::pair().unwrap();
    let blob = vec![7; 3 << 20];
    let frame = std::thread::scope(|scope| {
        scope.spawn(|| send_within(&a, &"text", &blob, Duration::from_secs(60)).unwrap());
        receive::<String>(&b).unwrap()
    });
    assert_eq!((frame.message.as_str(), frame.blob), ("text", blob));
    send(&b, &"more", &[], &[]).unwrap();
    let frame = receive_within::<String>(&a, 1 << 16, Duration::from_secs(60)).unwrap();
    assert_eq!(frame.message, "more");
}
