//! One queue's authentication at the controller.

use crate::dh::{Exponent, Power};
use crate::generated::GeneratedPsk;
use crate::ids::{Concatenation, DhGroup, Explanation};
use crate::message::{self, Challenge, Head, Negotiate, Reply, Success1};
use crate::response::{Responder, Transaction};
use crate::secret::DhchapSecret;
use crate::{Outcome, Random};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::time::Duration;
use drivers::hal::Instant;
use tls_psk::hash::{Hash, Secret};

/// Preferences of a target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Hashes, the best first.
    pub hashes: Vec<Hash>,
    /// Groups, the best first.
    pub groups: Vec<DhGroup>,
    /// Time limit of an authentication.
    pub timeout: Duration,
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            hashes: [Hash::Sha256, Hash::Sha384, Hash::Sha512].into(),
            groups: DhGroup::USUAL.into(),
            timeout: Duration::from_secs(30),
        }
    }
}

/// Secrets of a host and of the subsystem, as they are configured at present.
#[derive(Clone, Copy, Debug)]
pub struct TargetKeys<'a> {
    /// The host's.
    pub host: &'a DhchapSecret,
    /// The controller's. None: a host that challenges the controller is rejected.
    pub controller: Option<&'a DhchapSecret>,
}

/// The connection of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// In clear.
    Clear,
    /// Under TLS with a configured PSK.
    Tls,
    /// Under TLS with a generated PSK.
    Generated,
}

/// A subsystem's rule about secure concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It is rejected.
    Never,
    /// A host may want it.
    Allowed,
    /// A host in clear must want it.
    Required,
}

/// The sequence number of challenges, which never repeats soon and is never 0. All queues of a target share it.
#[derive(Debug)]
pub struct Sequence(u32);

impl Sequence {
    /// Begins at a random number.
    pub fn new(random: Random<'_>) -> Sequence {
        let mut bytes = [0; 4];
        random(&mut bytes);
        Sequence(u32::from_le_bytes(bytes))
    }

    /// The next number.
    pub fn next_number(&mut self) -> u32 {
        self.0 = self.0.checked_add(1).unwrap_or(1);
        self.0
    }
}

/// Result of Authentication Receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// This message; the rest of the host's buffer is zeroed.
    Message(Vec<u8>),
    /// Nothing yet: complete the command after [`Target::work`].
    Busy,
    /// The host's buffer is shorter than this: Invalid Field.
    TooShort(usize),
    /// The host owes a message: Command Sequence Error.
    OutOfOrder,
}

/// A queue's authentication. See the crate's opening comment for its states.
pub struct Target {
    host: String,
    subsystem: String,
    is_admin: bool,
    channel: Channel,
    policy: Policy,
    state: State,
    deadline: Option<Instant>,
    is_authenticated: bool,
    outcome: Option<Outcome>,
    generated: Option<GeneratedPsk>,
}

enum State {
    Idle,
    /// The own public value is computed.
    Exponent(Box<Context>, Exponent, Power),
    /// Challenge waits for the host.
    Challenge(Box<Context>, Vec<u8>),
    /// The host owes Reply.
    Reply(Box<Context>),
    /// The shared secret is computed.
    Secret(Box<Context>, Power, Held),
    /// Success1 waits for the host, which then owes Success2 if `mutually` is set.
    Success1 {
        id: u16,
        message: Vec<u8>,
        mutually: bool,
    },
    /// The host owes Success2.
    Success2 {
        id: u16,
    },
    /// Failure1 waits for the host.
    Failure1(Vec<u8>),
    Failed,
}

/// Parameters of a transaction.
struct Context {
    hash: Hash,
    group: DhGroup,
    id: u16,
    concatenation: Concatenation,
    host_key: Secret,
    controller_key: Option<Secret>,
    sequence: u32,
    challenge: Secret,
    exponent: Option<Exponent>,
    public: Vec<u8>,
}

/// A Reply, until the shared secret is there.
struct Held {
    response: Secret,
    challenge: Option<Secret>,
    sequence: u32,
}

/// A failure to be sent.
struct Fault(Explanation, &'static str);

const MALFORMED: Fault =
    Fault(Explanation::IncorrectPayload, "the host's authentication message has wrong lengths");
const UNEXPECTED: Fault =
    Fault(Explanation::IncorrectMessage, "the host's authentication message was not expected");

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { host, subsystem, is_authenticated, outcome, .. } = self;
        write!(
            f,
            "Target {{ {host} at {subsystem}, authenticated: {is_authenticated}, {outcome:?} }}"
        )
    }
}

impl Target {
    /// A queue of a host, whose NQN is that of its Connect.
    pub fn new(
        host: &str,
        subsystem: &str,
        is_admin: bool,
        channel: Channel,
        policy: Policy,
    ) -> Target {
        Target {
            host: host.into(),
            subsystem: subsystem.into(),
            is_admin,
            channel,
            policy,
            state: State::Idle,
            deadline: None,
            is_authenticated: false,
            outcome: None,
            generated: None,
        }
    }

    /// Takes a message of the host: the data of Authentication Send. False if none is taken: the authentication has
    /// failed (Command Sequence Error). Everything that is wrong in a message leads to Failure1, which the host
    /// fetches.
    pub fn receive(
        &mut self,
        message: &[u8],
        keys: TargetKeys<'_>,
        config: &TargetConfig,
        sequence: &mut Sequence,
        random: Random<'_>,
        now: Instant,
    ) -> bool {
        self.poll(now);
        if matches!(self.state, State::Failed | State::Failure1(_)) {
            return false;
        }
        let head = Head::parse(message);
        let result = match head {
            Some(Head { kind: message::NEGOTIATE, transaction }) => {
                // A host that begins anew does not get more time: it would occupy its place in `Pending` for ever.
                self.deadline = self.deadline.or(Some(now + config.timeout));
                self.generated = None;
                self.negotiate(message, transaction, keys, config, sequence, random)
            }
            Some(head) => self.step(head, message),
            None => Err(MALFORMED),
        };
        if let Err(fault) = result {
            self.fail(head.map_or(0, |head| head.transaction), fault);
        }
        true
    }

    fn negotiate(
        &mut self,
        message: &[u8],
        id: u16,
        keys: TargetKeys<'_>,
        config: &TargetConfig,
        sequence: &mut Sequence,
        random: Random<'_>,
    ) -> Result<(), Fault> {
        let (offer, usable) = Negotiate::parse(message).ok_or(MALFORMED)?;
        let concatenation = self.concatenation(offer.concatenation)?;
        if !usable {
            return Err(Fault(
                Explanation::ProtocolUnusable,
                "the host does not offer DH-HMAC-CHAP, the only authentication there is",
            ));
        }
        let concatenates = concatenation != Concatenation::None;
        let hash = config.hashes.iter().copied().find(|hash| {
            // There is no cipher suite with SHA-512.
            offer.has_hash(*hash) && !(concatenates && *hash == Hash::Sha512)
        });
        let hash = hash.ok_or(Fault(
            Explanation::HashUnusable,
            "the host offers no hash that is configured for DH-HMAC-CHAP",
        ))?;
        let group =
            config.groups.iter().copied().find(|group| {
                offer.has_group(*group) && !(concatenates && *group == DhGroup::Null)
            });
        let group = group.ok_or(Fault(
            Explanation::GroupUnusable,
            "the host offers no Diffie-Hellman group that is configured for DH-HMAC-CHAP",
        ))?;
        let mut challenge = Secret::zeros(hash.len());
        random(challenge.as_mut_bytes());
        let context = Box::new(Context {
            hash,
            group,
            id,
            concatenation,
            host_key: keys.host.transformed(&self.host),
            controller_key: keys.controller.map(|key| key.transformed(&self.subsystem)),
            sequence: sequence.next_number(),
            challenge,
            exponent: None,
            public: Vec::new(),
        });
        self.state = if group == DhGroup::Null {
            challenge_state(context)
        } else {
            let exponent = Exponent::new(group, random);
            let power = exponent.public();
            let power = power.ok_or(Fault(Explanation::GroupUnusable, "unusable group"))?;
            State::Exponent(context, exponent, power)
        };
        Ok(())
    }

    /// Checks `sc_c` (Linux `nvmet_auth_negotiate`).
    fn concatenation(&self, wanted: Option<Concatenation>) -> Result<Concatenation, Fault> {
        let mismatch = |why| Err(Fault(Explanation::ConcatenationMismatch, why));
        let Some(wanted) = wanted else {
            return mismatch("the host wants an unknown kind of secure concatenation");
        };
        match (wanted, self.channel) {
            (Concatenation::None, Channel::Clear) if self.policy == Policy::Required => {
                mismatch("the subsystem requires TLS: connect with --concat or --tls")
            }
            (Concatenation::None, _) => Ok(wanted),
            _ if self.policy == Policy::Never => mismatch(
                "the subsystem does not offer secure concatenation: connect without --concat",
            ),
            _ if !self.is_admin => mismatch("the host wants secure concatenation on an I/O queue"),
            (Concatenation::New, Channel::Clear) => Ok(wanted),
            (Concatenation::Replace, Channel::Generated) => Ok(wanted),
            _ => mismatch("the host's secure concatenation does not fit the connection's TLS"),
        }
    }

    /// A message other than Negotiate.
    fn step(&mut self, head: Head, message: &[u8]) -> Result<(), Fault> {
        if head.kind == message::FAILURE2 {
            self.state = State::Failed;
            self.settle(Outcome::Failed {
                explanation: message::explanation(message),
                why: "the host rejected the controller: compare the controller's secret at both ends",
            });
            return Ok(());
        }
        match mem::replace(&mut self.state, State::Idle) {
            State::Reply(context) if head.kind == message::REPLY => {
                check_transaction(head, context.id)?;
                self.reply(context, message)
            }
            State::Success2 { id } if head.kind == message::SUCCESS2 => {
                check_transaction(head, id)?;
                self.settle(Outcome::Authenticated { mutually: true });
                Ok(())
            }
            _ => Err(UNEXPECTED),
        }
    }

    /// Checks a Reply as far as is possible without the shared secret.
    fn reply(&mut self, context: Box<Context>, message: &[u8]) -> Result<(), Fault> {
        let reply = Reply::parse(message).ok_or(MALFORMED)?;
        if reply.hash_len != context.hash.len() || reply.public.len() != context.group.len() {
            return Err(MALFORMED);
        }
        let concatenates = context.concatenation != Concatenation::None;
        let failed = |why| Err(Fault(Explanation::Failed, why));
        match (reply.challenge, reply.sequence) {
            (None, _) if concatenates => {
                return failed("the host wants secure concatenation, but sent no challenge");
            }
            (Some(_), 0) if !concatenates => return Err(MALFORMED),
            (Some(_), number) if number != 0 && context.controller_key.is_none() => {
                return failed(
                    "the host wants the controller to authenticate: configure the controller's secret, or connect \
                     without --dhchap-ctrl-secret",
                );
            }
            (Some(value), _) if context.challenge.equals(value) => {
                return failed("the host returned the controller's challenge as its own");
            }
            _ => (),
        }
        let held = Held {
            response: Secret::new(reply.response).ok_or(MALFORMED)?,
            challenge: match reply.challenge {
                Some(value) => Some(Secret::new(value).ok_or(MALFORMED)?),
                None => None,
            },
            sequence: reply.sequence,
        };
        let Some(exponent) = &context.exponent else {
            return self.verify(&context, None, &held);
        };
        let power = exponent.shared(reply.public).filter(|_| reply.public != context.public);
        let power = power.ok_or(Fault(
            Explanation::GroupUnusable,
            "the host's Diffie-Hellman value is not one of its group",
        ))?;
        self.state = State::Secret(context, power, held);
        Ok(())
    }

    /// Verifies the host's response, and makes the own.
    fn verify(
        &mut self,
        context: &Context,
        session_key: Option<&Secret>,
        held: &Held,
    ) -> Result<(), Fault> {
        let transaction = Transaction {
            hash: context.hash,
            id: context.id,
            concatenation: context.concatenation,
            host: &self.host,
            subsystem: &self.subsystem,
            session_key,
        };
        let challenge = context.challenge.as_bytes();
        let expected =
            transaction.response(Responder::Host, &context.host_key, challenge, context.sequence);
        if !expected.equals(held.response.as_bytes()) {
            return Err(Fault(
                Explanation::Failed,
                "the host's response is wrong: compare the host's secret at both ends",
            ));
        }
        let other = held.challenge.as_ref().map(Secret::as_bytes);
        if let (Some(other), Some(key), true) =
            (other, session_key, context.concatenation != Concatenation::None)
        {
            let challenges = [challenge, other];
            self.generated =
                GeneratedPsk::new(context.hash, key, challenges, &self.host, &self.subsystem);
        }
        let response = match (other, &context.controller_key) {
            (Some(other), Some(key)) if held.sequence != 0 => {
                Some(transaction.response(Responder::Controller, key, other, held.sequence))
            }
            _ => None,
        };
        let bytes = response.as_ref().map(Secret::as_bytes);
        let message = Success1::encode(context.id, context.hash, bytes);
        self.state = State::Success1 { id: context.id, message, mutually: response.is_some() };
        Ok(())
    }

    /// Whether [`Target::work`] has something to do.
    pub fn wants_work(&self) -> bool {
        matches!(self.state, State::Exponent(..) | State::Secret(..))
    }

    /// Performs about this many multiplications of long numbers. Returns whether there is more to do.
    pub fn work(&mut self, multiplications: u32) -> bool {
        match &mut self.state {
            State::Exponent(_, _, power) | State::Secret(_, power, _) => {
                if !power.work(multiplications) {
                    return true;
                }
            }
            _ => return false,
        }
        match mem::replace(&mut self.state, State::Idle) {
            State::Exponent(mut context, exponent, power) => {
                context.public = power.result().to_vec();
                context.exponent = Some(exponent);
                self.state = challenge_state(context);
            }
            State::Secret(context, power, held) => {
                let key = power.session_key(context.hash);
                if let Err(fault) = self.verify(&context, Some(&key), &held) {
                    self.fail(context.id, fault);
                }
            }
            other => self.state = other,
        }
        false
    }

    /// The message for the host: the data of Authentication Receive, of which the host takes at most `allowed` bytes.
    pub fn fetch(&mut self, allowed: usize) -> Answer {
        let len = match &self.state {
            State::Challenge(_, message)
            | State::Success1 { message, .. }
            | State::Failure1(message) => message.len(),
            State::Exponent(..) | State::Secret(..) => return Answer::Busy,
            _ => return Answer::OutOfOrder,
        };
        if len > allowed {
            return Answer::TooShort(len);
        }
        match mem::replace(&mut self.state, State::Idle) {
            State::Challenge(context, message) => {
                self.state = State::Reply(context);
                Answer::Message(message)
            }
            State::Success1 { id, message, mutually: true } => {
                self.state = State::Success2 { id };
                Answer::Message(message)
            }
            State::Success1 { message, .. } => {
                self.settle(Outcome::Authenticated { mutually: false });
                Answer::Message(message)
            }
            State::Failure1(message) => {
                self.state = State::Failed;
                self.deadline = None;
                Answer::Message(message)
            }
            other => {
                self.state = other;
                Answer::OutOfOrder
            }
        }
    }

    fn fail(&mut self, id: u16, Fault(explanation, why): Fault) {
        let message = message::failure(message::FAILURE1, id, explanation);
        self.generated = None;
        self.is_authenticated = false;
        self.outcome = Some(Outcome::Failed { explanation, why });
        self.state = State::Failure1(message);
    }

    fn settle(&mut self, outcome: Outcome) {
        self.deadline = None;
        self.is_authenticated = matches!(outcome, Outcome::Authenticated { .. });
        if !self.is_authenticated {
            self.generated = None;
        }
        self.outcome = Some(outcome);
    }

    /// Enforces the deadline. A transaction that is late is forgotten; the host may negotiate again. One that was
    /// authenticated before remains so.
    pub fn poll(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.deadline = None;
        if matches!(self.state, State::Failure1(_)) {
            self.state = State::Failed;
        } else {
            self.state = State::Idle;
            self.generated = None;
            self.outcome = Some(Outcome::Slow);
        }
    }

    /// When [`Target::poll`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the queue takes other commands. If not, their status is Authentication Required (0x191).
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Whether a transaction has begun and is not complete, for [`crate::Pending`].
    pub fn is_pending(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether it has failed: the connection is to be closed.
    pub fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// Demands a new authentication, after a secret was changed.
    pub fn require(&mut self) {
        self.is_authenticated = false;
    }

    /// The outcome of the last authentication, once.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    /// The TLS key of a secure concatenation. It is there when the host's response is right, and is to be taken and
    /// stored before [`Target::fetch`] hands out Success1.
    pub fn take_generated(&mut self) -> Option<GeneratedPsk> {
        self.generated.take()
    }
}

fn check_transaction(head: Head, id: u16) -> Result<(), Fault> {
    if head.transaction == id {
        return Ok(());
    }
    Err(Fault(
        Explanation::IncorrectPayload,
        "the host's authentication message has another transaction id",
    ))
}

/// The state with a complete Challenge.
fn challenge_state(context: Box<Context>) -> State {
    let Context { hash, group, id, sequence, ref challenge, ref public, .. } = *context;
    let message = Challenge::encode(id, hash, group, sequence, challenge.as_bytes(), public);
    State::Challenge(context, message)
}
