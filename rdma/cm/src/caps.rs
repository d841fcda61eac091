//! Caps on the timeouts and retries that peers request. A peer may claim to need hours, but must not make us keep state
//! for hours. Times are codes as in [`time`].

use super::connection::time;
use core::time::Duration;

/// Longest pause between two REPs: the value that Linux requests (`CMA_CM_RESPONSE_TIMEOUT`, 4.1 s).
const MAX_RESPONSE: u8 = 20;
/// Shortest pause between two REPs. A lost REP may wait this long; with a shorter pause, an attacker could make us
/// flood a third host.
const MIN_RESPONSE: u8 = 16;

/// Unsolicited REPs after the first, as many as Linux repeats SYN-ACKs (`tcp_synack_retries`): a REQ with a forged
/// source makes us send six REPs to the victim. Each repeated REQ causes one more.
pub const REP_RETRIES: u8 = 5;

/// Pause between two DREQs (1 s): a peer answers a DREQ at once, or has lost the connection.
pub const DREQ_INTERVAL: Duration = Duration::from_millis(1024);
/// Number of DREQs to a peer that has proved that it receives; other peers get one.
pub const DREQ_TRIES: u8 = 8;

/// Longest ACK timeout of a queue pair (2.1 s, four times that of Linux's soft-RoCE), which also replaces "never". With
/// 7 retries, a peer that never acknowledges loses its queue pair within 20 s.
const MAX_ACK_TIMEOUT: u8 = 19;

/// Longest wait that one MRA adds (65 s, as Linux requests). A message is prolonged once.
pub const MAX_MRA: u8 = 24;

/// Pause between two REPs to a peer that claims to need `code` to answer.
pub fn rep_interval(code: u8) -> Duration {
    time(code.clamp(MIN_RESPONSE, MAX_RESPONSE))
}

/// Number of REPs after the first to a peer that requests `retries`.
pub fn rep_retries(retries: u8) -> u8 {
    retries.min(REP_RETRIES)
}

/// ACK timeout of a queue pair whose peer requests `code`.
pub fn ack_timeout(code: u8) -> u8 {
    if code == 0 { MAX_ACK_TIMEOUT } else { code.min(MAX_ACK_TIMEOUT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_linux_are_kept_and_others_are_capped() {
        assert_eq!(rep_interval(20), Duration::from_millis(4096));
        assert_eq!(rep_interval(31), Duration::from_millis(4096));
        assert_eq!(rep_interval(0), Duration::from_millis(256));
        assert_eq!((rep_retries(15), rep_retries(1)), (5, 1));
        assert_eq!([0, 1, 17, 18, 31].map(ack_timeout), [19, 1, 17, 18, 19]);
    }
}
