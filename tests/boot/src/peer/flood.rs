//! SYNs from non-existent hosts at a steady rate, in a thread beside the peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, IpRepr, Ipv4Repr, Ipv6Repr,
    TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

use super::Peer;

/// Interval at which due SYNs are sent.
const TICK: Duration = Duration::from_millis(2);

/// A running flood.
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<f64>>,
}

impl Flood {
    /// Sends `rate` SYNs a second to `server`, whose MAC address is `mac`, on the peer's wire.
    pub fn start(peer: &Peer, server: SocketAddr, mac: [u8; 6], rate: f64) -> Result<Flood> {
        let wire: PathBuf = peer.wire.appliance.clone();
        let socket = UnixDatagram::unbound()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (start, mut sent) = (Instant::now(), 0u32);
            while !stopped.load(Ordering::Relaxed) {
                while f64::from(sent) < start.elapsed().as_secs_f64() * rate {
                    let frame = syn(sent, server, mac);
                    // Waits for room, so the returned rate shows a machine that is too slow.
                    socket.send_to(&frame, &wire).context("the wire takes no frame")?;
                    sent += 1;
                }
                std::thread::sleep(TICK);
            }
            Ok(f64::from(sent) / start.elapsed().as_secs_f64())
        });
        Ok(Flood { stop, thread })
    }

    /// Ends the flood, and returns the number of SYNs per second.
    pub fn end(self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the flood has panicked"))?
    }
}

/// The frame of SYN number `n`.
fn syn(n: u32, server: SocketAddr, mac: [u8; 6]) -> Vec<u8> {
    let from: IpAddr = match server.ip() {
        IpAddr::V4(_) => Ipv4Addr::from(0x0a09_0100 | (n % 0xfe00)).into(),
        IpAddr::V6(_) => {
            Ipv6Addr::from((0xfd09_u128 << 112) | 0x1_0000 | u128::from(n % 0xfe00)).into()
        }
    };
    syn_of(n, (SocketAddr::new(from, n as u16 | 1), [2, 0, 0, 0, 2, 0]), (server, mac))
}

/// The frame of a SYN with this sequence number, between these IP and MAC addresses.
pub fn syn_of(n: u32, from: (SocketAddr, [u8; 6]), to: (SocketAddr, [u8; 6])) -> Vec<u8> {
    let tcp = TcpRepr {
        src_port: from.0.port(),
        dst_port: to.0.port(),
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(n as i32),
        ack_number: None,
        window_len: 0xffff,
        window_scale: None,
        max_seg_size: Some(1440),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    segment_of(&tcp, from, to)
}

/// The frame of a TCP segment between these IP and MAC addresses.
pub fn segment_of(
    tcp: &TcpRepr<'_>,
    (client, own): (SocketAddr, [u8; 6]),
    (server, mac): (SocketAddr, [u8; 6]),
) -> Vec<u8> {
    let (next_header, payload_len, hop_limit) = (IpProtocol::Tcp, tcp.buffer_len(), 64);
    let (ethertype, ip) = match (client.ip(), server.ip()) {
        (IpAddr::V4(src_addr), IpAddr::V4(dst_addr)) => {
            let ip = Ipv4Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
            (EthernetProtocol::Ipv4, IpRepr::Ipv4(ip))
        }
        (IpAddr::V6(src_addr), IpAddr::V6(dst_addr)) => {
            let ip = Ipv6Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
            (EthernetProtocol::Ipv6, IpRepr::Ipv6(ip))
        }
        (client, server) => panic!("no packet goes from {client} to {server}"),
    };
    let mut bytes = vec![0; 14 + ip.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    frame.set_dst_addr(EthernetAddress(mac));
    frame.set_src_addr(EthernetAddress(own));
    frame.set_ethertype(ethertype);
    let checksums = ChecksumCapabilities::default();
    ip.emit(&mut *frame.payload_mut(), &checksums);
    let segment = &mut frame.payload_mut()[ip.header_len()..];
    let mut segment = TcpPacket::new_unchecked(segment);
    tcp.emit(&mut segment, &ip.src_addr(), &ip.dst_addr(), &checksums);
    bytes
}
