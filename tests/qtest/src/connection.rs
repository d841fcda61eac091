//! A line-based connection to QEMU: qtest or monitor.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::time::{Duration, Instant};

/// Time limit for QEMU's start and for its answers.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Connection(BufReader<UnixStream>);

/// Accepts QEMU's connection.
pub fn accept(listener: &UnixListener, qemu: &mut Child) -> Result<Connection> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(Connection(BufReader::new(stream)));
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(error) if qemu.try_wait()?.is_some() || Instant::now() > deadline => {
                return Err(Error::new(error.kind(), "QEMU did not start"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

impl Connection {
    /// Reads the next line.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "QEMU has ended")),
            _ => Ok(line),
        }
    }

    /// Sends a line and returns the answer. Skips reports of events and interrupts.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.0.get_mut(), "{line}")?;
        loop {
            let answer = self.line()?;
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
