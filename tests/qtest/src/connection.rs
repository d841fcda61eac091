//! A line-based connection to QEMU: qtest or monitor.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::time::{Duration, Instant};

/// Time limit for QEMU's start and for its answers.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Connection {
    stream: BufReader<UnixStream>,
    /// Interrupt lines that were raised since [`Connection::take_raised`].
    raised: u64,
}

/// Accepts QEMU's connection.
pub fn accept(listener: &UnixListener, qemu: &mut Child) -> Result<Connection> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(Connection { stream: BufReader::new(stream), raised: 0 });
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(error) if qemu.try_wait()?.is_some() || Instant::now() > deadline => {
                return Err(Error::new(error.kind(), "QEMU did not start"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Whether a line reports an input of q35's I/O APIC that PCI devices have; others have timers.
fn is_of_pci(line: &str) -> bool {
    const FIRST: u32 = 16;
    let input = line.strip_prefix("IRQ raise ").and_then(|number| number.trim().parse().ok());
    input.is_some_and(|input: u32| input >= FIRST)
}

impl Connection {
    /// Reads the next line.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "QEMU has ended")),
            _ => Ok(line),
        }
    }

    /// Number of interrupt lines that were raised since the last call, as far as answers came after them.
    pub fn take_raised(&mut self) -> u64 {
        std::mem::take(&mut self.raised)
    }

    /// Sends a line and returns the answer. Skips reports of events, and counts raised interrupt lines.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.stream.get_mut(), "{line}")?;
        loop {
            let answer = self.line()?;
            self.raised += u64::from(is_of_pci(&answer));
            if answer.starts_with("OK") || answer.contains("\"return\"") {
                return Ok(answer);
            }
            if answer.starts_with("FAIL")
                || answer.starts_with("ERR")
                || answer.contains("\"error\"")
            {
                return Err(Error::other(format!("{line}: {answer}")));
            }
        }
    }

    /// Sends a line and returns the number in the answer.
    pub fn number(&mut self, line: &str) -> Result<u64> {
        let answer = self.ask(line)?;
        let digits = answer.trim().trim_start_matches("OK 0x");
        u64::from_str_radix(digits, 16).map_err(|_| Error::other(format!("{line}: {answer}")))
    }
}
