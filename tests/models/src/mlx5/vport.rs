//! The function's vport, its port of the card's switch: addresses, filters, counters; and the GID table.

use super::capabilities::LOG_SWITCH_TABLE;
use super::command::{
    BAD_INDEX, BAD_OPERATION, BAD_PARAMETER, BAD_RESOURCE, BAD_RESOURCE_STATE, Reply, done, refuse,
};
use super::fields::{be16, be32, get, put32, put64, set};
use super::objects::Kind;
use super::{Config, Mlx5};

/// Entries of the GID table.
pub const GIDS: u16 = 16;
/// Types of address lists: unicast, multicast, VLANs.
const LISTS: usize = 3;
const MOST_ADDRESSES: usize = 256;

/// Counters of frames through the port.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    pub frames: u64,
    pub bytes: u64,
}

/// The context of the port.
pub struct Context {
    /// The context as queried, without lists.
    bytes: Vec<u8>,
    lists: [Vec<[u8; 8]>; LISTS],
    /// Broadcast, unicast and multicast traffic; each received and sent.
    traffic: [[Traffic; 2]; 3],
    /// Frames dropped because their receive queue had no buffers.
    pub out_of_buffers: u32,
}

impl Context {
    /// The context after a reset.
    pub fn new(settings: &Config) -> Context {
        let [a, b, c, d, e, f] = settings.mac;
        let mut bytes = vec![0; 0x100];
        bytes[0xf6..0xfc].copy_from_slice(&settings.mac);
        set(&mut bytes, 5, 3, settings.min_inline.into());
        set(&mut bytes, 0x130, 16, 1522);
        let guid = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        [0x28, 0x30, 0x38].into_iter().for_each(|at| put64(&mut bytes, at, guid));
        let (lists, traffic) = Default::default();
        Context { bytes, lists, traffic, out_of_buffers: 0 }
    }

    /// Whether RoCE is enabled.
    pub fn has_roce(&self) -> bool {
        self.bytes[3] & 1 == 1
    }

    /// Whether a sent frame to this address is also received by the function itself, if its filter accepts it.
    pub fn loops_back(&self, address: &[u8]) -> bool {
        // disable_mc_local_lb, disable_uc_local_lb
        let disabled = if address[0] & 1 == 1 { 4 } else { 2 };
        self.bytes[3] & disabled == 0
    }

    fn mac(&self) -> &[u8] {
        &self.bytes[0xf6..0xfc]
    }

    /// Whether the port accepts frames to this address.
    pub fn accepts(&self, address: &[u8]) -> bool {
        let promiscuous = self.bytes[0xf0] >> 5;
        let listed = |list: usize| self.lists[list].iter().any(|entry| &entry[2..] == address);
        let (all, unicast, multicast) =
            (promiscuous & 1 == 1, promiscuous >> 2 & 1 == 1, promiscuous >> 1 & 1 == 1);
        match address {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => true,
            [first, ..] if first & 1 == 1 => all || multicast || listed(1),
            _ => all || unicast || listed(0) || address == self.mac(),
        }
    }

    /// Counts a received or sent frame.
    pub fn count(&mut self, frame: &[u8], sent: bool) {
        let kind = match frame {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => 0,
            [first, ..] if first & 1 == 1 => 2,
            _ => 1,
        };
        let traffic = &mut self.traffic[kind][usize::from(sent)];
        (traffic.frames, traffic.bytes) = (traffic.frames + 1, traffic.bytes + frame.len() as u64);
    }
}

impl Mlx5 {
    /// Whether a frame to this address comes through the switch of physical functions.
    pub(super) fn passes_switch(&self, address: &[u8]) -> bool {
        let is_group = address[0] & 1 == 1;
        let context = &self.state.vport;
        let promiscuous = context.bytes[0xf0] >> 5 & 5 != 0;
        let listed = || self.state.switch_table.values().any(|entry| entry[..] == *address);
        !self.manages_switch() || is_group || promiscuous || listed()
    }

    /// SET_L2_TABLE_ENTRY, DELETE_L2_TABLE_ENTRY.
    pub(super) fn switch_command(&mut self, opcode: u16, input: &[u8]) -> Reply {
        let index = be32(input, 0x14);
        if !self.manages_switch() {
            return refuse(BAD_OPERATION, "the function does not manage the switch");
        }
        if index >= 1 << LOG_SWITCH_TABLE {
            return refuse(BAD_INDEX, format!("entry {index} of the switch's table"));
        }
        if opcode == 0x82b {
            return match self.state.switch_table.remove(&index) {
                Some(_) => done(),
                None => refuse(BAD_RESOURCE_STATE, format!("entry {index} is empty")),
            };
        }
        let address: [u8; 6] = input[0x22..0x28].try_into().expect("six bytes");
        if address[0] & 1 == 1 || address == [0; 6] {
            return refuse(BAD_PARAMETER, format!("the address {address:02x?}"));
        }
        self.state.switch_table.insert(index, address);
        done()
    }

    pub(super) fn vport_command(&mut self, opcode: u16, input: &[u8], room: usize) -> Reply {
        // These commands have a port number, which must be 0.
        let other = matches!(opcode, 0x750..=0x755 | 0x76f | 0x770) && be32(input, 8) != 0;
        if other {
            return refuse(BAD_PARAMETER, format!("port {:#x}", be32(input, 8)));
        }
        let mut output = vec![0; 16];
        match opcode {
            0x750 => put32(&mut output, 12, 0x10 | u32::from(self.link)),
            0x751 => {}
            0x754 => return self.query_port(input),
            0x755 => return self.modify_port(input),
            0x760 => {
                let empty = [0; 32];
                let gid = self.state.gids.get(&be16(input, 8)).unwrap_or(&empty);
                output.extend_from_slice(gid);
            }
            0x761 => return self.set_gid(input),
            0x765 => {
                // The table of P_Keys has one entry.
                output.resize(room.min(0x210), 0);
                if output.len() >= 20 && be16(input, 14) == 0 {
                    put32(&mut output, 16, 0xffff);
                }
            }
            0x76f => output.resize(0x210, 0),
            0x770 => {
                output.resize(0x210, 0);
                for (kind, both) in self.state.vport.traffic.iter().enumerate() {
                    for (way, traffic) in both.iter().enumerate() {
                        let at = 0x70 + 0x20 * kind + 0x10 * way;
                        put64(&mut output, at, traffic.frames);
                        put64(&mut output, at + 8, traffic.bytes);
                    }
                }
            }
            _ => {
                let set = be32(input, 0x1c) & 0xff;
                if !self.exists(Kind::CounterSet, set) {
                    return refuse(BAD_RESOURCE, format!("counter set {set}"));
                }
                output.resize(0x100, 0);
                put32(&mut output, 0x30, self.state.vport.out_of_buffers);
                let counted = self.transport_counts().into_iter().zip(self.counted_at_reset);
                for ((count, before), at) in counted.zip([0x38, 0x40, 0x48, 0x50, 0x60]) {
                    put32(&mut output, at, (count - before) as u32);
                }
            }
        }
        Ok(output)
    }

    fn query_port(&mut self, input: &[u8]) -> Reply {
        let list = (be32(input, 12) >> 24 & 7) as usize;
        if list >= LISTS {
            return refuse(BAD_PARAMETER, format!("a list of type {list}"));
        }
        let mut output = vec![0; 16];
        output.extend_from_slice(&self.state.vport.bytes);
        let entries = &self.state.vport.lists[list];
        set(&mut output[16..], 0x785, 3, list as u64);
        set(&mut output[16..], 0x794, 12, entries.len() as u64);
        entries.iter().for_each(|entry| output.extend_from_slice(entry));
        Ok(output)
    }

    fn modify_port(&mut self, input: &[u8]) -> Reply {
        let (selected, context) = (be32(input, 12), &input[0x100..]);
        let has_roce = self.settings.roce;
        if selected >> 4 & 1 == 1 && !self.settings.trusted && get(context, 0x780, 3) != 0 {
            return refuse(BAD_PARAMETER, "");
        }
        let mtu = self.settings.mtu;
        let port = &mut self.state.vport;
        if selected >> 1 & 1 == 1 && context[3] & 1 == 1 && !has_roce {
            return refuse(BAD_PARAMETER, "the function has no RoCE");
        }
        // The MTU includes header, VLAN tag and FCS, as the port's MTU does.
        if selected >> 6 & 1 == 1 && get(context, 0x130, 16) > u64::from(mtu) + 22 {
            return refuse(BAD_PARAMETER, format!("an MTU of {}", get(context, 0x130, 16)));
        }
        if selected >> 2 & 1 == 1 {
            let (kind, count) = (get(context, 0x785, 3) as usize, get(context, 0x794, 12) as usize);
            let entries = &context[0x100..];
            if kind >= LISTS || count > MOST_ADDRESSES || entries.len() != 8 * count {
                return refuse(BAD_PARAMETER, format!("list {kind} of {count} entries"));
            }
            let entries = entries.chunks_exact(8).map(|entry| entry.try_into().expect("eight"));
            port.lists[kind] = entries.collect();
        }
        let mut take = |select: u32, bit: usize, width: usize| {
            if selected >> select & 1 == 1 {
                set(&mut port.bytes, bit, width, get(context, bit, width));
            }
        };
        take(1, 0x1f, 1);
        take(11, 0x1e, 1);
        take(10, 0x1d, 1);
        take(7, 5, 3);
        take(6, 0x130, 16);
        take(4, 0x780, 3);
        take(3, 0x7a0, 64);
        take(9, 0x1c0, 64);
        take(8, 0x180, 64);
        done()
    }

    fn set_gid(&mut self, input: &[u8]) -> Reply {
        let index = be16(input, 8);
        if index >= GIDS || !self.settings.roce {
            return refuse(BAD_INDEX, format!("GID {index}"));
        }
        let entry: [u8; 32] =
            input[0x10..0x30].try_into().expect("the command's format has this length");
        if entry == [0; 32] {
            self.state.gids.remove(&index);
            return done();
        }
        let (version, kind) = (entry[0x1b], entry[0x1a] & 15);
        let is_mapped = entry[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        if version != 2 || kind != u8::from(!is_mapped) {
            let why = format!("RoCE version {version}, layer 3 {kind} for {:02x?}", &entry[..16]);
            return refuse(BAD_PARAMETER, why);
        }
        self.state.gids.insert(index, entry);
        done()
    }
}
