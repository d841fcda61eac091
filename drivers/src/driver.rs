//! A driver, as the registry lists it, and a device that the inventory has found and paired with its driver. This file
//! knows the classes of devices but no driver; drivers use it.

use crate::block::Opened;
use crate::console::ConsoleLine;
use crate::dma::Channel;
use crate::entropy::EntropySource;
use crate::ethernet::{VerbsPort, WantedMtu};
use crate::hal::{Clock, Location, Platform, Port};
use crate::ntb::{NtbDevice, Side};
use crate::pci::Function;
use crate::rapidio;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// ID by which a driver matches its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    /// Virtio device type (virtio 1.2, chapter 5), on PCI or memory-mapped registers.
    Virtio(u32),
    /// PCI vendor and device ID.
    Pci(u16, u16),
    /// PCI base class, subclass and programming interface, as 0xCCSSPP.
    PciClass(u32),
}

/// Why a device cannot be used. Its text names the missing feature of the device, or the culprit.
pub type OpenError = Box<dyn core::error::Error>;

/// Function that opens a device, by the device's class. A device is set up once, before the loops run, on the core that
/// will own it.
#[derive(Clone, Copy)]
pub enum Open {
    /// An Ethernet port. May wait for the device.
    Port(
        fn(
            Device,
            &mut dyn Platform,
            WantedMtu<'_>,
            &dyn Clock,
        ) -> Result<Box<dyn Port + Send>, OpenError>,
    ),
    /// An Ethernet port whose device supports RoCE as well, for a verbs provider. May wait for the device.
    VerbsPort(
        fn(
            Device,
            &mut dyn Platform,
            WantedMtu<'_>,
            &dyn Clock,
        ) -> Result<Box<dyn VerbsPort>, OpenError>,
    ),
    /// One disk, or all units behind a controller. May wait for the device.
    Disks(fn(Device, &mut dyn Platform, &dyn Clock) -> Result<Opened, OpenError>),
    /// A non-transparent bridge. The configuration may have to name the side of this machine.
    Bridge(fn(Device, &mut dyn Platform, Option<Side>) -> Result<Box<dyn NtbDevice>, OpenError>),
    /// A non-transparent bridge through which the peer machine reaches all memory: its registers can change the
    /// translation of addresses.
    UntrustedBridge(
        fn(Device, &mut dyn Platform, Option<Side>) -> Result<Box<dyn NtbDevice>, OpenError>,
    ),
    /// The channels of a DMA engine. May wait for the device.
    Dma(fn(Device, &mut dyn Platform, &dyn Clock) -> Result<Vec<Box<dyn Channel>>, OpenError>),
    /// A source of entropy.
    Entropy(fn(Device, &mut dyn Platform) -> Result<Box<dyn EntropySource>, OpenError>),
    /// The operator's console.
    Console(fn(Device, &mut dyn Platform) -> Result<Box<dyn ConsoleLine>, OpenError>),
    /// A RapidIO master port.
    RapidIo(fn(Device, &mut dyn Platform) -> Result<rapidio::OpenPort, OpenError>),
}

/// Class of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Ethernet.
    Port,
    /// Disks.
    Disks,
    /// A non-transparent bridge.
    Bridge,
    /// A DMA engine.
    Dma,
    /// A source of entropy.
    Entropy,
    /// The operator's console.
    Console,
    /// A RapidIO master port.
    RapidIo,
}

/// One driver.
pub struct Driver {
    /// Name of the driver: Linux's name where Linux has such a driver.
    pub name: &'static str,
    /// IDs that the driver matches.
    pub ids: &'static [Id],
    /// Opens a device.
    pub open: Open,
}

impl Driver {
    /// Class of the driver's devices.
    pub fn class(&self) -> Class {
        match self.open {
            Open::Port(_) | Open::VerbsPort(_) => Class::Port,
            Open::Disks(_) => Class::Disks,
            Open::Bridge(_) | Open::UntrustedBridge(_) => Class::Bridge,
            Open::Dma(_) => Class::Dma,
            Open::Entropy(_) => Class::Entropy,
            Open::Console(_) => Class::Console,
            Open::RapidIo(_) => Class::RapidIo,
        }
    }
}

/// A range of registers where there may be a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Bus address of the registers.
    pub address: u64,
    /// Whether the interrupt line (edge triggered) wakes the core that will own the device.
    pub wakes: bool,
}

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

/// The caller opened the device as another class than its own: a bug of this program.
#[derive(Debug)]
struct WrongClass;

impl fmt::Display for WrongClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("device was opened as another class than its own: a bug")
    }
}

impl core::error::Error for WrongClass {}

/// The peer machine can reach all memory of this one, and the operator has not allowed that (`trust = "peer"`).
#[derive(Debug)]
struct PeerReachesAll;

impl fmt::Display for PeerReachesAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "closed: with its registers of this bridge the other machine can reach all memory of this machine. If you \
             trust the other machine, set `trust = \"peer\"` in this bridge's [[ntb]]",
        )
    }
}

impl core::error::Error for PeerReachesAll {}

/// An open port.
pub enum OpenedPort {
    /// The device supports Ethernet only.
    Plain(Box<dyn Port + Send>),
    /// The device supports RoCE as well, for a verbs provider.
    Verbs(Box<dyn VerbsPort>),
}

impl OpenedPort {
    /// The Ethernet port, without its RoCE part.
    pub fn plain(self) -> Box<dyn Port + Send> {
        match self {
            OpenedPort::Plain(port) => port,
            OpenedPort::Verbs(port) => port,
        }
    }

    /// Whether the device supports RoCE as well.
    pub fn is_verbs(&self) -> bool {
        !matches!(self, OpenedPort::Plain(_))
    }

    /// The port.
    pub fn port(&self) -> &dyn Port {
        match self {
            OpenedPort::Plain(port) => &**port,
            OpenedPort::Verbs(port) => &**port,
        }
    }

    /// The port, for changes before work begins.
    pub fn port_mut(&mut self) -> &mut dyn Port {
        match self {
            OpenedPort::Plain(port) => &mut **port,
            OpenedPort::Verbs(port) => &mut **port,
        }
    }
}

impl Device {
    /// A device on a bus, and the driver that matches it.
    pub(crate) fn new(bus: Bus, driver: &'static Driver) -> Self {
        Device { bus, driver }
    }

    /// How the device is reached.
    pub fn bus(&self) -> Bus {
        self.bus
    }

    /// Where the device is.
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

    /// Class of the device.
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

    /// Sets an Ethernet port up, and keeps its RoCE part if the device has one.
    pub fn open_any_port(
        self,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
        clock: &dyn Clock,
    ) -> Result<OpenedPort, OpenError> {
        match self.driver.open {
            Open::Port(open) => open(self, platform, wanted_mtu, clock).map(OpenedPort::Plain),
            Open::VerbsPort(open) => open(self, platform, wanted_mtu, clock).map(OpenedPort::Verbs),
            _ => Err(WrongClass.into()),
        }
    }

    /// Sets a disk up, or a controller with all its disks.
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

    /// Sets a bridge up as `side`. A bridge through which the peer machine can reach all memory stays closed unless
    /// `trusts_peer`.
    pub fn open_bridge(
        self,
        platform: &mut dyn Platform,
        side: Option<Side>,
        trusts_peer: bool,
    ) -> Result<Box<dyn NtbDevice>, OpenError> {
        match self.driver.open {
            Open::Bridge(open) => open(self, platform, side),
            Open::UntrustedBridge(open) if trusts_peer => open(self, platform, side),
            Open::UntrustedBridge(_) => {
                self.keep_from_memory();
                Err(PeerReachesAll.into())
            }
            _ => Err(WrongClass.into()),
        }
    }

    /// Revokes the device's access to memory that the firmware may have granted. For a bridge that is not used: writes
    /// of the peer machine end in it.
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
