//! A board in the model's own process: it has memory, takes what is sent to it, and answers as it is told to.

use super::packet::{Kind, Packet, Status};
use std::collections::VecDeque;

/// How a board answers messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// It takes them and keeps them.
    #[default]
    Take,
    /// It takes them and sends the same back.
    Echo,
    /// "Later".
    Retry,
    /// It refuses them.
    Refuse,
    /// Not at all.
    Silence,
}

/// A board.
#[derive(Debug, Default)]
pub struct Board {
    /// What it does with messages.
    pub messages: Answer,
    /// What it does with requests for its memory.
    pub memory_access: Answer,
    /// Its memory, from address 0 on.
    pub memory: Vec<u8>,
    /// Messages that were taken: source, mailbox, bytes.
    pub received: VecDeque<(u16, u8, Vec<u8>)>,
    /// Doorbells that were rung: source and what was said.
    pub doorbells: VecDeque<(u16, u16)>,
    /// Answers to requests of its own, in the order of their arrival.
    pub answers: VecDeque<Packet>,
    next: u16,
}

impl Board {
    /// One with so much memory.
    pub fn new(messages: Answer, memory: usize) -> Self {
        Board { messages, memory: vec![0; memory], ..Board::default() }
    }

    /// As after power-on; its memory stays.
    pub fn reset(&mut self) {
        self.received.clear();
        self.doorbells.clear();
        self.answers.clear();
    }

    /// What it sends when this arrives.
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
                let is_told = self.memory_access != Answer::Silence;
                let answer = tid.filter(|_| is_told).map(|tid| Kind::Written { tid, status });
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
