//! A connection of the server with its TCP socket, and optionally a TLS session between the two.

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

/// Interval at which the handler is polled for pending bytes.
const PENDING: Duration = Duration::from_millis(20);

/// An accepted connection.
#[derive(Debug)]
pub(super) struct Open {
    stream: Stream,
    connection: Connection,
    secure: Option<Session>,
    /// When its TLS session failed.
    failed: Option<Instant>,
    stall: Duration,
    /// It has an unhandled event.
    awake: bool,
    /// When it must be served without an event.
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

    /// Whether `stream` is its TCP connection.
    pub fn is(&self, stream: Stream) -> bool {
        self.stream == stream
    }

    /// Marks it for service.
    pub fn wake(&mut self) {
        self.awake = true;
    }

    /// Whether it must be served.
    pub fn is_awake(&self, now: Instant) -> bool {
        self.awake || self.due <= now
    }

    /// When it must be served without an event.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The client's address.
    pub fn from(&self) -> SocketAddr {
        self.connection.from()
    }

    /// Number of calls of the handler.
    pub fn turns(&self) -> u64 {
        self.connection.turns()
    }

    /// Whether its client has been quiet for a while, or its handshake stalls.
    pub fn is_quiet(&self, now: Instant) -> bool {
        self.connection.is_quiet(now) || self.secure.as_ref().is_some_and(|s| s.is_stalled(now))
    }

    /// When it becomes quiet if its client sends nothing more.
    pub fn quiet_at(&self) -> Option<Instant> {
        let stalls = self.secure.as_ref().and_then(Session::stalls_at);
        Instant::first([self.connection.quiet_at(), stalls])
    }

    /// Closes it to free its place for another. Before the end of the TLS handshake it is reset, which frees the place
    /// at once.
    pub fn evict(
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

    /// Start of its present state.
    pub fn since(&self) -> Instant {
        self.connection.since()
    }

    /// Drops the response that is being sent, because the TCP connection is gone.
    pub fn abandon(&mut self, handler: &mut dyn Handler) {
        self.connection.abandon(handler);
    }

    /// Resets it.
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

    /// Closes it after the sent data.
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

    /// Moves bytes while there are any, there is room, and the handler has time. False if the connection was closed.
    pub fn serve(
        &mut self,
        listener: &mut Listener,
        interface: &mut Interface,
        handler: &mut dyn Handler,
        now: Instant,
    ) -> bool {
        self.awake = false;
        while self.step(listener, interface, handler, now) {
            // The buffers bound the number of iterations.
        }
        let stream = self.stream;
        if let Some(refusal) = self.secure.as_ref().and_then(|session| self.refusal(session)) {
            if self.failed.is_none() {
                handler.refused(refusal);
            }
            let end = *self.failed.get_or_insert(now) + self.stall;
            let waits = self.secure.as_ref().is_some_and(|s| !s.outgoing().is_empty());
            if waits && now < end && !listener.is_gone(interface, stream) {
                // The alert for the client still waits for room.
                self.due = end;
                return true;
            }
            self.close(listener, interface, handler, now);
            return false;
        }
        let secure = self.secure.as_mut();
        let ended = secure.as_ref().is_some_and(|session| session.is_ended());
        let shaking = secure.as_ref().is_some_and(|session| !session.is_open());
        let at_end = !listener.may_read(interface, stream);
        if at_end || ended {
            self.connection.handle_end();
        }
        let gone = listener.is_gone(interface, stream);
        if self.connection.is_broken() || gone || at_end && shaking {
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
            // The last records still wait for room.
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
        // It may wait for the handler's time.
        let stuck = self.connection.wants_turn() && !self.connection.is_pending();
        if stuck && !handler.has_time() {
            self.due = now;
        }
        true
    }

    /// Passes received bytes to the connection, lets the handler answer, and sends output. Returns whether any bytes
    /// moved.
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
                connection.set_certificate(session.certificate(now));
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

    /// The refusal of a failed TLS session.
    fn refusal(&self, session: &Session) -> Option<Refusal> {
        let (reason, advice): (_, Cow<'static, str>) = match session.failure()? {
            Failure::Slow => {
                ("tls_timeout", "the client did not complete its TLS handshake in time".into())
            }
            Failure::Wrong(why) => (
                "tls_failed",
                format!("{why}; this port needs https:// with TLS 1.2 or 1.3 (http.tls)").into(),
            ),
        };
        let (who, asked) = (Some(self.from().ip()), "TLS".into());
        Some(Refusal { who, what: "http", asked, reason, advice })
    }
}

/// Sends TLS records while there is room. Returns whether any byte was sent.
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
