//! The drivers of network cards on QEMU's models.

use drivers::driver::Class;
use drivers::hal::{Packet, Platform, Port, Window};
use qtest::Machine;
use std::time::Duration;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

/// Defines each test for each card.
macro_rules! on_each_card {
    ($($story:ident),* $(,)?) => {
        on_each_card!(@ e1000e, $($story),*);
        on_each_card!(@ igb, $($story),*);
        on_each_card!(@ vmxnet3, $($story),*);
        on_each_card!(@ e1000, $($story),*);
    };
    (@ $model:ident, $($story:ident),*) => {
        mod $model {
            $(
                #[test]
                fn $story() {
                    super::$story(stringify!($model));
                }
            )*
        }
    };
}

on_each_card!(
    frames_of_many_lengths_pass_both_ways,
    jumbo_frames_pass_both_ways_around_the_rings,
    payload_is_sent_without_a_copy,
    link_changes_are_noticed,
    interrupts_are_raised_when_armed,
    frames_for_other_stations_are_filtered,
);

struct Bench {
    /// Dropped before the machine.
    port: Box<dyn Port + Send>,
    machine: Machine,
}

fn open(model: &str, mtu: u16) -> Bench {
    let mut machine = qtest::with_nic(crate::qemu(), model).expect("QEMU starts");
    let device = machine.find().take(Class::Port).remove(0);
    assert_eq!(device.driver(), model);
    let clock = machine.clock();
    let opened = device.open_port(&mut machine, &|_| Some(mtu), &clock);
    let port = opened.unwrap_or_else(|why| panic!("{why}"));
    let mut bench = Bench { port, machine };
    assert_eq!(bench.port.mac(), MAC);
    bench.wait_for_link(true);
    // QEMU's e1000 receives nothing for a second after it was set up.
    bench.machine.pass(Duration::from_secs(2));
    bench
}

/// A frame from another station to the port.
fn frame(n: usize, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256 + n) as u8).collect();
    frame[..6].copy_from_slice(&MAC);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}

impl Bench {
    fn wait_for_link(&mut self, up: bool) {
        for _ in 0..100 {
            let now = self.machine.pass(Duration::from_millis(100));
            self.port.watch(now);
            if self.port.link_up() == up {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the link is not {}", if up { "up" } else { "down" });
    }

    /// Receives the next frame, if one comes soon.
    fn received(&mut self) -> Option<Vec<u8>> {
        for _ in 0..5000 {
            let mut got = None;
            self.port.receive_each(1, &mut |bytes| {
                got = Some(bytes.to_vec());
                true
            });
            self.port.flush();
            if got.is_some() {
                return got;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    fn pass_both_ways(&mut self, one: &[u8]) {
        self.machine.send(one);
        assert!(self.received().as_deref() == Some(one), "{} bytes in", one.len());
        self.port.transmit(&Packet { header: one, payload: &[], trailer: &[] }).expect("room");
        self.port.flush();
        assert!(self.machine.receive().as_deref() == Some(one), "{} bytes out", one.len());
    }

    fn check(&mut self) {
        let counters = self.port.counters();
        assert_eq!((counters.rx_errors, counters.rx_missed, counters.resets), (0, 0, 0));
        assert!(self.port.notice().is_none());
    }
}

fn frames_of_many_lengths_pass_both_ways(model: &str) {
    let mut bench = open(model, 1500);
    assert_eq!(bench.port.mtu(), 1500);
    for n in 0..2500 {
        bench.pass_both_ways(&frame(n, 60 + n * 37 % (1514 - 60 + 1)));
    }
    bench.check();
}

fn jumbo_frames_pass_both_ways_around_the_rings(model: &str) {
    let mut bench = open(model, 9000);
    assert_eq!(bench.port.mtu(), 9000);
    for n in 0..1200 {
        bench.pass_both_ways(&frame(n, 1500 + n * 37 % (9014 - 1500 + 1)));
    }
    bench.check();
}

fn payload_is_sent_without_a_copy(model: &str) {
    let mut bench = open(model, 9000);
    let lengths = [1, 300, 4096, 1000];
    let windows: Vec<Window> = (lengths.iter().enumerate())
        .map(|(n, &len)| {
            let window = bench.machine.arena().alloc(len, 64).expect("room").slice(0, len);
            let window = window.expect("inside");
            window.write(0, &frame(n, len.max(14))[..len]).expect("inside");
            window
        })
        .collect();
    for round in 0..1000 {
        let header = frame(9, 54 + round % 40);
        let payload = &windows[..round % 5];
        let trailer = &[1, 2, 3, 4][..if round % 2 == 0 { 4 } else { 0 }];
        bench.port.transmit(&Packet { header: &header, payload, trailer }).expect("room");
        bench.port.flush();
        let mut all = header.clone();
        for (n, window) in payload.iter().enumerate() {
            all.extend(&frame(n, window.len().max(14))[..window.len()]);
        }
        all.extend(trailer);
        all.resize(all.len().max(60), 0);
        assert!(bench.machine.receive() == Some(all), "{round}");
    }
    bench.check();
}

fn link_changes_are_noticed(model: &str) {
    let mut bench = open(model, 1500);
    for n in 0..3 {
        bench.machine.set_link(false);
        bench.wait_for_link(false);
        bench.machine.set_link(true);
        bench.wait_for_link(true);
        bench.pass_both_ways(&frame(n, 100));
    }
    bench.check();
}

fn interrupts_are_raised_when_armed(model: &str) {
    let mut bench = open(model, 1500);
    assert!(bench.port.wakes());
    let raised = |bench: &Bench| {
        bench.machine.take_interrupts();
        bench.port.counters().interrupts
    };
    for n in 0..50 {
        bench.pass_both_ways(&frame(n, 60 + n));
    }
    assert_eq!(raised(&bench), 0, "not armed");
    for n in 0..20 {
        bench.port.set_interrupts(true);
        // An interrupt that is pending from before ends the first halt at once, not the next.
        bench.machine.pass(Duration::from_millis(1));
        let before = raised(&bench);
        assert!(!bench.port.pending());
        bench.machine.send(&frame(n, 60 + n));
        let mut looks = 0;
        while raised(&bench) == before {
            bench.machine.pass(Duration::from_millis(1));
            std::thread::sleep(Duration::from_millis(1));
            looks += 1;
            assert!(looks < 5000, "no interrupt");
        }
        assert!(bench.port.pending());
        bench.port.set_interrupts(false);
        assert_eq!(bench.received(), Some(frame(n, 60 + n)));
    }
    bench.check();
}

/// Frames to the own address, broadcast and multicast are received, frames to other stations are not.
fn frames_for_other_stations_are_filtered(model: &str) {
    let mut bench = open(model, 1500);
    for n in 0..20 {
        let mut other = frame(n, 100);
        other[5] ^= 1;
        bench.machine.send(&other);
        for group in [[0xff; 6], [0x33, 0x33, 0xff, 1, 2, 3], [1, 0, 0x5e, 0, 0, 1]] {
            let mut one = frame(n, 80);
            one[..6].copy_from_slice(&group);
            bench.machine.send(&one);
            assert_eq!(bench.received(), Some(one));
        }
    }
    bench.check();
}
