//! Model of uhyve 0.10 as its guest sees it, written from uhyve's source (`src/linux/x86_64/kvm_cpu.rs`, `pci.rs`,
//! `virtio`, `hypercall`): hypercalls of interface version 1 and PCI configuration space by I/O ports, and a network
//! device with registers in memory. uhyve's log messages are complaints here, and its panics end the model.
//!
//! Only the source proves the model: uhyve needs KVM, its modules are private, and no other guest has run on this
//! model.

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
/// Address of the network device's registers, independent of its BAR. They repeat up to `REGISTERS_END`.
pub const REGISTERS: u64 = 0xfe00_0000;
const REGISTERS_END: u64 = REGISTERS + (1 << 24);

const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
/// Bits of a configuration address that must be 0 for the device: device number, and lower bits of the bus.
const DEVICE_BITS: u32 = 0x1f_f800;

/// How uhyve ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest has exited with this code.
    Exit(i32),
    /// uhyve has panicked: the guest's action.
    Panic(String),
}

/// Faults to inject, and rare behaviour of uhyve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device never returns buffers.
    NeverCompletes,
    /// The device writes invalid entries to its used rings.
    Garbage,
    /// All registers read as ones.
    AllOnes,
    /// Worst timing: a thread finds its queue empty, the driver adds a buffer, and only then the thread enables
    /// notifications.
    Unlucky,
}

impl Fault {
    /// All faults by name.
    pub const NAMED: [(&'static str, Fault); 4] = [
        ("never_completes", Fault::NeverCompletes),
        ("garbage", Fault::Garbage),
        ("all_ones", Fault::AllOnes),
        ("unlucky", Fault::Unlucky),
    ];
}

/// State outside guest memory and devices.
#[derive(Debug, Default)]
pub struct World {
    /// uhyve's warnings and errors.
    pub complaints: Vec<String>,
    /// How uhyve has ended.
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
    /// The network device, if uhyve was started with one.
    pub net: Option<Net>,
    /// Complaints and end.
    pub world: World,
    /// The last write to the configuration address port.
    address: Option<u32>,
    /// Buffer for port reads. An unanswered read returns the last access's bytes.
    port_buffer: [u8; 8],
    /// Buffer for reads outside memory, as `port_buffer`.
    memory_buffer: [u8; 8],
    /// Injected fault.
    pub fault: Option<Fault>,
}

impl Uhyve {
    /// Creates uhyve with a network device whose TAP has this MAC address and MTU, or without one.
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

    /// Handles the guest's write to a port.
    pub fn port_out(&mut self, port: u16, bytes: &[u8], memory: &mut dyn Machine) {
        if self.world.end.is_some() {
            return;
        }
        self.port_buffer[..bytes.len()].copy_from_slice(bytes);
        if host::is_version_2(port) {
            // uhyve would take the address from RDI, independent of the image's version.
            self.world
                .panic(format!("a hypercall of version 2 ({port:#x}), which is not modelled"));
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

    /// Handles the guest's read of a port.
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

    /// The selected configuration register, if the device is selected.
    fn config_offset(&self) -> Option<u8> {
        self.address.filter(|address| address & DEVICE_BITS == 0).map(|address| address as u8)
    }

    /// Handles the guest's read outside memory.
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

    /// Handles the guest's write outside memory.
    pub fn memory_out(&mut self, address: u64, bytes: &[u8], memory: &mut dyn Machine) {
        if self.world.end.is_some() {
            return;
        }
        self.memory_buffer[..bytes.len()].copy_from_slice(bytes);
        match (address, &mut self.net) {
            (REGISTERS..REGISTERS_END, Some(net)) => match net::queue_of_doorbell(address) {
                // KVM handles doorbell writes by ioeventfd, and notifies a thread.
                Some(queue) => net.notified[queue] = true,
                None => net.write(address as u8, bytes, memory, &mut self.world),
            },
            _ => self.world.panic(format!("undefined mmio write to {address:#x}")),
        }
    }

    /// Runs the threads until they have no work.
    pub fn run(&mut self, memory: &mut dyn Machine) {
        if let (Some(net), None) = (&mut self.net, &self.world.end) {
            threads::run(net, self.fault, memory, &mut self.world);
        }
    }
}

/// The host's end of the TAP device: frames, each after a virtio header.
#[derive(Debug, Default)]
pub struct Tap {
    /// Frames to the guest.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames from the guest.
    pub sent: Vec<Vec<u8>>,
}
