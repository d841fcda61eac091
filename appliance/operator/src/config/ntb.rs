//! `[[ntb]]`: the bridge to another machine.

use super::checks::Report;
use super::item::section;
use super::schema::Config;
use core::net::IpAddr;

section! {
    /// A non-transparent bridge to another appliance, in the order of discovery.
    Ntb {
        /// Which half of the shared memory is ours; without it by the number that the device has
        /// from its server.
        side: Option<u8> [0, 1];
        /// By which address connections name us. It is a name only, of no interface.
        address: IpAddr;
        /// By which they name the machine at the other end.
        peer: IpAddr;
        /// Milliseconds without a sign of life after which the peer is gone.
        lost_ms: u32 [50, 60_000] = 500;
    }
}

/// Checks what bridges have to do with the rest.
pub fn check(config: &Config, report: &mut Report<'_>) {
    if config.ntb.len() > 1 {
        report.add("ntb.1".into(), "there is one bridge at most".into(), "one [[ntb]]");
    }
    let Some(ntb) = config.ntb.first() else { return };
    if ntb.address.is_ipv4() != ntb.peer.is_ipv4() || ntb.address == ntb.peer {
        let reason = format!("{} and {} cannot be the two ends", ntb.address, ntb.peer);
        report.add("ntb.0.peer".into(), reason, "another address of the same family");
    }
    for (i, net) in config.net.iter().enumerate() {
        let taken = |(address, _): &(IpAddr, u8)| [ntb.address, ntb.peer].contains(address);
        if let Some((address, _)) = net.fixed().find(taken) {
            let reason = format!("{address} is net.{i}'s");
            report.add("ntb.0.address".into(), reason, "addresses of no interface");
        }
    }
    for (i, remote) in config.remote.iter().enumerate() {
        if remote.path.iter().any(|path| path.from == ntb.address && path.to != ntb.peer) {
            let reason = format!("only {} is at the other end of the bridge", ntb.peer);
            report.add(format!("remote.{i}.path"), reason, "");
        }
    }
    if config.rnbd.oversubscribe > 1 {
        let reason = "sessions over a bridge have memory of their own".into();
        report.add("rnbd.oversubscribe".into(), reason, "1 with an [[ntb]]");
    }
    if !config.roce.enabled {
        let reason = "the bridge's device stands beside that of the interfaces".into();
        report.add("roce.enabled".into(), reason, "true with an [[ntb]]");
    }
}
