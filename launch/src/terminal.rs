//! Connects the guest's console to this terminal in raw mode, with an escape key.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::qemu::Serial;

/// Ctrl-A: the next key is for the launcher. The same key as in QEMU's `-nographic`.
const ESCAPE: u8 = 1;

/// Raw mode of standard input; the mode before is restored when this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Raw> {
        let before = tcgetattr(std::io::stdin()).context("standard input is no terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone; then there is nothing to restore.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Connects standard input and output to `console` until the user leaves or QEMU closes it.
pub fn attach(console: &mut Serial) -> Result<()> {
    let raw = Raw::enter()?;
    let mut sender = console.sender()?;
    let (left, has_left) = std::sync::mpsc::channel();
    // This thread may stay in its read when QEMU ends first; it ends with the program.
    std::thread::spawn(move || {
        let mut keys = Keys::default();
        let mut buffer = [0; 4096];
        loop {
            let length = std::io::stdin().read(&mut buffer).unwrap_or(0);
            let typed = keys.feed(&buffer[..length]);
            if length == 0 || keys.leave || sender.write_all(&typed).is_err() {
                // Fails when QEMU ended first: the receiver is dropped.
                let _ = left.send(());
                return;
            }
        }
    });
    let mut screen = std::io::stdout();
    while has_left.try_recv().is_err() {
        let Some(printed) = console.take(Duration::from_millis(50)) else { break };
        screen.write_all(&printed)?;
        screen.flush()?;
    }
    drop(raw);
    println!();
    Ok(())
}

/// Finds the escape key in the typed bytes.
#[derive(Default)]
struct Keys {
    escaped: bool,
    leave: bool,
}

impl Keys {
    /// The bytes for the guest among those typed.
    fn feed(&mut self, typed: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(typed.len());
        for &byte in typed {
            if std::mem::take(&mut self.escaped) {
                match byte {
                    b'x' => self.leave = true,
                    ESCAPE => bytes.push(ESCAPE),
                    _ => {}
                }
            } else if byte == ESCAPE {
                self.escaped = true;
            } else {
                bytes.push(byte);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_key_leaves_or_is_sent_when_doubled() {
        let mut keys = Keys::default();
        assert_eq!(keys.feed(b"ab\x01"), b"ab");
        assert_eq!(keys.feed(b"\x01x"), b"\x01x");
        assert!(!keys.leave);
        assert_eq!(keys.feed(b"\x01x"), b"");
        assert!(keys.leave);
    }
}
