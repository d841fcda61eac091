//! A controller: the association of a host with a subsystem.

use crate::events::Events;
use crate::keys::Demands;
use crate::queue::QueueId;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use nvme_auth::Channel;

/// The subsystem of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The subsystem in that place of the table.
    Subsystem(usize),
    /// The discovery subsystem.
    Discovery,
}

/// The bits of CC that can be set: all others have to be 0.
const CC_KNOWN: u32 = 0x00ff_fff1;
const CC_EN: u32 = 1;
const CSTS_RDY: u32 = 1;
const CSTS_CFS: u32 = 2;
const CSTS_SHST: u32 = 3 << 2;
const CSTS_SHUT: u32 = 2 << 2;

/// What a write of CC leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// The controller was enabled.
    Enabled,
    /// The controller was disabled: its I/O queues end.
    Reset,
    /// The host shuts the controller down.
    ShutDown,
}

/// Who uses a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub nqn: String,
    pub id: [u8; 16],
    pub address: IpAddr,
}

/// What a host has proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The connection of its admin queue.
    pub channel: Channel,
    /// DH-HMAC-CHAP, and whether the controller was authenticated, too.
    pub both_ways: Option<bool>,
}

impl Proof {
    /// How the host was authenticated, for the operator.
    pub fn name(self) -> &'static str {
        match (self.channel, self.both_ways) {
            (Channel::Clear, None) => "by name only",
            (Channel::Clear, Some(false)) => "DH-HMAC-CHAP",
            (Channel::Clear, Some(true)) => "DH-HMAC-CHAP both ways",
            (Channel::Tls, None) => "TLS",
            (Channel::Tls, Some(false)) => "TLS, DH-HMAC-CHAP",
            (Channel::Tls, Some(true)) => "TLS, DH-HMAC-CHAP both ways",
            (Channel::Generated, _) => "DH-HMAC-CHAP with TLS",
        }
    }
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    pub of: Of,
    pub cntlid: u16,
    pub host: Host,
    pub admin: QueueId,
    /// By queue identifier, from 1.
    pub io: Vec<Option<QueueId>>,
    /// Granted number of I/O queues.
    pub granted: u16,
    pub cc: u32,
    csts: u32,
    /// Keep alive timeout; zero for none.
    pub kato: Duration,
    /// When the host last sent a command.
    pub active: Instant,
    pub events: Events,
    pub connected: Instant,
    /// The admin queue has ended; the controller goes with its last queue.
    pub is_ending: bool,
    /// A subsystem lists the host's NQN.
    pub is_listed: bool,
    pub proof: Proof,
    /// The demands on the host when it connected, or as they were changed since.
    pub demands: Option<Demands>,
}

/// A controller as reports show it.
#[derive(Clone, Debug)]
pub struct ControllerView {
    /// NQN of its subsystem.
    pub subsystem: String,
    /// Its identifier.
    pub cntlid: u16,
    /// NQN of the host.
    pub host: String,
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// Address of the host.
    pub address: IpAddr,
    /// Number of I/O queues.
    pub queues: usize,
    /// Keep alive timeout.
    pub kato: Duration,
    /// When it connected.
    pub connected: Instant,
    /// What the host has proven.
    pub proof: Proof,
}

impl Controller {
    pub fn new(
        of: Of,
        cntlid: u16,
        host: Host,
        admin: QueueId,
        kato: Duration,
        now: Instant,
    ) -> Self {
        Controller {
            of,
            cntlid,
            host,
            admin,
            io: Vec::new(),
            granted: 0,
            cc: 0,
            csts: 0,
            kato,
            active: now,
            events: Events::default(),
            connected: now,
            is_ending: false,
            is_listed: false,
            proof: Proof { channel: Channel::Clear, both_ways: None },
            demands: None,
        }
    }

    /// Whether it executes commands.
    pub fn is_ready(&self) -> bool {
        self.csts & CSTS_RDY != 0
    }

    /// The status property.
    pub fn status(&self) -> u32 {
        self.csts
    }

    /// When its host has been silent for too long. None while it has no timeout, and before it is enabled.
    pub fn expires(&self) -> Option<Instant> {
        // With traffic-based keep alive, a host may be silent for two periods (Base Specification, section 3.9).
        (!self.kato.is_zero() && self.is_ready()).then(|| self.active + 2 * self.kato)
    }

    /// Writes the configuration property.
    pub fn configure(&mut self, cc: u32) -> Change {
        let before = core::mem::replace(&mut self.cc, cc);
        // Command set (6:4), page size (10:7) and arbitration (13:11) have one supported value: 0.
        let valid = cc & !CC_KNOWN == 0 && cc & 0x3ff0 == 0;
        let sizes = cc >> 16 & 0xff;
        if cc & CC_EN != 0 && before & CC_EN == 0 {
            // Entries have 64 and 16 bytes. Old hosts set the sizes only for I/O queues.
            if !valid || !(sizes == 0x46 || sizes == 0) {
                self.csts |= CSTS_CFS;
                return Change::Nothing;
            }
            self.csts = CSTS_RDY;
            return Change::Enabled;
        }
        if cc & CC_EN == 0 && before & CC_EN != 0 {
            self.csts &= CSTS_SHST;
            return Change::Reset;
        }
        if cc >> 14 & 3 != 0 && before >> 14 & 3 == 0 {
            self.csts = self.csts & !CSTS_SHST | CSTS_SHUT;
            return Change::ShutDown;
        }
        Change::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn controller() -> Controller {
        let host = Host { nqn: "nqn.h".into(), id: [1; 16], address: Ipv4Addr::LOCALHOST.into() };
        let admin = QueueId { index: 0, generation: 0 };
        let kato = Duration::from_secs(5);
        Controller::new(Of::Discovery, 1, host, admin, kato, Instant::ZERO)
    }

    #[test]
    fn illegal_configuration_is_fatal_and_a_reset_clears_it() {
        for cc in [0x46_0071, 0x46_0081, 0x46_0801, 0x55_0001, 0x0146_0001] {
            let mut one = controller();
            assert_eq!(one.configure(cc), Change::Nothing, "{cc:x}");
            assert_eq!(one.status(), CSTS_CFS);
            assert!(!one.is_ready());
            assert_eq!(one.configure(0), Change::Reset);
            assert_eq!(one.configure(0x46_0001), Change::Enabled);
            assert_eq!(one.status(), CSTS_RDY);
        }
    }

    #[test]
    fn shutdown_is_complete_at_once() {
        let mut one = controller();
        assert_eq!(one.configure(0x46_0000), Change::Nothing);
        assert_eq!(one.configure(0x46_0001), Change::Enabled);
        assert_eq!(one.expires(), Some(Instant::ZERO + Duration::from_secs(10)));
        assert_eq!(one.configure(0x46_4001), Change::ShutDown);
        assert_eq!(one.status() >> 2 & 3, 2);
    }
}
