//! Orders of whoever started the server: lines on its standard input.

use std::collections::VecDeque;
use std::io::{Stdin, stdin};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Lines that were not taken, and what has come of the next one.
pub struct Orders {
    /// None when there will be no more.
    input: Option<Stdin>,
    begun: Vec<u8>,
    lines: VecDeque<String>,
}

impl Orders {
    pub fn new() -> Orders {
        Orders { input: Some(stdin()), begun: Vec::new(), lines: VecDeque::new() }
    }

    /// What is waited for.
    pub fn polled(&self) -> Option<PollFd<'_>> {
        self.input.as_ref().map(|input| PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN))
    }

    /// The next order that has come.
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
            Err(error) => Err(error).context("could not look for orders"),
        }
    }

    fn take_in(&mut self) -> Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        let mut bytes = [0; 512];
        let count = rustix::io::read(input.as_fd(), &mut bytes).context("could not read orders")?;
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
