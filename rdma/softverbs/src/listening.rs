//! The ports that a connection manager listens on.

use alloc::vec::Vec;
use verbs::VerbsError;

/// The ports, a small number.
#[derive(Debug, Default)]
pub struct Listening(Vec<u16>);

impl Listening {
    /// Adds a port; `Busy` if it is already there.
    pub fn add(&mut self, port: u16) -> Result<(), VerbsError> {
        if self.has(port) {
            return Err(VerbsError::Busy);
        }
        self.0.push(port);
        Ok(())
    }

    /// Removes a port, if it is there.
    pub fn remove(&mut self, port: u16) {
        self.0.retain(|&other| other != port);
    }

    /// Whether it is there.
    pub fn has(&self, port: u16) -> bool {
        self.0.contains(&port)
    }
}
