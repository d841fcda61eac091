//! Changes and replaces messages of the attacker's engine: CLC, LLC, CDC and WRITEs.

use super::host::{ip, mac};
use super::world::World;
use super::{ATTACKER, CONNECTIONS, GATEWAY, HOSTS, PORTS};
use crate::engine;
use crate::input::Input;
use crate::leak;
use roce::wire::bth;
use roce::wire::frame::{ETHERNET_LEN, Frame};
use smcr::engine::SocketId;
use smcr::wire::cdc::{Cdc, Cursor, End, Producer};
use smcr::wire::llc::{
    AddLink, AddLinkV2, Body, DeleteReason, KeyMove, LinkEnd, Llc, Order, Token,
};
use smcr::wire::{AcceptConfirm, cdc};

const SEND_ONLY: u8 = 4;
const WRITE_FIRST: u8 = 6;
const WRITE_ONLY: u8 = 10;

impl World {
    /// Changes, truncates or replaces CLC messages that are in flight to the gateway.
    pub fn change_clc(&mut self, input: &mut Input<'_>) {
        let n = input.below(CONNECTIONS);
        self.collect_clc();
        let Some(tcp) = self.tcp.iter_mut().filter(|tcp| tcp.peer == ATTACKER).nth(n) else {
            return;
        };
        let bytes = &mut tcp.bytes[0];
        match input.byte() % 8 {
            0 => bytes.truncate(usize::from(input.byte())),
            2..=4 => {
                if let Ok(mut confirm) = AcceptConfirm::parse(bytes) {
                    change_confirm(&mut confirm, input);
                    *bytes = confirm.emit();
                }
            }
            1 => {
                let len = usize::from(input.byte());
                bytes.extend(input.take(len));
            }
            _ if bytes.is_empty() => {}
            _ => {
                for _ in 0..1 + input.byte() % 6 {
                    let at = usize::from(input.word()) % bytes.len();
                    bytes[at] = input.byte();
                }
            }
        }
        // Data written to an address that contains part of a mark would carry that part back.
        if leak::in_part(bytes) {
            bytes.clear();
        }
        self.work();
    }

    /// Stores keys and addresses that the attacker has seen.
    pub fn learn(&mut self, frame: &[u8]) {
        let Some(at) = transport(frame) else { return };
        let Some(extended) = frame.get(at + bth::LEN..at + bth::LEN + 12) else { return };
        if matches!(frame[at], WRITE_FIRST | WRITE_ONLY) {
            let (address, rkey) = extended.split_at(8);
            let token = Token {
                rkey: u32::from_be_bytes(rkey.try_into().expect("4 bytes")),
                address: u64::from_be_bytes(address.try_into().expect("8 bytes")),
            };
            if !self.seen.contains(&token) {
                self.seen.push_back(token);
                if self.seen.len() > 16 {
                    self.seen.pop_front();
                }
            }
        }
    }

    /// Changes a packet of the attacker.
    pub fn change(&mut self, frame: &mut Vec<u8>, input: &mut Input<'_>) {
        let Some(at) = transport(frame) else { return };
        let body = at + bth::LEN;
        let what = input.byte();
        // All of the gateway's sockets, including the victim's, because tokens can be guessed.
        let sockets = self.tcp.iter().filter_map(|tcp| tcp.ends[0]);
        let tokens: Vec<u32> = sockets.map(SocketId::token).collect();
        match frame[at] {
            SEND_ONLY if what % 8 < 3 && frame.get(body) == Some(&cdc::TYPE) => {
                let Some(message) = frame[body..].first_chunk_mut() else { return };
                let Some(mut cdc) = Cdc::parse(message) else { return };
                for _ in 0..1 + what / 128 {
                    change_cdc(&mut cdc, &tokens, input);
                }
                *message = cdc.emit();
            }
            SEND_ONLY if what % 8 < 6 => {
                let message = match what % 8 {
                    3 | 4 => self.llc(input).emit(),
                    5 => {
                        let len = usize::from(input.word()) % 1000;
                        input.take(len).to_vec()
                    }
                    _ => {
                        let mut message = input.take(cdc::LEN).to_vec();
                        message.resize(cdc::LEN, 0);
                        message
                    }
                };
                replace(frame, at, &message);
            }
            WRITE_FIRST | WRITE_ONLY if what % 4 < 3 => {
                let seen = self.seen.get(input.below(self.seen.len())).copied();
                let Some(header) = frame.get_mut(body..body + 16) else { return };
                let field = header.first_chunk_mut::<8>().expect("8 bytes");
                let address = match (what >> 4 & 1, seen) {
                    (1, Some(token)) => token.address,
                    _ => u64::from_be_bytes(*field),
                };
                let by = i64::from(input.word() as i16);
                *field = address.wrapping_add_signed(by).to_be_bytes();
                match (what % 4, seen) {
                    (1, Some(token)) => header[8..12].copy_from_slice(&token.rkey.to_be_bytes()),
                    (2, _) => header[12 + input.below(4)] = input.byte(),
                    _ => {}
                }
            }
            _ => {
                for _ in 0..1 + what % 4 {
                    let at = at + usize::from(input.word()) % (frame.len() - at);
                    frame[at] = input.byte();
                }
            }
        }
        engine::seal(frame);
    }

    /// An LLC message of any kind, with numbers that the attacker has seen.
    fn llc(&self, input: &mut Input<'_>) -> Llc {
        let kind = input.byte();
        let token = |input: &mut Input<'_>| {
            let token = self.seen.get(input.below(self.seen.len().max(1))).copied();
            let token = token.unwrap_or(Token { rkey: 0x1234, address: 4096 });
            match input.byte() {
                below @ 240.. => Token { address: u64::MAX - u64::from(below), ..token },
                change @ 200.. => Token { rkey: token.rkey ^ u32::from(change), ..token },
                _ => token,
            }
        };
        let end = |input: &mut Input<'_>| {
            let (host, port) = (input.below(HOSTS), input.below(PORTS));
            LinkEnd {
                mac: mac(host, port),
                gid: ip(host, port).to_ipv6_mapped(),
                qpn: u32::from(input.byte()),
            }
        };
        let link = input.byte() % 4;
        let body = match kind % 8 {
            0 => Body::ConfirmLink {
                end: end(input),
                link,
                uid: u32::from(input.byte()),
                max_links: input.byte() % 4,
                max_conns: input.byte(),
                no_eyecatcher: true,
            },
            1 => {
                let end = end(input);
                let rejected = (input.byte() > 200).then_some(5);
                let (path_mtu, psn) = (input.byte() % 8, u32::from(input.word()));
                let keys = (0..input.byte() % 20)
                    .map(|_| KeyMove { known: token(input).rkey, token: token(input) })
                    .collect();
                let target = ip(GATEWAY, input.below(PORTS)).to_ipv6_mapped();
                let v2 = (kind & 64 == 0).then_some(AddLinkV2 { direct: true, target, keys });
                Body::AddLink(AddLink { end, link, path_mtu, psn, rejected, v2 })
            }
            2 => Body::AddLinkContinue {
                link,
                left: input.byte(),
                keys: (0..2)
                    .map(|_| KeyMove { known: token(input).rkey, token: token(input) })
                    .collect(),
            },
            3 => Body::DeleteLink {
                link,
                all: input.byte() & 1 == 0,
                orderly: input.byte() & 1 == 0,
                reason: DeleteReason(u32::from(input.byte()) << 16),
            },
            4 => Body::RequestAddLink {
                gids: (0..input.byte() % 9)
                    .map(|n| ip(ATTACKER, usize::from(n) % PORTS).to_ipv6_mapped())
                    .collect(),
            },
            5 => Body::ConfirmKey {
                token: token(input),
                others: (0..input.byte() % 3).map(|_| (link, token(input))).collect(),
                negative: input.byte() > 200,
                retry: input.byte() > 200,
            },
            6 => Body::DeleteKey {
                keys: (0..input.byte() % 9).map(|_| token(input).rkey).collect(),
                unknown: input.byte(),
                negative: input.byte() > 200,
            },
            _ => Body::TestLink { data: [input.byte(); 16] },
        };
        let version = if kind & 32 == 0 { 2 } else { 1 };
        let order = if kind & 16 == 0 { Order::Big } else { Order::Little };
        Llc { version, response: kind & 128 != 0, order, body }
    }
}

/// Offset of the base transport header.
fn transport(frame: &[u8]) -> Option<usize> {
    let parsed = Frame::parse(frame).ok()?;
    Some(ETHERNET_LEN + parsed.network.len()).filter(|at| at + bth::LEN + 4 <= frame.len())
}

/// Replaces the message of a SEND. A RoCEv1 packet keeps its length.
fn replace(frame: &mut Vec<u8>, at: usize, message: &[u8]) {
    let body = at + bth::LEN;
    if frame[12..14] != [8, 0] {
        let there = frame.len() - 4 - body;
        let len = there.min(message.len());
        frame[body..body + len].copy_from_slice(&message[..len]);
        return;
    }
    let pad = message.len().wrapping_neg() % 4;
    let mut header: [u8; bth::LEN] = frame[at..body].try_into().expect("the length matches");
    header[1] = header[1] & !0x30 | (pad as u8) << 4;
    let len = 8 + bth::LEN + message.len() + pad + 4;
    let udp = [&frame[34..38], &(len as u16).to_be_bytes(), &[0, 0]].concat();
    let [from, to] = [26, 30].map(|at| frame[at..at + 4].try_into().expect("4 bytes"));
    let whole = [&udp[..], &header, message, &[0; 8][..pad + 4]].concat();
    let mut changed = crate::ip::v4(17, from, to, &whole);
    changed[..12].copy_from_slice(&frame[..12]);
    // No UDP checksum.
    changed[40..42].fill(0);
    *frame = changed;
}

fn change_confirm(confirm: &mut AcceptConfirm, input: &mut Input<'_>) {
    match input.byte() % 10 {
        0 => confirm.first_contact = !confirm.first_contact,
        1 => confirm.peer_id.0[input.below(8)] = input.byte(),
        2 => confirm.gid = ip(input.below(HOSTS), input.below(PORTS)).to_ipv6_mapped(),
        3 => confirm.mac[input.below(6)] = input.byte(),
        4 => confirm.qpn = confirm.qpn.wrapping_add_signed(i32::from(input.byte() as i8)),
        5 => confirm.rkey ^= 1 << (input.byte() % 32),
        6 => confirm.rmbe_index = input.byte(),
        7 => confirm.token = confirm.token.wrapping_add_signed(i32::from(input.byte() as i8)),
        8 => (confirm.rmbe_size, confirm.path_mtu) = (input.byte() % 16, input.byte() % 16),
        _ => confirm.address = u64::MAX.rotate_left(input.byte().into()) - u64::from(input.word()),
    }
}

fn change_cdc(cdc: &mut Cdc, tokens: &[u32], input: &mut Input<'_>) {
    let move_cursor = |cursor: &mut Cursor, input: &mut Input<'_>| match input.byte() % 4 {
        0 => cursor.count = cursor.count.wrapping_add_signed(i32::from(input.byte() as i8)),
        1 => cursor.count = u32::from(input.word()),
        2 => cursor.wrap = cursor.wrap.wrapping_add_signed(i16::from(input.byte() as i8)),
        _ => cursor.count = cursor.count.wrapping_add(u32::from(input.word())),
    };
    match input.byte() % 8 {
        0..=2 => move_cursor(&mut cdc.produced, input),
        3 => move_cursor(&mut cdc.consumed, input),
        4 => cdc.producer = Producer::from_bits_truncate(input.byte()),
        5 => cdc.end = End::from_bits_truncate(input.byte()),
        6 => cdc.seqno = cdc.seqno.wrapping_add_signed(i16::from(input.byte() as i8)),
        _ => match input.byte() {
            which @ 192.. if !tokens.is_empty() => {
                cdc.token = tokens[usize::from(which - 192) % tokens.len()];
            }
            change => cdc.token = cdc.token.wrapping_add_signed(i32::from(change as i8)),
        },
    }
}
