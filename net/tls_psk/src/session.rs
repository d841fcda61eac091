//! A TLS connection without its TCP socket.

use crate::alert::{Alert, Checked, Failure, Violation};
use crate::client::{Client, OfferedPsk};
use crate::connection::{Config, Connection, Content, Random};
use crate::record::APPLICATION_DATA;
use crate::schedule::Psk;
use crate::server::Server;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use drivers::hal::Instant;

/// A session. See the crate's opening comment for its states.
pub struct Session {
    connection: Connection,
    side: Side,
    is_client: bool,
    accepted: Option<usize>,
}

enum Side {
    Server(Box<Server>),
    Client(Box<Client>),
    /// The handshake is complete, or has failed.
    Over,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { open, ended, closed, failure, .. } = &self.connection;
        write!(
            f,
            "Session {{ open: {open}, ended: {ended}, closed: {closed}, failure: {failure:?} }}"
        )
    }
}

impl Session {
    /// A session with a client that is about to send its ClientHello.
    pub fn server(config: Config, random: Random<'_>, now: Instant) -> Session {
        let side = Side::Server(Box::new(Server::new(random)));
        Session { connection: Connection::new(config, now), side, is_client: false, accepted: None }
    }

    /// A session with a server, to which it offers one to four keys, the best first. [`Session::outgoing`] has the
    /// ClientHello. Without a usable key or group the session has failed.
    pub fn client(
        config: Config,
        psks: Vec<OfferedPsk>,
        random: Random<'_>,
        now: Instant,
    ) -> Session {
        let mut connection = Connection::new(config, now);
        let side = match Client::new(psks, &mut connection, random) {
            Ok(client) => Side::Client(Box::new(client)),
            Err(Violation { alert, why }) => {
                connection.failure = Some(Failure::Violation { alert, why });
                Side::Over
            }
        };
        Session { connection, side, is_client: true, accepted: None }
    }

    /// Takes bytes from the peer. Returns how many: not all while a key is wanted, or [`Session::text`] is not
    /// consumed. The caller offers the rest again.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> usize {
        self.expire(now);
        let mut taken = 0;
        while taken < bytes.len() {
            if self.connection.is_over() {
                return bytes.len();
            }
            if self.wants_key() || !self.connection.incoming.text().is_empty() {
                break;
            }
            let rest = bytes.get(taken..).unwrap_or_default();
            match self.connection.incoming.fill(rest, self.connection.sealed()) {
                Ok((count, complete)) => {
                    taken += count;
                    if complete && let Err(why) = self.record() {
                        self.fail(why);
                    }
                }
                Err(why) => self.fail(why),
            }
        }
        self.connection.settle();
        taken
    }

    fn record(&mut self) -> Checked<()> {
        match self.connection.record()? {
            Content::Nothing => (),
            Content::Handshake => {
                while let Some(message) = self.connection.next_message()? {
                    self.message(message)?;
                }
            }
        }
        if self.connection.is_over() {
            self.side = Side::Over;
            self.connection.drop_input();
        }
        Ok(())
    }

    fn message(&mut self, message: Vec<u8>) -> Checked<()> {
        let complete = match &mut self.side {
            Side::Server(server) => server.message(&mut self.connection, message)?,
            Side::Client(client) => {
                let complete = client.message(&mut self.connection, &message)?;
                self.accepted = client.accepted();
                complete
            }
            Side::Over => return self.connection.late_message(&message, self.is_client),
        };
        if complete {
            self.side = Side::Over;
            self.connection.opened();
        }
        Ok(())
    }

    fn fail(&mut self, why: Violation) {
        self.side = Side::Over;
        self.connection.fail(why);
    }

    /// Enforces the deadline of the handshake.
    pub fn poll(&mut self, now: Instant) {
        self.expire(now);
        self.connection.settle();
    }

    fn expire(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.connection.failure = Some(Failure::Slow);
            self.side = Side::Over;
            self.connection.drop_input();
        }
    }

    /// When [`Session::poll`] is due if no bytes arrive.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.connection.open && self.connection.failure.is_none())
            .then_some(self.connection.deadline)
    }

    /// Whether a server waits for [`Session::try_key`] or [`Session::refuse`].
    pub fn wants_key(&self) -> bool {
        matches!(&self.side, Side::Server(server) if server.wants_key())
    }

    /// The identities that the client offers, while a key is wanted; the first eight. They are the client's claim, and
    /// may be any bytes.
    pub fn offered(&self) -> impl Iterator<Item = &[u8]> {
        let hello = match &self.side {
            Side::Server(server) => server.hello(),
            _ => None,
        };
        hello.into_iter().flat_map(|hello| hello.identities())
    }

    /// Tries a key for the identity with this index. If the client has this key, the handshake goes on, and true is
    /// returned. Otherwise the caller may try another key.
    pub fn try_key(&mut self, identity: usize, psk: &Psk) -> bool {
        let Side::Server(server) = &mut self.side else { return false };
        match server.try_key(&mut self.connection, identity, psk) {
            Ok(fits) => {
                if fits {
                    self.accepted = Some(identity);
                }
                fits
            }
            Err(why) => {
                self.fail(why);
                false
            }
        }
    }

    /// Ends a session whose client has no known key.
    pub fn refuse(&mut self) {
        if self.wants_key() {
            self.fail(Violation::new(
                Alert::DECRYPT_ERROR,
                "the client's TLS identity is unknown, or its pre-shared key is another one",
            ));
        }
    }

    /// Index of the accepted key: a server's among [`Session::offered`] of the first hello, a client's among the keys
    /// that it offered.
    pub fn accepted(&self) -> Option<usize> {
        self.accepted
    }

    /// Decrypted data that was not consumed yet. Until it is consumed no more is taken from the peer.
    pub fn text(&self) -> &[u8] {
        self.connection.incoming.text()
    }

    /// Marks the first `count` bytes of [`Session::text`] as consumed.
    pub fn consume_text(&mut self, count: usize) {
        self.connection.incoming.consume(count);
    }

    /// Bytes that [`Session::write`] takes at once; 0 before the handshake is complete and after the end.
    pub fn room(&self) -> usize {
        if self.connection.open && !self.connection.closed && self.connection.failure.is_none() {
            self.connection.outgoing.room()
        } else {
            0
        }
    }

    /// Encrypts the beginning of `text` into one record. Returns the number of bytes.
    pub fn write(&mut self, text: &[u8]) -> usize {
        let text = text.get(..text.len().min(self.room())).unwrap_or_default();
        self.write_with(text.len(), |into| into.copy_from_slice(text))
    }

    /// Encrypts at most `len` bytes, which `fill` writes, into one record. `fill` gets [`Session::room`] bytes if that
    /// is less, and is not called if there is no room. Returns the number of bytes.
    pub fn write_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> usize {
        if let (true, Err(why)) = (self.room() > 0, self.connection.renew()) {
            self.fail(why);
        }
        // A KeyUpdate took some of it.
        let len = len.min(self.room());
        if len == 0 {
            return 0;
        }
        match self.connection.outgoing.push(
            APPLICATION_DATA,
            self.connection.write.as_mut(),
            len,
            fill,
        ) {
            Ok(()) => len,
            Err(why) => {
                self.fail(why);
                0
            }
        }
    }

    /// Queues close_notify. No more text is sent after it. A session whose handshake is not complete fails.
    pub fn close(&mut self) {
        if self.connection.closed || self.connection.failure.is_some() {
            return;
        }
        self.connection.closed = true;
        let is_open = self.connection.open;
        // RFC 8446 section 6.1: close_notify follows user_canceled.
        let alerts: &[Alert] = &[Alert::USER_CANCELED, Alert::CLOSE_NOTIFY];
        for alert in alerts.iter().skip(is_open.into()) {
            if let Err(why) = self.connection.send_alert(*alert) {
                return self.fail(why);
            }
        }
        if !is_open {
            self.connection.failure = Some(Failure::Canceled);
            self.connection.drop_input();
            self.side = Side::Over;
        }
    }

    /// Records to be sent to the peer.
    pub fn outgoing(&self) -> &[u8] {
        self.connection.outgoing.bytes()
    }

    /// Marks the first `count` bytes of [`Session::outgoing`] as sent.
    pub fn consume(&mut self, count: usize) {
        self.connection.outgoing.consume(count);
        self.connection.settle();
    }

    /// Whether the handshake is complete.
    pub fn is_open(&self) -> bool {
        self.connection.open
    }

    /// Whether the peer has sent close_notify.
    pub fn is_ended(&self) -> bool {
        self.connection.ended
    }

    /// Why the session has failed, if it has. [`Session::outgoing`] may have an alert for the peer.
    pub fn failure(&self) -> Option<&Failure> {
        self.connection.failure.as_ref()
    }

    /// Queues a record with any content type and content under the current key: a peer that violates the protocol. The
    /// key is updated after `update`.
    #[cfg(feature = "testing")]
    pub fn push_record(&mut self, kind: u8, content: &[u8], update: bool) {
        let fill = |into: &mut [u8]| into.copy_from_slice(content);
        let connection = &mut self.connection;
        let pushed = connection.outgoing.push(kind, connection.write.as_mut(), content.len(), fill);
        if let (Ok(()), true, Some(key)) = (pushed, update, &mut connection.write) {
            let _ = key.update();
        }
    }

    #[cfg(test)]
    pub(crate) fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}
