//! A device that was found and has a driver, and is not set up yet.

use crate::block::Opened;
use crate::console::ConsoleLine;
use crate::dma::Channel;
use crate::entropy::EntropySource;
use crate::ethernet::WantedMtu;
#[cfg(feature = "mlx5")]
use crate::ethernet::mlx5::Mlx5Port;
use crate::hal::{Clock, Location, Platform, Port};
use crate::ntb::{NtbDevice, Side};
use crate::pci::Function;
use crate::rapidio;
use crate::registry::{Class, Driver, Open, OpenError};
use crate::virtio::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// How a device is reached.
#[derive(Clone, Copy)]
pub enum Bus {
    /// As a PCI function.
    Pci(Function<'static>),
    /// As virtio's memory-mapped registers.
    VirtioMmio(Slot),
}

/// A device and its driver.
#[derive(Clone, Copy)]
pub struct Device {
    bus: Bus,
    driver: &'static Driver,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.driver.name, self.location())
    }
}

/// The device is of another class than the one that it was to be opened as: our mistake.
#[derive(Debug)]
struct WrongClass;

impl fmt::Display for WrongClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("device is of another class than what it was opened as: a bug")
    }
}

impl core::error::Error for WrongClass {}

/// The other machine can reach all memory of this one, and the operator does not say that it may.
#[cfg(feature = "bridges")]
#[derive(Debug)]
struct PeerReachesAll;

#[cfg(feature = "bridges")]
impl fmt::Display for PeerReachesAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "closed: by its own registers of this bridge the other machine can reach all memory of this one. If you \
             trust it with that, set `trust = \"peer\"` in this bridge's [[ntb]]",
        )
    }
}

#[cfg(feature = "bridges")]
impl core::error::Error for PeerReachesAll {}

/// A port that was set up.
pub enum OpenedPort {
    /// Its device does Ethernet.
    Plain(Box<dyn Port + Send>),
    /// Its device does RoCE as well, for a verbs provider.
    #[cfg(feature = "mlx5")]
    Verbs(Box<Mlx5Port>),
}

impl OpenedPort {
    /// The Ethernet port, if that is all that is wanted.
    pub fn plain(self) -> Box<dyn Port + Send> {
        match self {
            OpenedPort::Plain(port) => port,
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) => port,
        }
    }

    /// Whether its device does RoCE as well.
    pub fn is_verbs(&self) -> bool {
        !matches!(self, OpenedPort::Plain(_))
    }

    /// The port, to look at.
    pub fn port(&self) -> &dyn Port {
        match self {
            OpenedPort::Plain(port) => &**port,
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) => &**port,
        }
    }

    /// The port, before work begins.
    pub fn port_mut(&mut self) -> &mut dyn Port {
        match self {
            OpenedPort::Plain(port) => &mut **port,
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) => &mut **port,
        }
    }
}

impl Device {
    /// A device on a bus, which `driver` is for.
    pub(crate) fn new(bus: Bus, driver: &'static Driver) -> Self {
        Device { bus, driver }
    }

    /// How it is reached.
    pub fn bus(&self) -> Bus {
        self.bus
    }

    /// Where it is.
    pub fn location(&self) -> Location {
        match self.bus {
            Bus::Pci(function) => Location::pci(function.address()),
            Bus::VirtioMmio(slot) => Location::mmio(slot.address),
        }
    }

    /// Name of its driver.
    pub fn driver(&self) -> &'static str {
        self.driver.name
    }

    /// What it is for.
    pub fn class(&self) -> Class {
        self.driver.class()
    }

    /// Sets an Ethernet port up.
    pub fn open_port(
        self,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
        clock: &dyn Clock,
    ) -> Result<Box<dyn Port + Send>, OpenError> {
        self.open_any_port(platform, wanted_mtu, clock).map(OpenedPort::plain)
    }

    /// The same, for who has a use for what else its device can do.
    pub fn open_any_port(
        self,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
        clock: &dyn Clock,
    ) -> Result<OpenedPort, OpenError> {
        match self.driver.open {
            Open::Port(open) => open(self, platform, wanted_mtu, clock).map(OpenedPort::Plain),
            #[cfg(feature = "mlx5")]
            Open::VerbsPort(open) => {
                let port = open(self, platform, wanted_mtu, clock)?;
                Ok(OpenedPort::Verbs(Box::new(port)))
            }
            _ => Err(WrongClass.into()),
        }
    }

    /// Sets a disk up, or the controller of several.
    pub fn open_disks(
        self,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
    ) -> Result<Opened, OpenError> {
        match self.driver.open {
            Open::Disks(open) => open(self, platform, clock),
            _ => Err(WrongClass.into()),
        }
    }

    /// Sets a bridge up, as the side that is said. One over which the other machine can reach all memory stays closed
    /// unless `trusts_peer`.
    pub fn open_bridge(
        self,
        platform: &mut dyn Platform,
        side: Option<Side>,
        trusts_peer: bool,
    ) -> Result<Box<dyn NtbDevice>, OpenError> {
        match self.driver.open {
            Open::Bridge(open) => open(self, platform, side),
            #[cfg(feature = "bridges")]
            Open::OpenBridge(open) if trusts_peer => open(self, platform, side),
            #[cfg(feature = "bridges")]
            Open::OpenBridge(_) => {
                self.keep_from_memory();
                Err(PeerReachesAll.into())
            }
            _ => {
                let _ = trusts_peer;
                Err(WrongClass.into())
            }
        }
    }

    /// A device that is not used does not reach memory, whatever the firmware let it do: what the other machine sends
    /// through a bridge ends there.
    pub fn keep_from_memory(&self) {
        if let Bus::Pci(function) = self.bus() {
            function.disable();
        }
    }

    /// Sets a DMA engine up.
    pub fn open_dma(
        self,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
    ) -> Result<Vec<Box<dyn Channel>>, OpenError> {
        match self.driver.open {
            Open::Dma(open) => open(self, platform, clock),
            _ => Err(WrongClass.into()),
        }
    }

    /// Sets a source of entropy up.
    pub fn open_entropy(
        self,
        platform: &mut dyn Platform,
    ) -> Result<Box<dyn EntropySource>, OpenError> {
        match self.driver.open {
            Open::Entropy(open) => open(self, platform),
            _ => Err(WrongClass.into()),
        }
    }

    /// Sets a console up.
    pub fn open_console(
        self,
        platform: &mut dyn Platform,
    ) -> Result<Box<dyn ConsoleLine>, OpenError> {
        match self.driver.open {
            Open::Console(open) => open(self, platform),
            _ => Err(WrongClass.into()),
        }
    }

    /// Sets a RapidIO master port up.
    pub fn open_rapidio(self, platform: &mut dyn Platform) -> Result<rapidio::OpenPort, OpenError> {
        match self.driver.open {
            Open::RapidIo(open) => open(self, platform),
            _ => Err(WrongClass.into()),
        }
    }
}
