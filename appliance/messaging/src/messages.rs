//! The machine's message transports (LINX, usNIC, rio_cm), combined as one transport for rules.

use crate::linx::LinxTransport;
use crate::names::MessageName;
use crate::rio_cm::RioCmTransport;
use crate::transport::{
    Carries, Closed, Event, MessageTransport, Obstacle, Over, Reason, Transport, Unwritten, Wanted,
};
use crate::usnic::UsnicTransport;
use alloc::format;
use alloc::string::String;

/// ID of a connection over a message transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageConnection {
    /// Its transport.
    pub over: Over,
    /// ID in the transport.
    pub key: u32,
}

/// All message transports. A transport that is not in force is None.
#[derive(Default)]
pub struct Messages<'a> {
    /// LINX.
    pub linx: Option<LinxTransport<'a>>,
    /// usNIC.
    pub usnic: Option<UsnicTransport<'a>>,
    /// Channels of rio_cm.
    pub rio_cm: Option<RioCmTransport<'a>>,
}

/// The transport of an end.
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

    /// Why an end cannot be used.
    pub fn obstacle(&self, name: &MessageName, listens: bool) -> Option<Obstacle> {
        match self.get(over(name)) {
            Some(transport) => transport.obstacle(name, listens),
            None => {
                let why = "its transport is not in force: configure it, then `save` and `reboot`";
                Some(format!("{name}: {why}").into())
            }
        }
    }

    /// As [`MessageTransport::listen`].
    pub fn listen(&mut self, end: &Wanted) -> Result<(), String> {
        match self.of(over(&end.name)) {
            Some(transport) => transport.listen(end),
            None => Err(format!("{}: its transport is not in force", end.name)),
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

    /// The next event, and the owner of its end.
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
