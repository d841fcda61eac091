//! Test of two machines that share memory, as two threads: messages arrive unchanged.

use crate::testing::{Pair, SMALL};
use crate::{Config, Ntrdma, State};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use drivers::ntb::{Ntb, SharedMemory, Side};
use netsim::Rng;
use std::sync::mpsc;
use std::{thread, time, vec};
use verbs::{
    Access, CompletedOperation, GidType, MemoryVerbs, PathMtu, Payload, Provider, ReadyToReceive,
    ReadyToSend, RecvRequest, Region, RemoteAddress, SendOperation, SendRequest, SendWith, Status,
};

const MESSAGES: usize = 300;
const LONGEST: usize = 2000;
const LENT: usize = 64 << 10;

/// Data that a machine needs of the other to connect.
struct Contact {
    number: u32,
    region: Region,
}

fn pattern(sender: u8, message: usize) -> vec::Vec<u8> {
    let len = message * 37 % LONGEST;
    (0..len).map(|at| (at * 7 + message) as u8 ^ sender).collect()
}

/// Sends all messages and writes all of them to the peer's memory, while it receives those of the peer.
fn machine(number: u8, memory: Window, tx: mpsc::Sender<Contact>, rx: mpsc::Receiver<Contact>) {
    let side = if number == 1 { Side::A } else { Side::B };
    let mut bridge = SharedMemory::new(memory, side).unwrap();
    let mut rng = Rng::new(number.into());
    // A thread may be descheduled for a while.
    let lost = Duration::from_secs(60);
    let config = Config { lost, frames: 0, ..Pair::config(number, SMALL) };
    let exposed = bridge.exposed();
    let mut ntrdma = Ntrdma::new(config, exposed, &mut rng).unwrap();
    let mut arena = Arena::new(exposed.slice(SMALL.size(), LENT).unwrap());
    let pd = ntrdma.alloc_pd().unwrap();
    let cq = ntrdma.create_cq(64).unwrap();
    let qp = ntrdma.create_qp(&Pair::init(pd, cq), &mut rng).unwrap();
    let mut window = || arena.alloc(LONGEST, 64).unwrap();
    let (send, receive, granted) = (window(), window(), window());
    let region = ntrdma.register(pd, granted, Access::REMOTE_WRITE, &mut rng).unwrap();
    let begun = time::Instant::now();
    let now = || Instant::from_nanos(1) + begun.elapsed();
    while ntrdma.link() != State::Up {
        ntrdma.handle_timeout(now());
        ntrdma.poll(&mut bridge, now());
    }
    tx.send(Contact { number: ntrdma.qp_number(qp).unwrap(), region }).unwrap();
    let peer = rx.recv().unwrap();
    let address = verbs::AddressVector {
        local: Pair::address(number),
        remote: Pair::address(3 - number),
        gid_type: GidType::RoceV2,
        remote_mac: [0; 6],
        source_port: 0,
        traffic_class: 0,
        hop_limit: 0,
    };
    let ready = ReadyToReceive {
        remote_qpn: peer.number,
        rq_psn: 0,
        path_mtu: PathMtu::Mtu4096,
        address,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 1,
    };
    ntrdma.ready_to_receive(qp, &ready).unwrap();
    let ready =
        ReadyToSend { sq_psn: 0, max_rd_atomic: 0, ack_timeout: 17, retry_count: 7, rnr_retry: 7 };
    ntrdma.ready_to_send(qp, &ready).unwrap();
    let post_receive = |ntrdma: &mut Ntrdma| {
        ntrdma.post_recv(qp, &RecvRequest { id: 0, into: &[receive] }).unwrap();
    };
    post_receive(&mut ntrdma);

    let (mut posted, mut done, mut taken) = (0, 0, 0);
    let mut bytes = [0; LONGEST];
    while done < MESSAGES || taken < MESSAGES {
        if posted == done && posted < MESSAGES {
            let message = pattern(number, posted);
            send.write(0, &message).unwrap();
            let parts = [send.slice(0, message.len()).unwrap()];
            let payload = || Payload::Windows(&parts);
            let to = RemoteAddress { address: peer.region.address, rkey: peer.region.rkey };
            for (signaled, operation) in [
                (false, SendOperation::Write { payload: payload(), to, immediate: None }),
                (true, SendOperation::Send { payload: payload(), with: SendWith::Nothing }),
            ] {
                let request = SendRequest {
                    id: 1,
                    operation,
                    signaled,
                    solicited: false,
                    datagram: None,
                    carries: None,
                    ack_lazily: false,
                };
                ntrdma.post_send(qp, &request).unwrap();
            }
            posted += 1;
        }
        ntrdma.handle_timeout(now());
        ntrdma.poll(&mut bridge, now());
        while let Some(completion) = ntrdma.poll_cq(cq) {
            assert_eq!(completion.status, Status::Success);
            match completion.operation {
                CompletedOperation::Recv { length, .. } => {
                    let expected = pattern(3 - number, taken);
                    assert_eq!(length as usize, expected.len());
                    receive.read(0, &mut bytes[..expected.len()]).unwrap();
                    assert!(bytes[..expected.len()] == expected, "message {taken} as it was sent");
                    // The WRITE before the message has arrived; the next one may have begun.
                    granted.read(0, &mut bytes).unwrap();
                    taken += 1;
                    post_receive(&mut ntrdma);
                }
                _ => done += 1,
            }
        }
        thread::yield_now();
    }
    // The last acknowledgements have to arrive.
    tx.send(Contact { number: 0, region }).unwrap();
    while rx.try_recv().is_err() {
        ntrdma.poll(&mut bridge, now());
        thread::yield_now();
    }
}

#[test]
fn two_threads_exchange_messages_over_shared_memory() {
    let half = (SMALL.size() + LENT + 8192).next_multiple_of(4096);
    let memory = Arena::on_heap(2 * half + 4096).alloc(2 * half, 4096).unwrap();
    let ((tell_a, hear_b), (tell_b, hear_a)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(move || machine(1, memory, tell_a, hear_a));
        scope.spawn(move || machine(2, memory, tell_b, hear_b));
    });
}
