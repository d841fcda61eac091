//! DH-HMAC-CHAP on one queue: messages are sent and fetched by commands, one at a time.

use super::{Answer, News, Path, Random, STEP, Shared, Step};
use crate::command;
use crate::failure::Failure;
use alloc::boxed::Box;
use alloc::vec;
use drivers::hal::Instant;
use nvme_auth::{
    Concatenation, DhGroup, Explanation, Hash, Host, HostConfig, NQN, Outcome, Sequence,
};

/// Multiplications of long numbers in a turn.
const WORK: u32 = 24;
/// Bytes that are fetched of a message.
const MESSAGE: usize = 4096;
const _: () = assert!(MESSAGE <= crate::PAGE && NQN < 256);

/// Bits of Connect's result: authentication is required, and secure concatenation.
const REQUIRED: u64 = 1 << 17;
const CONCATENATION: u64 = 1 << 18;

/// An authentication.
#[derive(Debug)]
pub(crate) struct Authentication {
    host: Host,
    sequence: Sequence,
    /// The command in flight sends a message.
    sends: bool,
}

impl Authentication {
    pub fn wants_work(&self) -> bool {
        self.host.wants_work()
    }
}

impl Path {
    /// Whether a queue that has connected is to be authenticated.
    pub(super) fn needs_authentication(
        &self,
        shared: &Shared,
        queue: u16,
        result: u64,
    ) -> Result<bool, Failure> {
        let wrong = |why| Err(Failure::Authentication(why));
        if result & CONCATENATION != 0 {
            return wrong("the controller wants TLS, which remotes of this kind do not have");
        }
        if result & REQUIRED != 0 {
            return match shared.identity.secret {
                Some(_) => Ok(true),
                None => wrong("the controller wants it: set `dhchap_secret`"),
            };
        }
        // A controller may take the proof of the admin queue for all.
        if queue == 0 && shared.identity.controller_secret.is_some() {
            return wrong(
                "the controller does not offer it, and `dhchap_controller_secret` demands its proof",
            );
        }
        Ok(false)
    }

    /// Begins to authenticate a queue.
    pub(super) fn begin_authentication(
        &mut self,
        shared: &Shared,
        queue: u16,
        random: Random<'_>,
        now: Instant,
    ) -> Result<(), Failure> {
        let identity = &shared.identity;
        let secret = identity.secret.as_ref();
        let secret = secret.ok_or(Failure::Authentication("set `dhchap_secret`"))?;
        let config = HostConfig {
            hashes: vec![Hash::Sha256, Hash::Sha384, Hash::Sha512],
            groups: DhGroup::USUAL.to_vec(),
            concatenation: Concatenation::None,
            timeout: STEP,
        };
        let mut number = [0; 2];
        random(&mut number);
        let keys = (secret, identity.controller_secret.as_ref());
        let id = u16::from_le_bytes(number);
        let host = Host::new(&identity.host, &identity.subsystem, config, keys, id, now);
        let sequence = Sequence::new(random);
        self.authentication = Some(Box::new(Authentication { host, sequence, sends: false }));
        self.begin(Step::Authenticate(queue), now);
        Ok(())
    }

    /// Continues to authenticate a queue.
    pub(super) fn authenticate(
        &mut self,
        queue: u16,
        random: Random<'_>,
        now: Instant,
    ) -> Result<Option<News>, Failure> {
        let answer = self.answer.take();
        let Some(one) = &mut self.authentication else { return Ok(None) };
        one.host.poll(now);
        if let Some(answer) = answer {
            take_answer(one, &answer, &self.page, random, now)?;
        }
        if let Some(outcome) = one.host.outcome() {
            self.authentication = None;
            return self.end_authentication(queue, outcome, now);
        }
        if self.is_waiting || one.host.work(WORK) {
            return Ok(None);
        }
        if let Some(message) = one.host.outgoing() {
            let length = message.len();
            let fits = self.page.write(0, message).is_ok();
            one.sends = fits;
            if !fits {
                return Err(Failure::Authentication("a message is too long"));
            }
            self.send(queue, command::authentication(true, length), length, false);
        } else if one.host.wants_message() {
            one.sends = false;
            self.send(queue, command::authentication(false, MESSAGE), MESSAGE, true);
        }
        Ok(None)
    }

    fn end_authentication(
        &mut self,
        queue: u16,
        outcome: Outcome,
        now: Instant,
    ) -> Result<Option<News>, Failure> {
        match outcome {
            Outcome::Authenticated { .. } => Ok(self.after_connect(queue, now)),
            Outcome::Slow => Err(Failure::Slow("authentication")),
            Outcome::Failed { explanation: Explanation::Failed, why } => {
                Err(Failure::Authentication(why))
            }
            Outcome::Failed { why, .. } => Err(Failure::Authentication(why)),
        }
    }
}

/// Handles the completion of a command that moved a message.
fn take_answer(
    one: &mut Authentication,
    answer: &Answer,
    page: &drivers::hal::Window,
    random: Random<'_>,
    now: Instant,
) -> Result<(), Failure> {
    if answer.status() != 0 {
        return Err(Failure::Rejected("authentication", answer.status()));
    }
    if one.sends {
        one.host.sent();
        return Ok(());
    }
    let mut message = vec![0; answer.data.min(MESSAGE)];
    let _ = page.read(0, &mut message);
    one.host.receive(&message, &mut one.sequence, random, now);
    Ok(())
}
