//! Validates leases that servers offer or grant. Unusable leases are rejected, unusable options ignored; both are
//! logged.

use super::message::{Message, Value, code};
use crate::notices::{Notices, Topic};
use crate::port_addresses;
use alloc::format;
use alloc::string::String;
use core::net::Ipv4Addr;
use core::time::Duration;
use drivers::hal::{Instant, Severity};
use smoltcp::wire::Ipv4Cidr;

/// Packet size that every host must accept (RFC 791).
const SMALLEST_MTU: u16 = 576;
/// Lease time in seconds if the server sends none.
const DEFAULT_LEASE_TIME: u32 = 120;
/// Lease time of a lease that never ends.
const INFINITE: u32 = u32::MAX;

/// An address with its network, and further parameters from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub address: Ipv4Cidr,
    /// The server that leased it.
    pub server: Ipv4Addr,
    /// The first usable router in the server's list.
    pub router: Option<Ipv4Addr>,
    /// The network's MTU (option 26), if the card supports it.
    pub mtu: Option<u16>,
    /// The first name servers in the server's list (option 6).
    pub name_servers: [Option<Ipv4Addr>; 3],
}

/// Times of a lease, counted from its grant: T1 (renewal), T2 (rebinding), and the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub renew: Duration,
    pub rebind: Duration,
    pub end: Duration,
}

/// A lease that a server offers or grants.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub lease: Lease,
    /// None if it never ends.
    pub times: Option<Times>,
}

/// Log of one server's faults.
struct Remarks<'a> {
    notices: &'a mut Notices,
    server: Ipv4Addr,
    now: Instant,
}

impl Remarks<'_> {
    fn warn(&mut self, topic: Topic, text: impl FnOnce() -> String) {
        let server = self.server;
        let text = || format!("DHCP server {server}: {}", text());
        self.notices.report(topic, server, Severity::Warning, self.now, text);
    }

    fn refuse<T>(&mut self, text: impl FnOnce() -> String) -> Option<T> {
        self.warn(Topic::Refused, || format!("{}: rejected; correct the server", text()));
        None
    }

    /// The value of a four-byte option. A wrong length is logged.
    fn word(&mut self, message: &Message<'_>, code: u8) -> Option<[u8; 4]> {
        let value = message.option(code)?;
        if value.length != 4 {
            let use_of_it = if value.length > 4 { "the first 4 are used" } else { "ignored" };
            self.warn(Topic::Option(code), || {
                format!("option {code} has {} bytes instead of 4: {use_of_it}", value.length)
            });
        }
        value.first()
    }

    fn number(&mut self, message: &Message<'_>, code: u8) -> Option<u32> {
        self.word(message, code).map(u32::from_be_bytes)
    }
}

/// The lease in an offer or acknowledgement, if it is usable with a card of this MTU.
pub fn judge(
    message: &Message<'_>,
    mtu: usize,
    notices: &mut Notices,
    now: Instant,
) -> Option<Grant> {
    let mut remarks = Remarks { notices, server: message.server(), now };
    let server = remarks.server;
    // Checks only the length; `server` has the value.
    remarks.word(message, code::SERVER);
    let ip = message.address();
    if !port_addresses::is_host(ip.into()) || ip.octets()[0] == 0 {
        return remarks.refuse(|| format!("offers {ip}, which cannot be the address of a host"));
    }
    let address = network(message, ip, &mut remarks)?;
    let seconds = remarks.number(message, code::LEASE_TIME).unwrap_or(DEFAULT_LEASE_TIME);
    if seconds == 0 {
        return remarks.refuse(|| format!("leases {ip} for 0 seconds"));
    }
    let times = (seconds != INFINITE).then(|| times(message, seconds, &mut remarks));
    let router = router(message, ip, &mut remarks);
    let mtu = limit(message, mtu, &mut remarks);
    let name_servers = name_servers(message, ip, &mut remarks);
    Some(Grant { lease: Lease { address, server, router, mtu, name_servers }, times })
}

/// The address with its network; None if either is invalid.
fn network(message: &Message<'_>, ip: Ipv4Addr, remarks: &mut Remarks<'_>) -> Option<Ipv4Cidr> {
    let prefix = match remarks.word(message, code::MASK).map(u32::from_be_bytes) {
        Some(mask) if mask != 0 && mask.leading_ones() + mask.trailing_zeros() == 32 => {
            mask.leading_ones() as u8
        }
        Some(mask) => {
            let mask = Ipv4Addr::from(mask);
            return remarks.refuse(|| format!("offers {ip} with the invalid mask {mask}"));
        }
        None => {
            // RFC 950: the mask of the address's class.
            let prefix = match ip.octets()[0] {
                0..128 => 8,
                128..192 => 16,
                192..224 => 24,
                _ => return remarks.refuse(|| format!("offers {ip} without a mask (option 1)")),
            };
            remarks.warn(Topic::NoMask, || {
                format!("leases {ip} without a mask (option 1): using /{prefix} of its class; correct the server")
            });
            prefix
        }
    };
    let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let part = u32::from(ip) & host;
    // RFC 3021: a /31 has no network and broadcast addresses.
    if prefix < 31 && (part == 0 || part == host) {
        let what = if part == 0 { "network" } else { "broadcast" };
        return remarks
            .refuse(|| format!("offers {ip}/{prefix}, the {what} address of its network"));
    }
    Some(Ipv4Cidr::new(ip, prefix))
}

/// T1, T2 and the end of a lease (RFC 2131 section 4.4.5).
fn times(message: &Message<'_>, seconds: u32, remarks: &mut Remarks<'_>) -> Times {
    let of = |share: u64| Duration::from_millis(u64::from(seconds) * share);
    let (usual_renew, usual_rebind) = (of(500), of(875));
    let end = Duration::from_secs(seconds.into());
    let renew = remarks.number(message, code::RENEWAL_TIME);
    let rebind = remarks.number(message, code::REBINDING_TIME);
    let given = |seconds: Option<u32>| seconds.map(|n| Duration::from_secs(n.into()));
    let times = Times {
        renew: given(renew).unwrap_or(usual_renew.min(given(rebind).unwrap_or(end) / 2)),
        rebind: given(rebind).unwrap_or_else(|| {
            let later = given(renew)
                .map_or(usual_rebind, |renew| renew + (end.saturating_sub(renew)) * 3 / 4);
            usual_rebind.max(later)
        }),
        end,
    };
    if times.renew.is_zero() || times.renew >= times.rebind || times.rebind >= times.end {
        remarks.warn(Topic::Option(code::RENEWAL_TIME), || {
            format!(
                "T1 {} s and T2 {} s contradict a lease of {seconds} s: T1 and T2 ignored",
                times.renew.as_secs(),
                times.rebind.as_secs()
            )
        });
        return Times { renew: usual_renew, rebind: usual_rebind, end };
    }
    times
}

/// The first router with a valid host address (RFC 2132 section 3.5: in the order of preference).
fn router(message: &Message<'_>, ip: Ipv4Addr, remarks: &mut Remarks<'_>) -> Option<Ipv4Addr> {
    let value: Value = message.option(code::ROUTER)?;
    let Some(mut routers) = value.addresses() else {
        remarks.warn(Topic::Option(code::ROUTER), || {
            format!("option 3 (routers) has {} bytes, not a multiple of 4: ignored", value.length)
        });
        return None;
    };
    routers.find(|&router| router != ip && port_addresses::is_host(router.into()))
}

/// The first name servers with a valid host address (RFC 2132 section 3.8: in the order of preference).
fn name_servers(
    message: &Message<'_>,
    ip: Ipv4Addr,
    remarks: &mut Remarks<'_>,
) -> [Option<Ipv4Addr>; 3] {
    let Some(value) = message.option(code::NAME_SERVERS) else { return [None; 3] };
    let Some(servers) = value.addresses() else {
        remarks.warn(Topic::Option(code::NAME_SERVERS), || {
            format!(
                "option 6 (name servers) has {} bytes, not a multiple of 4: ignored",
                value.length
            )
        });
        return [None; 3];
    };
    let mut servers =
        servers.filter(|&server| server != ip && port_addresses::is_host(server.into()));
    [(); 3].map(|()| servers.next())
}

/// The MTU, if the card supports it.
fn limit(message: &Message<'_>, card: usize, remarks: &mut Remarks<'_>) -> Option<u16> {
    let value = message.option(code::MTU)?;
    let mtu = value.exact().map(u16::from_be_bytes);
    let good = mtu.filter(|&mtu| mtu >= SMALLEST_MTU && usize::from(mtu) <= card);
    if good.is_none() {
        remarks.warn(Topic::Option(code::MTU), || match mtu {
            Some(mtu) => {
                format!("MTU {mtu} (option 26) is outside {SMALLEST_MTU} to {card}: ignored")
            }
            None => format!("option 26 (MTU) has {} bytes instead of 2: ignored", value.length),
        });
    }
    good
}
