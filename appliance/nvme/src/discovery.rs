//! The discovery subsystem: its log lists the subsystems that a host may use, at the address by which the host came.

use crate::controller::Of;
use crate::events::Event;
use crate::output::Output;
use crate::queue::Ends;
use crate::target::Target;
use alloc::string::ToString;
use core::net::IpAddr;

/// NQN of the discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes of the header, and of an entry.
const RECORD: u64 = 1024;
const TCP: u8 = 3;
const IPV4: u8 = 1;
const IPV6: u8 = 2;
const NVM: u8 = 2;
/// TREQ: flow control of submission queues can be disabled. Without a secure channel its bits 1:0 are 0, because with
/// "not required" old versions of libnvme ask for TLS.
const REQUIREMENTS: u8 = 1 << 2;
/// TREQ: a secure channel is required. Newer versions of libnvme look at the type of the channel instead.
const SECURE: u8 = 1;
/// Type of a secure channel in TSAS: TLS 1.3.
const TLS: u8 = 2;
/// Smallest admin queue that every controller supports.
const ADMIN_ENTRIES: u16 = 32;

impl Target {
    /// Puts the discovery log for a host.
    pub(crate) fn put_discovery(&self, controller: usize, ends: Option<Ends>, output: &mut Output) {
        let (Some(one), Some(ends)) = (self.controllers.get(controller), ends) else { return };
        let mut records = 0;
        for (_, subsystem) in &self.subsystems {
            if subsystem.admits(&one.host.nqn, ends.host).is_err() {
                continue;
            }
            records += 1;
            let at = RECORD * records;
            let family = if matches!(ends.ours, IpAddr::V4(_)) { IPV4 } else { IPV6 };
            let is_secure = self.security.keys.wants_tls(&subsystem.config, &one.host.nqn);
            let required = if is_secure { REQUIREMENTS | SECURE } else { REQUIREMENTS };
            output.put(at, &[TCP, family, NVM, required]);
            output.put_u8(at + 768, if is_secure { TLS } else { 0 });
            output.put_u16(at + 4, 1);
            output.put_u16(at + 6, u16::MAX);
            output.put_u16(at + 8, ADMIN_ENTRIES);
            // Without a port of their own, I/O controllers are behind that of discovery.
            let port = if self.settings.port == 0 { ends.port } else { self.settings.port };
            output.put_text(at + 32, &port.to_string(), 32);
            output.put(at + 256, subsystem.config.nqn.as_bytes());
            output.put_text(at + 512, &ends.ours.to_string(), 256);
        }
        output.put_u64(0, self.discovery_generation);
        output.put_u64(8, records);
    }

    /// The log has changed for some hosts.
    pub(crate) fn discovery_changed(&mut self) {
        self.discovery_generation += 1;
        let all = self.controllers.iter_mut();
        let of_discovery = all.filter(|(_, one)| one.of == Of::Discovery);
        let indices: alloc::vec::Vec<usize> = of_discovery
            .map(|(index, one)| {
                one.events.raise(Event::Discovery);
                index
            })
            .collect();
        indices.into_iter().for_each(|index| self.report_events(index));
    }
}
