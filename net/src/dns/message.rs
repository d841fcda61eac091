//! Builds queries and parses answers (RFC 1035 section 4). smoltcp has the fields; whether an answer belongs to its
//! query, and what it says about the name, is decided here. Names are expanded here as well, because smoltcp follows
//! thousands of pointers in one name.

use super::{MOST_ADDRESSES, MOST_ALIASES};
use crate::is_host;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;
use smoltcp::wire::{
    DnsFlags, DnsOpcode, DnsPacket, DnsQueryType, DnsQuestion, DnsRcode, DnsRecord, DnsRecordData,
    DnsRepr,
};

/// Records of an answer that are read. A longer answer is rejected.
const MOST_RECORDS: usize = 128;
/// Bytes of a name on the wire (RFC 1035 section 2.3.4).
const LONGEST_NAME: usize = 255;
/// Pointers that are followed in one name. Servers write one or two.
const MOST_POINTERS: usize = 16;
/// Bytes of the numbers at the end of an SOA record, the last of which is MINIMUM (RFC 1035 section 3.3.13).
const SOA_NUMBERS: usize = 20;

/// Family of the addresses that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Records of type A.
    V4,
    /// Records of type AAAA (RFC 3596).
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Family; 2] = [Family::V6, Family::V4];

    fn record(self) -> DnsQueryType {
        match self {
            Family::V4 => DnsQueryType::A,
            Family::V6 => DnsQueryType::Aaaa,
        }
    }
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The name has addresses: ascending, all of them possible addresses of hosts.
    Addresses {
        /// The addresses, at least one.
        addresses: Vec<IpAddr>,
        /// Seconds for which the answer may be kept.
        ttl: u32,
    },
    /// The name is an alias, about whose target the answer says nothing.
    Alias {
        /// The target, on the wire.
        target: Vec<u8>,
        /// Seconds for which the alias may be kept.
        ttl: u32,
    },
    /// The name has no address of this family.
    Nothing {
        /// Whether the name exists, with records of other types.
        exists: bool,
        /// Seconds for which the answer may be kept (RFC 2308 section 5); None without an SOA record.
        ttl: Option<u32>,
    },
    /// All addresses are ones that no host can have, such as 127.0.0.1.
    Unusable(IpAddr),
    /// The server knows nothing about the name, and does not ask others: it is no recursive server.
    Lame,
    /// The answer did not fit into a datagram.
    Truncated,
    /// The server could not or would not answer: its RCODE.
    Failed(u8),
}

impl Reply {
    /// The reply to a name that is an alias of the name that was asked for: it is kept for at most `most` seconds.
    pub fn behind_alias(self, most: u32) -> Reply {
        match self {
            Reply::Addresses { addresses, ttl } => {
                Reply::Addresses { addresses, ttl: ttl.min(most) }
            }
            Reply::Nothing { exists, ttl } => {
                Reply::Nothing { exists, ttl: ttl.map(|ttl| ttl.min(most)) }
            }
            other => other,
        }
    }
}

/// Why a message is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It does not answer this query: another ID, another question.
    Foreign,
    /// It is cut short, or inconsistent.
    Malformed,
}

/// A name as labels on the wire.
pub fn wire_name(name: &str) -> Vec<u8> {
    let mut wire = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        wire.push(label.len() as u8);
        wire.extend_from_slice(label.as_bytes());
    }
    wire.push(0);
    wire
}

/// Randomises the case of letters, which servers repeat: 20 characters make a forged answer a million times less
/// likely to fit (draft-vixie-dnsext-dns0x20).
pub fn mix_case(name: &mut [u8], mut random: impl FnMut() -> u32) {
    let (mut bits, mut left) = (0, 0);
    for byte in name.iter_mut().filter(|byte| byte.is_ascii_lowercase()) {
        if left == 0 {
            (bits, left) = (random(), 32);
        }
        if bits & 1 == 1 {
            byte.make_ascii_uppercase();
        }
        (bits, left) = (bits >> 1, left - 1);
    }
}

/// A query for a name on the wire.
pub fn query(id: u16, name: &[u8], family: Family) -> Vec<u8> {
    let repr = DnsRepr {
        transaction_id: id,
        opcode: DnsOpcode::Query,
        flags: DnsFlags::RECURSION_DESIRED,
        question: DnsQuestion { name, type_: family.record() },
    };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut DnsPacket::new_unchecked(&mut bytes[..]));
    bytes
}

/// Bytes of the header.
const HEADER: usize = 12;

/// Parses an answer to `query`, which [`query`] has built for this family.
pub fn parse(message: &[u8], query: &[u8], family: Family) -> Result<Reply, Unfit> {
    let packet = DnsPacket::new_checked(message).map_err(|_| Unfit::Foreign)?;
    let question = query.get(HEADER..).unwrap_or_default();
    let is_ours = query.starts_with(&packet.transaction_id().to_be_bytes())
        && packet.flags().contains(DnsFlags::RESPONSE)
        && packet.opcode() == DnsOpcode::Query
        && packet.question_count() == 1
        && packet.payload().starts_with(question);
    if !is_ours {
        return Err(Unfit::Foreign);
    }
    if packet.flags().contains(DnsFlags::TRUNCATED) {
        return Ok(Reply::Truncated);
    }
    let exists = match packet.rcode() {
        DnsRcode::NoError => true,
        DnsRcode::NXDomain => false,
        other => return Ok(Reply::Failed(other.into())),
    };
    let after = packet.payload().get(question.len()..).unwrap_or_default();
    let counts = [packet.answer_record_count(), packet.authority_record_count()];
    let (answers, after) = records(after, counts[0].into())?;
    let (authorities, _) = records(after, counts[1].into())?;
    // A name and behind it type and class.
    let name = question.get(..question.len().saturating_sub(4)).unwrap_or_default();
    let (last, of_aliases, found) = follow(message, name, &answers, family)?;
    if let Some(found) = found {
        return Ok(found);
    }
    let ttl = authorities.iter().find_map(negative_ttl);
    if exists && ttl.is_none() && last != name {
        return Ok(Reply::Alias { target: last, ttl: of_aliases });
    }
    let knows = DnsFlags::AUTHORITATIVE | DnsFlags::RECURSION_AVAILABLE;
    if exists && ttl.is_none() && !packet.flags().intersects(knows) {
        return Ok(Reply::Lame);
    }
    Ok(Reply::Nothing { exists, ttl }.behind_alias(of_aliases))
}

/// Follows the aliases of a name in an answer. Returns the last name, the least TTL of the aliases, and the addresses of
/// the last name if the answer has any.
fn follow(
    message: &[u8],
    name: &[u8],
    answers: &[DnsRecord<'_>],
    family: Family,
) -> Result<(Vec<u8>, u32, Option<Reply>), Unfit> {
    // Each name is expanded once. A malformed one is not the same as any.
    let owned = answers.iter().filter_map(|record| Some((absolute(message, record.name)?, record)));
    let owned: Vec<(Vec<u8>, &DnsRecord<'_>)> = owned.collect();
    let (mut name, mut ttl) = (name.to_vec(), u32::MAX);
    for _ in 0..=MOST_ALIASES {
        let (mut addresses, mut unusable, mut alias) = (Vec::new(), None, None);
        let mut least = ttl;
        for (_, record) in owned.iter().filter(|(owner, _)| owner.eq_ignore_ascii_case(&name)) {
            let address: IpAddr = match (&record.data, family) {
                (DnsRecordData::A(ip), Family::V4) => (*ip).into(),
                (DnsRecordData::Aaaa(ip), Family::V6) => (*ip).into(),
                (DnsRecordData::Cname(target), _) => {
                    alias = alias.or(Some((*target, seconds(record.ttl))));
                    continue;
                }
                _ => continue,
            };
            least = least.min(seconds(record.ttl));
            match is_usable(address) {
                true => addresses.push(address),
                false => unusable = Some(address),
            }
        }
        if !addresses.is_empty() {
            addresses.sort_unstable();
            addresses.dedup();
            addresses.truncate(MOST_ADDRESSES);
            return Ok((name, ttl, Some(Reply::Addresses { addresses, ttl: least })));
        }
        if let Some(address) = unusable {
            return Ok((name, ttl, Some(Reply::Unusable(address))));
        }
        let Some((target, of_alias)) = alias else { return Ok((name, ttl, None)) };
        name = absolute(message, target).ok_or(Unfit::Malformed)?;
        ttl = ttl.min(of_alias);
    }
    Err(Unfit::Malformed)
}

/// Whether a name can stand for this address. A link-local one means nothing without its link, which the DNS does not
/// give (RFC 4472 section 2.1).
fn is_usable(address: IpAddr) -> bool {
    let is_of_link = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    is_host(address) && !is_of_link
}

/// The next `count` records, and the bytes behind them.
fn records(mut bytes: &[u8], count: usize) -> Result<(Vec<DnsRecord<'_>>, &[u8]), Unfit> {
    if count > MOST_RECORDS {
        return Err(Unfit::Malformed);
    }
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let (rest, record) = DnsRecord::parse(bytes).map_err(|_| Unfit::Malformed)?;
        records.push(record);
        bytes = rest;
    }
    Ok((records, bytes))
}

/// The TTL of a negative answer: the lesser of the SOA record's own TTL and MINIMUM (RFC 2308 section 5).
fn negative_ttl(record: &DnsRecord<'_>) -> Option<u32> {
    let DnsRecordData::Other(DnsQueryType::Soa, data) = record.data else { return None };
    // Two names of at least a byte each, then the numbers.
    let minimum = data.last_chunk::<4>().filter(|_| data.len() >= SOA_NUMBERS + 2)?;
    Some(seconds(record.ttl).min(seconds(u32::from_be_bytes(*minimum))))
}

/// A TTL: one with the highest bit set counts as 0 (RFC 2181 section 8).
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
}

/// A name of a message without compression; None if it is malformed or too long. Each pointer has to lead to an earlier
/// place than the one before it, so that there are no loops.
fn absolute(message: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut wire) = (name, Vec::new());
    let (mut earlier, mut pointers) = (message, 0);
    loop {
        let (&length, after) = rest.split_first()?;
        match length {
            0 => {
                wire.push(0);
                return Some(wire);
            }
            1..=63 => {
                let (label, behind) = after.split_at_checked(length.into())?;
                wire.push(length);
                wire.extend_from_slice(label);
                if wire.len() >= LONGEST_NAME {
                    return None;
                }
                rest = behind;
            }
            0xc0.. => {
                pointers += 1;
                let place = usize::from(length & 0x3f) << 8 | usize::from(*after.first()?);
                if pointers > MOST_POINTERS || place >= earlier.len() {
                    return None;
                }
                (earlier, rest) = earlier.split_at_checked(place)?;
            }
            _ => return None,
        }
    }
}

/// A name on the wire as text, for reports. Bytes that are not visible are shown as `?`.
#[cfg(test)]
pub fn shown(wire: &[u8]) -> alloc::string::String {
    let packet = DnsPacket::new_unchecked(wire);
    let labels: Vec<_> = packet.parse_name(wire).filter_map(Result::ok).collect();
    alloc::string::String::from_utf8_lossy(&labels.join(&b"."[..])).into_owned()
}
