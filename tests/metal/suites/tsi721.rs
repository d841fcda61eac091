//! The Tsi721 driver on the model: what it does with a bridge that keeps to its word, and with one that does not.

use drivers::hal::{Arena, Packet, Platform, Severity, Window};
use drivers::rapidio::{
    Direction, Doorbell, Fault as Ended, HopCount, IdSize, Mailbox, Maintained, Maintenance,
    MaintenanceError, OpenPort, SendError, Transfer, Transferred, WindowError, csr,
};
use drivers::registry::Class;
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

    /// Joined to one board, whose id is 7; own id 1.
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

    /// Turns of the loop.
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
    assert_eq!(host.port.counters().restarts, 1, "the channel was started anew");
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
fn messages_of_all_lengths_come_back_unchanged_and_padded_with_zeroes() {
    let mut host = Host::with_board(Answer::Echo);
    for len in (1..64).chain([255, 256, 257, 4088, 4089, 4095, 4096]) {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8 | 1).collect();
        host.send(7, &bytes).unwrap();
        host.turns(4);
        let mut wanted = bytes;
        wanted.resize(wanted.len().next_multiple_of(8), 0);
        assert_eq!(host.received(), [(7, wanted)], "{len}");
    }
    assert_eq!(host.send(7, &[]), Err(SendError::Length));
    assert_eq!(host.send(7, &[0; 4097]), Err(SendError::Length));
    assert!(host.complaints().is_empty());
}

#[test]
fn a_message_is_put_together_of_parts_in_all_mailboxes() {
    let mut host = Host::with_board(Answer::Take);
    let memory = host.memory(4096);
    memory.write(0, b"payload").unwrap();
    let payload = [memory.slice(0, 4).unwrap(), memory.slice(4, 3).unwrap()];
    for mailbox in Mailbox::ALL {
        assert!(host.open(mailbox));
        let packet = Packet { header: b"head ", payload: &payload, trailer: b" end" };
        host.port.send(mailbox, 7, &packet).unwrap();
        host.turns(3);
        let received = host.network().board(1).received.pop_front().unwrap();
        assert_eq!(received, (1, mailbox.number(), b"head payload end".to_vec()));
    }
    assert_eq!(Mailbox::new(4), None);
}

#[test]
fn laps_of_the_rings_lose_and_repeat_nothing() {
    let mut host = Host::with_board(Answer::Echo);
    let (mut sent, mut seen) = (0u32, 0u32);
    while seen < 2000 {
        while sent < 2000 && host.send(7, &[sent.to_be_bytes(); 3].concat()).is_ok() {
            sent += 1;
        }
        host.turns(1);
        for (from, bytes) in host.received() {
            assert_eq!((from, &bytes[..4]), (7, &seen.to_be_bytes()[..]));
            seen += 1;
        }
    }
    let counters = host.port.counters();
    assert_eq!((counters.tx_messages, counters.rx_messages), (2000, 2000));
    assert!(counters.tx_full > 0, "the ring was full now and then");
    assert_eq!((counters.restarts, counters.rx_errors, counters.tx_undelivered), (0, 0, 0));
}

#[test]
fn one_message_that_is_refused_is_told_and_those_behind_it_arrive() {
    let mut host = Host::with_board(Answer::Take);
    for n in 0..300u32 {
        // Nobody has id 9.
        let to = if n % 50 == 20 { 9 } else { 7 };
        while host.send(to, &n.to_be_bytes()).is_err() {
            host.turns(20);
        }
    }
    host.turns(1500);
    assert_eq!(host.undelivered(), [(9, Ended::Refused); 6]);
    let received = host.network().board(1).received.clone();
    let numbers: Vec<u32> =
        received.iter().map(|(_, _, b)| u32::from_be_bytes(b[..4].try_into().unwrap())).collect();
    let wanted: Vec<u32> = (0..300).filter(|n| n % 50 != 20).collect();
    assert_eq!(numbers, wanted);
    assert_eq!(host.port.counters().restarts, 6);
}

#[test]
fn who_says_later_stalls_the_mailbox_for_a_while_and_not_for_ever() {
    let mut host = Host::with_board(Answer::Retry);
    host.send(7, b"one").unwrap();
    host.send(7, b"two").unwrap();
    host.seconds(5);
    assert!(host.undelivered().is_empty());
    host.network().board(1).messages = Answer::Take;
    host.turns(10);
    assert_eq!(host.network().board(1).received.len(), 2, "nothing is lost");
    host.network().board(1).messages = Answer::Retry;
    host.send(7, b"three").unwrap();
    host.seconds(11);
    assert_eq!(host.undelivered(), [(7, Ended::Stalled)]);
    // What else waits for it is not waited for as long each, until it has taken one.
    for _ in 0..50 {
        host.send(7, b"more").unwrap();
    }
    host.turns(10_000);
    assert_eq!(host.undelivered(), [(7, Ended::Stalled); 50]);
    host.network().board(1).messages = Answer::Take;
    host.send(7, b"four").unwrap();
    host.turns(20);
    assert_eq!(host.network().board(1).received.len(), 3);
    host.network().board(1).messages = Answer::Retry;
    host.send(7, b"five").unwrap();
    host.seconds(5);
    assert!(host.undelivered().is_empty());
}

#[test]
fn a_full_receiver_says_later_and_takes_all_in_the_end() {
    let mut host = Host::with_board(Answer::Echo);
    let mut sent = 0;
    for _ in 0..400 {
        sent += u32::from(host.send(7, &[1; 16]).is_ok());
        host.turns(1);
    }
    assert!(sent > 200);
    let mut seen = 0;
    for _ in 0..400 {
        seen += host.received().len() as u32;
        host.turns(1);
    }
    // The board drops the echo that we had no room for: it is told "later", and does not try again.
    assert!((127..=sent).contains(&seen), "{seen} of {sent}");
    assert_eq!(host.port.counters().rx_errors, 0);
}

#[test]
fn what_the_device_says_of_messages_is_checked() {
    let mut host = Host::with_board(Answer::Echo);
    let number = BOX.index();
    let faults = [
        Fault::NamesNoBuffer(number),
        Fault::NamesBufferTwice(number),
        Fault::MessageStatus(number),
    ];
    for (n, fault) in faults.into_iter().enumerate() {
        host.send(7, b"kept").unwrap();
        host.turns(3);
        let kept = host.port.receive(BOX).unwrap();
        host.inject(fault);
        host.send(7, b"bad").unwrap();
        host.turns(3);
        assert!(host.received().is_empty(), "{fault:?}");
        assert_eq!(host.port.counters().rx_errors, n as u64 + 1);
        let mut bytes = [0; 4];
        host.port.payload(&kept).read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "a buffer that is ours is not given out again");
        host.port.recycle(kept);
    }
    // Buffers that the device lost come back when the channel is started anew.
    host.inject(Fault::MessageMemory(number));
    host.send(7, b"lost").unwrap();
    host.seconds(2);
    host.send(7, b"arrives").unwrap();
    host.turns(5);
    assert_eq!(host.received(), [(7, b"arrives\0".to_vec())]);
    assert!(host.complaints().is_empty());
}

#[test]
fn errors_of_its_memory_are_counted_and_told_and_survived() {
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
fn doorbells_ring_both_ways_through_laps_of_the_queue() {
    let network = network("A=B", 2, Answer::Take);
    let mut a = Host::on(&network, 0, Config::default());
    let mut b = Host::on(&network, 1, Config::default());
    a.port.set_own_id(IdSize::Small, 1);
    b.port.set_own_id(IdSize::Small, 2);
    for _ in 0..500 {
        a.turns(1);
        b.turns(1);
    }
    assert!(a.port.link_up() && b.port.link_up());
    for n in 0..1500u16 {
        a.port.ring_doorbell(2, n).unwrap();
        a.turns(1);
        b.turns(1);
        assert_eq!(b.port.doorbell(), Some(Doorbell { from: 1, to: 2, info: n }));
        assert_eq!(b.port.doorbell(), None);
    }
    // A queue that nobody reads fills, and the rest comes when it is read.
    for n in 0..600u16 {
        a.port.ring_doorbell(2, n).unwrap();
        a.turns(1);
        b.machine.run();
    }
    let mut seen = Vec::new();
    for _ in 0..400 {
        while let Some(doorbell) = b.port.doorbell() {
            seen.push(doorbell.info);
        }
        b.turns(1);
        a.turns(1);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..600).collect::<Vec<_>>());
}

#[test]
fn data_is_read_and_written_in_a_board_s_memory() {
    let mut host = Host::with_board(Answer::Take);
    let memory = host.memory(40_000);
    let bytes: Vec<u8> = (0..40_000u32).map(|n| (n % 251) as u8).collect();
    memory.write(0, &bytes).unwrap();
    let part = |at, len| memory.slice(at, len).unwrap();
    for direction in [Direction::Write, Direction::WriteWithResponse] {
        host.network().board(1).memory.fill(0);
        let ended = host.transfer(direction, 1003, part(5, 30_001));
        assert_eq!(ended, Transferred { tag: 1003, result: Ok(()) });
        assert_eq!(host.network().board(1).memory[1003..31_004], bytes[5..30_006]);
        assert_eq!(host.network().board(1).memory[31_004], 0);
    }
    memory.fill(0);
    assert_eq!(host.transfer(Direction::Read, 1003, part(64, 500)).result, Ok(()));
    let mut back = vec![0; 500];
    memory.read(64, &mut back).unwrap();
    assert_eq!(back, bytes[5..505]);
    // Beyond the board's memory; and the next is carried out all the same.
    let refused = host.transfer(Direction::Read, 1 << 20, part(0, 8));
    assert_eq!(refused.result, Err(Ended::Refused));
    assert_eq!(host.transfer(Direction::Read, 1003, part(64, 500)).result, Ok(()));
    let nothing = host.transfer(Direction::Read, 0, Window::empty());
    assert_eq!(nothing.result, Err(Ended::Refused));
    assert!(host.complaints().is_empty());
}

#[test]
fn transfers_behind_one_that_fails_are_carried_out() {
    let mut host = Host::with_board(Answer::Take);
    let memory = host.memory(64 * 64);
    for round in 0..5u64 {
        for n in 0..63 {
            let address = if n == 30 { 1 << 30 } else { n * 64 };
            let memory = memory.slice(n as usize * 64, 64).unwrap();
            let tag = round * 100 + n;
            let transfer = Transfer {
                tag,
                direction: Direction::WriteWithResponse,
                device: 7,
                address,
                memory,
            };
            host.port.transfer(&transfer).unwrap();
        }
        let mut ended: Vec<Transferred> = (0..63).map(|_| host.ended()).collect();
        ended.sort_by_key(|one| one.tag);
        for (n, one) in ended.into_iter().enumerate() {
            let result = if n == 30 { Err(Ended::Refused) } else { Ok(()) };
            assert_eq!(one, Transferred { tag: round * 100 + n as u64, result });
        }
    }
}

#[test]
fn windows_let_others_reach_our_memory_and_us_theirs() {
    let network = network("A=s0.0,B=s0.1,C=s0.2", 2, Answer::Take);
    let settings = Config { outbound: 1 << 20, ..Config::default() };
    let mut a = Host::on(&network, 0, settings);
    let mut b = Host::on(&network, 1, Config::default());
    a.port.set_own_id(IdSize::Small, 1);
    b.port.set_own_id(IdSize::Small, 7);
    {
        let mut network = network.lock().unwrap();
        network.endpoint(2).write(csr::BASE_ID, 3 << 16);
        for (id, port) in [(1, 0), (7, 1), (3, 2)] {
            network.switch(0).write(csr::ROUTE_ID, id);
            network.switch(0).write(csr::ROUTE_PORT, port);
        }
    }
    a.turns(500);
    b.turns(500);
    let exposed = b.memory(8192).slice(0, 8192).unwrap();
    let aligned = b.machine.arena().alloc(8192, 8192).unwrap();
    assert_eq!(b.port.map_inbound(0x1_0000_1000, aligned), Err(WindowError::Alignment));
    assert_eq!(b.port.map_inbound(0, exposed.slice(0, 100).unwrap()), Err(WindowError::Alignment));
    let map = b.port.map_inbound(0x1_0000_0000, aligned).unwrap();
    let memory = a.memory(4096);
    memory.write(0, b"across").unwrap();
    let part = memory.slice(0, 6).unwrap();
    let write = |address| Transfer {
        tag: 1,
        direction: Direction::WriteWithResponse,
        device: 7,
        address,
        memory: part,
    };
    let end = |a: &mut Host, b: &mut Host, address| {
        a.port.transfer(&write(address)).unwrap();
        for _ in 0..200 {
            a.turns(1);
            b.turns(1);
            if let Some(ended) = a.port.transferred() {
                return ended.result;
            }
        }
        panic!("no end")
    };
    assert_eq!(end(&mut a, &mut b, 0x1_0000_1ffa), Ok(()));
    let mut bytes = [0; 6];
    aligned.read(0x1ffa, &mut bytes).unwrap();
    assert_eq!(&bytes, b"across");
    assert_eq!(end(&mut a, &mut b, 0x1_0000_1ffb), Err(Ended::Refused), "over the end");
    b.port.unmap_inbound(map);
    assert_eq!(end(&mut a, &mut b, 0x1_0000_0000), Err(Ended::Refused), "unmapped");
    // The board's memory, by loads and stores.
    assert_eq!(b.port.map_outbound(3, 0, 1 << 15), Err(WindowError::Unsupported));
    assert_eq!(a.port.map_outbound(3, 0x4000, 1 << 15), Err(WindowError::Alignment));
    let first = a.port.map_outbound(3, 0, 1 << 15).unwrap();
    let second = a.port.map_outbound(3, 0x8000, 1 << 15).unwrap();
    a.port.store(&second, 0x7ffc, 0x0403_0201);
    assert_eq!(network.lock().unwrap().board(2).memory[0xfffc..], [1, 2, 3, 4]);
    network.lock().unwrap().board(2).memory[0x10..0x14].copy_from_slice(&[5, 6, 7, 8]);
    assert_eq!(a.port.load(&first, 0x10), 0x0807_0605);
    assert_eq!(a.port.load(&first, 0x8000), u32::MAX, "outside");
    a.port.unmap_outbound(second);
    a.port.store(&second, 0x7ffc, 0);
    assert_eq!(network.lock().unwrap().board(2).memory[0xfffc..], [1, 2, 3, 4]);
}

#[test]
fn a_lost_link_ends_what_is_under_way_and_comes_back() {
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
    let told: Vec<Severity> =
        std::iter::from_fn(|| host.port.notice()).map(|one| one.severity).collect();
    assert_eq!(told, [Severity::Information, Severity::Warning, Severity::Information]);
    assert_eq!(host.port.counters().link_losses, 1);
}

#[test]
fn a_bridge_that_is_pulled_out_ends_everything_without_harm() {
    let mut host = Host::with_board(Answer::Silence);
    host.send(7, b"lost").unwrap();
    host.turns(1);
    host.machine.pull_out(true);
    host.seconds(1);
    assert!(!host.port.link_up());
    assert_eq!(host.undelivered(), [(7, Ended::LinkLost)]);
    assert_eq!(host.send(7, b"no"), Err(SendError::Closed));
    assert_eq!(host.maintain(7, 0xff, 0, None), Err(MaintenanceError::PortDown));
    assert!(std::iter::from_fn(|| host.port.notice()).any(|one| one.severity == Severity::Error));
    assert_eq!(host.port.deadline(), None);
}

#[test]
fn port_writes_are_captured_and_their_loss_is_counted() {
    let network = network("A=s0.0,B=s0.1", 1, Answer::Take);
    let mut host = Host::on(&network, 0, Config::default());
    host.port.set_own_id(IdSize::Small, 1);
    host.turns(500);
    {
        let mut network = host.network();
        let switch = network.switch(0);
        for (offset, value) in
            [(csr::ROUTE_ID, 1), (csr::ROUTE_PORT, 0), (0x1028, 1 << 16), (csr::COMPONENT_TAG, 2)]
        {
            switch.write(offset, value);
        }
        switch.write(0x00f4_0104, 0x0800_0000);
        network.cut(End::Endpoint(1), true);
    }
    host.turns(500);
    let port_write = host.port.port_write().unwrap();
    assert_eq!((port_write.component_tag, port_write.port & 0xff), (2, 1));
    assert_eq!(host.port.port_write(), None);
    for cut in [false, true, false] {
        host.network().cut(End::Endpoint(1), cut);
        host.machine.run();
    }
    host.turns(500);
    assert!(host.port.port_write().is_some());
    assert_eq!(host.port.port_write(), None);
    assert_eq!(host.port.counters().port_writes_lost, 1);
}

#[test]
fn interrupts_come_for_what_arrives_while_they_are_wanted() {
    for vectors in [true, false] {
        let network = network("A=B", 1, Answer::Echo);
        let settings = Config { vectors, misplaced_table: vectors, ..Config::default() };
        let mut host = Host::on(&network, 0, settings);
        host.give_ids(IdSize::Small);
        host.open(BOX);
        host.turns(500);
        assert!(host.port.wakes());
        host.send(7, b"polled").unwrap();
        host.turns(5);
        assert_eq!(host.received().len(), 1);
        // By vectors, each cause may raise one that nobody waits for.
        let raised = host.port.counters().interrupts;
        assert!(raised <= u64::from(vectors), "{raised}: none is wanted");
        for round in 1..4 {
            host.port.set_interrupts(true);
            assert!(!host.port.pending());
            let before = host.port.counters().interrupts;
            host.send(7, b"halted").unwrap();
            host.port.flush();
            host.machine.run();
            assert!(host.port.counters().interrupts > before, "{vectors} {round}");
            assert!(host.port.pending());
            host.port.set_interrupts(false);
            host.turns(3);
            assert_eq!(host.received().len(), 1);
        }
        // A doorbell wakes as well, and the end of a maintenance request.
        host.port.set_interrupts(true);
        let before = host.port.counters().interrupts;
        host.port.maintain(&Maintenance { to: 7, hops: 255, offset: 0, write: None }).unwrap();
        host.machine.run();
        assert!(host.port.counters().interrupts > before);
        assert!(host.complaints().is_empty());
    }
}

/// A loop halts.
fn halt(host: &mut Host) {
    host.port.set_interrupts(true);
    assert!(!host.port.pending());
}

#[test]
fn a_message_that_leaves_wakes_nobody_but_who_waits_for_room() {
    for vectors in [true, false] {
        let network = network("A=B", 1, Answer::Take);
        let mut host = Host::on(&network, 0, Config { vectors, ..Config::default() });
        host.give_ids(IdSize::Small);
        host.open(BOX);
        host.turns(500);
        for _ in 0..200 {
            host.send(7, b"leaves").unwrap();
            host.port.flush();
            halt(&mut host);
            let before = host.port.counters().interrupts;
            host.machine.run();
            assert_eq!(host.port.counters().interrupts, before);
            assert!(!host.port.pending());
            host.port.set_interrupts(false);
            host.turns(1);
        }
        assert_eq!(host.port.counters().tx_messages, 200);
        while host.send(7, b"fills").is_ok() {}
        assert!(!host.port.has_room(BOX, 1));
        host.port.flush();
        halt(&mut host);
        let before = host.port.counters().interrupts;
        host.machine.run();
        assert!(host.port.counters().interrupts > before, "{vectors}");
        assert!(host.port.pending());
        host.port.set_interrupts(false);
        host.turns(200);
        assert!(host.port.has_room(BOX, 127));
        assert_eq!(host.network().board(1).received.len(), 200 + 127);
    }
}

#[test]
fn what_fails_interrupts_and_is_told_at_once() {
    for vectors in [true, false] {
        let network = network("A=s0.0,B=s0.1", 1, Answer::Take);
        let mut host = Host::on(&network, 0, Config { vectors, ..Config::default() });
        host.port.set_own_id(IdSize::Small, 1);
        host.open(BOX);
        host.turns(500);
        // Nobody is called 9. Messages of the model fail after 5 ms.
        for _ in 0..3 {
            host.send(9, b"to nobody").unwrap();
            host.port.flush();
            host.machine.run();
            halt(&mut host);
            let before = host.port.counters().interrupts;
            host.machine.pass(Duration::from_millis(6));
            host.machine.run();
            assert_eq!(host.port.counters().interrupts, before + 1, "{vectors}");
            host.port.set_interrupts(false);
            let now = host.machine.pass(Duration::from_micros(1));
            host.port.poll(now);
            assert_eq!(host.undelivered(), [(9, Ended::Refused)]);
            host.turns(3);
        }
        assert_eq!(host.port.counters().restarts, 3);
        // A port-write, too.
        {
            let mut network = host.network();
            let switch = network.switch(0);
            for (offset, value) in [
                (csr::ROUTE_ID, 1),
                (csr::ROUTE_PORT, 0),
                (0x1028, 1 << 16),
                (csr::COMPONENT_TAG, 2),
                (0x00f4_0104, 0x0800_0000),
            ] {
                switch.write(offset, value);
            }
        }
        for cut in [true, false, true] {
            halt(&mut host);
            let before = host.port.counters().interrupts;
            host.network().cut(End::Endpoint(1), cut);
            host.machine.run();
            assert_eq!(host.port.counters().interrupts, before + 1, "{vectors}");
            host.port.set_interrupts(false);
            let now = host.machine.pass(Duration::from_micros(1));
            host.port.poll(now);
            assert!(host.port.port_write().is_some());
            assert_eq!(host.port.port_write(), None);
        }
    }
}

#[test]
fn who_has_nothing_to_do_is_woken_once_a_second() {
    let mut host = Host::with_board(Answer::Take);
    host.seconds(1);
    let mut now = host.machine.pass(Duration::ZERO);
    let (end, before) = (now + Duration::from_secs(10), host.machine.accesses());
    let mut woken = 0;
    while now < end {
        woken += 1;
        halt(&mut host);
        let until = host.port.deadline().unwrap();
        now = host.machine.pass(until.since(now));
        host.machine.run();
        host.port.set_interrupts(false);
        host.port.poll(now);
        host.port.flush();
    }
    assert!(woken <= 11, "{woken} times");
    let accesses = host.machine.accesses() - before;
    assert!(accesses <= 11 * 8, "{accesses}");
}

#[test]
fn without_an_interrupt_to_give_it_cannot_wake() {
    let network = network("A=B", 1, Answer::Take);
    let model = Tsi721::new(Config::default(), network, 0);
    let mut machine = Metal::new(model, 8 << 20);
    machine.interrupts = 0;
    let device = machine.find().take(Class::RapidIo).remove(0);
    assert!(!device.open_rapidio(&mut machine).unwrap().wakes());
}

#[test]
fn ids_of_16_bits_are_reached_in_every_way() {
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
fn too_little_memory_is_said_and_given_back() {
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
