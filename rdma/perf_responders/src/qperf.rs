//! The control protocol of qperf 0.4 (linux-rdma/qperf, `src/qperf.c` and `src/rdma.c`): `rc_bw`, `rc_lat`,
//! `rc_rdma_write_bw`, `rc_rdma_write_lat`, `rc_rdma_read_bw`, `rc_rdma_read_lat`, each with `--use_cm 1`. Without that
//! option qperf does not support RoCE.
//!
//! Messages over TCP, numbers little-endian: the client's request (200 bytes); the port of the server's connection
//! manager (4); once the queue pair is connected, each side's description of its memory (40) and a text from both;
//! after the time of the request, the server's statistics (256) and a last text from the client. Processor times are
//! reported as 0.

use super::bench::{Bench, Progress, Refused};
use super::endpoint::{Echo, Traffic};
use super::write_latency::MAX_MESSAGE;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;
use verbs::{Ctx, Provider, RemoteAddress};

/// Port of the TCP listener; the connection manager listens on the same number.
pub const PORT: u16 = 19765;
/// Bytes of a request.
const REQUEST: usize = 200;
/// Bytes of a memory description.
const NODE: usize = 40;
/// Bytes of the statistics.
const STATISTICS: usize = 256;
/// Protocol version.
const VERSION: [u16; 2] = [0, 4];
const BEFORE: &[u8] = b"synchronization before test";
const AFTER: &[u8] = b"synchronization after test";
/// Longest test that is accepted.
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
/// Unit of the times in statistics.
const TICKS_PER_SECOND: u32 = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Request,
    /// Waiting for the queue pair's connection, then for the client's memory description.
    Node,
    Before,
    Running,
    After,
    Over,
}

/// State of the control protocol.
#[derive(Debug, Default)]
pub struct Talk {
    stage: Stage,
    request: Request,
    started: Instant,
}

/// The client's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Request {
    /// Number of the test in the tool's table.
    test: u16,
    /// Messages after which the test ends, or 0.
    messages: u32,
    /// Time after which the test ends, or 0.
    time: Duration,
}

impl Request {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let (size, messages, time, use_cm) = (word(24)?, word(32)?, word(60)?, word(68)?);
        let time = Duration::from_secs(time.into());
        let good = [half(0)?, half(2)?] == VERSION
            && size as usize <= MAX_MESSAGE
            && time <= MAX_TIME
            && use_cm == 1;
        good.then_some(Request { test: half(6)?, messages, time })
    }

    /// How the client's messages are echoed; None if the test is not served.
    const fn echo(&self) -> Option<Echo> {
        match self.test {
            // rc_bw, rc_rdma_read_bw, rc_rdma_read_lat, rc_rdma_write_bw
            13 | 17 | 18 | 19 => Some(Echo::Nothing),
            // rc_lat
            16 => Some(Echo::Sends),
            // rc_rdma_write_lat
            20 => Some(Echo::WritesWithImmediate),
            _ => None,
        }
    }
}

impl Talk {
    /// Handles the next message of `input`, or the end of the test's time.
    pub fn advance<P: Provider + ?Sized>(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
        bench: &mut Bench,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Progress, Refused> {
        let length = match self.stage {
            Stage::Request => REQUEST,
            Stage::Node => NODE,
            Stage::Before => BEFORE.len(),
            Stage::After => AFTER.len(),
            Stage::Running | Stage::Over => 0,
        };
        let Some(message) = input.get(..length) else { return Ok(Progress::Wait) };
        self.stage = match self.stage {
            Stage::Request => {
                self.request = Request::parse(message).ok_or(Refused)?;
                self.request.echo().ok_or(Refused)?;
                bench.expects_connections = true;
                output.extend(u32::from(PORT).to_le_bytes());
                Stage::Node
            }
            Stage::Node => {
                let endpoint = bench.endpoints.first_mut().ok_or(Refused)?;
                endpoint.remote = node(message).ok_or(Refused)?;
                endpoint.echo = self.request.echo().ok_or(Refused)?;
                output.extend(bench.region.address.to_le_bytes());
                let qpn = ctx.provider.qp_number(endpoint.qp)?;
                for word in [0, qpn, endpoint.psn, 0, bench.region.rkey, 0, 1, 0] {
                    output.extend(word.to_le_bytes());
                }
                Stage::Before
            }
            Stage::Before if message == BEFORE => {
                output.extend(BEFORE);
                self.started = ctx.now;
                Stage::Running
            }
            Stage::Running => {
                let traffic = bench.endpoints.first().ok_or(Refused)?.traffic;
                if !self.is_complete(&traffic, ctx.now) {
                    return Ok(Progress::Wait);
                }
                output.extend(self.statistics(&traffic, ctx.now));
                Stage::After
            }
            Stage::After if message == AFTER => Stage::Over,
            Stage::Over => return Ok(Progress::Wait),
            _ => return Err(Refused),
        };
        Ok(Progress::Took(length))
    }

    fn is_complete(&self, traffic: &Traffic, now: Instant) -> bool {
        let Request { messages, time, .. } = self.request;
        let all_received = messages > 0 && traffic.received >= messages.into();
        all_received || time > Duration::ZERO && now >= self.started + time
    }

    /// When the test's time ends.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timed = self.stage == Stage::Running && self.request.time > Duration::ZERO;
        timed.then(|| self.started + self.request.time)
    }

    /// Emits the server's half of the result (`STAT`).
    fn statistics(&self, traffic: &Traffic, now: Instant) -> Vec<u8> {
        /// Kinds of time; the first is elapsed time.
        const TIMES: usize = 9;
        let mut bytes = Vec::with_capacity(STATISTICS);
        let (cpus, most_completions) = (1u32, 1u32);
        for word in [cpus, TICKS_PER_SECOND, most_completions] {
            bytes.extend(word.to_le_bytes());
        }
        let elapsed =
            now.since(self.started).as_millis() as u64 * u64::from(TICKS_PER_SECOND) / 1000;
        for ticks in [0, elapsed] {
            bytes.extend(ticks.to_le_bytes());
            bytes.extend([0; 8 * (TIMES - 1)]);
        }
        let Traffic { received, received_bytes, sent, sent_bytes } = *traffic;
        for number in [sent_bytes, sent, 0, received_bytes, received, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.resize(STATISTICS, 0);
        bytes
    }
}

/// Parses the client's memory description (`NODE`).
fn node(bytes: &[u8]) -> Option<RemoteAddress> {
    let address = u64::from_le_bytes(*bytes.first_chunk()?);
    let rkey = u32::from_le_bytes(*bytes.get(24..)?.first_chunk()?);
    Some(RemoteAddress { address, rkey })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(test: u16, size: u32, use_cm: u32) -> Vec<u8> {
        let mut bytes = std::vec![0; REQUEST];
        bytes[2] = 4;
        bytes[6..8].copy_from_slice(&test.to_le_bytes());
        bytes[24..28].copy_from_slice(&size.to_le_bytes());
        bytes[60] = 2;
        bytes[68..72].copy_from_slice(&use_cm.to_le_bytes());
        bytes
    }

    #[test]
    fn request_parser_accepts_only_served_requests() {
        let good = Request::parse(&request(13, 65536, 1)).unwrap();
        assert_eq!(good, Request { test: 13, messages: 0, time: Duration::from_secs(2) });
        assert_eq!(Request::parse(&request(13, 65536, 0)), None);
        assert_eq!(Request::parse(&request(13, 9 << 20, 1)), None);
        let mut other = request(13, 1, 1);
        other[2] = 5;
        assert_eq!(Request::parse(&other), None);
        assert!(Request::parse(&request(8, 1, 1)).unwrap().echo().is_none());
    }

    #[test]
    fn statistics_have_offsets_of_the_tool() {
        let talk = Talk { started: Instant::from_nanos(1_000_000_000), ..Talk::default() };
        let traffic = Traffic { received: 7, received_bytes: 70, ..Traffic::default() };
        let bytes = talk.statistics(&traffic, Instant::from_nanos(3_500_000_000));
        assert_eq!(bytes.len(), STATISTICS);
        assert_eq!(bytes[84..92], 250u64.to_le_bytes());
        assert_eq!(bytes[156 + 24..156 + 32], 70u64.to_le_bytes());
        assert_eq!(bytes[156 + 32..156 + 40], 7u64.to_le_bytes());
    }
}
