//! Every device with a stuck register bit, or with registers that read as all ones from some access on, while its
//! driver opens or uses it. The driver must return, each request must end at most once, and memory outside the device's
//! buffers must stay unchanged.
//!
//! The driver's own suite tests its reports and its recovery.

use drivers::driver::Class;
use drivers::hal::{Operation, Packet, Platform, Request, Window};
use drivers::rapidio::{Mailbox, Maintenance};
use metal::bridges::{self, Joined, machines};
use metal::{Metal, Stuck};
use models::{Function, ahci, enic, intel_nic, ioat, ixgbe, mlx5, nvme, tsi721};
use models::{dsa::Dsa, ptdma::Ptdma, pvscsi::Pvscsi, rapidio, vmxnet3::Vmxnet3};
use netsim::Rng;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Number of stuck bits, and number of moments of removal, that are tried for each device.
const TRIES: usize = 150;
/// Bytes of the guards before and after the driver's memory.
const GUARD: usize = 4096;

/// The injected fault.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// No fault.
    Nothing,
    /// A stuck bit, from the beginning, or (true) from the end of opening on.
    Stuck(Stuck, bool),
    /// All ones after this many accesses, counted from the beginning.
    Gone(u64),
}

/// Uses a device for a while. Returns the number of accesses, and the registers that were read.
fn work<F: Function + Send + 'static>(
    mut machine: Metal<F>,
    wrong: Wrong,
) -> (u64, Vec<(u8, u64)>) {
    let guards = [0; 2].map(|_| guard(&mut machine));
    match wrong {
        Wrong::Stuck(bit, false) => machine.stick(Some(bit)),
        Wrong::Gone(accesses) => machine.pull_out_after(accesses),
        _ => {}
    }
    operate(&mut machine, wrong);
    for guard in guards {
        let mut bytes = vec![0; GUARD];
        guard.read(0, &mut bytes).unwrap();
        assert!(
            bytes.iter().all(|&byte| byte == 0xa5),
            "memory outside the device's buffers: {wrong:?}"
        );
    }
    (machine.accesses(), machine.read_from())
}

fn guard<F: Function + Send + 'static>(machine: &mut Metal<F>) -> Window {
    let guard = machine.arena().alloc(GUARD, GUARD).unwrap();
    guard.fill(0xa5);
    guard
}

/// Opens all devices of the machine, and uses them.
fn operate<F: Function + Send + 'static>(machine: &mut Metal<F>, wrong: Wrong) {
    let mut inventory = machine.find();
    let clock = machine.clock();
    let opened = |machine: &Metal<F>| {
        if let Wrong::Stuck(bit, true) = wrong {
            machine.stick(Some(bit));
        }
    };
    // A removed function is not a device.
    for device in inventory.take(Class::Port) {
        let Ok(mut port) = device.open_port(machine, &|_| None, &clock) else { continue };
        opened(machine);
        for round in 0..40u8 {
            let frame = [round; 200];
            let _ = port.transmit(&Packet { header: &frame, payload: &[], trailer: &[] });
            port.flush();
            port.set_interrupts(round % 3 == 0);
            machine.run();
            let mut received = 0;
            port.receive_each(64, &mut |bytes| {
                received += usize::from(bytes.len() <= 9216);
                true
            });
            let _ = (port.pending(), port.has_room(), port.link_up(), port.progress());
            port.watch(machine.pass(Duration::from_millis(700)));
            machine.run();
            while port.notice().is_some() {}
        }
    }
    for device in inventory.take(Class::Disks) {
        let Ok(disks) = device.open_disks(machine, &clock) else { continue };
        opened(machine);
        for mut disk in disks.disks {
            let disk = &mut *disk.disk;
            let Some(data) = machine.arena().alloc(4096, 4096) else { continue };
            let mut waiting = BTreeSet::new();
            for round in 0..60u64 {
                let operation = if round % 2 == 0 { Operation::Write } else { Operation::Read };
                let request = Request { operation, ..request(round, data) };
                if disk.submit(&request).is_ok() {
                    assert!(waiting.insert(round));
                }
                disk.flush_queue();
                machine.run();
                while let Some(end) = disk.poll() {
                    assert!(
                        waiting.remove(&end.tag),
                        "{wrong:?}: {} ended, but is not outstanding",
                        end.tag
                    );
                }
                disk.watch(machine.pass(Duration::from_millis(1100)));
                while disk.notice().is_some() {}
            }
        }
    }
    for device in inventory.take(Class::Dma) {
        let Ok(channels) = device.open_dma(machine, &clock) else { continue };
        opened(machine);
        let [from, to] = [0; 2].map(|_| machine.arena().alloc(4096, 4096).unwrap());
        for mut channel in channels.into_iter().take(1) {
            let mut pushed = 0;
            for round in 0..60 {
                pushed = channel.push(&to, &from).unwrap_or(pushed);
                if round % 5 == 4 {
                    channel.order();
                }
                channel.start();
                machine.run();
                let (done, _) = channel.complete(machine.pass(Duration::from_micros(300)));
                assert!(done <= pushed, "{wrong:?}: {done} are complete, but {pushed} were pushed");
            }
            while channel.take_rest().is_some() {}
        }
    }
    for device in inventory.take(Class::Bridge) {
        let Ok(mut bridge) = device.open_bridge(machine, None, true) else { continue };
        opened(machine);
        for _ in 0..60 {
            bridge.set_interrupts(true);
            let one = bridge.bridge();
            let now = machine.pass(Duration::from_millis(3));
            if one.link() && one.scratchpads() > 0 {
                one.set_peer_scratchpad(0, 7);
                let _ = one.scratchpad(0);
            }
            one.renew();
            one.ring();
            let _ = (one.start(), one.complete(now), one.settled(), one.rung());
            let _ = (bridge.pending(), bridge.is_taken(), bridge.link_speed());
            machine.run();
        }
    }
    for device in inventory.take(Class::RapidIo) {
        let Ok(mut port) = device.open_rapidio(machine) else { continue };
        opened(machine);
        let mailbox = Mailbox::ALL[0];
        let open = port.open_mailbox(mailbox, machine.arena());
        let mut pending = 0;
        for round in 0..60 {
            port.set_interrupts(round % 3 == 0);
            let question = Maintenance { to: 7, hops: 0xff, offset: 0, write: None };
            pending += usize::from(port.maintain(&question).is_ok());
            let _ = port.ring_doorbell(7, round);
            let frame = Packet { header: &[1; 64], payload: &[], trailer: &[] };
            if open {
                let _ = port.send(mailbox, 7, &frame);
            }
            port.flush();
            machine.run();
            port.poll(machine.pass(Duration::from_millis(30)));
            while port.maintained().is_some() {
                pending = pending.checked_sub(1).expect("an answer without a request");
            }
            while let Some(message) = port.receive(mailbox) {
                let _ = port.payload(&message).len();
                port.recycle(message);
            }
            let _ = (port.link_up(), port.pending(), port.doorbell(), port.port_write());
            while port.undelivered().is_some() || port.notice().is_some() {}
        }
    }
}

fn request(tag: u64, data: Window) -> Request {
    Request { tag, operation: Operation::Read, sector: 8 * (tag % 64), data }
}

/// Tries random stuck bits of every register that a fault-free run reads, and removal at random moments.
fn any_bit_and_any_moment<F: Function + Send + 'static>(make: impl Fn() -> Metal<F>) {
    let (accesses, read) = work(make(), Wrong::Nothing);
    assert!(!read.is_empty(), "no register is read");
    let mut rng = Rng::new(4711);
    for n in 0..TRIES {
        // Tries the registers in turn.
        let (bar, offset) = read[n % read.len()];
        let bit = rng.within(0..32) as u8;
        let stuck = Stuck { bar, offset, bit, set: rng.chance(500) };
        work(make(), Wrong::Stuck(stuck, rng.chance(500)));
        work(make(), Wrong::Gone(rng.within(0..accesses)));
    }
}

#[test]
fn intel_nic() {
    use intel_nic::{Kind, Nic};
    for kind in [Kind::E1000e, Kind::Igb, Kind::IgbVf] {
        any_bit_and_any_moment(|| Metal::new(Nic::new(kind, 3), 8 << 20));
    }
    any_bit_and_any_moment(|| Metal::new(Nic::new(Kind::E1000, 0), 8 << 20));
}

#[test]
fn ixgbe() {
    let settings = || ixgbe::Config { vectors: 3, ..ixgbe::Config::default() };
    any_bit_and_any_moment(|| Metal::new(ixgbe::Ixgbe::new(settings()), 8 << 20));
    any_bit_and_any_moment(|| Metal::new(ixgbe::IxgbeVf::new(settings()), 8 << 20));
}

#[test]
fn vmxnet3() {
    any_bit_and_any_moment(|| Metal::new(Vmxnet3::new(3), 8 << 20));
}

#[test]
fn enic() {
    any_bit_and_any_moment(|| Metal::new(enic::Enic::new(enic::Config::default()), 8 << 20));
}

#[test]
fn mlx5() {
    any_bit_and_any_moment(|| Metal::new(mlx5::Mlx5::new(mlx5::Config::default()), 16 << 20));
}

#[test]
fn nvme() {
    any_bit_and_any_moment(|| Metal::new(nvme::Nvme::new(nvme::Config::default()), 8 << 20));
}

#[test]
fn ahci() {
    any_bit_and_any_moment(|| Metal::new(ahci::Ahci::new(ahci::Config::default()), 8 << 20));
}

#[test]
fn pvscsi() {
    any_bit_and_any_moment(|| Metal::new(Pvscsi::default(), 8 << 20));
}

#[test]
fn ioat() {
    let settings = ioat::Config { device: 0x2021, channels: 1, version: 0x34, fault: None };
    any_bit_and_any_moment(|| Metal::new(ioat::Ioat::new(settings), 4 << 20));
}

#[test]
fn ptdma() {
    any_bit_and_any_moment(|| Metal::new(Ptdma::new(None), 4 << 20));
}

#[test]
fn dsa() {
    any_bit_and_any_moment(|| Metal::new(Dsa::new(None), 4 << 20));
}

#[test]
fn ntb() {
    fn one<M: Joined>(functions: [M; 2]) -> Metal<M> {
        let [machine, _] = machines(functions, bridges::MEMORY);
        machine
    }
    any_bit_and_any_moment(|| one(bridges::gen3()));
    any_bit_and_any_moment(|| one(bridges::ice_lake()));
    any_bit_and_any_moment(|| one(bridges::amd()));
    any_bit_and_any_moment(|| one(bridges::switchtec()));
}

#[test]
fn tsi721() {
    any_bit_and_any_moment(|| {
        let topology: rapidio::Topology = "A=B".parse().unwrap();
        let board = |_| rapidio::Board::new(rapidio::Answer::Echo, 1 << 16);
        let network = Arc::new(Mutex::new(rapidio::Network::new(&topology, 1, board)));
        Metal::new(tsi721::Tsi721::new(tsi721::Config::default(), network, 0), 8 << 20)
    });
}
