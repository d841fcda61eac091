//! Flow tables: select the destinations of received frames.

use super::Mlx5;
use super::command::{BAD_PARAMETER, BAD_RESOURCE, BAD_RESOURCE_STATE, Reply, done, made, refuse};
use super::fields::{be16, be32, get, put16, set};
use crate::offload::{IPV4, IPV6, Layers, TCP, UDP};
use std::collections::BTreeMap;

/// Types of tables: receive, and RoCE receive. Here RoCE packets bypass the tables.
const RECEIVE: u8 = 0;
const RECEIVE_ROCE: u8 = 7;
/// Bytes of the outer headers in match values.
const OUTER: usize = 0x40;
/// Offset of the destination list in an entry's context.
const DESTINATIONS: usize = 0x300;
const MOST_DESTINATIONS: usize = 256;
/// Kinds of destinations.
const TO_TABLE: u32 = 1;
const TO_TIR: u32 = 2;
/// Actions.
const ALLOW: u16 = 1;
const DROP: u16 = 2;
const FORWARD: u16 = 4;
const KNOWN: u16 = ALLOW | DROP | FORWARD;
/// Most tables that a frame passes through.
const DEEPEST: u32 = 256;

/// Entries with the same match mask.
pub struct Group {
    first: u32,
    last: u32,
    /// The match mask; None if it includes more than outer headers: its entries then match no frame.
    mask: Option<[u8; OUTER]>,
}

/// An entry: match value, action and destinations.
pub struct Entry {
    group: u32,
    tag: u32,
    action: u16,
    value: [u8; OUTER],
    /// Kinds and numbers of destinations.
    destinations: Vec<(u32, u32)>,
}

/// A flow table.
pub struct Table {
    kind: u8,
    level: u8,
    size: u32,
    /// The next table for frames that no entry matches.
    miss: Option<u32>,
    pub groups: BTreeMap<u32, Group>,
    pub entries: BTreeMap<u32, Entry>,
}

impl Table {
    /// Whether an entry has the TIR as destination.
    pub fn leads_to(&self, tir: u32) -> bool {
        self.entries.values().any(|entry| entry.destinations.contains(&(TO_TIR, tir)))
    }

    fn leads_to_table(&self, table: u32) -> bool {
        let entries = self.entries.values();
        let mut places = entries.flat_map(|entry| &entry.destinations);
        self.miss == Some(table) || places.any(|place| *place == (TO_TABLE, table))
    }
}

impl Mlx5 {
    pub(super) fn steering_command(&mut self, opcode: u16, input: &[u8]) -> Reply {
        let (kind, number) = (input[0x10], be32(input, 0x14) & 0xff_ffff);
        if kind != RECEIVE && kind != RECEIVE_ROCE || be32(input, 8) != 0 {
            return refuse(BAD_PARAMETER, format!("tables of type {kind}"));
        }
        if opcode == 0x930 {
            return self.create_table(kind, input);
        }
        if opcode == 0x92f && be16(input, 6) == 1 {
            self.state.roots.remove(&kind);
            return done();
        }
        if self.state.tables.get(&number).is_none_or(|table| table.kind != kind) {
            return refuse(BAD_RESOURCE, format!("flow table {number:#x}"));
        }
        match opcode {
            0x92f => {
                self.state.roots.insert(kind, number);
                done()
            }
            0x931 => {
                let used = self.state.tables.values().any(|table| table.leads_to_table(number));
                let table = self.state.tables.get(&number);
                if used || table.is_some_and(|table| !table.groups.is_empty()) {
                    let why = format!("flow table {number:#x} is in use");
                    return refuse(BAD_RESOURCE_STATE, why);
                }
                self.state.tables.remove(&number);
                // The last root table can be destroyed without a replacement.
                self.state.roots.retain(|_, root| *root != number);
                done()
            }
            0x933 => self.create_group(number, input),
            0x936 => self.set_entry(number, input),
            0x93c => {
                let miss = self.miss_of(input)?;
                if let Some(table) = self.state.tables.get_mut(&number)
                    && be16(input, 0xe) & 1 == 1
                {
                    table.miss = miss;
                }
                done()
            }
            _ => {
                let Some(table) = self.state.tables.get_mut(&number) else { return done() };
                match opcode {
                    0x934 => {
                        let group = be32(input, 0x18);
                        if table.entries.values().any(|entry| entry.group == group) {
                            let why = format!("flow group {group:#x} has entries");
                            return refuse(BAD_RESOURCE_STATE, why);
                        }
                        match table.groups.remove(&group) {
                            Some(_) => done(),
                            None => refuse(BAD_RESOURCE, format!("flow group {group:#x}")),
                        }
                    }
                    _ => match table.entries.remove(&be32(input, 0x20)) {
                        Some(_) => done(),
                        None => refuse(BAD_RESOURCE, format!("entry {:#x}", be32(input, 0x20))),
                    },
                }
            }
        }
    }

    /// Reads the miss table, for frames that match no entry, from a context.
    fn miss_of(&self, input: &[u8]) -> Result<Option<u32>, (u8, String)> {
        let context = &input[0x18..];
        let next = get(context, 0x28, 24) as u32;
        match get(context, 4, 4) {
            0 => Ok(None),
            1 if self.state.tables.contains_key(&next) => Ok(Some(next)),
            1 => Err((BAD_RESOURCE, format!("the next flow table, {next:#x}"))),
            action => Err((BAD_PARAMETER, format!("miss action {action}"))),
        }
    }

    fn create_table(&mut self, kind: u8, input: &[u8]) -> Reply {
        let (log, level) = (input[0x1b], input[0x19]);
        let miss = self.miss_of(input)?;
        if log > 16 {
            return refuse(BAD_PARAMETER, format!("2^{log} entries, level {level}"));
        }
        let number = self.state.number(0x930, 1);
        let (groups, entries) = (BTreeMap::new(), BTreeMap::new());
        let table = Table { kind, level, size: 1 << log, miss, groups, entries };
        self.state.tables.insert(number, table);
        made(number)
    }

    fn create_group(&mut self, number: u32, input: &[u8]) -> Reply {
        let (first, last) = (be32(input, 0x1c), be32(input, 0x24));
        let criteria = input[0x3f];
        let mut mask = [0; OUTER];
        mask.copy_from_slice(&input[0x40..0x40 + OUTER]);
        let beyond = input[0x40 + OUTER..0x240].iter().any(|byte| *byte != 0);
        if mask != [0; OUTER] && criteria & 1 == 0 || beyond && criteria & !1 == 0 {
            return refuse(
                BAD_PARAMETER,
                format!("criteria {criteria:#x} are not those of the mask"),
            );
        }
        let group = Group { first, last, mask: (!beyond).then_some(mask) };
        let id = self.state.number(0x933, 1);
        let Some(table) = self.state.tables.get_mut(&number) else { return done() };
        let overlaps = |other: &Group| first <= other.last && other.first <= last;
        if first > last || last >= table.size || table.groups.values().any(overlaps) {
            return refuse(BAD_PARAMETER, format!("a group of entries {first} to {last}"));
        }
        table.groups.insert(id, group);
        made(id)
    }

    fn set_entry(&mut self, number: u32, input: &[u8]) -> Reply {
        let (index, context) = (be32(input, 0x20), &input[0x40..]);
        let (group, action) = (be32(context, 4), be16(context, 0xe));
        let count = (be32(context, 0x10) & 0xff_ffff) as usize;
        let list = &context[DESTINATIONS..];
        if count > MOST_DESTINATIONS || list.len() < 8 * count || action & !KNOWN != 0 {
            return refuse(BAD_PARAMETER, format!("{count} destinations, action {action:#x}"));
        }
        let place = |n: usize| {
            let word = be32(list, 8 * n);
            (word >> 24, word & 0xff_ffff)
        };
        let destinations: Vec<_> = (0..count).map(place).collect();
        let state = &self.state;
        let level = state.tables.get(&number).map_or(0, |table| table.level);
        let exists = |&(kind, to): &(u32, u32)| match kind {
            TO_TABLE => state.tables.get(&to).is_some_and(|table| table.level > level),
            TO_TIR => state.tirs.contains_key(&to),
            _ => false,
        };
        if let Some(missing) = destinations.iter().find(|place| !exists(place)) {
            return refuse(BAD_RESOURCE, format!("destination {missing:x?}"));
        }
        if (action & FORWARD != 0) != (count > 0) {
            return refuse(BAD_PARAMETER, format!("action {action:#x}, {count} destinations"));
        }
        let mut value = [0; OUTER];
        value.copy_from_slice(&context[0x40..0x40 + OUTER]);
        let tag = be32(context, 8) & 0xff_ffff;
        let Some(table) = self.state.tables.get_mut(&number) else { return done() };
        let known = table.groups.get(&group);
        let Some(known) = known.filter(|known| (known.first..=known.last).contains(&index)) else {
            return refuse(BAD_RESOURCE, format!("entry {index} is not of group {group:#x}"));
        };
        // A value with bits outside the mask is an error.
        if let Some(mask) = &known.mask
            && value.iter().zip(mask).any(|(value, mask)| value & !mask != 0)
        {
            return refuse(BAD_PARAMETER, format!("entry {index} has a value beyond its mask"));
        }
        // Operation 1 changes an existing entry.
        if (be16(input, 6) == 1) != table.entries.contains_key(&index) {
            return refuse(BAD_RESOURCE_STATE, format!("entry {index} exists, or does not"));
        }
        table.entries.insert(index, Entry { group, tag, action, value, destinations });
        done()
    }

    /// The destination TIRs of a frame, with the tags of their flow entries.
    pub(super) fn steer(&self, frame: &[u8]) -> Vec<(u32, u32)> {
        let mut places = Vec::new();
        if let Some(&root) = self.state.roots.get(&RECEIVE) {
            self.walk_table(root, &outer_headers(frame), 0, &mut places);
        }
        places
    }

    fn walk_table(
        &self,
        number: u32,
        outer: &[u8; OUTER],
        depth: u32,
        places: &mut Vec<(u32, u32)>,
    ) {
        let Some(table) = self.state.tables.get(&number) else { return };
        if depth > DEEPEST {
            return;
        }
        for entry in table.entries.values() {
            let mask = table.groups.get(&entry.group).and_then(|group| group.mask.as_ref());
            let Some(mask) = mask else { continue };
            if (0..OUTER).any(|at| (outer[at] ^ entry.value[at]) & mask[at] != 0) {
                continue;
            }
            if entry.action & DROP != 0 {
                return;
            }
            for &(kind, to) in &entry.destinations {
                match kind {
                    TO_TABLE => self.walk_table(to, outer, depth + 1, places),
                    _ => places.push((to, entry.tag)),
                }
            }
            return;
        }
        if let Some(next) = table.miss {
            self.walk_table(next, outer, depth + 1, places);
        }
    }
}

/// The outer headers of a frame in the layout of match values.
fn outer_headers(frame: &[u8]) -> [u8; OUTER] {
    let mut outer = [0; OUTER];
    let layers = Layers::of(frame);
    outer[..6].copy_from_slice(&frame[6..12]);
    outer[8..14].copy_from_slice(&frame[..6]);
    put16(&mut outer, 6, layers.ethertype);
    if let Some(tag) = layers.tag {
        put16(&mut outer, 14, tag);
        set(&mut outer, 0x90, 1, 1);
    }
    let at = layers.network;
    match (layers.ethertype, layers.transport) {
        (IPV4, Some(_)) => {
            set(&mut outer, 0x93, 4, 4);
            set(&mut outer, 0x92, 1, layers.fragment.into());
            outer[0x2c..0x30].copy_from_slice(&frame[at + 12..at + 16]);
            outer[0x3c..0x40].copy_from_slice(&frame[at + 16..at + 20]);
        }
        (IPV6, Some(_)) => {
            set(&mut outer, 0x93, 4, 6);
            outer[0x20..0x30].copy_from_slice(&frame[at + 8..at + 24]);
            outer[0x30..0x40].copy_from_slice(&frame[at + 24..at + 40]);
        }
        _ => {}
    }
    if let Some((protocol, at)) = layers.transport {
        outer[0x10] = protocol;
        let ports = match protocol {
            TCP => 0x14,
            UDP => 0x1c,
            _ => return outer,
        };
        if let Some(both) = frame.get(at..at + 4) {
            outer[ports..ports + 4].copy_from_slice(both);
        }
    }
    outer
}
