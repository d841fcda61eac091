//! A host in this process: the project's RoCE and IP engines, on a network of their own with the appliance. The owner
//! implements the protocols above them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use drivers::hal::{Arena, Port};
use net::connector::{Connector, Limits as TcpLimits};
use net::{Addressing, Class, Interface, Resolution};
use rand::RngExt;
use rand::rngs::StdRng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use verbs::{CqId, MemoryVerbs, PdId, Provider};

use crate::port::DgramPort;

pub(crate) const MTU: usize = 1500;
/// Bytes of memory for messages.
const MEMORY: usize = 64 << 20;

/// The host, 10.0.N.2 on network N, where 10.0.N.1 is the appliance.
pub struct Host {
    pub(crate) address: Ipv4Addr,
    pub(crate) server: Ipv4Addr,
    port: DgramPort,
    pub(crate) interface: Interface,
    pub(crate) connector: Connector,
    pub(crate) roce: Roce,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) arena: Arena,
    pub(crate) rng: StdRng,
    started: Instant,
    tx: TxBuffer,
    tx_waits: bool,
    /// Received RoCE frames are dropped.
    pub(crate) deaf: bool,
}

impl Host {
    /// A host on network N. The appliance is at the other end of `port`.
    pub(crate) fn new(network: usize, port: DgramPort) -> Result<Host> {
        let address: Ipv4Addr = format!("10.0.{network}.2").parse()?;
        let mut rng: StdRng = rand::make_rng();
        let zero = drivers::hal::Instant::ZERO;
        let mut interface = Interface::new(port.mac(), MTU, rng.random(), zero);
        let cidr = format!("{address}/24").parse().map_err(|()| anyhow!("no address"))?;
        let addressing = Addressing { addresses: vec![cidr], ..Addressing::default() };
        interface.set_addressing(addressing, zero).map_err(|error| anyhow!("{error}"))?;
        let limits = TcpLimits { connections: 256, receive: 4096, transmit: 4096 };
        let (roce, pd, cq) = engine(port.mac(), address, &mut rng)?;
        Ok(Host {
            address,
            server: format!("10.0.{network}.1").parse()?,
            port,
            interface,
            connector: Connector::new(limits, rng.random()),
            roce,
            pd,
            cq,
            arena: Arena::on_heap(MEMORY),
            rng,
            started: Instant::now(),
            tx: TxBuffer::new(),
            tx_waits: false,
            deaf: false,
        })
    }

    pub(crate) fn mac(&self) -> [u8; 6] {
        self.port.mac()
    }

    pub(crate) fn now(&self) -> drivers::hal::Instant {
        drivers::hal::Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// The address of a service of the appliance.
    pub(crate) fn service(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.server.into(), port)
    }

    /// Replaces the RoCE engine by a new one, as after a restart.
    pub(crate) fn restart_engine(&mut self) -> Result<()> {
        (self.roce, self.pd, self.cq) = engine(self.mac(), self.address, &mut self.rng)?;
        Ok(())
    }

    /// Runs one round of the loop.
    pub(crate) fn round(&mut self) {
        let now = self.now();
        let mut worked = false;
        while let Some(frame) = self.port.receive() {
            worked = true;
            let bytes = self.port.bytes(&frame);
            match net::classify(bytes) {
                Class::Roce if self.deaf => (),
                Class::Roce => drop(self.roce.handle_frame(0, bytes, now)),
                _ => self.interface.handle_frame(bytes, now),
            }
            self.port.recycle(frame);
        }
        self.interface.poll(now);
        self.connector.poll(&mut self.interface, now);
        self.interface.transmit(&mut self.port, |_| ());
        if self.roce.poll_timeout().is_some_and(|at| at <= now) {
            self.roce.handle_timeout(now);
        }
        while self.tx_waits || self.roce.poll_transmit(0, now, &mut self.tx) {
            self.tx_waits = self.port.transmit(&self.tx.packet()).is_err();
            if self.tx_waits {
                break;
            }
            worked = true;
        }
        if !worked {
            self.port.wait(Duration::from_millis(1));
        }
    }
}

/// A new engine with a protection domain and a completion queue.
fn engine(mac: [u8; 6], address: Ipv4Addr, rng: &mut StdRng) -> Result<(Roce, PdId, CqId)> {
    let config = PortConfig { mac, addresses: vec![IpAddr::V4(address)], mtu: MTU };
    let mut roce = Roce::new(config, Limits::default(), rng);
    let pd = roce.alloc_pd().map_err(|error| anyhow!("{error:?}"))?;
    let cq = roce.create_cq(4096).map_err(|error| anyhow!("{error:?}"))?;
    Ok((roce, pd, cq))
}

/// A protocol implementation that runs on a [`Host`], and drives its loop.
pub trait HostLoop: Sized {
    /// How long a reply may take.
    const PATIENCE: Duration;

    /// The host.
    fn host(&mut self) -> &mut Host;

    /// Runs one round of the loop.
    fn round(&mut self) {
        self.host().round();
    }

    /// Runs the loop until `done` returns a result.
    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + Self::PATIENCE;
        loop {
            self.round();
            if let Some(result) = done(self) {
                return Ok(result);
            }
            ensure!(Instant::now() < deadline, "{what}: timed out after {:?}", Self::PATIENCE);
        }
    }

    /// Runs the loop for a while.
    fn idle(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.round();
        }
    }

    /// Resolves the appliance's MAC address.
    fn find_server(&mut self) -> Result<[u8; 6]> {
        self.until("looking for the appliance", |this| {
            let host = this.host();
            match host.interface.resolve(host.server.into(), host.now()) {
                Resolution::Known(mac) => Some(mac),
                _ => None,
            }
        })
    }
}
