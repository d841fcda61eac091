//! `usnic ping`, `usnic reset`, `usnic look` and `usnic put` of the console.

use super::peers::Peer;
use super::{SINK, Usnic};
use crate::console::{Managed, Progress, UsnicVerb};
use core::time::Duration;
use crc::{CRC_32_ISO_HDLC, Crc};
use drivers::hal::{Instant, Window};
use usnic::{EndpointId, State};

/// Timeout of a ping: the engine sends eight PINGs of each size, 250 ms apart.
const PATIENCE: Duration = Duration::from_secs(5);

/// The CRC-32 of zlib, gzip, and Perl's `crc32`.
const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// An order in progress.
pub(super) struct Order {
    name: String,
    endpoint: EndpointId,
    what: What,
}

enum What {
    /// A ping until `until`. `small_reported`: the reply to the small PING was printed.
    Ping { until: Instant, small_reported: bool },
    /// A PUT of `length` bytes, started at `since`.
    Put { length: usize, cookie: u64, since: Instant },
}

impl Usnic {
    fn place_of(&self, name: &str) -> Result<usize, String> {
        let found = self.peers.iter().position(|peer| peer.config.name.as_str() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> =
                self.peers.iter().map(|peer| peer.config.name.as_str()).collect();
            format!("there is no peer {name:?}; accepted: {}", names.join(", "))
        })
    }

    /// Executes an order of the console.
    pub(super) fn carry_out(
        &mut self,
        verb: UsnicVerb,
        words: &[&str],
        now: Instant,
    ) -> Result<Managed, String> {
        let (&name, rest) = words.split_first().ok_or("missing: the name of a peer")?;
        let place = self.place_of(name)?;
        match (verb, rest) {
            (UsnicVerb::Ping, []) => self.start_ping(place, now),
            (UsnicVerb::Reset, []) => {
                self.renew(place, now);
                Ok(Managed::Told("reset: the peer has to be reset, too\n".into()))
            }
            (UsnicVerb::Look, rest) => self.look(place, rest),
            (UsnicVerb::Put, &[address, offset, length]) => {
                self.start_put(place, address, [offset, length], now)
            }
            (UsnicVerb::Put, _) => Err("accepted: PEER ADDRESS OFFSET LENGTH".into()),
            (UsnicVerb::Ping | UsnicVerb::Reset, rest) => {
                Err(format!("unexpected: {:?}", rest.join(" ")))
            }
        }
    }

    fn start_ping(&mut self, place: usize, now: Instant) -> Result<Managed, String> {
        let peer = &self.peers[place];
        let name = peer.config.name.to_string();
        let endpoint =
            peer.endpoint.ok_or_else(|| peer.not_admitted.clone().unwrap_or_default())?;
        if !self.engine.ping(endpoint, now) {
            return Err(format!(
                "{name} or this side has no port of the connectivity checker (`ping_port`)"
            ));
        }
        let what = What::Ping { until: now + PATIENCE, small_reported: false };
        self.order = Some(Order { name, endpoint, what });
        Ok(Managed::Started)
    }

    /// PUTs a part of a peer's sink to an address of the peer.
    fn start_put(
        &mut self,
        place: usize,
        address: &str,
        [offset, length]: [&str; 2],
        now: Instant,
    ) -> Result<Managed, String> {
        let peer = &self.peers[place];
        let name = peer.config.name.to_string();
        let part = self.part_of_sink(peer, number(offset)?, number(length)?)?;
        let endpoint = peer.endpoint.ok_or("the peer has no endpoint")?;
        let mirrors = self.process_of(peer).is_some_and(|process| process.mirror.is_some());
        if mirrors || self.ends.has(endpoint) {
            return Err(format!("{name} is used by a rule or by mpi-mirror"));
        }
        let digits = address.strip_prefix("0x");
        let to = digits.map_or_else(|| address.parse(), |digits| u64::from_str_radix(digits, 16));
        let to = to.map_err(|_| format!("{address:?} is no address"))?;
        let length = part.len();
        let cookie = self.peers[place].counts.next_put();
        self.engine.permit_put(endpoint, to, length as u64);
        let sent = self.engine.put(endpoint, to, [part, Window::empty()], cookie, now);
        sent.map_err(|why| why.to_string())?;
        self.order = Some(Order { name, endpoint, what: What::Put { length, cookie, since: now } });
        Ok(Managed::Started)
    }

    /// Returns progress of the order.
    pub(super) fn order_progress(&mut self, now: Instant) -> Option<Progress> {
        match self.order.as_ref()?.what {
            What::Ping { .. } => self.ping_progress(now),
            What::Put { length, cookie, since } => {
                self.put_progress(length, cookie, now.since(since))
            }
        }
    }

    fn put_progress(&mut self, length: usize, cookie: u64, time: Duration) -> Option<Progress> {
        let Order { name, endpoint, .. } = self.order.as_ref()?;
        let place = self.place_of_endpoint(*endpoint);
        let ended = place.and_then(|place| self.peers.get(place)?.counts.end_of_put(cookie));
        let is_open = self.engine.state(*endpoint) == Some(State::Open);
        let result = match ended {
            Some(true) => Ok(format!(
                "{name}: {length} bytes acknowledged, {:.3} ms",
                time.as_secs_f64() * 1000.0
            )),
            None if is_open => return None,
            _ => Err(format!("the endpoint of {name} has failed or ended; `show usnic` says why")),
        };
        self.order = None;
        Some(Progress::Done(result))
    }

    fn ping_progress(&mut self, now: Instant) -> Option<Progress> {
        let Order { name, endpoint, what } = self.order.as_mut()?;
        let What::Ping { until, small_reported } = what else { return None };
        let answered = self.engine.connectivity(*endpoint);
        let times = self.engine.ping_times(*endpoint).unwrap_or_default();
        let millis = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64() * 1000.0;
        let (Some((small, large)), false) = (answered, now >= *until) else {
            let (name, small_reported) = (name.clone(), *small_reported);
            self.order = None;
            return Some(Progress::Done(Err(match small_reported {
                true => {
                    format!("{name} answers small PINGs but no large ones: the path MTU is smaller")
                }
                false => format!(
                    "{name} answers no PING: it is not running, or has another version or modex"
                ),
            })));
        };
        if small && !*small_reported {
            *small_reported = true;
            return Some(Progress::Line(format!(
                "{name}: small PING answered, {:.3} ms",
                millis(times[0])
            )));
        }
        if small && large {
            let line = format!("{name}: large PING answered, {:.3} ms", millis(times[1]));
            self.order = None;
            return Some(Progress::Done(Ok(line)));
        }
        None
    }

    /// Returns the CRC-32 of a part of a peer's sink.
    fn look(&self, place: usize, rest: &[&str]) -> Result<Managed, String> {
        let peer = &self.peers[place];
        let (offset, length) = match rest {
            [] => (0, SINK),
            [offset, length] => (number(offset)?, number(length)?),
            _ => return Err("accepted: PEER, or PEER OFFSET LENGTH".into()),
        };
        let part = self.part_of_sink(peer, offset, length)?;
        let mut digest = CRC32.digest();
        part.for_each_block(|block| digest.update(block));
        let crc = digest.finalize();
        Ok(Managed::Told(format!("crc32 {crc:08x} of {length} bytes from {offset}\n")))
    }

    /// Returns a part of a peer's sink.
    fn part_of_sink(&self, peer: &Peer, offset: usize, length: usize) -> Result<Window, String> {
        let sink = self.process_of(peer).and_then(|process| process.sink);
        let sink = sink.ok_or("it cannot PUT: `put-sink` is not among the services")?;
        sink.slice(offset, length).ok_or_else(|| format!("there are {SINK} bytes"))
    }
}

fn number(word: &str) -> Result<usize, String> {
    word.parse().map_err(|_| format!("{word:?} is no number"))
}
