//! The session of one benchmark client: its memory and queue pairs, and its control protocol.

use super::bench::{Bench, Progress, Refused};
use super::endpoint::Endpoint;
use super::write_latency::{MAX_MESSAGE, PAGE};
use super::{perftest, pingpong, qperf};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Neighbours;
use verbs::{ConnectionId, Ctx, Provider, VerbsError};

/// Memory of a session: the largest message, then a page for the data of local WRITEs.
pub const MEMORY: usize = MAX_MESSAGE + PAGE;
/// Bytes of the buffer for unparsed input; larger than any message of the tools.
pub const INPUT: usize = 512;
/// A session without a control connection ends after this time without traffic.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// A session without a queue pair ends after this time without a control message.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The control protocol of a client.
#[derive(Debug)]
enum Talk {
    /// Not known yet: `ibv_rc_pingpong` or perftest, which share a port.
    Unknown,
    Pingpong(pingpong::Talk),
    Perftest(perftest::Talk),
    Qperf(qperf::Talk),
}

/// The session of one client.
#[derive(Debug)]
pub struct Session {
    pub bench: Bench,
    talk: Talk,
    /// Received bytes that are not parsed yet.
    pub input: Vec<u8>,
    /// Bytes to be sent.
    pub output: Vec<u8>,
    /// The control connection is open.
    pub has_control: bool,
    /// Refused or finished: the server removes the session.
    pub ended: bool,
    /// Time of the last message or traffic.
    pub last_activity: Instant,
}

impl Session {
    /// Creates the session of a client that has connected to `port`.
    pub fn new<P: Provider + ?Sized>(
        port: u16,
        peer: IpAddr,
        local: IpAddr,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Self, VerbsError> {
        let talk = match port {
            qperf::PORT => Talk::Qperf(qperf::Talk::default()),
            _ => Talk::Unknown,
        };
        Ok(Session {
            bench: Bench::new(MEMORY, peer, local, ctx)?,
            talk,
            input: Vec::with_capacity(INPUT),
            output: Vec::with_capacity(INPUT),
            has_control: true,
            ended: false,
            last_activity: ctx.now,
        })
    }

    /// Answers the messages in the input buffer, up to the first that is incomplete.
    pub fn advance<P: Provider + ?Sized>(
        &mut self,
        messages: perftest::Framing,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) {
        while !self.ended {
            let (input, output, bench) = (&self.input[..], &mut self.output, &mut self.bench);
            let step = match &mut self.talk {
                Talk::Unknown => match input.get(4) {
                    // A pingpong line begins with four digits and a colon, a perftest version with a number.
                    Some(b':') => {
                        self.talk = Talk::Pingpong(pingpong::Talk::Line);
                        continue;
                    }
                    Some(_) => {
                        self.talk = Talk::Perftest(perftest::Talk::new(messages));
                        continue;
                    }
                    None => Ok(Progress::Wait),
                },
                Talk::Pingpong(talk) => talk.advance(input, output, bench, ctx, neighbours),
                Talk::Perftest(talk) => talk.advance(input, output, bench, ctx, neighbours),
                Talk::Qperf(talk) => talk.advance(input, output, bench, ctx),
            };
            match step {
                Ok(Progress::Took(count)) => {
                    self.input.drain(..count.min(self.input.len()));
                    self.last_activity = ctx.now;
                }
                Ok(Progress::Wait) => break,
                Err(Refused) => self.ended = true,
            }
        }
    }

    /// Handles completions and returns how many.
    pub fn poll<P: Provider + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> usize {
        let polled = self.bench.poll(ctx);
        self.ended |= polled.is_err();
        let handled = polled.unwrap_or(0);
        let mut endpoints = self.bench.endpoints.iter_mut();
        if handled > 0 || !self.has_control && endpoints.any(|end| end.has_progress(ctx.provider)) {
            self.last_activity = ctx.now;
        }
        self.ended |= self.idle_since().is_some_and(|(since, limit)| since + limit <= ctx.now);
        handled
    }

    /// The time of the last activity, and the idle time that ends the session; None if none does.
    fn idle_since(&self) -> Option<(Instant, Duration)> {
        match self.has_control {
            false => Some((self.last_activity, IDLE_TIMEOUT)),
            true if self.bench.endpoints.is_empty() => Some((self.last_activity, SETUP_TIMEOUT)),
            true => None,
        }
    }

    /// Handles the end of the control connection. Only `ibv_rc_pingpong` measures without it.
    pub fn control_closed(&mut self) {
        self.has_control = false;
        self.ended |= !matches!(self.talk, Talk::Pingpong(pingpong::Talk::Over));
    }

    /// When [`Session::poll`] or [`Session::advance`] is due without an event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ended {
            return Some(self.last_activity);
        }
        let talk = match &self.talk {
            Talk::Qperf(talk) => talk.poll_timeout(),
            _ => None,
        };
        let endpoints = self.bench.endpoints.iter().filter_map(Endpoint::poll_timeout).min();
        let idle = self.idle_since().map(|(since, limit)| since + limit);
        Instant::first([talk, endpoints, idle])
    }

    /// The index of the endpoint of a connection.
    pub fn position(&self, connection: ConnectionId) -> Option<usize> {
        self.bench.endpoints.iter().position(|e| e.connection == Some(connection))
    }

    /// Ends the session and frees its resources.
    pub fn end<P: Provider + ?Sized>(mut self, ctx: &mut Ctx<'_, P>) {
        self.bench.give_back(ctx);
    }
}
