//! Failed requests and receives: the card's syndromes as verbs statuses. The meanings of the syndromes are from Linux
//! (`mlx5_ib`'s `cq.c`), not from a card.

use super::*;

/// Syndromes, and their verbs statuses.
const SYNDROMES: [(u8, Status); 13] = [
    (0x01, Status::LocalLength),
    (0x02, Status::LocalProtection),
    (0x04, Status::LocalProtection),
    (0x05, Status::Flushed),
    (0x06, Status::LocalProtection),
    (0x10, Status::RemoteOperation),
    (0x11, Status::LocalProtection),
    (0x12, Status::RemoteInvalidRequest),
    (0x13, Status::RemoteAccess),
    (0x14, Status::RemoteOperation),
    (0x15, Status::RetryExceeded),
    (0x16, Status::RnrRetryExceeded),
    (0x22, Status::Flushed),
];

/// Destroys both queue pairs, and creates new ones.
fn begin_again(bench: &mut Bench) {
    for n in 0..2 {
        let qp = bench.qp[n];
        bench.device(n).destroy_qp(qp).unwrap();
    }
    bench.again();
}

#[test]
fn each_syndrome_of_a_request_is_a_status() {
    let mut bench = Bench::new(false);
    let (memory, rng) = (bench.pair.memory(1, 100), Access::REMOTE_WRITE);
    let region = bench.grant(1, memory, rng);
    for (syndrome, status) in SYNDROMES {
        let qp = bench.qp[0];
        bench.device(0).post_recv(qp, &RecvRequest { id: 9, into: &[] }).unwrap();
        bench.inject(0, Fault::RequestFails(syndrome));
        for id in 1..=3 {
            bench.post(0, id, write(granted(&region)));
        }
        bench.pair.run(MILLISECOND);
        let ends = bench.ends(0);
        let all = [(1, status), (2, Status::Flushed), (3, Status::Flushed), (9, Status::Flushed)];
        assert_eq!(ends, all, "{syndrome:#x}");
        // An event reports the failure of a queue pair, but not requests that were only flushed.
        let failed = status != Status::Flushed;
        let expected = if failed { vec![AsyncEvent::QpError(qp)] } else { vec![] };
        assert_eq!(bench.events(0), expected, "{syndrome:#x}");
        assert_eq!(bench.device(0).failed_by_itself(qp), failed);
        begin_again(&mut bench);
        bench.works();
    }
}

#[test]
fn each_syndrome_of_a_receive_is_a_status() {
    let mut bench = Bench::new(false);
    for (syndrome, status) in SYNDROMES {
        let qp = bench.qp[1];
        for id in 1..=2 {
            bench.device(1).post_recv(qp, &RecvRequest { id, into: &[] }).unwrap();
        }
        bench.inject(1, Fault::MessageFails(syndrome));
        let payload = Payload::Inline(&[]);
        bench.post(0, 5, SendOperation::Send { payload, with: SendWith::Nothing });
        bench.pair.run(MILLISECOND);
        assert_eq!(bench.ends(1), [(1, status), (2, Status::Flushed)], "{syndrome:#x}");
        let reported = bench.events(1).contains(&AsyncEvent::QpError(qp));
        assert_eq!(reported, status != Status::Flushed, "{syndrome:#x}");
        begin_again(&mut bench);
        bench.ends(0);
        bench.events(0);
        bench.works();
    }
}

#[test]
fn card_counters_are_read() {
    let mut bench = Bench::new(false);
    for n in 0..3 {
        bench.inject(1, Fault::LosesPacket);
        let qp = bench.qp[1];
        for id in 0..2 {
            bench.device(1).post_recv(qp, &RecvRequest { id, into: &[] }).unwrap();
        }
        let payload = Payload::Inline(&[]);
        let with = SendWith::Nothing;
        bench.post(0, 1, SendOperation::Send { payload, with });
        bench.post(0, 2, SendOperation::Send { payload, with });
        bench.pair.run(Duration::from_secs(2));
        assert_eq!(bench.ends(0), [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(bench.ends(1).len(), 2);
        assert_eq!(bench.device(1).card_counters().out_of_sequence, 1 + n);
        assert_eq!(bench.device(0).card_counters().packet_seq_err, 1 + n);
    }
    // Counters continue across a reset.
    bench.inject(1, Fault::Fatal(1));
    bench.pair.run(Duration::from_secs(10));
    assert_eq!(bench.device(1).card_counters().out_of_sequence, 3);
}

#[test]
fn lossless_setting_is_read_and_reported() {
    let mut bench = Bench::new(false);
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.device(0).flow_control().is_lossless(), Some(false));
    assert_eq!(bench.device(0).flow_control().by_dscp, Some(true));
    let notice = bench.device(0).port().notice().unwrap();
    assert!(notice.text.contains("lossless is not configured"), "{notice:?}");
}

#[test]
fn congestion_control_setting_is_read_and_reported() {
    for (marks, words, warns) in [
        (None, "off, by DSCP", false),
        (Some(0x88), "off, by DSCP, ECN on 3 7", false),
        (Some(0), "off, by DSCP, no ECN", true),
    ] {
        let card = Mlx5::new(Config { marks, ..Config::default() });
        let mut machine = Metal::new(card, 32 << 20);
        let mut device = open(&mut machine, &[], &mut Rng::new(1)).unwrap();
        for _ in 0..100 {
            device.poll(machine.pass(MILLISECOND));
            machine.run();
        }
        assert_eq!(device.flow_control().in_words().as_deref(), Some(words));
        let notices: Vec<_> = std::iter::from_fn(|| device.port().notice()).collect();
        let is_ecn = |notice: &Notice| notice.text.contains("ECN is not configured");
        assert_eq!(notices.iter().any(is_ecn), warns, "{notices:?}");
        assert_eq!(machine.model(|card| card.complaints.clone()), [""; 0]);
    }
}

/// A halted loop is woken by signaled completions and by errors.
#[test]
fn unsignaled_and_lazy_completions_do_not_wake_the_loop() {
    let mut bench = Bench::new(false);
    let memory = bench.pair.memory(1, 100);
    let region = bench.grant(1, memory, Access::REMOTE_WRITE);
    let raised = |bench: &mut Bench| bench.device(0).port().counters().interrupts;
    let nowhere = RemoteAddress { address: 0, rkey: 1 };
    for (signaled, ack_lazily, to, wakes) in [
        (false, false, granted(&region), false),
        (true, false, granted(&region), true),
        (true, true, granted(&region), false),
        (false, false, granted(&region), false),
        (true, true, nowhere, true),
    ] {
        let qp = bench.qp[0];
        let request = SendRequest { signaled, ack_lazily, ..request(1, write(to)) };
        bench.device(0).post_send(qp, &request).unwrap();
        bench.device(0).arm();
        bench.device(0).port().set_interrupts(true);
        let before = raised(&mut bench);
        bench.pair.run(MILLISECOND);
        assert_eq!(raised(&mut bench) > before, wakes, "{signaled} {ack_lazily} {to:?}");
        bench.ends(0);
    }
    assert_eq!(bench.device(0).under_way(), UnderWay::default());
}
