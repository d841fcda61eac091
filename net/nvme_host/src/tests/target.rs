//! A subsystem for tests, with a controller for each path: stores blocks, and does what the test says.

use drivers::hal::{Arena, Window};
use nvme_tcp::target::{Connection, Event, Settings};
use nvme_tcp::wire::{CQE, SQE, u16_at, u32_at};
use std::vec;
use std::vec::Vec;

pub const SUBSYSTEM: &str = "nqn.2026-01.example:store";
pub const BLOCK: usize = 512;
pub const GROUP: u32 = 3;

/// A command that was seen: path, queue, opcode, first block, control.
pub type Seen = (usize, u16, u8, u64, u16);

/// What the subsystem is and does.
pub struct Subsystem {
    pub memory: Vec<u8>,
    /// Namespace blocks by path: what its controller says.
    pub blocks: Vec<u64>,
    pub uuid: u8,
    pub mdts: u8,
    pub in_capsule: u32,
    pub cache: bool,
    pub granted: u16,
    /// ANA state by path.
    pub access: Vec<u8>,
    /// Status of the next commands with this opcode.
    pub failing: Vec<(u8, u16)>,
    /// I/O commands are not answered.
    pub is_stuck: bool,
    pub seen: Vec<Seen>,
    pub namespaces: Vec<u32>,
    /// Changes the page of Identify with this CNS.
    pub change: Option<(u8, fn(&mut [u8]))>,
    pub data_completes: bool,
}

impl Subsystem {
    pub fn new(paths: usize) -> Subsystem {
        let blocks = 4096;
        Subsystem {
            memory: (0..blocks as usize * BLOCK).map(|at| (at / BLOCK) as u8).collect(),
            blocks: vec![blocks; paths],
            uuid: 7,
            mdts: 5,
            in_capsule: 8192,
            cache: false,
            granted: 16,
            access: vec![1; paths],
            failing: Vec::new(),
            is_stuck: false,
            seen: Vec::new(),
            namespaces: vec![1],
            change: None,
            data_completes: true,
        }
    }

    fn identify(&self, path: usize, cns: u8, cntlid: u16) -> Vec<u8> {
        let mut page = vec![0; 4096];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        match cns {
            0 => {
                put(0, &self.blocks[path].to_le_bytes());
                put(8, &self.blocks[path].to_le_bytes());
                put(92, &GROUP.to_le_bytes());
                put(130, &[9]);
            }
            1 => {
                put(76, &[1 << 1 | 1 << 3]);
                put(77, &[self.mdts]);
                put(78, &cntlid.to_le_bytes());
                put(92, &(1u32 << 8 | 1 << 11).to_le_bytes());
                put(111, &[1]);
                put(261, &[1 << 2]);
                put(520, &[1 << 2 | 1 << 3]);
                put(525, &[u8::from(self.cache)]);
                put(536, &[1]);
                put(768, SUBSYSTEM.as_bytes());
                put(1792, &((self.in_capsule + 64) / 16).to_le_bytes());
                put(1796, &[1]);
            }
            2 => {
                for (place, nsid) in self.namespaces.iter().enumerate() {
                    put(4 * place, &nsid.to_le_bytes());
                }
            }
            3 => put(0, &[&[3, 16, 0, 0][..], &[self.uuid; 16], &[4, 1, 0, 0, 0]].concat()),
            _ => {}
        }
        if let Some((of, change)) = self.change
            && of == cns
        {
            change(&mut page);
        }
        page
    }

    fn log(&self, path: usize, page: u8) -> Vec<u8> {
        let mut log = vec![0; 16 + 3 * 32];
        if page != 0x0c {
            return vec![0; 4096];
        }
        log[8] = 3;
        for group in 0..3 {
            let at = 16 + 32 * group;
            log[at] = group as u8 + 1;
            log[at + 16] = if group as u32 + 1 == GROUP { self.access[path] } else { 3 };
        }
        log
    }
}

/// A connection of a controller.
pub struct Link {
    pub connection: Connection,
    pub path: usize,
    pub qid: Option<u16>,
    cc: u32,
    /// Commands whose data arrives.
    arriving: Vec<([u8; SQE], Window)>,
    /// Identifier of the event request.
    pub event: Option<u16>,
    /// The test answers commands itself: they are only recorded.
    pub is_manual: bool,
    pub commands: Vec<[u8; SQE]>,
}

impl Link {
    pub fn new(path: usize) -> Link {
        let settings = Settings { max_h2c_data: 4096, max_in_capsule: 8192, digests: 3 };
        let mut connection = Connection::new(settings);
        connection.set_depth(128);
        Link {
            connection,
            path,
            qid: None,
            cc: 0,
            arriving: Vec::new(),
            event: None,
            is_manual: false,
            commands: Vec::new(),
        }
    }

    /// Completes a command.
    pub fn complete(&mut self, cid: u16, status: u16, result: u64) {
        let mut cqe = [0; CQE];
        cqe[..8].copy_from_slice(&result.to_le_bytes());
        cqe[12..14].copy_from_slice(&cid.to_le_bytes());
        cqe[14..].copy_from_slice(&(status << 1).to_le_bytes());
        self.connection.complete(&cqe);
    }

    /// Announces an event, if one is asked for.
    pub fn announce(&mut self, event: u64) -> bool {
        let Some(cid) = self.event.take() else { return false };
        self.complete(cid, 0, event);
        true
    }

    /// Takes bytes of the host.
    pub fn receive(&mut self, mut bytes: &[u8], subsystem: &mut Subsystem, arena: &mut Arena) {
        while !bytes.is_empty() {
            let (taken, event) = self.connection.receive(bytes);
            bytes = &bytes[taken..];
            match event {
                Some(Event::Command { sqe, data }) => {
                    let length = u32_at(&sqe, 32) as usize;
                    let writes =
                        sqe[0] == 0x7f && matches!(sqe[4], 1 | 5) || matches!(sqe[0], 1 | 9);
                    let cid = u16_at(&sqe, 2);
                    if self.is_manual {
                        self.commands.push(sqe);
                    }
                    if writes && length > 0 && (data > 0 || !self.is_manual) {
                        let window = arena.alloc(length.next_multiple_of(64), 64).unwrap();
                        let window = window.slice(0, length).unwrap();
                        match data {
                            0 => self.connection.fetch(cid, cid, window),
                            _ => self.connection.place(cid, window),
                        }
                        self.arriving.push((sqe, window));
                    } else if !self.is_manual {
                        self.execute(&sqe, Window::empty(), subsystem, arena);
                    }
                }
                Some(Event::Arrived { tag, intact }) => {
                    assert!(intact);
                    let place = self.arriving.iter().position(|(sqe, _)| u16_at(sqe, 2) == tag);
                    let (sqe, window) = self.arriving.remove(place.unwrap());
                    if !self.is_manual {
                        self.execute(&sqe, window, subsystem, arena);
                    }
                }
                Some(Event::Over) => return,
                None if taken == 0 => return,
                None => {}
            }
        }
    }

    fn give(&mut self, cid: u16, bytes: &[u8], length: usize, completes: bool, arena: &mut Arena) {
        let window = arena.alloc(length.next_multiple_of(64), 64).unwrap();
        let window = window.slice(0, length).unwrap();
        window.fill(0);
        window.write(0, &bytes[..bytes.len().min(length)]).unwrap();
        self.connection.send_data(cid, cid, window, completes);
        if !completes {
            self.complete(cid, 0, 0);
        }
    }

    fn execute(&mut self, sqe: &[u8; SQE], data: Window, it: &mut Subsystem, arena: &mut Arena) {
        let (cid, opcode, length) = (u16_at(sqe, 2), sqe[0], u32_at(sqe, 32) as usize);
        if opcode == 0x7f {
            return self.fabrics(sqe, data);
        }
        if let Some(place) = it.failing.iter().position(|(of, _)| *of == opcode) {
            let (_, status) = it.failing.remove(place);
            return self.complete(cid, status, 0);
        }
        if self.qid == Some(0) {
            let cntlid = 10 + self.path as u16;
            return match opcode {
                0x06 => {
                    let page = it.identify(self.path, sqe[40], cntlid);
                    self.give(cid, &page, length, false, arena);
                }
                0x02 => {
                    let log = it.log(self.path, sqe[40]);
                    let offset = u32_at(sqe, 48) as usize;
                    self.give(cid, &log[offset..], length, true, arena);
                }
                0x09 if sqe[40] == 7 => {
                    let granted = u64::from(it.granted - 1);
                    self.complete(cid, 0, granted << 16 | granted);
                }
                0x0c => self.event = Some(cid),
                _ => self.complete(cid, 0, 0),
            };
        }
        let first = u64::from(u32_at(sqe, 40)) | u64::from(u32_at(sqe, 44)) << 32;
        let control = u16_at(sqe, 50);
        it.seen.push((self.path, self.qid.unwrap_or(99), opcode, first, control));
        if it.is_stuck {
            return;
        }
        if !matches!(it.access[self.path], 1 | 2) {
            return self.complete(cid, 0x302, 0);
        }
        let blocks = usize::from(u16_at(sqe, 48)) + 1;
        let range = || first as usize * BLOCK..(first as usize + blocks) * BLOCK;
        match opcode {
            1 => data.read(0, &mut it.memory[range()]).unwrap(),
            2 => {
                let bytes = it.memory[range()].to_vec();
                assert_eq!(bytes.len(), length);
                return self.give(cid, &bytes, length, it.data_completes, arena);
            }
            8 => it.memory[range()].fill(0),
            _ => {}
        }
        self.complete(cid, 0, 0);
    }

    fn fabrics(&mut self, sqe: &[u8; SQE], data: Window) {
        let (cid, offset) = (u16_at(sqe, 2), u32_at(sqe, 44));
        match sqe[4] {
            1 => {
                let mut connect = [0; 1024];
                data.read(0, &mut connect).unwrap();
                assert_eq!(&connect[256..256 + SUBSYSTEM.len()], SUBSYSTEM.as_bytes());
                let qid = u16_at(sqe, 42);
                let cntlid = 10 + self.path as u16;
                assert_eq!(u16_at(&connect, 16), if qid == 0 { 0xffff } else { cntlid });
                self.qid = Some(qid);
                self.complete(cid, 0, cntlid.into());
            }
            0 => {
                self.cc = u32_at(sqe, 48);
                self.complete(cid, 0, 0);
            }
            4 => {
                let value = match offset {
                    // 128 places, 5 s, NVM command set.
                    0 => 127 | 10 << 24 | 1u64 << 37,
                    0x1c if self.cc >> 14 & 3 != 0 => 1 | 2 << 2,
                    0x1c => u64::from(self.cc & 1),
                    _ => 0,
                };
                self.complete(cid, 0, value);
            }
            _ => self.complete(cid, 0x4002, 0),
        }
    }
}
