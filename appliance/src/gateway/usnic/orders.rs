//! `usnic ping`, `usnic reset` and `usnic look` of the console.

use super::{SINK, Usnic};
use crate::console::{Managed, Progress};
use core::time::Duration;
use crc::{CRC_32_ISO_HDLC, Crc};
use drivers::hal::Instant;
use usnic::EndpointId;

/// How long PINGs are waited for: the engine sends eight, 250 ms apart, of each size.
const PATIENCE: Duration = Duration::from_secs(5);

/// As `crc32` of Perl, zlib's `crc32` and gzip have it.
const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// A ping that was ordered.
pub(super) struct Order {
    name: String,
    endpoint: EndpointId,
    until: Instant,
    /// The answer to the small PING was told.
    told_small: bool,
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

    /// Carries out an order of the console.
    pub(super) fn carry_out(
        &mut self,
        order: &str,
        words: &[&str],
        now: Instant,
    ) -> Result<Managed, String> {
        let (&name, rest) = words.split_first().ok_or("say the name of a peer")?;
        let place = self.place_of(name)?;
        match (order, rest) {
            ("ping", []) => self.start_ping(place, now),
            ("reset", []) => {
                self.renew(place, now);
                Ok(Managed::Told("begins anew: the peer has to as well\n".into()))
            }
            ("look", rest) => self.look(place, rest),
            _ => Err(format!("{:?} is too much", rest.join(" "))),
        }
    }

    fn start_ping(&mut self, place: usize, now: Instant) -> Result<Managed, String> {
        let peer = &self.peers[place];
        let name = peer.config.name.to_string();
        let endpoint =
            peer.endpoint.ok_or_else(|| peer.not_admitted.clone().unwrap_or_default())?;
        if !self.engine.ping(endpoint, now) {
            return Err(format!(
                "{name} or we have no port of the connectivity checker (`ping_port`)"
            ));
        }
        self.order = Some(Order { name, endpoint, until: now + PATIENCE, told_small: false });
        Ok(Managed::Started)
    }

    /// News of a ping.
    pub(super) fn news_of_order(&mut self, now: Instant) -> Option<Progress> {
        let order = self.order.as_mut()?;
        let Order { name, endpoint, until, told_small } = order;
        let answered = self.engine.connectivity(*endpoint);
        let times = self.engine.ping_times(*endpoint).unwrap_or_default();
        let millis = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64() * 1000.0;
        let (Some((small, large)), false) = (answered, now >= *until) else {
            let (name, told) = (name.clone(), *told_small);
            self.order = None;
            return Some(Progress::Done(Err(match told {
                true => format!(
                    "{name} answers small PINGs, large ones not: the MTU is smaller on the way"
                ),
                false => format!(
                    "{name} answers no PING: it is not there, or has another version or modex"
                ),
            })));
        };
        if small && !*told_small {
            *told_small = true;
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

    /// The CRC-32 of what a peer has PUT.
    fn look(&self, place: usize, rest: &[&str]) -> Result<Managed, String> {
        let peer = &self.peers[place];
        let sink = peer.sink.ok_or("it cannot PUT: `put-sink` is not among the services")?;
        let number =
            |word: &str| word.parse::<usize>().map_err(|_| format!("{word:?} is no number"));
        let (offset, length) = match rest {
            [] => (0, SINK),
            [offset, length] => (number(offset)?, number(length)?),
            _ => return Err("accepted: PEER, or PEER OFFSET LENGTH".into()),
        };
        let part = sink.slice(offset, length);
        let part = part.ok_or_else(|| format!("there are {SINK} bytes"))?;
        let mut digest = CRC32.digest();
        part.for_each_block(|block| digest.update(block));
        let crc = digest.finalize();
        Ok(Managed::Told(format!("crc32 {crc:08x} of {length} bytes from {offset}\n")))
    }
}
