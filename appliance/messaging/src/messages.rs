//! The transports of a machine that carry messages, as rules see them.

use crate::linx::LinxTransport;
use crate::names::MessageName;
use crate::rio_cm::RioCmTransport;
use crate::transport::{Carries, Closed, Event, Over, Reason, Transport, Unwritten};
use crate::usnic::UsnicTransport;
use alloc::format;
use alloc::string::String;

/// An end of a rule: what is listened on, or connected to.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The end.
    pub name: MessageName,
    /// The number of the rule's end: what comes of it is told by this.
    pub owner: u32,
    /// The number of all signals of LINX, if it is no part of messages.
    pub signal: Option<u32>,
    /// Most connections at a time.
    pub connections: usize,
    /// What it is called where a peer sees a name: the rule's.
    pub label: String,
}

/// What keeps an end from being used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What it is, and what to do.
    pub why: String,
    /// Nothing is wrong: it goes away when a network is known, say.
    pub passes: bool,
}

impl From<String> for Obstacle {
    fn from(why: String) -> Self {
        Obstacle { why, passes: false }
    }
}

/// A transport that carries messages.
pub trait MessageTransport: Transport<Connection = u32, Target = Wanted> {
    /// What keeps an end from being listened on, or connected to; None if nothing does.
    fn obstacle(&self, name: &MessageName, listens: bool) -> Option<Obstacle>;
    /// Listens for connections of this end.
    fn listen(&mut self, end: &Wanted) -> Result<(), String>;
    /// Accepts up to so many connections of an end at a time from here on. Those that there are stay.
    fn relimit(&mut self, _owner: u32, _connections: usize) {}
    /// Ends that: connections that are not accepted yet end.
    fn unlisten(&mut self, owner: u32);
    /// What is new, and of which end of which rule.
    fn next_owned(&mut self) -> Option<(u32, Event<u32>)>;
}

/// Names a connection over one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageConnection {
    /// What carries it.
    pub over: Over,
    /// By which that knows it.
    pub key: u32,
}

/// All of them. What is not there is not in force.
#[derive(Default)]
pub struct Messages<'a> {
    /// LINX.
    pub linx: Option<LinxTransport<'a>>,
    /// usNIC.
    pub usnic: Option<UsnicTransport<'a>>,
    /// Channels of rio_cm.
    pub rio_cm: Option<RioCmTransport<'a>>,
}

/// What carries the connections of an end.
fn over(name: &MessageName) -> Over {
    match name {
        MessageName::Linx { .. } => Over::Linx,
        MessageName::RioCm { .. } => Over::RioCm,
        MessageName::Usnic { .. } => Over::Usnic,
    }
}

impl Messages<'_> {
    fn of(&mut self, over: Over) -> Option<&mut dyn MessageTransport> {
        match over {
            Over::Linx => self.linx.as_mut().map(|it| it as _),
            Over::Usnic => self.usnic.as_mut().map(|it| it as _),
            Over::RioCm => self.rio_cm.as_mut().map(|it| it as _),
            Over::Smc | Over::Tcp => None,
        }
    }

    fn get(&self, over: Over) -> Option<&dyn MessageTransport> {
        match over {
            Over::Linx => self.linx.as_ref().map(|it| it as _),
            Over::Usnic => self.usnic.as_ref().map(|it| it as _),
            Over::RioCm => self.rio_cm.as_ref().map(|it| it as _),
            Over::Smc | Over::Tcp => None,
        }
    }

    /// What keeps an end from being used.
    pub fn obstacle(&self, name: &MessageName, listens: bool) -> Option<Obstacle> {
        match self.get(over(name)) {
            Some(transport) => transport.obstacle(name, listens),
            None => {
                let why =
                    "nothing of the kind is in force: `save` and `reboot` if it is configured";
                Some(format!("{name}: {why}").into())
            }
        }
    }

    /// As [`MessageTransport::listen`].
    pub fn listen(&mut self, end: &Wanted) -> Result<(), String> {
        match self.of(over(&end.name)) {
            Some(transport) => transport.listen(end),
            None => Err(format!("{}: nothing of the kind is in force", end.name)),
        }
    }

    /// As [`MessageTransport::relimit`].
    pub fn relimit(&mut self, end: &Wanted) {
        if let Some(transport) = self.of(over(&end.name)) {
            transport.relimit(end.owner, end.connections);
        }
    }

    /// As [`MessageTransport::unlisten`].
    pub fn unlisten(&mut self, end: &Wanted) {
        if let Some(transport) = self.of(over(&end.name)) {
            transport.unlisten(end.owner);
        }
    }

    /// What is new, and the owner of the end that it is of.
    #[inline]
    pub fn next_owned(&mut self) -> Option<(u32, Event<MessageConnection>)> {
        let of = |over: Over, (owner, event): (u32, Event<u32>)| {
            (owner, event.map(|key| MessageConnection { over, key }))
        };
        if let Some(event) = self.linx.as_mut().and_then(|it| it.next_owned()) {
            return Some(of(Over::Linx, event));
        }
        if let Some(event) = self.usnic.as_mut().and_then(|it| it.next_owned()) {
            return Some(of(Over::Usnic, event));
        }
        let rio_cm = self.rio_cm.as_mut().and_then(|it| it.next_owned());
        rio_cm.map(|event| of(Over::RioCm, event))
    }
}

impl Transport for Messages<'_> {
    type Connection = MessageConnection;
    type Target = Wanted;

    fn next_event(&mut self) -> Option<Event<MessageConnection>> {
        self.next_owned().map(|(_, event)| event)
    }

    fn connect(&mut self, to: &Wanted) -> Option<MessageConnection> {
        let over = over(&to.name);
        let key = self.of(over)?.connect(to)?;
        Some(MessageConnection { over, key })
    }

    fn carries(&self, MessageConnection { over, key }: MessageConnection) -> Carries {
        self.get(over).map_or(Carries::Messages { longest: 0 }, |it| it.carries(key))
    }

    fn message(
        &mut self,
        MessageConnection { over, key }: MessageConnection,
    ) -> Result<Option<usize>, Closed> {
        self.of(over).map_or(Err(Closed::Gone), |it| it.message(key))
    }

    fn read(
        &mut self,
        MessageConnection { over, key }: MessageConnection,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        self.of(over).map_or(Err(Closed::Gone), |it| it.read(key, into))
    }

    fn room(&mut self, MessageConnection { over, key }: MessageConnection) -> usize {
        self.of(over).map_or(0, |it| it.room(key))
    }

    fn write(
        &mut self,
        MessageConnection { over, key }: MessageConnection,
        bytes: &[u8],
    ) -> Result<usize, Unwritten> {
        self.of(over).map_or(Err(Unwritten::Ended(Closed::Gone)), |it| it.write(key, bytes))
    }

    fn finish(&mut self, MessageConnection { over, key }: MessageConnection) {
        if let Some(transport) = self.of(over) {
            transport.finish(key);
        }
    }

    fn close(&mut self, MessageConnection { over, key }: MessageConnection, abort: bool) -> usize {
        self.of(over).map_or(0, |it| it.close(key, abort))
    }

    fn reason(&self, MessageConnection { over, key }: MessageConnection) -> Reason {
        self.get(over).map_or(Reason::LinkDown, |it| it.reason(key))
    }

    fn is_watched(&self, MessageConnection { over, key }: MessageConnection) -> bool {
        self.get(over).is_none_or(|it| it.is_watched(key))
    }
}
