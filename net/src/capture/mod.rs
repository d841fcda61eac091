//! Packet capture: a ring of the last frames that crossed the ports, read out as pcapng.
//!
//! Capture tools on a host do not see RDMA traffic, because the NIC handles it. Here every frame passes through the
//! loop, which passes it to the [`Capture`]. A capture that is off costs one test. Only headers are kept (for RoCE
//! including BTH and extended transport headers), unless the filter requests payload.

mod filter;
mod headers;
mod pcapng;
mod ring;

pub use filter::{Filter, FilterError};
pub use pcapng::{LinkType, Reader};
pub use ring::{Direction, Frame};

use alloc::vec::Vec;
use drivers::hal::{Instant, Packet};
use ring::Ring;

/// Maximum bytes kept of a frame.
const SNAP_LENGTH: usize = 9 * 1024 + 256;
/// Maximum bytes of the headers of a RapidIO message: RIOCM's longest.
const MESSAGE_HEADERS: usize = 32;

/// The capture of one loop.
#[derive(Debug, Default)]
pub struct Capture {
    running: bool,
    filter: Filter,
    ring: Option<Ring>,
    /// Position at which the last ring ended.
    begin: u64,
    scratch: Vec<u8>,
}

impl Capture {
    /// A stopped capture without a ring.
    pub fn new() -> Self {
        Self::default()
    }

    /// Discards the previous capture, allocates a ring of `bytes` bytes, and starts.
    pub fn start(&mut self, filter: Filter, bytes: usize) {
        self.discard();
        self.filter = filter;
        self.ring = Some(Ring::new(bytes.max(2 * SNAP_LENGTH), self.begin));
        self.scratch = alloc::vec![0; SNAP_LENGTH];
        self.running = true;
    }

    /// Stops. Captured frames stay until the next start or `discard`.
    pub fn stop(&mut self) {
        self.running = false;
    }

    /// Stops and frees the ring.
    pub fn discard(&mut self) {
        let begin = self.ring.as_ref().map_or(self.begin, Ring::newest);
        *self = Capture { begin, ..Self::default() };
    }

    /// Whether the capture runs.
    #[inline]
    pub fn running(&self) -> bool {
        self.running
    }

    /// Frames in the ring, and frames that later ones have overwritten.
    pub fn counts(&self) -> (u64, u64) {
        self.ring.as_ref().map_or((0, 0), Ring::counts)
    }

    /// Records a frame that port `port` received.
    #[inline]
    pub fn received(&mut self, port: usize, frame: &[u8], now: Instant) {
        if self.running {
            self.keep(port, Direction::Received, frame, frame.len(), now);
        }
    }

    /// Records a packet that was passed to port `port` for transmission.
    #[inline]
    pub fn sent(&mut self, port: usize, packet: &Packet<'_>, now: Instant) {
        if self.running {
            let mut scratch = core::mem::take(&mut self.scratch);
            let kept = gather(packet, &mut scratch);
            self.keep(port, Direction::Sent, &scratch[..kept], packet.len(), now);
            self.scratch = scratch;
        }
    }

    /// Records a RapidIO message. The ids of sender and receiver and the mailbox precede it ([`LinkType::RapidIo`]).
    #[cold]
    pub fn message(
        &mut self,
        port: usize,
        is_sent: bool,
        ([from, to], mailbox): ([u16; 2], u8),
        bytes: &[u8],
        now: Instant,
    ) {
        if !self.running || !self.filter.matches_message() {
            return;
        }
        let [a, b] = from.to_be_bytes();
        let [c, d] = to.to_be_bytes();
        let header = [a, b, c, d, mailbox, 0, 0, 0];
        let most = if self.filter.payload() { bytes.len() } else { MESSAGE_HEADERS };
        let kept = [&header[..], &bytes[..bytes.len().min(most)]].concat();
        let way = if is_sent { Direction::Sent } else { Direction::Received };
        let length = (header.len() + bytes.len()) as u32;
        if let Some(ring) = &mut self.ring {
            ring.push(&Frame { time: now, port: port as u16, way, length }, &kept);
        }
    }

    fn keep(&mut self, port: usize, way: Direction, frame: &[u8], length: usize, now: Instant) {
        if let Some(ring) = &mut self.ring
            && self.filter.matches(port, frame)
        {
            let most = if self.filter.payload() { SNAP_LENGTH } else { headers::length(frame) };
            let kept = &frame[..frame.len().min(most)];
            ring.push(&Frame { time: now, port: port as u16, way, length: length as u32 }, kept);
        }
    }

    /// A reader of the ring's present contents as a pcapng file. `names` has the ports' names and link types.
    /// `epoch` is the wall clock (since 1970) at `Instant::ZERO`, in nanoseconds.
    pub fn reader(&self, names: Vec<(alloc::string::String, LinkType)>, epoch: u64) -> Reader {
        Reader::new(names, epoch, self.ring.as_ref())
    }

    /// Appends the next piece of the file to `into`: at most `room` bytes plus one frame. False at the end of the file.
    pub fn read(&self, reader: &mut Reader, into: &mut Vec<u8>, room: usize) -> bool {
        reader.read(self.ring.as_ref(), into, room)
    }
}

/// Copies the parts of a packet to `into`. Returns the number of bytes that fit.
fn gather(packet: &Packet<'_>, into: &mut [u8]) -> usize {
    let mut at = 0;
    let mut add = |bytes: &[u8]| {
        let n = bytes.len().min(into.len() - at);
        into[at..at + n].copy_from_slice(&bytes[..n]);
        at += n;
    };
    add(packet.header);
    for window in packet.payload {
        window.for_each_block(&mut add);
    }
    add(packet.trailer);
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use drivers::hal::Arena;

    fn frame(n: u8, len: usize) -> Vec<u8> {
        let mut frame = alloc::vec![n; len];
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        frame
    }

    fn file(capture: &Capture) -> Vec<u8> {
        let mut reader = capture
            .reader(["net0", "net1"].map(|name| (name.to_string(), LinkType::Ethernet)).into(), 0);
        let mut all = Vec::new();
        while capture.read(&mut reader, &mut all, 1000) {}
        all
    }

    #[test]
    fn sent_and_received_frames_come_out_whole() {
        let mut arena = Arena::on_heap(4096);
        let payload = arena.alloc(128, 64).unwrap();
        payload.fill(0x55);
        let mut capture = Capture::new();
        capture.received(0, &frame(1, 60), Instant::from_nanos(1));
        assert_eq!(capture.counts(), (0, 0), "not running, nothing kept");
        capture.start(Filter::parse("payload").unwrap(), 1 << 16);
        capture.received(0, &frame(1, 61), Instant::from_nanos(5));
        let header = frame(2, 42);
        let packet = Packet { header: &header, payload: &[payload], trailer: &[9, 9, 9, 9] };
        capture.sent(1, &packet, Instant::from_nanos(7));
        assert_eq!(capture.counts(), (2, 0));
        let mut cursor = std::io::Cursor::new(file(&capture));
        let mut parsed = pcap_file::pcapng::PcapNgReader::new(&mut cursor).unwrap();
        let mut frames = Vec::new();
        while let Some(block) = parsed.next_block() {
            if let pcap_file::pcapng::Block::EnhancedPacket(p) = block.unwrap() {
                frames.push((p.interface_id, p.timestamp.as_nanos(), p.data.into_owned()));
            }
        }
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0], (0, 5, frame(1, 61)));
        assert_eq!(frames[1].0, 1);
        assert_eq!(frames[1].2.len(), 42 + 128 + 4);
        assert_eq!(&frames[1].2[168..], &[0x55, 0x55, 9, 9, 9, 9]);
    }

    #[test]
    fn the_ring_keeps_the_last_frames_and_a_slow_reader_skips() {
        let mut capture = Capture::new();
        capture.start(Filter::parse("payload").unwrap(), 0);
        for n in 0..200u8 {
            capture.received(0, &frame(n, 1000), Instant::from_nanos(u64::from(n)));
        }
        let (kept, lost) = capture.counts();
        assert_eq!(kept + lost, 200);
        assert!(kept >= 15 && lost > 0);
        let mut reader = capture.reader(alloc::vec![("net0".to_string(), LinkType::Ethernet)], 0);
        let mut all = Vec::new();
        assert!(capture.read(&mut reader, &mut all, 10));
        for n in 0..200u8 {
            capture.received(0, &frame(n, 1000), Instant::from_nanos(u64::from(n)));
        }
        while capture.read(&mut reader, &mut all, 10) {}
        assert!(all.len() < 40 * 1100, "overwritten frames are skipped, not repeated");
    }

    #[test]
    fn rapidio_messages_are_kept_with_their_ids() {
        let kept = |filter: &str| {
            let mut capture = Capture::new();
            capture.start(Filter::parse(filter).unwrap(), 1 << 16);
            capture.received(0, &frame(1, 60), Instant::ZERO);
            capture.message(1, true, ([3, 0x102], 2), &[7; 100], Instant::ZERO);
            let names = [("net0", LinkType::Ethernet), ("rio0", LinkType::RapidIo)];
            let names = names.map(|(name, kind)| (name.to_string(), kind)).into();
            let (mut reader, mut all) = (capture.reader(names, 0), Vec::new());
            while capture.read(&mut reader, &mut all, 1000) {}
            let mut parsed = pcap_file::pcapng::PcapNgReader::new(&all[..]).unwrap();
            let mut frames = Vec::new();
            while let Some(block) = parsed.next_block() {
                if let pcap_file::pcapng::Block::EnhancedPacket(p) = block.unwrap() {
                    frames.push((p.interface_id, p.original_len, p.data.into_owned()));
                }
            }
            frames
        };
        let all = kept("payload");
        assert_eq!((all.len(), all[1].0, all[1].1), (2, 1, 108));
        assert_eq!(all[1].2, [&[0, 3, 1, 2, 2, 0, 0, 0][..], &[7; 100]].concat());
        let messages = kept("rapidio");
        assert_eq!((messages.len(), messages[0].1, messages[0].2.len()), (1, 108, 40));
        assert_eq!(kept("arp").len(), 1);
    }

    #[test]
    fn a_file_ends_though_its_own_download_is_captured() {
        let mut capture = Capture::new();
        capture.start(Filter::parse("payload").unwrap(), 1 << 16);
        let pass = |capture: &mut Capture| capture.received(0, &frame(1, 1000), Instant::ZERO);
        (0..20).for_each(|_| pass(&mut capture));
        let mut reader = capture.reader(alloc::vec![("net0".to_string(), LinkType::Ethernet)], 0);
        let mut all = Vec::new();
        let pieces = (0..100).take_while(|_| {
            pass(&mut capture);
            capture.read(&mut reader, &mut all, 1000)
        });
        assert!(pieces.count() < 30);
        assert!((20_000..25_000).contains(&all.len()));
    }

    #[test]
    fn payload_is_omitted_unless_the_filter_requests_it() {
        let mut roce = alloc::vec![0u8; 14 + 20 + 8 + 12 + 16 + 1000 + 4];
        roce[12..15].copy_from_slice(&[8, 0, 0x45]);
        roce[23] = 17;
        roce[36..38].copy_from_slice(&4791u16.to_be_bytes());
        roce[42] = 10; // RDMA WRITE Only
        roce[70..].fill(0xaa);
        for (filter, secret) in [("", false), ("roce", false), ("payload", true)] {
            let mut capture = Capture::new();
            capture.start(Filter::parse(filter).unwrap(), 1 << 16);
            capture.received(0, &roce, Instant::ZERO);
            let packet = Packet { header: &roce[..70], payload: &[], trailer: &roce[70..] };
            capture.sent(0, &packet, Instant::ZERO);
            let file = file(&capture);
            assert_eq!(capture.counts().0, 2);
            assert_eq!(file.contains(&0xaa), secret, "{filter:?}");
        }
    }

    #[test]
    fn a_reader_of_an_older_capture_ends() {
        let mut capture = Capture::new();
        for discard in [false, true] {
            capture.start(Filter::parse("payload").unwrap(), 1 << 16);
            (0..20).for_each(|_| capture.received(0, &frame(1, 1000), Instant::ZERO));
            let mut reader =
                capture.reader(alloc::vec![("net0".to_string(), LinkType::Ethernet)], 0);
            let mut all = Vec::new();
            assert!(capture.read(&mut reader, &mut all, 5000));
            if discard {
                capture.discard();
            }
            capture.start(Filter::parse("payload").unwrap(), 1 << 16);
            (0..200).for_each(|n| capture.received(0, &frame(2, 100 + n), Instant::ZERO));
            assert!(!capture.read(&mut reader, &mut all, 5000));
        }
    }
}
