//! Doorbells, transfers, windows and port-writes: accesses to the registers and memory of both ends.

use super::*;

#[test]
fn doorbells_ring_both_ways_through_laps_of_the_queue() {
    let network = network("A=B", 2, Answer::Take);
    let mut a = Host::on(&network, 0, Config::default());
    let mut b = Host::on(&network, 1, Config::default());
    a.port.set_own_id(IdSize::Small, 1);
    b.port.set_own_id(IdSize::Small, 2);
    for _ in 0..500 {
        a.turns(1);
        b.turns(1);
    }
    assert!(a.port.link_up() && b.port.link_up());
    for n in 0..1500u16 {
        a.port.ring_doorbell(2, n).unwrap();
        a.turns(1);
        b.turns(1);
        assert_eq!(b.port.doorbell(), Some(Doorbell { from: 1, to: 2, info: n }));
        assert_eq!(b.port.doorbell(), None);
    }
    // A queue that is not read fills. The remaining doorbells arrive when it is read.
    for n in 0..600u16 {
        a.port.ring_doorbell(2, n).unwrap();
        a.turns(1);
        b.machine.run();
    }
    let mut seen = Vec::new();
    for _ in 0..400 {
        while let Some(doorbell) = b.port.doorbell() {
            seen.push(doorbell.info);
        }
        b.turns(1);
        a.turns(1);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..600).collect::<Vec<_>>());
}

#[test]
fn data_is_read_and_written_in_a_board_s_memory() {
    let mut host = Host::with_board(Answer::Take);
    let memory = host.memory(40_000);
    let bytes: Vec<u8> = (0..40_000u32).map(|n| (n % 251) as u8).collect();
    memory.write(0, &bytes).unwrap();
    let part = |at, len| memory.slice(at, len).unwrap();
    for direction in [Direction::Write, Direction::WriteWithResponse] {
        host.network().board(1).memory.fill(0);
        let ended = host.transfer(direction, 1003, part(5, 30_001));
        assert_eq!(ended, Transferred { tag: 1003, result: Ok(()) });
        assert_eq!(host.network().board(1).memory[1003..31_004], bytes[5..30_006]);
        assert_eq!(host.network().board(1).memory[31_004], 0);
    }
    memory.fill(0);
    assert_eq!(host.transfer(Direction::Read, 1003, part(64, 500)).result, Ok(()));
    let mut back = vec![0; 500];
    memory.read(64, &mut back).unwrap();
    assert_eq!(back, bytes[5..505]);
    // A transfer beyond the board's memory fails, and the next one is executed.
    let refused = host.transfer(Direction::Read, 1 << 20, part(0, 8));
    assert_eq!(refused.result, Err(Ended::Refused));
    assert_eq!(host.transfer(Direction::Read, 1003, part(64, 500)).result, Ok(()));
    let nothing = host.transfer(Direction::Read, 0, Window::empty());
    assert_eq!(nothing.result, Err(Ended::Refused));
    assert!(host.complaints().is_empty());
}

#[test]
fn transfers_after_a_failed_one_are_executed() {
    let mut host = Host::with_board(Answer::Take);
    let memory = host.memory(64 * 64);
    for round in 0..5u64 {
        for n in 0..63 {
            let address = if n == 30 { 1 << 30 } else { n * 64 };
            let memory = memory.slice(n as usize * 64, 64).unwrap();
            let tag = round * 100 + n;
            let transfer = Transfer {
                tag,
                direction: Direction::WriteWithResponse,
                device: 7,
                address,
                memory,
            };
            host.port.transfer(&transfer).unwrap();
        }
        let mut ended: Vec<Transferred> = (0..63).map(|_| host.ended()).collect();
        ended.sort_by_key(|one| one.tag);
        for (n, one) in ended.into_iter().enumerate() {
            let result = if n == 30 { Err(Ended::Refused) } else { Ok(()) };
            assert_eq!(one, Transferred { tag: round * 100 + n as u64, result });
        }
    }
}

#[test]
fn windows_give_access_to_memory_in_both_directions() {
    let network = network("A=s0.0,B=s0.1,C=s0.2", 2, Answer::Take);
    let settings = Config { outbound: 1 << 20, ..Config::default() };
    let mut a = Host::on(&network, 0, settings);
    let mut b = Host::on(&network, 1, Config::default());
    a.port.set_own_id(IdSize::Small, 1);
    b.port.set_own_id(IdSize::Small, 7);
    {
        let mut network = network.lock().unwrap();
        network.endpoint(2).write(csr::BASE_ID, 3 << 16);
        for (id, port) in [(1, 0), (7, 1), (3, 2)] {
            network.switch(0).write(csr::ROUTE_ID, id);
            network.switch(0).write(csr::ROUTE_PORT, port);
        }
    }
    a.turns(500);
    b.turns(500);
    let exposed = b.memory(8192).slice(0, 8192).unwrap();
    let aligned = b.machine.arena().alloc(8192, 8192).unwrap();
    assert_eq!(b.port.map_inbound(0x1_0000_1000, aligned), Err(WindowError::Alignment));
    assert_eq!(b.port.map_inbound(0, exposed.slice(0, 100).unwrap()), Err(WindowError::Alignment));
    let map = b.port.map_inbound(0x1_0000_0000, aligned).unwrap();
    let memory = a.memory(4096);
    memory.write(0, b"across").unwrap();
    let part = memory.slice(0, 6).unwrap();
    let write = |address| Transfer {
        tag: 1,
        direction: Direction::WriteWithResponse,
        device: 7,
        address,
        memory: part,
    };
    let end = |a: &mut Host, b: &mut Host, address| {
        a.port.transfer(&write(address)).unwrap();
        for _ in 0..200 {
            a.turns(1);
            b.turns(1);
            if let Some(ended) = a.port.transferred() {
                return ended.result;
            }
        }
        panic!("no end")
    };
    assert_eq!(end(&mut a, &mut b, 0x1_0000_1ffa), Ok(()));
    let mut bytes = [0; 6];
    aligned.read(0x1ffa, &mut bytes).unwrap();
    assert_eq!(&bytes, b"across");
    assert_eq!(end(&mut a, &mut b, 0x1_0000_1ffb), Err(Ended::Refused), "beyond the end");
    b.port.unmap_inbound(map);
    assert_eq!(end(&mut a, &mut b, 0x1_0000_0000), Err(Ended::Refused), "unmapped");
    // Accesses the board's memory by loads and stores.
    assert_eq!(b.port.map_outbound(3, 0, 1 << 15), Err(WindowError::Unsupported));
    assert_eq!(a.port.map_outbound(3, 0x4000, 1 << 15), Err(WindowError::Alignment));
    let first = a.port.map_outbound(3, 0, 1 << 15).unwrap();
    let second = a.port.map_outbound(3, 0x8000, 1 << 15).unwrap();
    a.port.store(&second, 0x7ffc, 0x0403_0201);
    assert_eq!(network.lock().unwrap().board(2).memory[0xfffc..], [1, 2, 3, 4]);
    network.lock().unwrap().board(2).memory[0x10..0x14].copy_from_slice(&[5, 6, 7, 8]);
    assert_eq!(a.port.load(&first, 0x10), 0x0807_0605);
    assert_eq!(a.port.load(&first, 0x8000), u32::MAX, "outside");
    a.port.unmap_outbound(second);
    a.port.store(&second, 0x7ffc, 0);
    assert_eq!(network.lock().unwrap().board(2).memory[0xfffc..], [1, 2, 3, 4]);
}

#[test]
fn port_writes_are_captured_and_their_loss_is_counted() {
    let network = network("A=s0.0,B=s0.1", 1, Answer::Take);
    let mut host = Host::on(&network, 0, Config::default());
    host.port.set_own_id(IdSize::Small, 1);
    host.turns(500);
    {
        let mut network = host.network();
        let switch = network.switch(0);
        for (offset, value) in
            [(csr::ROUTE_ID, 1), (csr::ROUTE_PORT, 0), (0x1028, 1 << 16), (csr::COMPONENT_TAG, 2)]
        {
            switch.write(offset, value);
        }
        switch.write(0x00f4_0104, 0x0800_0000);
        network.cut(End::Endpoint(1), true);
    }
    host.turns(500);
    let port_write = host.port.port_write().unwrap();
    assert_eq!((port_write.component_tag, port_write.port & 0xff), (2, 1));
    assert_eq!(host.port.port_write(), None);
    for cut in [false, true, false] {
        host.network().cut(End::Endpoint(1), cut);
        host.machine.run();
    }
    host.turns(500);
    assert!(host.port.port_write().is_some());
    assert_eq!(host.port.port_write(), None);
    assert_eq!(host.port.counters().port_writes_lost, 1);
}
