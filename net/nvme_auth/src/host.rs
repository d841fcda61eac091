//! One queue's authentication at the host.

use crate::dh::{Exponent, Power};
use crate::generated::GeneratedPsk;
use crate::ids::{Concatenation, DhGroup, Explanation};
use crate::message::{self, Challenge, Head, Negotiate, Reply, Success1};
use crate::response::{Responder, Transaction};
use crate::secret::DhchapSecret;
use crate::target::Sequence;
use crate::{Outcome, Random};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::time::Duration;
use drivers::hal::Instant;
use tls_psk::hash::{Hash, Secret};

/// Preferences of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Hashes, the best first. SHA-512 is not offered with a concatenation.
    pub hashes: Vec<Hash>,
    /// Groups, the best first. [`DhGroup::Null`] is not offered with a concatenation.
    pub groups: Vec<DhGroup>,
    /// Secure concatenation.
    pub concatenation: Concatenation,
    /// Time limit.
    pub timeout: Duration,
}

/// A queue's authentication at the host. See the crate's opening comment.
pub struct Host {
    host: String,
    subsystem: String,
    config: HostConfig,
    id: u16,
    host_key: Secret,
    /// The controller's key; None: it is not challenged.
    controller_key: Option<Secret>,
    state: State,
    deadline: Instant,
    outcome: Option<Outcome>,
    generated: Option<GeneratedPsk>,
}

enum State {
    /// A message is to be sent. Then the state after it.
    Send(Vec<u8>, Next),
    /// Waits for Challenge.
    Challenge,
    /// The own public value is computed.
    Exponent(Box<Received>, Exponent, Power),
    /// The shared secret is computed.
    Secret(Box<Received>, Vec<u8>, Power),
    /// Waits for Success1.
    Success1(Box<Sent>),
    Over,
}

enum Next {
    Challenge,
    Success1(Box<Sent>),
    /// The authentication has this outcome.
    Over(Outcome),
}

/// A Challenge.
struct Received {
    hash: Hash,
    sequence: u32,
    value: Secret,
    public: Vec<u8>,
    /// C2 and its sequence number.
    challenge: Option<(Secret, u32)>,
}

/// Expectations of Success1.
struct Sent {
    hash: Hash,
    /// The expected response, if the controller was challenged.
    expected: Option<Secret>,
    generated: Option<GeneratedPsk>,
}

/// A failure of the controller.
struct Fault(Explanation, &'static str);

const MALFORMED: Fault = Fault(
    Explanation::IncorrectPayload,
    "the controller's authentication message has wrong lengths or another transaction id",
);

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { host, subsystem, outcome, .. } = self;
        write!(f, "Host {{ {host} at {subsystem}, {outcome:?} }}")
    }
}

impl Host {
    /// Begins. `id` is the transaction's, which differs from the last one's on this queue. With a secret for the
    /// controller, it is challenged.
    pub fn new(
        host: &str,
        subsystem: &str,
        config: HostConfig,
        keys: (&DhchapSecret, Option<&DhchapSecret>),
        id: u16,
        now: Instant,
    ) -> Host {
        let concatenates = config.concatenation != Concatenation::None;
        let HostConfig { mut hashes, mut groups, concatenation, timeout } = config;
        hashes.retain(|hash| !(concatenates && *hash == Hash::Sha512));
        groups.retain(|group| !(concatenates && *group == DhGroup::Null));
        let message = Negotiate::encode(id, concatenation, &hashes, &groups);
        Host {
            host: host.into(),
            subsystem: subsystem.into(),
            config: HostConfig { hashes, groups, concatenation, timeout },
            id,
            host_key: keys.0.transformed(host),
            controller_key: keys.1.map(|key| key.transformed(subsystem)),
            state: State::Send(message, Next::Challenge),
            deadline: now + timeout,
            outcome: None,
            generated: None,
        }
    }

    /// The message that is to be sent with Authentication Send. After the command's completion: [`Host::sent`].
    pub fn outgoing(&self) -> Option<&[u8]> {
        match &self.state {
            State::Send(message, _) => Some(message),
            _ => None,
        }
    }

    /// Marks the message as sent.
    pub fn sent(&mut self) {
        match mem::replace(&mut self.state, State::Over) {
            State::Send(_, Next::Challenge) => self.state = State::Challenge,
            State::Send(_, Next::Success1(sent)) => self.state = State::Success1(sent),
            State::Send(_, Next::Over(outcome)) => self.outcome = Some(outcome),
            other => self.state = other,
        }
    }

    /// Whether a message of the controller is to be fetched, with Authentication Receive of at least 2 KiB.
    pub fn wants_message(&self) -> bool {
        matches!(self.state, State::Challenge | State::Success1(_))
    }

    /// Takes a message of the controller.
    pub fn receive(
        &mut self,
        message: &[u8],
        sequence: &mut Sequence,
        random: Random<'_>,
        now: Instant,
    ) {
        self.poll(now);
        if !self.wants_message() {
            return;
        }
        if let Err(fault) = self.message(message, sequence, random) {
            self.fail(fault);
        }
    }

    fn message(
        &mut self,
        message: &[u8],
        sequence: &mut Sequence,
        random: Random<'_>,
    ) -> Result<(), Fault> {
        let head = Head::parse(message).ok_or(MALFORMED)?;
        if head.kind == message::FAILURE1 {
            self.state = State::Over;
            self.outcome = Some(Outcome::Failed {
                explanation: message::explanation(message),
                why: "the controller rejected this host: compare the host's secret and NQN at both ends",
            });
            return Ok(());
        }
        match mem::replace(&mut self.state, State::Over) {
            State::Challenge if head.kind == message::CHALLENGE => {
                self.check(head)?;
                self.challenge(message, sequence, random)
            }
            State::Success1(sent) if head.kind == message::SUCCESS1 => {
                self.check(head)?;
                self.success(*sent, message)
            }
            _ => Err(Fault(
                Explanation::IncorrectMessage,
                "the controller's authentication message was not expected",
            )),
        }
    }

    fn check(&self, head: Head) -> Result<(), Fault> {
        if head.transaction == self.id { Ok(()) } else { Err(MALFORMED) }
    }

    fn challenge(
        &mut self,
        message: &[u8],
        sequence: &mut Sequence,
        random: Random<'_>,
    ) -> Result<(), Fault> {
        let challenge = Challenge::parse(message).ok_or(MALFORMED)?;
        let hash = challenge.hash.filter(|hash| self.config.hashes.contains(hash));
        let hash = hash.ok_or(Fault(
            Explanation::HashUnusable,
            "the controller chose a hash that was not offered",
        ))?;
        let group = challenge.group.filter(|group| self.config.groups.contains(group));
        let group = group.ok_or(Fault(
            Explanation::GroupUnusable,
            "the controller chose a Diffie-Hellman group that was not offered",
        ))?;
        let concatenates = self.config.concatenation != Concatenation::None;
        let own = match (concatenates, &self.controller_key) {
            (false, None) => None,
            (_, key) => {
                let mut value = Secret::zeros(hash.len());
                random(value.as_mut_bytes());
                // 0: this challenge makes a TLS key, and is not to be answered.
                Some((value, if key.is_some() { sequence.next_number() } else { 0 }))
            }
        };
        let received = Box::new(Received {
            hash,
            sequence: challenge.sequence,
            value: Secret::new(challenge.value).ok_or(MALFORMED)?,
            public: challenge.public.into(),
            challenge: own,
        });
        if group == DhGroup::Null {
            self.respond(&received, &[], None);
            return Ok(());
        }
        let exponent = Exponent::new(group, random);
        let power = exponent.public();
        // Checked before the work.
        let usable = exponent.shared(&received.public).is_some();
        let power = power.filter(|_| usable).ok_or(Fault(
            Explanation::GroupUnusable,
            "the controller's Diffie-Hellman value is not one of its group",
        ))?;
        self.state = State::Exponent(received, exponent, power);
        Ok(())
    }

    /// Makes Reply.
    fn respond(&mut self, received: &Received, public: &[u8], session_key: Option<&Secret>) {
        let Received { hash, sequence, ref value, ref challenge, .. } = *received;
        let transaction = Transaction {
            hash,
            id: self.id,
            concatenation: self.config.concatenation,
            host: &self.host,
            subsystem: &self.subsystem,
            session_key,
        };
        let response =
            transaction.response(Responder::Host, &self.host_key, value.as_bytes(), sequence);
        let own = challenge.as_ref().map(|(own, number)| (own.as_bytes(), *number));
        let expected = match (own, &self.controller_key) {
            (Some((own, number)), Some(key)) => {
                Some(transaction.response(Responder::Controller, key, own, number))
            }
            _ => None,
        };
        let generated = match (own, session_key) {
            (Some((own, _)), Some(key)) if self.config.concatenation != Concatenation::None => {
                let challenges = [value.as_bytes(), own];
                GeneratedPsk::new(hash, key, challenges, &self.host, &self.subsystem)
            }
            _ => None,
        };
        let reply = Reply {
            hash_len: hash.len(),
            response: response.as_bytes(),
            sequence: own.map_or(0, |(_, number)| number),
            challenge: own.map(|(own, _)| own),
            public,
        };
        let next = Next::Success1(Box::new(Sent { hash, expected, generated }));
        self.state = State::Send(reply.encode(self.id), next);
    }

    fn success(&mut self, sent: Sent, message: &[u8]) -> Result<(), Fault> {
        let success = Success1::parse(message).ok_or(MALFORMED)?;
        if success.hash_len != sent.hash.len() {
            return Err(MALFORMED);
        }
        let Some(expected) = sent.expected else {
            self.generated = sent.generated;
            self.outcome = Some(Outcome::Authenticated { mutually: false });
            return Ok(());
        };
        if !success.response.is_some_and(|response| expected.equals(response)) {
            return Err(Fault(
                Explanation::Failed,
                "the controller's response is wrong: compare the controller's secret at both ends",
            ));
        }
        self.generated = sent.generated;
        let next = Next::Over(Outcome::Authenticated { mutually: true });
        self.state = State::Send(message::success2(self.id), next);
        Ok(())
    }

    /// Whether [`Host::work`] has something to do.
    pub fn wants_work(&self) -> bool {
        matches!(self.state, State::Exponent(..) | State::Secret(..))
    }

    /// Performs about this many multiplications of long numbers. Returns whether there is more to do.
    pub fn work(&mut self, multiplications: u32) -> bool {
        match &mut self.state {
            State::Exponent(_, _, power) | State::Secret(_, _, power) => {
                if !power.work(multiplications) {
                    return true;
                }
            }
            _ => return false,
        }
        match mem::replace(&mut self.state, State::Over) {
            State::Exponent(received, exponent, power) => {
                let public = power.result().to_vec();
                match exponent.shared(&received.public).filter(|_| public != received.public) {
                    Some(power) => {
                        self.state = State::Secret(received, public, power);
                        return true;
                    }
                    None => self.fail(MALFORMED),
                }
            }
            State::Secret(received, public, power) => {
                let key = power.session_key(received.hash);
                self.respond(&received, &public, Some(&key));
            }
            other => self.state = other,
        }
        false
    }

    /// Sends Failure2, after which the connection is to be closed.
    fn fail(&mut self, Fault(explanation, why): Fault) {
        let message = message::failure(message::FAILURE2, self.id, explanation);
        self.generated = None;
        self.state = State::Send(message, Next::Over(Outcome::Failed { explanation, why }));
    }

    /// Enforces the deadline.
    pub fn poll(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.state = State::Over;
            self.generated = None;
            self.outcome = Some(Outcome::Slow);
        }
    }

    /// When [`Host::poll`] is due. None after the end.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!matches!(self.state, State::Over)).then_some(self.deadline)
    }

    /// The outcome, once it is known and all messages were sent.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// The TLS key of a secure concatenation, when the outcome is known.
    pub fn take_generated(&mut self) -> Option<GeneratedPsk> {
        self.outcome.is_some().then(|| self.generated.take()).flatten()
    }
}
