//! Forged segments on a live TCP connection (RFC 5961). The connection is made of frames, so that its numbers are known.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use boot_tests::peer::{Peer, segment_of};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpControl, TcpPacket, TcpRepr,
    TcpSeqNumber,
};

const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const CLIENT: &str = "10.9.0.2:41000";
/// The TCP echo service.
const SERVER: &str = "10.9.0.1:7";

/// A segment of the appliance.
#[derive(Debug)]
struct Heard {
    number: u32,
    acknowledged: u32,
    rst: bool,
    syn: bool,
    data: Vec<u8>,
}

/// A connection of the peer's address to the echo service.
struct Connection<'a> {
    peer: &'a mut Peer,
    ends: [SocketAddr; 2],
    /// Next number of the client, and of the appliance.
    next: u32,
    theirs: u32,
}

impl Connection<'_> {
    fn open(peer: &mut Peer) -> Result<Connection<'_>> {
        let ends = [CLIENT.parse()?, SERVER.parse()?];
        let mut one = Connection { peer, ends, next: 1000, theirs: 0 };
        one.send(TcpControl::Syn, 999, &[])?;
        let answers = one.listen(Duration::from_secs(3), |heard| heard.syn)?;
        let Some(answer) = answers.iter().find(|heard| heard.syn) else {
            bail!("no SYN-ACK, but {answers:?}");
        };
        one.theirs = answer.number.wrapping_add(1);
        one.send(TcpControl::None, one.next, &[])?;
        Ok(one)
    }

    /// Sends a segment with this number. All but SYN and RST acknowledge what was heard.
    fn send(&mut self, control: TcpControl, number: u32, payload: &[u8]) -> Result<()> {
        let bare = matches!(control, TcpControl::Syn | TcpControl::Rst);
        let [client, server] = self.ends;
        let tcp = TcpRepr {
            src_port: client.port(),
            dst_port: server.port(),
            control,
            seq_number: TcpSeqNumber(number as i32),
            ack_number: (!bare).then_some(TcpSeqNumber(self.theirs as i32)),
            window_len: 0x1000,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let frame = segment_of(&tcp, (client, PEER_MAC), (server, super::APPLIANCE_MAC));
        self.peer.send_frame(&frame)
    }

    /// The appliance's segments until one is as wanted, or for the whole time.
    fn listen(&mut self, time: Duration, done: impl Fn(&Heard) -> bool) -> Result<Vec<Heard>> {
        let (end, mut all) = (Instant::now() + time, Vec::new());
        while Instant::now() < end {
            let Some(frame) = self.peer.receive_frame(Duration::from_millis(20))? else { continue };
            if let Some(heard) = self.parse(&frame) {
                all.push(heard);
                if all.last().is_some_and(&done) {
                    break;
                }
            }
        }
        Ok(all)
    }

    fn parse(&self, frame: &[u8]) -> Option<Heard> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        if frame.ethertype() != EthernetProtocol::Ipv4 {
            return None;
        }
        let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
        if packet.next_header() != IpProtocol::Tcp {
            return None;
        }
        let segment = TcpPacket::new_checked(packet.payload()).ok()?;
        (segment.dst_port() == self.ends[0].port()).then(|| Heard {
            number: segment.seq_number().0 as u32,
            acknowledged: segment.ack_number().0 as u32,
            rst: segment.rst(),
            syn: segment.syn(),
            data: segment.payload().to_vec(),
        })
    }

    /// Sends bytes, and waits for their echo.
    fn echo(&mut self, bytes: &[u8]) -> Result<()> {
        self.send(TcpControl::Psh, self.next, bytes)?;
        let answers = self.listen(Duration::from_secs(3), |heard| heard.data == bytes)?;
        ensure!(answers.last().is_some_and(|heard| heard.data == bytes), "no echo: {answers:?}");
        self.next += bytes.len() as u32;
        self.theirs = self.theirs.wrapping_add(bytes.len() as u32);
        self.send(TcpControl::None, self.next, &[])
    }
}

/// A blind RST in the window and a SYN are answered by the numbers in force; a RST elsewhere by nothing. The connection
/// goes on.
#[test]
fn forged_rst_and_syn_end_no_connection() -> Result<()> {
    let (_vm, mut peer) = super::pair("isthmus.smc.services=true")?;
    let mut one = Connection::open(&mut peer)?;
    one.echo(b"before")?;
    for (control, ahead, is_answered) in [
        (TcpControl::Rst, 100, true),
        (TcpControl::Syn, 1 << 30, true),
        (TcpControl::Rst, 1 << 30, false),
    ] {
        one.send(control, one.next + ahead, &[])?;
        // Answers are limited in each second.
        let time = Duration::from_millis(if is_answered { 1050 } else { 300 });
        let answers = one.listen(time, |_| false)?;
        let challenge = |heard: &Heard| {
            let numbers = (heard.number, heard.acknowledged) == (one.theirs, one.next);
            numbers && !heard.rst && !heard.syn && heard.data.is_empty()
        };
        let wanted = usize::from(is_answered);
        ensure!(
            answers.len() == wanted && answers.iter().all(challenge),
            "{control:?} {ahead} ahead: {answers:?}"
        );
    }
    one.echo(b"after")?;
    // The exact number ends it.
    one.send(TcpControl::Rst, one.next, &[])?;
    one.send(TcpControl::Psh, one.next, b"late")?;
    let answers = one.listen(Duration::from_secs(3), |heard| heard.rst)?;
    ensure!(answers.last().is_some_and(|heard| heard.rst), "no RST: {answers:?}");
    Ok(())
}
