//! An end point of a network: a master port with enumeration, Ethernet and channels, as one object that a loop polls.
//!
//! The loop flushes the master port and enables its interrupts through the Ethernet port, which uses the same master
//! port.

mod echo;

use crate::enumeration::{Event, Master, Role};
use crate::rio_cm::{self, Arrival, Engine, HEADER, Reply};
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

/// Maximum number of messages that are taken from a mailbox in one round.
const BATCH: usize = 64;

/// Configuration of an end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether it enumerates the network.
    pub role: Role,
    /// Width of ids, the same on the whole network.
    pub size: IdSize,
    /// Channel of the echo service, if enabled.
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
    /// Channels with events, other than those of the echo service.
    news: VecDeque<u16>,
    /// Buffer for a message that is copied to a capture.
    message: Box<[u8; rio_cm::MOST]>,
    /// Component tags of devices by id. A device that was power-cycled or replaced has a new tag.
    tags: BTreeMap<u16, u32>,
    tap: Tap,
}

/// Work done by a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Number of events and messages.
    pub done: usize,
    /// The loop may have more work from it. False if all messages were returned by the echo service.
    pub leaves_work: bool,
}

/// Result of [`EndPoint::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The port has queued the data.
    Yes,
    /// The port has no room: check [`EndPoint::has_room`].
    NoRoom,
    /// The peer must read first: the channel has an event when there is credit.
    NoCredit,
}

impl EndPoint {
    /// An end point over `port`, and its Ethernet port. Memory of mailboxes is allocated from `arena`.
    pub fn new(
        mut port: OpenPort,
        config: Config,
        arena: &mut Arena,
    ) -> Result<(EndPoint, Rionet), NoMemory> {
        if config.size == IdSize::Large {
            // The width of ids is configured; the host assigns the id.
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

    /// The port, for other engines of the loop. They may use the mailboxes that rionet and rio_cm do not use.
    pub fn port(&self) -> &SharedPort {
        &self.port
    }

    /// The tap of the port. Engines with mailboxes of their own record their messages in it as well.
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// The enumeration of the network.
    pub fn master(&self) -> &Master {
        &self.master
    }

    /// The peers of the Ethernet port.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// All channels.
    pub fn channels(&self) -> &Engine {
        &self.channels
    }

    /// All channels, for users other than the echo service.
    pub fn channels_mut(&mut self) -> &mut Engine {
        &mut self.channels
    }

    /// The next channel that has an event, and is not the echo service's.
    pub fn next_news(&mut self) -> Option<u16> {
        self.news.pop_front()
    }

    /// Whether the port has room to send over a channel.
    pub fn has_room(&self) -> bool {
        self.channels.outgoing().is_none() && self.port.borrow().has_room(rio_cm::MAILBOX, 1)
    }

    /// Sends data over a channel.
    pub fn send(&mut self, number: u16, data: &[u8]) -> Result<Sent, rio_cm::Error> {
        // Control messages are sent first.
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

    /// Number of messages that the echo service has returned, and of its channels.
    pub fn echoed(&self) -> (u64, usize) {
        self.echo.as_ref().map_or((0, 0), |echo| (echo.count(), echo.channels()))
    }

    /// Notifies all peers that this end point leaves. Flush the Ethernet port afterwards.
    pub fn leave(&mut self) {
        self.members.leave();
        self.channels.leave();
        self.send_control();
    }

    /// Polls the port and all engines. Passes events of the network to `notify`.
    pub fn poll(&mut self, now: Instant, mut notify: impl FnMut(&Master, Event)) -> Polled {
        let mut done = 0;
        self.tap.set_now(now);
        self.port.borrow_mut().poll(now);
        self.master.poll(&mut *self.port.borrow_mut(), now);
        while let Some(event) = self.master.event() {
            done += 1;
            self.apply(event);
            notify(&self.master, event);
        }
        while let Some(doorbell) = { self.port.borrow_mut().doorbell() } {
            done += 1;
            self.members.on_doorbell(&doorbell);
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
        let (taken, returned) = self.receive(now);
        done += taken;
        self.channels.poll(now);
        while let Some(number) = self.channels.next_news() {
            done += 1;
            let is_echo = self.echo.as_mut().is_some_and(|echo| echo.on_event(number));
            if !is_echo && self.channels.has(number) {
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
            done += echo.return_messages(&mut self.channels, &self.port, &self.tap);
        }
        let leaves_work = done > 0 && (done > returned || self.port.borrow().pending());
        Polled { done, leaves_work }
    }

    fn apply(&mut self, event: Event) {
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
                self.members.network_lost();
                self.channels.devices_gone(|_| true);
            }
            Event::Failed(_) => {}
        }
    }

    /// Receives messages of channels: the number taken, and the number of these that were returned at once.
    fn receive(&mut self, now: Instant) -> (usize, usize) {
        let EndPoint { port, channels, echo, tap, message: whole, .. } = self;
        let mut port = port.borrow_mut();
        let (mut taken, mut returned) = (0, 0);
        // Messages left in the mailbox block their senders by RapidIO's own flow control.
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
            if let Some(Reply { to, header, len }) = channels.arrive(&arrival, copy)
                && let Some(data) = memory.slice(HEADER, len)
            {
                let packet = Packet { header: &header, payload: &[data], trailer: &[] };
                let sent = port.send(rio_cm::MAILBOX, to, &packet);
                returned += 1;
                if let (Ok(()), Some(echo)) = (sent, &mut *echo) {
                    echo.count_returned();
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
        (taken, returned)
    }

    /// Sends control messages of channels. The rest is sent when the port has room.
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

    /// When [`EndPoint::poll`] must be called again at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let port = self.port.borrow().deadline();
        let [master, members] = [self.master.deadline(), self.members.deadline()];
        Instant::first([port, master, members, self.channels.deadline()])
    }
}
