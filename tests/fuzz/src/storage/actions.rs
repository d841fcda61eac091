//! The attacker's actions, from the input.

use super::*;

impl World {
    pub(super) fn act(&mut self, input: &mut Input<'_>) {
        let what = input.byte() % 14;
        match what {
            0..=2 => self.io(input),
            3 => {
                // Bytes anywhere in a chunk, announced or not.
                let chunk = input.below(usize::from(DEPTH)) as u16;
                let Some(&to) = self.chunks.get(usize::from(chunk)) else { return };
                let at = u32::from(input.word()) % (CHUNK + 64);
                let bytes = leak::plain(input.take(64));
                let message = self.staging.slice(0, bytes.len()).expect("inside");
                message.write(0, &bytes).expect("inside");
                let flags = input.byte();
                let place = self.places.join(chunk, u32::from(input.word()) % CHUNK);
                let key = if flags & 0x40 != 0 { to.key ^ (1 << (flags & 31)) } else { to.key };
                let operation = SendOperation::Write {
                    payload: Payload::Windows(&[message]),
                    to: RemoteAddress { address: to.address + u64::from(at), rkey: key },
                    immediate: (flags & 0x80 == 0).then(|| Immediate::Request { place }.emit()),
                };
                self.post(1 + usize::from(flags & 1), operation);
            }
            4 => self.settle(),
            5 => {
                // Verbs that a client of RTRS does not use.
                let chunk = input.below(usize::from(DEPTH));
                let Some(&at) = self.chunks.get(chunk) else { return };
                let kind = input.byte();
                let offset = u64::from(input.word()) & !7;
                let from = RemoteAddress { address: at.address + offset, rkey: at.key };
                let len = usize::from(input.word()) % 4096;
                let into = [self.data.0.slice(0, len).expect("inside")];
                let eight = self.data.0.slice(8192, 8).expect("inside");
                let operation = match kind % 4 {
                    0 => SendOperation::Read { into: &into, from },
                    1 => SendOperation::FetchAdd { into: eight, at: from, add: 1 },
                    2 => SendOperation::CompareSwap { into: eight, at: from, compare: 0, swap: 1 },
                    _ => SendOperation::Send {
                        payload: Payload::Windows(&into),
                        with: SendWith::Invalidate(at.key),
                    },
                };
                self.post(usize::from(kind >> 7), operation);
            }
            6 => {
                // A message of any kind on a connection.
                let line = input.below(3);
                let bytes = leak::plain(input.take(48));
                let message = self.staging.slice(0, bytes.len()).expect("inside");
                message.write(0, &bytes).expect("inside");
                let payload = Payload::Windows(&[message]);
                let with = match input.byte() % 3 {
                    0 => SendWith::Nothing,
                    1 => SendWith::Immediate(u32::from(input.word()) << (input.byte() % 17)),
                    _ => SendWith::Immediate(Immediate::Heartbeat.emit()),
                };
                self.post(line, SendOperation::Send { payload, with });
            }
            7 => {
                let open = Open {
                    mode: match input.byte() % 4 {
                        0 => Ok(AccessMode::ReadOnly),
                        1 => Ok(AccessMode::ReadWrite),
                        2 => Ok(AccessMode::Migration),
                        _ => Err(7),
                    },
                    name: name(["ram0", "secret", "/dev/ram0", "none"][input.below(4)]),
                };
                let length = u32::from(input.word()) % 512;
                self.user_message(1, input.below(8) as u16, &open.emit(), length);
            }
            8 => {
                let chunk = input.below(8) as u16;
                let device = u32::from(input.byte() % 4);
                if input.byte() & 1 == 0 {
                    let header = IoHeader::Write { user_len: Close::SIZE as u16 };
                    self.request(1, chunk, &[], &Close { device }.emit(), header, 0, None);
                } else {
                    let user = SessionInfo { version: input.byte() }.emit();
                    self.user_message(1, chunk, &user, u32::from(input.word()));
                }
            }
            9 => {
                // Another connection, of this path or another one.
                let byte = input.byte();
                let mut path = self.uuids[0];
                path.0[0] ^= byte & 1;
                let mut session = self.uuids[1];
                session.0[0] ^= byte >> 1 & 1;
                self.connect(&ConnectRequest {
                    cid: u16::from(input.byte() % 6),
                    cid_num: u16::from(input.byte() % 6),
                    recon_cnt: u16::from(byte >> 4),
                    path,
                    session,
                    first: byte & 4 == 0,
                });
            }
            10 => {
                let name: Vec<u8> = input.take(12).to_vec();
                let name = if name.first() == Some(&0) { b"victim".to_vec() } else { name };
                self.info(&name);
            }
            11 => {
                self.now = self.now + Duration::from_nanos(1 << (input.byte() % 35));
                self.work();
            }
            12 => {
                // A frame is lost or duplicated.
                self.collect();
                let twice = input.byte().is_multiple_of(2);
                if let Some((to, frame)) = self.wire.pop_front()
                    && twice
                {
                    self.deliver(to, &frame);
                    self.wire.push_back((to, frame));
                }
            }
            _ => {
                let at = input.below(self.lines.len());
                if let Some(line) = self.lines.get(at)
                    && input.byte() > 128
                {
                    let _ = self.attacker.roce.destroy_qp(line.qp);
                    // Its receives stay, to be checked at the end.
                }
            }
        }
    }

    /// An I/O with inconsistent parts.
    pub(super) fn io(&mut self, input: &mut Input<'_>) {
        let operation = match input.byte() % 6 {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Flush,
            3 => Operation::Discard,
            4 => Operation::SecureErase,
            _ => Operation::WriteZeroes,
        };
        let how = input.byte();
        let device = u32::from(input.byte() % 3);
        let sector = u64::from(input.byte());
        let chunk = input.byte() as u16 % DEPTH;
        let size = u32::from(input.byte()) * 512;
        let fill = input.byte() & 0x7f;
        let flags = if how & 8 == 0 { IoFlags::empty() } else { IoFlags::FUA };
        let io = Io { device, sector, operation, flags, size, priority: 0 };
        let user_len = if how & 16 == 0 { Io::SIZE as u16 } else { u16::from(how) };
        // The data is complete, partial, or absent.
        let there = match how >> 5 {
            0..=3 => size.min(ROOM),
            4 => size.min(512),
            _ => 0,
        };
        let data = if how & 1 == 1 { vec![fill; there as usize] } else { Vec::new() };
        let mut skip = (size - there.min(size)).min(ROOM);
        let header = if how & 1 == 1 {
            IoHeader::Write { user_len }
        } else {
            skip = size.min(ROOM);
            let length = if how & 4 == 0 { size } else { u32::from(fill) << 8 };
            let into = (how & 2 == 0).then_some(Descriptor { length, ..self.data.1 });
            IoHeader::Read { user_len, need_invalidate: how & 64 == 0, into }
        };
        self.request(1, chunk, &data, &io.emit(), header, skip, None);
    }
}
