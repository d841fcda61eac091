use super::{Kind, MAC, Nic};
use crate::testing::TestMachine;
use crate::{Function, Interrupt};

fn write(nic: &mut Nic, machine: &mut TestMachine, at: u64, value: u32) {
    nic.write(0, at, &value.to_le_bytes(), 0, machine);
}

/// A packet is gathered from two descriptors, a frame is scattered to two. Each raises a vector.
#[test]
fn packets_are_sent_and_frames_received() {
    let mut machine = TestMachine::new(1 << 16);
    let mut nic = Nic::new(Kind::E1000e, 2);
    nic.config().write(4, &[7, 0]);
    for (base, ring) in [(0x2800, 0x1000u32), (0x3800, 0x2000)] {
        write(&mut nic, &mut machine, base, ring);
        write(&mut nic, &mut machine, base + 8, 128);
    }
    for n in 0..8u64 {
        let buffer = 0x4000 + n * 2048;
        machine.memory[0x1000 + 16 * n as usize..][..8].copy_from_slice(&buffer.to_le_bytes());
    }
    machine.memory[0x8800..0x8840].fill(7);
    for (n, command) in [(0, 0x2010_0020u32), (1, 0x2910_0020)] {
        let at = 0x2000 + 16 * n;
        machine.memory[at..][..8].copy_from_slice(&(0x8800 + 32 * n as u64).to_le_bytes());
        machine.memory[at + 8..][..4].copy_from_slice(&command.to_le_bytes());
    }
    write(&mut nic, &mut machine, 0x100, 2);
    write(&mut nic, &mut machine, 0x400, 2);
    write(&mut nic, &mut machine, 0xdc, 5 << 20);
    write(&mut nic, &mut machine, 0xe4, 1 << 3 | 1 << 11);
    write(&mut nic, &mut machine, 0xd0, 5 << 20);
    write(&mut nic, &mut machine, 0x2818, 7);
    write(&mut nic, &mut machine, 0x3818, 2);
    nic.arriving.push_back(vec![9; 3000]);
    nic.poll(0, &mut machine);
    assert_eq!(nic.sent, [vec![7; 64]]);
    assert_eq!(machine.memory[0x201c], 1, "done");
    let back =
        |n: usize| u64::from_le_bytes(machine.memory[0x1008 + 16 * n..][..8].try_into().unwrap());
    assert_eq!((back(0), back(1)), (2048 << 32 | 1, 952 << 32 | 3));
    assert_eq!(machine.memory[0x4000 + 2999], 9);
    assert_eq!(machine.interrupts, [Interrupt::Msix(0), Interrupt::Msix(0)]);
    assert_eq!(nic.complaints, [""; 0]);
}

#[test]
fn reset_reloads_the_mac_address() {
    let mut machine = TestMachine::new(16);
    let mut nic = Nic::new(Kind::Igb, 2);
    write(&mut nic, &mut machine, 0x5400, 0);
    write(&mut nic, &mut machine, 0, 1 << 26);
    let mut low = [0; 4];
    nic.read(0, 0x5400, &mut low);
    assert_eq!(low, MAC[..4]);
}
