//! Device capabilities: checks of required ones, and values to set.

use super::error::Error;
use super::fields::{get, set};
use crate::ethernet::owners::ENTRIES;

/// Types of capabilities, as numbered by QUERY_HCA_CAP.
pub const GENERAL: u16 = 0;
pub const ATOMIC: u16 = 3;
pub const FLOW_TABLES: u16 = 7;
/// Bytes of the capabilities of a type.
pub const BYTES: usize = 0x1000;

/// A capability: its name as in Linux, its first bit, its width in bits, and the minimum that is needed.
type Needed = (&'static str, usize, usize, u32);

const GENERAL_NEEDED: [Needed; 12] = [
    ("num_ports", 0x1b8, 8, 1),
    ("eth_net_offloads", 0x21c, 1, 1),
    ("nic_flow_table", 0x1a6, 1, 1),
    ("log_max_eq_sz", 0xe0, 8, 13),
    ("log_max_cq_sz", 0xc8, 8, 10),
    ("log_max_mkey", 0xea, 6, 1),
    ("log_max_rq", 0x363, 5, 1),
    ("log_max_sq", 0x36b, 5, 1),
    ("log_max_tir", 0x373, 5, 1),
    ("log_max_tis", 0x37b, 5, 1),
    ("max_wqe_sz_sq", 0x290, 16, 192),
    ("log_bf_reg_size", 0x26b, 5, 6),
];

const FLOW_TABLES_NEEDED: [Needed; 2] =
    [("ft_support", 0x200, 1, 1), ("log_max_ft_num", 0x278, 8, 1)];

fn require(bytes: &[u8], needed: &[Needed]) -> Result<(), Error> {
    let missing = needed.iter().find(|(_, bit, width, least)| get(bytes, *bit, *width) < *least);
    missing.map_or(Ok(()), |(name, ..)| Err(Error::Lacks(name)))
}

/// Checks the general capabilities.
pub fn check_general(bytes: &[u8]) -> Result<(), Error> {
    match get(bytes, 0x1b6, 2) {
        1 => require(bytes, &GENERAL_NEEDED),
        _ => Err(Error::NotEthernet),
    }
}

/// Checks the capabilities of flow tables, which lead received frames to queues.
pub fn check_flow_tables(bytes: &[u8]) -> Result<(), Error> {
    require(bytes, &FLOW_TABLES_NEEDED)
}

/// Maximum number of pairs of queues, each with an event queue, among which a hash can choose.
pub fn most_pairs(general: &[u8]) -> usize {
    let log = |bit, width| 1usize << get(general, bit, width).min(16);
    let queues = log(0x363, 5).min(log(0x36b, 5));
    let events = match get(general, 0x470, 16) {
        0 => log(0xfc, 4),
        most => most as usize,
    };
    // log_max_rqt_size
    let spreads = log(0x393, 5) >= ENTRIES;
    if spreads { queues.min(events).max(1) } else { 1 }
}

/// Queue pairs that the function can have, as log2: those of a verbs provider, and twice as many while earlier ones are
/// being destroyed. The firmware asks for memory for as many as it can have (Linux sets the field as well).
const LOG_PAIRS: u32 = 13;

/// Whether the function manages the card's switch of physical functions (`eswitch_manager`).
pub fn manages_switch(general: &[u8]) -> bool {
    get(general, 0x1a7, 1) == 1
}

/// Whether local loopback of multicast (`disable_local_lb_mc`) and of unicast (`disable_local_lb_uc`) can be disabled.
pub fn local_loopback(general: &[u8]) -> [bool; 2] {
    [0x3e2, 0x3e1].map(|bit| get(general, bit, 1) == 1)
}

/// The general capabilities to set, derived from the current ones: commands without checksums, doorbell pages of 4 KiB,
/// not more queue pairs than are used.
pub fn wanted(current: &[u8]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.copy_from_slice(&current[..BYTES]);
    set(&mut bytes, 0x210, 2, 0); // cmdif_checksum
    set(&mut bytes, 0x490, 16, 0); // log_uar_page_sz
    let pairs = get(&bytes, 0x9b, 5).min(LOG_PAIRS);
    set(&mut bytes, 0x9b, 5, pairs); // log_max_qp
    bytes
}

/// Whether the general capabilities include atomic operations.
pub fn has_atomics(general: &[u8]) -> bool {
    get(general, 0x21e, 1) == 1
}

/// The atomic capabilities to set: the byte order of the CPU. None unless the card offers that, and compare-and-swap
/// and fetch-and-add of 8 bytes.
pub fn wanted_atomics(atomic: &[u8]) -> Option<[u8; BYTES]> {
    let offered = get(atomic, 0x46, 1) == 1 && get(atomic, 0x90, 16) & 3 == 3;
    let mut bytes = [0; BYTES];
    // All other fields are read-only.
    set(&mut bytes, 0x40, 2, 1); // atomic_req_8B_endianness_mode
    offered.then_some(bytes)
}
