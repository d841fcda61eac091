//! A learning Ethernet switch for more than two machines: a thread for each cable forwards frames to the port of their
//! destination address, or floods them. It loses nothing: it waits for a machine whose socket is full.

use std::collections::HashMap;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use launch::qemu::Nic;
use tempfile::TempDir;

const LONGEST_FRAME: usize = 9216 + 18;

/// The switch. Dropping it disconnects the machines.
pub struct Hub {
    directory: TempDir,
    ports: usize,
}

impl Hub {
    /// A switch with this many cables.
    pub fn new(ports: usize) -> Result<Hub> {
        let directory = tempfile::Builder::new().prefix("isthmus-hub-").tempdir()?;
        let hub = Hub { directory, ports };
        let sockets = (0..ports).map(|port| UnixDatagram::bind(hub.path("hub", port)));
        let sockets = Arc::new(sockets.collect::<std::io::Result<Vec<_>>>()?);
        let ends: Arc<Vec<PathBuf>> =
            Arc::new((0..ports).map(|port| hub.path("end", port)).collect());
        let known: Arc<Mutex<HashMap<[u8; 6], usize>>> = Arc::default();
        for port in 0..ports {
            let (sockets, ends, known) = (sockets.clone(), ends.clone(), known.clone());
            std::thread::spawn(move || {
                let mut frame = vec![0; LONGEST_FRAME];
                // A datagram shorter than an Ethernet header ends the thread.
                while let Ok(length @ 14..) = sockets[port].recv(&mut frame) {
                    let frame = &frame[..length];
                    let address = |at: usize| -> [u8; 6] { std::array::from_fn(|i| frame[at + i]) };
                    let to = {
                        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                        known.insert(address(6), port);
                        known.get(&address(0)).copied()
                    };
                    for (other, end) in ends.iter().enumerate() {
                        if other != port && to.is_none_or(|to| to == other) {
                            // Without a machine at that end the frame is lost.
                            _ = sockets[port].send_to(frame, end);
                        }
                    }
                }
            });
        }
        Ok(hub)
    }

    fn path(&self, name: &str, port: usize) -> PathBuf {
        self.directory.path().join(format!("{name}{port}"))
    }

    /// A machine's interface at the end of a cable.
    pub fn nic(&self, port: usize) -> Nic {
        Nic::Dgram { ours: self.path("end", port), peer: self.path("hub", port) }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let Ok(socket) = UnixDatagram::unbound().context("no socket") else { return };
        (0..self.ports).for_each(|port| _ = socket.send_to(&[], self.path("hub", port)));
    }
}
