//! The Tsi721 driver on the model, with and without faults.

mod interrupts;
mod memory;
mod messages;

use drivers::driver::Class;
use drivers::hal::{Arena, Packet, Platform, Severity, Window};
use drivers::rapidio::{
    Direction, Doorbell, Fault as Ended, HopCount, IdSize, Mailbox, Maintained, Maintenance,
    MaintenanceError, OpenPort, SendError, Transfer, Transferred, WindowError, csr,
};
use metal::Metal;
use models::rapidio::{Answer, Board, End, Network, Shared, Topology};
use models::tsi721::{Config, Fault, Tsi721};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TURN: Duration = Duration::from_micros(50);
const BOX: Mailbox = Mailbox::ALL[2];

/// A machine with a bridge, on a network.
struct Host {
    machine: Metal<Tsi721>,
    port: OpenPort,
    network: Shared,
}

fn network(topology: &str, functions: usize, answer: Answer) -> Shared {
    let topology: Topology = topology.parse().unwrap();
    let network = Network::new(&topology, functions, |_| Board::new(answer, 1 << 16));
    Arc::new(Mutex::new(network))
}

impl Host {
    fn on(network: &Shared, me: usize, settings: Config) -> Host {
        let model = Tsi721::new(settings, network.clone(), me);
        let mut machine = Metal::new(model, 8 << 20);
        let device = machine.find().take(Class::RapidIo).remove(0);
        assert_eq!(device.driver(), "tsi721_mport");
        let port = device.open_rapidio(&mut machine).unwrap();
        let mut host = Host { machine, port, network: network.clone() };
        host.turns(3);
        host
    }

    /// A host with id 1, linked to a board with id 7.
    fn with_board(answer: Answer) -> Host {
        let network = network("A=B", 1, answer);
        let mut host = Host::on(&network, 0, Config::default());
        host.give_ids(IdSize::Small);
        host.turns(500);
        assert!(host.port.link_up());
        assert!(host.open(BOX));
        host
    }

    fn give_ids(&mut self, size: IdSize) {
        self.port.set_own_id(size, 1);
        let value = if size == IdSize::Small { 7 << 16 } else { 0x0123 };
        self.network().endpoint(1).write(csr::BASE_ID, value);
    }

    fn network(&self) -> std::sync::MutexGuard<'_, Network> {
        self.network.lock().unwrap()
    }

    fn open(&mut self, mailbox: Mailbox) -> bool {
        let opened = self.port.open_mailbox(mailbox, self.machine.arena());
        self.turns(3);
        opened
    }

    /// Runs rounds of the loop.
    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.port.flush();
            self.machine.run();
            let now = self.machine.pass(TURN);
            self.port.poll(now);
        }
    }

    fn maintain(&mut self, to: u16, hops: HopCount, offset: u32, write: Option<u32>) -> Maintained {
        self.port.maintain(&Maintenance { to, hops, offset, write }).unwrap();
        for _ in 0..200 {
            self.turns(1);
            if let Some(ended) = self.port.maintained() {
                return ended;
            }
        }
        panic!("a maintenance request has no end");
    }

    fn send(&mut self, to: u16, bytes: &[u8]) -> Result<(), SendError> {
        self.port.send(BOX, to, &Packet { header: bytes, payload: &[], trailer: &[] })
    }

    fn received(&mut self) -> Vec<(u16, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(message) = self.port.receive(BOX) {
            let mut bytes = vec![0; message.len.into()];
            self.port.payload(&message).read(0, &mut bytes).unwrap();
            all.push((message.from, bytes));
            self.port.recycle(message);
        }
        self.port.flush();
        all
    }

    fn undelivered(&mut self) -> Vec<(u16, Ended)> {
        std::iter::from_fn(|| self.port.undelivered()).map(|one| (one.to, one.fault)).collect()
    }

    fn inject(&mut self, fault: Fault) {
        self.machine.model(|model| model.inject(fault));
    }

    fn complaints(&self) -> Vec<String> {
        self.machine.model(|model| model.complaints.clone())
    }

    fn memory(&mut self, len: usize) -> Window {
        self.machine.arena().alloc(len, 4096).unwrap()
    }

    fn transfer(&mut self, direction: Direction, address: u64, memory: Window) -> Transferred {
        let transfer = Transfer { tag: address, direction, device: 7, address, memory };
        self.port.transfer(&transfer).unwrap();
        self.ended()
    }

    fn ended(&mut self) -> Transferred {
        for _ in 0..500 {
            self.turns(1);
            if let Some(ended) = self.port.transferred() {
                return ended;
            }
        }
        panic!("a transfer has no end");
    }

    fn seconds(&mut self, count: u32) {
        for _ in 0..count * 100 {
            self.machine.pass(Duration::from_millis(10));
            self.turns(1);
        }
    }
}

#[test]
fn registers_of_the_other_end_are_read_and_written() {
    let mut host = Host::with_board(Answer::Take);
    assert_eq!(host.maintain(0xff, 0, csr::DEVICE_IDENTITY, None), Ok(0x80ab_0038));
    assert_eq!(host.maintain(0xff, 0, csr::COMPONENT_TAG, Some(0x1234_5678)), Ok(0));
    assert_eq!(host.maintain(7, 0xff, csr::COMPONENT_TAG, None), Ok(0x1234_5678));
    assert_eq!(host.port.read_own(csr::DEVICE_IDENTITY), 0x80ab_0038);
    assert_eq!(host.port.own_id(), 1);
    let beyond = host.maintain(7, 0xff, 0x00ff_fffc, None);
    assert_eq!(beyond, Err(MaintenanceError::NoAnswer), "a device may refuse");
    assert_eq!(host.maintain(7, 0xff, csr::COMPONENT_TAG, None), Ok(0x1234_5678));
    assert_eq!(host.port.counters().restarts, 1, "the channel was restarted");
    assert!(host.complaints().is_empty());
}

#[test]
fn a_request_on_a_hung_channel_ends_and_the_next_is_answered() {
    let mut host = Host::with_board(Answer::Take);
    for fault in [Fault::HangsDma(7), Fault::AbortsDma(7)] {
        host.inject(fault);
        let request = Maintenance { to: 7, hops: 0xff, offset: 0, write: None };
        host.port.maintain(&request).unwrap();
        assert!(host.port.maintain(&request).is_err(), "one at a time");
        host.seconds(6);
        assert_eq!(host.port.maintained(), Some(Err(MaintenanceError::NoAnswer)), "{fault:?}");
        assert_eq!(host.maintain(7, 0xff, 0, None), Ok(0x80ab_0038));
    }
    host.inject(Fault::NamesNoDescriptor(7));
    let request = Maintenance { to: 7, hops: 0xff, offset: 0, write: None };
    host.port.maintain(&request).unwrap();
    host.seconds(6);
    assert_eq!(host.port.maintained(), Some(Err(MaintenanceError::NoAnswer)));
    assert_eq!(host.maintain(7, 0xff, 0, None), Ok(0x80ab_0038));
}

#[test]
fn ecc_errors_are_counted_and_reported_and_the_driver_recovers() {
    let mut host = Host::with_board(Answer::Echo);
    while host.port.notice().is_some() {}
    host.inject(Fault::Ecc { mailbox: BOX.index(), corrected: true });
    host.seconds(2);
    assert_eq!((host.port.counters().ecc, host.port.notice()), ([1, 0], None));
    host.inject(Fault::Ecc { mailbox: BOX.index(), corrected: false });
    host.seconds(2);
    assert_eq!(host.port.counters().ecc, [1, 1]);
    assert_eq!(host.port.notice().unwrap().severity, Severity::Error);
    host.send(7, b"still here").unwrap();
    host.turns(5);
    assert_eq!(host.received().len(), 1);
}

#[test]
fn lost_link_ends_outstanding_requests_and_recovers() {
    let mut host = Host::with_board(Answer::Silence);
    let memory = host.memory(64);
    host.network().board(1).memory_access = Answer::Silence;
    host.send(7, b"lost").unwrap();
    host.port.maintain(&Maintenance { to: 9, hops: 3, offset: 0, write: None }).unwrap();
    let direction = Direction::Read;
    host.port.transfer(&Transfer { tag: 5, direction, device: 7, address: 0, memory }).unwrap();
    host.network().cut(End::Endpoint(1), true);
    host.seconds(1);
    assert!(!host.port.link_up());
    assert_eq!(host.undelivered().len(), 1);
    assert!(matches!(host.port.maintained(), Some(Err(_))));
    assert!(host.port.transferred().unwrap().result.is_err());
    assert_eq!(host.send(7, b"no"), Err(SendError::Closed));
    assert_eq!(host.maintain(7, 0xff, 0, None), Err(MaintenanceError::PortDown));
    host.network().cut(End::Endpoint(1), false);
    host.network().board(1).messages = Answer::Echo;
    host.seconds(1);
    assert!(host.port.link_up());
    host.send(7, b"back").unwrap();
    host.turns(5);
    assert_eq!(host.received().len(), 1);
    let severities: Vec<Severity> =
        std::iter::from_fn(|| host.port.notice()).map(|one| one.severity).collect();
    assert_eq!(severities, [Severity::Information, Severity::Warning, Severity::Information]);
    assert_eq!(host.port.counters().link_losses, 1);
}

#[test]
fn a_bridge_that_is_pulled_out_ends_everything_without_harm() {
    let mut host = Host::with_board(Answer::Silence);
    host.send(7, b"lost").unwrap();
    host.turns(1);
    host.machine.pull_out(true);
    host.seconds(2);
    assert!(!host.port.link_up());
    assert_eq!(host.undelivered(), [(7, Ended::LinkLost)]);
    assert_eq!(host.send(7, b"no"), Err(SendError::Closed));
    assert_eq!(host.maintain(7, 0xff, 0, None), Err(MaintenanceError::PortDown));
    assert!(std::iter::from_fn(|| host.port.notice()).any(|one| one.severity == Severity::Error));
    host.machine.pull_out(false);
    host.machine.hot_reset(Duration::from_secs(1));
    host.network().board(1).messages = Answer::Echo;
    host.seconds(10);
    assert!(host.port.link_up());
    assert_eq!(host.port.own_id(), 1);
    host.send(7, b"back").unwrap();
    host.turns(300);
    assert_eq!(host.received(), [(7, b"back\0\0\0\0".to_vec())]);
    assert_eq!(host.maintain(7, 0xff, csr::DEVICE_IDENTITY, None), Ok(0x80ab_0038));
    assert_eq!(host.port.counters().bridge_resets, 1);
    assert!(host.complaints().is_empty(), "{:?}", host.complaints());
}

#[test]
fn one_look_at_all_ones_does_not_end_the_use_of_a_bridge() {
    let mut host = Host::with_board(Answer::Echo);
    while host.port.notice().is_some() {}
    host.machine.pull_out(true);
    host.turns(10_000);
    host.machine.pull_out(false);
    host.seconds(1);
    assert!(host.port.link_up() && host.port.notice().is_none());
    host.send(7, b"still here").unwrap();
    host.turns(5);
    assert_eq!(host.received().len(), 1);
}

#[test]
fn channels_that_an_earlier_system_left_running_are_suspended() {
    let Host { mut machine, mut port, network } = Host::with_board(Answer::Silence);
    let message = Packet { header: b"waits", payload: &[], trailer: &[] };
    port.send(BOX, 7, &message).unwrap();
    port.maintain(&Maintenance { to: 9, hops: 3, offset: 0, write: None }).unwrap();
    port.flush();
    machine.run();
    let memory = machine.arena().alloc(64, 64).unwrap();
    let direction = Direction::Read;
    port.transfer(&Transfer { tag: 5, direction, device: 9, address: 0, memory }).unwrap();
    port.flush();
    machine.run();
    let device = machine.find().take(Class::RapidIo).remove(0);
    let port = device.open_rapidio(&mut machine).unwrap();
    let mut host = Host { machine, port, network };
    host.turns(500);
    host.give_ids(IdSize::Small);
    assert!(host.open(BOX));
    assert_eq!(host.maintain(7, 0xff, csr::DEVICE_IDENTITY, None), Ok(0x80ab_0038));
    assert!(host.complaints().is_empty(), "{:?}", host.complaints());
}

#[test]
fn ids_of_16_bits_work_for_all_operations() {
    let mut host = Host::with_board(Answer::Echo);
    host.give_ids(IdSize::Large);
    assert_eq!((host.port.own_id(), host.port.id_size()), (1, IdSize::Large));
    assert_eq!(host.maintain(0x0123, 0xff, csr::DEVICE_IDENTITY, None), Ok(0x80ab_0038));
    host.send(0x0123, b"wide").unwrap();
    host.send(0x0023, b"not he").unwrap();
    host.turns(300);
    assert_eq!(host.received(), [(0x0123, b"wide\0\0\0\0".to_vec())]);
    assert_eq!(host.undelivered(), [(0x0023, Ended::Refused)]);
    host.port.ring_doorbell(0x0123, 0xabcd).unwrap();
    host.turns(2);
    assert_eq!(host.network().board(1).doorbells, [(1, 0xabcd)]);
}

#[test]
fn too_little_memory_is_reported_and_freed() {
    let network = network("A=B", 1, Answer::Take);
    for size in [1 << 10, 6 << 10, 20 << 10] {
        let model = Tsi721::new(Config::default(), network.clone(), 0);
        let mut machine = Metal::new(model, size);
        let free = machine.arena().available();
        let device = machine.find().take(Class::RapidIo).remove(0);
        let error = device.open_rapidio(&mut machine).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("give the machine more memory"), "{error}");
        assert_eq!(machine.arena().available(), free);
    }
    let mut host = Host::on(&network, 0, Config::default());
    assert!(!host.port.open_mailbox(BOX, &mut Arena::on_heap(1 << 12)));
}
