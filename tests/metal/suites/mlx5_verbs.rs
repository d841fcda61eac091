//! The verbs provider of ConnectX on two models joined by a wire: doorbells, interrupts, and recovery from failures of
//! the card. `tests/conformance` tests the behaviour that verbs promise. The model's behaviour on errors is a guess, so
//! these cases show that the provider copes with the model, not with a card.

mod errors;
mod moderation;
mod promised_keys;
mod slow;

use connectx::ConnectX;
use drivers::hal::{Notice, Port, Window};
use metal::Metal;
use metal::connectx::{Node, Pair, open};
use models::mlx5::{Config, Fault, Mlx5};
use netsim::Rng;
use rand_core::Rng as _;
use std::time::Duration;
use verbs::*;

const MILLISECOND: Duration = Duration::from_millis(1);
/// Two nodes with a domain, a completion queue, and a queue pair each.
struct Bench {
    pair: Pair,
    pd: [PdId; 2],
    cq: [CqId; 2],
    qp: [QpId; 2],
    rng: Rng,
}

fn request(id: u64, operation: SendOperation<'_>) -> SendRequest<'_> {
    SendRequest {
        id,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    }
}

fn granted(region: &Region) -> RemoteAddress {
    RemoteAddress { address: region.address, rkey: region.rkey }
}

impl Bench {
    fn new(v6: bool) -> Self {
        let mut pair = Pair::new(5, v6);
        let mut rng = Rng::new(6);
        let nodes = &mut pair.nodes;
        let pd = [0, 1].map(|n| nodes[n].device.alloc_pd().unwrap());
        let cq = [0, 1].map(|n| nodes[n].device.create_cq(256).unwrap());
        let qp = [0, 1].map(|n| made(&mut nodes[n].device, pd[n], cq[n], &mut rng));
        let mut bench = Bench { pair, pd, cq, qp, rng };
        bench.join();
        bench
    }

    fn device(&mut self, n: usize) -> &mut ConnectX {
        &mut self.pair.nodes[n].device
    }

    fn node(&self, n: usize) -> &Node {
        &self.pair.nodes[n]
    }

    /// Connects the queue pairs, with an ACK timeout of 67 ms.
    fn join(&mut self) {
        for n in 0..2 {
            let (qp, other, address) = (self.qp[n], self.qp[1 - n], self.pair.way(n));
            let remote_qpn = self.device(1 - n).qp_number(other).unwrap();
            let (path_mtu, most) = (PathMtu::Mtu1024, 4);
            let peer = ReadyToReceive {
                remote_qpn,
                rq_psn: 9,
                path_mtu,
                address,
                max_dest_rd_atomic: most,
                min_rnr_timer: 1,
            };
            self.device(n).ready_to_receive(qp, &peer).unwrap();
            let to = ReadyToSend {
                sq_psn: 9,
                max_rd_atomic: most,
                ack_timeout: 14,
                retry_count: 3,
                rnr_retry: 7,
            };
            // A queue pair whose first transition was refused is in the error state by now.
            let sends = self.device(n).ready_to_send(qp, &to);
            let state = self.device(n).qp_state(qp);
            assert!(sends.is_ok() || state == Ok(QpState::Error), "{sends:?}");
        }
        self.pair.run(MILLISECOND);
    }

    fn again(&mut self) {
        for n in 0..2 {
            let (pd, cq) = (self.pd[n], self.cq[n]);
            self.qp[n] = made(&mut self.pair.nodes[n].device, pd, cq, &mut self.rng);
        }
        self.join();
    }

    fn grant(&mut self, n: usize, memory: Window, access: Access) -> Region {
        let pd = self.pd[n];
        self.pair.nodes[n].device.register(pd, memory, access, &mut self.rng).unwrap()
    }

    fn post(&mut self, n: usize, id: u64, operation: SendOperation<'_>) {
        let qp = self.qp[n];
        self.device(n).post_send(qp, &request(id, operation)).unwrap();
    }

    fn ends(&mut self, n: usize) -> Vec<(u64, Status)> {
        let cq = self.cq[n];
        let device = self.device(n);
        let all = std::iter::from_fn(|| device.poll_cq(cq));
        all.map(|completion| (completion.id, completion.status)).collect()
    }

    fn events(&mut self, n: usize) -> Vec<AsyncEvent> {
        let device = self.device(n);
        std::iter::from_fn(|| device.poll_event()).collect()
    }

    fn inject(&self, n: usize, fault: Fault) {
        self.node(n).machine.model(|card| card.inject(fault));
    }

    /// Checks that node 0 can write to node 1.
    fn works(&mut self) {
        let (from, memory) = (self.pair.memory(0, 3000), self.pair.memory(1, 3000));
        let mut bytes = [0; 3000];
        self.rng.fill_bytes(&mut bytes);
        from.write(0, &bytes).unwrap();
        let region = self.grant(1, memory, Access::REMOTE_WRITE);
        let payload = Payload::Windows(&[from]);
        let to = granted(&region);
        self.post(0, 77, SendOperation::Write { payload, to, immediate: None });
        self.pair.run(MILLISECOND);
        assert_eq!(self.ends(0), [(77, Status::Success)]);
        assert!(netsim::contents(&memory) == bytes);
        self.device(1).deregister(region.id).unwrap();
        self.pair.run(MILLISECOND);
    }
}

fn made(device: &mut ConnectX, pd: PdId, cq: CqId, rng: &mut Rng) -> QpId {
    let init = QpInit {
        kind: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline: 64,
    };
    device.create_qp(&init, rng).unwrap()
}

fn write(to: RemoteAddress) -> SendOperation<'static> {
    SendOperation::Write { payload: Payload::Inline(&[7]), to, immediate: None }
}

fn send() -> SendOperation<'static> {
    SendOperation::Send { payload: Payload::Inline(b"hello"), with: SendWith::Nothing }
}

#[test]
fn batch_rings_one_doorbell_and_reads_no_register() {
    for v6 in [false, true] {
        let mut bench = Bench::new(v6);
        let (memory, into) = (bench.pair.memory(1, 4096), bench.pair.memory(1, 64));
        let region = bench.grant(1, memory, Access::REMOTE_WRITE);
        bench.pair.run(MILLISECOND);
        let before = [0, 1].map(|n| bench.node(n).machine.accesses());
        let reads = [0, 1].map(|n| bench.node(n).machine.reads());
        for batch in 0..10 {
            for id in 0..20 {
                if id % 2 == 0 {
                    let qp = bench.qp[1];
                    bench.device(1).post_recv(qp, &RecvRequest { id, into: &[into] }).unwrap();
                }
                let operation = if id % 2 == 0 { send() } else { write(granted(&region)) };
                bench.post(0, id, operation);
            }
            bench.pair.run(MILLISECOND);
            let all: Vec<_> = (0..20).map(|id| (id, Status::Success)).collect();
            assert_eq!(bench.ends(0), all);
            assert_eq!(bench.ends(1).len(), 10);
            let written = bench.node(0).machine.accesses() - before[0];
            assert_eq!(written, batch + 1, "one register write for each batch");
            assert_eq!(bench.node(1).machine.accesses(), before[1], "none to receive");
        }
        assert_eq!([0, 1].map(|n| bench.node(n).machine.reads()), reads);
        assert_eq!(bench.pair.complaints(), [""; 0]);
    }
}

#[test]
fn unsignaled_requests_free_their_queue_entries() {
    let mut bench = Bench::new(false);
    let memory = bench.pair.memory(1, 64);
    let region = bench.grant(1, memory, Access::REMOTE_WRITE);
    let qp = bench.qp[0];
    for round in 0..2000u64 {
        let silent = SendRequest { signaled: false, ..request(round, write(granted(&region))) };
        bench.device(0).post_send(qp, &silent).unwrap();
        if round % 60 == 0 {
            bench.pair.run(MILLISECOND);
        }
    }
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(0), []);
    assert_eq!(bench.device(0).under_way().queue_pairs().count(), 0);
    bench.works();
    assert_eq!(bench.pair.complaints(), [""; 0]);
}

/// The memory may have another use as soon as `deregister` returns.
#[test]
fn deregistered_memory_is_inaccessible_when_the_call_returns() {
    let mut bench = Bench::new(false);
    let memory = bench.pair.memory(1, 64);
    memory.fill(1);
    let region = bench.grant(1, memory, Access::REMOTE_WRITE);
    bench.device(1).deregister(region.id).unwrap();
    let (accesses, now) = (bench.node(1).machine.accesses(), bench.pair.now());
    bench.device(1).poll(now);
    assert_eq!(bench.node(1).machine.accesses(), accesses, "the key was revoked before");
    bench.post(0, 1, write(granted(&region)));
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(0), [(1, Status::RemoteAccess)]);
    assert!(netsim::contents(&memory) == [1; 64]);
}

#[test]
fn interrupts_are_raised_only_when_armed() {
    let mut bench = Bench::new(false);
    let raised = |bench: &mut Bench| bench.device(1).port().counters().interrupts;
    for round in 0..8 {
        let qp = bench.qp[1];
        bench.device(1).post_recv(qp, &RecvRequest { id: round, into: &[] }).unwrap();
        let before = raised(&mut bench);
        let wanted = round % 2 == 0;
        if wanted {
            bench.device(1).arm();
            bench.device(1).port().set_interrupts(true);
        }
        let payload = Payload::Inline(&[]);
        bench.post(0, round, SendOperation::Send { payload, with: SendWith::Nothing });
        bench.pair.run(MILLISECOND);
        assert_eq!(raised(&mut bench) - before, u64::from(wanted), "{round}");
        bench.device(1).port().set_interrupts(false);
        assert_eq!(bench.ends(1), [(round, Status::Success)]);
        assert_eq!(bench.ends(0), [(round, Status::Success)]);
    }
    assert_eq!(bench.pair.complaints(), [""; 0]);
}

#[test]
fn lost_packets_are_retransmitted() {
    let mut bench = Bench::new(false);
    for n in [0, 1, 1, 0] {
        bench.inject(n, Fault::LosesPacket);
        let memory = bench.pair.memory(1, 64);
        let region = bench.grant(1, memory, Access::REMOTE_WRITE);
        bench.post(0, 1, write(granted(&region)));
        bench.pair.run(Duration::from_millis(200));
        assert_eq!(bench.ends(0), [(1, Status::Success)]);
    }
    bench.works();
}

#[test]
fn key_opens_only_its_region_until_it_is_revoked() {
    let mut bench = Bench::new(false);
    let memory = bench.pair.memory(1, 64);
    let region = bench.grant(1, memory, Access::REMOTE_WRITE);
    bench.post(0, 1, write(granted(&region)));
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(0), [(1, Status::Success)]);
    // Other values of the key's eight variable bits open no memory, nor do its neighbours in the pool.
    for wrong in [region.rkey ^ 1, region.rkey ^ 0x80, region.rkey ^ 0x100, region.rkey ^ 0x300] {
        let to = RemoteAddress { rkey: wrong, ..granted(&region) };
        bench.post(0, 2, write(to));
        bench.pair.run(MILLISECOND);
        assert_eq!(bench.ends(0), [(2, Status::RemoteAccess)]);
        assert_eq!(bench.events(0), [AsyncEvent::QpError(bench.qp[0])]);
        assert_eq!(bench.events(1), [AsyncEvent::QpError(bench.qp[1])]);
        bench.again();
    }
    // The revocation is in force when it completes. The card gets it at the end of the round.
    let by = KeyRequest { qp: bench.qp[1], id: 9, signaled: true };
    let change = bench.device(1).revoke_key_by(region.id, by).unwrap();
    assert_eq!(change, KeyChange::Posted);
    bench.post(0, 3, write(granted(&region)));
    let now = bench.pair.now();
    bench.device(0).poll(now);
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(1), [(9, Status::Success)]);
    let end = bench.ends(0);
    assert!(matches!(end[..], [(3, Status::Success | Status::RemoteAccess)]), "{end:?}");
    bench.again();
    bench.post(0, 4, write(granted(&region)));
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(0), [(4, Status::RemoteAccess)]);
    // The queue pair of a change must belong to the key's domain.
    bench.again();
    let pd = bench.device(1).alloc_pd().unwrap();
    let cq = bench.cq[1];
    let other = made(&mut bench.pair.nodes[1].device, pd, cq, &mut bench.rng);
    let by = KeyRequest { qp: other, id: 9, signaled: true };
    assert_eq!(bench.device(1).revoke_key_by(region.id, by), Err(VerbsError::WrongState));
    assert_eq!(bench.pair.complaints(), [""; 0]);
}

/// A key change takes effect even if its queue pair fails at it or before it.
#[test]
fn keys_change_even_if_their_queue_pair_fails() {
    for fails_before in [false, true] {
        let mut bench = Bench::new(false);
        let memory = bench.pair.memory(1, 64);
        let Bench { pair, pd, rng, .. } = &mut bench;
        let device = &mut pair.nodes[1].device;
        let made = device.register_chunks(pd[1], 2, 32, Some(memory), rng).unwrap();
        let before = device.chunk_key(made.id, 0).unwrap();
        bench.inject(1, Fault::RequestFails(0x04));
        let there = bench.pair.memory(0, 64);
        let region = bench.grant(0, there, Access::REMOTE_WRITE);
        if fails_before {
            bench.post(1, 1, write(granted(&region)));
        }
        let by = KeyRequest { qp: bench.qp[1], id: 9, signaled: true };
        let Bench { pair, rng, .. } = &mut bench;
        let change = pair.nodes[1].device.rotate_chunk_key(made.id, 0, by, rng).unwrap();
        assert_eq!(change, KeyChange::Posted);
        bench.pair.run(MILLISECOND);
        match fails_before {
            false => assert_eq!(bench.ends(1), [(9, Status::LocalProtection)]),
            true => {
                assert_eq!(bench.ends(1), [(1, Status::LocalProtection), (9, Status::Flushed)])
            }
        }
        assert_eq!(bench.events(1), [AsyncEvent::QpError(bench.qp[1])]);
        bench.again();
        let now = bench.device(1).chunk_key(made.id, 0).unwrap();
        assert_ne!(now, before);
        for (rkey, status) in [(now, Status::Success), (before, Status::RemoteAccess)] {
            let to = RemoteAddress { address: made.address, rkey };
            bench.post(0, 2, write(to));
            bench.pair.run(MILLISECOND);
            assert_eq!(bench.ends(0), [(2, status)]);
        }
        assert_eq!(bench.device(1).counters().completions_unknown, 0);
    }
}

#[test]
fn keys_are_drawn_from_many() {
    let mut bench = Bench::new(false);
    let memory = bench.pair.memory(1, 64);
    let region = bench.grant(1, memory, Access::REMOTE_WRITE);
    let mut numbers = std::collections::BTreeSet::new();
    let mut last = region.rkey;
    let mut followers = 0;
    for _ in 0..2000 {
        let Bench { pair, rng, .. } = &mut bench;
        let key = pair.nodes[1].device.rotate_key(region.id, rng).unwrap();
        followers += usize::from(key >> 8 == last >> 8);
        numbers.insert(key >> 8);
        last = key;
    }
    // Consecutive keys are rarely neighbours in the pool, and all keys of the pool are used.
    assert!(followers < 40, "{followers}");
    assert!(numbers.len() > 200, "{}", numbers.len());
    // A pool without spare keys refuses a registration.
    let mut regions = Vec::new();
    let refused = loop {
        let (pd, access) = (bench.pd[1], Access::REMOTE_WRITE);
        let Bench { pair, rng, .. } = &mut bench;
        match pair.nodes[1].device.register(pd, memory, access, rng) {
            Ok(region) => regions.push(region),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, VerbsError::NoRoom);
    for region in regions {
        bench.device(1).deregister(region.id).unwrap();
    }
    bench.pair.run(MILLISECOND);
    bench.works();
    assert_eq!(bench.pair.complaints(), [""; 0]);
}

/// Checks that a reset flushes and reports all requests, and that objects can be created again afterwards.
fn recovers(mut bench: Bench, words: &str) {
    let memory = bench.pair.memory(0, 4096);
    let region = bench.grant(0, memory, Access::REMOTE_WRITE);
    bench.events(0);
    let qp = bench.qp[0];
    for id in 0..4 {
        bench.device(0).post_recv(qp, &RecvRequest { id: 10 + id, into: &[] }).unwrap();
    }
    // The peer has posted no receive for these.
    bench.post(0, 1, send());
    bench.post(0, 2, send());
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(0), []);
    (words == "does not answer").then(|| bench.inject(0, Fault::AllOnes));
    (words == "reported a fatal error").then(|| bench.inject(0, Fault::Fatal(1)));
    bench.pair.run(Duration::from_secs(3));
    let mut ends = bench.ends(0);
    ends.sort_unstable_by_key(|(id, _)| *id);
    let expected = [1, 2, 10, 11, 12, 13].map(|id| (id, Status::Flushed));
    assert_eq!(ends, expected);
    assert_eq!(bench.device(0).qp_state(qp), Ok(QpState::Error));
    assert!(bench.device(0).failed_by_itself(qp));
    let events = bench.events(0);
    assert_eq!(events.iter().filter(|event| **event == AsyncEvent::QpError(qp)).count(), 1);
    assert_eq!(events.last(), Some(&AsyncEvent::PortActive(0)));
    let notices: Vec<_> = std::iter::from_fn(|| bench.device(0).port().notice()).collect();
    assert!(notices.iter().any(|notice| notice.text.contains(words)), "{notices:?}");
    // The peer's timers expire. The old queue pairs are destroyed, and new ones work.
    for n in 0..2 {
        let qp = bench.qp[n];
        bench.device(n).destroy_qp(qp).unwrap();
    }
    bench.again();
    bench.works();
    let Bench { pair, rng, .. } = &mut bench;
    let rkey = pair.nodes[0].device.rotate_key(region.id, rng).unwrap();
    let to = RemoteAddress { rkey, ..granted(&region) };
    bench.post(1, 5, write(to));
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(1).last(), Some(&(5, Status::Success)));
    bench.device(0).deregister(region.id).unwrap();
    let (qp, pd) = (bench.qp[0], bench.pd[0]);
    bench.device(0).destroy_qp(qp).unwrap();
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.device(0).dealloc_pd(pd), Ok(()));
}

#[test]
fn a_card_that_has_failed_comes_back() {
    recovers(Bench::new(false), "reported a fatal error");
}

#[test]
fn a_card_that_reads_as_all_ones_comes_back() {
    recovers(Bench::new(true), "does not answer");
}

/// A hung firmware does not block the loop: the card is reset, and objects can be created again.
#[test]
fn card_that_does_not_answer_a_synchronous_command_is_reset() {
    const ALLOC_PD: u16 = 0x800;
    let mut bench = Bench::new(false);
    bench.inject(0, Fault::NeverAnswers(ALLOC_PD));
    assert_eq!(bench.device(0).alloc_pd(), Err(VerbsError::NoRoom));
    assert_eq!(bench.device(0).port().counters().resets, 1);
    bench.pair.run(Duration::from_secs(3));
    let notices: Vec<_> = std::iter::from_fn(|| bench.device(0).port().notice()).collect();
    assert!(notices.iter().any(|notice| notice.text.contains("what RDMA asks")), "{notices:?}");
    for n in 0..2 {
        let qp = bench.qp[n];
        bench.device(n).destroy_qp(qp).unwrap();
    }
    bench.again();
    bench.works();
    let pd = bench.device(0).alloc_pd().unwrap();
    assert_eq!(bench.device(0).dealloc_pd(pd), Ok(()));
}

#[test]
fn state_transitions_may_be_slow() {
    let mut bench = Bench::new(false);
    for n in 0..2 {
        let (pd, cq) = (bench.pd[n], bench.cq[n]);
        bench.qp[n] = made(&mut bench.pair.nodes[n].device, pd, cq, &mut bench.rng);
        bench.inject(n, Fault::Late(3_000_000));
    }
    bench.join();
    let state = |bench: &mut Bench| {
        [0, 1].map(|n| {
            let qp = bench.qp[n];
            bench.device(n).qp_state(qp).unwrap()
        })
    };
    assert_eq!(state(&mut bench), [QpState::Init; 2]);
    // Both transitions are requested, so requests are accepted. They execute later.
    let qp = bench.qp[1];
    bench.device(1).post_recv(qp, &RecvRequest { id: 1, into: &[] }).unwrap();
    let payload = Payload::Inline(&[]);
    bench.post(0, 2, SendOperation::Send { payload, with: SendWith::Nothing });
    let before = bench.node(0).machine.accesses();
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.node(0).machine.accesses(), before, "no doorbell before ready-to-send");
    bench.pair.run(Duration::from_millis(20));
    assert_eq!(state(&mut bench), [QpState::Rts; 2]);
    assert_eq!(
        (bench.ends(0), bench.ends(1)),
        (vec![(2, Status::Success)], vec![(1, Status::Success)])
    );
    let qp = bench.qp[0];
    bench.device(0).fail_qp(qp).unwrap();
    bench.pair.run(MILLISECOND);
    assert_eq!(state(&mut bench), [QpState::Rts; 2]);
    bench.pair.run(Duration::from_millis(5));
    assert_eq!(state(&mut bench), [QpState::Error, QpState::Rts]);
    (0..2).for_each(|n| bench.node(n).machine.model(Mlx5::repair));
    bench.pair.run(Duration::from_millis(5));
    bench.again();
    bench.works();
    assert_eq!(bench.pair.complaints(), [""; 0]);
}

#[test]
fn a_command_that_is_refused_fails_its_queue_pair() {
    let mut bench = Bench::new(false);
    for opcode in [0x503, 0x504] {
        for n in 0..2 {
            let (pd, cq) = (bench.pd[n], bench.cq[n]);
            bench.qp[n] = made(&mut bench.pair.nodes[n].device, pd, cq, &mut bench.rng);
        }
        bench.inject(0, Fault::Fails(opcode, 3));
        bench.join();
        let qp = bench.qp[0];
        assert_eq!(bench.device(0).qp_state(qp), Ok(QpState::Error));
        assert!(bench.device(0).failed_by_itself(qp));
        assert_eq!(bench.events(0), [AsyncEvent::QpError(qp)]);
    }
    let (pd, cq) = (bench.pd[0], bench.cq[0]);
    bench.inject(0, Fault::Fails(0x500, 0xf));
    let init = QpInit {
        kind: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    let free = bench.pair.nodes[0].machine.model(|card| card.left());
    let Bench { pair, rng, .. } = &mut bench;
    assert_eq!(pair.nodes[0].device.create_qp(&init, rng), Err(VerbsError::NoRoom));
    assert_eq!(pair.nodes[0].machine.model(|card| card.left()), free);
    bench.again();
    bench.works();
}

#[test]
fn a_command_that_is_not_answered_has_the_card_reset() {
    let mut bench = Bench::new(false);
    let qp = bench.qp[0];
    bench.inject(0, Fault::NeverAnswers(0x507));
    bench.device(0).fail_qp(qp).unwrap();
    bench.pair.run(Duration::from_secs(50));
    assert_eq!(bench.device(0).qp_state(qp), Ok(QpState::Rts), "still waiting for the command");
    bench.pair.run(Duration::from_secs(20));
    assert_eq!(bench.device(0).qp_state(qp), Ok(QpState::Error));
    for n in 0..2 {
        let qp = bench.qp[n];
        bench.device(n).destroy_qp(qp).unwrap();
    }
    bench.again();
    bench.works();
}

#[test]
fn unusable_cards_are_distinguished() {
    let refused = |faults: &[Fault], words: &[&str]| {
        let mut machine = Metal::new(Mlx5::new(Config::default()), 32 << 20);
        machine.model(|card| faults.iter().for_each(|fault| card.inject(*fault)));
        let address = "10.0.0.1".parse().unwrap();
        let free = machine.arena_available();
        let why = open(&mut machine, &[address], &mut Rng::new(1)).err().expect("unusable");
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        assert_eq!(machine.arena_available(), free, "memory is freed");
    };
    refused(&[Fault::Lacks(0, 0x21d, 1)], &["roce", "enable RoCE"]);
    refused(&[Fault::Lacks(0, 0x23f, 1)], &["capability rc"]);
    refused(&[Fault::Lacks(4, 0xf0, 16)], &["roce_address_table_size"]);
    for opcode in [0x200, 0x400, 0x500, 0x502, 0x503, 0x504, 0x761] {
        // The port itself creates a key and two completion queues first.
        if !matches!(opcode, 0x200 | 0x400) {
            refused(&[Fault::Fails(opcode, 4)], &["no RDMA", "bad system state"]);
        }
    }
}

#[test]
fn addresses_are_added_and_removed() {
    let mut bench = Bench::new(false);
    let (old, new) = (bench.node(0).address, "10.0.0.77".parse().unwrap());
    let others: Vec<std::net::IpAddr> = (0..20).map(|n| [10, 0, 1, n].into()).collect();
    assert!(!bench.device(0).set_addresses(&others), "the card has 16");
    assert!(bench.device(0).set_addresses(&[old, new]));
    bench.pair.run(MILLISECOND);
    bench.works();
    bench.pair.nodes[0].address = new;
    bench.again();
    bench.works();
    assert!(bench.device(0).set_addresses(&[new]));
    bench.pair.run(MILLISECOND);
    bench.works();
    bench.pair.nodes[0].address = old;
    let (qp, address) = (bench.qp[0], bench.pair.way(0));
    bench.device(0).destroy_qp(qp).unwrap();
    let (pd, cq) = (bench.pd[0], bench.cq[0]);
    bench.qp[0] = made(&mut bench.pair.nodes[0].device, pd, cq, &mut bench.rng);
    let peer = ReadyToReceive {
        remote_qpn: 9,
        rq_psn: 9,
        path_mtu: PathMtu::Mtu1024,
        address,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
    };
    let qp = bench.qp[0];
    assert_eq!(bench.device(0).ready_to_receive(qp, &peer), Err(VerbsError::Invalid));
    assert_eq!(bench.pair.complaints(), [""; 0]);
}

#[test]
fn all_created_objects_are_destroyed() {
    let mut bench = Bench::new(false);
    let left = |bench: &Bench, kind: &str| {
        let all = bench.node(0).machine.model(|card| card.left());
        all.iter().find(|(name, _)| *name == kind).map_or(0, |(_, count)| *count)
    };
    let kinds: Vec<_> = bench.node(0).machine.model(|card| card.left());
    let arena = bench.pair.nodes[0].machine.arena_available();
    let before: Vec<usize> = kinds.iter().map(|(kind, _)| left(&bench, kind)).collect();
    for _ in 0..3 {
        let (pd, cq) = {
            let device = bench.device(0);
            (device.alloc_pd().unwrap(), device.create_cq(16).unwrap())
        };
        let memory = bench.pair.memory(0, 8192);
        let device = &mut bench.pair.nodes[0].device;
        let region = device.register(pd, memory, Access::REMOTE_READ, &mut bench.rng).unwrap();
        let chunks = device.register_chunks(pd, 4, 2048, Some(memory), &mut bench.rng).unwrap();
        let qp = made(device, pd, cq, &mut bench.rng);
        device.destroy_qp(qp).unwrap();
        device.deregister(region.id).unwrap();
        device.deregister(chunks.id).unwrap();
        device.destroy_cq(cq).unwrap();
        bench.pair.run(MILLISECOND);
        assert_eq!(bench.device(0).dealloc_pd(pd), Ok(()));
        bench.pair.run(MILLISECOND);
        bench.pair.nodes[0].machine.give_back(memory);
    }
    let after: Vec<usize> = kinds.iter().map(|(kind, _)| left(&bench, kind)).collect();
    assert_eq!(before, after, "{kinds:?}");
    assert_eq!(bench.pair.nodes[0].machine.arena_available(), arena);
    assert_eq!(bench.pair.complaints(), [""; 0]);
}

trait Arenas {
    fn arena_available(&mut self) -> usize;
    fn give_back(&mut self, memory: Window);
}

impl Arenas for Metal<Mlx5> {
    fn arena_available(&mut self) -> usize {
        drivers::hal::Platform::arena(self).available()
    }

    fn give_back(&mut self, memory: Window) {
        drivers::hal::Platform::arena(self).free(memory);
    }
}
