//! A pair of queues, with its doorbell page and its event queue: the commands that create it, and those that steer
//! frames to it, or to several pairs by a hash.

use super::card::Card;
use super::completions::Completions;
use super::error::Error;
use super::events::Events;
use super::fields::{put, put64, set};
use super::firmware::Command;
use super::objects::PairObjects;
use super::receive::{self, Receiver};
use super::start::{HEAD, input};
use super::transmit::Transmitter;
use crate::ethernet::owners::{ENTRIES, queue_of};
use crate::hal::Window;
use alloc::vec::Vec;

const CREATE_EQ: Command = Command(0x301, "CREATE_EQ");
const CREATE_CQ: Command = Command(0x400, "CREATE_CQ");
const ALLOC_UAR: Command = Command(0x802, "ALLOC_UAR");
const CREATE_TIR: Command = Command(0x900, "CREATE_TIR");
const CREATE_SQ: Command = Command(0x904, "CREATE_SQ");
const MODIFY_SQ: Command = Command(0x905, "MODIFY_SQ");
const CREATE_RQ: Command = Command(0x908, "CREATE_RQ");
const MODIFY_RQ: Command = Command(0x909, "MODIFY_RQ");
const CREATE_TIS: Command = Command(0x912, "CREATE_TIS");
const CREATE_RQT: Command = Command(0x916, "CREATE_RQT");
const SET_FLOW_TABLE_ROOT: Command = Command(0x92f, "SET_FLOW_TABLE_ROOT");
const CREATE_FLOW_TABLE: Command = Command(0x930, "CREATE_FLOW_TABLE");
const CREATE_FLOW_GROUP: Command = Command(0x933, "CREATE_FLOW_GROUP");
const SET_FLOW_TABLE_ENTRY: Command = Command(0x936, "SET_FLOW_TABLE_ENTRY");

/// Inline mode: at most the layer 2 header of a frame.
pub const INLINE_LAYER_2: u32 = 1;
/// Hashed frames: type, and fields of the hash: addresses of IPv4, and of IPv6.
const HASHED: [(u16, u32); 2] = [(0x0800, 3), (0x86dd, 1 << 31 | 3)];
/// Log2 of the entries of the flow table: one for each hashed type, and one for all other frames.
const LOG_TABLE: u8 = 2;

/// A ring: memory, doorbell record, and log2 of the number of entries.
#[derive(Clone, Copy)]
pub struct Ring {
    memory: Window,
    record: Window,
    log: u32,
}

impl Ring {
    fn of(completions: &Completions) -> Self {
        let (memory, record) = (completions.ring(), completions.record());
        Ring { memory, record, log: completions.log() }
    }
}

/// The rings of a pair.
#[derive(Clone, Copy)]
pub struct Rings {
    events: Window,
    events_log: u32,
    receive: Ring,
    received: Ring,
    send: Ring,
    sent: Ring,
}

impl Rings {
    pub fn of(events: &Events, receiver: &Receiver, transmitter: &Transmitter) -> Self {
        let receive =
            Ring { memory: receiver.ring(), record: receiver.record(), log: receiver.log() };
        let (memory, record) = (transmitter.ring(), transmitter.record());
        Rings {
            events: events.ring(),
            events_log: events.log(),
            receive,
            received: Ring::of(&receiver.queue.completions),
            send: Ring { memory, record, log: transmitter.log() },
            sent: Ring::of(&transmitter.queue.completions),
        }
    }
}

/// Appends the addresses of a ring's pages.
fn list(input: &mut Vec<u8>, ring: Window) {
    let pages = ring.len().div_ceil(4096);
    let address = ring.bus_address();
    input.extend((0..pages).flat_map(|n| (address + 4096 * n as u64).to_be_bytes()));
}

impl Card {
    /// Creates the doorbell page of a pair, and its event queue, for event types `events` and interrupt `vector`.
    pub async fn begin_pair(
        &mut self,
        rings: &Rings,
        vector: u32,
        events: u64,
    ) -> Result<PairObjects, Error> {
        let page = self.create(ALLOC_UAR, &[0; 8]).await?;
        let mut input = input(0x110);
        let context = &mut input[0x10 - HEAD..];
        set(context, 0x63, 5, rings.events_log);
        set(context, 0x68, 24, page);
        set(context, 0xb4, 12, vector);
        put64(&mut input, 0x58 - HEAD, events);
        list(&mut input, rings.events);
        let events = self.create(CREATE_EQ, &input).await? & 0xff;
        Ok(PairObjects { page, events, ..PairObjects::default() })
    }

    /// Creates the queues of a pair, after [`Card::begin_pair`].
    pub async fn create_queues(
        &mut self,
        rings: &Rings,
        pair: PairObjects,
    ) -> Result<PairObjects, Error> {
        let receive_completions = self.create_completions(&rings.received, &pair).await?;
        let send_completions = self.create_completions(&rings.sent, &pair).await?;
        let pair = PairObjects { receive_completions, send_completions, ..pair };
        let send_queue = self.create_send_queue(&rings.send, &pair).await?;
        let receive_queue = self.create_receive_queue(&rings.receive, &pair).await?;
        Ok(PairObjects { send_queue, receive_queue, ..pair })
    }

    async fn create_completions(&mut self, ring: &Ring, pair: &PairObjects) -> Result<u32, Error> {
        let mut input = input(0x110);
        let context = &mut input[0x10 - HEAD..];
        set(context, 0x63, 5, ring.log);
        set(context, 0x68, 24, pair.page);
        set(context, 0xa0, 32, pair.events);
        put64(context, 0x38, ring.record.bus_address());
        list(&mut input, ring.memory);
        self.create(CREATE_CQ, &input).await
    }

    async fn create_send_queue(&mut self, ring: &Ring, pair: &PairObjects) -> Result<u32, Error> {
        let mut interface = input(0xc0);
        put(&mut interface, 0x44 - HEAD, self.objects.transport);
        let interface = self.create(CREATE_TIS, &interface).await?;
        let mut input = input(0x110);
        let context = &mut input[0x20 - HEAD..];
        // If the queue fails, requests in flight are completed with errors.
        set(context, 0x03, 1, 1);
        set(context, 0x05, 3, INLINE_LAYER_2);
        set(context, 0x48, 24, pair.send_completions);
        set(context, 0x100, 16, 1);
        set(context, 0x168, 24, interface);
        let part = &mut context[0x30..];
        set(part, 0, 4, 1); // cyclic
        set(part, 0x68, 24, pair.page);
        put64(part, 0x10, ring.record.bus_address());
        set(part, 0x10c, 4, 6);
        set(part, 0x11b, 5, ring.log);
        list(&mut input, ring.memory);
        let number = self.create(CREATE_SQ, &input).await?;
        self.make_ready(MODIFY_SQ, number).await?;
        Ok(number)
    }

    async fn create_receive_queue(
        &mut self,
        ring: &Ring,
        pair: &PairObjects,
    ) -> Result<u32, Error> {
        let mut input = input(0x110);
        let context = &mut input[0x20 - HEAD..];
        set(context, 0x03, 1, 1); // VLAN tags stay
        set(context, 0x0d, 1, 1);
        set(context, 0x48, 24, pair.receive_completions);
        let part = &mut context[0x30..];
        set(part, 0, 4, 1);
        set(part, 0x48, 24, self.objects.domain);
        put64(part, 0x10, ring.record.bus_address());
        set(part, 0x10c, 4, receive::LOG_STRIDE);
        set(part, 0x11b, 5, ring.log);
        list(&mut input, ring.memory);
        let number = self.create(CREATE_RQ, &input).await?;
        self.make_ready(MODIFY_RQ, number).await?;
        Ok(number)
    }

    /// Moves a queue from reset to ready.
    async fn make_ready(&mut self, command: Command, number: u32) -> Result<(), Error> {
        let mut change = input(0x110);
        put(&mut change, 0, number);
        set(&mut change[0x20 - HEAD..], 8, 4, 1);
        self.command(command, 0, &change, 16).await?;
        Ok(())
    }

    /// Steers received frames to `queues`: by a hash of the addresses if there are several; frames without IP addresses
    /// go to the first queue.
    pub async fn steer_to(&mut self, queues: &[u32]) -> Result<(), Error> {
        let mut table = input(0x40);
        table[0x1b - HEAD] = LOG_TABLE;
        let table = self.create(CREATE_FLOW_TABLE, &table).await?;
        if queues.len() > 1 {
            let spread = self.create_spread(queues).await?;
            let group = self.create_group(table, 0, HASHED.len() as u32 - 1, true).await?;
            for (index, (kind, fields)) in (0..).zip(HASHED) {
                let mut place = input(0x110);
                let context = &mut place[0x20 - HEAD..];
                set(context, 0x20, 4, 1); // by a table
                set(context, 0x108, 24, spread);
                set(context, 0x120, 4, 2); // Toeplitz
                set(context, 0x128, 24, self.objects.transport);
                let words = self.hash.iter().flat_map(|word| word.to_le_bytes());
                context[0x28..].iter_mut().zip(words).for_each(|(byte, of)| *byte = of);
                put(context, 0x50, fields);
                let place = self.create(CREATE_TIR, &place).await?;
                self.set_entry(table, group, index, kind, place).await?;
            }
        }
        let mut place = input(0x110);
        set(&mut place[0x20 - HEAD..], 0xe8, 24, queues.first().copied().unwrap_or_default());
        set(&mut place[0x20 - HEAD..], 0x128, 24, self.objects.transport);
        let place = self.create(CREATE_TIR, &place).await?;
        let last = (1 << LOG_TABLE) - 1;
        let group = self.create_group(table, last, last, false).await?;
        self.set_entry(table, group, last, 0, place).await?;
        let mut root = input(0x40);
        put(&mut root, 0x14 - HEAD, table);
        self.command(SET_FLOW_TABLE_ROOT, 0, &root, 16).await?;
        Ok(())
    }

    /// Creates the redirection table by which a hash chooses a queue.
    async fn create_spread(&mut self, queues: &[u32]) -> Result<u32, Error> {
        let mut table = input(0x110);
        [0x14, 0x18].iter().for_each(|at| put(&mut table, 0x20 + at - HEAD, ENTRIES as u32));
        let queue = |entry| queues[queue_of(entry, queues.len())];
        table.extend((0..ENTRIES).flat_map(|entry| queue(entry).to_be_bytes()));
        self.create(CREATE_RQT, &table).await
    }

    /// Creates a group of flow table entries, which match by the type of a frame, or match all frames.
    async fn create_group(
        &mut self,
        table: u32,
        first: u32,
        last: u32,
        by_type: bool,
    ) -> Result<u32, Error> {
        let mut group = input(0x400);
        put(&mut group, 0x14 - HEAD, table);
        put(&mut group, 0x1c - HEAD, first);
        put(&mut group, 0x24 - HEAD, last);
        if by_type {
            group[0x3f - HEAD] = 1; // by outer headers
            put(&mut group, 0x44 - HEAD, 0xffff);
        }
        self.create(CREATE_FLOW_GROUP, &group).await
    }

    /// Sets a flow table entry, which forwards frames of a type to a TIR.
    async fn set_entry(
        &mut self,
        table: u32,
        group: u32,
        index: u32,
        kind: u16,
        place: u32,
    ) -> Result<(), Error> {
        let mut entry = input(0x340);
        put(&mut entry, 0x14 - HEAD, table);
        put(&mut entry, 0x20 - HEAD, index);
        let context = &mut entry[0x40 - HEAD..];
        put(context, 4, group);
        put(context, 0xc, 4); // forward
        put(context, 0x10, 1);
        put(context, 0x44, kind.into());
        entry.extend((2 << 24 | place).to_be_bytes());
        entry.extend([0; 4]);
        self.command(SET_FLOW_TABLE_ENTRY, 0, &entry, 16).await?;
        Ok(())
    }
}
