//! A machine whose registers store written values, with a log of writes to memory.

use crate::{Function, Io};
use std::collections::HashMap;
use std::vec::Vec;

#[derive(Default)]
pub(crate) struct Machine {
    config: HashMap<(u8, u8, u8), u32>,
    pub ports: HashMap<u16, u16>,
    pub memory: HashMap<u64, u32>,
    pub log: Vec<(u64, u32)>,
    /// Address of a register that cannot be changed.
    pub strapped: Option<u64>,
}

impl Machine {
    pub fn set(&mut self, function: Function, offset: u8, value: u32) {
        self.config.insert((function.device, function.function, offset), value);
    }

    pub fn get(&self, function: Function, offset: u8) -> u32 {
        // Registers of an absent function read as ones; unset registers of a function read as zeros.
        let exists = self.config.contains_key(&(function.device, function.function, 0));
        let found = self.config.get(&(function.device, function.function, offset)).copied();
        found.unwrap_or(if exists { 0 } else { u32::MAX })
    }
}

impl Io for Machine {
    fn config_read(&mut self, function: Function, offset: u8) -> u32 {
        self.get(function, offset)
    }

    fn config_write(&mut self, function: Function, offset: u8, value: u32) {
        self.set(function, offset, value);
    }

    fn config_write16(&mut self, function: Function, offset: u8, value: u16) {
        self.set(function, offset, value.into());
    }

    fn config_write8(&mut self, function: Function, offset: u8, value: u8) {
        self.set(function, offset, value.into());
    }

    fn port_read(&mut self, port: u16) -> u16 {
        self.ports.get(&port).copied().unwrap_or(0)
    }

    fn port_write(&mut self, port: u16, value: u16) {
        self.ports.insert(port, value);
    }

    fn memory_read(&mut self, address: u64) -> u32 {
        self.memory.get(&address).copied().unwrap_or(0)
    }

    fn memory_write(&mut self, address: u64, value: u32) {
        self.log.push((address, value));
        if self.strapped != Some(address) {
            self.memory.insert(address, value);
        }
    }

    fn memory_write16(&mut self, address: u64, value: u16) {
        self.log.push((address, value.into()));
    }
}
