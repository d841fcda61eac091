//! Channels of rio_cm with an attacker and a victim at their other ends. The input determines the attacker's messages,
//! the actions of the users of its channels, and the passing time. The victim's messages are marked, and their buffers
//! are reused for the attacker: no byte of a mark may reach the attacker, or the data that is read from its channels.
//! Messages with credit are never dropped: the victim's messages arrive, and the engine never stores and grants more
//! than its memory. Afterwards the victim's channels, with and without credits, still deliver messages in order.

use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::Instant;
use rapidio::rio_cm::{Arrival, Engine, HEADER, Header, MAILBOX, MOST, Operation, Peer};
use std::collections::VecDeque;
use std::time::Duration;

const EVENTS: usize = 300;
const US: u16 = 1;
const ATTACKER: u16 = 2;
const VICTIM: u16 = 3;
/// The engine's user echoes messages of the first channel, and reads those of the second.
const ECHO: u16 = 10;
const READ: u16 = 11;

/// The engine, and its peers.
struct World {
    engine: Engine,
    victim: Engine,
    /// Accepted channels: number, peer, and whether the user echoes.
    accepted: Vec<(u16, Peer, bool)>,
    now: Instant,
    /// Channel numbers that the attacker has received.
    known: Vec<u16>,
    /// The victim's channel that the user reads, and the lengths of its unread messages there.
    read: u16,
    unread: VecDeque<usize>,
}

/// Runs a list of events.
pub fn run(data: &[u8]) {
    let mut world = World {
        engine: Engine::new(US, MAILBOX),
        victim: Engine::new(VICTIM, MAILBOX),
        accepted: Vec::new(),
        now: Instant::from_nanos(1_000_000_000),
        known: vec![ECHO, READ],
        read: 0,
        unread: VecDeque::new(),
    };
    world.engine.listen(ECHO).expect("the channel is free");
    world.engine.listen(READ).expect("the channel is free");
    let to = |channel| Peer { device: US, channel };
    let now = world.now;
    let channels = [
        world.victim.connect(to(ECHO), now).expect("room"),
        world.victim.connect_offering(to(ECHO), now).expect("room"),
        world.victim.connect_offering(to(READ), now).expect("room"),
    ];
    world.read = channels[2];
    world.carry();
    // Fill buffers with the victim's bytes, and free them.
    for _ in 0..8 {
        world.victim_sends(channels[2], 4000);
    }
    world.read(VICTIM);
    world.carry();
    let mut input = Input(data);
    input.events(EVENTS, |input| world.event(input));
    world.read_victim();
    world.carry();
    for number in 0..4 {
        for channel in channels {
            let sent = world.victim_sends(channel, 100 + number);
            if channel == channels[2] {
                assert_eq!(world.read(VICTIM), [sent], "the victim's message arrives");
            } else {
                let back =
                    world.victim.receive(channel, <[u8]>::to_vec).expect("the channel is open");
                assert_eq!(back, Some(sent), "the victim's message is echoed");
            }
            world.carry();
        }
    }
}

impl World {
    /// A message arrives at the engine.
    fn arrive(&mut self, from: u16, message: &[u8], has_room: bool) {
        let Some((header, data)) = message.split_first_chunk::<HEADER>() else {
            return self.engine.deliver(from, message, self.now);
        };
        let (length, now) = (message.len(), self.now);
        let arrival = Arrival { from, header, length, has_room, now };
        let copy = |into: &mut [u8]| {
            into.copy_from_slice(&data[..into.len()]);
            true
        };
        if let Some(back) = self.engine.arrive(&arrival, copy) {
            assert_eq!(back.to, from, "the echo goes to the sender");
            self.sent(back.to, &[&back.header[..], &data[..back.len]].concat());
        }
    }

    /// Delivers a message of the engine.
    fn sent(&mut self, to: u16, message: &[u8]) {
        match to {
            VICTIM => self.victim.deliver(US, message, self.now),
            _ => {
                assert_eq!(leak::find(message), None, "bytes of others to the attacker");
                let header = Header::read(message).expect("a sent message is valid");
                if self.known.len() < 64 && !self.known.contains(&header.from_channel) {
                    self.known.push(header.from_channel);
                }
            }
        }
    }

    /// Carries messages, and accepts connections.
    fn carry(&mut self) {
        for _ in 0..4 {
            while let Some((to, header)) = self.victim.outgoing() {
                assert_eq!(to, US);
                self.victim.was_sent();
                self.arrive(VICTIM, &header, true);
            }
            for listener in [ECHO, READ] {
                while let Ok(Some((number, peer))) = self.engine.accept(listener, self.now) {
                    if listener == ECHO {
                        self.engine.send_back(number);
                    }
                    self.accepted.push((number, peer, listener == ECHO));
                }
            }
            self.answer();
            while let Some((to, header)) = self.engine.outgoing() {
                self.engine.was_sent();
                self.sent(to, &header);
            }
        }
    }

    /// Sends echoes that had to wait, and closes ended channels.
    fn answer(&mut self) {
        let echoes = self.accepted.iter().filter(|it| it.2).map(|it| it.0);
        for number in echoes.collect::<Vec<u16>>() {
            while self.engine.has_credit(number) {
                match self.engine.receive(number, <[u8]>::to_vec) {
                    Ok(Some(data)) => {
                        if let Ok((to, header)) = self.engine.header(number, data.len()) {
                            self.sent(to, &[&header[..], &data].concat());
                        }
                    }
                    Ok(None) => break,
                    Err(_) => {
                        self.engine.close(number);
                        self.accepted.retain(|it| it.0 != number);
                        break;
                    }
                }
            }
        }
    }

    /// Reads the messages of a device from channels that the user reads.
    fn read(&mut self, device: u16) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let its = self.accepted.iter().filter(|it| !it.2 && it.1.device == device);
        for number in its.map(|it| it.0).collect::<Vec<u16>>() {
            assert!(self.engine.unread(number) <= 128, "more than a channel holds");
            while let Ok(Some(data)) = self.engine.receive(number, <[u8]>::to_vec) {
                if device != VICTIM {
                    assert_eq!(leak::find(&data), None, "bytes of others as the attacker's");
                }
                all.push(data);
            }
        }
        all
    }

    /// Reads all messages of the victim. None is lost, whatever credits others have.
    fn read_victim(&mut self) {
        let lengths: Vec<usize> = self.read(VICTIM).iter().map(Vec::len).collect();
        assert_eq!(
            lengths,
            Vec::from(core::mem::take(&mut self.unread)),
            "messages with credit arrive"
        );
    }

    /// The victim sends `len` marked bytes.
    fn victim_sends(&mut self, channel: u16, len: usize) -> Vec<u8> {
        let data: Vec<u8> = leak::mark(Owner::Victim).into_iter().cycle().take(len).collect();
        let (to, header) = self.victim.header(channel, len).expect("the victim has credit");
        assert_eq!(to, US);
        self.arrive(VICTIM, &[&header[..], &data].concat(), true);
        data
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        match what % 8 {
            0 => {
                // Less than the engine's limit for a silent end, because the victim does not send here.
                self.now = self.now + Duration::from_millis(u64::from(input.byte()) * 4);
                self.engine.poll(self.now);
                self.victim.poll(self.now);
            }
            1 => {
                let length = usize::from(input.byte());
                let bytes = leak::plain(input.take(length));
                self.arrive(ATTACKER, &bytes, what & 0x80 == 0);
            }
            2 if what & 0x80 == 0 => _ = self.read(ATTACKER),
            2 if what & 0x40 == 0 => self.read_victim(),
            2 => {
                // As much as its credit permits.
                while self.victim.has_credit(self.read) {
                    let len = usize::from(input.byte()) * 8;
                    self.victim_sends(self.read, len);
                    self.unread.push_back(len);
                }
            }
            3 => {
                let number = self.known[input.below(self.known.len())];
                self.engine.hold_up(number);
                let _ = self.engine.is_congested();
            }
            4 => self.engine.undelivered(ATTACKER),
            _ => self.message(what, input),
        }
        self.carry();
        let (kept, promised, most) = self.engine.memory();
        assert!(kept <= promised && promised <= most, "{kept} kept, {promised} promised");
    }

    /// A message of the attacker with arbitrary fields.
    fn message(&mut self, what: u8, input: &mut Input<'_>) {
        let operation = match input.below(7) {
            0 => Operation::ConnectRequest,
            1 => Operation::ConnectAcknowledge,
            2 => Operation::Close,
            3 | 4 => Operation::Data,
            5 => Operation::Credit,
            _ => Operation::Finish,
        };
        let to = self.known[input.below(self.known.len())];
        let to = if input.byte() & 0x80 == 0 { to } else { input.word() };
        let from = u16::from(input.byte());
        let length = usize::from(input.word()) % (MOST - HEADER + 1);
        let mut header = Header::new(ATTACKER, US, MAILBOX, operation, to, from);
        header.len = match (operation, what & 0x80 == 0) {
            (Operation::Data, true) => (HEADER + length) as u16,
            _ => input.word(),
        };
        // Often a valid word.
        header.word = match input.byte() {
            few @ 0..=99 => 0x4a00 + u16::from(few),
            count @ 100..=199 => u16::from(count - 100),
            _ => input.word(),
        };
        let data = leak::plain(&vec![input.byte(); length]);
        self.arrive(ATTACKER, &[&header.bytes()[..], &data].concat(), what & 0x40 == 0);
    }
}

/// Connects, sends and closes, with and without credits.
pub fn corpus() -> Vec<Vec<u8>> {
    let message = |operation: u8, to: u8, len: u16, word: u8| {
        let [high, low] = len.to_be_bytes();
        let mut bytes = vec![5, operation, to, 0, 7, high, low];
        if operation != 3 {
            bytes.extend([high, low]);
        }
        bytes.extend([word, 0x55]);
        bytes
    };
    let with = |word: u8| {
        let mut all = [message(0, 0, 0, word), message(0, 1, 0, word)].concat();
        for to in [2, 3, 2, 3] {
            all.extend(message(3, to, 1000, 100));
        }
        // The victim sends as much as it may, and the user reads.
        all.extend([0xc2, 9, 9, 9, 9, 9, 9, 9, 9, 0x82]);
        all.extend([2, 0, 10]);
        all.extend([message(5, 2, 0, 101), message(6, 2, 2, 101), message(2, 3, 0, 0)].concat());
        all
    };
    vec![with(0), with(100)]
}
