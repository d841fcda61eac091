//! TCP listeners of one interface for [`super::tools`]: they move bytes between connections and sessions.

use super::tools::{MAX_SESSIONS, Server, SessionId};
use super::{perftest, qperf};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;
use net::Interface;
use net::tcp::{Closed, Limits, Listener, Stream};
use verbs::{Ctx, Provider};

/// Limits of each port: clients at a time, buffer sizes. A connection has a session or is refused, so a host cannot
/// hold all connections of a port.
const LIMITS: Limits = Limits { connections: MAX_SESSIONS, receive: 512, transmit: 512 };
/// Retry interval while a peer's neighbour entry is being resolved.
const RETRY: Duration = Duration::from_millis(20);

/// The listeners of one interface.
#[derive(Debug)]
pub struct TcpControl {
    ports: [Listener; 2],
    /// Connections: index of the listener, stream, session.
    streams: Vec<(usize, Stream, SessionId)>,
    /// When to retry, if a session waits for a neighbour.
    retry: Option<Instant>,
}

impl TcpControl {
    /// Listens on the ports of the tools.
    pub fn new(interface: &mut Interface) -> Self {
        let ports = [perftest::PORT, qperf::PORT];
        let ports = ports.map(|port| Listener::new(interface, port, LIMITS));
        TcpControl { ports, streams: Vec::new(), retry: None }
    }

    /// Accepts connections and moves bytes. The caller polls after each poll of the interface that handled anything,
    /// and when [`TcpControl::poll_timeout`] or the server's timeout has come.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        server: &mut Server,
        ctx: &mut Ctx<'_, P>,
    ) {
        for (at, listener) in self.ports.iter_mut().enumerate() {
            if interface.is_ready(listener.owner()) {
                // There are few connections: all are served when one is ready.
                while listener.next_news(interface).is_some() {}
            }
            while let Some(stream) = listener.accept(interface, ctx.now) {
                let ends = listener.ends(interface, stream);
                let port = listener.port();
                let id = ends.and_then(|(peer, local)| server.open(port, peer.ip(), local, ctx));
                match id {
                    Some(id) => self.streams.push((at, stream, id)),
                    None => listener.abort(interface, stream, ctx.now),
                }
            }
        }
        self.retry = None;
        let (ports, retry) = (&mut self.ports, &mut self.retry);
        self.streams.retain(|&(at, stream, id)| {
            let Some(listener) = ports.get_mut(at) else { return false };
            match serve(listener, stream, id, interface, server, ctx) {
                Ok(waiting) => {
                    if waiting {
                        *retry = Some(ctx.now + RETRY);
                    }
                    true
                }
                Err(Closed::Finished) => {
                    server.control_closed(id);
                    listener.close(interface, stream, ctx.now);
                    false
                }
                Err(Closed::Gone) => {
                    server.control_closed(id);
                    listener.abort(interface, stream, ctx.now);
                    false
                }
            }
        });
    }

    /// When [`TcpControl::poll`] is due without an event of the interface.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let listeners = self.ports.iter().filter_map(Listener::poll_timeout);
        listeners.chain(self.retry).min()
    }

    /// Closes all connections and listeners.
    pub fn stop(self, interface: &mut Interface, server: &mut Server) {
        for (_, _, id) in self.streams {
            server.control_closed(id);
        }
        for listener in self.ports {
            listener.stop(interface);
        }
    }
}

/// Moves the bytes of one connection; returns whether received bytes wait for an answer.
fn serve<P: Provider + ?Sized>(
    listener: &Listener,
    stream: Stream,
    id: SessionId,
    interface: &mut Interface,
    server: &mut Server,
    ctx: &mut Ctx<'_, P>,
) -> Result<bool, Closed> {
    let mut bytes = [0; 512];
    // The buffers of socket and session bound the number of rounds.
    loop {
        let room = server.room(id).min(bytes.len());
        let (read, end) = match listener.read(interface, stream, &mut bytes[..room]) {
            Ok(count) => (count, None),
            Err(end) => (0, Some(end)),
        };
        server.receive(id, bytes.get(..read).unwrap_or_default());
        server.advance(id, ctx, interface);
        if server.has_ended(id) {
            return Err(Closed::Gone);
        }
        let written = match server.output(id) {
            [] => 0,
            output => listener.write(interface, stream, output)?,
        };
        server.sent(id, written);
        match end {
            Some(end) => return Err(end),
            None if read == 0 && written == 0 => return Ok(server.has_pending_input(id)),
            None => {}
        }
    }
}
