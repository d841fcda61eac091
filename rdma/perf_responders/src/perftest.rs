//! perftest (linux-rdma/perftest 4.5): `ib_send_bw`, `ib_send_lat`, `ib_write_bw`, `ib_write_lat`,
//! `ib_read_bw`, `ib_read_lat`, from `src/perftest_communication.c` and the tools' `main`s.
//!
//! The client sends messages, and the server answers each with a message of the same length: version (16 bytes of
//! text), cycle buffer and cache line (4 each), path MTU (2 bytes of text), then any number of keys, with bandwidth
//! reports (5 numbers of 8 bytes) between them, finally `done`. Over TCP a key is text of 108 bytes; over a queue pair
//! (`-R`) it is a struct of 56 bytes with big-endian numbers.
//!
//! No message names the test. READ and WRITE tests need no responder, except `ib_write_lat`: it sends one key more than
//! `ib_write_bw`, then waits for the server's first WRITE (`write_latency`; sizes above 4096 must be powers of two).
//! `ib_send_lat` needs its SENDs echoed; its traffic distinguishes it from `ib_send_bw` ([`Echo::Guess`]). Only
//! reliable connections and messages up to 8 MiB are served, in one direction (no `-b`).

use super::bench::{Bench, Peer, Progress, Refused};
use super::endpoint::{Echo, MAX_RD_ATOMIC};
use super::gid;
use alloc::format;
use alloc::vec::Vec;
use net::Neighbours;
use verbs::{Ctx, PathMtu, Provider, RemoteAddress};

/// Port of the TCP listener and of the connection manager.
pub const PORT: u16 = 18515;
/// Bytes of the version message.
const VERSION: usize = 16;
/// Bytes of a key in text form.
const KEY_TEXT: usize = 108;
/// Bytes of a key in struct form.
const KEY_STRUCT: usize = 56;
/// Keys that `ib_write_lat` exchanges before its first WRITE; `ib_write_bw` exchanges one less.
const WRITE_LATENCY_KEYS: usize = 4;
/// Numbers in a bandwidth report.
const REPORT: u8 = 5;

/// Where messages end on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// TCP: the stage and the first bytes give the length.
    Stream,
    /// Queue pair: each SEND is a message.
    Messages,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Version,
    CycleBuffer,
    CacheLine,
    PathMtu,
    Keys,
    /// A report of which this many numbers are to come.
    Report(u8),
    Over,
}

/// State of the control protocol.
#[derive(Debug)]
pub struct Talk {
    framing: Framing,
    stage: Stage,
    path_mtu: PathMtu,
    /// Queue pair keys exchanged so far.
    keys: usize,
}

/// A key: the description of a queue pair and its memory (`struct pingpong_dest`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    out_reads: u32,
    qpn: u32,
    psn: u32,
    rkey: u32,
    address: u64,
    gid: [u8; 16],
}

impl Key {
    fn parse_text(bytes: &[u8]) -> Option<Self> {
        let text = bytes.strip_suffix(b":\0")?;
        let mut fields = text.split(|&b| b == b':').map(gid::hex);
        let mut word = || fields.next()??.try_into().ok();
        let [_lid, out_reads, qpn, psn, rkey] = [word()?, word()?, word()?, word()?, word()?];
        let address = fields.next()??;
        let mut gid = [0; 16];
        for byte in &mut gid {
            *byte = fields.next()??.try_into().ok()?;
        }
        let _srqn = fields.next()??;
        let in_range = qpn <= 0xff_ffff && psn <= 0xff_ffff && fields.next().is_none();
        in_range.then_some(Key { out_reads, qpn, psn, rkey, address, gid })
    }

    fn emit_text(&self) -> Vec<u8> {
        let Key { out_reads, qpn, psn, rkey, address, gid } = self;
        let mut text =
            format!("0000:{out_reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{address:016x}");
        for byte in gid {
            text += &format!(":{byte:02x}");
        }
        text += ":00000000:\0";
        text.into_bytes()
    }

    fn parse_struct(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let (out_reads, qpn, psn, rkey) = (word(4)?, word(8)?, word(12)?, word(16)?);
        let address = u64::from_be_bytes(*bytes.get(24..)?.first_chunk()?);
        let gid = *bytes.get(32..)?.first_chunk()?;
        let good = bytes.len() == KEY_STRUCT && qpn <= 0xff_ffff && psn <= 0xff_ffff;
        good.then_some(Key { out_reads, qpn, psn, rkey, address, gid })
    }

    fn emit_struct(&self) -> Vec<u8> {
        let words = [0, self.out_reads, self.qpn, self.psn, self.rkey, 0];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend(self.address.to_be_bytes());
        bytes.extend(self.gid);
        bytes.resize(KEY_STRUCT, 0);
        bytes
    }
}

impl Talk {
    /// Starts with the version message.
    pub fn new(framing: Framing) -> Self {
        Talk { framing, stage: Stage::Version, path_mtu: PathMtu::Mtu256, keys: 0 }
    }

    /// Length of the message at the start of `input`; None if it is not known yet.
    fn length(&self, input: &[u8]) -> Option<usize> {
        Some(match (self.stage, input) {
            (Stage::Version, _) => VERSION,
            (Stage::CycleBuffer | Stage::CacheLine, _) => 4,
            (Stage::PathMtu, _) => 2,
            (Stage::Report(_), _) => 8,
            (Stage::Over, _) => return None,
            (Stage::Keys, []) => return None,
            (Stage::Keys, _) if self.framing == Framing::Messages => match input.len() {
                KEY_STRUCT => KEY_STRUCT,
                _ => 8,
            },
            // A report begins with a size far below 2^56, a key with a digit.
            (Stage::Keys, [0, ..]) => 8,
            (Stage::Keys, [b'd', b'o', ..]) => 5,
            (Stage::Keys, _) => KEY_TEXT,
        })
    }

    /// Handles the next message of `input`.
    pub fn advance<P: Provider + ?Sized>(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
        bench: &mut Bench,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Progress, Refused> {
        let Some(length) = self.length(input) else { return Ok(Progress::Wait) };
        let Some(message) = input.get(..length) else { return Ok(Progress::Wait) };
        self.stage = match self.stage {
            Stage::Version => {
                // Every version is accepted: the messages are the same.
                let number = message.split(|b| !b.is_ascii_digit()).next();
                number.filter(|digits| !digits.is_empty()).ok_or(Refused)?;
                output.extend(message);
                Stage::CycleBuffer
            }
            Stage::CycleBuffer => {
                output.extend(message);
                Stage::CacheLine
            }
            Stage::CacheLine => {
                output.extend(message);
                Stage::PathMtu
            }
            Stage::PathMtu => {
                let code = message.first().map_or(0, |digit| digit.wrapping_sub(b'0'));
                let remote = PathMtu::from_code(code).ok_or(Refused)?;
                let local = ctx.provider.path_mtu_to(bench.local, bench.peer, ctx.now);
                self.path_mtu = remote.min(local);
                output.extend([b'0' + local as u8, 0]);
                Stage::Keys
            }
            Stage::Keys if length == 8 => {
                output.extend(message);
                Stage::Report(REPORT - 1)
            }
            Stage::Keys if length == 5 => {
                output.extend(message);
                Stage::Over
            }
            Stage::Keys => {
                let key = match self.framing {
                    Framing::Stream => Key::parse_text(message),
                    Framing::Messages => Key::parse_struct(message),
                };
                let key = key.ok_or(Refused)?;
                let Some(answer) = self.exchange(&key, bench, ctx, neighbours)? else {
                    return Ok(Progress::Wait);
                };
                output.extend(match self.framing {
                    Framing::Stream => answer.emit_text(),
                    Framing::Messages => answer.emit_struct(),
                });
                Stage::Keys
            }
            Stage::Report(left) => {
                output.extend(message);
                if left > 1 { Stage::Report(left - 1) } else { Stage::Keys }
            }
            Stage::Over => Stage::Over,
        };
        Ok(Progress::Took(length))
    }

    /// Handles the peer's key and returns the local one; None while the neighbour is being resolved.
    fn exchange<P: Provider + ?Sized>(
        &mut self,
        key: &Key,
        bench: &mut Bench,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Option<Key>, Refused> {
        if key.qpn == 0 {
            // A barrier: the peer sends it before and after it connects queue pairs through the connection manager.
            bench.managed = true;
            bench.expects_connections = !bench.expects_connections;
            return Ok(Some(Key { gid: gid::bytes(bench.local), ..Key::default() }));
        }
        let known = bench.endpoints.iter().position(|e| e.remote_qpn == key.qpn);
        // Queue pairs of the connection manager have no remote number yet: take the first of them.
        let known = known.or_else(|| bench.endpoints.iter().position(|e| e.remote_qpn == 0));
        let (address, rkey) = (bench.region.address, bench.region.rkey);
        let mut local = bench.local;
        let at = match known {
            Some(at) => at,
            None if bench.managed => return Err(Refused),
            None => {
                let (qpn, psn, path_mtu) = (key.qpn, key.psn, self.path_mtu);
                let peer = Peer { qpn, psn, gid: key.gid, path_mtu };
                if bench.connect(&peer, ctx, neighbours)?.is_none() {
                    return Ok(None);
                }
                bench.endpoints.len() - 1
            }
        };
        if !bench.managed {
            let ip = gid::address(key.gid);
            local = neighbours.address_towards(ip, bench.local).ok_or(Refused)?;
        }
        self.keys += 1;
        let pairs = bench.endpoints.len();
        let endpoint = bench.endpoints.get_mut(at).ok_or(Refused)?;
        endpoint.remote_qpn = key.qpn;
        endpoint.remote = RemoteAddress { address: key.address, rkey: key.rkey };
        // Latency tests have one queue pair. Later keys keep the echo mode that its traffic has set.
        match (pairs, self.keys) {
            (1, 1) => endpoint.echo = Echo::Guess,
            // READ tests are recognised by `out_reads`, other tests by their traffic. Where hardware executes the
            // READs, a READ test with one outstanding READ looks silent.
            (1, WRITE_LATENCY_KEYS) if key.out_reads <= 1 => endpoint.expect_write_latency(ctx),
            _ => {}
        }
        if pairs > 1 {
            bench.endpoints.iter_mut().for_each(|e| e.echo = Echo::Nothing);
        }
        let endpoint = bench.endpoints.get(at).ok_or(Refused)?;
        let answer = Key {
            out_reads: MAX_RD_ATOMIC.into(),
            qpn: ctx.provider.qp_number(endpoint.qp)?,
            psn: endpoint.psn,
            rkey,
            address,
            gid: gid::bytes(local),
        };
        Ok(Some(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    const TEXT: &[u8] = b"0000:0001:000011:7ce4e5:0003a2f1:00007f1c5e1c5000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:02:00000000:\0";

    #[test]
    fn key_of_the_tool_round_trips() {
        assert_eq!(TEXT.len(), KEY_TEXT);
        let key = Key::parse_text(TEXT).unwrap();
        assert_eq!((key.out_reads, key.qpn, key.psn, key.rkey), (1, 0x11, 0x7c_e4e5, 0x3_a2f1));
        assert_eq!(key.address, 0x7f1c_5e1c_5000);
        assert_eq!(gid::address(key.gid).to_string(), "10.0.0.2");
        assert_eq!(key.emit_text(), TEXT);
        let bytes = key.emit_struct();
        assert_eq!(bytes.len(), KEY_STRUCT);
        assert_eq!(Key::parse_struct(&bytes), Some(key));
    }

    #[test]
    fn key_parser_rejects_malformed_keys() {
        for at in 0..KEY_TEXT {
            let mut text = TEXT.to_vec();
            text[at] = b'x';
            assert_eq!(Key::parse_text(&text), None, "{at}");
        }
        for length in 0..KEY_STRUCT {
            assert_eq!(Key::parse_struct(&[0; KEY_STRUCT][..length]), None);
        }
    }

    #[test]
    fn message_lengths_of_keys_reports_and_done_are_distinguished() {
        let mut talk = Talk::new(Framing::Stream);
        talk.stage = Stage::Keys;
        assert_eq!(talk.length(TEXT), Some(KEY_TEXT));
        assert_eq!(talk.length(b"d"), Some(KEY_TEXT));
        assert_eq!(talk.length(b"d00d"), Some(KEY_TEXT));
        assert_eq!(talk.length(b"done\0"), Some(5));
        assert_eq!(talk.length(&65536u64.to_be_bytes()), Some(8));
        assert_eq!(talk.length(b""), None);
    }
}
