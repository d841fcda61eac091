//! The control plane of a port: frames of any kind, HTTP over an established connection, and the text of capture
//! filters. A victim beside the attacker sends and receives marked bytes ([`leak`]), which must not appear in frames to
//! others.

use crate::capture;
use crate::input::Input;
use crate::ip;
use crate::leak::{self, Owner};
use drivers::hal::Instant;
use net::capture::{Capture, Filter, LinkType};
use net::http::{Handler, Limits, Read, Request, Response, Server};
use net::{Addressing, Interface};
use netsim::Collector;
use std::net::IpAddr;
use std::time::Duration;

/// The victim's address, and the last byte of its MAC address.
const VICTIM: [u8; 4] = [10, 0, 0, 3];

/// Answers the victim with its marks, and others with other data.
#[derive(Default)]
struct Routes {
    /// Sends marks to others as well.
    leaks: bool,
}

/// Stream numbers.
const OF_VICTIM: u64 = 2;
const OF_OTHERS: u64 = 1;

impl Handler for Routes {
    fn handle(&mut self, request: &Request<'_>) -> Response {
        assert!(request.path.starts_with('/'));
        let victim = request.from.ip() == IpAddr::from(VICTIM);
        let stream = if victim || self.leaks { OF_VICTIM } else { OF_OTHERS };
        let length = request.body.len().is_multiple_of(2).then_some(300);
        Response::stream(Response::TEXT, stream, length)
    }
    fn read(&mut self, stream: u64, into: &mut [u8]) -> Read {
        let len = into.len().min(100);
        let mark = leak::mark(Owner::Victim);
        let part = |n: usize| if stream == OF_VICTIM { mark[n % mark.len()] } else { b'.' };
        into[..len].iter_mut().enumerate().for_each(|(n, byte)| *byte = part(n));
        Read::Bytes(len)
    }
}

/// An interface with all services.
struct Host {
    interface: Interface,
    server: Server,
    routes: Routes,
    now: Instant,
}

impl Host {
    fn new() -> Self {
        let now = Instant::from_nanos(1);
        let mut interface = Interface::new([2, 0, 0, 0, 0, 1], 1500, [7; 32], now);
        let addressing = Addressing {
            addresses: ["10.0.0.1/24", "2001:db8::1/64"].map(|a| a.parse().expect("valid")).into(),
            dhcp: true,
            slaac: true,
            ..Addressing::default()
        };
        interface.set_addressing(addressing, now).expect("the addressing is valid");
        let limits = Limits { connections: 3, ..Limits::default() };
        let server = Server::new(&mut interface, 80, limits, None);
        Host { interface, server, routes: Routes::default(), now }
    }

    /// Feeds a frame, lets time pass, and returns the sent frames after a check for leaks.
    fn feed(&mut self, frame: &[u8], time: Duration) -> Vec<Vec<u8>> {
        self.interface.handle_frame(frame, self.now);
        self.now = self.now + time;
        self.interface.poll(self.now);
        self.server.poll(&mut self.interface, &mut self.routes, self.now);
        self.interface.poll(self.now);
        let mut port = Collector::new(usize::MAX);
        self.interface.transmit(&mut port, |_| ());
        for frame in port.frames.iter().filter(|frame| !is_for_victim(frame)) {
            leak::check_bytes(frame, "a stranger");
        }
        port.frames
    }
}

/// Whether a frame is for the victim, by its Ethernet or IP address.
fn is_for_victim(frame: &[u8]) -> bool {
    frame.starts_with(&[2, 0, 0, 0, 0, VICTIM[3]])
        || frame.get(12..14) == Some(&[8, 0]) && frame.get(30..34) == Some(&VICTIM)
}

/// A frame of the victim with an IPv4 packet.
fn of_victim(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = ip::v4(protocol, VICTIM, [10, 0, 0, 1], payload);
    frame[11] = VICTIM[3];
    frame
}

/// An echo request of the victim.
fn ping_of_victim() -> Vec<u8> {
    let echo = [&[8, 0, 0, 0, 0, 1, 0, 1][..], &leak::mark(Owner::Victim).repeat(4)].concat();
    of_victim(1, &echo)
}

/// An ARP request of 10.0.0.`station` for 10.0.0.1.
fn question(station: u8) -> Vec<u8> {
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, station, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.extend([2, 0, 0, 0, 0, station, 10, 0, 0, station]);
    arp.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    arp
}

/// A TCP connection of the victim to the HTTP server.
struct Visit {
    port: u16,
    numbers: (u32, u32),
    /// Received bytes.
    received: usize,
}

impl Visit {
    fn new(host: &mut Host, port: u16) -> Visit {
        let mut visit = Visit { port, numbers: (5, 0), received: 0 };
        visit.say(host, 2, b"");
        visit.numbers = (6, visit.numbers.1.wrapping_add(1));
        visit.say(host, 0x10, b"");
        visit
    }

    /// Sends a segment. The next one acknowledges the answer.
    fn say(&mut self, host: &mut Host, flags: u8, data: &[u8]) {
        let mut segment = [self.port.to_be_bytes(), 80u16.to_be_bytes()].concat();
        segment.extend(self.numbers.0.to_be_bytes());
        segment.extend(self.numbers.1.to_be_bytes());
        segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(data);
        self.numbers.0 = self.numbers.0.wrapping_add(data.len() as u32);
        for frame in host.feed(&of_victim(6, &segment), Duration::from_micros(100)) {
            let ours = is_for_victim(&frame) && frame.get(36..38) == Some(&self.port.to_be_bytes());
            if !ours || frame.len() < 54 {
                continue;
            }
            let number = u32::from_be_bytes(frame[38..42].try_into().expect("4 bytes"));
            let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            let len = total.saturating_sub(40);
            if frame[47] & 2 != 0 {
                self.numbers.1 = number;
            } else if number == self.numbers.1 {
                self.numbers.1 = number.wrapping_add(len as u32);
            }
            self.received += len;
        }
    }

    /// A complete connection: connects, sends a request, receives the answer, closes.
    fn whole(host: &mut Host, port: u16) -> Visit {
        let mut visit = Visit::new(host, port);
        let mark = leak::mark(Owner::Victim);
        let head = b"POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 160\r\nX: ";
        let request = [&head[..], &mark, b"\r\n\r\n", &mark.repeat(10)].concat();
        visit.say(host, 0x18, &request);
        for _ in 0..6 {
            visit.say(host, 0x10, b"");
        }
        visit.say(host, 0x11, b"");
        visit.numbers.0 = visit.numbers.0.wrapping_add(1);
        visit.say(host, 0x10, b"");
        visit
    }
}

/// Frames of any kind: two bytes of length each, a byte of time, and the frame.
pub fn interface(data: &[u8]) {
    let mut host = Host::new();
    host.feed(&question(VICTIM[3]), Duration::from_millis(1));
    Visit::whole(&mut host, 2000);
    let mut input = Input(data);
    let mark = leak::mark(Owner::Victim).repeat(95);
    let mut reply = vec![0; 1518];
    for turn in 0.. {
        if input.is_empty() {
            break;
        }
        // The next frames reuse the memory of this one.
        if turn % 4 == 0 {
            host.feed(&ping_of_victim(), Duration::from_micros(1));
        }
        let len = input.word() as usize;
        let time = Duration::from_micros(1 << (input.byte() % 28));
        let mut frame = input.take(len).to_vec();
        // A sender of a mark receives it back.
        if leak::in_part(&frame) {
            continue;
        }
        reply.copy_from_slice(&mark[..1518]);
        if let Some(length) = net::echo::answer(&frame, host.interface.local(), &mut reply) {
            assert!(length <= frame.len().max(60));
            leak::check_bytes(&reply[..length], "a stranger");
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
    let mut advertisement = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    advertisement.extend([3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    advertisement
        .extend([0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 2]);
    // An option without a length, which caused an endless loop.
    let endless = [&advertisement[..16], &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8];
    solicitation.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 0, 0, 0, 0, 2]);
    let mut query = vec![130, 0, 0, 0, 0, 100, 0, 0];
    query.extend([0; 16]);
    let echo = [&[128, 0, 0, 0, 0, 1, 0, 1][..], b"0123456789"].concat();
    let udp_echo = [&[0x30, 0x39, 0, 7, 0, 12, 0, 0][..], b"echo"].concat();
    let frames = [
        question(2),
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

/// Bytes of an HTTP client over an established connection. The first byte determines the size of the pieces.
pub fn http(data: &[u8]) {
    attack(Host::new(), data);
}

fn attack(mut host: Host, data: &[u8]) {
    // A sender of a mark receives it back.
    if leak::in_part(data) {
        return;
    }
    let mut input = Input(data);
    // The host needs neighbour entries for its answers.
    host.feed(&question(2), Duration::from_millis(1));
    host.feed(&question(VICTIM[3]), Duration::from_millis(1));
    Visit::whole(&mut host, 2000);
    let mut victim = Visit::new(&mut host, 2001);
    victim.say(&mut host, 0x18, b"GET / HTTP/1.1\r\nX: ");
    let sent = host.feed(&ip::tcp(1000, 80, (5, 0), 2, b""), Duration::from_millis(1));
    let answer = sent.iter().find(|frame| frame.get(47) == Some(&0x12)).expect("SYN, ACK");
    let theirs = u32::from_be_bytes(answer[38..42].try_into().expect("4 bytes"));
    let mut numbers = (6u32, theirs.wrapping_add(1));
    let mut window = 0u32;
    let cut = 1 + input.byte() as usize;
    for turn in 0.. {
        if input.is_empty() {
            break;
        }
        // The victim sends part of a request.
        if turn % 8 == 0 {
            victim.say(&mut host, 0x18, &leak::mark(Owner::Victim));
        }
        let piece = input.take(cut);
        let segment = ip::tcp(1000, 80, numbers, 0x18, piece);
        numbers.0 = numbers.0.wrapping_add(piece.len() as u32);
        for frame in host.feed(&segment, Duration::from_micros(100)) {
            // The next piece acknowledges all received bytes.
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
    assert_eq!(host.server.connections(), 0, "a connection is never closed");
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

/// The text of a filter up to the first 0, and a frame that is matched against it.
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

#[cfg(test)]
mod tests {
    use super::*;

    const ASKS: &[u8] = b"\xffGET / HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn victim_receives_its_answers() {
        let mut host = Host::new();
        host.feed(&question(VICTIM[3]), Duration::from_millis(1));
        let visit = Visit::whole(&mut host, 2000);
        assert!(visit.received > 300, "{} bytes", visit.received);
        let sent = host.feed(&ping_of_victim(), Duration::from_millis(1));
        assert!(sent.iter().any(|frame| leak::find(frame).is_some()), "{sent:?}");
        http(ASKS);
    }

    #[test]
    #[should_panic(expected = "a stranger has bytes of Victim")]
    fn leak_by_http_is_detected() {
        let mut host = Host::new();
        host.routes.leaks = true;
        attack(host, ASKS);
    }

    #[test]
    #[should_panic(expected = "a stranger has bytes of Victim")]
    fn leak_by_the_interface_is_detected() {
        let mut host = Host::new();
        host.feed(&question(2), Duration::from_millis(1));
        let echo = [&[8, 0, 0, 0, 0, 1, 0, 1][..], &leak::mark(Owner::Victim).repeat(4)].concat();
        host.feed(&ip::v4(1, [10, 0, 0, 2], [10, 0, 0, 1], &echo), Duration::from_millis(1));
    }
}
