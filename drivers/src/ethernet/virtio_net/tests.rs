use super::{VirtioNet, WantedMtu};
use crate::hal::{Instant, Packet, Platform, Port, TransmitError, TransmitProgress, Window};
use crate::registry::Class;
use crate::virtio::model::{Machine, Model};
use crate::virtio::{Error, attach};
use proptest::prelude::*;
use std::vec::Vec;

const MODERN: u64 = 1 << 32;
const EVENT_INDEX: u64 = 1 << 29;
const ANY_LAYOUT: u64 = 1 << 27;
const MTU: u64 = 1 << 3;
const MAC_STATUS: u64 = 1 << 5 | 1 << 16;
const CONFIG: [u8; 12] = [0x52, 0x54, 0, 0x12, 0x34, 0x56, 1, 0, 1, 0, 0x28, 0x23]; // MTU 9000

fn model(machine: &Machine, features: u64, entries: u16) -> Model {
    Model::new(machine, 1, features, &CONFIG, &[entries, entries])
}

fn open(machine: &mut Machine, mtu: WantedMtu<'_>) -> Result<VirtioNet, Error> {
    let mut inventory = machine.find();
    assert_eq!(inventory.unclaimed, []);
    let device = inventory.take(Class::Port).remove(0);
    VirtioNet::open(attach(device, machine)?, machine.arena(), mtu)
}

/// A port on PCI with event index, and its device.
fn port(entries: u16) -> (Machine, Model, VirtioNet) {
    let mut machine = Machine::new(4 << 20);
    let model = model(&machine, MODERN | EVENT_INDEX | MAC_STATUS, entries);
    machine.plug_pci(3, &model);
    let net = open(&mut machine, &|_| None).unwrap();
    (machine, model, net)
}

fn frame(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + n) as u8).collect()
}

/// The device receives `frame` from the wire.
fn arrive(model: &Model, frame: &[u8], header: usize) -> bool {
    let mut device = model.state();
    let Some(chain) = device.pop(0) else { return false };
    let mut bytes = std::vec![0xee; header];
    bytes.extend_from_slice(frame);
    let written = device.scatter(&chain, &bytes);
    device.push(0, chain.head, written);
    true
}

/// The device sends all that it has to.
fn depart(model: &Model, header: usize) -> Vec<Vec<u8>> {
    let mut device = model.state();
    let mut frames = Vec::new();
    while let Some(chain) = device.pop(1) {
        let bytes = device.gather(&chain);
        assert_eq!(bytes[..header], [0; 12][..header], "no offloads are asked for");
        frames.push(bytes[header..].to_vec());
        device.push(1, chain.head, 0);
    }
    frames
}

fn payload(machine: &mut Machine, bytes: &[u8]) -> Window {
    let window = machine.arena().alloc(bytes.len(), 64).unwrap().slice(0, bytes.len()).unwrap();
    window.write(0, bytes).unwrap();
    window
}

fn plain(header: &[u8]) -> Packet<'_> {
    Packet { header, payload: &[], trailer: &[] }
}

#[test]
fn frames_come_and_go_on_every_transport_and_layout() {
    let faces: [(&str, u64, usize); 5] = [
        ("pci", MODERN | EVENT_INDEX, 12),
        ("pci", MODERN, 12),
        ("mmio 2", MODERN | EVENT_INDEX, 12),
        ("mmio 1", ANY_LAYOUT | EVENT_INDEX, 10),
        ("mmio 1", ANY_LAYOUT, 10),
    ];
    for (face, features, header) in faces {
        let mut machine = Machine::new(4 << 20);
        let model = model(&machine, features | MAC_STATUS, 64);
        match face {
            "pci" => drop(machine.plug_pci(3, &model)),
            "mmio 2" => machine.plug_mmio(&model, 2),
            _ => machine.plug_mmio(&model, 1),
        }
        let mut net = open(&mut machine, &|_| None).unwrap();
        assert_eq!(net.mac(), CONFIG[..6]);
        assert_eq!(net.mtu(), 1500);
        assert!(net.link_up());
        assert_eq!(net.receive_buffers(), (64, 1536));
        for n in 0..1000 {
            let sent = frame(n, 60 + n);
            assert!(arrive(&model, &sent, header));
            let received = net.receive().unwrap();
            assert_eq!(net.bytes(&received), sent);
            net.transmit(&plain(&sent)).unwrap();
            net.recycle(received);
            net.flush();
            assert_eq!(depart(&model, header), [sent], "{face}");
        }
        let counters = net.counters();
        assert_eq!((counters.rx_frames, counters.tx_frames), (1000, 1000));
        assert_eq!((counters.rx_errors, counters.interrupts), (0, 0));
        model.state().config[6] = 0;
        assert!(!net.link_up());
        drop(net);
        assert_eq!(model.state().status, 0, "reset when dropped");
    }
}

#[test]
fn payload_goes_with_trailer_by_reference_or_copied() {
    let (mut machine, model, mut net) = port(64);
    let parts: Vec<Vec<u8>> = [1usize, 300, 0, 700].iter().map(|&n| frame(n, n)).collect();
    let windows: Vec<Window> = parts
        .iter()
        .map(|p| if p.is_empty() { Window::empty() } else { payload(&mut machine, p) })
        .collect();
    for header_len in [14usize, 47, 48, 54, 95, 96, 97, 192, 228, 229, 400] {
        for windows_used in 0..=4 {
            for trailer_len in [0usize, 4, 16] {
                let header = frame(9, header_len);
                let trailer = frame(5, trailer_len);
                let packet = Packet {
                    header: &header,
                    payload: &windows[..windows_used],
                    trailer: &trailer,
                };
                net.transmit(&packet).unwrap();
                let all =
                    [header.clone(), parts[..windows_used].concat(), trailer.clone()].concat();
                net.flush();
                assert_eq!(depart(&model, 12), [all]);
            }
        }
    }
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let (mut machine, model, mut net) = port(16);
    let window = payload(&mut machine, &[7; 1024]);
    let trailer = [0; 17];
    let too_large = [
        plain(&[0; 13]),
        plain(&[0; 1519]),
        Packet { header: &[0; 14], payload: &[window; 2], trailer: &[] },
        Packet { header: &[0; 14], payload: &[Window::empty(); 5], trailer: &[] },
        Packet { header: &[0; 14], payload: &[], trailer: &trailer },
    ];
    for packet in too_large {
        assert_eq!(net.transmit(&packet), Err(TransmitError::TooLarge));
    }
    let packet = Packet { header: &[1; 54], payload: &[window], trailer: &[2; 4] };
    for _ in 0..5 {
        net.transmit(&packet).unwrap();
    }
    assert_eq!(net.transmit(&packet), Err(TransmitError::Full), "16 descriptors, 3 each");
    assert_eq!(net.transmit(&plain(&[1; 60])), Err(TransmitError::Full));
    net.flush();
    assert_eq!(depart(&model, 12).len(), 5);
    net.transmit(&packet).unwrap();
    assert_eq!(net.counters().tx_full, 2);
}

#[test]
fn long_frames_wait_for_their_few_buffers() {
    let (_machine, model, mut net) = port(256);
    let mut sent = 0;
    while net.transmit(&plain(&[3; 1000])).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 64);
    net.transmit(&plain(&[3; 60])).unwrap();
    net.flush();
    assert_eq!(depart(&model, 12).len(), 65);
    net.transmit(&plain(&[3; 1000])).unwrap();
}

/// Who found no room is told when there is some, and need not look all the time.
#[test]
fn a_full_queue_says_when_it_has_room_again() {
    for (features, entries) in [(EVENT_INDEX, 256), (0, 256), (EVENT_INDEX, 16)] {
        let mut machine = Machine::new(4 << 20);
        let model = model(&machine, MODERN | features | MAC_STATUS, entries);
        machine.plug_pci(3, &model);
        let mut net = open(&mut machine, &|_| None).unwrap();
        for round in 0..3 {
            while net.transmit(&plain(&[3; 1000])).is_ok() {}
            net.flush();
            assert!(!net.has_room() && !net.pending(), "{round}");
            let before = net.counters().interrupts;
            net.set_interrupts(true);
            assert!(!net.pending());
            let gone = depart(&model, 12).len() as u64;
            // Without event indices each frame that is given back interrupts.
            let raised = if features == EVENT_INDEX { 1 } else { gone };
            assert_eq!((net.counters().interrupts, gone > 0), (before + raised, true), "{round}");
            assert!(net.pending() && net.has_room());
            net.set_interrupts(false);
            net.transmit(&plain(&[3; 1000])).unwrap();
            assert!(!net.pending() && net.has_room());
            net.flush();
            // With room there is nothing to tell.
            net.set_interrupts(true);
            depart(&model, 12);
            assert_eq!(net.counters().interrupts, before + raised, "{round}");
            net.set_interrupts(false);
        }
    }
}

#[test]
fn frames_that_the_device_has_are_known_until_it_has_sent_them() {
    let (_machine, model, mut net) = port(256);
    assert!(!net.is_sending());
    net.transmit(&plain(&[1; 60])).unwrap();
    assert!(net.is_sending());
    net.flush();
    assert!(net.is_sending());
    depart(&model, 12);
    assert!(!net.is_sending());
}

/// Devices may give packets back in another order: sent is what all before it are as well.
#[test]
fn progress_is_of_the_first_frames() {
    let (_machine, model, mut net) = port(256);
    let progress = |net: &mut VirtioNet| {
        let TransmitProgress { queued, sent } = net.progress();
        (queued, sent)
    };
    for n in 0..3 {
        net.transmit(&plain(&[n; 60])).unwrap();
    }
    net.flush();
    assert_eq!(progress(&mut net), (3, 0));
    net.transmit(&plain(&[3; 60])).unwrap();
    net.flush();
    let mut device = model.state();
    let heads: Vec<u16> = (0..4).map(|_| device.pop(1).unwrap().head).collect();
    // The last one first.
    device.push(1, heads[3], 0);
    device.push(1, heads[1], 0);
    drop(device);
    assert_eq!(progress(&mut net), (4, 0));
    model.state().push(1, heads[0], 0);
    assert_eq!(progress(&mut net), (4, 0));
    model.state().push(1, heads[2], 0);
    assert_eq!(progress(&mut net), (4, 4));
    // For ever.
    for n in 4..3000u64 {
        net.transmit(&plain(&[n as u8; 60])).unwrap();
        net.flush();
        let (queued, sent) = progress(&mut net);
        assert!(queued == n + 1 && sent <= n, "{n}: {sent}");
        depart(&model, 12);
        if n % 3 == 0 {
            assert_eq!(progress(&mut net), (n + 1, n + 1));
        }
    }
}

/// A device that talks nonsense is reset: then it holds no memory any more.
/// A frame that is never sent is told of; one that is said to be sent twice, or that was never queued, is passed over;
/// nothing of it wants an interrupt.
#[test]
fn frames_that_are_not_sent_sent_twice_or_never_queued_harm_nobody() {
    let (_machine, model, mut net) = port(256);
    net.transmit(&plain(&[1; 60])).unwrap();
    net.transmit(&plain(&[2; 60])).unwrap();
    net.flush();
    (0..11).for_each(|_| net.watch(Instant::ZERO));
    assert!(net.notice().unwrap().text.contains("completed nothing for 10 s"));
    let heads = [0; 2].map(|_| model.state().pop(1).unwrap().head);
    for head in [heads[0].into(), heads[0].into(), 9999, heads[1].into()] {
        model.state().lie(1, head, 0, 1);
        assert!(net.progress().sent <= 2);
    }
    net.watch(Instant::ZERO);
    assert!(net.notice().unwrap().text.contains("works again"));
    assert_eq!(net.progress(), TransmitProgress { queued: 2, sent: 2 });
    assert_eq!(net.counters().rx_errors, 2, "what makes no sense is counted");
    assert!(net.link_up() && model.state().live());
    net.transmit(&plain(&[3; 60])).unwrap();
    net.flush();
    assert!(model.state().pop(1).is_some());
}

#[test]
fn a_broken_device_is_reset() {
    let (_machine, model, mut net) = port(256);
    net.transmit(&plain(&[1; 60])).unwrap();
    net.flush();
    model.state().lie(1, 0, 0, 9);
    assert_eq!(net.progress(), TransmitProgress { queued: 1, sent: 0 });
    assert!(!net.link_up());
    net.watch(Instant::ZERO);
    assert_eq!(model.state().status, 0);
    assert!(net.notice().unwrap().text.contains("its host is to blame"));
    net.watch(Instant::ZERO);
    assert_eq!(net.notice(), None, "said once");
    assert_eq!(net.progress(), TransmitProgress { queued: 1, sent: 1 });
    // What is sent now is lost, and holds nothing up.
    for _ in 0..1000 {
        net.transmit(&plain(&[1; 60])).unwrap();
    }
    net.flush();
    assert!(!net.is_sending());
}

#[test]
fn the_device_is_told_once_per_batch_and_interrupts_only_when_asked() {
    let (_machine, model, mut net) = port(256);
    depart(&model, 12); // the device looks, and wants to hear of news
    let before = model.state().kicks;
    for _ in 0..85 {
        net.transmit(&plain(&[1; 60])).unwrap();
    }
    net.flush();
    net.flush();
    assert_eq!(model.state().kicks - before, 1);
    depart(&model, 12);

    // 70,000 frames while polling: past the wrap of every index, not one interrupt.
    for n in 0..70_000 {
        assert!(arrive(&model, &[n as u8; 60], 12));
        let frame = net.receive().unwrap();
        net.recycle(frame);
        net.transmit(&plain(&[n as u8; 60])).unwrap();
        net.flush();
        assert_eq!(depart(&model, 12), [[n as u8; 60]]);
    }
    assert_eq!(model.state().interrupts, 0);
    assert_eq!(net.counters().interrupts, 0);

    net.set_interrupts(true);
    assert!(net.receive().is_none());
    arrive(&model, &[1; 60], 12);
    arrive(&model, &[2; 60], 12);
    assert_eq!(net.counters().interrupts, 1, "one for the first, none for the second");
    net.set_interrupts(false);
    arrive(&model, &[3; 60], 12);
    assert_eq!(net.counters().interrupts, 1);
    assert!(net.wakes());
    assert_eq!((0..4).filter_map(|_| net.receive()).count(), 3);
}

/// A device that missed a notification is told again, before long; one that goes on is left alone.
#[test]
fn a_device_that_stands_still_is_told_again() {
    let (_machine, model, mut net) = port(256);
    let mut kicks = 0;
    let mut told = |net: &mut VirtioNet| {
        net.watch(Instant::ZERO);
        let before = core::mem::replace(&mut kicks, model.state().kicks);
        model.state().kicks - before
    };
    // Receive buffers lie there, and nothing comes.
    told(&mut net);
    assert_eq!(told(&mut net), 1);
    net.transmit(&plain(&[1; 60])).unwrap();
    net.flush();
    assert_eq!(told(&mut net), 3, "its own, and both queues");
    assert_eq!(told(&mut net), 2);
    assert!(arrive(&model, &[1; 60], 12));
    depart(&model, 12);
    net.transmit(&plain(&[1; 60])).unwrap();
    net.flush();
    assert_eq!(told(&mut net), 1, "its own");
    // What was not yet published is none of the device's.
    depart(&model, 12);
    net.transmit(&plain(&[1; 60])).unwrap();
    let frame = net.receive().unwrap();
    net.recycle(frame);
    told(&mut net);
    assert_eq!(told(&mut net), 1, "the receive queue");
}

#[test]
fn memory_mapped_interrupts_are_taken_back() {
    let mut machine = Machine::new(4 << 20);
    let model = model(&machine, MODERN | EVENT_INDEX | MAC_STATUS, 64);
    machine.plug_mmio(&model, 2);
    let mut net = open(&mut machine, &|_| None).unwrap();
    for n in 1..10 {
        net.set_interrupts(true);
        arrive(&model, &[1; 60], 12);
        net.set_interrupts(false);
        assert_eq!(net.counters().interrupts, n);
        let frame = net.receive().unwrap();
        net.recycle(frame);
        net.flush();
    }
}

#[test]
fn the_mtu_is_what_both_sides_can() {
    let cases = [
        (0, None, 1500),
        (0, Some(9000), 9000),
        (0, Some(60_000), 9216),
        (0, Some(68), 1280),
        (MTU, None, 9000),
        (MTU, Some(4096), 4096),
        (MTU, Some(9216), 9000),
    ];
    for (feature, mtu, expected) in cases {
        let mut machine = Machine::new(4 << 20);
        let model = model(&machine, MODERN | MAC_STATUS | feature, 256);
        machine.plug_pci(3, &model);
        let mut net = open(&mut machine, &|_| mtu).unwrap();
        assert_eq!(net.mtu(), expected);
        let longest = frame(1, expected + 18);
        assert!(arrive(&model, &longest, 12));
        let received = net.receive().unwrap();
        assert_eq!(net.bytes(&received), longest);
        net.transmit(&plain(&longest)).unwrap();
        net.flush();
        assert_eq!(depart(&model, 12), [longest]);
    }
}

#[test]
fn little_memory_means_fewer_buffers_and_none_is_an_error() {
    let mut machine = Machine::new(800 << 10);
    let model = model(&machine, MODERN | MAC_STATUS, 256);
    machine.plug_pci(3, &model);
    let before = machine.arena().available();
    let net = open(&mut machine, &|_| Some(9000));
    let net = net.unwrap();
    assert_eq!(net.receive_buffers(), (32, 9088));
    drop(net);
    let second = open(&mut machine, &|_| Some(9000));
    assert!(matches!(second, Err(Error::NoMemory { .. })));
    assert!(machine.arena().available() > before / 4, "what the second took was given back");
    assert_eq!(model.state().status & 0x80, 0x80, "and the device was told");
}

#[test]
fn a_device_that_does_not_keep_to_the_rules_is_refused() {
    let open_with = |features: u64, change: &dyn Fn(&Model)| {
        let mut machine = Machine::new(4 << 20);
        let model = model(&machine, features, 64);
        change(&model);
        machine.plug_pci(3, &model);
        open(&mut machine, &|_| None).map(|_| ())
    };
    let good = MODERN | MAC_STATUS;
    assert_eq!(open_with(good, &|_| ()), Ok(()));
    assert_eq!(open_with(MAC_STATUS, &|_| ()), Err(Error::MissingFeature(32)));
    assert_eq!(open_with(MODERN, &|_| ()), Err(Error::MissingFeature(5)));
    let refused = open_with(good, &|m| m.state().agreeable = false);
    assert_eq!(refused, Err(Error::FeaturesRefused(good)));
    let stuck = open_with(good, &|m| {
        m.state().status = 1;
        m.state().resets = false;
    });
    assert_eq!(stuck, Err(Error::NoReset));
    let no_queue = open_with(good, &|m| m.state().queues.truncate(1));
    assert_eq!(no_queue, Err(Error::NoQueue(1)));
    let mut machine = Machine::new(4 << 20);
    machine.plug_mmio(&model(&machine, MAC_STATUS, 64), 1);
    let old = open(&mut machine, &|_| None);
    assert_eq!(old.err(), Some(Error::MissingFeature(27)));
    let multicast = open_with(good, &|m| m.state().config[0] = 1);
    assert_eq!(multicast, Err(Error::Config("MAC address")));
    let tiny = open_with(good | MTU, &|m| m.state().config[11] = 0);
    assert_eq!(tiny, Err(Error::Config("MTU")));
}

#[test]
fn short_and_long_frames_are_errors_and_their_buffers_are_used_again() {
    let (_machine, model, mut net) = port(4);
    for written in [0, 11, 12, 25, 1537, u32::MAX] {
        let mut device = model.state();
        let chain = device.pop(0).unwrap();
        device.push(0, chain.head, written);
        drop(device);
        assert!(net.receive().is_none());
        net.flush();
    }
    assert_eq!(net.counters().rx_errors, 6);
    for _ in 0..20 {
        assert!(arrive(&model, &[1; 60], 12));
        let frame = net.receive().unwrap();
        net.recycle(frame);
        net.flush();
    }
    assert!(net.link_up());
}

proptest! {
    /// Whatever the device writes into either used ring: no panic, no frame twice, every lie
    /// counted.
    #[test]
    fn a_device_may_write_anything(
        lies in prop::collection::vec((0usize..2, prop_oneof![0u32..20, any::<u32>()],
            prop_oneof![0u32..2000, any::<u32>()],
            prop_oneof![Just(1u16), 0u16..20, any::<u16>()]), 1..60),
    ) {
        let (_machine, model, mut net) = port(16);
        let mut held = Vec::new();
        for (n, (queue, id, written, step)) in lies.into_iter().enumerate() {
            let _ = net.transmit(&plain(&frame(n, 60)));
            let _ = net.transmit(&plain(&frame(n, 800)));
            net.flush();
            model.state().lie(queue, id, written, step);
            let errors = net.counters().rx_errors;
            let got = net.receive();
            net.flush();
            if id >= 16 && step == 1 && queue == 0 && got.is_none() && net.link_up() {
                prop_assert!(net.counters().rx_errors > errors);
            }
            if let Some(frame) = got {
                prop_assert!(held.iter().all(|f: &crate::hal::Frame| f.buffer != frame.buffer));
                prop_assert_eq!(net.bytes(&frame).len(), frame.len as usize);
                held.push(frame);
            }
            if n % 3 == 0 && !held.is_empty() {
                net.recycle(held.swap_remove(0));
            }
        }
    }
}
