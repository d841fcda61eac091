//! TCP ports that are listened on, and the opening handshake. A SYN is answered with a cookie
//! ([`crate::isn`]), and there is a connection when the peer has sent that back: until then nothing has to
//! be kept, so that nobody is kept out, whoever calls.
//!
//! A few calls are remembered all the same, so that an answer that was lost is given again, and what the
//! SYN said is known exactly. While more than these are being opened, a lost answer is given again only
//! when the client asks again, and MSS and window scale are rounded down to what a cookie knows.

use crate::isn::{Offer, Secret};
use crate::link::{ETHERNET_HEADER, Queue, head};
use crate::segment::{self, Ends, Segment};
use crate::smc_option;
use crate::spent_cookies::SpentCookies;
use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

/// Calls that are remembered.
const CALLS: usize = 64;
/// How often an answer is given unasked, and when first; each time it takes twice as long.
const TRIES: u32 = 3;
const RETRY: Duration = Duration::from_secs(1);
const HOP_LIMIT: u8 = 64;
/// What the answer to a SYN differs in that comes once more though its cookie was taken in: it is as far from what was
/// said before as it can be, and no cookie, so that it is good only as long as it is remembered.
const AGAIN: u32 = 1 << 31;

/// A port that is listened on.
#[derive(Clone, Copy, Debug)]
pub struct ListenEntry {
    /// Whose connections these will be, by [`crate::connections`].
    pub owner: usize,
    /// Bytes that a connection has room for.
    pub receive: usize,
    /// SMC is offered to who offers it.
    pub smc: bool,
}

/// A connection that is being opened.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The peer's initial sequence number, and ours.
    pub theirs: u32,
    pub ours: u32,
    pub offer: Offer,
}

/// One that is remembered.
#[derive(Debug)]
struct Remembered {
    call: Call,
    /// Where the answer goes.
    mac: [u8; 6],
    tries: u32,
    again: Instant,
}

/// What an answer is made with.
pub struct Outside<'a> {
    pub queue: &'a mut Queue,
    /// Our MAC address.
    pub mac: [u8; 6],
    pub mtu: usize,
}

/// The ports of an interface that are listened on.
pub struct ListenTable {
    entries: BTreeMap<u16, ListenEntry>,
    calls: BTreeMap<Ends, Remembered>,
    due: BTreeSet<(Instant, Ends)>,
    spent: SpentCookies,
    secret: Secret,
}

impl ListenTable {
    /// None yet.
    pub fn new(secret: Secret) -> Self {
        ListenTable {
            entries: BTreeMap::new(),
            calls: BTreeMap::new(),
            due: BTreeSet::new(),
            spent: SpentCookies::new(secret),
            secret,
        }
    }

    /// Listens on a port; who did so before does no more.
    pub fn open(&mut self, port: u16, entry: ListenEntry) {
        self.entries.insert(port, entry);
    }

    /// Listens no more, if it was `owner` who did.
    pub fn close(&mut self, port: u16, owner: usize) {
        if self.entries.get(&port).is_some_and(|entry| entry.owner == owner) {
            self.entries.remove(&port);
        }
    }

    /// Says whether SMC is offered on a port.
    pub fn offer_smc(&mut self, port: u16, owner: usize, on: bool) {
        if let Some(entry) = self.entries.get_mut(&port).filter(|entry| entry.owner == owner) {
            entry.smc = on;
        }
    }

    /// The port, if it is listened on.
    pub fn get(&self, port: u16) -> Option<ListenEntry> {
        self.entries.get(&port).copied()
    }

    /// Answers a SYN to a port that is listened on; the answer goes to `mac`.
    pub fn answer(
        &mut self,
        entry: ListenEntry,
        segment: &Segment<'_>,
        mac: [u8; 6],
        outside: &mut Outside<'_>,
        now: Instant,
    ) {
        let ends = segment.ends;
        let before = self.calls.get(&ends).map(|remembered| remembered.call);
        let has_place = before.is_some() || self.calls.len() < CALLS;
        let theirs = segment.sequence;
        let call = before.filter(|call| call.theirs == theirs).unwrap_or_else(|| {
            let mut offer = Offer::of(segment.options);
            offer.smc &= entry.smc && ends.local.is_ipv4();
            let mut ours = self.secret.cookie(ends, theirs, offer, now);
            if self.spent.has(ends, theirs, ours) {
                let other = ours ^ AGAIN;
                if has_place && !self.spent.has(ends, theirs, other) {
                    ours = other;
                } else {
                    // Nobody is kept out by what he called with before.
                    self.spent.forget(ends, theirs, ours);
                    self.spent.forget(ends, theirs, other);
                }
            }
            Call { theirs, ours, offer }
        });
        say(ends, &call, entry.receive, mac, outside);
        if !has_place {
            return;
        }
        self.forget(ends);
        let again = now + RETRY;
        self.calls.insert(ends, Remembered { call, mac, tries: 1, again });
        self.due.insert((again, ends));
    }

    /// The connection that this segment, which acknowledges something, completes the opening of: once.
    pub fn complete(&mut self, segment: &Segment<'_>, now: Instant) -> Option<Call> {
        let (ends, theirs) = (segment.ends, segment.sequence.wrapping_sub(1));
        let ours = segment.acknowledged.wrapping_sub(1);
        let remembered = self.calls.get(&ends).map(|remembered| remembered.call);
        let call = match remembered {
            Some(call) if (call.theirs, call.ours) == (theirs, ours) => {
                self.spent.spend(ends, theirs, ours);
                call
            }
            _ => {
                let offer = self.secret.offer(ends, theirs, ours, now)?;
                self.spent.spend(ends, theirs, ours).then_some(Call { theirs, ours, offer })?
            }
        };
        self.forget(ends);
        Some(call)
    }

    /// Whether this segment, which acknowledges something, is of a connection that is known to be being opened.
    pub fn expects(&self, segment: &Segment<'_>) -> bool {
        let remembered = self.calls.get(&segment.ends);
        remembered.is_some_and(|r| r.call.ours.wrapping_add(1) == segment.acknowledged)
    }

    /// Whether a connection between these ends is known to be being opened.
    #[cfg(test)]
    pub fn knows(&self, ends: Ends) -> bool {
        self.calls.contains_key(&ends)
    }

    /// Remembers a call no more.
    pub fn forget(&mut self, ends: Ends) {
        if let Some(remembered) = self.calls.remove(&ends) {
            self.due.remove(&(remembered.again, ends));
        }
    }

    /// Gives answers again.
    pub fn poll(&mut self, outside: &mut Outside<'_>, now: Instant) {
        while let Some(&(again, ends)) = self.due.first()
            && again <= now
            && !outside.queue.is_full()
        {
            self.due.pop_first();
            let entry = self.entries.get(&ends.local_port);
            let (Some(remembered), Some(entry)) = (self.calls.get_mut(&ends), entry) else {
                self.calls.remove(&ends);
                continue;
            };
            if remembered.tries > TRIES {
                self.calls.remove(&ends);
                continue;
            }
            say(ends, &remembered.call, entry.receive, remembered.mac, outside);
            remembered.again = now + RETRY * 2u32.pow(remembered.tries);
            remembered.tries += 1;
            self.due.insert((remembered.again, ends));
        }
    }

    /// When [`ListenTable::poll`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|&(again, _)| again)
    }
}

/// Queues the SYN-ACK of a connection that has room for `receive` bytes: as smoltcp would say it, whose
/// connection it will be.
fn say(ends: Ends, call: &Call, receive: usize, mac: [u8; 6], outside: &mut Outside<'_>) {
    let ip_header = if ends.local.is_ipv4() { 20 } else { 40 };
    let shift = (usize::BITS - receive.leading_zeros()).saturating_sub(16) as u8;
    let tcp = TcpRepr {
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(call.ours as i32),
        ack_number: Some(TcpSeqNumber(call.theirs.wrapping_add(1) as i32)),
        window_len: u16::try_from(receive).unwrap_or(u16::MAX),
        window_scale: call.offer.scale.map(|_| shift),
        max_seg_size: Some((outside.mtu - ip_header - 20) as u16),
        sack_permitted: call.offer.sack,
        ..empty(ends.local_port, ends.remote_port)
    };
    let (from, to) = (ends.local.into(), ends.remote.into());
    let ip = IpRepr::new(from, to, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
    let mut len = ETHERNET_HEADER + ip.buffer_len();
    let ours = outside.mac;
    outside.queue.append(len, |room| {
        emit(&ip, &tcp, &mut room[ETHERNET_HEADER..len]);
        head(room, ours, mac);
        if call.offer.smc {
            len = smc_option::add(room, len);
        }
        segment::seal(&mut room[..len]);
        ((), len)
    });
}

/// Writes the SYN with which a call began, as far as it is known: a packet, without TCP's checksum, and
/// its length.
pub fn call_again(ends: Ends, call: &Call, packet: &mut [u8; 100]) -> usize {
    let tcp = TcpRepr {
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(call.theirs as i32),
        window_scale: call.offer.scale,
        max_seg_size: Some(call.offer.mss),
        sack_permitted: call.offer.sack,
        ..empty(ends.remote_port, ends.local_port)
    };
    write(ends, &tcp, packet)
}

/// Writes the ACK that completes the opening that a call began, likewise.
pub fn complete_again(ends: Ends, call: &Call, packet: &mut [u8; 100]) -> usize {
    let tcp = TcpRepr {
        seq_number: TcpSeqNumber(call.theirs.wrapping_add(1) as i32),
        ack_number: Some(TcpSeqNumber(call.ours.wrapping_add(1) as i32)),
        window_len: u16::MAX,
        ..empty(ends.remote_port, ends.local_port)
    };
    write(ends, &tcp, packet)
}

/// Writes a byte of the peer's that was received before, likewise.
pub fn repeated(ends: Ends, sequence: u32, acknowledged: u32, packet: &mut [u8; 100]) -> usize {
    let tcp = TcpRepr {
        seq_number: TcpSeqNumber(sequence as i32),
        ack_number: Some(TcpSeqNumber(acknowledged as i32)),
        payload: &[0],
        ..empty(ends.remote_port, ends.local_port)
    };
    write(ends, &tcp, packet)
}

/// Sequence number and acknowledgement of a segment in a frame of ours.
pub fn numbers(frame: Option<&[u8]>) -> Option<(u32, u32)> {
    let packet = frame?.get(ETHERNET_HEADER..)?;
    let header = if packet.first()? >> 4 == 4 { 20 } else { 40 };
    let word = |at: usize| Some(u32::from_be_bytes(*packet.get(header + at..)?.first_chunk()?));
    Some((word(4)?, word(8)?))
}

/// A packet of the peer's.
fn write(ends: Ends, tcp: &TcpRepr<'_>, packet: &mut [u8; 100]) -> usize {
    let (from, to) = (ends.remote.into(), ends.local.into());
    let ip = IpRepr::new(from, to, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
    let length = ip.buffer_len();
    emit(&ip, tcp, &mut packet[..length]);
    length
}

fn emit(ip: &IpRepr, tcp: &TcpRepr<'_>, packet: &mut [u8]) {
    ip.emit(&mut *packet, &ChecksumCapabilities::default());
    let mut segment = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
    let checksums = ChecksumCapabilities::ignored();
    tcp.emit(&mut segment, &ip.src_addr(), &ip.dst_addr(), &checksums);
}

fn empty(from: u16, to: u16) -> TcpRepr<'static> {
    TcpRepr {
        src_port: from,
        dst_port: to,
        control: TcpControl::None,
        seq_number: TcpSeqNumber(0),
        ack_number: None,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    }
}

#[cfg(test)]
mod tests {
    use crate::Interface;
    use crate::connections::Limits;
    use crate::segment::{ACK, Ends, SYN};
    use crate::testing::{sent, tcp, with_address};
    use core::time::Duration;
    use drivers::hal::Instant;

    const PORT: u16 = 7;
    const LIMITS: Limits = Limits { connections: 3, receive: 512, transmit: 512 };
    const MSS: [u8; 4] = [2, 4, 5, 0xb4];

    fn ends(from: u16, to: u16) -> Ends {
        let (remote, local) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
        Ends { local_port: to, remote_port: from, remote, local }
    }

    /// Calls, and gives the answer back.
    fn open(interface: &mut Interface, from: u16, now: Instant) {
        interface.handle_frame(&tcp(ends(from, PORT), SYN, 100, 0, &MSS, &[]), now);
        let answer = sent(interface, now);
        let [(0x12, number, 101)] = answer[..] else { panic!("{answer:?}") };
        let acknowledged = number.wrapping_add(1);
        interface.handle_frame(&tcp(ends(from, PORT), ACK, 101, acknowledged, &[], &[]), now);
    }

    #[test]
    fn there_is_a_connection_when_the_cookie_comes_back_and_not_before() {
        let mut interface = with_address();
        let owner = interface.connections().open_owner(LIMITS);
        interface.connections().listen(PORT, owner);
        let now = Instant::ZERO;
        let syn = tcp(ends(4000, PORT), SYN, 100, 0, &MSS, &[]);
        interface.handle_frame(&syn, now);
        let first = sent(&mut interface, now);
        // It was sent again: the answer is the same.
        let later = now + Duration::from_secs(1);
        interface.handle_frame(&syn, later);
        assert_eq!(sent(&mut interface, later), first);
        assert_eq!(interface.tcp().sizes()[0], 0);
        let number = first[0].1;
        for wrong in [0, number, number.wrapping_add(2), !number] {
            interface.handle_frame(&tcp(ends(4000, PORT), ACK, 101, wrong, &[], &[]), later);
            assert_eq!(interface.tcp().sizes()[0], 0);
        }
        // The acknowledgement was lost, and this is what the client says first.
        let data = tcp(ends(4000, PORT), ACK, 101, number.wrapping_add(1), &[], b"hello");
        interface.handle_frame(&data, later);
        let name = interface.connections().accept(owner).unwrap();
        let socket = interface.connections().socket_mut(name).unwrap();
        assert_eq!(socket.recv(|bytes| (bytes.len(), bytes == b"hello")), Ok(true));
        assert_eq!(interface.connections().accept(owner), None);
        interface.handle_frame(&tcp(ends(4002, PORT + 1), SYN, 1, 0, &MSS, &[]), later);
        assert!(sent(&mut interface, later).iter().any(|s| s.0 == 0x14), "nobody listens there");
    }

    #[test]
    fn a_lost_answer_is_given_again_for_a_while() {
        let mut interface = with_address();
        let owner = interface.connections().open_owner(LIMITS);
        interface.connections().listen(PORT, owner);
        interface.handle_frame(&tcp(ends(4000, PORT), SYN, 100, 0, &MSS, &[]), Instant::ZERO);
        let mut answers = sent(&mut interface, Instant::ZERO);
        for second in 0..100 {
            answers.extend(sent(&mut interface, Instant::ZERO + Duration::from_secs(second)));
        }
        assert_eq!(answers.len(), 4);
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        assert!(!interface.remembers_call(ends(4000, PORT)));
    }

    /// Ten thousand SYNs a second from nobody, and one client in between.
    #[test]
    fn an_honest_client_comes_through_a_flood() {
        let mut interface = with_address();
        let owner = interface.connections().open_owner(LIMITS);
        interface.connections().listen(PORT, owner);
        let mut now = Instant::ZERO;
        for n in 0..50_000u32 {
            let spoofed = core::net::Ipv4Addr::from(0x0a00_0000 | (n % 60_000 + 10)).into();
            let flood = Ends { remote: spoofed, remote_port: n as u16 | 1, ..ends(1, PORT) };
            interface.handle_frame(&tcp(flood, SYN, n, 0, &MSS, &[]), now);
            assert!(interface.tcp().sizes()[0] <= 3);
            if n % 10_000 == 5000 {
                sent(&mut interface, now);
                open(&mut interface, 4000, now);
                let name = interface.connections().accept(owner).expect("the honest client");
                interface.connections().leave(name, true, now);
            }
            if n % 10 == 9 {
                sent(&mut interface, now);
                now = now + Duration::from_millis(1);
            }
        }
        assert_eq!(interface.neighbours_known(), 1, "nobody is asked for because of a SYN");
    }
}
