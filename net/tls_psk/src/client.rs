//! The client's handshake: from its ClientHello to its Finished.

use crate::alert::{Alert, Checked, violates};
use crate::cipher::RecordKey;
use crate::client_messages::{Offer, client_hello};
use crate::codec;
use crate::connection::{Connection, Random};
use crate::group::{Ephemeral, Group};
use crate::hash::{Secret, Transcript};
use crate::hello::{self, ServerHello};
use crate::schedule::{self, Early, Psk, Stage, Suite};
use crate::server::add_message_hash;
use alloc::vec::Vec;

/// Maximum number of bytes of a cookie.
const COOKIE: usize = 1 << 10;

/// A key that a client offers, and its name.
#[derive(Clone, Debug)]
pub struct OfferedPsk {
    /// The identity: 1 to 1,024 bytes.
    pub identity: Vec<u8>,
    /// The key.
    pub key: Psk,
}

/// The state of a client's handshake.
pub struct Client {
    random: [u8; 32],
    ephemeral: Ephemeral,
    psks: Vec<OfferedPsk>,
    group: Group,
    /// Index of the accepted PSK among those that the caller gave.
    accepted: Option<usize>,
    /// Indexes of `psks` among those that the caller gave.
    indexes: Vec<usize>,
    state: State,
}

enum State {
    /// Sent this ClientHello.
    HelloSent(Vec<u8>),
    /// Sent this ClientHello after a HelloRetryRequest for this suite; with the transcript before it.
    Retried(Vec<u8>, Suite, Transcript),
    /// Waits for EncryptedExtensions.
    Extensions(Keys),
    /// Waits for Finished.
    Finished(Keys),
    Done,
}

struct Keys {
    suite: Suite,
    stage: Stage,
    client: Secret,
    server: Secret,
    transcript: Transcript,
}

impl Client {
    pub fn new(
        psks: Vec<OfferedPsk>,
        connection: &mut Connection,
        random: Random<'_>,
    ) -> Checked<Client> {
        let mut number = [0; 32];
        random(&mut number);
        let (Some(group), false) = (connection.config.groups.first(), psks.is_empty()) else {
            return violates(Alert::INTERNAL_ERROR, "a TLS client needs a group and a key");
        };
        let fits = |psk: &OfferedPsk| {
            (1..=1024).contains(&psk.identity.len()) && Suite::of(psk.key.hash).is_some()
        };
        if psks.len() > hello::IDENTITIES / 2 || !psks.iter().all(fits) {
            return violates(Alert::INTERNAL_ERROR, "a TLS client's keys cannot be offered");
        }
        let indexes = (0..psks.len()).collect();
        let mut client = Client {
            random: number,
            ephemeral: Ephemeral::new(random),
            psks,
            group: *group,
            accepted: None,
            indexes,
            state: State::Done,
        };
        let hello = client.hello(connection, &[], &|psk| Transcript::new(psk.key.hash))?;
        connection.send_messages(&hello)?;
        client.state = State::HelloSent(hello);
        Ok(client)
    }

    fn hello(
        &self,
        connection: &Connection,
        cookie: &[u8],
        before: &dyn Fn(&OfferedPsk) -> Transcript,
    ) -> Checked<Vec<u8>> {
        let offer = Offer {
            random: &self.random,
            psks: &self.psks,
            groups: connection.config.groups,
            group: self.group,
            cookie,
        };
        client_hello(&offer, &self.ephemeral, before)
    }

    /// Index of the accepted key among those that the caller gave.
    pub fn accepted(&self) -> Option<usize> {
        self.accepted
    }

    /// Processes a handshake message. Returns whether the handshake is complete.
    pub fn message(&mut self, connection: &mut Connection, message: &[u8]) -> Checked<bool> {
        let kind = message.first().copied().unwrap_or(0);
        match core::mem::replace(&mut self.state, State::Done) {
            State::HelloSent(hello) if kind == hello::SERVER_HELLO => {
                connection.ends_with_message()?;
                let answer = self.check(message)?;
                if answer.is_retry() {
                    self.retry(connection, &hello, message, &answer)?;
                } else {
                    self.accept(connection, &hello, message, &answer, None)?;
                }
                Ok(false)
            }
            State::Retried(hello, suite, transcript) if kind == hello::SERVER_HELLO => {
                connection.ends_with_message()?;
                let answer = self.check(message)?;
                if answer.is_retry() {
                    return violates(
                        Alert::UNEXPECTED_MESSAGE,
                        "the server sent a second HelloRetryRequest",
                    );
                }
                if answer.suite != suite.code() {
                    return violates(
                        Alert::ILLEGAL_PARAMETER,
                        "the server changed its TLS cipher suite after HelloRetryRequest",
                    );
                }
                self.accept(connection, &hello, message, &answer, Some(transcript))?;
                Ok(false)
            }
            State::Extensions(mut keys) if kind == hello::ENCRYPTED_EXTENSIONS => {
                hello::check_encrypted_extensions(message)?;
                keys.transcript.update(message);
                self.state = State::Finished(keys);
                Ok(false)
            }
            State::Finished(keys) if kind == hello::FINISHED => {
                connection.ends_with_message()?;
                finish(connection, keys, message)?;
                Ok(true)
            }
            _ => violates(Alert::UNEXPECTED_MESSAGE, "the server sent an unexpected TLS message"),
        }
    }

    /// Parses a ServerHello or HelloRetryRequest, with the checks that both need.
    fn check<'a>(&self, message: &'a [u8]) -> Checked<ServerHello<'a>> {
        let answer = ServerHello::parse(message)?;
        match answer.version {
            Some(hello::TLS_1_3) => (),
            Some(_) => {
                return violates(
                    Alert::ILLEGAL_PARAMETER,
                    "the server chose a TLS version that was not offered",
                );
            }
            None => {
                return violates(Alert::PROTOCOL_VERSION, "the server does not speak TLS 1.3");
            }
        }
        let offered = |psk: &OfferedPsk| {
            Suite::of(psk.key.hash).is_some_and(|suite| suite.code() == answer.suite)
        };
        if !answer.session_id.is_empty() || !self.psks.iter().any(offered) {
            return violates(
                Alert::ILLEGAL_PARAMETER,
                "the server chose a TLS cipher suite or session that was not offered",
            );
        }
        Ok(answer)
    }

    /// Sends the second ClientHello.
    fn retry(
        &mut self,
        connection: &mut Connection,
        hello: &[u8],
        message: &[u8],
        answer: &ServerHello<'_>,
    ) -> Checked<()> {
        let group = match answer.share {
            Some((code, _)) => {
                let group = Group::of(code).filter(|group| {
                    *group != self.group && connection.config.groups.contains(group)
                });
                group.ok_or(crate::alert::Violation::new(
                    Alert::ILLEGAL_PARAMETER,
                    "the server requests a share of a TLS group that was not offered, or was sent",
                ))?
            }
            None if answer.cookie.is_some() => self.group,
            None => {
                return violates(
                    Alert::ILLEGAL_PARAMETER,
                    "the server's HelloRetryRequest changes nothing",
                );
            }
        };
        let Some(suite) = Suite::of_code(answer.suite) else {
            return violates(Alert::ILLEGAL_PARAMETER, "the server chose an unknown cipher suite");
        };
        let cookie = answer.cookie.unwrap_or_default();
        if cookie.len() > COOKIE {
            return violates(Alert::ILLEGAL_PARAMETER, "the server's TLS cookie is too long");
        }
        self.group = group;
        // The suite is fixed, so keys for the other cannot be accepted any more.
        let keeps = |psk: &OfferedPsk| psk.key.hash == suite.hash();
        let kept = self.psks.iter().map(keeps);
        let mut kept = kept.collect::<Vec<_>>().into_iter();
        self.indexes.retain(|_| kept.next().unwrap_or(false));
        self.psks.retain(keeps);
        let mut transcript = Transcript::new(suite.hash());
        add_message_hash(&mut transcript, &suite.hash().digest(&[hello]));
        transcript.update(message);
        let second = self.hello(connection, cookie, &|_| transcript.clone())?;
        connection.send_messages(&second)?;
        self.state = State::Retried(second, suite, transcript);
        Ok(())
    }

    /// Derives the keys of the handshake from a ServerHello.
    fn accept(
        &mut self,
        connection: &mut Connection,
        hello: &[u8],
        message: &[u8],
        answer: &ServerHello<'_>,
        before: Option<Transcript>,
    ) -> Checked<()> {
        let Some(index) = answer.identity else {
            return violates(
                Alert::HANDSHAKE_FAILURE,
                "the server accepted no pre-shared key: it has none, or another one",
            );
        };
        let psk = self.psks.get(usize::from(index));
        let suite = Suite::of_code(answer.suite);
        let (Some(psk), Some(suite)) = (psk.filter(|psk| Suite::of(psk.key.hash) == suite), suite)
        else {
            return violates(
                Alert::ILLEGAL_PARAMETER,
                "the server chose a pre-shared key that was not offered, or of another suite",
            );
        };
        let Some((code, share)) = answer.share else {
            return violates(
                Alert::MISSING_EXTENSION,
                "the server's hello has no key share: a PSK without one is not supported",
            );
        };
        if code != self.group.code() {
            return violates(
                Alert::ILLEGAL_PARAMETER,
                "the server's key share is of another TLS group",
            );
        }
        let early = Early::new(&psk.key);
        let stage = early.handshake(&self.ephemeral.shared(self.group, share)?);
        let mut transcript = before.unwrap_or_else(|| Transcript::new(suite.hash()));
        transcript.update(hello);
        transcript.update(message);
        let current = transcript.current();
        let client = stage.traffic(b"c hs traffic", &current);
        let server = stage.traffic(b"s hs traffic", &current);
        connection.read = Some(RecordKey::new(suite, server.clone())?);
        connection.write = Some(RecordKey::new(suite, client.clone())?);
        self.accepted = self.indexes.get(usize::from(index)).copied();
        self.state = State::Extensions(Keys { suite, stage, client, server, transcript });
        Ok(())
    }
}

/// Verifies the server's Finished, sends the own, and changes the keys.
fn finish(connection: &mut Connection, keys: Keys, message: &[u8]) -> Checked<()> {
    let Keys { suite, stage, client, server, mut transcript } = keys;
    let hash = suite.hash();
    let expected = schedule::finished(hash, &server, &transcript.current());
    if !expected.equals(message.get(4..).unwrap_or_default()) {
        return violates(
            Alert::DECRYPT_ERROR,
            "the server's TLS Finished does not match the handshake",
        );
    }
    transcript.update(message);
    let current = transcript.current();
    let master = stage.master();
    let own = schedule::finished(hash, &client, &current);
    let mut answer = Vec::new();
    codec::message(&mut answer, hello::FINISHED, |into| into.extend(own.as_bytes()));
    connection.send_messages(&answer)?;
    connection.read = Some(RecordKey::new(suite, master.traffic(b"s ap traffic", &current))?);
    connection.write = Some(RecordKey::new(suite, master.traffic(b"c ap traffic", &current))?);
    Ok(())
}
