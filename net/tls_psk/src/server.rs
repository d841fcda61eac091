//! The server's handshake: from the ClientHello to the client's Finished.

use crate::alert::{Alert, Checked, violates};
use crate::cipher::RecordKey;
use crate::codec;
use crate::connection::{Connection, Random};
use crate::group::{Ephemeral, Group};
use crate::hash::{Secret, Transcript};
use crate::hello::{self, ClientHello};
use crate::schedule::{self, Early, Psk, Suite};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The state of a server's handshake.
pub struct Server {
    random: [u8; 32],
    ephemeral: Ephemeral,
    state: State,
}

enum State {
    /// Waits for the first ClientHello.
    Start,
    /// Waits for a key that fits this ClientHello.
    WantsKey(Vec<u8>),
    /// Waits for the ClientHello after a HelloRetryRequest.
    Retried(Box<Retried>),
    /// Waits for Finished.
    Finished(Finished),
}

/// Parameters that a HelloRetryRequest has fixed.
struct Retried {
    suite: Suite,
    psk: Psk,
    /// Hash of the accepted identity.
    identity: Secret,
    group: Group,
    /// Random number and session id of the first hello.
    random: [u8; 32],
    session_id: Vec<u8>,
    transcript: Transcript,
}

struct Finished {
    suite: Suite,
    expected: Secret,
    /// The client's secret of application data.
    application: Secret,
}

impl Server {
    pub fn new(random: Random<'_>) -> Server {
        let mut number = [0; 32];
        random(&mut number);
        Server { random: number, ephemeral: Ephemeral::new(random), state: State::Start }
    }

    pub fn wants_key(&self) -> bool {
        matches!(self.state, State::WantsKey(_))
    }

    /// The ClientHello, while a key is wanted.
    pub fn hello(&self) -> Option<ClientHello<'_>> {
        match &self.state {
            State::WantsKey(hello) => ClientHello::parse(hello).ok(),
            _ => None,
        }
    }

    /// Processes a handshake message. Returns whether the handshake is complete.
    pub fn message(&mut self, connection: &mut Connection, message: Vec<u8>) -> Checked<bool> {
        let kind = message.first().copied().unwrap_or(0);
        match core::mem::replace(&mut self.state, State::Start) {
            State::Start if kind == hello::CLIENT_HELLO => {
                connection.ends_with_message()?;
                ClientHello::parse(&message)?;
                self.state = State::WantsKey(message);
                Ok(false)
            }
            State::Retried(retried) if kind == hello::CLIENT_HELLO => {
                connection.ends_with_message()?;
                self.retry(connection, &message, *retried)?;
                Ok(false)
            }
            State::Finished(finished) if kind == hello::FINISHED => {
                connection.ends_with_message()?;
                if !finished.expected.equals(message.get(4..).unwrap_or_default()) {
                    return violates(
                        Alert::DECRYPT_ERROR,
                        "the client's TLS Finished does not match the handshake",
                    );
                }
                connection.read = Some(RecordKey::new(finished.suite, finished.application)?);
                Ok(true)
            }
            _ => violates(Alert::UNEXPECTED_MESSAGE, "the client sent an unexpected TLS message"),
        }
    }

    /// Verifies the binder of an identity with this key. If it is right, the handshake goes on.
    pub fn try_key(
        &mut self,
        connection: &mut Connection,
        index: usize,
        psk: &Psk,
    ) -> Checked<bool> {
        let State::WantsKey(message) = &self.state else { return Ok(false) };
        let hello = ClientHello::parse(message)?;
        let early = Early::new(psk);
        let Some(suite) = Suite::of(psk.hash).filter(|suite| hello.has_suite(*suite)) else {
            return Ok(false);
        };
        let Some(identity) = hello.identities().nth(index) else { return Ok(false) };
        let mut transcript = Transcript::new(psk.hash);
        if !is_bound(&early, &hello, index, message, &transcript) {
            return Ok(false);
        }
        // Only a client with the key reaches public-key operations.
        let groups = connection.config.groups;
        let shared = groups.iter().find_map(|group| Some((*group, hello.share(*group)?)));
        if let Some((group, share)) = shared {
            transcript.update(message);
            let (session_id, share) = (Vec::from(hello.session_id), Vec::from(share));
            let secrets = Flight { suite, early, group, share, session_id, transcript };
            self.answer(connection, secrets, index, false)?;
            return Ok(true);
        }
        let Some(group) = groups.iter().copied().find(|group| hello.has_group(*group)) else {
            return violates(
                Alert::HANDSHAKE_FAILURE,
                "the client offers no supported TLS group: x25519, secp256r1, secp384r1",
            );
        };
        let first = psk.hash.digest(&[message]);
        add_message_hash(&mut transcript, &first);
        let mut retry = Vec::new();
        hello::server_hello(&mut retry, &hello::RETRY, hello.session_id, suite, |into| {
            codec::extension(into, hello::KEY_SHARE, |into| {
                into.extend(group.code().to_be_bytes())
            });
        });
        transcript.update(&retry);
        let retried = Retried {
            suite,
            psk: psk.clone(),
            identity: psk.hash.digest(&[identity]),
            group,
            random: hello.random.try_into().unwrap_or_default(),
            session_id: hello.session_id.into(),
            transcript,
        };
        connection.send_messages(&retry)?;
        if !retried.session_id.is_empty() {
            connection.send_change()?;
        }
        self.state = State::Retried(Box::new(retried));
        Ok(true)
    }

    /// The ClientHello after a HelloRetryRequest, which must differ in its share only.
    fn retry(
        &mut self,
        connection: &mut Connection,
        message: &[u8],
        retried: Retried,
    ) -> Checked<()> {
        let hello = ClientHello::parse(message)?;
        let share = hello.share(retried.group).filter(|_| hello.shares() == 1);
        let is_same = hello.random == retried.random
            && hello.session_id == retried.session_id
            && hello.has_suite(retried.suite);
        let (Some(share), true) = (share, is_same) else {
            return violates(
                Alert::ILLEGAL_PARAMETER,
                "the client's second TLS hello is not the first with the requested share",
            );
        };
        let same = |identity: &[u8]| {
            retried.identity.equals(retried.psk.hash.digest(&[identity]).as_bytes())
        };
        let early = Early::new(&retried.psk);
        let index = hello.identities().position(same);
        let bound =
            index.filter(|index| is_bound(&early, &hello, *index, message, &retried.transcript));
        let Some(index) = bound else {
            return violates(Alert::DECRYPT_ERROR, "the client's second TLS hello has a wrong key");
        };
        let Retried { suite, group, mut transcript, .. } = retried;
        transcript.update(message);
        let (session_id, share) = (Vec::from(hello.session_id), Vec::from(share));
        let flight = Flight { suite, early, group, share, session_id, transcript };
        self.answer(connection, flight, index, true)
    }

    /// Sends ServerHello, EncryptedExtensions and Finished, and changes the keys.
    fn answer(
        &mut self,
        connection: &mut Connection,
        flight: Flight,
        index: usize,
        retried: bool,
    ) -> Checked<()> {
        let Flight { suite, early, group, share, session_id, mut transcript } = flight;
        let hash = suite.hash();
        let stage = early.handshake(&self.ephemeral.shared(group, &share)?);
        let mut public = Vec::new();
        self.ephemeral.public(group, &mut public)?;
        let mut answer = Vec::new();
        hello::server_hello(&mut answer, &self.random, &session_id, suite, |into| {
            codec::extension(into, hello::KEY_SHARE, |into| {
                into.extend(group.code().to_be_bytes());
                codec::nested(into, 2, |into| into.extend(&public));
            });
            codec::extension(into, hello::PRE_SHARED_KEY, |into| {
                into.extend((index as u16).to_be_bytes());
            });
        });
        transcript.update(&answer);
        connection.send_messages(&answer)?;
        if !session_id.is_empty() && !retried {
            connection.send_change()?;
        }
        let after_hello = transcript.current();
        let client = stage.traffic(b"c hs traffic", &after_hello);
        let server = stage.traffic(b"s hs traffic", &after_hello);
        connection.read = Some(RecordKey::new(suite, client.clone())?);
        connection.write = Some(RecordKey::new(suite, server.clone())?);
        let mut rest = Vec::new();
        codec::message(&mut rest, hello::ENCRYPTED_EXTENSIONS, |into| into.extend([0, 0]));
        transcript.update(&rest);
        let own = schedule::finished(hash, &server, &transcript.current());
        let start = rest.len();
        codec::message(&mut rest, hello::FINISHED, |into| into.extend(own.as_bytes()));
        transcript.update(rest.get(start..).unwrap_or_default());
        connection.send_messages(&rest)?;
        let after_finished = transcript.current();
        let master = stage.master();
        let sends = master.traffic(b"s ap traffic", &after_finished);
        connection.write = Some(RecordKey::new(suite, sends)?);
        self.state = State::Finished(Finished {
            suite,
            expected: schedule::finished(hash, &client, &after_finished),
            application: master.traffic(b"c ap traffic", &after_finished),
        });
        Ok(())
    }
}

/// Parameters of the answer to a ClientHello.
struct Flight {
    suite: Suite,
    early: Early,
    group: Group,
    share: Vec<u8>,
    session_id: Vec<u8>,
    transcript: Transcript,
}

/// Whether the binder of an identity is right. `transcript` is that before the hello.
fn is_bound(
    early: &Early,
    hello: &ClientHello<'_>,
    index: usize,
    message: &[u8],
    transcript: &Transcript,
) -> bool {
    let mut transcript = transcript.clone();
    transcript.update(message.get(..hello.truncated).unwrap_or_default());
    let expected = early.binder(&transcript.current());
    hello.binder(index).is_some_and(|binder| expected.equals(binder))
}

/// Begins a transcript with the hash of the first ClientHello (RFC 8446 section 4.4.1).
pub fn add_message_hash(transcript: &mut Transcript, first: &Secret) {
    transcript.update(&[hello::MESSAGE_HASH, 0, 0, first.as_bytes().len() as u8]);
    transcript.update(first.as_bytes());
}
