//! Connection setup: connect requests and acknowledgements.

use super::channel::{Channel, Request, State};
use super::flow::{self, Flow};
use super::wire::{Header, Operation};
use super::{Engine, Error, Peer};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::Source;

/// Timeout of a connect request. Linux waits for 3 s as requester, but a busy Linux acknowledges later, and such
/// acknowledgements are accepted.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum age of a request that is accepted.
const ACCEPTABLE: Duration = Duration::from_millis(2500);
/// Maximum number of requests that a listening channel holds.
const MOST_REQUESTS: usize = 64;
/// The same for requests of one device.
const MOST_REQUESTS_OF_ONE: usize = 8;

impl Engine {
    /// Accepts connect requests on channel `number`.
    pub fn listen(&mut self, number: u16) -> Result<(), Error> {
        self.add(Some(number), State::Listening(VecDeque::new())).map(|_| ())
    }

    /// Sends a connect request; the number of the local channel. An event reports the result.
    pub fn connect(&mut self, to: Peer, now: Instant) -> Result<u16, Error> {
        self.start_connect(to, false, now)
    }

    /// As [`Engine::connect`], and offers flow control (`super::flow`). A peer that is an appliance accepts it.
    pub fn connect_offering(&mut self, to: Peer, now: Instant) -> Result<u16, Error> {
        self.start_connect(to, true, now)
    }

    fn start_connect(&mut self, to: Peer, offers: bool, now: Instant) -> Result<u16, Error> {
        let until = now + CONNECT;
        let number = self.add(None, State::Connecting(to, until))?;
        let word = if offers { self.begin_flow(number, 0) } else { 0 };
        self.waiting.push_back((until, number));
        self.send_word(to, Operation::ConnectRequest, number, word);
        Ok(number)
    }

    /// Accepts the next request of a listening channel that is not too old: the number of the new channel, and its
    /// peer.
    pub fn accept(&mut self, listener: u16, now: Instant) -> Result<Option<(u16, Peer)>, Error> {
        loop {
            let Some(Channel { state: State::Listening(requests), .. }) =
                self.channels.get_mut(&listener)
            else {
                return Err(Error::State);
            };
            let Some(request) = requests.pop_front() else { return Ok(None) };
            if now.since(request.at) > ACCEPTABLE {
                self.counters.stale += 1;
                continue;
            }
            let peer = Peer { device: request.from, channel: request.channel };
            let number = self.add(None, State::Connected(peer))?;
            let word = request.offers.map_or(0, |offered| self.begin_flow(number, offered));
            if word != 0 {
                self.start_ticks(number, now);
            }
            self.send_word(peer, Operation::ConnectAcknowledge, number, word);
            return Ok(Some((number, peer)));
        }
    }

    /// Begins flow control with a peer that has granted `offered` messages. The word that offers it to the peer.
    fn begin_flow(&mut self, number: u16, offered: u16) -> u16 {
        let Some(channel) = self.channels.get_mut(&number) else { return 0 };
        let mut flow = Flow::new(&mut self.memory);
        flow.begin(offered);
        let word = flow.offer();
        channel.flow = Some(Box::new(flow));
        word
    }

    pub(super) fn request(&mut self, from: Source, header: &Header, now: Instant) {
        let number = header.to_channel;
        let Some(Channel { state: State::Listening(requests), .. }) =
            self.channels.get_mut(&number)
        else {
            self.counters.refused += 1;
            return;
        };
        let channel = header.from_channel;
        let of_one = requests.iter().filter(|request| request.from == from).count();
        let is_known = requests.iter().any(|known| known.from == from && known.channel == channel);
        if is_known || requests.len() >= MOST_REQUESTS || of_one >= MOST_REQUESTS_OF_ONE {
            self.counters.refused += 1;
            return;
        }
        let offers = flow::offered(header.word);
        requests.push_back(Request { from, channel, at: now, offers });
        self.notify(number);
    }

    pub(super) fn acknowledged(&mut self, from: Source, header: &Header, now: Instant) {
        let number = header.to_channel;
        let peer = Peer { device: from, channel: header.from_channel };
        match self.channels.get_mut(&number) {
            Some(channel) => match channel.state {
                State::Connecting(asked, _) if asked.device == from => {
                    channel.state = State::Connected(peer);
                    match (flow::offered(header.word), &mut channel.flow) {
                        (Some(offered), Some(flow)) => {
                            flow.begin(offered);
                            self.start_ticks(number, now);
                        }
                        _ => {
                            let held = channel.flow.take().map_or(0, |flow| flow.held());
                            self.memory.release(held, held);
                        }
                    }
                    self.notify(number);
                }
                // Too late: the peer must drop the channel that it has made.
                State::TimedOut => self.send(peer, Operation::Close, number),
                _ => self.counters.stray += 1,
            },
            None => {
                self.counters.stray += 1;
                self.send(peer, Operation::Close, number);
            }
        }
    }
}
