//! What a peer may say of times and retries, and what is made of it. All of it is an allegation: whoever says
//! that it takes hours must not have us keep anything for hours. Times are codes as in [`time`].

use super::connection::time;
use core::time::Duration;

/// Longest pause between two REPs: what Linux asks for (`CMA_CM_RESPONSE_TIMEOUT`, 4.1 s).
const MAX_RESPONSE: u8 = 20;
/// Shortest: a REP that is lost may wait for that long, and who asks for less would have us flood somebody.
const MIN_RESPONSE: u8 = 16;

/// REPs after the first that are sent without being asked for, as many as Linux repeats SYN-ACKs
/// (`tcp_synack_retries`): whoever has a REQ sent in another's name has six sent to it. A REQ that is
/// repeated draws one more each time.
pub const REP_RETRIES: u8 = 5;

/// Pause between two DREQs (1 s): who gets one answers at once, or has forgotten the connection.
pub const DREQ_INTERVAL: Duration = Duration::from_millis(1024);
/// DREQs to a peer that has shown that it receives; others get one.
pub const DREQ_TRIES: u8 = 8;

/// Longest ACK timeout of a queue pair (2.1 s, four times what Linux's soft-RoCE has), which is also what
/// stands for "never". With 7 retries, a peer that never acknowledges loses its queue pair within 20 s.
const MAX_ACK_TIMEOUT: u8 = 19;

/// Longest that one MRA prolongs the wait for an answer (65 s, as Linux asks for). A message is prolonged once.
pub const MAX_MRA: u8 = 24;

/// Pause between two REPs to a peer that says it takes `code` to answer.
pub fn rep_interval(code: u8) -> Duration {
    time(code.clamp(MIN_RESPONSE, MAX_RESPONSE))
}

/// REPs after the first to a peer that asks for `retries`.
pub fn rep_retries(retries: u8) -> u8 {
    retries.min(REP_RETRIES)
}

/// ACK timeout of a queue pair whose peer asks for `code`.
pub fn ack_timeout(code: u8) -> u8 {
    if code == 0 { MAX_ACK_TIMEOUT } else { code.min(MAX_ACK_TIMEOUT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_says_stands_and_the_rest_is_bounded() {
        assert_eq!(rep_interval(20), Duration::from_millis(4096));
        assert_eq!(rep_interval(31), Duration::from_millis(4096));
        assert_eq!(rep_interval(0), Duration::from_millis(256));
        assert_eq!((rep_retries(15), rep_retries(1)), (5, 1));
        assert_eq!([0, 1, 17, 18, 31].map(ack_timeout), [19, 1, 17, 18, 19]);
    }
}
