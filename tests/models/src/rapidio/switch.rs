//! A switch: registers as Linux's `idt_gen2` and `idt_gen3` expect them, and a route table for each port.

use super::lock;
use std::collections::BTreeMap;

/// Modelled switch families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// CPS-1848 (IDT's second generation): registers of ports 0x20 apart.
    #[default]
    Cps1848,
    /// RXS2448 (third generation): registers of ports 0x40 apart, route table in registers.
    Rxs2448,
}

impl Family {
    fn identity(self) -> u32 {
        match self {
            Family::Cps1848 => 0x0374_0038,
            Family::Rxs2448 => 0x80e6_0038,
        }
    }

    /// Number of ports.
    pub fn ports(self) -> usize {
        match self {
            Family::Cps1848 => 18,
            Family::Rxs2448 => 24,
        }
    }

    /// Bytes between the registers of two ports.
    fn stride(self) -> u32 {
        match self {
            Family::Cps1848 => 0x20,
            Family::Rxs2448 => 0x40,
        }
    }
}

const SERIAL: u32 = 0x100;
const ERROR_MANAGEMENT: u32 = 0x1000;
/// Third-generation route tables: of all ports, and of a single port.
const ALL_ROUTES: u32 = 0x31000;
const PORT_ROUTES: u32 = 0x51000;
const DEFAULT_ROUTE: u8 = 0xde;
const OK: u32 = 2;
const LOCKOUT: u32 = 2;
const PORT_WRITE_PENDING: u32 = 0x10;

/// A switch.
#[derive(Debug)]
pub struct Switch {
    family: Family,
    registers: BTreeMap<u32, u32>,
    routes: Vec<BTreeMap<u16, u8>>,
    links: Vec<bool>,
    /// Number of register accesses.
    pub accesses: u64,
}

impl Switch {
    /// Creates a switch in its power-on state.
    pub fn new(family: Family) -> Self {
        let ports = family.ports();
        let mut switch = Switch {
            family,
            registers: BTreeMap::new(),
            routes: Vec::new(),
            links: vec![false; ports],
            accesses: 0,
        };
        switch.reset();
        switch
    }

    /// Restores the power-on state.
    pub fn reset(&mut self) {
        let block = if self.family == Family::Cps1848 { 9 } else { 0x19 };
        let management = if self.family == Family::Cps1848 { 7 } else { 0x17 };
        self.registers = BTreeMap::from([
            (0x00, self.family.identity()),
            (0x04, 1),
            (0x08, 0x38),
            (0x0c, SERIAL),
            (0x10, 0x1800_0318),
            (0x18, 4),
            (0x34, 0xffff),
            (0x68, 0xffff),
            (0x78, 0xdf),
            (SERIAL, ERROR_MANAGEMENT << 16 | block),
            (ERROR_MANAGEMENT, management),
        ]);
        for port in 0..self.ports() as u32 {
            self.registers.insert(SERIAL + 0x5c + self.family.stride() * port, 0x4060_0001);
        }
        self.routes = vec![BTreeMap::new(); self.ports()];
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.family.ports()
    }

    fn get(&self, offset: u32) -> u32 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    /// The port of a register in an array of port registers at `start`.
    fn port_of(&self, offset: u32, start: u32, stride: u32) -> Option<usize> {
        let at = offset.checked_sub(start)?;
        let port = (at / stride) as usize;
        (at % stride == 0 && port < self.ports()).then_some(port)
    }

    fn status_of(&self, offset: u32) -> Option<usize> {
        self.port_of(offset, SERIAL + 0x58, self.family.stride())
    }

    /// Port (None: all) and id of a third-generation route register.
    fn route_register(&self, offset: u32) -> Option<(Option<usize>, u16)> {
        if self.family != Family::Rxs2448 {
            return None;
        }
        if (ALL_ROUTES..ALL_ROUTES + 0x400).contains(&offset) {
            return Some((None, ((offset - ALL_ROUTES) / 4) as u16));
        }
        let at = offset.checked_sub(PORT_ROUTES)?;
        let (port, id) = ((at / 0x2000) as usize, at % 0x2000 / 4);
        (port < self.ports() && id < 0x100).then_some((Some(port), id as u16))
    }

    /// Reads a register for a request that arrived at the port `ingress`.
    pub fn read(&mut self, offset: u32, ingress: usize) -> u32 {
        self.accesses += 1;
        if let Some(port) = self.status_of(offset) {
            return self.get(offset) & !3 | if self.links[port] { OK } else { 1 };
        }
        if let Some((table, id)) = self.route_register(offset) {
            return self.entry(table.unwrap_or(ingress), id).into();
        }
        match offset {
            0x14 => (self.ports() as u32) << 8 | ingress as u32,
            0x74 => {
                let table = (self.get(0x10070) as usize).saturating_sub(1).min(self.ports() - 1);
                self.entry(table, self.get(0x70) as u16).into()
            }
            _ => self.get(offset),
        }
    }

    /// Writes a register.
    pub fn write(&mut self, offset: u32, value: u32) {
        self.accesses += 1;
        if self.status_of(offset).is_some() {
            let kept = self.get(offset) & !(value & 0x0707_0714);
            self.registers.insert(offset, kept);
            return;
        }
        if let Some((table, id)) = self.route_register(offset) {
            // Larger values are multicast groups, and 0x300 drops packets.
            return self.set_entry(table, id, u8::try_from(value).unwrap_or(0xff));
        }
        match offset {
            0x00..=0x3f => {}
            0x68 => {
                let locked = lock(self.get(0x68), value);
                self.registers.insert(0x68, locked);
            }
            0x74 => {
                let (select, table) = (self.get(0x70), self.get(0x10070) as usize);
                let table = table.checked_sub(1);
                // With bit 31 one write sets four ids.
                let count = if select >> 31 == 1 { 4 } else { 1 };
                for n in 0..count {
                    let id = (select as u16).wrapping_add(n);
                    self.set_entry(table, id, (value >> (8 * n)) as u8);
                }
            }
            _ => _ = self.registers.insert(offset, value),
        }
    }

    fn entry(&self, table: usize, id: u16) -> u8 {
        let entry = self.routes.get(table).and_then(|table| table.get(&id));
        entry.copied().unwrap_or(DEFAULT_ROUTE)
    }

    fn set_entry(&mut self, table: Option<usize>, id: u16, port: u8) {
        let tables = self.routes.iter_mut().enumerate();
        for (_, one) in tables.filter(|(n, _)| table.is_none_or(|table| table == *n)) {
            one.insert(id, port);
        }
    }

    /// The egress port of a packet for `id` that arrived at the port `ingress`.
    pub fn route(&self, ingress: usize, id: u16) -> Option<usize> {
        let entry = match self.entry(ingress, id) {
            DEFAULT_ROUTE => self.get(0x78) as u8,
            entry => entry,
        };
        (usize::from(entry) < self.ports()).then_some(entry.into())
    }

    /// All valid routes from port 0, ordered by id.
    pub fn routes(&self) -> Vec<(u16, u8)> {
        let table = self.routes.first().into_iter().flatten();
        let used = table.filter(|(_, port)| usize::from(**port) < self.ports());
        used.map(|(id, port)| (*id, *port)).collect()
    }

    /// Whether a port is locked out.
    pub fn is_locked_out(&self, port: usize) -> bool {
        let control = SERIAL + 0x5c + self.family.stride() * port as u32;
        self.get(control) & LOCKOUT != 0
    }

    /// Reads a register without counting an access.
    pub fn peek(&self, offset: u32) -> u32 {
        self.get(offset)
    }

    /// Sets the link state of a port. If port-writes are enabled, returns the port-write that reports a change: target
    /// id, whether the id has 16 bits, and words.
    pub fn set_link(&mut self, port: usize, link: bool) -> Option<(u16, bool, [u32; 4])> {
        if core::mem::replace(&mut self.links[port], link) == link {
            return None;
        }
        let at = port as u32;
        let status = SERIAL + 0x58 + self.family.stride() * at;
        let pending = self.get(status) | PORT_WRITE_PENDING;
        self.registers.insert(status, pending);
        // Implementation-specific error.
        self.registers.insert(ERROR_MANAGEMENT + 0x40 + 0x40 * at, 1 << 31);
        let wanted = match self.family {
            Family::Cps1848 => self.get(0x00f4_0004 + 0x100 * at) & 0x0800_0000 != 0,
            Family::Rxs2448 => self.get(0x10118 + 0x100 * at) != 0,
        };
        let target = self.get(ERROR_MANAGEMENT + 0x28);
        let large = target & 0x8000 != 0;
        let to = (target >> 16) as u16 & if large { 0xffff } else { 0xff };
        let words = [self.get(0x6c), 1 << 31, at, self.get(ERROR_MANAGEMENT + 0x08)];
        wanted.then_some((to, large, words))
    }
}
