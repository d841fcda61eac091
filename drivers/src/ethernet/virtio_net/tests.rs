use super::{VirtioNet, WantedMtu};
use crate::driver::Class;
use crate::hal::{Instant, Packet, Platform, Port, TransmitError, TransmitProgress, Window};
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

/// The device writes `frame` to a receive buffer.
fn arrive(model: &Model, frame: &[u8], header: usize) -> bool {
    let mut device = model.state();
    let Some(chain) = device.pop(0) else { return false };
    let mut bytes = std::vec![0xee; header];
    bytes.extend_from_slice(frame);
    let written = device.scatter(&chain, &bytes);
    device.push(0, chain.head, written);
    true
}

/// The device sends all queued frames, and returns them.
fn depart(model: &Model, header: usize) -> Vec<Vec<u8>> {
    let mut device = model.state();
    let mut frames = Vec::new();
    while let Some(chain) = device.pop(1) {
        let bytes = device.gather(&chain);
        assert_eq!(bytes[..header], [0; 12][..header], "no offloads are requested");
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
fn unsendable_packets_are_refused() {
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
fn long_frames_wait_for_full_size_buffers() {
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

/// After a refused frame the port reports and interrupts when it has room again.
#[test]
fn full_queue_reports_when_it_has_room_again() {
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
            // Without event indices each completed frame interrupts.
            let raised = if features == EVENT_INDEX { 1 } else { gone };
            assert_eq!((net.counters().interrupts, gone > 0), (before + raised, true), "{round}");
            assert!(net.pending() && net.has_room());
            net.set_interrupts(false);
            net.transmit(&plain(&[3; 1000])).unwrap();
            assert!(!net.pending() && net.has_room());
            net.flush();
            // With room there is nothing to report.
            net.set_interrupts(true);
            depart(&model, 12);
            assert_eq!(net.counters().interrupts, before + raised, "{round}");
            net.set_interrupts(false);
        }
    }
}

#[test]
fn port_is_sending_until_the_device_has_sent_all_frames() {
    let (_machine, model, mut net) = port(256);
    assert!(!net.is_sending());
    net.transmit(&plain(&[1; 60])).unwrap();
    assert!(net.is_sending());
    net.flush();
    assert!(net.is_sending());
    depart(&model, 12);
    assert!(!net.is_sending());
}

/// Devices may complete packets in any order: a packet counts as sent when all before it are sent.
#[test]
fn progress_counts_frames_sent_in_order() {
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
    // Many rounds, past the wrap of indices.
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

/// A frame that is never sent is reported. Completions of a frame that was completed before or never queued are counted
/// and ignored.
#[test]
fn missing_and_bogus_completions_are_tolerated() {
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
    assert_eq!(net.counters().rx_errors, 2, "bogus completions are counted");
    assert!(net.link_up() && model.state().live());
    net.transmit(&plain(&[3; 60])).unwrap();
    net.flush();
    assert!(model.state().pop(1).is_some());
}

#[test]
fn broken_device_is_reset() {
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
    assert_eq!(net.notice(), None, "reported once");
    assert_eq!(net.progress(), TransmitProgress { queued: 1, sent: 1 });
    // Later frames are dropped, and do not count as in flight.
    for _ in 0..1000 {
        net.transmit(&plain(&[1; 60])).unwrap();
    }
    net.flush();
    assert!(!net.is_sending());
}

#[test]
fn device_is_notified_once_per_batch_and_interrupts_only_when_enabled() {
    let (_machine, model, mut net) = port(256);
    depart(&model, 12); // the device polls its queue, and enables notifications
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

/// A device that has missed a notification is notified again; one that makes progress is not.
#[test]
fn stalled_device_is_notified_again() {
    let (_machine, model, mut net) = port(256);
    let mut kicks = 0;
    let mut kicks_of_watch = |net: &mut VirtioNet| {
        net.watch(Instant::ZERO);
        let before = core::mem::replace(&mut kicks, model.state().kicks);
        model.state().kicks - before
    };
    // Receive buffers are posted, and no frame arrives.
    kicks_of_watch(&mut net);
    assert_eq!(kicks_of_watch(&mut net), 1);
    net.transmit(&plain(&[1; 60])).unwrap();
    net.flush();
    assert_eq!(kicks_of_watch(&mut net), 3, "that of the flush, and both queues");
    assert_eq!(kicks_of_watch(&mut net), 2);
    assert!(arrive(&model, &[1; 60], 12));
    depart(&model, 12);
    net.transmit(&plain(&[1; 60])).unwrap();
    net.flush();
    assert_eq!(kicks_of_watch(&mut net), 1, "that of the flush");
    // Frames and buffers that are not published yet do not count.
    depart(&model, 12);
    net.transmit(&plain(&[1; 60])).unwrap();
    let frame = net.receive().unwrap();
    net.recycle(frame);
    kicks_of_watch(&mut net);
    assert_eq!(kicks_of_watch(&mut net), 1, "the receive queue");
}

#[test]
fn memory_mapped_interrupts_are_acknowledged() {
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
fn mtu_is_the_smaller_of_configuration_and_device() {
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
    assert!(machine.arena().available() > before / 4, "the memory of the second was freed");
    assert_eq!(model.state().status & 0x80, 0x80, "the device status is FAILED");
}

#[test]
fn nonconforming_device_is_refused() {
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
fn frames_of_invalid_length_are_errors_and_their_buffers_are_reused() {
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
    /// Random entries in both used rings cause no panic and no duplicate frame, and every invalid entry is counted.
    #[test]
    fn random_used_entries_are_tolerated(
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
