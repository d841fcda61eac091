//! An end point: registers for maintenance requests, and received packets.

use super::board::Board;
use super::lock;
use super::packet::Packet;
use std::collections::{BTreeMap, VecDeque};

/// Maintenance requests beyond this offset are refused.
const SPACE: u32 = 0x20000;
const BASE_ID: u32 = 0x60;
const HOST_LOCK: u32 = 0x68;
/// LP-Serial block: general control, and port status.
const GENERAL_CONTROL: u32 = 0x13c;
const PORT_STATUS: u32 = 0x158;

/// An end point.
#[derive(Debug)]
pub struct Endpoint {
    registers: BTreeMap<u32, u32>,
    /// The end point is powered.
    pub powered: bool,
    /// Received packets that were not processed, unless the end point is a board.
    pub inbox: VecDeque<Packet>,
    /// The board, if the end point is one.
    pub board: Option<Board>,
    link: bool,
}

impl Endpoint {
    /// Creates an end point that is powered only if it is a board. Its capabilities are a Tsi721's: processor, memory,
    /// messages, doorbells.
    pub fn new(board: Option<Board>) -> Self {
        let powered = board.is_some();
        let mut endpoint = Endpoint {
            registers: BTreeMap::new(),
            powered,
            inbox: VecDeque::new(),
            board,
            link: false,
        };
        endpoint.reset();
        endpoint
    }

    /// Restores the power-on state.
    pub fn reset(&mut self) {
        self.inbox.clear();
        self.registers = BTreeMap::from([
            (0x00, 0x80ab_0038),
            (0x04, 1),
            (0x08, 0x0000_0038),
            (0x0c, 0x100),
            (0x10, 0x00f8_001f),
            (0x18, 0xdc04),
            (0x1c, 0xdc04),
            (0x4c, 1),
            (BASE_ID, 0x00ff_ffff),
            (HOST_LOCK, 0xffff),
            (0x100, 0x0000_0001),
            (GENERAL_CONTROL, 0),
            (0x15c, 0x4060_0001),
        ]);
        if let Some(board) = &mut self.board {
            board.reset();
        }
    }

    /// Reads a register. None is an error response.
    pub fn read(&self, offset: u32) -> Option<u32> {
        match offset {
            PORT_STATUS => Some(if self.link { 2 } else { 1 }),
            _ if offset < SPACE => Some(self.registers.get(&offset).copied().unwrap_or(0)),
            _ => None,
        }
    }

    /// Writes a register. False is an error response.
    pub fn write(&mut self, offset: u32, value: u32) -> bool {
        match offset {
            0x00..=0x3f | 0x100 | PORT_STATUS => {}
            HOST_LOCK => {
                let register = self.registers.entry(HOST_LOCK).or_insert(0xffff);
                *register = lock(*register, value);
            }
            _ if offset < SPACE => {
                self.registers.insert(offset, value);
            }
            _ => return false,
        }
        true
    }

    /// Sets a register that is read-only for requests.
    pub fn force(&mut self, offset: u32, value: u32) {
        self.registers.insert(offset, value);
    }

    /// Its id, with 16 bits if `large`, else 8.
    pub fn id(&self, large: bool) -> u16 {
        let register = self.read(BASE_ID).unwrap_or(0);
        if large { register as u16 } else { (register >> 16) as u16 & 0xff }
    }

    /// Sets the state of the link.
    pub fn set_link(&mut self, link: bool) {
        self.link = link;
    }

    /// Whether the link is up.
    pub fn link(&self) -> bool {
        self.link
    }
}
