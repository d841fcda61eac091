//! The function of a model that is in another process, as a machine of this one has it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use models::{Bar, ConfigSpace, Function, Interrupts, Machine, Nanoseconds};
use rustix::fd::BorrowedFd;

use super::client::Client;

/// Bytes of configuration space that have to do with what is done here, and of those that drivers write.
const CONFIG: usize = 1024;
const WRITTEN: usize = 256;
/// How old what is known of configuration space may be.
const OLD: Duration = Duration::from_millis(2);

/// The function. What cannot be carried out, because the server is gone, is not: reads give ones.
pub struct Remote {
    client: Client,
    /// One of the same shape, for its configuration space: what was written there last, and when it was compared.
    twin: Box<dyn Function + Send>,
    written: [u8; WRITTEN],
    compared: Option<Instant>,
}

impl Remote {
    /// The function behind `socket`, of a machine with that memory at the bus address; `twin` is one of the same shape.
    pub fn connect(
        socket: &Path,
        twin: Box<dyn Function + Send>,
        memory: BorrowedFd<'_>,
        address: u64,
        size: u64,
    ) -> Result<Remote> {
        let mut client = Client::connect(socket)?;
        client.map(address, size, memory)?;
        let mut remote = Remote { client, twin, written: [0; WRITTEN], compared: None };
        remote.compare().map_err(|why| anyhow!("configuration space: {why}"))?;
        Ok(remote)
    }

    /// The connection, for whoever is no driver.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Has both configuration spaces say the same.
    fn compare(&mut self) -> Result<()> {
        let mut now = [0; WRITTEN];
        self.twin.config().read(0, &mut now);
        if self.compared.is_some() {
            for at in
                (0..WRITTEN).step_by(4).filter(|&at| now[at..at + 4] != self.written[at..at + 4])
            {
                self.client.write_config(at as u64, &now[at..at + 4])?;
            }
        }
        if now != self.written || self.compared.is_none_or(|then| then.elapsed() > OLD) {
            let mut there = [0; CONFIG];
            self.client.read_config(0, &mut there)?;
            self.twin.config().put(0, &there);
            self.written.copy_from_slice(&there[..WRITTEN]);
            self.compared = Some(Instant::now());
        }
        Ok(())
    }
}

impl Function for Remote {
    fn config(&mut self) -> &mut ConfigSpace {
        // Of a server that is gone the last state is shown.
        let _ = self.compare();
        self.twin.config()
    }

    fn bars(&self) -> &[Bar] {
        self.twin.bars()
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts::default()
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        if self.compare().and_then(|()| self.client.read(bar, offset, into)).is_err() {
            into.fill(0xff);
        }
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8], _: Nanoseconds, _: &mut dyn Machine) {
        let _ = self.compare().and_then(|()| self.client.write(bar, offset, bytes));
    }

    fn poll(&mut self, _: Nanoseconds, _: &mut dyn Machine) -> Option<Nanoseconds> {
        None
    }

    fn reset(&mut self) {
        let _ = self.client.reset();
    }

    fn counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}
