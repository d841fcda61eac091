//! Checks of completions.

use super::memory::contents;
use super::side::{Kind, Message, Op, State};
use super::world::{Action, World};
use verbs::{CompletedOperation, Completion, Status};

impl World {
    /// Checks a completion.
    pub fn complete(&mut self, host: usize, completion: &Completion) {
        let number = (completion.id >> 32) as usize;
        let slot = completion.id as usize & 0x7fff_ffff;
        let side = &self.sides[number];
        assert!(side.host == host && side.state != State::Gone, "a completion for side {number}");
        assert_eq!(side.qp, completion.qp);
        if completion.id & 1 << 31 != 0 {
            return self.received(number, slot, completion);
        }
        assert!(matches!(completion.operation, CompletedOperation::Send));
        loop {
            let op = self.sides[number].ops.pop_front().expect("the request was posted");
            let this = op.slot == slot;
            let memory = &mut self.hosts[host].up().memory;
            if let Some(into) = op.kind.landing() {
                memory.close(into);
            }
            if this && completion.status != Status::Success {
                return self.failed(number, &op, completion.status);
            }
            assert!(this || !op.signaled, "completions come in the order of posting");
            self.succeeded(number, op);
            if this {
                return;
            }
        }
    }

    pub fn failed(&mut self, number: usize, op: &Op, status: Status) {
        self.trace(&format!("side {number}: {:?} ends with {status:?}", op.kind));
        let side = &self.sides[number];
        assert!(!side.sound, "side {number} fails: {status:?}");
        let fine = match status {
            Status::Flushed | Status::RetryExceeded => true,
            Status::RemoteAccess => side.refusable,
            _ => false,
        };
        assert!(fine, "side {number} ends with {status:?}");
        if let (Kind::Count { .. }, Some(life)) = (&op.kind, self.boots_of_peer(number)) {
            self.counts.entry(life).or_default().unsure += 1;
        }
    }

    pub fn succeeded(&mut self, number: usize, op: Op) {
        let life = self.boots_of_peer(number);
        let side = &mut self.sides[number];
        match op.kind {
            Kind::Send(message) => {
                assert!(side.delivered > message, "a SEND completes before its delivery")
            }
            Kind::Write { message } => {
                side.target.is_done();
                assert!(message.is_none_or(|message| side.delivered > message));
            }
            Kind::Read { into, expected, .. } => {
                assert!(contents(&into) == expected, "an RDMA READ returns wrong bytes");
            }
            Kind::Atomic { into, expected } => {
                side.target.is_done();
                assert_eq!(
                    contents(&into),
                    expected.to_ne_bytes(),
                    "an atomic returns a wrong value"
                );
            }
            Kind::Count { into } => {
                let before = u64::from_ne_bytes(contents(&into).try_into().expect("8 bytes"));
                let counts = self.counts.entry(life.expect("the side is connected")).or_default();
                assert!(
                    counts.before.insert(before),
                    "an addition is executed twice, or two at once"
                );
            }
            Kind::Trespass { .. } => {
                panic!("side {number} accessed memory that was not granted to it")
            }
        }
    }

    pub fn received(&mut self, number: usize, buffer: usize, completion: &Completion) {
        let wait = if self.rng.chance(100) { self.micros(5000) } else { self.micros(20) };
        let side = &mut self.sides[number];
        assert_eq!(side.posted.pop_front(), Some(buffer), "receives end in the order of posting");
        let (window, into, peer) = (side.window.memory, side.receives[buffer], side.peer);
        let memory = &mut self.hosts[side.host].up().memory;
        let bytes = contents(&into);
        let before = memory.expected(&into).to_vec();
        memory.close(&into);
        if completion.status != Status::Success {
            assert!(!side.sound, "side {number}: a receive ends with {:?}", completion.status);
            return assert_eq!(completion.status, Status::Flushed);
        }
        let sender = &mut self.sides[peer.expect("the side is connected")];
        let message = sender.sent.pop_front().expect("a sent message that is not delivered yet");
        sender.delivered += 1;
        match (message, completion.operation) {
            (
                Message::Send { bytes: sent, with },
                CompletedOperation::Recv { length, with: got },
            ) => {
                assert_eq!((length as usize, got), (sent.len(), with));
                assert!(bytes[..sent.len()] == sent, "a SEND delivers wrong bytes");
                assert!(
                    bytes[sent.len()..] == before[sent.len()..],
                    "a SEND writes beyond its length"
                );
            }
            (
                Message::Immediate { offset, bytes: sent, immediate },
                CompletedOperation::RecvWriteImmediate { length, immediate: got },
            ) => {
                assert_eq!((length as usize, got), (sent.len(), immediate));
                assert!(bytes == before, "a WRITE changes a receive buffer");
                assert!(
                    sender.target.shows(&window, offset, &sent),
                    "a completed WRITE is not in memory"
                );
            }
            (message, operation) => panic!("{message:?} arrives as {operation:?}"),
        }
        self.later(wait, Action::Receive { side: number, buffer });
    }
}
