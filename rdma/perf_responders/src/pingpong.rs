//! The control protocol of `ibv_rc_pingpong` (rdma-core, `libibverbs/examples/rc_pingpong.c`): each side sends one line
//! of text over TCP, `LID:QPN:PSN:GID` in hexadecimal with a terminating zero, then the client sends `done`. After that
//! SENDs go back and forth. The tool sends neither size nor path MTU: the size is that of each received message, the
//! path MTU is the tool's default, 1024.

use super::bench::{Bench, Peer, Progress, Refused};
use super::endpoint::Echo;
use super::gid;
use alloc::format;
use alloc::vec::Vec;
use net::Neighbours;
use verbs::{Ctx, PathMtu, Provider};

/// Bytes of an address line.
pub const LINE: usize = 52;
/// Bytes of the client's `done`.
const DONE: usize = 5;

/// State of the control protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Talk {
    /// Waiting for the client's line.
    Line,
    /// Waiting for `done`.
    Done,
    /// The exchange is complete.
    Over,
}

/// The fields of an address line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    qpn: u32,
    psn: u32,
    gid: [u8; 16],
}

impl Line {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = bytes.strip_suffix(b"\0")?;
        let mut fields = text.split(|&b| b == b':');
        let _lid = gid::hex(fields.next()?)?;
        let qpn = u32::try_from(gid::hex(fields.next()?)?).ok().filter(|qpn| *qpn <= 0xff_ffff)?;
        let psn = u32::try_from(gid::hex(fields.next()?)?).ok().filter(|psn| *psn <= 0xff_ffff)?;
        let (high, low) = fields.next()?.split_at_checked(16)?;
        let whole = u128::from(gid::hex(high)?) << 64 | u128::from(gid::hex(low)?);
        let complete = low.len() == 16 && fields.next().is_none();
        complete.then_some(Line { qpn, psn, gid: whole.to_be_bytes() })
    }

    fn emit(&self) -> Vec<u8> {
        let gid = u128::from_be_bytes(self.gid);
        format!("0000:{:06x}:{:06x}:{gid:032x}\0", self.qpn, self.psn).into_bytes()
    }
}

impl Talk {
    /// Handles the next message of `input`.
    pub fn advance<P: Provider + ?Sized>(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
        bench: &mut Bench,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Progress, Refused> {
        match self {
            Talk::Line => {
                let Some(line) = input.get(..LINE) else { return Ok(Progress::Wait) };
                let line = Line::parse(line).ok_or(Refused)?;
                let passes = ctx.provider.path_mtu_to(bench.local, bench.peer, ctx.now);
                let path_mtu = PathMtu::Mtu1024.min(passes);
                let peer = Peer { qpn: line.qpn, psn: line.psn, gid: line.gid, path_mtu };
                let Some((local, endpoint)) = bench.connect(&peer, ctx, neighbours)? else {
                    return Ok(Progress::Wait);
                };
                endpoint.echo = Echo::Sends;
                let qpn = ctx.provider.qp_number(endpoint.qp).map_err(|_| Refused)?;
                let answer = Line { qpn, psn: endpoint.psn, gid: gid::bytes(local) };
                output.extend(answer.emit());
                *self = Talk::Done;
                Ok(Progress::Took(LINE))
            }
            Talk::Done if input.len() >= DONE => {
                *self = Talk::Over;
                Ok(Progress::Took(DONE))
            }
            Talk::Over if !input.is_empty() => Err(Refused),
            _ => Ok(Progress::Wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn line_of_the_tool_round_trips() {
        let text = b"0000:000011:7ce4e5:00000000000000000000ffff0a000002\0";
        let line = Line::parse(text).unwrap();
        assert_eq!((line.qpn, line.psn), (0x11, 0x7c_e4e5));
        assert_eq!(gid::address(line.gid).to_string(), "10.0.0.2");
        assert_eq!(line.emit(), text);
        assert_eq!(text.len(), LINE);
    }

    #[test]
    fn malformed_lines_are_refused() {
        for text in [
            &b"0000:000011:7ce4e5:00000000000000000000ffff0a000002x"[..],
            b"0000:000011:7ce4e5:00000000000000000000ffff0a0002:\0",
            b"0000:1000011:7ce4e5:00000000000000000000ffff0a00000\0",
            b"0000 000011 7ce4e5 00000000000000000000ffff0a000002\0",
            b"",
        ] {
            assert_eq!(Line::parse(text), None);
        }
    }
}
