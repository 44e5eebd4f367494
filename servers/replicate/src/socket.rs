//! The certifier's socket: an offer becomes a request of the order, and its verdict is awaited.

use crate::replica::{Request, Waiting};
use crate::wrong;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use systx_protocol::certify::{READY, Verdict, receive, send};

/// How long a request may take to its block; then nobody knows.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest request that the engine takes, bytes.
const REQUEST_MAX: usize = 1 << 20;

/// Serves the socket, for ever.
///
/// # Errors
/// It cannot be made.
pub fn serve(listener: UnixListener, engine: String, waiting: Arc<Waiting>) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Each replica and each start of one has numbers of its own, all but surely.
    let seed = now.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_right(16);
    let numbers = Arc::new(AtomicU64::new(seed));
    for stream in listener.incoming() {
        let (engine, waiting, numbers) = (engine.clone(), Arc::clone(&waiting), numbers.clone());
        let stream = stream?;
        std::thread::spawn(move || {
            // Who only looks who listens, or has ended, is no error.
            let _ = answer(stream, &engine, &waiting, &numbers);
        });
    }
    Ok(())
}

fn answer(
    mut stream: UnixStream,
    engine: &str,
    waiting: &Waiting,
    numbers: &AtomicU64,
) -> io::Result<()> {
    let read_at = waiting.height();
    stream.write_all(&[READY])?;
    let offer = receive(&mut stream)?;
    let number = numbers.fetch_add(1, Ordering::Relaxed);
    let request = Request::encode(number, read_at, &offer);
    if request.len() > REQUEST_MAX * 9 / 10 {
        let words = "it is more than a block can have".into();
        return send(&mut stream, &Verdict::Refused { words }.encode());
    }
    let (to, verdict) = channel();
    waiting.add(number, to);
    let verdict = match order(engine, &request) {
        Ok(()) => verdict.recv_timeout(LIMIT).map_err(|_| wrong("no block has it")),
        Err(error) => Err(error),
    };
    waiting.remove(number);
    // Else nobody knows: the end of the connection says so.
    verdict.and_then(|verdict| send(&mut stream, &verdict.encode()))
}

/// Gives a request to the engine.
fn order(engine: &str, request: &[u8]) -> io::Result<()> {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"broadcast_tx_sync","params":{{"tx":"{}"}}}}"#,
        base64(request)
    );
    let mut stream = TcpStream::connect(engine)?;
    stream.set_read_timeout(Some(LIMIT))?;
    write!(
        stream,
        "POST / HTTP/1.1\r\nHost: {engine}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    match said.contains(r#""code":0"#) {
        true => Ok(()),
        false => Err(wrong(said)),
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= three.len() { letter.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_become_letters() {
        let all = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="].into_iter();
        for (n, text) in all.enumerate() {
            assert_eq!(super::base64(&b"foob"[..n]), text);
        }
    }
}
