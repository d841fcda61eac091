//! The control plane of a port: frames of any kind, HTTP over a connection that stands, and the
//! text of capture filters.

use crate::capture;
use crate::input::Input;
use crate::ip;
use drivers::hal::Instant;
use net::capture::{Capture, Filter, LinkType};
use net::http::{Handler, Limits, Read, Request, Response, Server};
use net::{Addressing, Interface};
use netsim::Collector;
use std::time::Duration;

/// Answers with what it was asked.
struct Routes;

impl Handler for Routes {
    fn handle(&mut self, request: &Request<'_>) -> Response {
        assert!(request.path.starts_with('/'));
        Response::stream(Response::TEXT, 1, request.body.len().is_multiple_of(2).then_some(300))
    }
    fn read(&mut self, _: u64, into: &mut [u8]) -> Read {
        Read::Bytes(into.len().min(100))
    }
}

/// An interface with everything on it.
struct Host {
    interface: Interface,
    server: Server,
    now: Instant,
}

impl Host {
    fn new() -> Self {
        let now = Instant::from_nanos(1);
        let mut interface = Interface::new([2, 0, 0, 0, 0, 1], 1500, 7, now);
        let addressing = Addressing {
            addresses: ["10.0.0.1/24", "2001:db8::1/64"].map(|a| a.parse().expect("valid")).into(),
            dhcp: true,
            slaac: true,
            ..Addressing::default()
        };
        interface.set_addressing(addressing, now).expect("they go together");
        let limits = Limits { connections: 3, ..Limits::default() };
        let server = Server::new(&mut interface, 80, limits, None);
        Host { interface, server, now }
    }

    /// Gives it a frame, and some time; what it sends.
    fn feed(&mut self, frame: &[u8], time: Duration) -> Vec<Vec<u8>> {
        self.interface.handle_frame(frame, self.now);
        self.now = self.now + time;
        self.interface.poll(self.now);
        self.server.poll(&mut self.interface, &mut Routes, self.now);
        self.interface.poll(self.now);
        let mut port = Collector::new(usize::MAX);
        self.interface.transmit(&mut port, |_| ());
        port.frames
    }
}

/// Frames of any kind: two bytes of length each, a byte of time, and the frame.
pub fn interface(data: &[u8]) {
    let mut host = Host::new();
    let mut input = Input(data);
    let mut reply = vec![0; 1518];
    while !input.is_empty() {
        let len = input.word() as usize;
        let time = Duration::from_micros(1 << (input.byte() % 28));
        let mut frame = input.take(len).to_vec();
        if let Some(length) = net::echo::answer(&frame, host.interface.local(), &mut reply) {
            assert!(length <= frame.len().max(60));
        }
        host.feed(&frame, time);
        ip::seal(&mut frame);
        host.feed(&frame, time);
    }
}

pub fn interface_corpus() -> Vec<Vec<u8>> {
    let dhcp = |kind: u8| {
        let mut data = vec![0; 300];
        data[..4].copy_from_slice(&[2, 1, 6, 0]);
        data[16..20].copy_from_slice(&[10, 0, 0, 40]);
        data[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        data[236..252].copy_from_slice(&[
            0x63, 0x82, 0x53, 0x63, 53, 1, kind, 54, 4, 10, 0, 0, 254, 51, 4, 0,
        ]);
        data[252..265].copy_from_slice(&[0, 1, 0, 1, 4, 255, 255, 255, 0, 3, 4, 10, 0]);
        data[265..268].copy_from_slice(&[0, 9, 255]);
        let mut datagram = [67u16, 68, 8 + 300, 0].map(u16::to_be_bytes).concat();
        datagram.extend(data);
        ip::v4(17, [10, 0, 0, 254], [255; 4], &datagram)
    };
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
    arp.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    let mut advertisement = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    advertisement.extend([3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    advertisement
        .extend([0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 2]);
    // An option without a length, which once held the loop for ever.
    let endless = [&advertisement[..16], &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8];
    solicitation.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 0, 0, 0, 0, 2]);
    let mut query = vec![130, 0, 0, 0, 0, 100, 0, 0];
    query.extend([0; 16]);
    let echo = [&[128, 0, 0, 0, 0, 1, 0, 1][..], b"0123456789"].concat();
    let udp_echo = [&[0x30, 0x39, 0, 7, 0, 12, 0, 0][..], b"echo"].concat();
    let frames = [
        arp,
        dhcp(2),
        dhcp(5),
        dhcp(6),
        ip::v6(58, "fe80::2", "ff02::1", &advertisement),
        ip::v6(58, "fe80::2", "ff02::1", &endless),
        ip::v6(58, "fe80::2", "ff02::1:ff00:1", &solicitation),
        ip::v6(58, "fe80::2", "ff02::1", &query),
        ip::v6(58, "2001:db8::2", "2001:db8::1", &echo),
        ip::v4(1, [10, 0, 0, 2], [10, 0, 0, 1], &[&[8][..], &echo[1..]].concat()),
        ip::v4(17, [10, 0, 0, 2], [10, 0, 0, 1], &udp_echo),
        ip::tcp(1000, 80, (5, 0), 2, b""),
    ];
    let one = |frame: &Vec<u8>| {
        let len = (frame.len() as u16).to_be_bytes();
        [&len, &[10][..], frame].concat()
    };
    let mut all: Vec<Vec<u8>> = frames.iter().map(one).collect();
    all.push(frames.iter().flat_map(one).collect());
    all.extend(capture::frames().iter().step_by(7).map(one));
    all
}

/// Bytes of an HTTP client, over a connection that stands; a byte says how they are cut.
pub fn http(data: &[u8]) {
    let mut host = Host::new();
    let mut input = Input(data);
    // The host has to know where to answer to.
    let frames = interface_corpus();
    host.feed(&frames[0][3..], Duration::from_millis(1));
    let sent = host.feed(&ip::tcp(1000, 80, (5, 0), 2, b""), Duration::from_millis(1));
    let answer = sent.iter().find(|frame| frame.get(47) == Some(&0x12)).expect("SYN, ACK");
    let theirs = u32::from_be_bytes(answer[38..42].try_into().expect("4 bytes"));
    let mut numbers = (6u32, theirs.wrapping_add(1));
    let mut window = 0u32;
    let cut = 1 + input.byte() as usize;
    while !input.is_empty() {
        let piece = input.take(cut);
        let segment = ip::tcp(1000, 80, numbers, 0x18, piece);
        numbers.0 = numbers.0.wrapping_add(piece.len() as u32);
        for frame in host.feed(&segment, Duration::from_micros(100)) {
            // All that comes back is acknowledged with the next piece.
            let len = frame.len().saturating_sub(54) as u32;
            if frame.get(34..36) == Some(&[0, 80]) {
                numbers.1 = numbers.1.wrapping_add(len);
                window += len;
            }
        }
    }
    let _ = window;
    host.feed(&ip::tcp(1000, 80, numbers, 0x11, b""), Duration::from_secs(20));
    for _ in 0..200 {
        host.feed(&[], Duration::from_secs(2));
    }
    assert_eq!(host.server.connections(), 0, "a connection stays for ever");
}

pub fn http_corpus() -> Vec<Vec<u8>> {
    let requests: [&[u8]; 6] = [
        b"\xffGET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /status?x=1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x0aPOST /api/set HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcdGET / HTTP/1.0\r\n\r\n",
        b"\x80PUT /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        b"\x40POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nabcde",
        b"\xffHEAD http://h/p?q HTTP/1.1\r\nHost: h\r\nConnection: close, keep-alive\r\n\r\n",
        b"\x20GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\nX: \xff\r\n\r\n",
    ];
    requests.map(<[u8]>::to_vec).into()
}

/// The text of a filter up to the first 0, and a frame that it is tried on.
pub fn filter(data: &[u8]) {
    let (text, frame) = data.split_at(data.iter().position(|&byte| byte == 0).unwrap_or(0));
    let text = String::from_utf8_lossy(text);
    match Filter::parse(&text) {
        Ok(filter) => {
            let mut capture = Capture::new();
            capture.start(filter, 4096);
            capture.received(0, frame, Instant::ZERO);
            capture.received(1, frame.get(1..).unwrap_or_default(), Instant::ZERO);
            let mut reader = capture
                .reader(["net0", "net1"].map(|name| (name.into(), LinkType::Ethernet)).into(), 0);
            let mut bytes = Vec::new();
            while capture.read(&mut reader, &mut bytes, 512) && bytes.len() < 1 << 20 {}
        }
        Err(error) => drop(error.to_string()),
    }
}

pub fn filter_corpus() -> Vec<Vec<u8>> {
    let texts =
        ["roce host 10.0.0.2 qp 17", "net1 udp port 4791", "tcp host fd00::1", "arp", "icmp", ""];
    let frames = capture::frames();
    let of = |text: &str| {
        frames
            .iter()
            .step_by(29)
            .map(move |f| [text.as_bytes(), &[0], f].concat())
            .collect::<Vec<_>>()
    };
    texts.iter().flat_map(|text| of(text)).collect()
}
