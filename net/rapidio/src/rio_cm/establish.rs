//! How a channel comes about: requests, and what is said to them.

use super::channel::{Channel, Request, State};
use super::flow::{self, Flow};
use super::wire::{Header, Operation};
use super::{Engine, Error, Peer};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::Source;

/// How long an acknowledgement is waited for. Linux waits for 3 s, and acknowledges what has waited longer, as a busy one
/// does; that is taken.
const CONNECT: Duration = Duration::from_secs(10);
/// How old a request may be that is accepted.
const ACCEPTABLE: Duration = Duration::from_millis(2500);
/// Requests that a listening channel holds, and those of one device.
const MOST_REQUESTS: usize = 64;
const MOST_REQUESTS_OF_ONE: usize = 8;

impl Engine {
    /// Takes requests on a channel of this number.
    pub fn listen(&mut self, number: u16) -> Result<(), Error> {
        self.add(Some(number), State::Listening(VecDeque::new())).map(|_| ())
    }

    /// Asks for a channel; its number here. Whether there is one is told by news.
    pub fn connect(&mut self, to: Peer, now: Instant) -> Result<u16, Error> {
        self.ask(to, false, now)
    }

    /// The same, and offers what `super::flow` is for: where the other end is ours, it takes that.
    pub fn connect_offering(&mut self, to: Peer, now: Instant) -> Result<u16, Error> {
        self.ask(to, true, now)
    }

    fn ask(&mut self, to: Peer, offers: bool, now: Instant) -> Result<u16, Error> {
        let until = now + CONNECT;
        let number = self.add(None, State::Connecting(to, until))?;
        let word = if offers { self.begin_flow(number, 0) } else { 0 };
        self.waiting.push_back((until, number));
        self.send_word(to, Operation::ConnectRequest, number, word);
        Ok(number)
    }

    /// Accepts the next request of a listening channel that is not too old: the number of the new channel, and who is
    /// at its other end.
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

    /// The other end of a channel is ours, or may be, and has offered so many messages; what is offered to it.
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
        self.tell(number);
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
                    self.tell(number);
                }
                // Too late: whoever made a channel for us is to forget it.
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
