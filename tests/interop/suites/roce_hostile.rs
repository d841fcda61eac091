//! Invalid and malicious packets against the image while a stock Linux client works. Each is refused as the
//! specification requires, and counted, and the stock client is not disturbed.

use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use interop_tests::crafter::{
    APPLIANCE, ARP_REQUEST, Answer, Crafter, OURS, PATH_MTU, Victim, arp,
};
use interop_tests::metrics::Metrics;
use interop_tests::overheard::{self, Overheard};
use interop_tests::packet::{Packet, opcode, reth, sign};
use interop_tests::{client_of, evidence, gateway_spec, storage, unmap};
use launch::guest::{Guest, Wire};
use launch::qemu::{Nic, Vm};
use perf_responders::{SESSION_MEMORY, rping};
use rand::RngExt;
use roce::wire::cm::{About, Brief, BriefKind, Message, REJ_PRIVATE_DATA, Rej, Req};
use roce::wire::ip_cm::{self, IpCm};
use verbs::RejectReason;

const NAK_INVALID_REQUEST: Answer = Answer::Nak(0x61);
const NAK_REMOTE_ACCESS: Answer = Answer::Nak(0x62);
/// The appliance on the client's network.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The client.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The crafter on the client's network.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
/// MAC addresses on the client's network: the crafter's, and the appliance's.
const NEAR_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 8], [0x52, 0x54, 0, 0x12, 0x34, 1]];

/// The appliance between a stock client on one network and a crafter on the other.
struct Site {
    gateway: Vm,
    client: Guest,
    crafter: Crafter,
    /// The appliance's end of the client's network, to which the crafter can send, but from which it does not receive.
    near: PathBuf,
    wire: Wire,
}

impl Site {
    fn boot() -> Result<Site> {
        let crafter = Crafter::new(1)?;
        let wire = Wire::new()?;
        let (first, second) = wire.datagrams();
        let Nic::Dgram { ours: near, .. } = first.clone() else { bail!("no datagrams") };
        let words = "isthmus.roce.services=true isthmus.net.1.address=10.0.1.1/24";
        let spec = gateway_spec(1500, words)?.nic(first).nic(crafter.nic()).first_mac(1);
        let mut gateway = spec.start()?;
        gateway.wait_ready()?;
        let client = client_of(1500, |spec| spec.nic(second).first_mac(0x20))?;
        Ok(Site { gateway, client, crafter, near, wire })
    }

    /// Sends a packet to the appliance on the client's network.
    fn send_near(&self, packet: &Packet) -> Result<()> {
        // An ARP request enters the sender into the appliance's neighbour table.
        let request = arp(ARP_REQUEST, (NEAR_MACS[0], NEAR), ([0; 6], SERVER));
        let frame = packet.frame(NEAR_MACS[0], NEAR_MACS[1], SERVER);
        let socket = UnixDatagram::unbound()?;
        socket.send_to(&request, &self.near)?;
        socket.send_to(&frame, &self.near)?;
        Ok(())
    }

    /// Runs `scenario` while a stock client works.
    fn run_scenario(scenario: impl FnOnce(&mut Site) -> Result<()>) -> Result<()> {
        let mut site = Site::boot()?;
        site.begin_work()?;
        let result = scenario(&mut site).and_then(|()| site.end_work());
        result.with_context(|| evidence(&mut site.gateway, &mut site.client))
    }

    /// Starts fio on a stock client's volume, with one request at a time. With more, rdma_rxe breaks its own queue pair
    /// when it retransmits, as it does when a busy host delays the appliance.
    fn begin_work(&mut self) -> Result<()> {
        storage::map_ram0(&mut self.client)?;
        let fio = "fio --name=work --filename=/dev/rnbd0 --direct=1 --ioengine=libaio --thread \
                   --rw=randrw --bsrange=512-65536 --size=8m --iodepth=1 --verify=crc32c \
                   --verify_backlog=64 --verify_fatal=1 --loops=1000 --rate_iops=50";
        self.client.sh(&format!(
            "{{ {fio} >/tmp/fio 2>&1; echo $? >/tmp/fio.status; }} & echo $! >/tmp/fio.pid"
        ))?;
        self.works_on()
    }

    /// Waits until the stock client has completed some more writes.
    fn works_on(&mut self) -> Result<()> {
        let guest = &mut self.client;
        let writes = "set -- $(cat /sys/block/rnbd0/stat)";
        guest.sh(&format!("{writes}; echo $5 >/tmp/writes"))?;
        let more = format!("{writes}; [ $5 -ge $(($(cat /tmp/writes) + 20)) ]");
        guest.wait_until(&more, Duration::from_secs(60)).context("the stock client does not work")
    }

    /// Checks that the stock client still works and had no error, and ends its work.
    fn end_work(&mut self) -> Result<()> {
        self.works_on()?;
        let guest = &mut self.client;
        let wrong = "the work of the stock client was disturbed";
        guest.sh("! [ -e /tmp/fio.status ] || { cat /tmp/fio; false; }").context(wrong)?;
        guest
            .sh("[ \"$(cat /sys/class/rtrs-client/s1/paths/*/stats/reconnects)\" = '0 0' ]")
            .context(wrong)?;
        guest.sh("killall -INT fio; while killall -0 fio 2>/dev/null; do sleep 0.2; done")?;
        guest.sh("! grep -E 'verify: bad|error=|err= *[1-9]' /tmp/fio").context(wrong)?;
        unmap(guest, 0)
    }
}

/// Name, expected answer, and packet of an attack. The packet ends the victim's connection.
type Case = (&'static str, Answer, fn(&Crafter, &Victim) -> Packet);

const WRONG: &[Case] = &[
    ("a WRITE with a wrong key", NAK_REMOTE_ACCESS, |crafter, v| {
        crafter.write(&v.link, v.address, v.rkey ^ 1, b"harm")
    }),
    ("a WRITE with key 0", NAK_REMOTE_ACCESS, |crafter, v| {
        crafter.write(&v.link, v.address, 0, b"harm")
    }),
    ("a WRITE before the beginning", NAK_REMOTE_ACCESS, |crafter, v| {
        crafter.write(&v.link, v.address.wrapping_sub(4), v.rkey, b"harmharm")
    }),
    ("a WRITE past the end", NAK_REMOTE_ACCESS, |crafter, v| {
        crafter.write(&v.link, v.address + SESSION_MEMORY as u64 - 4, v.rkey, b"harmharm")
    }),
    ("a WRITE around the end of the address space", NAK_REMOTE_ACCESS, |crafter, v| {
        crafter.write(&v.link, u64::MAX - 3, v.rkey, b"harmharm")
    }),
    ("a READ past the end", NAK_REMOTE_ACCESS, |crafter, v| {
        crafter.read(&v.link, v.address + 4, v.rkey, SESSION_MEMORY as u32)
    }),
    ("a READ with a wrong key", NAK_REMOTE_ACCESS, |crafter, v| {
        crafter.read(&v.link, v.address, v.rkey.wrapping_add(1), 64)
    }),
    ("an atomic that is not granted", NAK_REMOTE_ACCESS, |crafter, v| {
        let head = [&v.address.to_be_bytes()[..], &v.rkey.to_be_bytes()].concat();
        crafter.request(&v.link, opcode::FETCH_ADD, [&head[..], &[0; 16]].concat())
    }),
    ("a WRITE's middle without its first", NAK_INVALID_REQUEST, |crafter, v| {
        crafter.request(&v.link, opcode::WRITE_MIDDLE, vec![0; PATH_MTU])
    }),
    ("a WRITE's last without its first", NAK_INVALID_REQUEST, |crafter, v| {
        crafter.request(&v.link, opcode::WRITE_LAST, vec![0; 4])
    }),
    ("a SEND's middle without its first", NAK_INVALID_REQUEST, |crafter, v| {
        crafter.request(&v.link, opcode::SEND_MIDDLE, vec![0; PATH_MTU])
    }),
    ("a WRITE of 4 GiB", NAK_INVALID_REQUEST, |crafter, v| {
        let head = reth(v.address, v.rkey, u32::MAX);
        let body = [&head[..], &[0; PATH_MTU]].concat();
        crafter.request(&v.link, opcode::WRITE_FIRST, body)
    }),
    ("a WRITE that carries more than it says", NAK_INVALID_REQUEST, |crafter, v| {
        let head = reth(v.address, v.rkey, 4);
        crafter.request(&v.link, opcode::WRITE_ONLY, [&head[..], b"harmharm"].concat())
    }),
    ("a WRITE that carries less than it says", NAK_INVALID_REQUEST, |crafter, v| {
        let head = reth(v.address, v.rkey, 12);
        crafter.request(&v.link, opcode::WRITE_ONLY, [&head[..], b"harmharm"].concat())
    }),
    ("a packet longer than the path MTU", NAK_INVALID_REQUEST, |crafter, v| {
        crafter.write(&v.link, v.address, v.rkey, &[0; PATH_MTU + 4])
    }),
    ("a first packet shorter than the path MTU", NAK_INVALID_REQUEST, |crafter, v| {
        let head = reth(v.address, v.rkey, 2 * PATH_MTU as u32);
        crafter.request(&v.link, opcode::WRITE_FIRST, [&head[..], &[0; 64]].concat())
    }),
];

#[test]
fn requests_without_permission_are_refused() -> Result<()> {
    Site::run_scenario(|site| {
        let before = Metrics::read(&mut site.client)?;
        let crafter = &mut site.crafter;
        for (name, expected, packet) in WRONG {
            let mut victim = crafter.victim().context(*name)?;
            // A permitted WRITE succeeds.
            let good = crafter.write(&victim.link, victim.address, victim.rkey, b"fine");
            ensure!(
                crafter.try_packet(&victim.link, &good)? == Answer::Ack,
                "{name}: a good WRITE failed"
            );
            victim.link.psn += 1;
            let packet = packet(crafter, &victim);
            let answer = crafter.try_packet(&victim.link, &packet).context(*name)?;
            ensure!(answer == *expected, "{name}: {answer:?}, not {expected:?}");
            // After a NAK the queue pair accepts no further requests.
            let good = Packet { psn: good.psn + 2, ..good };
            let answer = crafter.try_packet(&victim.link, &good)?;
            ensure!(answer == Answer::Silence, "{name}: afterwards {answer:?}");
            crafter.leave(&victim).context(*name)?;
        }
        // A key of another protection domain, which exists at first, and is gone then.
        for gone in [false, true] {
            let (one, other) = (crafter.victim()?, crafter.victim()?);
            if gone {
                crafter.leave(&other)?;
            }
            let packet = crafter.write(&one.link, other.address, other.rkey, b"harm");
            let answer = crafter.try_packet(&one.link, &packet)?;
            ensure!(
                answer == NAK_REMOTE_ACCESS,
                "the key of another domain (gone: {gone}): {answer:?}"
            );
        }
        let after = Metrics::read(&mut site.client)?;
        let naks =
            |reason: &str| format!("roce_naks_total{{direction=\"transmit\",reason=\"{reason}\"}}");
        let expected = |answer: Answer| WRONG.iter().filter(|case| case.1 == answer).count() as f64;
        after.grew(&before, &naks("remote_access"), expected(NAK_REMOTE_ACCESS) + 2.0)?;
        after.grew(&before, &naks("invalid_request"), expected(NAK_INVALID_REQUEST))?;
        Ok(())
    })
}

#[test]
fn packets_of_no_connection_are_dropped() -> Result<()> {
    Site::run_scenario(|site| {
        let crafter = &mut site.crafter;
        let victim = crafter.victim()?;
        let link = victim.link;
        let good = crafter.write(&link, victim.address, victim.rkey, b"harm");
        let dropped = |reason: &str| format!("roce_dropped_total{{reason=\"{reason}\"}}");
        let with_frame = |change: fn(&mut Vec<u8>)| {
            let mut frame = crafter.frame(&good);
            change(&mut frame);
            frame
        };
        let other_host = std::net::Ipv4Addr::new(10, 0, 1, 77);
        let ack = Packet { body: vec![0x1f, 0, 0, 1], opcode: opcode::ACKNOWLEDGE, ..good.clone() };
        let nothing = Packet { body: Vec::new(), ..good.clone() };
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("icrc", with_frame(|frame| *frame.last_mut().expect("it has bytes") ^= 1)),
            ("icrc", with_frame(|frame| frame[60] ^= 0x10)),
            ("wrong_peer", crafter.frame(&Packet { source: other_host, ..good.clone() })),
            ("wrong_key", crafter.frame(&Packet { pkey: 0x1234, ..good.clone() })),
            ("unknown_qp", crafter.frame(&Packet { qpn: link.theirs ^ 0x80_0000, ..good.clone() })),
            ("malformed", crafter.frame(&Packet { opcode: 0x1f, ..good.clone() })),
            ("malformed", crafter.frame(&nothing)),
            (
                "malformed",
                with_frame(|frame| {
                    frame[43] |= 0x0f; // an undefined transport version
                    sign(frame);
                }),
            ),
            (
                "wrong_state",
                crafter.frame(&Packet { opcode: opcode::UD_SEND_ONLY, ..good.clone() }),
            ),
            ("not_ours", with_frame(|frame| frame[5] ^= 0x40)),
            ("unexpected_answer", crafter.frame(&ack)),
        ];
        for (reason, frame) in &cases {
            let before = Metrics::read(&mut site.client)?;
            crafter.send_frame(frame)?;
            ensure!(crafter.answer(&link)? == Answer::Silence, "{reason}: the packet was answered");
            Metrics::read(&mut site.client)?.grew(&before, &dropped(reason), 1.0)?;
        }
        // Wrong lengths: truncated at any byte, and with bytes appended.
        let frame = crafter.frame(&good);
        for length in 14..frame.len() {
            crafter.send_frame(&frame[..length])?;
        }
        crafter.send_frame(&[&frame[..], &[0; 400]].concat())?;
        crafter.discard_received()?;
        // A PSN gap is NAKed once.
        let victim = crafter.victim()?;
        let good = crafter.write(&victim.link, victim.address, victim.rkey, b"fine");
        let ahead = Packet { psn: good.psn + 5, ..good.clone() };
        ensure!(
            crafter.try_packet(&victim.link, &ahead)? == Answer::Nak(0x60),
            "a gap was not NAKed"
        );
        ensure!(
            crafter.try_packet(&victim.link, &ahead)? == Answer::Silence,
            "a gap was NAKed twice"
        );
        // The queue pair still works.
        ensure!(crafter.try_packet(&victim.link, &good)? == Answer::Ack, "a good WRITE failed");
        Ok(())
    })
}

#[test]
fn garbage_for_the_connection_manager_does_no_harm() -> Result<()> {
    Site::run_scenario(|site| {
        let before = Metrics::read(&mut site.client)?;
        let crafter = &mut site.crafter;
        for turn in 0..3000 {
            let port = [rping::PORT, 18515, 1234, 9][turn % 4];
            let (req, _) = crafter.req(port);
            let mut packet = crafter.mad(turn as u64, &Message::Req(req));
            let deth = 8;
            match turn % 3 {
                // Random bytes from one place on; one wrong bit; another attribute.
                0 => {
                    let from = crafter.rng().random_range(deth..packet.body.len());
                    crafter.rng().fill(&mut packet.body[from..]);
                }
                1 => {
                    let at = crafter.rng().random_range(deth..packet.body.len());
                    packet.body[at] ^= 1 << crafter.rng().random_range(0..8);
                }
                _ => packet.body[deth + 17] = crafter.rng().random(),
            }
            if turn % 50 == 0 {
                let length = crafter.rng().random_range(0..packet.body.len());
                packet.body.truncate(length);
            }
            crafter.send(&packet)?;
            // Slow, because a flood would only starve the working machine on the same host.
            std::thread::sleep(Duration::from_millis(2));
            if turn % 100 == 0 {
                crafter.discard_received()?;
            }
        }
        // The crafter ignores the replies. A client on another network can connect once the half-open
        // connections have timed out.
        let rping = "timeout 80 rping -c -a 10.0.0.1 -C 3 -S 64";
        site.client.wait_until(rping, Duration::from_secs(170))?;
        let after = Metrics::read(&mut site.client)?;
        let received = "roce_packets_total{direction=\"receive\",kind=\"connection_manager\"}";
        after.grew(&before, received, 2500.0)?;
        site.gateway.run("show log")?.lacks("panic")?;
        Ok(())
    })
}

/// An attacker knows all identifiers of a stock client's connections, and uses them from other addresses: on the
/// client's network and on another, with its own addresses and the client's in the messages.
#[test]
fn spoofed_connection_messages_are_refused() -> Result<()> {
    let mut site = Site::boot()?;
    let capture = site.wire.path("capture");
    site.client.capture(0, &capture)?;
    site.begin_work()?;
    site.client.end_capture(0)?;
    let result = spoof(&mut site, &overheard::connections(&capture)?);
    let result = result.and_then(|()| site.end_work());
    result.with_context(|| evidence(&mut site.gateway, &mut site.client))
}

fn spoof(site: &mut Site, connections: &[Overheard]) -> Result<()> {
    ensure!(connections.len() >= 2, "a session of {} connections", connections.len());
    let listed = site.gateway.run("session list csv")?;
    listed.contains("s1,connected,1,1,")?;
    let refusals = "refused_total{what=\"rdma_connection\",reason=\"wrong_address\"}";
    let dropped = "roce_dropped_total{reason=\"wrong_peer\"}";
    let before = Metrics::read(&mut site.client)?;
    ensure!(before.get(refusals).is_err(), "refused before any spoofed request");
    // Requests with the client's address in the GID, in the private data, and in both; and the client's own REQ.
    let mut spoofed = 0;
    for one in connections {
        for (gid, private) in [(CLIENT, OURS), (OURS, CLIENT), (CLIENT, CLIENT)] {
            let req = claimed(one.req, (gid, private), APPLIANCE);
            let answer = site.crafter.ask(&req)?.map(|rep| rep.local_id);
            ensure!(answer == Err(RejectReason::INVALID_GID.0), "{gid}, {private}: {answer:x?}");
            let req = claimed(one.req, (if gid == OURS { NEAR } else { gid }, private), SERVER);
            let packet = site.crafter.mad(spoofed, &Message::Req(req));
            site.send_near(&Packet { source: NEAR, ..packet })?;
            spoofed += 2;
        }
        let answer = site.crafter.ask(&one.req)?.map(|rep| rep.local_id);
        ensure!(answer == Err(RejectReason::INVALID_GID.0), "the repeated REQ: {answer:x?}");
        spoofed += 1;
    }
    // Requests from the crafter's own address with the GUID and QPNs of the client end none of the client's
    // connections.
    for port in [1234, rping::PORT] {
        for one in connections {
            let (ours, _) = site.crafter.req(port);
            let (local_id, ca_guid) = (one.req.local_id ^ u32::from(port), one.req.ca_guid);
            let req = Req { local_id, ca_guid, qpn: one.req.qpn, ..ours };
            match (port, site.crafter.ask(&req)?) {
                // The storage server rejects the request, which has no RTRS data.
                (1234, Err(reason)) if reason == RejectReason::CONSUMER.0 => (),
                (rping::PORT, Ok(rep)) => {
                    let (private_data, reason) = ([0; REJ_PRIVATE_DATA], RejectReason::CONSUMER.0);
                    let (local_id, remote_id) = (req.local_id, rep.local_id);
                    let rej = Rej { local_id, remote_id, about: About::Rep, reason, private_data };
                    site.crafter.send_mad(2, &Message::Rej(rej))?;
                }
                (_, answer) => bail!("port {port}: {answer:x?}"),
            }
        }
    }
    // Messages that would end or change a connection, with correct identifiers.
    let mut foreign = 0;
    for one in connections {
        for message in messages_about(one) {
            let mad = site.crafter.mad(3, &message);
            site.crafter.send(&mad)?;
            site.crafter.send(&Packet { source: CLIENT, ..mad.clone() })?;
            site.send_near(&Packet { source: NEAR, ..mad })?;
            foreign += 3;
        }
    }
    site.crafter.discard_received()?;
    let after = Metrics::read(&mut site.client)?;
    // The appliance has no route to the client's address through the crafter's interface.
    let lost = "roce_dropped_total{reason=\"no_way_back\"}";
    let more = |what: &str| Ok::<_, anyhow::Error>(after.get(what)? - before.get(what)?);
    let (refused, unknown) = (after.get(refusals)?, more(dropped)? + more(lost)?);
    println!(
        "{spoofed} spoofed requests, {refused} refused; {foreign} foreign messages, {unknown} dropped"
    );
    ensure!(refused == spoofed as f64, "{spoofed} requests were spoofed, {refused} refused");
    ensure!(unknown == f64::from(foreign), "{foreign} foreign messages, {unknown} dropped");
    site.gateway.run("show refused")?.contains("wrong_address")?.contains("10.0.1.2")?;
    site.gateway.run("show refused")?.contains("10.0.0.9")?;
    let now = site.gateway.run("session list csv")?;
    now.contains("s1,connected,1,1,")?;
    ensure!(now.text.lines().count() == listed.text.lines().count(), "{}", now.text);
    Ok(())
}

/// A station with the crafter's IP address and another MAC address, while the crafter has a connection.
#[test]
fn station_with_another_hosts_address_gets_no_connection_and_ends_none() -> Result<()> {
    Site::run_scenario(|site| {
        let crafter = &mut site.crafter;
        let victim = crafter.victim()?;
        let before = Metrics::read(&mut site.client)?;
        let from_elsewhere = |mut frame: Vec<u8>| {
            frame[11] ^= 0x70;
            frame
        };
        // A connection request, with a new QPN and with the QPN of the existing connection.
        let (req, _) = crafter.req(rping::PORT);
        for req in [req, Req { qpn: victim.link.ours, local_id: req.local_id ^ 1, ..req }] {
            let mad = crafter.mad(1, &Message::Req(req));
            crafter.send_frame(&from_elsewhere(crafter.frame(&mad)))?;
            ensure!(crafter.answer(&victim.link)? == Answer::Silence, "the request was answered");
        }
        // A packet of the existing connection.
        let write = crafter.write(&victim.link, victim.address, victim.rkey, b"harm");
        crafter.send_frame(&from_elsewhere(crafter.frame(&write)))?;
        ensure!(crafter.answer(&victim.link)? == Answer::Silence, "the WRITE was answered");
        let after = Metrics::read(&mut site.client)?;
        after.grew(&before, "roce_dropped_total{reason=\"wrong_peer\"}", 3.0)?;
        site.gateway.run("show refused")?.contains("wrong_mac")?.contains("02:00:00:00:00:79")?;
        // The correct source MAC address can be forged, so a REQ alone does not end the connection: the sender must
        // also answer the appliance's reply.
        let stale = Req { qpn: victim.link.ours, local_id: req.local_id ^ 2, ..req };
        crafter.send_mad(2, &Message::Req(stale))?;
        let good = crafter.write(&victim.link, victim.address, victim.rkey, b"fine");
        ensure!(
            crafter.try_packet(&victim.link, &good)? == Answer::Ack,
            "the connection has ended"
        );
        Ok(())
    })
}

/// A request for address `to` with these source addresses in the GID and in the private data.
fn claimed(req: Req, (gid, private): (Ipv4Addr, Ipv4Addr), to: Ipv4Addr) -> Req {
    let [local_gid, remote_gid] = [gid, to].map(|ip| ip.to_ipv6_mapped().octets());
    let mut req = Req { local_gid, remote_gid, ..req };
    let header = IpCm { source_port: 40_000, source: private.into(), destination: to.into() };
    if let Some(place) = req.private_data.first_chunk_mut::<{ ip_cm::LEN }>() {
        header.emit(place);
    }
    req
}

/// All messages about an established connection that its client may send.
fn messages_about(one: &Overheard) -> Vec<Message> {
    let (local_id, remote_id) = (one.req.local_id, one.rep.local_id);
    let dreq = BriefKind::Dreq { remote_qpn: one.rep.qpn };
    let mra = BriefKind::Mra { about: About::Rep, service_timeout: 31 };
    let kinds = [BriefKind::Rtu, dreq, BriefKind::Drep, mra];
    let briefs = kinds.map(|kind| Message::Brief(Brief { local_id, remote_id, kind }));
    let (about, private_data) = (About::Other, [0; REJ_PRIVATE_DATA]);
    let rej = Message::Rej(Rej { local_id, remote_id, about, reason: 28, private_data });
    let rep = Message::Rep(roce::wire::cm::Rep { local_id, remote_id, ..one.rep });
    [&briefs[..], &[rej, rep]].concat()
}
