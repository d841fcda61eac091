//! Messages: all lengths, all mailboxes, refusals, delays, and wrong descriptors.

use super::*;

#[test]
fn messages_of_all_lengths_come_back_unchanged_and_padded_with_zeroes() {
    let mut host = Host::with_board(Answer::Echo);
    for len in (1..64).chain([255, 256, 257, 4088, 4089, 4095, 4096]) {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8 | 1).collect();
        host.send(7, &bytes).unwrap();
        host.turns(4);
        let mut wanted = bytes;
        wanted.resize(wanted.len().next_multiple_of(8), 0);
        assert_eq!(host.received(), [(7, wanted)], "{len}");
    }
    assert_eq!(host.send(7, &[]), Err(SendError::Length));
    assert_eq!(host.send(7, &[0; 4097]), Err(SendError::Length));
    assert!(host.complaints().is_empty());
}

#[test]
fn message_is_gathered_from_parts_in_all_mailboxes() {
    let mut host = Host::with_board(Answer::Take);
    let memory = host.memory(4096);
    memory.write(0, b"payload").unwrap();
    let payload = [memory.slice(0, 4).unwrap(), memory.slice(4, 3).unwrap()];
    for mailbox in Mailbox::ALL {
        assert!(host.open(mailbox));
        let packet = Packet { header: b"head ", payload: &payload, trailer: b" end" };
        host.port.send(mailbox, 7, &packet).unwrap();
        host.turns(3);
        let received = host.network().board(1).received.pop_front().unwrap();
        assert_eq!(received, (1, mailbox.number(), b"head payload end".to_vec()));
    }
    assert_eq!(Mailbox::new(4), None);
}

#[test]
fn laps_of_the_rings_lose_and_repeat_nothing() {
    let mut host = Host::with_board(Answer::Echo);
    let (mut sent, mut seen) = (0u32, 0u32);
    while seen < 2000 {
        while sent < 2000 && host.send(7, &[sent.to_be_bytes(); 3].concat()).is_ok() {
            sent += 1;
        }
        host.turns(1);
        for (from, bytes) in host.received() {
            assert_eq!((from, &bytes[..4]), (7, &seen.to_be_bytes()[..]));
            seen += 1;
        }
    }
    let counters = host.port.counters();
    assert_eq!((counters.tx_messages, counters.rx_messages), (2000, 2000));
    assert!(counters.tx_full > 0, "the ring was full now and then");
    assert_eq!((counters.restarts, counters.rx_errors, counters.tx_undelivered), (0, 0, 0));
}

#[test]
fn refused_message_is_reported_and_later_ones_arrive() {
    let mut host = Host::with_board(Answer::Take);
    for n in 0..300u32 {
        // No device has id 9.
        let to = if n % 50 == 20 { 9 } else { 7 };
        while host.send(to, &n.to_be_bytes()).is_err() {
            host.turns(20);
        }
    }
    host.turns(1500);
    assert_eq!(host.undelivered(), [(9, Ended::Refused); 6]);
    let received = host.network().board(1).received.clone();
    let numbers: Vec<u32> =
        received.iter().map(|(_, _, b)| u32::from_be_bytes(b[..4].try_into().unwrap())).collect();
    let wanted: Vec<u32> = (0..300).filter(|n| n % 50 != 20).collect();
    assert_eq!(numbers, wanted);
    assert_eq!(host.port.counters().restarts, 6);
}

#[test]
fn retry_responses_stall_the_mailbox_for_a_bounded_time() {
    let mut host = Host::with_board(Answer::Retry);
    host.send(7, b"one").unwrap();
    host.send(7, b"two").unwrap();
    host.seconds(5);
    assert!(host.undelivered().is_empty());
    host.network().board(1).messages = Answer::Take;
    host.turns(10);
    assert_eq!(host.network().board(1).received.len(), 2, "nothing is lost");
    host.network().board(1).messages = Answer::Retry;
    host.send(7, b"three").unwrap();
    host.seconds(11);
    assert_eq!(host.undelivered(), [(7, Ended::Stalled)]);
    // Further messages to this peer time out earlier, until it has accepted one.
    for _ in 0..50 {
        host.send(7, b"more").unwrap();
    }
    host.turns(10_000);
    assert_eq!(host.undelivered(), [(7, Ended::Stalled); 50]);
    host.network().board(1).messages = Answer::Take;
    host.send(7, b"four").unwrap();
    host.turns(20);
    assert_eq!(host.network().board(1).received.len(), 3);
    host.network().board(1).messages = Answer::Retry;
    host.send(7, b"five").unwrap();
    host.seconds(5);
    assert!(host.undelivered().is_empty());
}

#[test]
fn full_receiver_answers_retry_and_accepts_all_in_the_end() {
    let mut host = Host::with_board(Answer::Echo);
    let mut sent = 0;
    for _ in 0..400 {
        sent += u32::from(host.send(7, &[1; 16]).is_ok());
        host.turns(1);
    }
    assert!(sent > 200);
    let mut seen = 0;
    for _ in 0..400 {
        seen += host.received().len() as u32;
        host.turns(1);
    }
    // The board drops an echo for which the host had no room: it gets a retry response, and does not retry.
    assert!((127..=sent).contains(&seen), "{seen} of {sent}");
    assert_eq!(host.port.counters().rx_errors, 0);
}

#[test]
fn message_descriptors_of_the_device_are_checked() {
    let mut host = Host::with_board(Answer::Echo);
    let number = BOX.index();
    let faults = [
        Fault::NamesNoBuffer(number),
        Fault::NamesBufferTwice(number),
        Fault::MessageStatus(number),
    ];
    for (n, fault) in faults.into_iter().enumerate() {
        host.send(7, b"kept").unwrap();
        host.turns(3);
        let kept = host.port.receive(BOX).unwrap();
        host.inject(fault);
        host.send(7, b"bad").unwrap();
        host.turns(3);
        assert!(host.received().is_empty(), "{fault:?}");
        assert_eq!(host.port.counters().rx_errors, n as u64 + 1);
        let mut bytes = [0; 4];
        host.port.payload(&kept).read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "a held buffer is not reused");
        host.port.recycle(kept);
    }
    // A restart of the channel recovers the buffers that the device has lost.
    host.inject(Fault::MessageMemory(number));
    host.send(7, b"lost").unwrap();
    host.seconds(2);
    host.send(7, b"arrives").unwrap();
    host.turns(5);
    assert_eq!(host.received(), [(7, b"arrives\0".to_vec())]);
    assert!(host.complaints().is_empty());
}
