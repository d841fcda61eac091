//! Requests of the sides.

use super::host::LIBRARY;
use super::side::{DEPTH, Kind, MESSAGE, Message, Op, State, WINDOW};
use super::world::{Action, World};
use rand_core::Rng;
use verbs::{Payload, Provider, RemoteAddress, SendOperation, SendRequest, SendWith};

impl World {
    /// Posts a request of a side, and schedules its next one.
    pub fn post(&mut self, number: usize) {
        let now = self.network.now;
        let think = self.micros(200);
        let side = &mut self.sides[number];
        if side.state != State::Up || side.budget == 0 {
            return;
        }
        let free = (0..DEPTH).find(|&slot| side.ops.iter().all(|op| op.slot != slot));
        let Some(slot) = free else { return self.later(think, Action::Post(number)) };
        side.budget -= 1;
        let behind = side.ops.iter().rev().take_while(|op| !op.signaled).count();
        let mut signaled = behind >= 2 || side.budget == 0 || self.rng.chance(600);
        let harmful = !self.calm && self.healed.is_none() && self.rng.chance(10);
        let side = &mut self.sides[number];
        side.refusable |= harmful;
        let granted = side.granted.expect("the side is up");
        let machine = self.hosts[side.host].up();
        let rng = &mut self.rng;

        let longest = rng.pick(&[1, 100, self.mtu as u64, MESSAGE as u64]);
        let len = rng.within(0..longest + 1) as usize;
        let buffer = side.buffers[slot];
        let reading = |quarter: usize| {
            side.ops
                .iter()
                .any(|op| matches!(op.kind, Kind::Read { quarter: Some(q), .. } if q == quarter))
        };
        // A range must not change during a READ of it.
        let quarter = rng.within(0..4) as usize;
        let what = match rng.within(0..10) {
            _ if harmful => 10,
            2..=6 if reading(quarter) => 0,
            what => what,
        };
        let in_quarter = len.min(WINDOW / 4);
        let start =
            quarter * (WINDOW / 4) + rng.within(0..(WINDOW / 4 - in_quarter) as u64 + 1) as usize;
        let word = quarter * (WINDOW / 4) + 8 * rng.within(0..WINDOW as u64 / 32) as usize;
        let at = |from: RemoteAddress, offset: usize| RemoteAddress {
            address: from.address + offset as u64,
            ..from
        };
        let mut bytes = vec![0; if what < 2 { len } else { in_quarter }];
        rng.fill_bytes(&mut bytes);
        let part = |len: usize| buffer.slice(0, len).expect("no longer than a message");
        let source = part(bytes.len());
        let cut = rng.within(0..bytes.len() as u64 + 1) as usize;
        let windows = [
            source.slice(0, cut).expect("inside"),
            source.slice(cut, bytes.len() - cut).expect("inside"),
        ];
        let inline = bytes.len() <= 96 && rng.chance(500);
        let payload = if inline { Payload::Inline(&bytes) } else { Payload::Windows(&windows) };
        let immediate = rng.next_u32();
        let result;
        let (operation, kind) = match what {
            0 | 1 => {
                machine.memory.put(&source, &bytes);
                let with = match rng.chance(300) {
                    true => SendWith::Immediate(immediate),
                    false => SendWith::Nothing,
                };
                side.sent.push_back(Message::Send { bytes: bytes.clone(), with });
                side.messages += 1;
                (SendOperation::Send { payload, with }, Kind::Send(side.messages - 1))
            }
            2..=4 => {
                machine.memory.put(&source, &bytes);
                side.target.push(start, &bytes);
                let immediate = rng.chance(300).then_some(immediate);
                let mut message = None;
                if let Some(immediate) = immediate {
                    let bytes = bytes.clone();
                    side.sent.push_back(Message::Immediate { offset: start, bytes, immediate });
                    message = Some(side.messages);
                    side.messages += 1;
                }
                let to = at(granted.window, start);
                (SendOperation::Write { payload, to, immediate }, Kind::Write { message })
            }
            5 | 6 => {
                signaled = true;
                let into = part(8);
                let expected = side.target.expected(word, 8).try_into().expect("8 bytes");
                let expected = u64::from_ne_bytes(expected);
                let (at, add) = (at(granted.window, word), rng.next_u64());
                let right = rng.chance(500);
                let (operation, value) = if what == 5 {
                    let value = expected.wrapping_add(add);
                    (SendOperation::FetchAdd { into, at, add }, value)
                } else if right {
                    (SendOperation::CompareSwap { into, at, compare: expected, swap: add }, add)
                } else {
                    let compare = expected.wrapping_add(1);
                    (SendOperation::CompareSwap { into, at, compare, swap: add }, expected)
                };
                side.target.push(word, &value.to_ne_bytes());
                (operation, Kind::Atomic { into, expected })
            }
            7 | 8 => {
                signaled = true;
                let library = rng.chance(500);
                let (len, from, quarter) = if library {
                    (len, at(granted.library, LIBRARY - len), None)
                } else {
                    (in_quarter, at(granted.window, start), Some(quarter))
                };
                let expected = match library {
                    true => side.peer_library[LIBRARY - len..].to_vec(),
                    false => side.target.expected(start, len).to_vec(),
                };
                let into = part(len);
                result = [into];
                (
                    SendOperation::Read { into: &result, from },
                    Kind::Read { into, expected, quarter },
                )
            }
            9 => {
                signaled = true;
                let into = part(8);
                let at = granted.counter;
                (SendOperation::FetchAdd { into, at, add: 1 }, Kind::Count { into })
            }
            _ => {
                signaled = true;
                machine.memory.put(&source, &bytes);
                let into = part(len.max(1));
                result = [into];
                let (operation, into) = match rng.within(0..4) {
                    // One byte beyond the end.
                    0 => (
                        SendOperation::Read {
                            into: &result,
                            from: at(granted.library, LIBRARY + 1 - into.len()),
                        },
                        Some(into),
                    ),
                    // A key that does not exist.
                    1 => (
                        SendOperation::Read {
                            into: &result,
                            from: RemoteAddress {
                                rkey: granted.library.rkey ^ 1,
                                ..granted.library
                            },
                        },
                        Some(into),
                    ),
                    // A read-only region.
                    2 => (
                        SendOperation::Write {
                            payload: Payload::Inline(&[0; 8]),
                            to: granted.library,
                            immediate: None,
                        },
                        None,
                    ),
                    _ => (
                        SendOperation::Write {
                            payload: Payload::Inline(&[0; 8]),
                            to: at(granted.window, WINDOW - 7),
                            immediate: None,
                        },
                        None,
                    ),
                };
                (operation, Kind::Trespass { into })
            }
        };
        if let Some(into) = kind.landing() {
            machine.memory.open(into);
        }
        let id = (number as u64) << 32 | slot as u64;
        let request = SendRequest {
            id,
            operation,
            signaled,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        machine.roce.post_send(side.qp, &request).expect("a side that is up may post");
        side.ops.push_back(Op { slot, kind, signaled, at: now });
        self.later(think, Action::Post(number));
    }
}
