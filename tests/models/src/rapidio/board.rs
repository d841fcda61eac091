//! A board in the model's process: an end point with memory that answers requests as the test configures.

use super::packet::{Kind, Packet, Status};
use std::collections::VecDeque;

/// A board's response to requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// Accepts and stores them.
    #[default]
    Take,
    /// Accepts them, and sends the same message back.
    Echo,
    /// Responds "retry".
    Retry,
    /// Responds with an error.
    Refuse,
    /// Sends no response.
    Silence,
}

/// A board.
#[derive(Debug, Default)]
pub struct Board {
    /// Response to messages.
    pub messages: Answer,
    /// Response to memory requests.
    pub memory_access: Answer,
    /// Memory, from address 0 on.
    pub memory: Vec<u8>,
    /// Accepted messages: source, mailbox, bytes.
    pub received: VecDeque<(u16, u8, Vec<u8>)>,
    /// Received doorbells: source and information.
    pub doorbells: VecDeque<(u16, u16)>,
    /// Responses to the board's own requests, in order of arrival.
    pub answers: VecDeque<Packet>,
    next: u16,
}

impl Board {
    /// Creates a board with this many bytes of memory.
    pub fn new(messages: Answer, memory: usize) -> Self {
        Board { messages, memory: vec![0; memory], ..Board::default() }
    }

    /// Restores the power-on state, except for memory.
    pub fn reset(&mut self) {
        self.received.clear();
        self.doorbells.clear();
        self.answers.clear();
    }

    /// Handles a packet. Returns the packets that the board sends.
    pub fn receive(&mut self, packet: Packet) -> Vec<Packet> {
        let is_reachable = self.memory_access == Answer::Take;
        match &packet.kind {
            Kind::Doorbell { tid, info } => {
                self.doorbells.push_back((packet.from, *info));
                vec![packet.answer(Kind::Rung { tid: *tid, status: Status::Done })]
            }
            Kind::Message { tid, mailbox, letter, data } => {
                let (tid, mailbox, letter) = (*tid, *mailbox, *letter);
                let received = |status| packet.answer(Kind::Received { tid, mailbox, status });
                match self.messages {
                    Answer::Take => {
                        self.received.push_back((packet.from, mailbox, data.clone()));
                        vec![received(Status::Done)]
                    }
                    Answer::Echo => {
                        self.next = self.next.wrapping_add(1);
                        let data = data.clone();
                        let back = Kind::Message { tid: self.next, mailbox, letter, data };
                        vec![received(Status::Done), packet.answer(back)]
                    }
                    Answer::Retry => vec![received(Status::Retry)],
                    Answer::Refuse => vec![received(Status::Error)],
                    Answer::Silence => Vec::new(),
                }
            }
            Kind::Read { tid, address, len } => {
                if self.memory_access == Answer::Silence {
                    return Vec::new();
                }
                let data = self.part(*address, *len).filter(|_| is_reachable);
                let data = data.map(|part| part.to_vec());
                vec![packet.answer(Kind::Data { tid: *tid, data })]
            }
            Kind::Write { tid, address, data } => {
                let place = self.part(*address, data.len()).filter(|_| is_reachable);
                let status = match place {
                    Some(place) => {
                        place.copy_from_slice(data);
                        Status::Done
                    }
                    None => Status::Error,
                };
                let responds = self.memory_access != Answer::Silence;
                let answer = tid.filter(|_| responds).map(|tid| Kind::Written { tid, status });
                answer.into_iter().map(|kind| packet.answer(kind)).collect()
            }
            _ => {
                self.answers.push_back(packet);
                Vec::new()
            }
        }
    }

    fn part(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(address).ok()?;
        self.memory.get_mut(start..start.checked_add(len)?)
    }
}
