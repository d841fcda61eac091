//! The physical function's driver as seen by a virtual function: the mailbox (82599, 7.10.2.9), and replies as Linux's
//! `ixgbe_sriov.c` sends them, for interfaces 1.0 to 1.4.

use super::fault::{Fault, Faults};

pub const REGISTER: u64 = 0x02fc;
pub const MEMORY: core::ops::Range<u64> = 0x0200..0x0240;

const REQUEST: u32 = 1;
const OURS: u32 = 1 << 2;
const MESSAGE: u32 = 1 << 4;
const ACKNOWLEDGED: u32 = 1 << 5;
const RESET_BEGUN: u32 = 1 << 6;
const RESET_DONE: u32 = 1 << 7;

const ACCEPTED: u32 = 1 << 31;
const REFUSED: u32 = 1 << 30;
const CLEAR_TO_SEND: u32 = 1 << 29;
/// Type of an unsolicited message from the physical function.
const CONTROL: u32 = 0x100;

// Messages.
const RESET: u32 = 0x01;
const SET_ADDRESS: u32 = 0x02;
const SET_MULTICAST: u32 = 0x03;
const SET_VLAN: u32 = 0x04;
const SET_LONGEST: u32 = 0x05;
const SET_MACVLAN: u32 = 0x06;
const NEGOTIATE: u32 = 0x08;
const GET_QUEUES: u32 = 0x09;
const GET_TABLE: u32 = 0x0a;
const GET_KEY: u32 = 0x0b;
const SET_MODE: u32 = 0x0c;
const GET_LINK_STATE: u32 = 0x10;

/// Numbers of interfaces 1.0, 1.1, 1.2, 1.3, 1.4. (1 is interface 2.0 of another family.)
const INTERFACES: [u32; 5] = [0, 2, 3, 4, 5];
const LONGEST: u32 = 9728;
/// Bytes of the longest ordinary frame, with header and FCS.
const PLAIN: u32 = 1518;
/// Receive mode: listed multicast groups (1). Others: all multicast (2), promiscuous (3).
const LISTED: u32 = 1;

/// The driver of the physical function.
pub struct PhysicalFunction {
    bits: u32,
    memory: [u32; 16],
    requested: bool,
    pub clear_to_send: bool,
    pub interface: u32,
    /// Bytes of the longest frame, with FCS; 0: receive is disabled.
    pub longest: u32,
    pub mode: u32,
    pub addresses: Vec<[u8; 6]>,
    /// Hashes of multicast groups.
    pub groups: Vec<u16>,
    mac: [u8; 6],
    pub messages: u64,
}

impl PhysicalFunction {
    /// Creates a driver that assigns the virtual function this address.
    pub fn new(mac: [u8; 6]) -> Self {
        PhysicalFunction {
            bits: 0,
            memory: [0; 16],
            requested: false,
            clear_to_send: false,
            interface: 0,
            longest: PLAIN,
            mode: 0,
            addresses: Vec::new(),
            groups: Vec::new(),
            mac,
            messages: 0,
        }
    }

    /// The virtual function has reset itself. `stuck`: the physical one reports that a reset has begun, and never its
    /// end.
    pub fn reset_function(&mut self, stuck: bool) {
        let bits = if stuck { RESET_BEGUN } else { 0 };
        let messages = self.messages;
        *self = PhysicalFunction { bits, messages, ..PhysicalFunction::new(self.mac) };
    }

    /// The physical function resets, and notifies the virtual function.
    pub fn restart(&mut self) {
        self.reset_function(false);
        self.memory[0] = CONTROL;
        self.bits = RESET_DONE | MESSAGE;
    }

    /// Sends an unsolicited message, as Linux's `ixgbe_ping_vf` does. `lost`: the physical function has lost the
    /// virtual function's state, and withdraws clear-to-send.
    pub fn ping(&mut self, lost: bool) {
        self.clear_to_send &= !lost;
        self.memory[0] = CONTROL | if self.clear_to_send { CLEAR_TO_SEND } else { 0 };
        self.bits |= MESSAGE;
    }

    pub fn read(&mut self, at: u64) -> Option<u32> {
        if at == REGISTER {
            let bits = self.bits;
            self.bits &= !(MESSAGE | ACKNOWLEDGED | RESET_DONE);
            return Some(bits);
        }
        MEMORY.contains(&at).then(|| self.memory[((at - MEMORY.start) / 4) as usize])
    }

    /// Handles a write. Returns false if the address is none of the mailbox registers, and an error if the write is
    /// invalid.
    pub fn write(&mut self, at: u64, value: u32) -> Result<bool, String> {
        let held = self.bits & OURS != 0;
        if at == REGISTER {
            if value & REQUEST != 0 && !held {
                return Err("a message is sent without VFMAILBOX.VFU".into());
            }
            self.bits = self.bits & !OURS | value & OURS;
            self.requested |= value & REQUEST != 0;
        } else if MEMORY.contains(&at) {
            if !held {
                return Err("VFMBMEM is written without VFMAILBOX.VFU".into());
            }
            self.memory[((at - MEMORY.start) / 4) as usize] = value;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Replies to the pending request. Returns whether it has sent a message.
    pub fn work(&mut self, faults: &Faults) -> bool {
        if !self.requested || faults.has(Fault::Deaf) {
            return false;
        }
        self.requested = false;
        self.messages += 1;
        let question = self.memory[0];
        let kind = question & 0xffff;
        let refused = faults.has(Fault::Refuses(kind));
        if kind == RESET {
            self.reset_by_message(refused, faults);
        } else {
            let good = self.clear_to_send && !refused && self.execute(question, faults);
            let leave = if self.clear_to_send { CLEAR_TO_SEND } else { 0 };
            self.memory[0] = question | if good { ACCEPTED } else { REFUSED } | leave;
        }
        self.bits |= MESSAGE | ACKNOWLEDGED;
        true
    }

    fn reset_by_message(&mut self, refused: bool, faults: &Faults) {
        let named = !faults.has(Fault::Unnamed);
        *self = PhysicalFunction {
            messages: self.messages,
            clear_to_send: true,
            ..PhysicalFunction::new(self.mac)
        };
        if named {
            self.addresses = vec![self.mac];
            let [a, b, c, d, e, f] = self.mac;
            self.memory[1] = u32::from_le_bytes([a, b, c, d]);
            self.memory[2] = u32::from_le_bytes([e, f, 0, 0]);
        }
        // Multicast filter type 0: the hash is of the address's upper bits.
        self.memory[3] = 0;
        self.memory[0] = RESET | if named && !refused { ACCEPTED } else { REFUSED };
    }

    /// Executes a request. Returns whether it is accepted.
    fn execute(&mut self, question: u32, faults: &Faults) -> bool {
        let memory = self.memory;
        let information = question >> 16 & 0xff;
        let address = || {
            let (low, high) = (memory[1].to_le_bytes(), memory[2].to_le_bytes());
            [low[0], low[1], low[2], low[3], high[0], high[1]]
        };
        match question & 0xffff {
            SET_ADDRESS => {
                let wanted = address();
                let station = wanted != [0; 6] && wanted[0] & 1 == 0;
                let free = faults.has(Fault::Unnamed) || wanted == self.mac;
                if station && free {
                    self.addresses = vec![wanted];
                }
                station && free
            }
            SET_MULTICAST => {
                let all = memory[1..].iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]);
                self.groups = all.take(information as usize).collect();
                information <= 30
            }
            SET_VLAN => memory[1] & 0xfff != 0 || information == 1,
            SET_LONGEST => self.set_longest(memory[1]),
            SET_MACVLAN => information == 0,
            NEGOTIATE => {
                let newest = faults.find(|fault| match fault {
                    Fault::OldInterface(newest) => Some(newest),
                    _ => None,
                });
                let known =
                    INTERFACES.contains(&memory[1]) && newest.is_none_or(|n| memory[1] <= n);
                if known {
                    self.interface = memory[1];
                }
                known
            }
            GET_QUEUES if self.interface >= 2 => {
                self.memory[1..5].copy_from_slice(&[2, 2, 0, 0]);
                true
            }
            // Linux's driver refuses RSS queries unless its administrator permits them.
            GET_TABLE | GET_KEY => false,
            SET_MODE if self.interface >= 3 => {
                let most = if faults.has(Fault::Distrusts) { LISTED } else { 2 };
                let known = memory[1] <= 3 && (memory[1] < 3 || self.interface >= 4);
                self.mode = memory[1].min(most);
                self.memory[1] = self.mode;
                known
            }
            GET_LINK_STATE if self.interface >= 3 => {
                self.memory[1] = 1;
                true
            }
            _ => false,
        }
    }

    /// Sets the longest frame. Jumbo frames need interface 1.1.
    fn set_longest(&mut self, longest: u32) -> bool {
        let good = (68..=LONGEST).contains(&longest) && (self.interface >= 2 || longest <= PLAIN);
        self.longest = if good { longest.max(PLAIN) } else { 0 };
        good
    }
}
