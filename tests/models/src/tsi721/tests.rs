//! Tests of the model alone, with a minimal driver.

use super::*;
use crate::rapidio::{Answer, Board, Topology};
use crate::testing::TestMachine;
use std::sync::{Arc, Mutex};

const CHANNEL: u64 = 0x58000;
/// Device Control of the PCI Express capability, the first in the list.
const DEVICE_CONTROL: u64 = 0x58;

#[test]
fn block_dma_reads_a_switch_register() {
    let topology: Topology = "A=s0.0,B=s0.3".parse().unwrap();
    let network = Network::new(&topology, 1, |_| Board::new(Answer::Take, 0));
    let mut model = Tsi721::new(Config::default(), Arc::new(Mutex::new(network)), 0);
    let mut machine = TestMachine::new(1 << 16);
    model.config.write(0x04, &6u16.to_le_bytes());
    model.config.write(DEVICE_CONTROL, &0x2000u16.to_le_bytes());
    let write = |model: &mut Tsi721, machine: &mut TestMachine, at: u64, value: u32| {
        model.write(0, at, &value.to_le_bytes(), 0, machine);
    };
    write(&mut model, &mut machine, 0x48004, 4);
    for (at, value) in [(0x24, 0x1000), (0x2c, 0x2000), (0x34, 1), (0x08, 1)] {
        write(&mut model, &mut machine, CHANNEL + at, value);
    }
    // Reads the switch's identity with hop count 0.
    let words = [2 << 29 | 4 << 19 | 0xff, 4, 0];
    for (n, word) in words.into_iter().enumerate() {
        machine.memory[0x1000 + 4 * n..][..4].copy_from_slice(&u32::to_le_bytes(word));
    }
    // The route back: the host's id leads to port 0.
    model.network().switch(0).write(0x70, 0xff);
    model.network().switch(0).write(0x74, 0);
    model.write(0, CHANNEL, &1u32.to_le_bytes(), block_dma::INIT_TIME, &mut machine);
    model.poll(block_dma::INIT_TIME, &mut machine);
    assert_eq!(&machine.memory[0x1010..0x1014], &[0x03, 0x74, 0x00, 0x38]);
    assert_eq!(machine.memory[0x2001], 0x10, "the FIFO names the descriptor");
    assert_eq!(model.register(CHANNEL + 0x14), 0, "neither running nor aborted");
    assert!(model.complaints.is_empty());
}

/// A model with an outstanding message to a board that does not respond.
fn unanswered() -> (Tsi721, TestMachine, Nanoseconds) {
    let topology: Topology = "A=B".parse().unwrap();
    let network = Network::new(&topology, 1, |_| Board::new(Answer::Silence, 0));
    let mut model = Tsi721::new(Config::default(), Arc::new(Mutex::new(network)), 0);
    let mut machine = TestMachine::new(1 << 16);
    model.config.write(0x04, &6u16.to_le_bytes());
    model.config.write(DEVICE_CONTROL, &0x2000u16.to_le_bytes());
    for (at, value) in
        [(0x48004, 4), (0x61020, 0x1000), (0x61040, 0x2000), (0x61048, 1), (0x61008, 5)]
    {
        model.write(0, at, &u32::to_le_bytes(value), 0, &mut machine);
    }
    let words: [u32; 4] = [4 << 29 | 0xff, 0xe << 12 | 8, 0x3000, 0];
    for (n, word) in words.into_iter().enumerate() {
        machine.memory[0x1000 + 4 * n..][..4].copy_from_slice(&word.to_le_bytes());
    }
    let now = block_dma::INIT_TIME;
    model.write(0, 0x61000, &1u32.to_le_bytes(), now, &mut machine);
    let due = model.poll(now, &mut machine).unwrap();
    assert_eq!(model.register(0x61014), 0x20_0000, "running");
    (model, machine, due)
}

#[test]
fn missing_response_aborts_the_channel() {
    let (mut model, mut machine, due) = unanswered();
    assert_eq!(model.poll(due, &mut machine), None);
    assert_eq!(model.register(0x61014), 0x40_0000, "aborted");
    assert_eq!(model.register(0x6100c), 2);
}

/// A busy host may poll later than the response timeout.
#[test]
fn response_that_arrived_before_a_late_poll_is_not_overdue() {
    let (mut model, mut machine, due) = unanswered();
    let kind = Kind::Received { tid: 1, mailbox: 0, status: crate::rapidio::Status::Done };
    let answer = Packet { to: 0xff, from: 0xff, large: false, kind };
    model.network().endpoint(0).inbox.push_back(answer);
    assert_eq!(model.poll(2 * due, &mut machine), None);
    assert_eq!(model.register(0x61014), 0, "neither running nor aborted");
    assert_eq!(model.register(0x61004), 1, "done");
}

#[test]
fn running_channel_is_initialized_only_once_it_is_suspended() {
    let (mut model, mut machine, _) = unanswered();
    let write = |model: &mut Tsi721, machine: &mut TestMachine, at: u64, value: u32, now| {
        model.write(0, at, &value.to_le_bytes(), now, machine);
    };
    let now = 100_000;
    write(&mut model, &mut machine, 0x61008, 5, now);
    assert_eq!(model.register(0x61014), 0x20_0000, "it runs on");
    assert_eq!(model.complaints, [block_dma::RUNS]);
    write(&mut model, &mut machine, 0x61008, 2, now);
    assert_eq!(model.register(0x61014), 0x20_0000, "suspending takes time");
    model.poll(now + block_dma::SUSPEND_TIME, &mut machine);
    assert_eq!((model.register(0x61014), model.register(0x6100c) & 4), (0, 4));
    let now = now + 50_000;
    write(&mut model, &mut machine, 0x61008, 5, now);
    write(&mut model, &mut machine, 0x61000, 1, now + block_dma::INIT_TIME - 1);
    assert_eq!(model.register(0x61000), 0, "a descriptor during the initialization is lost");
    write(&mut model, &mut machine, 0x61000, 1, now + block_dma::INIT_TIME);
    model.poll(now + block_dma::INIT_TIME, &mut machine);
    assert_eq!((model.register(0x61014), model.complaints.len()), (0x20_0000, 1));
}

#[test]
fn completion_overtakes_data_while_ordering_is_relaxed() {
    let (mut model, mut machine, due) = unanswered();
    model.config.write(DEVICE_CONTROL, &0x2810u16.to_le_bytes());
    assert!(model.put(0x5000, &[7], &mut machine));
    assert_eq!((machine.memory[0x5000], model.complaints.len()), (0, 1));
    model.poll(due - 1, &mut machine);
    assert_eq!(machine.memory[0x5000], 7);
}
