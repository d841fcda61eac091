//! A guest's serial port: waiting for text, sending text.
//!
//! A thread collects the guest's output. Output that a caller has taken is history: only its end is kept,
//! for error messages.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Bytes of history that are kept for error messages.
const HISTORY: usize = 16 * 1024;

/// The Unix socket of serial port `port` of a machine whose sockets are in `directory`.
pub(super) fn socket_path(directory: &Path, port: usize) -> PathBuf {
    directory.join(format!("serial{port}"))
}

/// One serial port of a running guest.
pub struct Serial {
    stream: UnixStream,
    received: Arc<Received>,
}

#[derive(Default)]
struct Received {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Received and not yet taken.
    unread: Vec<u8>,
    /// The end of the output that was taken.
    history: Vec<u8>,
    closed: bool,
}

impl Received {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the reader thread does not panic")
    }
}

impl State {
    fn take(&mut self, length: usize) -> Vec<u8> {
        let rest = self.unread.split_off(length);
        let taken = std::mem::replace(&mut self.unread, rest);
        self.history.extend_from_slice(&taken);
        let excess = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..excess);
        taken
    }
}

impl Serial {
    pub(super) fn new(stream: UnixStream) -> Result<Serial> {
        let received = Arc::new(Received::default());
        let mut reader = stream.try_clone().context("could not share the console's socket")?;
        let collected = Arc::clone(&received);
        std::thread::spawn(move || {
            let mut buffer = [0; 64 * 1024];
            loop {
                let length = reader.read(&mut buffer).unwrap_or(0);
                let mut state = collected.lock();
                state.unread.extend_from_slice(&buffer[..length]);
                state.closed = length == 0;
                collected.changed.notify_all();
                if state.closed {
                    return;
                }
            }
        });
        Ok(Serial { stream, received })
    }

    /// Sends bytes. Blocks while the guest does not read them. Fails when QEMU has ended or accepts
    /// nothing for ten seconds.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        self.stream.write_all(bytes).context("the console accepts no input")
    }

    /// A second handle for sending from another thread.
    pub fn sender(&self) -> Result<UnixStream> {
        self.stream.try_clone().context("could not share the console's socket")
    }

    /// Waits until the guest has printed `text`, and returns the output up to its end. `None` after
    /// `timeout`, or when QEMU has ended.
    pub fn wait_for(&mut self, text: &str, timeout: Duration) -> Option<String> {
        let deadline = Instant::now() + timeout;
        let mut state = self.received.lock();
        let mut from = 0;
        loop {
            if let Some(at) = find(&state.unread[from..], text.as_bytes()) {
                let taken = state.take(from + at + text.len());
                return Some(String::from_utf8_lossy(&taken).into_owned());
            }
            from = state.unread.len().saturating_sub(text.len().saturating_sub(1));
            let left = deadline.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() {
                return None;
            }
            state = self.received.changed.wait_timeout(state, left).expect("as in lock").0;
        }
    }

    /// Takes the output since the last wait; waits for at least a byte, up to `timeout`.
    /// `None` when QEMU has closed the port and all output was taken.
    pub fn take(&mut self, timeout: Duration) -> Option<Vec<u8>> {
        let state = self.received.lock();
        let idle = |state: &mut State| state.unread.is_empty() && !state.closed;
        let waited = self.received.changed.wait_timeout_while(state, timeout, idle);
        let mut state = waited.expect("as in lock").0;
        if state.unread.is_empty() && state.closed {
            return None;
        }
        let length = state.unread.len();
        Some(state.take(length))
    }

    /// Waits until the output that an ended QEMU left in the socket is received.
    pub(super) fn drain(&mut self) {
        let state = self.received.lock();
        let open = |state: &mut State| !state.closed;
        drop(self.received.changed.wait_timeout_while(state, Duration::from_secs(5), open));
    }

    /// The end of the guest's output, for error messages.
    pub fn tail(&self) -> String {
        let state = self.received.lock();
        let all = [&state.history[..], &state.unread[..]].concat();
        plain_text(&String::from_utf8_lossy(&all[all.len().saturating_sub(8000)..]))
    }
}

impl Drop for Serial {
    fn drop(&mut self) {
        // Ends the reader thread, whose handle keeps the socket open. Fails harmlessly when QEMU has ended.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// The text without terminal control sequences and carriage returns.
pub fn plain_text(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            // ECMA-48: CSI is ESC [, then parameters, then one final byte of 0x40..=0x7e.
            '\x1b' => {
                if characters.next() == Some('[') {
                    characters.find(|c| ('\x40'..='\x7e').contains(c));
                }
            }
            '\r' => {}
            _ => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_finds_text_across_reads_and_keeps_the_rest() {
        let (mut guest, ours) = UnixStream::pair().unwrap();
        let mut serial = Serial::new(ours).unwrap();
        let writer = std::thread::spawn(move || {
            for piece in ["boot\nisth", "mus re", "ady\nmore"] {
                guest.write_all(piece.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            guest
        });
        let long = Duration::from_secs(5);
        assert_eq!(serial.wait_for("isthmus ready", long).unwrap(), "boot\nisthmus ready");
        assert_eq!(serial.wait_for("never", Duration::from_millis(50)), None);
        drop(writer.join().unwrap());
        assert_eq!(serial.take(long).unwrap(), b"\nmore");
        assert_eq!(serial.take(long), None);
        assert_eq!(serial.tail(), "boot\nisthmus ready\nmore");
    }

    #[test]
    fn plain_text_has_no_control_sequences() {
        assert_eq!(plain_text("\r\x1b[2K\x1b[1;32misthmus> \x1b[0mhelp\r\n"), "isthmus> help\n");
    }
}
