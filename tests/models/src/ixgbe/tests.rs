use super::{Config, Ixgbe, IxgbeVf, MAC};
use crate::offload;
use crate::testing::TestMachine;
use crate::{Function, Interrupt};

fn write(nic: &mut Ixgbe, machine: &mut TestMachine, at: u64, value: u32) {
    nic.write(0, at, &value.to_le_bytes(), 0, machine);
}

fn read(nic: &mut Ixgbe, at: u64) -> u32 {
    let mut bytes = [0; 4];
    nic.read(0, at, &mut bytes);
    u32::from_le_bytes(bytes)
}

/// A function with send and receive enabled, and rings of eight descriptors at 0x1000 and 0x2000.
fn running(machine: &mut TestMachine) -> Ixgbe {
    let mut nic = Ixgbe::new(Config::default());
    nic.config().write(4, &[7, 0]);
    for (at, value) in [
        (0x5080, 1 << 10 | 1 << 9), // all addresses
        (0x4240, 1 << 1 | 1 << 2 | 1 << 10),
        (0x4268, 9000 << 16),
        (0x2f00, 1 << 1),
        (0x1000, 0x1000),
        (0x1008, 128),
        (0x1014, 2 | 1 << 25),
        (0x1028, 1 << 25),
        (0x8d00, 2),
        (0x3000, 1),
        (0x8d00, 0),
        (0x4a80, 1),
        (0x6000, 0x2000),
        (0x6008, 128),
        (0x6028, 1 << 25),
        (0x0898, 1 << 4 | 1 << 31),
        (0x0900, 0x8180),
        (0x0810, 3),
        (0x0880, 3),
    ] {
        write(&mut nic, machine, at, value);
    }
    // The queues read as enabled from the second read on.
    for at in [0x1028, 0x6028] {
        assert_eq!(read(&mut nic, at) & 1 << 25, 0);
        assert_eq!(read(&mut nic, at) & 1 << 25, 1 << 25);
    }
    for n in 0..8u64 {
        let buffer = 0x4000 + n * 2048;
        machine.memory[0x1000 + 16 * n as usize..][..8].copy_from_slice(&buffer.to_le_bytes());
    }
    nic
}

/// A packet is gathered from two descriptors, a frame is scattered to two. Each raises its vector.
#[test]
fn packets_are_sent_and_frames_received() {
    let machine = &mut TestMachine::new(1 << 16);
    let mut nic = running(machine);
    machine.memory[0x8800..0x8840].fill(7);
    for (n, command) in [(0, 0x2230_0020u32), (1, 0x2b30_0020)] {
        let at = 0x2000 + 16 * n;
        machine.memory[at..][..8].copy_from_slice(&(0x8800 + 32 * n as u64).to_le_bytes());
        machine.memory[at + 8..][..4].copy_from_slice(&command.to_le_bytes());
        machine.memory[at + 12..][..4].copy_from_slice(&(64u32 << 14).to_le_bytes());
    }
    write(&mut nic, machine, 0x1018, 7);
    write(&mut nic, machine, 0x6018, 2);
    nic.arriving.push_back(vec![8; 3000]);
    nic.poll(0, machine);
    assert_eq!(nic.complaints(), [""; 0]);
    assert_eq!(nic.sent, [vec![7; 64]]);
    assert_eq!(machine.memory[0x201c], 1, "done");
    let back =
        |n: usize| u64::from_le_bytes(machine.memory[0x1008 + 16 * n..][..8].try_into().unwrap());
    assert_eq!((back(0), back(1)), (2048 << 32 | 1, 952 << 32 | 3));
    assert_eq!(machine.memory[0x4000 + 2999], 8);
    assert_eq!(machine.interrupts, [Interrupt::Msix(1), Interrupt::Msix(0)]);
    // The read clears the statistics.
    assert_eq!((read(&mut nic, 0x4074), read(&mut nic, 0x4074)), (1, 0));
    assert_eq!((read(&mut nic, 0x4090), read(&mut nic, 0x4090)), (68, 0));
    assert_eq!((read(&mut nic, 0x1030), read(&mut nic, 0x1030)), (1, 0));
}

/// Legacy descriptors, as of the 82598 and older chips: checksum insertion; status and length after the address.
#[test]
fn legacy_descriptors_are_understood() {
    let machine = &mut TestMachine::new(1 << 16);
    let mut nic = running(machine);
    write(&mut nic, machine, 0x1014, 2);
    machine.memory[0x8800..0x8840].fill(7);
    machine.memory[0x8832..0x8834].fill(0);
    // The checksum of all bytes from 16 on is inserted at 50; end of packet, FCS, checksum, report status.
    let words = [0x8800u32, 0, 64 | 50 << 16 | 0xf << 24, 16 << 8];
    for (n, word) in words.into_iter().enumerate() {
        machine.memory[0x2000 + 4 * n..][..4].copy_from_slice(&word.to_le_bytes());
    }
    write(&mut nic, machine, 0x1018, 7);
    write(&mut nic, machine, 0x6018, 1);
    nic.arriving.push_back(vec![8; 100]);
    nic.poll(0, machine);
    assert_eq!(nic.complaints(), [""; 0]);
    assert_eq!(offload::sum(&nic.sent[0][16..], 0), 0xffff);
    let back = u64::from_le_bytes(machine.memory[0x1008..][..8].try_into().unwrap());
    assert_eq!(back, 3 << 32 | 100, "done and end of packet");
    assert_eq!(machine.memory[0x1000..0x1008], 0x4000u64.to_le_bytes());
}

/// A context descriptor, and a packet that it splits into three frames with a tag.
#[test]
fn tcp_packets_are_segmented() {
    let machine = &mut TestMachine::new(1 << 16);
    let mut nic = running(machine);
    let mut packet = vec![2; 14];
    packet[12..14].copy_from_slice(&[8, 0]);
    packet.extend([0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([0, 80, 0, 81, 0, 0, 0, 5, 0, 0, 0, 6, 0x50, 0x19, 1, 0, 0, 0, 0, 0]);
    packet.extend((0..2500).map(|n| n as u8));
    machine.memory[0x8800..][..packet.len()].copy_from_slice(&packet);
    let context =
        [14 << 9 | 20 | 7 << 16, 0, 0x2020_0000 | 1 << 10 | 1 << 11, 20 << 8 | 1000 << 16];
    let data = [0x8800, 0, 0xeb30_0000 | packet.len() as u32, 2500 << 14 | 3 << 8];
    for (n, word) in context.into_iter().chain(data).enumerate() {
        machine.memory[0x2000 + 4 * n..][..4].copy_from_slice(&u32::to_le_bytes(word));
    }
    write(&mut nic, machine, 0x6018, 2);
    nic.poll(0, machine);
    assert_eq!(nic.complaints(), [""; 0]);
    let lengths: Vec<usize> = nic.sent.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1058, 1058, 558]);
    for frame in &nic.sent {
        assert_eq!(frame[12..16], [0x81, 0, 0, 7]);
        assert_eq!(offload::check_sums(frame), (true, true));
    }
}

/// A frame goes to the queue that the redirection table has for its hash. The descriptor reports the hash.
#[test]
fn queues_are_selected_by_hash() {
    let machine = &mut TestMachine::new(1 << 16);
    let mut nic = running(machine);
    for (at, value) in [
        (0x1040, 0x3000),
        (0x1048, 128),
        (0x1054, 2 | 1 << 25),
        (0x1068, 1 << 25),
        (0x5000, 1 << 13),
        (0x5818, 1 | 1 << 16),
    ] {
        write(&mut nic, machine, at, value);
    }
    (0..2).for_each(|_| _ = read(&mut nic, 0x1068));
    (0..10).for_each(|n| write(&mut nic, machine, 0x5c80 + 4 * n, 0x0102_0304 * (n as u32 + 1)));
    (0..32).for_each(|n| write(&mut nic, machine, 0x5c00 + 4 * n, 0x0101_0101));
    machine.memory[0x3000..0x3008].copy_from_slice(&0x6000u64.to_le_bytes());
    write(&mut nic, machine, 0x1058, 7);
    write(&mut nic, machine, 0x1018, 7);
    let mut frame = vec![2; 14];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame.extend([0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 80, 0, 81, 0, 0, 0, 5, 0, 0, 0, 6, 0x50, 0x19, 1, 0, 0, 0, 0, 0]);
    nic.arriving.push_back(frame);
    nic.poll(0, machine);
    let word = |at: usize| u32::from_le_bytes(machine.memory[at..][..4].try_into().unwrap());
    assert_eq!(word(0x3000) & 0xf, 1, "RSS type IPv4 with TCP");
    assert_ne!(word(0x3004), 0);
    assert_eq!(word(0x300c), 54);
    assert_eq!(word(0x1008), 0, "the first queue receives no frame");
}

/// The driver must lock the mailbox before it writes, and a packet needs a context with its header length.
#[test]
fn virtual_function_rejects_invalid_accesses() {
    let machine = &mut TestMachine::new(1 << 16);
    let mut nic = IxgbeVf::new(Config::default());
    nic.config().write(4, &[7, 0]);
    let write = |nic: &mut IxgbeVf, machine: &mut TestMachine, at: u64, value: u32| {
        nic.write(0, at, &value.to_le_bytes(), 0, machine);
    };
    let read = |nic: &mut IxgbeVf, at: u64| {
        let mut bytes = [0; 4];
        nic.read(0, at, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    write(&mut nic, machine, 0x200, 1);
    write(&mut nic, machine, 0x2fc, 1);
    assert_eq!(nic.complaints().len(), 2);
    for (at, value) in [(0x2fc, 4), (0x200, 1), (0x2fc, 1)] {
        write(&mut nic, machine, at, value);
    }
    nic.poll(0, machine);
    assert_eq!(read(&mut nic, 0x2fc), 0x30, "the mailbox has a reply");
    assert_eq!(read(&mut nic, 0x200), 0x8000_0001);
    assert_eq!(read(&mut nic, 0x204).to_le_bytes(), MAC[..4]);
    for (at, value) in [(0x2000, 0x2000), (0x2008, 128), (0x2028, 1 << 25)] {
        write(&mut nic, machine, at, value);
    }
    (0..2).for_each(|_| _ = read(&mut nic, 0x2028));
    let data = [0x8800u32, 0, 0x2b30_0040, 64 << 14];
    for (n, word) in data.into_iter().enumerate() {
        machine.memory[0x2000 + 4 * n..][..4].copy_from_slice(&word.to_le_bytes());
    }
    write(&mut nic, machine, 0x2018, 1);
    nic.poll(0, machine);
    assert_eq!(nic.complaints().len(), 4, "{:?}", nic.complaints());
    assert_eq!(nic.sent, [[0u8; 0]; 0]);
}

#[test]
fn forbidden_accesses_are_refused() {
    let machine = &mut TestMachine::new(1 << 16);
    for (at, value) in [
        (0x1000, 0x1080),       // the ring of an enabled queue
        (0x6018, 8),            // a tail beyond the ring
        (0x1058, 1),            // the tail of a disabled queue
        (0x1048, 100),          // an invalid ring length
        (0x1054, 2 | 2 << 25),  // header split
        (0x1054, 0),            // a buffer size of 0
        (0x10160, 1),           // SW_FW_SYNC without the semaphores
        (0x0028, 15),           // the module without its semaphore
        (0x0900, 0x90),         // a vector that is not modelled
        (0x0000, 1 << 26),      // a reset with bus mastering enabled
        (0x3000, 1),            // RXEN while frames still arrive
        (0x10014, 0x1000 << 2), // a word beyond the EEPROM
    ] {
        let mut nic = running(machine);
        assert_eq!(nic.complaints(), [""; 0]);
        write(&mut nic, machine, at, value);
        assert_eq!(nic.complaints().len(), 1, "{at:#x}");
    }
    let mut nic = running(machine);
    nic.read(0, 0x8, &mut [0; 2]);
    nic.write(0, 0x1018, &[0; 8], 0, machine);
    assert_eq!(nic.complaints().len(), 2);
}

#[test]
fn reset_reloads_the_mac_address_and_completes() {
    let machine = &mut TestMachine::new(16);
    let mut nic = Ixgbe::new(Config::default());
    write(&mut nic, machine, 0xa200, 0);
    write(&mut nic, machine, 0, 1 << 2);
    assert_eq!(read(&mut nic, 8) & 1 << 19, 0);
    write(&mut nic, machine, 0, 1 << 26);
    assert_eq!((read(&mut nic, 0), read(&mut nic, 0)), (1 << 26, 0));
    assert_eq!(read(&mut nic, 0xa200).to_le_bytes(), MAC[..4]);
    assert_eq!(nic.complaints(), [""; 0]);
}

/// Reads a byte of the module as Linux does.
#[test]
fn module_is_read_over_the_two_wire_bus() {
    let machine = &mut TestMachine::new(16);
    let mut nic = Ixgbe::new(Config::default());
    for value in [read(&mut nic, 0x10140) | 1, 3] {
        write(&mut nic, machine, 0x10140, value);
    }
    write(&mut nic, machine, 0x10160, 2);
    let mut line = |clock: u32, data: u32| {
        write(&mut nic, machine, 0x28, clock << 1 | data << 3);
        read(&mut nic, 0x28) >> 2 & 1
    };
    let start = |line: &mut dyn FnMut(u32, u32) -> u32| {
        line(0, 1);
        line(1, 1);
        line(1, 0);
        line(0, 0);
    };
    let send = |line: &mut dyn FnMut(u32, u32) -> u32, byte: u32| {
        for bit in (0..8).rev() {
            let data = byte >> bit & 1;
            line(0, data);
            line(1, data);
            line(0, data);
        }
        line(0, 1);
        let answer = line(1, 1);
        line(0, 1);
        answer
    };
    start(&mut line);
    assert_eq!(send(&mut line, 0xa0), 0, "the module acknowledges");
    assert_eq!(send(&mut line, 8), 0);
    start(&mut line);
    assert_eq!(send(&mut line, 0xa1), 0);
    let mut byte = 0;
    for _ in 0..8 {
        byte = byte << 1 | line(1, 1);
        line(0, 1);
    }
    assert_eq!(byte, 4, "a passive cable");
    start(&mut line);
    assert_eq!(send(&mut line, 0xa2), 1, "no device has the other address");
    assert_eq!(nic.complaints(), [""; 0]);
}
