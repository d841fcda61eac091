//! How a card comes up: the commands in the order in which every driver gives them. Nothing is undone: a reset undoes all.

use super::capability;
use super::card::{Card, pause};
use super::error::Error;
use super::events;
use super::fields::{get, put, put64, set, word};
use super::firmware::{self, Command};
use crate::ethernet::is_station;
use crate::hal::Window;
use crate::pci::reset;
use alloc::boxed::Box;
use alloc::vec::Vec;

const QUERY_HCA_CAP: Command = Command(0x100, "QUERY_HCA_CAP");
const INIT_HCA: Command = Command(0x102, "INIT_HCA");
const ENABLE_HCA: Command = Command(0x104, "ENABLE_HCA");
const QUERY_PAGES: Command = Command(0x107, "QUERY_PAGES");
const SET_HCA_CAP: Command = Command(0x109, "SET_HCA_CAP");
const QUERY_ISSI: Command = Command(0x10a, "QUERY_ISSI");
const SET_ISSI: Command = Command(0x10b, "SET_ISSI");
const CREATE_MKEY: Command = Command(0x200, "CREATE_MKEY");
const CREATE_EQ: Command = Command(0x301, "CREATE_EQ");
const CREATE_CQ: Command = Command(0x400, "CREATE_CQ");
const QUERY_VPORT_STATE: Command = Command(0x750, "QUERY_VPORT_STATE");
const QUERY_NIC_VPORT_CONTEXT: Command = Command(0x754, "QUERY_NIC_VPORT_CONTEXT");
const MODIFY_NIC_VPORT_CONTEXT: Command = Command(0x755, "MODIFY_NIC_VPORT_CONTEXT");
const ALLOC_PD: Command = Command(0x800, "ALLOC_PD");
const ALLOC_UAR: Command = Command(0x802, "ALLOC_UAR");
const ACCESS_REG: Command = Command(0x805, "ACCESS_REG");
const ALLOC_TRANSPORT_DOMAIN: Command = Command(0x816, "ALLOC_TRANSPORT_DOMAIN");
const CREATE_TIR: Command = Command(0x900, "CREATE_TIR");
const CREATE_SQ: Command = Command(0x904, "CREATE_SQ");
const MODIFY_SQ: Command = Command(0x905, "MODIFY_SQ");
const CREATE_RQ: Command = Command(0x908, "CREATE_RQ");
const MODIFY_RQ: Command = Command(0x909, "MODIFY_RQ");
const CREATE_TIS: Command = Command(0x912, "CREATE_TIS");
const SET_FLOW_TABLE_ROOT: Command = Command(0x92f, "SET_FLOW_TABLE_ROOT");
const CREATE_FLOW_TABLE: Command = Command(0x930, "CREATE_FLOW_TABLE");
const CREATE_FLOW_GROUP: Command = Command(0x933, "CREATE_FLOW_GROUP");
const SET_FLOW_TABLE_ENTRY: Command = Command(0x936, "SET_FLOW_TABLE_ENTRY");

/// Pages that QUERY_PAGES tells of.
const BOOT: u16 = 1;
const INIT: u16 = 2;
const REGULAR: u16 = 3;

/// Registers of the port.
const HOST_ENDIANNESS: u32 = 0x7004;
const PORT_MTU: u32 = 0x5003;
const PORT_STATUS: u32 = 0x5006;
/// Ethernet header, VLAN tag and FCS, which the port's MTU includes.
const OVERHEAD: u16 = 22;

/// Fields of the port's context that a change selects.
const ADDRESSES: u32 = 1 << 2;
const PROMISCUOUS: u32 = 1 << 4;
const MTU: u32 = 1 << 6;

/// The MSI-X vector of all events.
const VECTOR: u32 = 0;
/// What the card is asked to inline of a frame at most: layer 2.
const INLINE_LAYER_2: u32 = 1;
/// The last byte of a command's input that is counted from its beginning; inputs here begin at byte 8.
const HEAD: usize = 8;

/// An input of a command that is `length` bytes long, from byte 8 on.
fn input(length: usize) -> Vec<u8> {
    alloc::vec![0; length - HEAD]
}

/// Appends the addresses of a ring's pages.
fn list(input: &mut Vec<u8>, ring: Window) {
    let pages = ring.len().div_ceil(4096);
    let address = ring.bus_address();
    input.extend((0..pages).flat_map(|n| (address + 4096 * n as u64).to_be_bytes()));
}

/// Comes up, as far as address and MTU are known.
pub async fn reach(mut card: Box<Card>) -> (Box<Card>, Result<(), Error>) {
    let end = card.reach().await;
    (card, end)
}

/// Makes queues, and all that leads to them.
pub async fn make(mut card: Box<Card>) -> (Box<Card>, Result<(), Error>) {
    let end = card.make().await;
    (card, end)
}

/// Both, after a reset.
pub async fn again(mut card: Box<Card>) -> (Box<Card>, Result<(), Error>) {
    let mut end = card.reach().await;
    if end.is_ok() {
        end = card.make().await;
    }
    (card, end)
}

impl Card {
    async fn reach(&mut self) -> Result<(), Error> {
        self.forget();
        let kept = reset::begin(&self.function).ok_or(Error::NoReset)?;
        self.wait(reset::TIME).await;
        reset::end(&self.function, &kept);
        self.forget();
        let since = self.present.get();
        while !self.firmware.is_ready()? {
            if self.present.get().since(since) > firmware::START_UP {
                return Err(Error::NotReady);
            }
            pause().await;
        }
        self.firmware.begin()?;
        self.command(ENABLE_HCA, 0, &[0; 8], 16).await?;
        let issi = self.command(QUERY_ISSI, 0, &[0; 8], 0x70).await?;
        if word(&issi, 0x6c) & 2 == 0 {
            return Err(Error::TooOld);
        }
        self.command(SET_ISSI, 0, &[0, 0, 0, 1, 0, 0, 0, 0], 16).await?;
        self.satisfy(BOOT).await?;
        if !self.is_virtual {
            self.access(HOST_ENDIANNESS, false, &[0; 16]).await?;
        }
        let general = self.capabilities(capability::GENERAL).await?;
        capability::check_general(&general)?;
        let mut wanted = input(16);
        wanted.extend(capability::wanted(&general));
        self.command(SET_HCA_CAP, capability::GENERAL << 1, &wanted, 16).await?;
        self.set_atomics(&general).await?;
        self.satisfy(INIT).await?;
        self.command(INIT_HCA, 0, &input(0x20), 16).await?;
        self.satisfy(REGULAR).await?;
        let flow_tables = self.capabilities(capability::FLOW_TABLES).await?;
        capability::check_flow_tables(&flow_tables)?;
        let port = self.command(QUERY_NIC_VPORT_CONTEXT, 0, &[0; 8], 0x110).await?;
        let context = &port[16..];
        if get(context, 5, 3) > INLINE_LAYER_2 {
            return Err(Error::Lacks("min_wqe_inline_mode of layer 2"));
        }
        self.mac.copy_from_slice(&context[0xf6..0xfc]);
        if !is_station(self.mac) {
            return Err(Error::NoMac);
        }
        let mut register = [0; 16];
        register[1] = 1;
        let register = self.access(PORT_MTU, true, &register).await?;
        self.port_mtu = (word(&register, 4) >> 16) as u16;
        self.port_mtu = self.port_mtu.saturating_sub(OVERHEAD);
        Ok(())
    }

    /// Has atomic operations in the byte order of the CPU, if there are any.
    async fn set_atomics(&mut self, general: &[u8]) -> Result<(), Error> {
        self.atomics = false;
        if !capability::has_atomics(general) {
            return Ok(());
        }
        let atomic = self.capabilities(capability::ATOMIC).await?;
        if let Some(order) = capability::wanted_atomics(&atomic) {
            let mut wanted = input(16);
            wanted.extend(order);
            self.command(SET_HCA_CAP, capability::ATOMIC << 1, &wanted, 16).await?;
            self.atomics = true;
        }
        Ok(())
    }

    /// Gives the firmware the pages that it wants at this point.
    async fn satisfy(&mut self, when: u16) -> Result<(), Error> {
        let answer = self.command(QUERY_PAGES, when, &[0; 8], 16).await?;
        self.give_pages(word(&answer, 0xc) as i32).await
    }

    async fn capabilities(&mut self, kind: u16) -> Result<Vec<u8>, Error> {
        let length = 16 + capability::BYTES;
        let mut answer = self.command(QUERY_HCA_CAP, kind << 1 | 1, &[0; 8], length).await?;
        answer.drain(..16);
        Ok(answer)
    }

    /// Reads or writes a register of the port.
    async fn access(&mut self, register: u32, read: bool, data: &[u8]) -> Result<Vec<u8>, Error> {
        let mut input = input(16);
        put(&mut input, 0, register);
        input.extend_from_slice(data);
        let length = 16 + data.len();
        let mut answer = self.command(ACCESS_REG, read.into(), &input, length).await?;
        answer.drain(..16);
        Ok(answer)
    }

    /// A command that makes an object: its number.
    async fn create(&mut self, command: Command, input: &[u8]) -> Result<u32, Error> {
        Ok(Card::number(&self.command(command, 0, input, 16).await?))
    }

    async fn make(&mut self) -> Result<(), Error> {
        self.set_port().await?;
        self.objects.uar = self.create(ALLOC_UAR, &[0; 8]).await?;
        let events = self.create_event_queue().await?;
        self.objects.events = events;
        self.objects.domain = self.create(ALLOC_PD, &[0; 8]).await?;
        self.objects.transport = self.create(ALLOC_TRANSPORT_DOMAIN, &[0; 8]).await?;
        self.objects.key = self.create_key().await?;
        let key = self.objects.key;
        if let Some(queues) = &mut self.queues {
            queues.receiver.prepare(key);
            queues.receiver.completions.clear();
            queues.transmitter.prepare();
            queues.transmitter.completions.clear();
        }
        self.objects.receive_completions = self.create_completions(true, events).await?;
        self.objects.send_completions = self.create_completions(false, events).await?;
        self.create_send_queue().await?;
        self.create_receive_queue().await?;
        self.lead_to_queue().await?;
        let mut status = [0; 16];
        (status[1], status[2]) = (1, 1);
        let up = self.access(PORT_STATUS, false, &status).await;
        // A virtual function has no say in it.
        if !self.is_virtual {
            up?;
        }
        let state = self.command(QUERY_VPORT_STATE, 0, &[0; 8], 16).await?;
        self.link = word(&state, 0xc) & 0xf == 1;
        let objects = self.objects;
        if let Some(queues) = &mut self.queues {
            queues.receiver.completions.named(objects.receive_completions);
            queues.transmitter.completions.named(objects.send_completions);
            queues.transmitter.start(objects.send_queue, objects.key);
            queues.receiver.start();
        }
        Ok(())
    }

    /// MTU, and what is received: the own address, and all of multicast.
    async fn set_port(&mut self) -> Result<(), Error> {
        let mtu = u32::from(self.mtu + OVERHEAD);
        let mut register = [0; 16];
        register[1] = 1;
        put(&mut register, 8, mtu << 16);
        self.access(PORT_MTU, false, &register).await?;
        const CONTEXT: usize = 0x100 - HEAD;
        let mut change = input(0x200);
        put(&mut change, 4, MTU);
        set(&mut change[CONTEXT..], 0x130, 16, mtu);
        self.command(MODIFY_NIC_VPORT_CONTEXT, 0, &change, 16).await?;
        let mut change = input(0x200);
        put(&mut change, 4, ADDRESSES);
        set(&mut change[CONTEXT..], 0x794, 12, 1);
        change.extend([0, 0]);
        change.extend(self.mac);
        self.command(MODIFY_NIC_VPORT_CONTEXT, 0, &change, 16).await?;
        let mut change = input(0x200);
        put(&mut change, 4, PROMISCUOUS);
        set(&mut change[CONTEXT..], 0x781, 1, 1);
        match self.command(MODIFY_NIC_VPORT_CONTEXT, 0, &change, 16).await {
            // A virtual function may only if the physical one trusts it.
            Err(Error::Status(..)) if self.is_virtual => self.is_distrusted = true,
            end => _ = end?,
        }
        Ok(())
    }

    async fn create_event_queue(&mut self) -> Result<u32, Error> {
        self.events.clear();
        let mut input = input(0x110);
        let context = &mut input[0x10 - HEAD..];
        set(context, 0x63, 5, events::LOG);
        set(context, 0x68, 24, self.objects.uar);
        set(context, 0xb4, 12, VECTOR);
        put64(&mut input, 0x58 - HEAD, events::MASK);
        list(&mut input, self.events.ring());
        let number = self.create(CREATE_EQ, &input).await? & 0xff;
        let uar = self.objects.uar;
        self.events.begin(number, self.firmware.doorbells(uar));
        self.has_events = true;
        Ok(number)
    }

    /// A key for all bus addresses, for local use.
    async fn create_key(&mut self) -> Result<u32, Error> {
        let mut input = input(0x110);
        let context = &mut input[0x10 - HEAD..];
        // Local write and read; of all queue pairs; of any length.
        [(0x14, 1), (0x15, 1), (0x60, 1)]
            .into_iter()
            .for_each(|(bit, on)| set(context, bit, 1, on));
        set(context, 0x20, 24, 0xff_ffff);
        set(context, 0x68, 24, self.objects.domain);
        Ok(self.create(CREATE_MKEY, &input).await? << 8)
    }

    async fn create_completions(&mut self, receive: bool, events: u32) -> Result<u32, Error> {
        let Some(queues) = &self.queues else { return Err(Error::Answer(CREATE_CQ.1)) };
        let queue = match receive {
            true => &queues.receiver.completions,
            false => &queues.transmitter.completions,
        };
        let mut input = input(0x110);
        let context = &mut input[0x10 - HEAD..];
        set(context, 0x63, 5, queue.log());
        set(context, 0x68, 24, self.objects.uar);
        set(context, 0xa0, 32, events);
        put64(context, 0x38, queue.record().bus_address());
        list(&mut input, queue.ring());
        self.create(CREATE_CQ, &input).await
    }

    async fn create_send_queue(&mut self) -> Result<(), Error> {
        let mut interface = input(0xc0);
        put(&mut interface, 0x44 - HEAD, self.objects.transport);
        let interface = self.create(CREATE_TIS, &interface).await?;
        let Some(queues) = &self.queues else { return Err(Error::Answer(CREATE_SQ.1)) };
        let queue = &queues.transmitter;
        let mut input = input(0x110);
        let context = &mut input[0x20 - HEAD..];
        // Requests that are under way come back if the queue fails.
        set(context, 0x03, 1, 1);
        set(context, 0x05, 3, INLINE_LAYER_2);
        set(context, 0x48, 24, self.objects.send_completions);
        set(context, 0x100, 16, 1);
        set(context, 0x168, 24, interface);
        let part = &mut context[0x30..];
        set(part, 0, 4, 1); // cyclic
        set(part, 0x68, 24, self.objects.uar);
        put64(part, 0x10, queue.record().bus_address());
        set(part, 0x10c, 4, 6);
        set(part, 0x11b, 5, queue.log());
        list(&mut input, queue.ring());
        let number = self.create(CREATE_SQ, &input).await?;
        self.objects.send_queue = number;
        self.make_ready(MODIFY_SQ, number).await
    }

    async fn create_receive_queue(&mut self) -> Result<(), Error> {
        let Some(queues) = &self.queues else { return Err(Error::Answer(CREATE_RQ.1)) };
        let queue = &queues.receiver;
        let mut input = input(0x110);
        let context = &mut input[0x20 - HEAD..];
        set(context, 0x03, 1, 1); // VLAN tags stay
        set(context, 0x0d, 1, 1);
        set(context, 0x48, 24, self.objects.receive_completions);
        let part = &mut context[0x30..];
        set(part, 0, 4, 1);
        set(part, 0x48, 24, self.objects.domain);
        put64(part, 0x10, queue.record().bus_address());
        set(part, 0x10c, 4, super::receive::LOG_STRIDE);
        set(part, 0x11b, 5, queue.log());
        list(&mut input, queue.ring());
        let number = self.create(CREATE_RQ, &input).await?;
        self.objects.receive_queue = number;
        self.make_ready(MODIFY_RQ, number).await
    }

    /// From reset to ready.
    async fn make_ready(&mut self, command: Command, number: u32) -> Result<(), Error> {
        let mut change = input(0x110);
        put(&mut change, 0, number);
        set(&mut change[0x20 - HEAD..], 8, 4, 1);
        self.command(command, 0, &change, 16).await?;
        Ok(())
    }

    /// A table of one entry, which matches everything.
    async fn lead_to_queue(&mut self) -> Result<(), Error> {
        let mut place = input(0x110);
        set(&mut place[0x20 - HEAD..], 0xe8, 24, self.objects.receive_queue);
        set(&mut place[0x20 - HEAD..], 0x128, 24, self.objects.transport);
        let place = self.create(CREATE_TIR, &place).await?;
        let table = self.create(CREATE_FLOW_TABLE, &input(0x40)).await?;
        let mut group = input(0x400);
        put(&mut group, 0x14 - HEAD, table);
        let group = self.create(CREATE_FLOW_GROUP, &group).await?;
        let mut entry = input(0x340);
        put(&mut entry, 0x14 - HEAD, table);
        let context = &mut entry[0x40 - HEAD..];
        put(context, 4, group);
        put(context, 0xc, 4); // forward
        put(context, 0x10, 1);
        entry.extend((2 << 24 | place).to_be_bytes());
        entry.extend([0; 4]);
        self.command(SET_FLOW_TABLE_ENTRY, 0, &entry, 16).await?;
        let mut root = input(0x40);
        put(&mut root, 0x14 - HEAD, table);
        self.command(SET_FLOW_TABLE_ROOT, 0, &root, 16).await?;
        Ok(())
    }
}
