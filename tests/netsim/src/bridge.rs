//! A simulated non-transparent bridge in memory. Its writes are posted: they arrive later, in pieces, and in any order
//! that PCIe allows.
//!
//! Writes between two fences arrive in any order. A write of more than 4 bytes arrives in pieces, each a multiple of 4
//! bytes. An aligned cell of 4 bytes arrives whole. Scratchpads and doorbells arrive after all writes before the last
//! fence, and in order.
//!
//! For the same tests, a bridge can also be a byte stream ([`BridgeEnd::over_stream`]).

use crate::Rng;
use crate::stream::StreamEnd;
use drivers::dma::{Dma, Progress, Ticket};
use drivers::hal::{Instant, Window};
use drivers::ntb::{Bridge, Ntb, SharedMemory, Side};
use std::collections::VecDeque;

/// Most pieces of a write.
const PIECES: u64 = 4;

#[derive(Debug)]
enum Posted {
    Copy(Window, Window, Ticket),
    Bytes(Window, Vec<u8>),
    Cell(Window, u32),
    Scratchpad(usize, u32),
    Bell,
    Fence,
}

/// One end of a bridge.
#[derive(Debug)]
pub struct BridgeEnd(Kind);

#[derive(Debug)]
enum Kind {
    Posted(PostedEnd),
    Stream(StreamEnd),
}

/// One end, with its posted writes that have not arrived.
#[derive(Debug)]
struct PostedEnd {
    memory: SharedMemory,
    posted: VecDeque<Posted>,
    rng: Rng,
    loads: bool,
    up: bool,
    engine: Option<Engine>,
}

/// An engine that carries payload. It reads the source when the copy arrives, and reports completion later.
#[derive(Debug, Default)]
struct Engine {
    submitted: Ticket,
    reported: Ticket,
    lost: bool,
}

impl BridgeEnd {
    /// Creates the two ends of a bridge through `memory`. `loads` is the value of [`Ntb::loads`]: whether the window
    /// supports loads.
    pub fn pair(memory: Window, loads: bool, rng: &mut Rng) -> [BridgeEnd; 2] {
        [Side::A, Side::B].map(|side| {
            BridgeEnd(Kind::Posted(PostedEnd {
                memory: SharedMemory::new(memory, side).expect("memory can be halved"),
                posted: VecDeque::new(),
                rng: rng.fork(),
                loads,
                up: true,
                engine: None,
            }))
        })
    }

    /// Creates the two ends of a bridge, with engines that carry payload.
    pub fn with_engines(memory: Window, rng: &mut Rng) -> [BridgeEnd; 2] {
        let mut ends = Self::pair(memory, false, rng);
        for BridgeEnd(kind) in &mut ends {
            if let Kind::Posted(end) = kind {
                end.engine = Some(Engine::default());
            }
        }
        ends
    }

    /// Fails the engine. Its pending copies are lost.
    pub fn lose_engine(&mut self) {
        if let Kind::Posted(PostedEnd { engine: Some(engine), posted, .. }) = &mut self.0 {
            engine.lost = true;
            posted.clear();
        }
    }

    /// Creates the two ends of a bridge over a stream. Each exposes one of the windows.
    pub fn over_stream(windows: [Window; 2], rng: &mut Rng) -> [BridgeEnd; 2] {
        StreamEnd::pair(windows, rng).map(|end| BridgeEnd(Kind::Stream(end)))
    }

    /// Sets the link state of one end. Must be called at both ends. Writes in flight are lost.
    pub fn set_link(&mut self, up: bool) {
        match &mut self.0 {
            Kind::Posted(end) => end.set_link(up),
            Kind::Stream(end) => end.set_link(up),
        }
    }

    /// Number of writes that have not arrived (for a stream: of bytes that were not sent).
    pub fn under_way(&self) -> usize {
        match &self.0 {
            Kind::Posted(end) => end.posted.len(),
            Kind::Stream(end) => end.stream.outgoing().len(),
        }
    }

    /// Delivers up to `count` writes; for a stream, up to a thousand bytes for each, both ways.
    pub fn deliver(&mut self, count: usize) {
        match &mut self.0 {
            Kind::Posted(end) => end.deliver(count),
            Kind::Stream(end) => end.turn(count),
        }
    }

    /// Number of writes that may arrive next, because no fence holds them back. 0 for a stream.
    pub fn free(&mut self) -> usize {
        match &mut self.0 {
            Kind::Posted(end) => end.free(),
            Kind::Stream(_) => 0,
        }
    }

    /// Delivers one of these writes, counted from 0 in posting order.
    pub fn deliver_one(&mut self, number: usize) {
        if let Kind::Posted(end) = &mut self.0 {
            end.arrive(number);
        }
    }

    /// Reseeds the random splitting of writes into pieces.
    pub fn reseed(&mut self, seed: u64) {
        if let Kind::Posted(end) = &mut self.0 {
            end.rng = Rng::new(seed);
        }
    }

    /// Cuts the power of the machine: some of its posted writes still arrive, the others are lost.
    pub fn power_off(&mut self) {
        match &mut self.0 {
            Kind::Posted(end) => end.power_off(),
            Kind::Stream(end) => end.power_off(),
        }
    }

    fn bridge(&self) -> &dyn Bridge {
        match &self.0 {
            Kind::Posted(end) => end,
            Kind::Stream(end) => &end.stream,
        }
    }

    fn bridge_mut(&mut self) -> &mut dyn Bridge {
        match &mut self.0 {
            Kind::Posted(end) => end,
            Kind::Stream(end) => &mut end.stream,
        }
    }
}

impl PostedEnd {
    fn set_link(&mut self, up: bool) {
        self.up = up;
        if !up {
            self.posted.clear();
        }
    }

    fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            match self.free() {
                0 => return,
                free => {
                    let number = self.rng.within(0..free as u64) as usize;
                    self.arrive(number);
                }
            }
        }
    }

    fn free(&mut self) -> usize {
        while let Some(Posted::Fence) = self.posted.front() {
            self.posted.pop_front();
        }
        let fence = self.posted.iter().position(|posted| matches!(posted, Posted::Fence));
        fence.unwrap_or(self.posted.len())
    }

    fn arrive(&mut self, number: usize) {
        match self.posted.remove(number) {
            Some(Posted::Bytes(to, bytes)) => {
                to.write(0, &bytes).expect("the write was cut to fit");
            }
            Some(Posted::Copy(to, from, _)) => {
                let from = from.slice(0, from.len().min(to.len())).expect("not longer");
                to.write_window(0, &from).expect("the write was cut to fit");
            }
            Some(Posted::Cell(to, value)) => to.store32(0, value),
            Some(Posted::Scratchpad(n, value)) => self.memory.set_peer_scratchpad(n, value),
            Some(Posted::Bell) => self.memory.ring(),
            Some(Posted::Fence) | None => (),
        }
    }

    fn power_off(&mut self) {
        let some = self.rng.within(0..self.posted.len() as u64 + 1) as usize;
        self.deliver(some);
        self.posted.clear();
    }

    fn post(&mut self, posted: Posted) {
        if self.up {
            self.posted.push_back(posted);
        }
    }

    fn post_bytes(&mut self, to: &Window, bytes: &[u8]) {
        let mut at = 0;
        let most = (bytes.len() as u64 / PIECES).next_multiple_of(4).max(8);
        while at < bytes.len() {
            let len = self.rng.within(1..most / 4 + 1) as usize * 4;
            let len = len.min(bytes.len() - at);
            let piece = to.slice(at, len).expect("within the window");
            self.post(Posted::Bytes(piece, bytes[at..at + len].to_vec()));
            at += len;
        }
    }

    /// Posts a write with a fence before and after it, to keep its order.
    fn post_in_order(&mut self, posted: Posted) {
        self.order();
        self.post(posted);
        self.order();
    }
}

impl Ntb for PostedEnd {
    fn link(&self) -> bool {
        self.up
    }

    fn window(&self) -> Window {
        self.memory.window()
    }

    fn exposed(&self) -> Window {
        self.memory.exposed()
    }

    fn loads(&self) -> bool {
        self.loads
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.memory.scratchpad(n)
    }

    fn set_peer_scratchpad(&mut self, n: usize, value: u32) {
        self.post_in_order(Posted::Scratchpad(n, value));
    }

    fn ring(&mut self) {
        self.post_in_order(Posted::Bell);
    }

    fn rung(&mut self) -> bool {
        self.memory.rung()
    }
}

impl Dma for PostedEnd {
    fn submit(&mut self, to: &Window, from: &Window) {
        if let Some(engine) = &mut self.engine {
            engine.submitted += 1;
            let ticket = engine.submitted;
            return self.post(Posted::Copy(*to, *from, ticket));
        }
        let mut bytes = vec![0; from.len().min(to.len())];
        from.read(0, &mut bytes).expect("its own length");
        self.post_bytes(to, &bytes);
    }

    fn is_asynchronous(&self) -> bool {
        self.engine.is_some()
    }

    fn submitted(&self) -> Ticket {
        self.engine.as_ref().map_or(0, |engine| engine.submitted)
    }

    fn start(&mut self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.reported != engine.submitted)
    }

    /// Reports a copy some time after it was made. Until then it may be repeated.
    fn complete(&mut self, _: Instant) -> Progress {
        let Some(engine) = &mut self.engine else { return Progress::default() };
        let under_way = self.posted.iter().find_map(|posted| match posted {
            Posted::Copy(_, _, ticket) => Some(*ticket),
            _ => None,
        });
        let made = under_way.map_or(engine.submitted, |ticket| ticket - 1);
        if self.rng.within(0..3) == 0 {
            engine.reported = made;
        }
        Progress { done: engine.reported, lost: core::mem::take(&mut engine.lost) }
    }

    fn put(&mut self, to: &Window, words: &[u64]) {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(to.len());
        self.post_bytes(to, &bytes);
    }

    fn put32(&mut self, to: &Window, value: u32) {
        self.post(Posted::Cell(*to, value));
    }

    fn order(&mut self) {
        if self.up && !matches!(self.posted.back(), None | Some(Posted::Fence)) {
            self.posted.push_back(Posted::Fence);
        }
    }

    fn settled(&mut self) -> bool {
        self.posted.is_empty()
    }
}

impl Ntb for BridgeEnd {
    fn link(&self) -> bool {
        self.bridge().link()
    }

    fn window(&self) -> Window {
        self.bridge().window()
    }

    fn exposed(&self) -> Window {
        self.bridge().exposed()
    }

    fn loads(&self) -> bool {
        self.bridge().loads()
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.bridge().scratchpad(n)
    }

    fn set_peer_scratchpad(&mut self, n: usize, value: u32) {
        self.bridge_mut().set_peer_scratchpad(n, value);
    }

    fn ring(&mut self) {
        self.bridge_mut().ring();
    }

    fn rung(&mut self) -> bool {
        self.bridge_mut().rung()
    }
}

impl Dma for BridgeEnd {
    fn submit(&mut self, to: &Window, from: &Window) {
        self.bridge_mut().submit(to, from);
    }

    fn put(&mut self, to: &Window, words: &[u64]) {
        self.bridge_mut().put(to, words);
    }

    fn put32(&mut self, to: &Window, value: u32) {
        self.bridge_mut().put32(to, value);
    }

    fn order(&mut self) {
        self.bridge_mut().order();
    }

    fn is_asynchronous(&self) -> bool {
        self.bridge().is_asynchronous()
    }

    fn submitted(&self) -> Ticket {
        self.bridge().submitted()
    }

    fn start(&mut self) -> bool {
        self.bridge_mut().start()
    }

    fn complete(&mut self, now: Instant) -> Progress {
        self.bridge_mut().complete(now)
    }

    fn settled(&mut self) -> bool {
        self.bridge_mut().settled()
    }

    fn has_room(&self) -> bool {
        self.bridge().has_room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;

    fn ends(seed: u64) -> [BridgeEnd; 2] {
        let memory = Arena::on_heap(1 << 16).alloc(1 << 15, 4096).unwrap();
        BridgeEnd::pair(memory, false, &mut Rng::new(seed))
    }

    #[test]
    fn only_fences_keep_order() {
        let (mut early, mut torn) = (0, 0);
        for seed in 0..200 {
            let [mut a, b] = ends(seed);
            let at = |offset, len| a.window().slice(offset, len).unwrap();
            let (data, index, other) = (at(0, 64), at(64, 4), at(128, 4));
            a.put(&data, &[u64::MAX; 8]);
            a.put32(&other, 1);
            a.order();
            a.put32(&index, 1);
            while a.under_way() > 0 {
                a.deliver(1);
                let mut bytes = [0; 64];
                b.exposed().read(0, &mut bytes).unwrap();
                let arrived = bytes.iter().filter(|&&byte| byte == 0xff).count();
                torn += u32::from((1..64).contains(&arrived));
                early += u32::from(b.exposed().load32(128) == 1 && arrived < 64);
                assert!(b.exposed().load32(64) == 0 || arrived == 64);
            }
            assert_eq!(b.exposed().load32(64), 1);
        }
        assert!(early > 20 && torn > 20, "{early} {torn}");
    }

    #[test]
    fn writes_lost_with_the_link_never_arrive() {
        let [mut a, b] = ends(1);
        a.put32(&a.window().slice(0, 4).unwrap(), 1);
        a.set_link(false);
        a.put32(&a.window().slice(4, 4).unwrap(), 1);
        a.set_link(true);
        a.set_peer_scratchpad(0, 7);
        a.deliver(usize::MAX);
        assert_eq!((b.exposed().load32(0), b.exposed().load32(4), b.scratchpad(0)), (0, 0, 7));
    }
}
