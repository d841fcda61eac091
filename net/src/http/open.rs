//! One connection of the server with its TCP socket, and TLS between the two if the server speaks that.

use super::{Connection, Handler, Limits};
use crate::Interface;
use crate::refusal::Refusal;
use crate::tcp::{Listener, Stream};
use crate::tls::{Failure, Session};
use alloc::borrow::Cow;
use alloc::format;
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// When to ask again for bytes that the handler did not have.
const PENDING: Duration = Duration::from_millis(20);

/// A connection that was accepted.
#[derive(Debug)]
pub(super) struct Open {
    stream: Stream,
    connection: Connection,
    secure: Option<Session>,
    /// Since when its session has failed.
    failed: Option<Instant>,
    stall: Duration,
    /// Something has happened to it.
    awake: bool,
    /// When there is something to do, if nothing happens.
    due: Instant,
}

impl Open {
    pub fn new(
        stream: Stream,
        limits: Limits,
        from: SocketAddr,
        secure: Option<Session>,
        now: Instant,
    ) -> Open {
        let connection = Connection::new(limits, from, now);
        let stall = limits.stall;
        Open { stream, connection, secure, failed: None, stall, awake: true, due: now }
    }

    /// Whether this is its name.
    pub fn is(&self, stream: Stream) -> bool {
        self.stream == stream
    }

    /// Something has happened to it.
    pub fn wake(&mut self) {
        self.awake = true;
    }

    /// Whether it has to be looked at.
    pub fn is_awake(&self, now: Instant) -> bool {
        self.awake || self.due <= now
    }

    /// When it has to be looked at, if nothing happens.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Who is at the other end.
    pub fn from(&self) -> SocketAddr {
        self.connection.from()
    }

    /// How often the handler was asked for something.
    pub fn turns(&self) -> u64 {
        self.connection.turns()
    }

    /// Whether its client has been quiet for a while, or its handshake stalls.
    pub fn is_quiet(&self, now: Instant) -> bool {
        self.connection.is_quiet(now) || self.secure.as_ref().is_some_and(|s| s.is_stalled(now))
    }

    /// When it will be quiet, if its client says nothing more.
    pub fn quiet_at(&self) -> Option<Instant> {
        let stalls = self.secure.as_ref().and_then(Session::stalls_at);
        Instant::first([self.connection.quiet_at(), stalls])
    }

    /// Ends it for another: in order if its client was served, else by a reset, which waits for nobody.
    pub fn give_way(
        &mut self,
        listener: &mut Listener,
        interface: &mut Interface,
        handler: &mut dyn Handler,
        now: Instant,
    ) {
        match self.secure.as_ref().is_some_and(|session| !session.is_open()) {
            true => self.abort(listener, interface, handler, now),
            false => self.close(listener, interface, handler, now),
        }
    }

    /// Since when it is in its present state.
    pub fn since(&self) -> Instant {
        self.connection.since()
    }

    /// The connection is gone: gives up what was being sent.
    pub fn abandon(&mut self, handler: &mut dyn Handler) {
        self.connection.abandon(handler);
    }

    /// Ends it by a reset.
    pub fn abort(
        &mut self,
        listener: &mut Listener,
        interface: &mut Interface,
        handler: &mut dyn Handler,
        now: Instant,
    ) {
        listener.abort(interface, self.stream, now);
        self.abandon(handler);
    }

    /// Ends it in order.
    pub fn close(
        &mut self,
        listener: &mut Listener,
        interface: &mut Interface,
        handler: &mut dyn Handler,
        now: Instant,
    ) {
        if let Some(session) = &mut self.secure {
            session.close();
            send(session, listener, interface, self.stream);
        }
        listener.close(interface, self.stream, now);
        self.abandon(handler);
    }

    /// Moves bytes as long as there are any, there is room, and the handler has time; whether the connection
    /// goes on.
    pub fn serve(
        &mut self,
        listener: &mut Listener,
        interface: &mut Interface,
        handler: &mut dyn Handler,
        now: Instant,
    ) -> bool {
        self.awake = false;
        while self.step(listener, interface, handler, now) {
            // The buffers bound how often this goes round.
        }
        let stream = self.stream;
        if let Some(refusal) = self.secure.as_ref().and_then(|session| self.refusal(session)) {
            if self.failed.is_none() {
                handler.refused(refusal);
            }
            let end = *self.failed.get_or_insert(now) + self.stall;
            let waits = self.secure.as_ref().is_some_and(|s| !s.outgoing().is_empty());
            if waits && now < end && !listener.is_gone(interface, stream) {
                // The alert that tells the client has no room yet.
                self.due = end;
                return true;
            }
            self.close(listener, interface, handler, now);
            return false;
        }
        let secure = self.secure.as_mut();
        let ended = secure.as_ref().is_some_and(|session| session.is_ended());
        let shaking = secure.as_ref().is_some_and(|session| !session.is_open());
        let heard_all = !listener.may_read(interface, stream);
        if heard_all || ended {
            self.connection.handle_end();
        }
        let gone = listener.is_gone(interface, stream);
        if self.connection.is_broken() || gone || heard_all && shaking {
            self.abort(listener, interface, handler, now);
            return false;
        }
        if self.connection.is_finished() {
            let waits = secure.is_some_and(|session| {
                session.close();
                send(session, listener, interface, stream);
                !session.outgoing().is_empty()
            });
            if !waits {
                self.close(listener, interface, handler, now);
                return false;
            }
            // The end of what is said has no room yet.
            self.due = self.connection.since() + self.stall;
            if self.due <= now {
                self.abort(listener, interface, handler, now);
                return false;
            }
            return true;
        }
        let timeout = match self.connection.is_pending() {
            true => now + PENDING,
            false => self.connection.poll_timeout(),
        };
        let handshake = self.secure.as_ref().and_then(Session::poll_timeout);
        self.due = handshake.map_or(timeout, |at| at.min(timeout));
        // What it waits for may be the handler's time.
        let stuck = self.connection.wants_turn() && !self.connection.is_pending();
        if stuck && !handler.has_time() {
            self.due = now;
        }
        true
    }

    /// Takes in what has come, has it answered, and sends what there is; whether anything moved.
    fn step(
        &mut self,
        listener: &mut Listener,
        interface: &mut Interface,
        handler: &mut dyn Handler,
        now: Instant,
    ) -> bool {
        let Open { stream, connection, secure, .. } = self;
        let stream = *stream;
        let mut moved = match secure {
            None => listener.take(interface, stream, |bytes| connection.handle_input(bytes, now)),
            Some(session) => {
                let came = listener.take(interface, stream, |bytes| session.receive(bytes));
                session.poll(now);
                session.take(|text| connection.handle_input(text, now)) || came
            }
        };
        if handler.has_time() || !connection.wants_turn() {
            connection.poll(handler, now);
        }
        let room = match secure {
            None => listener.room(interface, stream) > 0,
            Some(session) => session.has_room(),
        };
        if room && (handler.has_time() || !connection.wants_turn()) {
            let text = connection.output(handler, now);
            let sent = match secure {
                None => listener.write(interface, stream, text).unwrap_or(0),
                Some(session) => session.write(text),
            };
            connection.consume(sent, now);
            moved |= sent > 0;
        }
        if let Some(session) = secure {
            moved |= send(session, listener, interface, stream);
        }
        moved
    }

    /// What is told of a session that is over, if it is.
    fn refusal(&self, session: &Session) -> Option<Refusal> {
        let (reason, advice): (_, Cow<'static, str>) = match session.failure()? {
            Failure::Slow => ("tls_timeout", "it did not end its TLS handshake in time".into()),
            Failure::Wrong(why) => (
                "tls_failed",
                format!("{why}; https:// with TLS 1.2 or 1.3 is spoken here (http.tls)").into(),
            ),
        };
        let (who, asked) = (Some(self.from().ip()), "TLS".into());
        Some(Refusal { who, what: "http", asked, reason, advice })
    }
}

/// Sends records as far as there is room; whether any byte went.
fn send(
    session: &mut Session,
    listener: &mut Listener,
    interface: &mut Interface,
    stream: Stream,
) -> bool {
    if session.outgoing().is_empty() {
        return false;
    }
    let sent = listener.write(interface, stream, session.outgoing()).unwrap_or(0);
    session.consume(sent);
    sent > 0
}
