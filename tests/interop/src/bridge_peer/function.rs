//! A PCI function whose model runs in another process, as a device of a machine in this process.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use models::{Bar, ConfigSpace, Function, Interrupts, Machine, Nanoseconds};
use rustix::fd::BorrowedFd;

use super::client::Client;

/// Bytes of configuration space that are copied from the server.
const CONFIG: usize = 1024;
/// Bytes at its start whose writes are forwarded to the server.
const WRITTEN: usize = 256;
/// Age at which the copy of configuration space is refreshed.
const MAX_AGE: Duration = Duration::from_millis(2);

/// The function. Once the server is gone, writes are dropped and reads return all ones.
pub struct Remote {
    client: Client,
    /// A local model of the same shape, whose configuration space mirrors the server's.
    twin: Box<dyn Function + Send>,
    /// Start of configuration space at the last synchronisation.
    written: [u8; WRITTEN],
    /// Time of the last synchronisation.
    synchronised: Option<Instant>,
}

impl Remote {
    /// Connects to the function behind `socket`. Its DMA reaches `memory` at the bus address; `twin` is a local model
    /// of the same shape.
    pub fn connect(
        socket: &Path,
        twin: Box<dyn Function + Send>,
        memory: BorrowedFd<'_>,
        address: u64,
        size: u64,
    ) -> Result<Remote> {
        let mut client = Client::connect(socket)?;
        client.map(address, size, memory)?;
        let mut remote = Remote { client, twin, written: [0; WRITTEN], synchronised: None };
        remote.synchronise().map_err(|why| anyhow!("configuration space: {why}"))?;
        Ok(remote)
    }

    /// The connection, for accesses that bypass the driver.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Forwards changes of the local configuration space to the server, and refreshes the local copy.
    fn synchronise(&mut self) -> Result<()> {
        let mut now = [0; WRITTEN];
        self.twin.config().read(0, &mut now);
        if self.synchronised.is_some() {
            for at in
                (0..WRITTEN).step_by(4).filter(|&at| now[at..at + 4] != self.written[at..at + 4])
            {
                self.client.write_config(at as u64, &now[at..at + 4])?;
            }
        }
        if now != self.written || self.synchronised.is_none_or(|then| then.elapsed() > MAX_AGE) {
            let mut there = [0; CONFIG];
            self.client.read_config(0, &mut there)?;
            self.twin.config().put(0, &there);
            self.written.copy_from_slice(&there[..WRITTEN]);
            self.synchronised = Some(Instant::now());
        }
        Ok(())
    }
}

impl Function for Remote {
    fn config(&mut self) -> &mut ConfigSpace {
        // Without a server the last state remains.
        let _ = self.synchronise();
        self.twin.config()
    }

    fn bars(&self) -> &[Bar] {
        self.twin.bars()
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts::default()
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        if self.synchronise().and_then(|()| self.client.read(bar, offset, into)).is_err() {
            into.fill(0xff);
        }
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8], _: Nanoseconds, _: &mut dyn Machine) {
        let _ = self.synchronise().and_then(|()| self.client.write(bar, offset, bytes));
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
