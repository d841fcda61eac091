//! Setup of the card, at first and after each reset: RoCE, GIDs, a domain, completion queues, the queue pair that
//! changes keys, spare keys, queue pair 1.

use super::commands::{BRIEF, Job};
use super::context::{self, Make, Service};
use super::function::Function;
use super::management::Management;
use super::memory::Buffer;
use super::moderation::Moderation;
use super::pair::RECORD;
use super::readings::{ALLOC_Q_COUNTER, Readings};
use super::ring::Ring;
use super::send_queue::SendQueue;
use super::{ConnectX, Counters, Error, Limits};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use cm::Cm;
use core::net::IpAddr;
use drivers::ethernet::mlx5::fields::{get, put, put64, set};
use drivers::ethernet::mlx5::{Abilities, Command};
use drivers::hal::{Arena, Instant, Window};
use rand_core::Rng;
use softverbs::completion::CompletionQueues;
use softverbs::handle_table::{self, HandleTable};
use verbs::ReadyToSend;

const QUERY_HCA_CAP: Command = Command(0x100, "QUERY_HCA_CAP");
const CREATE_CQ: Command = Command(0x400, "CREATE_CQ");
pub const CREATE_QP: Command = Command(0x500, "CREATE_QP");
pub const RST2INIT_QP: Command = Command(0x502, "RST2INIT_QP");
const INIT2RTR_QP: Command = Command(0x503, "INIT2RTR_QP");
const RTR2RTS_QP: Command = Command(0x504, "RTR2RTS_QP");
const MODIFY_NIC_VPORT_CONTEXT: Command = Command(0x755, "MODIFY_NIC_VPORT_CONTEXT");

/// Identifier of the key queue in completions (`user_index`).
pub const KEYS: u32 = 0xff_fffe;
/// Blocks of the key queue, as log2.
pub const KEY_LOG: u32 = 10;

/// Types of capabilities, and bytes of the capabilities of a type.
const GENERAL: u16 = 0;
const ROCE: u16 = 4;
const CAPABILITIES: usize = 0x1010;

/// Requires a field of capabilities to be at least `least`.
fn require(bytes: &[u8], field: (&'static str, usize, usize), least: u32) -> Result<u32, Error> {
    let (name, bit, width) = field;
    match get(bytes, bit, width) {
        enough if enough >= least => Ok(enough),
        _ => Err(Error::Lacks(name)),
    }
}

/// The provider's queue pair for changes of keys, which has no peer.
pub struct KeyQueue {
    pub number: u32,
    pub sends: SendQueue,
    buffer: Buffer,
    record: Window,
}

impl KeyQueue {
    fn new(arena: &mut Arena) -> Result<Self, Error> {
        let buffer = Buffer::new(64 << KEY_LOG, arena).map_err(|_| Error::NoMemory)?;
        let record = arena.alloc(RECORD, 64).ok_or(Error::NoMemory)?;
        let sends = SendQueue::new(&buffer.window, 0, KEY_LOG, record, 0, 0);
        Ok(KeyQueue { number: 0, sends: sends.map_err(|_| Error::NoMemory)?, buffer, record })
    }

    /// Its memory.
    pub fn memory(&self) -> [Window; 2] {
        [self.buffer.window, self.record]
    }
}

/// Sets up RDMA on a card.
pub fn open(
    function: Function,
    mut arena: Arena,
    addresses: &[IpAddr],
    limits: Limits,
    rng: &mut dyn Rng,
) -> Result<ConnectX, Error> {
    let limits = Limits { qps: limits.qps.clamp(1, handle_table::MAX - 2), ..limits };
    let mut ring = || {
        let record = arena.alloc(RECORD, 64).ok_or(Error::NoMemory)?;
        let ring = Ring::new(limits.log_completions.clamp(4, 22), record, &mut arena);
        ring.map_err(|_| Error::NoMemory)
    };
    let (ring, sent) = (ring()?, ring()?);
    let link = function.link_up();
    let mut opened = ConnectX {
        ring,
        sent,
        awaited: 0,
        is_polled: false,
        key_queue: KeyQueue::new(&mut arena)?,
        management: Management::new(&mut arena)?,
        function,
        arena,
        limits,
        now: Instant::ZERO,
        life: None,
        unusable_life: None,
        is_rdma_set_up: false,
        keys_missing: 0,
        abilities: Abilities { page: 0, events: 0, atomics: false },
        log_most_reads: 0,
        changes_atomics: false,
        fence: 0,
        can_moderate: false,
        moderation: Moderation::default(),
        has_congestion_counters: false,
        link,
        most_addresses: 0,
        addresses: addresses.iter().copied().map(Some).collect(),
        mtus: [usize::MAX; 2],
        own_domain: (0, 0),
        reserved: 0,
        pool: super::Pool::default(),
        domains: HandleTable::new(limits.pds),
        regions: HandleTable::new(limits.regions),
        pairs: HandleTable::new(limits.qps),
        numbers: BTreeMap::new(),
        destroying: Vec::new(),
        cqs: CompletionQueues::new(limits.cqs),
        has_completions: false,
        unflushed: Vec::new(),
        jobs: VecDeque::new(),
        current_job: None,
        events: VecDeque::new(),
        cm: Cm::new(&limits.connections, rng),
        counters: Counters::default(),
        readings: Readings::default(),
    };
    let life = opened.function.life().ok_or(Error::Reset)?;
    opened.set_up()?;
    opened.make_first_keys()?;
    opened.life = Some(life);
    Ok(opened)
}

impl ConnectX {
    /// Sets up the card, except for spare keys, which jobs make.
    pub(super) fn set_up(&mut self) -> Result<(), Error> {
        self.abilities = self.function.abilities().ok_or(Error::Reset)?;
        self.check_capabilities()?;
        self.is_rdma_set_up = true;
        self.enable_roce()?;
        for index in 0..self.addresses.len() {
            self.jobs.push_back(Job::SetGid(index as u16));
        }
        self.run_all_jobs()?;
        self.own_domain = self.make_card_domain()?;
        self.ring.completions.clear();
        self.sent.completions.clear();
        self.moderation = Moderation::default();
        let inputs = [&self.ring, &self.sent].map(|ring| self.ring_input(ring));
        let number = self.create(CREATE_CQ, &inputs[0])?;
        self.ring.completions.named(number);
        let number = self.create(CREATE_CQ, &inputs[1])?;
        self.sent.completions.named(number);
        self.reserved = 0;
        let set = self.create(ALLOC_Q_COUNTER, &[0; 8])? & 0xff;
        self.readings.begin(set, self.has_congestion_counters);
        self.make_key_queue()?;
        self.make_management()?;
        for place in 0..self.domains.places() {
            if self.domains.at(place).is_some() {
                let (number, key) = self.make_card_domain()?;
                if let Some(domain) = self.domains.at_mut(place) {
                    (domain.number, domain.key) = (number, key);
                }
            }
        }
        self.keys_missing = self.limits.keys;
        self.read_settings();
        Ok(())
    }

    fn capabilities(&mut self, kind: u16) -> Result<Vec<u8>, Error> {
        let mut answer = self.run_command(QUERY_HCA_CAP, kind << 1 | 1, &[0; 8], CAPABILITIES)?;
        answer.drain(..16);
        Ok(answer)
    }

    fn check_capabilities(&mut self) -> Result<(), Error> {
        let general = self.capabilities(GENERAL)?;
        for one in
            [("roce", 0x21d, 1), ("rc", 0x23f, 1), ("ud", 0x23d, 1), ("cqe_version", 0x1fc, 4)]
        {
            require(&general, one, 1)?;
        }
        require(&general, ("log_max_qp_sz", 0x88, 8), 15)?;
        require(&general, ("log_max_cq_sz", 0xc8, 8), self.ring.completions.log())?;
        require(&general, ("log_max_msg", 0x1c3, 5), super::requests::LOG_MAX_MESSAGE)?;
        require(&general, ("max_wqe_sz_sq", 0x290, 16), 192)?;
        // The page size of a key depends on the granted memory.
        if get(&general, 0x207, 1) == 1 {
            return Err(Error::Lacks("umr_modify_entity_size"));
        }
        // umr_modify_atomic_disabled: the right to atomic operations cannot be granted by a work request.
        self.changes_atomics = get(&general, 0x208, 1) == 0;
        self.abilities.atomics &= self.changes_atomics;
        let reads = [(0x14a, 6), (0x15a, 6)].map(|(bit, width)| get(&general, bit, width));
        self.log_most_reads = reads[0].min(reads[1]).min(4);
        self.has_congestion_counters = get(&general, 0x161, 1) == 1;
        // cq_moderation, cq_period_start_from_cqe.
        self.can_moderate = get(&general, 0x222, 1) == 1 && get(&general, 0x22b, 1) == 1;
        self.fence = match get(&general, 0x20a, 2) {
            0 => 3,
            1 => 1,
            _ => 0,
        };
        let roce = self.capabilities(ROCE)?;
        let most = require(&roce, ("roce_address_table_size", 0xf0, 16), 1)?;
        self.most_addresses = most.min(256) as usize;
        if self.addresses.len() > self.most_addresses {
            return Err(Error::Lacks("a roce_address_table_size for all addresses"));
        }
        // Version 2, over IPv4 and IPv6.
        let layers = get(&roce, 0x8c, 4);
        if get(&roce, 0x98, 8) & 4 == 0 || layers & 6 != 6 {
            return Err(Error::Lacks("RoCEv2 over IPv4 and IPv6"));
        }
        Ok(())
    }

    fn enable_roce(&mut self) -> Result<(), Error> {
        let mut change = alloc::vec![0; 0x200 - 8];
        put(&mut change, 4, 1 << 1);
        set(&mut change[0x100 - 8..], 0x1f, 1, 1);
        self.run_command(MODIFY_NIC_VPORT_CONTEXT, 0, &change, BRIEF)?;
        Ok(())
    }

    /// The input that makes a completion queue.
    fn ring_input(&self, ring: &Ring) -> Vec<u8> {
        let mut input = alloc::vec![0; 0x110 - 8];
        let context = &mut input[0x10 - 8..];
        // Each completion restarts the moderation period.
        set(context, 0xf, 2, self.can_moderate.into());
        set(context, 0x63, 5, ring.completions.log());
        set(context, 0x68, 24, self.abilities.page);
        set(context, 0xa0, 32, self.abilities.events);
        set(context, 0xc3, 5, ring.buffer.log_page);
        put64(context, 0x38, ring.completions.record().bus_address());
        ring.buffer.list(&mut input);
        input
    }

    /// Makes a queue pair of the provider itself, ready to send.
    pub(super) fn make_own_pair(&mut self, make: &Make, qkey: u32) -> Result<u32, Error> {
        let number = self.create(CREATE_QP, &context::create(make))?;
        self.run_command(RST2INIT_QP, 0, &context::init(number, make, qkey), BRIEF)?;
        self.run_command(INIT2RTR_QP, 0, &context::receive(number, make.service), BRIEF)?;
        let first = ReadyToSend {
            sq_psn: 0,
            max_rd_atomic: 0,
            ack_timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
        };
        self.run_command(RTR2RTS_QP, 0, &context::send(number, &first), BRIEF)?;
        Ok(number)
    }

    fn make_key_queue(&mut self) -> Result<(), Error> {
        let KeyQueue { buffer, record, .. } = self.key_queue;
        record.fill(0);
        let sends = SendQueue::new(&buffer.window, 0, KEY_LOG, record, 0, 0);
        self.key_queue.sends = sends.map_err(|_| Error::NoMemory)?;
        let make = Make {
            service: Service::Keys,
            domain: self.own_domain.0,
            page: self.abilities.page,
            completions: [self.ring.completions.number(); 2],
            counters: self.readings.set,
            user: KEYS,
            buffer,
            record,
            receives: None,
            send_log: KEY_LOG,
        };
        let number = self.make_own_pair(&make, 0)?;
        self.key_queue.number = number;
        self.key_queue.sends.set_number(number);
        Ok(())
    }
}
