//! The TCP side of [`super::tools`]: listeners on one interface, and bytes to and from sessions.

use super::tools::{Server, SessionId};
use super::{perftest, qperf};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;
use net::Interface;
use net::tcp::{Closed, Limits, Listener, Stream};
use verbs::EngineContext;
use verbs::Provider;

/// Clients that are served at a time on each port.
const LIMITS: Limits = Limits { connections: 4, receive: 512, transmit: 512 };
/// How often a way to a peer that is being looked for is asked for again.
const RETRY: Duration = Duration::from_millis(20);

/// The listeners of one interface.
#[derive(Debug)]
pub struct TcpControl {
    ports: [Listener; 2],
    /// Connections: on which listener, and whose.
    streams: Vec<(usize, Stream, SessionId)>,
    /// Somebody waits for a neighbour.
    retry: Option<Instant>,
}

impl TcpControl {
    /// Listens on the ports of the tools.
    pub fn new(interface: &mut Interface) -> Self {
        let ports = [perftest::PORT, qperf::PORT];
        let ports = ports.map(|port| Listener::new(interface, port, LIMITS));
        TcpControl { ports, streams: Vec::new(), retry: None }
    }

    /// Moves bytes; to be called after each poll of the interface in which anything happened, and
    /// when [`TcpControl::poll_timeout`] or the server's timeout has come.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        server: &mut Server,
        ctx: &mut EngineContext<'_, P>,
    ) {
        for (at, listener) in self.ports.iter_mut().enumerate() {
            if interface.is_ready(listener.owner()) {
                // There are few: all are looked at when one has news.
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
            let goes_on = serve(listener, stream, id, interface, server, ctx);
            match goes_on {
                Ok(waits) => {
                    if waits {
                        *retry = Some(ctx.now + RETRY);
                    }
                    true
                }
                Err(Closed::Finished) => {
                    server.hang_up(id);
                    listener.close(interface, stream, ctx.now);
                    false
                }
                Err(Closed::Gone) => {
                    server.hang_up(id);
                    listener.abort(interface, stream, ctx.now);
                    false
                }
            }
        });
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let listeners = self.ports.iter().filter_map(Listener::poll_timeout);
        listeners.chain(self.retry).min()
    }

    /// Ends everything.
    pub fn stop(self, interface: &mut Interface, server: &mut Server) {
        for (_, _, id) in self.streams {
            server.hang_up(id);
        }
        for listener in self.ports {
            listener.stop(interface);
        }
    }
}

/// Moves the bytes of one connection; whether something that has arrived is not answered yet.
fn serve<P: Provider + ?Sized>(
    listener: &Listener,
    stream: Stream,
    id: SessionId,
    interface: &mut Interface,
    server: &mut Server,
    ctx: &mut EngineContext<'_, P>,
) -> Result<bool, Closed> {
    let mut bytes = [0; 512];
    // The socket's and the session's buffers bound how often this goes round.
    loop {
        let room = server.room(id).min(bytes.len());
        let (read, end) = match listener.read(interface, stream, &mut bytes[..room]) {
            Ok(count) => (count, None),
            Err(end) => (0, Some(end)),
        };
        server.receive(id, bytes.get(..read).unwrap_or_default());
        server.advance(id, ctx, interface);
        if server.is_over(id) {
            return Err(Closed::Gone);
        }
        let written = match server.output(id) {
            [] => 0,
            output => listener.write(interface, stream, output)?,
        };
        server.sent(id, written);
        match end {
            Some(end) => return Err(end),
            None if read == 0 && written == 0 => return Ok(server.has_unanswered(id)),
            None => {}
        }
    }
}
