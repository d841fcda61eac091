//! Commands from the parent process: lines on the server's standard input.

use std::collections::VecDeque;
use std::io::{Stdin, stdin};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Received lines, and the begun next line.
pub struct Orders {
    /// None after end of file.
    input: Option<Stdin>,
    begun: Vec<u8>,
    lines: VecDeque<String>,
}

impl Orders {
    pub fn new() -> Orders {
        Orders { input: Some(stdin()), begun: Vec::new(), lines: VecDeque::new() }
    }

    /// The file descriptor to poll, until end of file.
    pub fn polled(&self) -> Option<PollFd<'_>> {
        self.input.as_ref().map(|input| PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN))
    }

    /// The next received command, if any. Does not block.
    pub fn next(&mut self) -> Result<Option<String>> {
        while self.lines.is_empty() && self.is_readable()? {
            self.take_in()?;
        }
        Ok(self.lines.pop_front())
    }

    fn is_readable(&self) -> Result<bool> {
        let Some(polled) = self.polled() else { return Ok(false) };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut [polled], Some(&at_once)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("could not poll standard input for commands"),
        }
    }

    fn take_in(&mut self) -> Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        let mut bytes = [0; 512];
        let count = rustix::io::read(input.as_fd(), &mut bytes)
            .context("could not read commands from standard input")?;
        if count == 0 {
            self.input = None;
        }
        self.begun.extend_from_slice(&bytes[..count]);
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            self.lines.push_back(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        Ok(())
    }
}
