//! Listening TCP ports and the handshakes of incoming connections. A SYN is answered with a cookie ([`crate::isn`]),
//! and the connection is made when the peer returns it. No state is required before that, so a SYN flood locks no
//! client out.
//!
//! Up to [`MAX_STORED`] handshakes are stored nevertheless, to retransmit lost SYN-ACKs and to keep the exact options of
//! the SYN. For handshakes beyond that, a SYN-ACK is repeated only when the client repeats its SYN, and MSS and window
//! scale are rounded down to the classes of a cookie.
//!
//! A cookie has 24 secret bits, so it can be guessed. An unstored cookie is accepted only for a time after the store
//! overflowed, as in Linux (`tcp_synq_no_recent_overflow`), and only a limited number of wrong ones is checked
//! ([`GUESSES`]): 2^26 blind segments at a million a second open a connection in one of 2,000 attempts.
//!
//! A SYN-ACK goes only to the MAC address that the neighbour table gives for the source address, so a peer with a valid
//! cookie receives at that address. A stored handshake waits for the neighbour's resolution; an unstored one is
//! dropped.

use crate::isn::{Handshake, Offer, Secret};
use crate::link::{ETHERNET_HEADER, Queue, head};
use crate::segment::{self, Ends, Segment};
use crate::smoltcp_gaps::packets::{HOP_LIMIT, emit, empty};
use crate::smoltcp_gaps::smc_option;
use crate::spent_cookies::SpentCookies;
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpRepr, TcpSeqNumber};

/// Handshakes that are stored.
const MAX_STORED: usize = 64;
/// Retransmissions of a SYN-ACK, and delay of the first. The delay doubles each time.
const TRIES: u32 = 3;
const RETRY: Duration = Duration::from_secs(1);
/// How long unstored cookies are accepted after an overflow: the validity of a cookie.
const OVERFLOW: Duration = Duration::from_secs(32);
/// Wrong cookies that are checked in a burst, and the interval after which one more is checked.
const GUESSES: u32 = 256;
const GUESS: Duration = Duration::from_millis(16);
/// Difference between a spent cookie and the sequence number that answers the same SYN again. The number is as far from
/// the old one as possible. It is no valid cookie, so it is accepted only while the handshake is stored.
const AGAIN: u32 = 1 << 31;

/// A listening port.
#[derive(Clone, Copy, Debug)]
pub struct ListenEntry {
    /// Key of the owner of its connections in [`crate::connections`].
    pub owner: usize,
    /// Receive buffer of a connection in bytes.
    pub receive: usize,
    /// SMC is offered to clients that offer it.
    pub smc: bool,
}

/// A stored handshake.
#[derive(Debug)]
struct StoredHandshake {
    handshake: Handshake,
    /// Destination MAC address of the SYN-ACK; None until the neighbour is resolved.
    mac: Option<[u8; 6]>,
    /// Source MAC address of the SYN.
    from: [u8; 6],
    tries: u32,
    again: Instant,
}

/// The parts of an interface that send SYN-ACKs.
pub struct Ctx<'a> {
    pub queue: &'a mut Queue,
    /// Our MAC address.
    pub mac: [u8; 6],
    pub mtu: usize,
}

/// The listening ports of an interface.
pub struct ListenTable {
    entries: BTreeMap<u16, ListenEntry>,
    stored: BTreeMap<Ends, StoredHandshake>,
    due: BTreeSet<(Instant, Ends)>,
    spent: SpentCookies,
    secret: Secret,
    /// When the store last overflowed.
    overflow: Option<Instant>,
    /// Wrong cookies that may still be checked, and when that number was last raised.
    guesses_left: u32,
    counted: Instant,
    /// Wrong cookies since the start.
    guesses: u64,
    /// Stored handshakes that wait for a neighbour's resolution.
    waiting: usize,
}

impl ListenTable {
    /// A table without ports.
    pub fn new(secret: Secret) -> Self {
        ListenTable {
            entries: BTreeMap::new(),
            stored: BTreeMap::new(),
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

    /// Listens on a port, in place of a previous owner.
    pub fn open(&mut self, port: u16, entry: ListenEntry) {
        self.entries.insert(port, entry);
    }

    /// Stops listening on a port, if `owner` listens on it.
    pub fn close(&mut self, port: u16, owner: usize) {
        if self.entries.get(&port).is_some_and(|entry| entry.owner == owner) {
            self.entries.remove(&port);
        }
    }

    /// Sets the receive buffer of an owner's future connections.
    pub fn set_receive(&mut self, owner: usize, receive: usize) {
        let its = self.entries.values_mut().filter(|entry| entry.owner == owner);
        its.for_each(|entry| entry.receive = receive);
    }

    /// Sets whether SMC is offered on a port.
    pub fn offer_smc(&mut self, port: u16, owner: usize, on: bool) {
        if let Some(entry) = self.entries.get_mut(&port).filter(|entry| entry.owner == owner) {
            entry.smc = on;
        }
    }

    /// The entry of a listening port.
    pub fn get(&self, port: u16) -> Option<ListenEntry> {
        self.entries.get(&port).copied()
    }

    /// Answers a SYN to a listening port, which came from the MAC address `from`. The SYN-ACK goes to `mac`, or waits if
    /// that is None. Returns whether the caller must have the neighbour resolved.
    pub fn answer(
        &mut self,
        entry: ListenEntry,
        segment: &Segment<'_>,
        (from, mac): ([u8; 6], Option<[u8; 6]>),
        ctx: &mut Ctx<'_>,
        now: Instant,
    ) -> bool {
        let ends = segment.ends;
        let before = self.stored.get(&ends).map(|stored| stored.handshake);
        let has_place = before.is_some() || self.stored.len() < MAX_STORED;
        let theirs = segment.sequence;
        let handshake =
            before.filter(|handshake| handshake.theirs == theirs).unwrap_or_else(|| {
                let mut offer = Offer::of(segment.options);
                offer.smc &= entry.smc && ends.local.is_ipv4();
                let mut ours = self.secret.cookie(ends, theirs, offer, now);
                if self.spent.has(ends, theirs, ours) {
                    let other = ours ^ AGAIN;
                    if has_place && !self.spent.has(ends, theirs, other) {
                        ours = other;
                    } else {
                        // A client that repeats an old sequence number must not be locked out.
                        self.spent.forget(ends, theirs, ours);
                        self.spent.forget(ends, theirs, other);
                    }
                }
                Handshake { theirs, ours, offer }
            });
        if let Some(mac) = mac {
            queue_syn_ack(ends, &handshake, entry.receive, mac, ctx);
        }
        if !has_place {
            self.overflow = Some(now);
            return false;
        }
        self.forget(ends);
        let again = now + RETRY;
        self.stored.insert(ends, StoredHandshake { handshake, mac, from, tries: 1, again });
        self.due.insert((again, ends));
        self.waiting += usize::from(mac.is_none());
        mac.is_none()
    }

    /// Answers stored handshakes whose neighbour is resolved now. `find` looks up a MAC address; `answers` gets each
    /// answered host, the MAC address of its SYN, and the one in the table.
    pub fn answer_waiting(
        &mut self,
        ctx: &mut Ctx<'_>,
        mut find: impl FnMut(IpAddr) -> Option<[u8; 6]>,
        mut answers: impl FnMut(Ends, [[u8; 6]; 2]),
    ) {
        if self.waiting == 0 {
            return;
        }
        for (ends, stored) in &mut self.stored {
            let entry = self.entries.get(&ends.local_port);
            if let (None, Some(entry)) = (stored.mac, entry)
                && let Some(mac) = find(ends.remote)
            {
                stored.mac = Some(mac);
                self.waiting -= 1;
                answers(*ends, [stored.from, mac]);
                queue_syn_ack(*ends, &stored.handshake, entry.receive, mac, ctx);
            }
        }
    }

    /// Decodes the options from an unstored cookie; None if it is invalid or must not be checked at present.
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

    /// Segments with a wrong cookie while unstored cookies were accepted.
    pub fn guesses(&self) -> u64 {
        self.guesses
    }

    /// The handshake that an ACK completes. A handshake is returned once.
    pub fn complete(&mut self, segment: &Segment<'_>, now: Instant) -> Option<Handshake> {
        let (ends, theirs) = (segment.ends, segment.sequence.wrapping_sub(1));
        let ours = segment.acknowledged.wrapping_sub(1);
        let stored = self.stored.get(&ends).map(|stored| stored.handshake);
        let handshake = match stored {
            Some(handshake) if (handshake.theirs, handshake.ours) == (theirs, ours) => {
                self.spent.spend(ends, theirs, ours);
                handshake
            }
            _ => {
                let offer = self.offer(ends, theirs, ours, now)?;
                self.spent.spend(ends, theirs, ours).then_some(Handshake { theirs, ours, offer })?
            }
        };
        self.forget(ends);
        Some(handshake)
    }

    /// Whether an ACK belongs to a stored handshake, with another sequence number.
    pub fn expects(&self, segment: &Segment<'_>) -> bool {
        let stored = self.stored.get(&segment.ends);
        stored.is_some_and(|r| r.handshake.ours.wrapping_add(1) == segment.acknowledged)
    }

    /// Whether a handshake between these ends is stored.
    #[cfg(test)]
    pub fn is_stored(&self, ends: Ends) -> bool {
        self.stored.contains_key(&ends)
    }

    /// Removes a stored handshake.
    pub fn forget(&mut self, ends: Ends) {
        if let Some(stored) = self.take(ends) {
            self.due.remove(&(stored.again, ends));
        }
    }

    fn take(&mut self, ends: Ends) -> Option<StoredHandshake> {
        let gone = self.stored.remove(&ends)?;
        self.waiting -= usize::from(gone.mac.is_none());
        Some(gone)
    }

    /// Retransmits SYN-ACKs that are due.
    pub fn poll(&mut self, ctx: &mut Ctx<'_>, now: Instant) {
        while let Some(&(again, ends)) = self.due.first()
            && again <= now
            && !ctx.queue.is_full()
        {
            self.due.pop_first();
            let entry = self.entries.get(&ends.local_port);
            let (Some(stored), Some(entry)) = (self.stored.get_mut(&ends), entry) else {
                self.take(ends);
                continue;
            };
            if stored.tries > TRIES {
                self.take(ends);
                continue;
            }
            if let Some(mac) = stored.mac {
                queue_syn_ack(ends, &stored.handshake, entry.receive, mac, ctx);
            }
            stored.again = now + RETRY * 2u32.pow(stored.tries);
            stored.tries += 1;
            self.due.insert((stored.again, ends));
        }
    }

    /// When [`ListenTable::poll`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|&(again, _)| again)
    }
}

/// Queues a SYN-ACK for a receive buffer of `receive` bytes. It equals smoltcp's, because a smoltcp socket will
/// continue the connection.
fn queue_syn_ack(
    ends: Ends,
    handshake: &Handshake,
    receive: usize,
    mac: [u8; 6],
    ctx: &mut Ctx<'_>,
) {
    let ip_header = if ends.local.is_ipv4() { 20 } else { 40 };
    let shift = (usize::BITS - receive.leading_zeros()).saturating_sub(16) as u8;
    let tcp = TcpRepr {
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(handshake.ours as i32),
        ack_number: Some(TcpSeqNumber(handshake.theirs.wrapping_add(1) as i32)),
        window_len: u16::try_from(receive).unwrap_or(u16::MAX),
        window_scale: handshake.offer.scale.map(|_| shift),
        max_seg_size: Some((ctx.mtu - ip_header - 20) as u16),
        sack_permitted: handshake.offer.sack,
        ..empty(ends.local_port, ends.remote_port)
    };
    let (from, to) = (ends.local.into(), ends.remote.into());
    let ip = IpRepr::new(from, to, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
    let mut len = ETHERNET_HEADER + ip.buffer_len();
    let ours = ctx.mac;
    ctx.queue.append(len, |room| {
        emit(&ip, &tcp, &mut room[ETHERNET_HEADER..len]);
        head(room, ours, mac);
        if handshake.offer.smc {
            len = smc_option::add(room, len);
        }
        segment::seal(&mut room[..len]);
        ((), len)
    });
}

#[cfg(test)]
mod tests;
