//! An end point of a network: a master port with enumeration, Ethernet and channels on it, as one thing that a loop
//! polls.
//!
//! What the loop does for the port beside that, telling it of what was queued and asking it for interrupts, it does by
//! the Ethernet port, which stands on the same master port.

mod echo;

use crate::enumeration::{Event, Master, Role};
use crate::rio_cm::{self, Arrival, Back, Engine, HEADER};
use crate::rionet::{self, Members, Rionet, SharedPort};
use crate::tap::Tap;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use core::cell::RefCell;
use core::fmt;
use drivers::hal::{Arena, Instant, Packet};
use drivers::rapidio::{IdSize, OpenPort};
use echo::Echo;

/// Messages that are taken from a mailbox in one round.
const BATCH: usize = 64;

/// What is configured of an end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether it enumerates.
    pub role: Role,
    /// How wide ids are; the same on the whole network.
    pub size: IdSize,
    /// The channel on which what is said is said back.
    pub echo: Option<u16>,
}

/// There is no memory left for the port's mailboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DMA arena is full: give the machine more memory")
    }
}

impl core::error::Error for NoMemory {}

/// An end point.
pub struct EndPoint {
    port: SharedPort,
    master: Master,
    members: Members,
    channels: Engine,
    echo: Option<Echo>,
    /// Channels of others than the echo service that have news.
    news: VecDeque<u16>,
    /// A message that is shown to a capture.
    message: Box<[u8; rio_cm::MOST]>,
    /// Component tags of devices by id: one that was switched off and on, or has made way for another, has a new one.
    tags: BTreeMap<u16, u32>,
    tap: Tap,
}

/// What a poll has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// How much.
    pub done: usize,
    /// Others may have something to do of it: for what was said back at once, nobody has.
    pub leaves_work: bool,
}

/// What became of data that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The port has it.
    Yes,
    /// The port has no room: [`EndPoint::has_room`] says when it has.
    NoRoom,
    /// The other end has to take something first: the channel has news when it has.
    NoCredit,
}

impl EndPoint {
    /// An end point over `port`, which takes memory for mailboxes from `arena`, and its Ethernet port.
    pub fn new(
        mut port: OpenPort,
        config: Config,
        arena: &mut Arena,
    ) -> Result<(EndPoint, Rionet), NoMemory> {
        if config.size == IdSize::Large {
            // How wide ids are is configured; the id itself is the host's to give.
            port.set_own_id(config.size, config.size.any());
        }
        for mailbox in [rionet::MAILBOX, rio_cm::MAILBOX] {
            if !port.open_mailbox(mailbox, arena) {
                return Err(NoMemory);
            }
        }
        let port: SharedPort = Rc::new(RefCell::new(port));
        let (rionet, members) = rionet::open(&port);
        let mut channels = Engine::new(config.size.any(), rio_cm::MAILBOX);
        let echo = config.echo.map(|number| Echo::new(number, &mut channels));
        let master = Master::new(config.role, config.size);
        let message = Box::new([0; rio_cm::MOST]);
        let (news, tags, tap) = (VecDeque::new(), BTreeMap::new(), Tap::default());
        Ok((EndPoint { port, master, members, channels, echo, news, message, tags, tap }, rionet))
    }

    /// The port, for others of the same loop: a mailbox that is none of rionet's and rio_cm's is theirs.
    pub fn port(&self) -> &SharedPort {
        &self.port
    }

    /// Where messages go by; whoever has a mailbox of his own shows his there, too.
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// How the network is known.
    pub fn master(&self) -> &Master {
        &self.master
    }

    /// Who takes part in Ethernet.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// All channels.
    pub fn channels(&self) -> &Engine {
        &self.channels
    }

    /// All channels, for who has some of his own.
    pub fn channels_mut(&mut self) -> &mut Engine {
        &mut self.channels
    }

    /// The next channel that has news, and is not the echo service's.
    pub fn next_news(&mut self) -> Option<u16> {
        self.news.pop_front()
    }

    /// Whether there is room to send over a channel.
    pub fn has_room(&self) -> bool {
        self.channels.outgoing().is_none() && self.port.borrow().has_room(rio_cm::MAILBOX, 1)
    }

    /// Sends data over a channel.
    pub fn send(&mut self, number: u16, data: &[u8]) -> Result<Sent, rio_cm::Error> {
        // What channels say of themselves goes ahead.
        self.send_control();
        if !self.has_room() {
            return Ok(Sent::NoRoom);
        }
        let (to, header) = match self.channels.header(number, data.len()) {
            Err(rio_cm::Error::NoCredit) => return Ok(Sent::NoCredit),
            other => other?,
        };
        if self.tap.is_wanted()
            && let Some((head, body)) = self.message.split_first_chunk_mut::<HEADER>()
            && let Some(body) = body.get_mut(..data.len())
        {
            *head = header;
            body.copy_from_slice(data);
            self.tap.sent(to, rio_cm::MAILBOX, &self.message[..HEADER + data.len()]);
        }
        let packet = Packet { header: &header, payload: &[], trailer: data };
        if self.port.borrow_mut().send(rio_cm::MAILBOX, to, &packet).is_err() {
            self.channels.undelivered(to);
        }
        Ok(Sent::Yes)
    }

    /// Messages that the echo service has said back, and channels that it has.
    pub fn echoed(&self) -> (u64, usize) {
        self.echo.as_ref().map_or((0, 0), |echo| (echo.count(), echo.channels()))
    }

    /// Everybody is told that this end point leaves. The Ethernet port is to be flushed after that.
    pub fn leave(&mut self) {
        self.members.leave();
        self.channels.leave();
        self.send_control();
    }

    /// Goes on. News of the network go to `tell`.
    pub fn poll(&mut self, now: Instant, mut tell: impl FnMut(&Master, Event)) -> Polled {
        let mut done = 0;
        self.tap.set_now(now);
        self.port.borrow_mut().poll(now);
        self.master.poll(&mut *self.port.borrow_mut(), now);
        while let Some(event) = self.master.event() {
            done += 1;
            self.heed(event);
            tell(&self.master, event);
        }
        while let Some(doorbell) = { self.port.borrow_mut().doorbell() } {
            done += 1;
            self.members.hear(&doorbell);
        }
        while let Some(lost) = { self.port.borrow_mut().undelivered() } {
            done += 1;
            if lost.mailbox == rionet::MAILBOX {
                self.members.undelivered(&lost);
            } else if lost.mailbox == rio_cm::MAILBOX {
                self.channels.undelivered(lost.to);
            }
        }
        self.members.poll(now);
        let (taken, said_back) = self.receive(now);
        done += taken;
        self.channels.poll(now);
        while let Some(number) = self.channels.next_news() {
            done += 1;
            let heard = self.echo.as_mut().is_some_and(|echo| echo.hear(number));
            if !heard && self.channels.has(number) {
                self.news.push_back(number);
            }
        }
        if let Some(echo) = &mut self.echo {
            done += echo.accept(&mut self.channels, now);
        }
        self.send_control();
        if let Some(echo) = &mut self.echo
            && self.channels.outgoing().is_none()
        {
            done += echo.answer(&mut self.channels, &self.port, &self.tap);
        }
        let leaves_work = done > 0 && (done > said_back || self.port.borrow().pending());
        Polled { done, leaves_work }
    }

    fn heed(&mut self, event: Event) {
        let network = self.master.network();
        match event {
            Event::Changed => {
                self.members.set_network(network);
                self.channels.set_own_id(network.own_id);
                self.tap.set_own_id(network.own_id);
                let tags: BTreeMap<u16, u32> =
                    network.end_points().map(|device| (device.id, device.tag)).collect();
                let before = core::mem::replace(&mut self.tags, tags);
                let is_gone = |id| match (self.tags.get(&id), before.get(&id)) {
                    (None, _) => true,
                    (Some(now), before) => before.is_some_and(|before| before != now),
                };
                self.channels.devices_gone(is_gone);
            }
            Event::Lost | Event::Retreated => {
                self.members.lose();
                self.channels.devices_gone(|_| true);
            }
            Event::Failed(_) => {}
        }
    }

    /// How many messages were taken, and how many of these were said back at once.
    fn receive(&mut self, now: Instant) -> (usize, usize) {
        let EndPoint { port, channels, echo, tap, message: whole, .. } = self;
        let mut port = port.borrow_mut();
        let (mut taken, mut said_back) = (0, 0);
        // What is left in the mailbox, RapidIO holds back at its senders.
        while taken < BATCH
            && !channels.is_congested()
            && let Some(message) = port.receive(rio_cm::MAILBOX)
        {
            taken += 1;
            let (from, memory) = (message.from, port.payload(&message));
            if tap.is_wanted()
                && let Some(bytes) = whole.get_mut(..memory.len())
                && memory.read(0, bytes).is_ok()
            {
                tap.received(from, rio_cm::MAILBOX, bytes);
            }
            let header = memory.read_array(0).unwrap_or_default();
            let has_room = echo.is_some() && port.has_room(rio_cm::MAILBOX, 1);
            let arrival = Arrival { from, header: &header, length: memory.len(), has_room, now };
            let copy = |into: &mut [u8]| memory.read(HEADER, into).is_ok();
            if let Some(Back { to, header, len }) = channels.arrive(&arrival, copy)
                && let Some(data) = memory.slice(HEADER, len)
            {
                let packet = Packet { header: &header, payload: &[data], trailer: &[] };
                let sent = port.send(rio_cm::MAILBOX, to, &packet);
                said_back += 1;
                if let (Ok(()), Some(echo)) = (sent, &mut *echo) {
                    echo.said_back();
                }
                if tap.is_wanted()
                    && let Some(bytes) = whole.get_mut(..HEADER + len)
                    && data.read(0, &mut bytes[HEADER..]).is_ok()
                {
                    bytes[..HEADER].copy_from_slice(&header);
                    tap.sent(to, rio_cm::MAILBOX, bytes);
                }
            }
            port.recycle(message);
        }
        (taken, said_back)
    }

    /// Sends what channels say of themselves. What finds no room is sent when there is some.
    fn send_control(&mut self) {
        while let Some((to, header)) = self.channels.outgoing() {
            let packet = Packet { header: &header, payload: &[], trailer: &[] };
            if self.port.borrow_mut().send(rio_cm::MAILBOX, to, &packet).is_err() {
                break;
            }
            self.tap.sent(to, rio_cm::MAILBOX, &header);
            self.channels.was_sent();
        }
    }

    /// When it wants to be polled though nothing arrives.
    pub fn deadline(&self) -> Option<Instant> {
        let port = self.port.borrow().deadline();
        let [master, members] = [self.master.deadline(), self.members.deadline()];
        Instant::first([port, master, members, self.channels.deadline()])
    }
}
