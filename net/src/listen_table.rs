//! TCP ports that are listened on, and the opening handshake. A SYN is answered with a cookie
//! ([`crate::isn`]), and there is a connection when the peer has sent that back: until then nothing has to
//! be kept, so that nobody is kept out, whoever calls.
//!
//! A few calls are remembered all the same, so that an answer that was lost is given again, and what the
//! SYN said is known exactly. While more than these are being opened, a lost answer is given again only
//! when the client asks again, and MSS and window scale are rounded down to what a cookie knows.
//!
//! A cookie has 24 bits, so it can be guessed. It counts only for a while after a call found no place among those that
//! are remembered, as with Linux (`tcp_synq_no_recent_overflow`), and only so many wrong ones are looked at
//! ([`GUESSES`]): 2^26 blind segments at a million a second open a connection in one of 2,000 attempts.
//!
//! An answer goes to the station that the neighbour table gives for the source address, and to no other: whoever has the
//! cookie receives at that address. A call whose station is not known waits until that has answered. Without a place
//! among those that are remembered it is lost.

use crate::isn::{Offer, Secret};
use crate::link::{ETHERNET_HEADER, Queue, head};
use crate::segment::{self, Ends, Segment};
use crate::smc_option;
use crate::spent_cookies::SpentCookies;
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;
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
/// How long cookies count after a call that found no place: as long as one is good.
const OVERFLOW: Duration = Duration::from_secs(32);
/// Wrong cookies that are looked at in a row, and how often there may be one more.
const GUESSES: u32 = 256;
const GUESS: Duration = Duration::from_millis(16);
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
    /// Where the answer goes. None until the neighbour table has said so.
    mac: Option<[u8; 6]>,
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
    /// When a call found no place last.
    overflow: Option<Instant>,
    /// Wrong cookies that may still be looked at, and when that was counted.
    guesses_left: u32,
    counted: Instant,
    /// Wrong cookies since the start.
    guesses: u64,
    /// Calls that wait for the neighbour table.
    waiting: usize,
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
            overflow: None,
            guesses_left: GUESSES,
            counted: Instant::ZERO,
            guesses: 0,
            waiting: 0,
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

    /// Says how many bytes the connections of an owner take in, from the next one on.
    pub fn set_receive(&mut self, owner: usize, receive: usize) {
        let its = self.entries.values_mut().filter(|entry| entry.owner == owner);
        its.for_each(|entry| entry.receive = receive);
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

    /// Answers a SYN to a port that is listened on; the answer goes to `mac`, once that is known. Whether the neighbour
    /// table is to be asked.
    pub fn answer(
        &mut self,
        entry: ListenEntry,
        segment: &Segment<'_>,
        mac: Option<[u8; 6]>,
        outside: &mut Outside<'_>,
        now: Instant,
    ) -> bool {
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
        if let Some(mac) = mac {
            say(ends, &call, entry.receive, mac, outside);
        }
        if !has_place {
            self.overflow = Some(now);
            return false;
        }
        self.forget(ends);
        let again = now + RETRY;
        self.calls.insert(ends, Remembered { call, mac, tries: 1, again });
        self.due.insert((again, ends));
        self.waiting += usize::from(mac.is_none());
        mac.is_none()
    }

    /// Answers calls that waited for the neighbour table, which says `find` of an address.
    pub fn answer_waiting(
        &mut self,
        outside: &mut Outside<'_>,
        mut find: impl FnMut(IpAddr) -> Option<[u8; 6]>,
    ) {
        if self.waiting == 0 {
            return;
        }
        for (ends, remembered) in &mut self.calls {
            let entry = self.entries.get(&ends.local_port);
            if let (None, Some(entry)) = (remembered.mac, entry)
                && let Some(mac) = find(ends.remote)
            {
                remembered.mac = Some(mac);
                self.waiting -= 1;
                say(*ends, &remembered.call, entry.receive, mac, outside);
            }
        }
    }

    /// What the SYN offered whose answer a segment acknowledges with a cookie that is not remembered.
    fn offer(&mut self, ends: Ends, theirs: u32, ours: u32, now: Instant) -> Option<Offer> {
        let overflow = self.overflow?;
        let earned = now.since(self.counted).as_nanos() / GUESS.as_nanos();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(GUESSES);
            self.guesses_left = self.guesses_left.saturating_add(earned).min(GUESSES);
            self.counted = now;
        }
        if now.since(overflow) > OVERFLOW {
            return None;
        }
        let left = self.guesses_left.checked_sub(1);
        let offer = left.and_then(|_| self.secret.offer(ends, theirs, ours, now));
        if offer.is_none() {
            self.guesses += 1;
            self.guesses_left = left.unwrap_or(0);
        }
        offer
    }

    /// Segments that acknowledged a wrong cookie while cookies counted.
    pub fn guesses(&self) -> u64 {
        self.guesses
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
                let offer = self.offer(ends, theirs, ours, now)?;
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
        if let Some(remembered) = self.take(ends) {
            self.due.remove(&(remembered.again, ends));
        }
    }

    fn take(&mut self, ends: Ends) -> Option<Remembered> {
        let gone = self.calls.remove(&ends)?;
        self.waiting -= usize::from(gone.mac.is_none());
        Some(gone)
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
                self.take(ends);
                continue;
            };
            if remembered.tries > TRIES {
                self.take(ends);
                continue;
            }
            if let Some(mac) = remembered.mac {
                say(ends, &remembered.call, entry.receive, mac, outside);
            }
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
mod tests;
