//! Addresses and MTUs from DHCP servers and routers with invalid or unusual settings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::peer::Peer;
use boot_tests::{boot, spec};
use launch::qemu::Vm;
use serde_json::json;
use smoltcp::wire::{Icmpv6Packet, IpAddress, Ipv4Packet, TcpPacket, UdpPacket};

const OURS: [u8; 6] = super::APPLIANCE_MAC;
const STATION: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const SERVER: [u8; 4] = [10, 7, 0, 1];
const ADDRESS: [u8; 4] = [10, 7, 0, 50];
/// The second server, and the address that it offers.
const OTHER: [u8; 4] = [10, 7, 0, 2];
const OTHER_ADDRESS: [u8; 4] = [10, 7, 0, 60];
const ROUTER: &str = "fe80::1";
const OWN: &str = "fd07::5054:ff:fe12:3456";

/// IPv6 addresses of clients, all at the station.
const NEIGHBOURS: [&str; 2] = ["fd07::8", "fd07::9"];

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;

const MASK: (u8, &[u8]) = (1, &[255, 255, 255, 0]);
const GATEWAY: (u8, &[u8]) = (3, &SERVER);
const TEN_MINUTES: (u8, &[u8]) = (51, &[0, 0, 2, 88]);

/// A message of the client: its type, and the server that it chooses.
struct Heard {
    kind: u8,
    chosen: Option<[u8; 4]>,
}

/// A DHCP server's message: its sender, the offered address, type, options, and the field `file`.
struct Reply {
    server: [u8; 4],
    address: [u8; 4],
    kind: u8,
    options: Vec<u8>,
    file: Vec<u8>,
}

impl Reply {
    fn new(kind: u8, options: &[(u8, &[u8])]) -> Reply {
        Reply::from((SERVER, ADDRESS), kind, options)
    }

    /// As `new`, from another server.
    fn of_other(kind: u8, options: &[(u8, &[u8])]) -> Reply {
        Reply::from((OTHER, OTHER_ADDRESS), kind, options)
    }

    fn from((server, address): ([u8; 4], [u8; 4]), kind: u8, options: &[(u8, &[u8])]) -> Reply {
        let own = vec![53, 1, kind, 54, 4];
        let mut reply = Reply { server, address, kind, options: own, file: Vec::new() };
        reply.options.extend(server);
        options.iter().for_each(|(code, value)| reply.options.extend(option(*code, value)));
        reply
    }

    /// The reply that grants the address: an OFFER, an ACK, or none, by the client's message type.
    fn grant(kind: u8, options: &[(u8, &[u8])]) -> Option<Reply> {
        match kind {
            DISCOVER => Some(Reply::new(OFFER, options)),
            REQUEST => Some(Reply::new(ACK, options)),
            _ => None,
        }
    }
}

fn option(code: u8, value: &[u8]) -> Vec<u8> {
    [&[code, value.len() as u8], value].concat()
}

/// A wire with a DHCP server whose replies the case supplies, and the appliance's frames on it.
struct Wire {
    peer: Peer,
    /// Types of the client's messages, and their times.
    messages: Vec<(u8, Instant)>,
    frames: Vec<Vec<u8>>,
    /// Another station has the leased address.
    squatted: bool,
}

impl Wire {
    fn new() -> Result<Wire> {
        let (messages, frames) = (Vec::new(), Vec::new());
        Ok(Wire { peer: Peer::new(&[])?, messages, frames, squatted: false })
    }

    fn boot(&self, words: &str) -> Result<Vm> {
        boot(spec()?.nic(self.peer.nic()).append(words))
    }

    /// Answers ARP, neighbour solicitations and DHCP for a while. `answer` supplies the server's reply to a message of
    /// this type.
    fn serve(&mut self, time: Duration, answer: &dyn Fn(u8) -> Option<Reply>) -> Result<()> {
        self.serve_all(time, &|heard| answer(heard.kind).into_iter().collect())
    }

    /// As `serve`, with replies of any number of servers.
    fn serve_all(&mut self, time: Duration, answer: &dyn Fn(&Heard) -> Vec<Reply>) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let Some(frame) = self.peer.receive_frame(Duration::from_millis(5))? else { continue };
            if let Some(target) = asked_by_arp(&frame)
                && (target == SERVER || target == OTHER || self.squatted && target == ADDRESS)
            {
                let sender = frame[28..32].try_into()?;
                self.peer.send_frame(&arp_reply(target, sender))?;
            }
            if let Some(target) = solicited(&frame)
                && NEIGHBOURS.contains(&target.to_string().as_str())
            {
                let asker = Ipv6Addr::from(*frame[22..].first_chunk().context("short")?);
                let mut claim = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &target.octets()].concat();
                claim.extend([&[2, 1][..], &STATION].concat());
                let answer = icmpv6(&target.to_string(), &asker.to_string(), OURS, &claim)?;
                self.peer.send_frame(&answer)?;
            }
            if let Some(bytes) =
                frame.get(42..).filter(|_| frame[12..14] == [8, 0] && frame[36..38] == [0, 67])
            {
                let kind = bytes[242];
                self.messages.push((kind, Instant::now()));
                for reply in answer(&Heard { kind, chosen: chosen_server(bytes) }) {
                    self.peer.send_frame_soon(&dhcp(&reply, &bytes[4..8]))?;
                }
            }
            self.frames.push(frame);
        }
        Ok(())
    }

    fn listen(&mut self, time: Duration) -> Result<()> {
        self.serve(time, &|_| None)
    }

    /// Opens a TCP connection to the HTTP port, and returns the MSS in the appliance's SYN-ACK.
    fn mss(&mut self, from: &str, to: &str) -> Result<u16> {
        self.frames.clear();
        for _ in 0..5 {
            self.peer.send_frame(&syn(from, to)?)?;
            self.listen(Duration::from_millis(500))?;
            for frame in &self.frames {
                let header = if frame[12..14] == [8, 0] { 34 } else { 54 };
                let is_answer = frame.len() >= header + 24
                    && (frame[23] == 6 || frame[20] == 6)
                    && frame[header + 13] & 0x12 == 0x12;
                if is_answer && frame[header + 20..header + 22] == [2, 4] {
                    return Ok(u16::from_be_bytes([frame[header + 22], frame[header + 23]]));
                }
            }
        }
        let frames: Vec<String> = self.frames.iter().map(|frame| format!("{frame:02x?}")).collect();
        anyhow::bail!("no SYN-ACK from {to}, but:\n{}", frames.join("\n"))
    }
}

/// The server identifier (option 54) in a message of the client.
fn chosen_server(message: &[u8]) -> Option<[u8; 4]> {
    let mut options = message.get(240..)?;
    while let [code, length, rest @ ..] = options {
        let (value, others) = rest.split_at_checked(usize::from(*length))?;
        if *code == 54 {
            return value.try_into().ok();
        }
        options = others;
    }
    None
}

/// The address that a frame asks for by ARP, unless it is a probe for the sender's own address.
fn asked_by_arp(frame: &[u8]) -> Option<[u8; 4]> {
    let asks = frame.get(12..14)? == [8, 6] && frame.get(20..22)? == [0, 1];
    if asks && frame.get(28..32)? != frame.get(38..42)? {
        frame.get(38..42)?.try_into().ok()
    } else {
        None
    }
}

/// The target of a neighbour solicitation.
fn solicited(frame: &[u8]) -> Option<Ipv6Addr> {
    let asks = frame.get(12..14)? == [0x86, 0xdd] && frame[20] == 58 && *frame.get(54)? == 135;
    asks.then(|| Some(Ipv6Addr::from(*frame.get(62..)?.first_chunk()?)))?
}

fn arp_reply(ip: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let head = [&OURS[..], &STATION, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &STATION, &ip].concat();
    [&head[..], &OURS, &target].concat()
}

/// An IPv4 packet.
fn v4(from: [u8; 4], to: [u8; 4], destination: [u8; 6], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len() as u16).to_be_bytes();
    let mut frame = [&destination[..], &STATION, &[8, 0, 0x45, 0], &length].concat();
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(from);
    frame.extend(to);
    Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
    frame.extend(payload);
    frame
}

fn dhcp(reply: &Reply, transaction: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 236];
    bytes[..3].copy_from_slice(&[2, 1, 6]);
    bytes[4..8].copy_from_slice(transaction);
    if reply.kind != NAK {
        bytes[16..20].copy_from_slice(&reply.address);
    }
    bytes[28..34].copy_from_slice(&OURS);
    bytes[108..108 + reply.file.len()].copy_from_slice(&reply.file);
    bytes.extend([99, 130, 83, 99]);
    bytes.extend(&reply.options);
    bytes.push(255);
    let length = (8 + bytes.len() as u16).to_be_bytes();
    let mut datagram = [&[0, 67, 0, 68][..], &length, &[0, 0], &bytes].concat();
    let (from, to) = (IpAddress::Ipv4(reply.server.into()), IpAddress::Ipv4(Ipv4Addr::BROADCAST));
    UdpPacket::new_unchecked(&mut datagram[..]).fill_checksum(&from, &to);
    v4(reply.server, [255; 4], [255; 6], 17, &datagram)
}

fn v6(
    from: &str,
    to: Ipv6Addr,
    destination: [u8; 6],
    protocol: u8,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let from: Ipv6Addr = from.parse()?;
    let mut frame = [&destination[..], &STATION, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([protocol, 255]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(payload);
    Ok(frame)
}

fn icmpv6(from: &str, to: &str, destination: [u8; 6], message: &[u8]) -> Result<Vec<u8>> {
    let (source, to): (Ipv6Addr, Ipv6Addr) = (from.parse()?, to.parse()?);
    let mut message = message.to_vec();
    Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&source, &to);
    v6(from, to, destination, 58, &message)
}

fn syn(from: &str, to: &str) -> Result<Vec<u8>> {
    let port = 40_000u16.to_be_bytes();
    let mut segment = [&port[..], &[0, 80, 0, 0, 0, 7, 0, 0, 0, 0, 0x60, 2, 0xff, 0xff]].concat();
    segment.extend([0, 0, 0, 0, 2, 4, 0x22, 0x38]);
    let ends: (IpAddress, IpAddress) =
        (from.parse::<IpAddr>()?.into(), to.parse::<IpAddr>()?.into());
    TcpPacket::new_unchecked(&mut segment[..]).fill_checksum(&ends.0, &ends.1);
    match ends.1 {
        IpAddress::Ipv4(to) => Ok(v4(SERVER, to.octets(), OURS, 6, &segment)),
        IpAddress::Ipv6(to) => v6(from, to, OURS, 6, &segment),
    }
}

/// A router advertisement with these options.
fn advertisement(options: &[Vec<u8>]) -> Result<Vec<u8>> {
    let head = [&[134, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8]].concat();
    let message = [head, options.concat()].concat();
    icmpv6(ROUTER, "ff02::1", [0x33, 0x33, 0, 0, 0, 1], &message)
}

fn prefix(flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend(valid.to_be_bytes());
    option.extend(preferred.to_be_bytes());
    option.extend([0, 0, 0, 0, 0xfd, 7]);
    option.extend([0; 14]);
    option
}

/// Sends router advertisements until the appliance shows an address of the prefix.
fn announce_until_shown(wire: &mut Wire, vm: &mut Vm, options: &[Vec<u8>]) -> Result<()> {
    for _ in 0..20 {
        wire.peer.send_frame(&advertisement(options)?)?;
        wire.listen(Duration::from_millis(500))?;
        if vm.run("show interfaces")?.text.contains(OWN) {
            return Ok(());
        }
    }
    Err(vm.error("no address of the prefix within 10 s"))
}

fn shown(vm: &mut Vm) -> Result<serde_json::Value> {
    let rows = vm.run("show interfaces --json")?.json()?;
    rows.get(0).cloned().context("no interface")
}

/// Number of occurrences of a text in the log.
fn logged(vm: &mut Vm, text: &str) -> Result<usize> {
    Ok(vm.run("show log")?.text.matches(text).count())
}

#[test]
fn dhcp_server_that_refuses_is_asked_seldom_and_warned_of_once() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    wire.serve(Duration::from_secs(12), &|kind| match kind {
        DISCOVER => Reply::grant(kind, &[MASK, GATEWAY, TEN_MINUTES]),
        _ => Some(Reply::new(NAK, &[])),
    })?;
    let first = wire.messages.first().context("no message")?.1;
    let soon = wire.messages.iter().filter(|(_, at)| *at < first + Duration::from_secs(10));
    ensure!((3..=10).contains(&soon.clone().count()), "{} messages in 10 s", soon.count());
    ensure!(logged(&mut vm, "(NAK)")? == 1, "{}", vm.run("show log")?.text);
    Ok(())
}

#[test]
fn one_refusal_of_a_dhcp_server_costs_two_seconds_at_most() -> Result<()> {
    let (mut wire, refused) = (Wire::new()?, std::cell::Cell::new(false));
    let mut vm = wire.boot("")?;
    wire.serve(Duration::from_secs(4), &|kind| match kind {
        REQUEST if !refused.replace(true) => Some(Reply::new(NAK, &[])),
        _ => Reply::grant(kind, &[MASK, GATEWAY, TEN_MINUTES]),
    })?;
    vm.run("show interfaces")?.contains("10.7.0.50/24")?;
    Ok(())
}

/// Two servers: the first one refuses what it has offered.
#[test]
fn refusing_dhcp_server_does_not_block_the_offer_of_another() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    wire.serve_all(Duration::from_secs(4), &|heard| match (heard.kind, heard.chosen) {
        (DISCOVER, _) => {
            let options = [MASK, GATEWAY, TEN_MINUTES];
            vec![Reply::new(OFFER, &options), Reply::of_other(OFFER, &options)]
        }
        (REQUEST, Some(SERVER)) => vec![Reply::new(NAK, &[])],
        (REQUEST, Some(OTHER)) => vec![Reply::of_other(ACK, &[MASK, GATEWAY, TEN_MINUTES])],
        _ => Vec::new(),
    })?;
    vm.run("show interfaces")?.contains("10.7.0.60/24")?.lacks("10.7.0.50")?;
    Ok(())
}

/// A second server answers each message with a storm of refusals, before the server that grants the lease. The client
/// takes the lease, and confirms it after the cable was out.
#[test]
fn storm_of_refusals_of_another_dhcp_server_costs_no_lease() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    let both = |heard: &Heard| {
        let mut replies: Vec<Reply> = (0..200).map(|_| Reply::of_other(NAK, &[])).collect();
        replies.extend(Reply::grant(heard.kind, &[MASK, GATEWAY, TEN_MINUTES]));
        replies
    };
    wire.serve_all(Duration::from_secs(2), &both)?;
    vm.run("show interfaces")?.contains("10.7.0.50/24")?;
    for up in [false, true] {
        vm.qmp.execute("set_link", json!({"name": "net0", "up": up}))?;
        wire.serve_all(Duration::from_millis(1500), &both)?;
    }
    vm.run("show interfaces")?.contains("10.7.0.50/24")?;
    let kinds: Vec<u8> = wire.messages.iter().map(|(kind, _)| *kind).collect();
    ensure!(kinds == [DISCOVER, REQUEST, REQUEST], "requested, and confirmed: {kinds:?}");
    ensure!(logged(&mut vm, "(NAK)")? <= 1, "{}", vm.run("show log")?.text);
    Ok(())
}

#[test]
fn mtu_of_a_lease_limits_segments_and_is_shown() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    let with = |kind| Reply::grant(kind, &[MASK, GATEWAY, TEN_MINUTES, (26, &[5, 120])]);
    wire.serve(Duration::from_secs(3), &with)?;
    let row = shown(&mut vm)?;
    ensure!(row["mtu"] == 1400 && row["mtu_of"] == "DHCP server 10.7.0.1", "{row:#}");
    ensure!(wire.mss("10.7.0.1", "10.7.0.50")? == 1360);
    Ok(())
}

#[test]
fn mtu_of_the_configuration_is_stronger_than_that_of_a_lease() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("isthmus.net.0.mtu=1500")?;
    let with = |kind| Reply::grant(kind, &[MASK, GATEWAY, TEN_MINUTES, (26, &[5, 120])]);
    wire.serve(Duration::from_secs(3), &with)?;
    let row = shown(&mut vm)?;
    ensure!(row["mtu"] == 1500 && row["mtu_of"] == "configuration", "{row:#}");
    ensure!(wire.mss("10.7.0.1", "10.7.0.50")? == 1460);
    Ok(())
}

#[test]
fn lease_without_a_mask_has_that_of_its_class() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    wire.serve(Duration::from_secs(3), &|kind| Reply::grant(kind, &[GATEWAY, TEN_MINUTES]))?;
    vm.run("show interfaces")?.contains("10.7.0.50/8")?;
    ensure!(logged(&mut vm, "without a mask")? == 1);
    Ok(())
}

#[test]
fn lease_with_an_impossible_mask_is_warned_of_once() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    let with = |kind| Reply::grant(kind, &[(1, &[255, 0, 255, 0]), GATEWAY, TEN_MINUTES]);
    wire.serve(Duration::from_secs(12), &with)?;
    vm.run("show interfaces")?.lacks("10.7.0.50")?;
    vm.run("show log")?.contains("10.7.0.1")?.contains("255.0.255.0")?;
    ensure!(logged(&mut vm, "255.0.255.0")? == 1);
    Ok(())
}

#[test]
fn options_in_the_file_field_and_several_routers_count() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    let routers = [10, 7, 0, 1, 10, 7, 0, 254];
    wire.serve(Duration::from_secs(3), &|kind| {
        let mut reply = Reply::grant(kind, &[(52, &[1])])?;
        reply.file = [option(51, &[0, 0, 2, 88]), option(1, &[255, 255, 255, 0])].concat();
        reply.file.extend(option(3, &routers));
        reply.file.push(255);
        Some(reply)
    })?;
    let row = shown(&mut vm)?;
    ensure!(row["addresses"].to_string().contains("10.7.0.50/24"), "{row:#}");
    ensure!(row["gateways"].to_string().contains("10.7.0.1\""), "{row:#}");
    Ok(())
}

#[test]
fn leased_address_in_use_is_declined() -> Result<()> {
    let mut wire = Wire::new()?;
    wire.squatted = true;
    let mut vm = wire.boot("")?;
    let with = |kind| Reply::grant(kind, &[MASK, GATEWAY, TEN_MINUTES]);
    wire.serve(Duration::from_secs(8), &with)?;
    let kinds: Vec<u8> = wire.messages.iter().map(|(kind, _)| *kind).collect();
    ensure!(kinds.ends_with(&[DISCOVER, REQUEST, DECLINE]), "{kinds:?}");
    vm.run("show interfaces")?.lacks("10.7.0.50/24")?;
    vm.run("show log")?.contains("duplicate address 10.7.0.50")?.contains("52:54:00:00:00:01")?;
    wire.squatted = false;
    wire.serve(Duration::from_secs(8), &with)?;
    vm.run("show interfaces")?.contains("10.7.0.50/24")?;
    Ok(())
}

#[test]
fn mtu_of_a_router_limits_ipv6_alone() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("isthmus.net.0.address=dhcp")?;
    let mtu = |mtu: u32| [&[5, 1, 0, 0][..], &mtu.to_be_bytes()].concat();
    announce_until_shown(&mut wire, &mut vm, &[prefix(0xc0, 9000, 9000), mtu(1280)])?;
    let row = shown(&mut vm)?;
    ensure!(row["mtu"] == 1500 && row["ipv6_mtu"] == 1280, "{row:#}");
    ensure!(wire.mss("fd07::9", OWN)? == 1220);
    for impossible in [0, 1279, 1501] {
        wire.peer.send_frame(&advertisement(&[mtu(impossible)])?)?;
    }
    ensure!(wire.mss("fd07::8", OWN)? == 1220);
    Ok(())
}

#[test]
fn name_servers_of_a_router_are_used_while_it_announces_them() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("isthmus.net.0.address=dhcp")?;
    let server: Ipv6Addr = "fd07::53".parse()?;
    let servers =
        |seconds: u32| [&[25, 3, 0, 0][..], &seconds.to_be_bytes(), &server.octets()].concat();
    announce_until_shown(&mut wire, &mut vm, &[prefix(0xc0, 9000, 9000), servers(9000)])?;
    let listed = vm.run("show dns --json")?.json()?["servers"].clone();
    ensure!(listed[0]["address"] == "[fd07::53]:53" && listed[0]["from"] == "router", "{listed:#}");
    wire.peer.send_frame(&advertisement(&[servers(0)])?)?;
    wire.listen(Duration::from_millis(500))?;
    let listed = vm.run("show dns --json")?.json()?["servers"].clone();
    ensure!(listed.as_array().is_some_and(Vec::is_empty), "{listed:#}");
    Ok(())
}

#[test]
fn prefix_off_link_is_reached_by_the_router() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    announce_until_shown(&mut wire, &mut vm, &[prefix(0x40, 9000, 9000)])?;
    // A neighbour solicitation from the router enters it into the neighbour table.
    let ours: Ipv6Addr = "fe80::5054:ff:fe12:3456".parse()?;
    let mut question = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &ours.octets(), &[1, 1]].concat();
    question.extend(STATION);
    wire.peer.send_frame(&icmpv6(ROUTER, &ours.to_string(), OURS, &question)?)?;
    wire.listen(Duration::from_millis(300))?;
    wire.frames.clear();
    vm.run("ping fd07::77 1")?;
    wire.listen(Duration::from_millis(500))?;
    let of = |kind: u8| {
        wire.frames
            .iter()
            .filter(move |f| f[12..14] == [0x86, 0xdd] && f[20] == 58 && f[54] == kind)
    };
    let target: Ipv6Addr = "fd07::77".parse()?;
    ensure!(
        !of(135).any(|frame| frame[62..78] == target.octets()),
        "the target was solicited on the link"
    );
    ensure!(of(128).any(|frame| frame[..6] == STATION), "no echo request to the router");
    Ok(())
}

#[test]
fn prefix_preferred_for_longer_than_valid_gives_no_address() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("")?;
    for _ in 0..4 {
        wire.peer.send_frame(&advertisement(&[prefix(0xc0, 100, 200)])?)?;
        wire.listen(Duration::from_secs(1))?;
    }
    vm.run("show interfaces")?.lacks(OWN)?;
    announce_until_shown(&mut wire, &mut vm, &[prefix(0xc0, 100, 100)])
}

#[test]
fn ipv6_address_of_another_station_is_not_used() -> Result<()> {
    let mut wire = Wire::new()?;
    let mut vm = wire.boot("isthmus.net.0.address=10.7.0.9/24,fd07::1/64")?;
    // The address was probed at boot without an answer. Setting another one probes again.
    wire.listen(Duration::from_secs(2))?;
    wire.frames.clear();
    vm.run("set net.0.address 10.7.0.9/24,fd07::2/64")?.lacks("error")?;
    let target: Ipv6Addr = "fd07::2".parse()?;
    let mut claim = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &target.octets(), &[2, 1]].concat();
    claim.extend(STATION);
    wire.peer.send_frame(&icmpv6("fd07::2", "ff02::1", [0x33, 0x33, 0, 0, 0, 1], &claim)?)?;
    wire.listen(Duration::from_secs(2))?;
    vm.run("show interfaces")?.contains("10.7.0.9/24")?.lacks("fd07::2/64")?;
    vm.run("show log")?.contains("duplicate address fd07::2")?.contains("52:54:00:00:00:01")?;
    Ok(())
}
