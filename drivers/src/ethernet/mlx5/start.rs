//! The start of a card: commands in the order that every driver uses. Nothing is undone after an error: a reset undoes
//! all.

use super::capability;
use super::card::{Card, pause};
use super::error::Error;
use super::events;
use super::fields::{get, put, set, word};
use super::firmware::{self, Command};
use super::pair::INLINE_LAYER_2;
use crate::ethernet::is_station;
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
const QUERY_VPORT_STATE: Command = Command(0x750, "QUERY_VPORT_STATE");
const QUERY_NIC_VPORT_CONTEXT: Command = Command(0x754, "QUERY_NIC_VPORT_CONTEXT");
const MODIFY_NIC_VPORT_CONTEXT: Command = Command(0x755, "MODIFY_NIC_VPORT_CONTEXT");
const ALLOC_PD: Command = Command(0x800, "ALLOC_PD");
const ACCESS_REG: Command = Command(0x805, "ACCESS_REG");
const ALLOC_TRANSPORT_DOMAIN: Command = Command(0x816, "ALLOC_TRANSPORT_DOMAIN");
const SET_L2_TABLE_ENTRY: Command = Command(0x829, "SET_L2_TABLE_ENTRY");

// Kinds of pages that QUERY_PAGES reports.
const BOOT: u16 = 1;
const INIT: u16 = 2;
const REGULAR: u16 = 3;

// Registers of the port.
const HOST_ENDIANNESS: u32 = 0x7004;
const PORT_MTU: u32 = 0x5003;
const PORT_STATUS: u32 = 0x5006;
/// Ethernet header, VLAN tag and FCS, which the port's MTU includes.
const OVERHEAD: u16 = 22;

// Fields of the port's context, as selected by a change.
const ADDRESSES: u32 = 1 << 2;
const PROMISCUOUS: u32 = 1 << 4;
const MTU: u32 = 1 << 6;
/// Loopback of multicast and of unicast: bit of the selection, and field of the context.
const LOOPBACK: [(u32, usize); 2] = [(1 << 10, 0x1d), (1 << 11, 0x1e)];

/// Offset at which the inputs of commands begin in this driver.
pub const HEAD: usize = 8;

/// An input of zeroes, from byte 8 on, for a command of `length` bytes.
pub fn input(length: usize) -> Vec<u8> {
    alloc::vec![0; length - HEAD]
}

/// First part of a start, up to MAC address and MTU.
pub async fn bring_up(mut card: Box<Card>) -> (Box<Card>, Result<(), Error>) {
    let end = card.bring_up().await;
    (card, end)
}

/// Second part: creates the queues, and steers frames to them.
pub async fn create_objects(mut card: Box<Card>) -> (Box<Card>, Result<(), Error>) {
    let end = card.create_objects().await;
    (card, end)
}

/// Both parts.
pub async fn restart(mut card: Box<Card>) -> (Box<Card>, Result<(), Error>) {
    let mut end = card.bring_up().await;
    if end.is_ok() {
        end = card.create_objects().await;
    }
    (card, end)
}

impl Card {
    async fn bring_up(&mut self) -> Result<(), Error> {
        self.reset_state();
        self.quiesce_others();
        self.reset_function().await?;
        // Writes to memory that were in flight have arrived.
        self.publish_stopped();
        self.reset_state();
        self.await_firmware(firmware::START_UP).await?;
        // Commands are read from memory.
        self.function.enable_bus_master();
        self.firmware.begin()?;
        // The firmware is busy once more until it has taken the queue's address over: a doorbell would be lost.
        self.await_firmware(firmware::START_UP).await?;
        self.command(ENABLE_HCA, 0, &[0; 8], 16).await?;
        let issi = self.command(QUERY_ISSI, 0, &[0; 8], 0x70).await?;
        if word(&issi, 0x6c) & 2 == 0 {
            return Err(Error::TooOld);
        }
        self.command(SET_ISSI, 0, &[0, 0, 0, 1, 0, 0, 0, 0], 16).await?;
        self.give_queried_pages(BOOT).await?;
        if !self.is_virtual {
            self.access(HOST_ENDIANNESS, false, &[0; 16]).await?;
        }
        let general = self.capabilities(capability::GENERAL).await?;
        capability::check_general(&general)?;
        self.most_pairs = capability::most_pairs(&general);
        self.manages_switch = capability::manages_switch(&general);
        self.local_loopback = capability::local_loopback(&general);
        let mut wanted = input(16);
        wanted.extend(capability::wanted(&general));
        self.command(SET_HCA_CAP, capability::GENERAL << 1, &wanted, 16).await?;
        self.set_atomics(&general).await?;
        self.give_queried_pages(INIT).await?;
        self.command(INIT_HCA, 0, &input(0x20), 16).await?;
        self.give_queried_pages(REGULAR).await?;
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

    /// Sets atomic operations to the byte order of the CPU, if the card supports them.
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

    /// Gives the firmware the pages of kind `when` that it requests.
    async fn give_queried_pages(&mut self, when: u16) -> Result<(), Error> {
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

    /// Creates an object; its number.
    pub async fn create(&mut self, command: Command, input: &[u8]) -> Result<u32, Error> {
        Ok(Card::number(&self.command(command, 0, input, 16).await?))
    }

    async fn create_objects(&mut self) -> Result<(), Error> {
        while !self.others_follow() {
            pause().await;
        }
        self.set_port().await?;
        self.set_switch().await?;
        let Some(rings) = self.own_rings() else { return Err(Error::Answer(INIT_HCA.1)) };
        self.events.clear();
        let pair = self.begin_pair(&rings, 0, events::MASK).await?;
        self.objects.pair = pair;
        self.events.begin(pair.events, self.firmware.doorbells(pair.page));
        self.has_events = true;
        self.objects.domain = self.create(ALLOC_PD, &[0; 8]).await?;
        self.objects.transport = self.create(ALLOC_TRANSPORT_DOMAIN, &[0; 8]).await?;
        self.objects.key = self.create_key().await?;
        let key = self.objects.key;
        if let Some(queues) = &mut self.queues {
            queues.receiver.lay_out(key);
            queues.transmitter.lay_out();
        }
        let pair = self.create_queues(&rings, pair).await?;
        self.objects.pair = pair;
        let mut queues = alloc::vec![pair.receive_queue];
        self.create_further_pairs(&mut queues).await?;
        self.steer_to(&queues).await?;
        let mut status = [0; 16];
        (status[1], status[2]) = (1, 1);
        let up = self.access(PORT_STATUS, false, &status).await;
        // A virtual function may not set the port's status.
        if !self.is_virtual {
            up?;
        }
        let state = self.command(QUERY_VPORT_STATE, 0, &[0; 8], 16).await?;
        self.link = word(&state, 0xc) & 0xf == 1;
        if let Some(queues) = &mut self.queues {
            queues.transmitter.begin(&pair, key);
            queues.receiver.begin(&pair);
        }
        self.publish_live();
        Ok(())
    }

    /// Sets the MTU, and the receive filter: the own address, and all multicast.
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
            // A virtual function needs to be trusted by the physical one.
            Err(Error::Status(..)) if self.is_virtual => self.is_distrusted = true,
            end => _ = end?,
        }
        Ok(())
    }

    /// Enters the function's address into the switch of physical functions, without which no unicast arrives (Linux:
    /// `lib/mpfs.c`), and disables the loopback of sent frames, which would look like duplicate addresses (Linux:
    /// `mlx5_core_set_hca_defaults`).
    async fn set_switch(&mut self) -> Result<(), Error> {
        if self.manages_switch {
            // Entry 0.
            let mut entry = input(0x40);
            entry[0x22 - HEAD..0x28 - HEAD].copy_from_slice(&self.mac);
            self.command(SET_L2_TABLE_ENTRY, 0, &entry, 16).await?;
        }
        let mut change = input(0x200);
        let mut selected = 0;
        for ((select, field), _) in
            LOOPBACK.into_iter().zip(self.local_loopback).filter(|one| one.1)
        {
            selected |= select;
            set(&mut change[0x100 - HEAD..], field, 1, 1);
        }
        if selected != 0 {
            put(&mut change, 4, selected);
            self.command(MODIFY_NIC_VPORT_CONTEXT, 0, &change, 16).await?;
        }
        Ok(())
    }

    /// Creates a key for all bus addresses, for local access.
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
}
