//! Goodput of a connection by packet loss and by window, in virtual time. It shows effects of changes of the requester
//! without noise.

use super::host::{Config, Host, MEMORY, PORT};
use super::world::PARAMETERS;
use drivers::hal::Instant;
use netsim::{Faults, Network, Place, Rng};
use roce::Limits;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use verbs::{
    Access, ConnectionEvent, ConnectionManager, MemoryVerbs, Payload, Provider, QpId, QpInit,
    QpType, RemoteAddress, SendOperation, SendRequest, Status,
};

const LOSS: [u32; 5] = [0, 1, 10, 50, 100];
const WINDOWS: [u32; 5] = [1, 4, 16, 64, 128];

/// WRITEs of 64 KiB, eight at a time.
const LENGTH: usize = 64 << 10;
const COUNT: u64 = 400;
const DEPTH: u64 = 8;

/// Results of a run.
struct Figures {
    time: Duration,
    /// Retransmitted packets.
    again: u64,
    timeouts: u64,
}

/// The table.
pub fn table() -> String {
    let mut text = String::from(
        "400 WRITEs of 64 KiB, 8 at a time, path MTU 1024, 10 Gbit/s, 10 us each way.\n\
         loss: packets lost of 1000, in both directions; window: most unacknowledged packets;\n\
         again: retransmitted packets, in percent of the needed packets; timeouts: expiries of the timer.\n\n\
         loss  window   MB/s  again %  timeouts\n",
    );
    for loss in LOSS {
        for window in WINDOWS {
            let Figures { time, again, timeouts } = run(loss, window);
            let rate = COUNT * LENGTH as u64 * 1000 / time.as_nanos() as u64;
            let needed = COUNT * LENGTH as u64 / 1024;
            let again = 100 * again / needed;
            writeln!(text, "{loss:4}  {window:6}  {rate:5}  {again:7}  {timeouts:8}")
                .expect("room");
        }
    }
    text
}

fn run(loss: u32, window: u32) -> Figures {
    netsim::with_memory(2 * MEMORY, |memory| {
        let mut rng = Rng::new(1);
        let mut network = Network::new(1);
        let limits =
            Limits { qps: 8, regions: 8, keys: 16, unacknowledged: window, ..Limits::default() };
        let configs = [1, 2].map(|n| Config {
            mac: [2, 0, 0, 0, 0, n],
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)),
            mtu: 1500,
            limits,
        });
        let mut hosts: Vec<Host> = (0..2)
            .map(|n| {
                network.add_node(&[configs[n].mac]);
                network.set_rate(Place { node: n, port: 0 }, 10_000_000_000);
                let mut host =
                    Host::new(configs[n], memory.slice(n * MEMORY, MEMORY).expect("inside"));
                host.boot(&configs, &mut rng);
                host
            })
            .collect();
        let (qp, to, from) = connect(&mut network, &mut hosts, &mut rng);
        network.set_faults(Faults { loss, ..Faults::default() });
        let start = network.now;
        let (mut posted, mut done) = (0, 0);
        let finished = network.run(&mut hosts, Duration::from_secs(600), |_, hosts| {
            let machine = hosts[0].up();
            while let Some(completion) = machine.roce.poll_cq(machine.cq) {
                assert_eq!((completion.id, completion.status), (done, Status::Success));
                done += 1;
            }
            while posted < COUNT && posted < done + DEPTH {
                let windows = [from];
                let payload = Payload::Windows(&windows);
                let operation = SendOperation::Write { payload, to, immediate: None };
                let request = SendRequest {
                    id: posted,
                    operation,
                    signaled: true,
                    solicited: false,
                    datagram: None,
                    carries: None,
                    ack_lazily: false,
                };
                machine.roce.post_send(qp, &request).expect("room");
                posted += 1;
            }
            done == COUNT
        });
        assert!(finished, "loss {loss}, window {window}: {done} of {COUNT}");
        let counters = hosts[0].up().roce.counters();
        let again = counters.sent.writes - COUNT * LENGTH as u64 / 1024;
        Figures { time: network.now.since(start), again, timeouts: counters.timeouts }
    })
}

/// Connects host 0 to host 1. Returns the queue pair of host 0, the writable memory, and memory to write from.
fn connect(
    network: &mut Network,
    hosts: &mut [Host],
    rng: &mut Rng,
) -> (QpId, RemoteAddress, drivers::hal::Window) {
    let mut qps = Vec::new();
    let mut windows = Vec::new();
    for host in hosts.iter_mut() {
        let machine = host.up();
        let init = QpInit {
            kind: QpType::Rc,
            pd: machine.pd,
            send_cq: machine.cq,
            recv_cq: machine.cq,
            max_send_wr: DEPTH as u32,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        qps.push(machine.roce.create_qp(&init, rng).expect("room"));
        windows.push(machine.arena.alloc(LENGTH, 4096).expect("room"));
    }
    let theirs = hosts[1].up();
    let access = Access::REMOTE_WRITE;
    let region = theirs.roce.register(theirs.pd, windows[1], access, rng).expect("room");
    let (from, to) = (hosts[0].config.ip, SocketAddr::new(hosts[1].config.ip, PORT));
    let roce = &mut hosts[0].up().roce;
    roce.connect(qps[0], from, to, &PARAMETERS, b"", Instant::from_nanos(1), rng)
        .expect("the neighbour is known");
    let up = network.run(hosts, Duration::from_secs(1), |network, hosts| {
        let (ours, theirs) = hosts.split_at_mut(1);
        let roce = &mut theirs[0].up().roce;
        if let Some(ConnectionEvent::Request { connection, .. }) = roce.poll_connection_event() {
            roce.accept(connection, qps[1], &PARAMETERS, b"", network.now).expect("fresh");
        }
        let event = ours[0].up().roce.poll_connection_event();
        matches!(event, Some(ConnectionEvent::Established { .. }))
    });
    assert!(up, "no connection on a good network");
    (qps[0], RemoteAddress { address: region.address, rkey: region.rkey }, windows[0])
}
