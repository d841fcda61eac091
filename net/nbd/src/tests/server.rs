//! A server for tests: it keeps requests until the test answers them, or answers at once.

use crate::wire::{self, Command, REQUEST_LENGTH, chunk, flag, info, option, reply};
use std::vec::Vec;

/// A request that the server has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub command: u16,
    pub flags: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
    pub data: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub size: u64,
    pub flags: u16,
    pub blocks: Option<[u32; 3]>,
    pub structured: bool,
    /// It answers requests as they arrive.
    pub answers: bool,
    /// Replaces its side of the handshake.
    pub script: Option<Vec<u8>>,
    pub received: Vec<Received>,
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    pub options: u32,
    pub greeted: bool,
}

pub const ALL: u16 = flag::HAS_FLAGS | flag::FLUSH | flag::FUA | flag::TRIM | flag::WRITE_ZEROES;

impl Server {
    pub fn new() -> Server {
        Server {
            size: super::MIB,
            flags: ALL,
            blocks: Some([512, 4096, 32 << 20]),
            structured: true,
            answers: true,
            script: None,
            received: Vec::new(),
            input: Vec::new(),
            output: Vec::new(),
            options: 0,
            greeted: false,
        }
    }

    pub fn silent() -> Server {
        Server { answers: false, ..Server::new() }
    }

    /// A new one with the same settings.
    pub fn another(&self) -> Server {
        let output = self.script.clone().unwrap_or_else(greeting);
        Server {
            received: Vec::new(),
            input: Vec::new(),
            output,
            options: 0,
            greeted: false,
            ..self.clone()
        }
    }

    pub fn take(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.output)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        if self.script.is_some() {
            return;
        }
        if !self.greeted && self.input.len() >= 4 {
            self.input.drain(..4);
            self.greeted = true;
        }
        while self.greeted && self.options < 2 && self.input.len() >= 16 {
            let length = wire::u32_at(&self.input, 12) as usize;
            if self.input.len() < 16 + length {
                return;
            }
            let option = wire::u32_at(&self.input, 8);
            self.input.drain(..16 + length);
            self.options += 1;
            let answer = self.option(option);
            self.send(&answer);
        }
        while self.options == 2 && self.input.len() >= REQUEST_LENGTH {
            let head = self.input[..REQUEST_LENGTH].to_vec();
            let (command, length) = (wire::u16_at(&head, 6), wire::u32_at(&head, 24));
            let data = if command == Command::Write as u16 { length as usize } else { 0 };
            if self.input.len() < REQUEST_LENGTH + data {
                return;
            }
            assert_eq!(wire::u32_at(&head, 0), wire::REQUEST);
            let data = self.input.drain(..REQUEST_LENGTH + data).skip(REQUEST_LENGTH).collect();
            let request = Received {
                command,
                flags: wire::u16_at(&head, 4),
                cookie: wire::u64_at(&head, 8),
                offset: wire::u64_at(&head, 16),
                length,
                data,
            };
            if self.answers {
                self.answer(&request, 0);
            }
            self.received.push(request);
        }
    }

    fn option(&self, number: u32) -> Vec<u8> {
        match number {
            option::STRUCTURED_REPLY if self.structured => option_reply(number, reply::ACK, &[]),
            option::STRUCTURED_REPLY => option_reply(number, reply::UNSUPPORTED, b"what?"),
            _ => {
                let mut all =
                    option_reply(number, reply::INFO, &export_info(self.size, self.flags));
                if let Some(blocks) = self.blocks {
                    let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
                    blocks.iter().for_each(|block| data.extend(block.to_be_bytes()));
                    all.extend(option_reply(number, reply::INFO, &data));
                }
                all.extend(option_reply(number, reply::ACK, &[]));
                all
            }
        }
    }

    /// Answers a request: reads with bytes of the value 7.
    pub fn answer(&mut self, request: &Received, errno: u32) {
        if request.command == Command::Disconnect as u16 {
            return;
        }
        let data = match request.command == Command::Read as u16 && errno == 0 {
            true => std::vec![7; request.length as usize],
            false => Vec::new(),
        };
        if !self.structured {
            let simple = simple(request.cookie, errno, &data);
            return self.send(&simple);
        }
        let bytes = match (errno, data.is_empty()) {
            (0, true) => chunk_of(request.cookie, chunk::DONE, chunk::NONE, &[]),
            (0, false) => data_chunk(request.cookie, true, request.offset, &data),
            _ => {
                let error = [&errno.to_be_bytes()[..], &3u16.to_be_bytes(), b"no!"].concat();
                chunk_of(request.cookie, chunk::DONE, chunk::ERROR | 1, &error)
            }
        };
        self.send(&bytes);
    }

    /// Answers all received requests, in this order.
    pub fn answer_all(&mut self) {
        for request in core::mem::take(&mut self.received) {
            self.answer(&request, 0);
        }
    }
}

pub fn greeting() -> Vec<u8> {
    [&wire::GREETING.to_be_bytes()[..], &wire::OPTION.to_be_bytes(), &3u16.to_be_bytes()].concat()
}

pub fn export_info(size: u64, flags: u16) -> Vec<u8> {
    [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat()
}

pub fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_REPLY.to_be_bytes().to_vec();
    for word in [option, kind, data.len() as u32] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

pub fn simple(cookie: u64, errno: u32, data: &[u8]) -> Vec<u8> {
    let head = [wire::SIMPLE_REPLY.to_be_bytes(), errno.to_be_bytes()].concat();
    [&head[..], &cookie.to_be_bytes(), data].concat()
}

pub fn chunk_of(cookie: u64, flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = wire::STRUCTURED_REPLY.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub fn data_chunk(cookie: u64, last: bool, offset: u64, data: &[u8]) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], data].concat();
    chunk_of(cookie, u16::from(last), chunk::DATA, &payload)
}
