//! Requests and answers (RFC 5905 section 7.3), without extension fields and authentication.

use core::time::Duration;

/// Bytes of a message.
pub const LENGTH: usize = 48;
/// Seconds from the era of NTP, 1900, to 1970.
const UNIX_ERA: i64 = 2_208_988_800;
/// Version and modes.
const VERSION: u8 = 4;
const CLIENT: u8 = 3;
const SERVER: u8 = 4;
/// Leap indicator of a server that is not synchronised.
const ALARM: u8 = 3;
/// Stratum of a server that is not synchronised, and above.
const UNSYNCHRONISED: u8 = 16;
/// Largest distance of a server from its reference: half the root delay, and the dispersion (MAXDIST, RFC 5905 section
/// 7.2 figure 6).
const MOST_DISTANCE: Duration = Duration::from_millis(1500);

/// Why a server's time is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server is not synchronised.
    Unsynchronised,
    /// The server is too far from its reference.
    Distant,
    /// The message has no time, or an impossible one.
    Nonsense,
    /// The server demands that it is asked less often.
    Rate,
    /// The server refuses service: its code.
    Denied([u8; 4]),
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is no answer to this request.
    Foreign,
    /// It is not usable.
    Faulty(Fault),
    /// A time.
    Time {
        /// When the server received the request and sent the answer, nanoseconds since 1970.
        received: i64,
        sent: i64,
        /// Largest error of the server's clock.
        distance: Duration,
        stratum: u8,
    },
}

/// A request with this random number as its transmit timestamp. It tells the server nothing about our clock.
pub fn request(nonce: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[0] = VERSION << 3 | CLIENT;
    bytes[40..].copy_from_slice(&nonce.to_be_bytes());
    bytes
}

/// Parses an answer to a request with this nonce.
pub fn parse(message: &[u8], nonce: u64) -> Answer {
    let Some(bytes) = message.first_chunk::<LENGTH>() else { return Answer::Foreign };
    let word =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    let (leap, version, mode) = (bytes[0] >> 6, bytes[0] >> 3 & 7, bytes[0] & 7);
    if mode != SERVER || !(3..=VERSION).contains(&version) || long(24) != nonce {
        return Answer::Foreign;
    }
    let stratum = bytes[1];
    if stratum == 0 {
        let code = [bytes[12], bytes[13], bytes[14], bytes[15]];
        return Answer::Faulty(match &code {
            b"RATE" => Fault::Rate,
            b"DENY" | b"RSTR" => Fault::Denied(code),
            // Such as INIT and STEP: the server has no time yet.
            _ => Fault::Unsynchronised,
        });
    }
    if leap == ALARM || stratum >= UNSYNCHRONISED {
        return Answer::Faulty(Fault::Unsynchronised);
    }
    let distance = short(word(4)) / 2 + short(word(8));
    if distance > MOST_DISTANCE {
        return Answer::Faulty(Fault::Distant);
    }
    let (Some(received), Some(sent)) = (unix_nanos(long(32)), unix_nanos(long(40))) else {
        return Answer::Faulty(Fault::Nonsense);
    };
    match received <= sent {
        true => Answer::Time { received, sent, distance, stratum },
        false => Answer::Faulty(Fault::Nonsense),
    }
}

/// A duration in the short format: 16 bits of seconds, 16 of fraction.
fn short(word: u32) -> Duration {
    Duration::from_nanos((u64::from(word) * 1_000_000_000) >> 16)
}

/// A timestamp as nanoseconds since 1970; None for zero, which stands for no time. The highest bit tells the era: it is
/// set from 1968 to 2036 and not set from then to 2104 (RFC 4330 section 3).
fn unix_nanos(timestamp: u64) -> Option<i64> {
    if timestamp == 0 {
        return None;
    }
    let (seconds, fraction) = (timestamp >> 32, timestamp & u64::from(u32::MAX));
    let era = if seconds & 1 << 31 == 0 { 1_i64 << 32 } else { 0 };
    let seconds = seconds as i64 + era - UNIX_ERA;
    let nanos = ((fraction * 1_000_000_000) >> 32) as i64;
    Some(seconds * 1_000_000_000 + nanos)
}
