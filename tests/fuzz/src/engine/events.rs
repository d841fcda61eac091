//! Effects of the input's events on a node or on the wire.

use super::*;
use verbs::MemoryVerbs;

impl World {
    pub(super) fn event(&mut self, input: &mut Input<'_>) {
        let what = input.byte() % 16;
        let n = input.byte() as usize % 2;
        match what {
            0 => self.post_send(n, input),
            1 => {
                let node = &mut self.nodes[n];
                let len = input.word() as usize % 3000;
                let into = [node.local.slice(0, len).expect("inside")];
                let into = if len == 0 { &[][..] } else { &into };
                if let Some(&qp) = node.qps.get(input.below(node.qps.len())) {
                    let _ = node.roce.post_recv(qp, &RecvRequest { id: 1 << 40, into });
                }
            }
            2 => {
                self.collect();
                for _ in 0..1 + n {
                    if let Some((to, frame)) = self.wire.pop_front() {
                        self.deliver(to, &frame);
                    }
                }
            }
            3 => drop(self.wire.pop_front()),
            4 => {
                if let Some(frame) = self.wire.front().cloned() {
                    self.wire.push_back(frame);
                }
            }
            5 => {
                let (a, b) = (input.below(self.wire.len()), input.below(self.wire.len()));
                if !self.wire.is_empty() {
                    self.wire.swap(a, b);
                }
            }
            6 => {
                self.collect();
                let Some((to, mut frame)) = self.wire.pop_front() else { return };
                for _ in 0..1 + n {
                    let at = input.below(frame.len());
                    frame[at] = input.byte();
                }
                seal(&mut frame);
                self.deliver(to, &frame);
            }
            7 => {
                let len = input.word() as usize % 2048;
                let mut frame = input.take(len).to_vec();
                self.deliver(n, &frame);
                // Repeated with the addresses of this node.
                if frame.len() > 42 {
                    frame[..12].copy_from_slice(&[mac(n), mac(1 - n)].concat());
                    seal(&mut frame);
                    self.deliver(n, &frame);
                }
            }
            8 => {
                self.now = self.now + Duration::from_nanos(1 << (input.byte() % 36));
                self.nodes.iter_mut().for_each(|node| node.roce.handle_timeout(self.now));
            }
            9 => self.connect(n, input),
            10 => self.handle_cm_event(n, input),
            11 => {
                let node = &mut self.nodes[n];
                if node.qps.len() > 1 || input.byte() > 200 {
                    let at = input.below(node.qps.len());
                    if at < node.qps.len() {
                        node.roce.destroy_qp(node.qps.remove(at)).expect("the queue pair exists");
                    }
                }
            }
            12 => self.change_region(n, input),
            13 => self.odd_queue_pair(n, input),
            14 => self.forge(n, input),
            _ => self.change_node(n, input),
        }
    }

    pub(super) fn post_send(&mut self, n: usize, input: &mut Input<'_>) {
        let theirs: Vec<RemoteAddress> = self.nodes[1 - n]
            .regions
            .iter()
            .map(|region| RemoteAddress { address: region.address, rkey: region.rkey })
            .collect();
        let secret = self.nodes[1 - n].secret;
        let node = &mut self.nodes[n];
        let Some(&qp) = node.qps.get(input.below(node.qps.len())) else { return };
        let kind = input.byte();
        let len = input.word() as usize % 2048;
        let offset = input.word() as usize % 9000;
        let mut to = theirs
            .get(input.below(theirs.len()))
            .copied()
            .unwrap_or(RemoteAddress { address: 0, rkey: 0 });
        if kind & 0x18 == 0x18 {
            to = RemoteAddress { address: secret.address, rkey: secret.rkey };
        }
        to.address = to.address.wrapping_add(offset as u64 & !7);
        if kind & 0x80 != 0 {
            to.rkey ^= 1 << (offset % 32);
        }
        let window = [node.local.slice(4096, len).expect("inside")];
        let into = node.local.slice(4096 + 2048, 8).expect("inside");
        let inline = [kind; 64];
        let payload = if kind & 0x40 != 0 {
            Payload::Inline(&inline[..len % 65])
        } else {
            Payload::Windows(&window)
        };
        let value = u64::from(input.word());
        let operation = match kind % 8 {
            0 => SendOperation::Send { payload, with: SendWith::Nothing },
            1 => SendOperation::Send { payload, with: SendWith::Immediate(7) },
            2 => SendOperation::Send { payload, with: SendWith::Invalidate(to.rkey) },
            3 => SendOperation::Write { payload, to, immediate: None },
            4 => SendOperation::Write { payload, to, immediate: Some(9) },
            5 => SendOperation::Read { into: &window, from: to },
            6 => SendOperation::FetchAdd { into, at: to, add: value },
            _ => SendOperation::CompareSwap { into, at: to, compare: 0, swap: value },
        };
        let signaled = kind & 0x20 == 0;
        let request = SendRequest {
            id: value,
            operation,
            signaled,
            solicited: true,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        let _ = node.roce.post_send(qp, &request);
        while let Some(completion) = node.roce.poll_cq(node.cq) {
            assert!(node.qps.contains(&completion.qp), "a completion of a destroyed queue pair");
        }
    }

    pub(super) fn connect(&mut self, n: usize, input: &mut Input<'_>) {
        let node = &mut self.nodes[n];
        let init = init(node.pd, node.cq, 8);
        let Ok(qp) = node.roce.create_qp(&init, &mut self.rng) else { return };
        node.qps.push(qp);
        let port = if input.byte() > 250 { 1 } else { 7000 };
        let parameters = parameters(input);
        let private = leak::plain(input.take(8));
        let (now, rng) = (self.now, &mut self.rng);
        let to = SocketAddr::new(ip(1 - n), port);
        let _ = node.roce.connect(qp, ip(n), to, &parameters, &private, now, rng);
    }

    pub(super) fn handle_cm_event(&mut self, n: usize, input: &mut Input<'_>) {
        let node = &mut self.nodes[n];
        while node.roce.poll_event().is_some() {}
        let Some(event) = node.roce.poll_connection_event() else { return };
        match event {
            ConnectionEvent::Request { connection, .. } => {
                let parameters = parameters(input);
                let init = init(node.pd, node.cq, 8);
                match input.below(4) {
                    0 => {
                        let reason = RejectReason::CONSUMER;
                        let private = leak::plain(input.take(9));
                        let _ = node.roce.reject(connection, reason, &private);
                    }
                    1 => drop(node.roce.disconnect(connection, self.now)),
                    _ => {
                        let private = leak::plain(input.take(5));
                        let accepted = node.roce.create_qp(&init, &mut self.rng).and_then(|qp| {
                            node.qps.push(qp);
                            node.roce.accept(connection, qp, &parameters, &private, self.now)
                        });
                        if accepted.is_err() {
                            let reason = RejectReason::NO_RESOURCES;
                            let _ = node.roce.reject(connection, reason, b"");
                        }
                    }
                }
            }
            ConnectionEvent::Established { connection, .. } if input.byte() > 200 => {
                let _ = node.roce.disconnect(connection, self.now);
            }
            _ => (),
        }
    }

    pub(super) fn change_region(&mut self, n: usize, input: &mut Input<'_>) {
        let node = &mut self.nodes[n];
        let at = input.below(node.regions.len());
        match (input.below(4), node.regions.get_mut(at)) {
            (0, Some(region)) => node.roce.revoke_key(region.id).expect("the region exists"),
            (1, Some(region)) => {
                region.rkey =
                    node.roce.rotate_key(region.id, &mut self.rng).expect("the region exists");
            }
            (2, Some(region)) => {
                node.roce.deregister(region.id).expect("the region exists");
                node.regions.remove(at);
            }
            _ => {
                let (from, len) = (input.word() as usize % 8192, input.word() as usize);
                let part = node.ground.slice(from, len.min(8192 - from)).expect("inside");
                let access = Access::from_bits_truncate(input.byte());
                if let Ok(region) = node.roce.register(node.pd, part, access, &mut self.rng) {
                    node.regions.push(region);
                }
            }
        }
    }

    /// A queue pair with any parameters, reliable or not.
    pub(super) fn odd_queue_pair(&mut self, n: usize, input: &mut Input<'_>) {
        let theirs = &self.nodes[1 - n];
        let remote_qpn = theirs.qps.first().and_then(|&qp| theirs.roce.qp_number(qp).ok());
        let node = &mut self.nodes[n];
        let mut init = init(node.pd, node.cq, u32::from(input.byte()) % 40);
        if input.byte() & 1 == 0 {
            init.kind = QpType::Ud { qkey: 5 };
        }
        let Ok(qp) = node.roce.create_qp(&init, &mut self.rng) else { return };
        node.qps.push(qp);
        let peer = ReadyToReceive {
            remote_qpn: remote_qpn.unwrap_or(2),
            rq_psn: u32::from(input.word()) << 8,
            path_mtu: PathMtu::from_code(input.byte() % 6).unwrap_or(PathMtu::Mtu256),
            address: address(n),
            max_dest_rd_atomic: input.byte() % 20,
            min_rnr_timer: input.byte() % 40,
        };
        let _ = node.roce.ready_to_receive(qp, &peer);
        let to = ReadyToSend {
            sq_psn: u32::from(input.word()) << 8,
            max_rd_atomic: input.byte() % 20,
            ack_timeout: input.byte() % 40,
            retry_count: input.byte() % 10,
            rnr_retry: input.byte() % 10,
        };
        let _ = node.roce.ready_to_send(qp, &to);
    }

    /// A packet for a queue pair, from its peer and with a correct ICRC. The input determines opcode, PSN (near the
    /// expected one), and the rest.
    pub(super) fn forge(&mut self, n: usize, input: &mut Input<'_>) {
        let node = &self.nodes[n];
        let Some(&qp) = node.qps.get(input.below(node.qps.len())) else { return };
        let number = node.roce.qp_number(qp).expect("the queue pair exists");
        let packets = node.roce.requests_seen(qp).unwrap_or(0);
        let psn = 0xff_fffau32.wrapping_add(packets).wrapping_add(u32::from(input.byte() % 8));
        let mut transport = vec![input.byte(), input.byte() & 0x70, 0xff, 0xff, 0];
        transport.extend(&number.to_be_bytes()[1..]);
        transport.push(input.byte() & 0x80);
        transport.extend(&psn.wrapping_sub(2).to_be_bytes()[1..]);
        if let (true, Some(region)) = (input.byte() & 1 == 0, node.regions.first()) {
            let offset = u64::from(input.word()) % 8300;
            transport.extend((region.address + offset).to_be_bytes());
            transport.extend(region.rkey.to_be_bytes());
        }
        let len = input.word() as usize % 600;
        transport.extend(input.take(len));
        transport.resize(transport.len().next_multiple_of(4) + 4, 0);
        let mut frame = crate::ip::v4(
            17,
            [10, 0, 0, 2 - n as u8],
            [10, 0, 0, 1 + n as u8],
            &[
                &[0xc0, 0, 0x12, 0xb7][..],
                &(8 + transport.len() as u16).to_be_bytes(),
                &[0, 0],
                &transport,
            ]
            .concat(),
        );
        frame[..12].copy_from_slice(&[mac(n), mac(1 - n)].concat());
        frame[40..42].fill(0);
        seal(&mut frame);
        self.deliver(n, &frame);
    }

    pub(super) fn change_node(&mut self, n: usize, input: &mut Input<'_>) {
        let node = &mut self.nodes[n];
        match input.below(5) {
            0 => node.roce.set_link(0, input.byte() & 1 == 0),
            1 => {
                let addresses = if input.byte() & 3 == 0 { vec![] } else { vec![ip(n)] };
                node.roce.set_addresses(0, addresses);
            }
            2 => {
                if let Some(&qp) = node.qps.get(input.below(node.qps.len())) {
                    node.roce.fail_qp(qp).expect("the queue pair exists");
                }
            }
            3 => node.roce.unlisten(7000),
            _ => drop(node.roce.listen(7000)),
        }
    }
}
