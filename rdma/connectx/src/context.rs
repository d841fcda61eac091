//! Contexts of queue pairs in commands (Linux: `qpc` in `mlx5_ifc.h`; the fields of each transition are in
//! `drivers/infiniband/hw/mlx5/qp.c`). Fields are given by their first bit.

use super::memory::Buffer;
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::ethernet::mlx5::fields::{put64, set};
use drivers::hal::Window;
use verbs::{AddressVector, ReadyToReceive, ReadyToSend};

/// Offset of the context in an input, which itself begins at byte 8.
const AT: usize = 0x18 - 8;
/// Bytes of an input without a list of pages.
const INPUT: usize = 0x110 - 8;
/// Offset of the primary path in the context, and of its parts.
const ADDRESS: usize = 0x18;
const GID: usize = ADDRESS + 0x10;
const MAC: usize = ADDRESS + 0x26;

/// Service of a queue pair, as in contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Reliable = 0,
    /// Unreliable datagrams.
    Datagram = 2,
    /// Management datagrams: queue pair 1.
    Management = 8,
    /// Changes of memory keys.
    Keys = 0xc,
}

/// Parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    pub service: Service,
    /// The card's number of the protection domain, and the doorbell page.
    pub domain: u32,
    pub page: u32,
    /// Completion queues of sends and of receives.
    pub completions: [u32; 2],
    /// The counter set.
    pub counters: u32,
    /// Its identifier in completions (`user_index`).
    pub user: u32,
    pub buffer: Buffer,
    pub record: Window,
    /// Log2 of the number of receives and of their bytes; None without a receive queue.
    pub receives: Option<(u32, u32)>,
    /// Log2 of the blocks of the send queue.
    pub send_log: u32,
}

/// The GID of an address.
pub fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Log2, rounded up; 0 for 0 and 1.
fn log_up(n: u8) -> u32 {
    u32::from(n).max(1).next_power_of_two().ilog2()
}

/// The input of a transition of a queue pair, with room for its context.
fn change(number: u32) -> Vec<u8> {
    let mut input = alloc::vec![0; INPUT];
    set(&mut input, 8, 24, number);
    input
}

/// The input that makes a queue pair.
pub fn create(make: &Make) -> Vec<u8> {
    let mut input = alloc::vec![0; INPUT];
    let context = &mut input[AT..];
    set(context, 8, 8, make.service as u32);
    set(context, 0x13, 2, 3);
    set(context, 0x28, 24, make.domain);
    match make.receives {
        Some((log, bytes)) => {
            set(context, 0x49, 4, log);
            set(context, 0x4d, 3, bytes - 4);
        }
        None => set(context, 0x565, 3, 3),
    }
    set(context, 0x51, 4, make.send_log);
    set(context, 0x60, 8, make.counters);
    set(context, 0x68, 24, make.page);
    set(context, 0x88, 24, make.user);
    set(context, 0xa3, 5, make.buffer.log_page);
    // Its work requests may change keys.
    set(context, 0x394, 1, u32::from(make.service == Service::Reliable));
    set(context, 0x3e8, 24, make.completions[0]);
    set(context, 0x4e8, 24, make.completions[1]);
    put64(context, 0xa0, make.record.bus_address());
    make.buffer.list(&mut input);
    input
}

/// Reset to Init.
pub fn init(number: u32, make: &Make, qkey: u32) -> Vec<u8> {
    let mut input = change(number);
    let context = &mut input[AT..];
    set(context, 8, 8, make.service as u32);
    set(context, 0x13, 2, 3);
    set(context, 0x28, 24, make.domain);
    set(context, 0x60, 8, make.counters);
    set(context, 0x88, 24, make.user);
    set(context, 0x1e8, 8, 1); // port
    set(context, 0x3e8, 24, make.completions[0]);
    set(context, 0x4e8, 24, make.completions[1]);
    put64(context, 0xa0, make.record.bus_address());
    if make.service == Service::Reliable {
        // Regions decide which access peers have.
        set(context, 0x490, 3, 7);
    }
    set(context, 0x540, 32, qkey);
    input
}

/// Init to ready-to-receive of a connected queue pair. `index` is that of its own GID, `log_message` the longest
/// message.
pub fn connect(number: u32, peer: &ReadyToReceive, index: u8, log_message: u32) -> Vec<u8> {
    let mut input = change(number);
    let context = &mut input[AT..];
    set(context, 0x40, 3, peer.path_mtu as u32);
    set(context, 0x43, 5, log_message);
    set(context, 0xa8, 24, peer.remote_qpn);
    set(context, 0x488, 3, log_up(peer.max_dest_rd_atomic));
    set(context, 0x48c, 4, 1); // atomic operations as InfiniBand has them
    set(context, 0x4a3, 5, peer.min_rnr_timer.into());
    set(context, 0x4a8, 24, peer.rq_psn & 0xff_ffff);
    let path = &peer.address;
    set(context, 0x108, 8, index.into());
    set(context, 0x118, 8, path.hop_limit.into());
    set(context, 0x124, 8, path.traffic_class.into());
    set(context, 0x1ca, 6, u32::from(path.traffic_class >> 2));
    set(context, 0x1d0, 16, path.source_port.into());
    set(context, 0x1e8, 8, 1);
    context[GID..GID + 16].copy_from_slice(&gid(path.remote));
    context[MAC..MAC + 6].copy_from_slice(&path.remote_mac);
    input
}

/// Init to ready-to-receive of a queue pair without a peer: for datagrams, management (of 256 bytes), or keys.
pub fn receive(number: u32, service: Service) -> Vec<u8> {
    let mut input = change(number);
    let context = &mut input[AT..];
    let (mtu, log_message) = match service {
        Service::Management => (1, 8),
        _ => (5, 12),
    };
    set(context, 0x40, 3, mtu);
    set(context, 0x43, 5, log_message);
    set(context, 0x1e8, 8, 1);
    input
}

/// Ready-to-receive to ready-to-send.
pub fn send(number: u32, to: &ReadyToSend) -> Vec<u8> {
    let mut input = change(number);
    let context = &mut input[AT..];
    set(context, 0x100, 5, to.ack_timeout.into());
    set(context, 0x380, 4, 8); // an acknowledgement is asked for every 2^8 packets at least
    set(context, 0x388, 3, u32::from(to.max_rd_atomic).max(1).ilog2());
    set(context, 0x38d, 3, to.retry_count.into());
    set(context, 0x390, 3, to.rnr_retry.into());
    set(context, 0x3c8, 24, to.sq_psn & 0xff_ffff);
    input
}

/// Whether frames can be sent on a path.
pub fn is_valid_path(path: &AddressVector) -> bool {
    let mac = path.remote_mac;
    path.local.is_ipv4() == path.remote.is_ipv4() && mac != [0; 6] && mac[0] & 1 == 0
}
