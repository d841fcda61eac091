//! uhyve 0.10 as its guest sees it, written from its source (`src/linux/x86_64/kvm_cpu.rs`, `pci.rs`, `virtio`,
//! `hypercall`): hypercalls of interface version 1 and PCI configuration space by I/O ports, and a network device with
//! registers in memory. What uhyve only logs is a complaint here; where it panics, it has ended.
//!
//! What proves it is nothing but the source: uhyve takes KVM, its modules are private, and no other guest was seen on
//! this model.

mod function;
mod host;
mod net;
mod queue;
mod threads;

use crate::Machine;
use std::collections::VecDeque;

pub use function::{AsFunction, FILE_PORTS, SERIAL_PORTS};
pub use host::{Host, Mapped};
pub use net::Net;

/// MAC address of a TAP device.
pub const MAC: [u8; 6] = [0x5e, 0x11, 0x22, 0x33, 0x44, 0x55];
/// Where the registers of the network device are, whatever its BAR says, and how far they repeat.
pub const REGISTERS: u64 = 0xfe00_0000;
const REGISTERS_END: u64 = REGISTERS + (1 << 24);

const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
/// Bits of a configuration address that are looked at for the device: that it is 0, and the lower bits of the bus.
const DEVICE_BITS: u32 = 0x1f_f800;

/// How uhyve ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest wanted it, with this code.
    Exit(i32),
    /// By a panic: what the guest did.
    Panic(String),
}

/// What the model does wrong, or what uhyve does only now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What is offered to the device is never given back.
    NeverCompletes,
    /// The device writes nonsense into its used rings.
    Garbage,
    /// All registers read as ones.
    AllOnes,
    /// The driver offers something always when a thread has just seen that there is nothing, and before that asks to be
    /// notified.
    Unlucky,
}

impl Fault {
    /// All, by name.
    pub const NAMED: [(&'static str, Fault); 4] = [
        ("never_completes", Fault::NeverCompletes),
        ("garbage", Fault::Garbage),
        ("all_ones", Fault::AllOnes),
        ("unlucky", Fault::Unlucky),
    ];
}

/// What is not of the guest's memory and not a device.
#[derive(Debug, Default)]
pub struct World {
    /// What it would log as a warning or an error.
    pub complaints: Vec<String>,
    /// How it ended.
    pub end: Option<End>,
}

impl World {
    fn complain(&mut self, what: impl Into<String>) {
        self.complaints.push(what.into());
    }

    fn panic(&mut self, what: impl Into<String>) {
        self.end.get_or_insert(End::Panic(what.into()));
    }
}

/// uhyve, with one processor.
#[derive(Debug)]
pub struct Uhyve {
    /// Files and output.
    pub host: Host,
    /// The network device, if it was started with one.
    pub net: Option<Net>,
    /// What it says.
    pub world: World,
    /// What was last written to the configuration address.
    address: Option<u32>,
    /// The buffer that ports are read into: who does not answer leaves what the last access put there.
    port_buffer: [u8; 8],
    /// The same for memory.
    memory_buffer: [u8; 8],
    /// What it does wrong.
    pub fault: Option<Fault>,
}

impl Uhyve {
    /// One with a network device whose TAP has this MAC address and this MTU, or with none.
    pub fn new(net: Option<([u8; 6], u16)>) -> Self {
        Uhyve {
            host: Host::default(),
            net: net.map(|(mac, mtu)| Net::new(mac, mtu)),
            world: World::default(),
            address: None,
            port_buffer: [0; 8],
            memory_buffer: [0; 8],
            fault: None,
        }
    }

    /// The guest writes to a port. `memory` is its own.
    pub fn port_out(&mut self, port: u16, bytes: &[u8], memory: &mut dyn Machine) {
        if self.world.end.is_some() {
            return;
        }
        self.port_buffer[..bytes.len()].copy_from_slice(bytes);
        if host::is_version_2(port) {
            // It would take RDI for the address, whatever the image says of itself.
            self.world
                .panic(format!("a hypercall of version 2 ({port:#x}), which this model has not"));
        } else if host::is_hypercall(port) {
            let mut data = [0; 4];
            data[..bytes.len().min(4)].copy_from_slice(&bytes[..bytes.len().min(4)]);
            self.host.call(port, u32::from_le_bytes(data), memory, &mut self.world);
        } else if port == CONFIG_DATA {
            if let (Some(offset), Some(net)) = (self.config_offset(), &mut self.net) {
                net.write(offset, bytes, memory, &mut self.world);
            }
        } else if port == CONFIG_ADDRESS {
            if let Ok(address) = bytes.try_into() {
                self.address = Some(u32::from_le_bytes(address));
            }
        } else {
            self.world.complain(format!("Guest wrote to unknown I/O port {port:#x}"));
        }
    }

    /// The guest reads from a port.
    pub fn port_in(&mut self, port: u16, into: &mut [u8]) {
        let at = into.len();
        if port == CONFIG_DATA {
            match self.config_offset() {
                None => self.port_buffer[..at].fill(0xff),
                Some(offset) => {
                    if let Some(net) = &mut self.net {
                        net.read(offset, &mut self.port_buffer[..at], &mut self.world);
                        if self.fault == Some(Fault::AllOnes) {
                            self.port_buffer.fill(0xff);
                        }
                    }
                }
            }
        } else if port != CONFIG_ADDRESS {
            self.world.complain(format!("Guest read from unknown I/O port {port:#x}"));
        }
        into.copy_from_slice(&self.port_buffer[..at]);
    }

    /// Which register of the device is selected, if it is the device that is.
    fn config_offset(&self) -> Option<u8> {
        self.address.filter(|address| address & DEVICE_BITS == 0).map(|address| address as u8)
    }

    /// The guest reads where it has no memory.
    pub fn memory_in(&mut self, address: u64, into: &mut [u8]) {
        let at = into.len();
        match (address, &mut self.net) {
            (0x9_f000..0xa_0000 | 0xf_0000..0x10_0000, _) => {}
            (REGISTERS..REGISTERS_END, Some(net)) => {
                net.read(address as u8, &mut self.memory_buffer[..at], &mut self.world);
                if self.fault == Some(Fault::AllOnes) {
                    self.memory_buffer.fill(0xff);
                }
            }
            _ => self.world.panic(format!("undefined mmio read of {at} bytes to {address:#x}")),
        }
        into.copy_from_slice(&self.memory_buffer[..at]);
    }

    /// The guest writes where it has no memory.
    pub fn memory_out(&mut self, address: u64, bytes: &[u8], memory: &mut dyn Machine) {
        if self.world.end.is_some() {
            return;
        }
        self.memory_buffer[..bytes.len()].copy_from_slice(bytes);
        match (address, &mut self.net) {
            (REGISTERS..REGISTERS_END, Some(net)) => match net::queue_of_doorbell(address) {
                // KVM itself takes these, and tells a thread.
                Some(queue) => net.notified[queue] = true,
                None => net.write(address as u8, bytes, memory, &mut self.world),
            },
            _ => self.world.panic(format!("undefined mmio write to {address:#x}")),
        }
    }

    /// Its threads do what there is to do.
    pub fn run(&mut self, memory: &mut dyn Machine) {
        if let (Some(net), None) = (&mut self.net, &self.world.end) {
            threads::run(net, self.fault, memory, &mut self.world);
        }
    }
}

/// The host's end of the TAP device: frames, each behind a header of virtio's.
#[derive(Debug, Default)]
pub struct Tap {
    /// On their way to the guest.
    pub arriving: VecDeque<Vec<u8>>,
    /// From the guest.
    pub sent: Vec<Vec<u8>>,
}
