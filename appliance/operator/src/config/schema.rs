//! The schema of the configuration: all keys with their defaults and limits.

use super::console_login::Console;
use super::cores::Cores;
use super::device_name::DeviceName;
use super::item::{Item as _, section};
use super::linx::Linx;
use super::log_levels::Log;
use super::messaging::{Rule, Smc};
use super::ntb::Ntb;
use super::nvme::{HostNqn, Nvme, Subsystem};
use super::nvme_host::NvmeHost;
use super::rapidio::Rapidio;
use super::remote::{Mirror, Remote};
use super::servers::{Fingerprint, NameServer, SyslogServer, TimeServer};
use super::user::User;
use super::usnic::Usnic;
use super::values::{
    Address, Authority, ConfigPlace, Ed25519Key, ExportName, Hostname, Mac, Name, OnPanic, Pem,
    PrivateKey, RoceBy, SessionName, Sha256, Size,
};
use core::net::IpAddr;
use log::LevelFilter;
use net::hosts::Network;
use net::tls::{Authorities, Pair, PairError};
use smcr::engine::PnetId;
use std::collections::BTreeSet;

section! {
    /// Everything that an operator can configure.
    Config {
        /// `[system]`.
        system: System;
        /// `[log]`.
        log: Log;
        /// `[console]`.
        console: Console;
        /// `[memory]`.
        memory: Memory;
        /// `[http]`.
        http: Http;
        /// `[limits]`.
        limits: Limits;
        /// `[services]`.
        services: Services;
        /// `[roce]`.
        roce: Roce;
        /// `[rnbd]`.
        rnbd: Rnbd;
        /// `[smc]`.
        smc: Smc;
        /// `[nvme]`.
        nvme: Nvme;
        /// `[[net]]`, per interface; see [`Config::net`].
        net: Vec<Net>;
        /// `[[ntb]]`.
        ntb: Vec<Ntb>;
        /// `[[rapidio]]`.
        rapidio: Vec<Rapidio>;
        /// `[[usnic]]`.
        usnic: Vec<Usnic>;
        /// `[[linx]]`.
        linx: Vec<Linx>;
        /// `[[volume]]`.
        volume: Vec<Volume> = vec![Volume::ram0()];
        /// `[[remote]]`.
        remote: Vec<Remote>;
        /// `[[mirror]]`.
        mirror: Vec<Mirror>;
        /// `[[export]]`; see [`Config::exports`].
        export: Vec<Export>;
        /// `[[subsystem]]`.
        subsystem: Vec<Subsystem>;
        /// `[[nvme_host]]`.
        nvme_host: Vec<NvmeHost>;
        /// `[[rule]]`.
        rule: Vec<Rule>;
        /// `[[user]]`.
        user: Vec<User>;
    }
}

section! {
    /// The appliance as a whole.
    System {
        /// Host name in logs and DHCP requests.
        hostname: Hostname = "isthmus".parse().expect("a host name");
        /// Microseconds without work after which a loop halts until the next interrupt or deadline; 0 halts
        /// immediately, 4294967295 practically never.
        idle_after_us: u32 = 100 => AtOnce;
        /// Least severe level that is logged.
        log_level: LevelFilter = LevelFilter::Info => AtOnce;
        /// Syslog server (RFC 5424), over UDP, TCP or TLS.
        syslog: Option<SyslogServer> => AtOnce;
        /// SHA-256 of the certificate of a syslog server over TLS.
        syslog_fingerprint: Option<Fingerprint> => AtOnce;
        /// Time servers (NTP).
        ntp: Vec<TimeServer> => AtOnce;
        /// Name servers, instead of those that DHCP and routers announce.
        dns: Vec<NameServer> => AtOnce;
        /// Action after a panic or an exception.
        on_panic: OnPanic = OnPanic::Reboot => AtOnce;
        /// Seconds that the first loop may stall before the watchdog resets the machine; 0 disables the watchdog.
        watchdog: u16 [0, 600] = 0 => AtOnce;
        /// The config disk. Only effective in a source other than that disk.
        config_disk: Option<ConfigPlace>;
        /// Public key that releases for `upgrade` must be signed with. Without it, `upgrade` accepts none.
        upgrade_key: Option<Ed25519Key> => AtOnce;
    }
}

section! {
    /// Memory.
    Memory {
        /// Memory for DMA, volumes and sessions, by default all that the machine can spare.
        arena: Option<Size> [1 << 20, 1 << 44];
    }
}

section! {
    /// The HTTP server with `/metrics`, `/healthz`, `/status` and `/api`.
    Http {
        /// Whether the server runs.
        enabled: bool = true => AtOnce;
        /// TCP port, by default 80, with TLS 443.
        port: Option<u16> [1, 65535] => AtOnce;
        /// Maximum concurrent connections on an interface. One host gets half of them.
        connections: u16 [2, 256] = 16;
        /// Networks whose hosts may use HTTP; empty admits all.
        hosts: Vec<Network> => AtOnce;
        /// Whether reading without a token is admitted. `/healthz` and `/readyz` need none.
        anonymous: bool = true => AtOnce;
        /// Addresses of the appliance to listen on; empty means all.
        listen: Vec<IpAddr> => AtOnce;
        /// SHA-256 of the token for writes and captures. Without it, both are refused.
        token_sha256: Option<Sha256> => AtOnce;
        /// Whether to serve TLS only.
        tls: bool = false;
        /// Whether `/readyz` answers 503 while a mirror is incomplete.
        ready_needs_mirrors: bool = false => AtOnce;
        /// Certificate for TLS, optionally followed by its issuers. Without it, the appliance makes its own.
        certificate: Option<Pem>;
        /// Private key of the certificate.
        key: Option<PrivateKey>;
        /// Authorities whose certificates name users, see `certificate` in `[[user]]`. Without it, a name proves nothing.
        client_ca: Option<Authority> => AtOnce;
    }
}

section! {
    /// Limits per host address.
    Limits {
        /// Sessions of storage clients, of 64 in total. A session over several paths counts once.
        sessions_per_host: u16 [1, 64] = 32;
        /// Connections: queue pairs of the RDMA connection manager, and TCP or SMC-R connections.
        connections_per_host: u32 [1, 65535] = 1024;
        /// Memory of the host's storage sessions, by default three quarters of the memory for sessions. Connections are
        /// limited by their number.
        memory_per_host: Option<Size> [1 << 20, 1 << 44];
    }
}

section! {
    /// Small services for measurement.
    Services {
        /// UDP echo on port 7 (RFC 862).
        udp_echo: bool = false => AtOnce;
    }
}

section! {
    /// RDMA over Converged Ethernet.
    Roce {
        /// Whether RoCE is enabled on the interfaces.
        enabled: bool = true;
        /// Whether to run servers for rping, perftest and qperf.
        services: bool = false;
    }
}

section! {
    /// The storage gateway.
    Rnbd {
        /// Whether the storage server runs.
        enabled: bool = true;
        /// The port of the RDMA connection manager that clients connect to.
        port: u16 [1, 65535] = 1234;
        /// Whether each I/O gets its own memory key, which is invalidated when the I/O ends.
        always_invalidate: bool = true;
        /// Requests in flight per session.
        queue_depth: u16 [2, 4096] = 512;
        /// The queue depth offered to clients, if it differs from the depth that memory permits after a boot; 0 uses
        /// the latter. `save` writes this key, because Linux gives up a path permanently when the depth changes.
        offered_depth: u16 [0, 4096] = 0;
        /// Bytes per request in flight, a power of two.
        chunk_size: Size [8 << 10, 8 << 20] = Size(128 << 10);
        /// Overcommit factor of session memory. Above 1, sessions share memory: a shortage slows clients down, and
        /// their NICs must survive retransmission.
        oversubscribe: u16 [1, 4096] = 1;
        /// Whether to advertise secure erase. Linux's client (6.12) oopses if it is used.
        secure_erase: bool = false;
    }
}

section! {
    /// One network interface, identified by `device`, `mac` or `index`, or else by its place in the list.
    Net {
        /// The interface, as in `show interfaces`: `pci:0000:00:02.0` or `mac:…`.
        device: Option<DeviceName>;
        /// Number of the interface in the order of discovery.
        index: Option<u8> [0, 63];
        /// Hardware address of the interface.
        mac: Option<Mac>;
        /// Addresses of the interface.
        address: Vec<Address> = vec![Address::Dhcp] => AtOnce;
        /// Default gateways, at most one per address family.
        gateway: Vec<IpAddr> => AtOnce;
        /// MTU in bytes, by default that of the device.
        mtu: Option<u16> [68, 9216];
        /// VLAN of the interface: its frames carry this tag. Without it, frames are untagged.
        vlan: Option<u16> [1, 4094];
        /// Number of the core that polls the interface, or numbers of several that share it; by default 0, the first.
        core: Cores [0, 63];
        /// RoCE implementation, by default the card if capable, else software.
        roce: Option<RoceBy>;
        /// Physical network of the interface: SMC-R uses links over two interfaces of the same network.
        pnetid: Option<PnetId>;
    }
}

section! {
    /// A volume: in memory, with `disk` a whole disk, with `disk` and `size` a part of one.
    Volume {
        /// Name of the volume.
        name: Name;
        /// Size, by default 64MiB in memory. A part of a disk is created with this size, or grown to it.
        size: Option<Size> [512, 1 << 44];
        /// The disk, as in `show disks`: `serial:…`, `pci:0000:03:00.0` or its position.
        disk: Option<DeviceName>;
        /// Whether writes are refused.
        read_only: bool = false;
    }
}

section! {
    /// A volume as clients see it. Without any `[[export]]`, each volume is exported by its name.
    Export {
        /// Name under which clients open the volume.
        name: ExportName => AtOnce;
        /// Name of the volume.
        volume: Name => AtOnce;
        /// Whether writes are refused.
        read_only: bool = false => AtOnce;
        /// Names of sessions that may open the export; empty admits all.
        sessions: Vec<SessionName> => AtOnce;
        /// Networks whose hosts may open the export; empty admits all.
        hosts: Vec<Network> => AtOnce;
        /// Most requests in a second. Each request counts, except flushes.
        iops: Option<u32> [100, 100_000_000] => AtOnce;
        /// Most reads in a second.
        read_iops: Option<u32> [100, 100_000_000] => AtOnce;
        /// Most writes in a second, with zeroing and deallocation.
        write_iops: Option<u32> [100, 100_000_000] => AtOnce;
        /// Most bytes in a second.
        bandwidth: Option<Size> [1 << 20, 1 << 44] => AtOnce;
        /// Most bytes in a second that are read.
        read_bandwidth: Option<Size> [1 << 20, 1 << 44] => AtOnce;
        /// Most bytes in a second that are written.
        write_bandwidth: Option<Size> [1 << 20, 1 << 44] => AtOnce;
    }
}

impl Default for Config {
    fn default() -> Self {
        Config::absent().expect("every key of the document has a default")
    }
}

impl Default for Net {
    fn default() -> Self {
        Net::absent().expect("every key of [[net]] has a default")
    }
}

impl Config {
    /// The settings of the interface with this position, hardware address and location (as [`drivers::hal::Location`]
    /// displays it). An interface without a `[[net]]` uses DHCP.
    pub fn net(&self, index: usize, mac: [u8; 6], location: &str) -> Net {
        self.mentioned_net(index, mac, location).cloned().unwrap_or_default()
    }

    /// The `[[net]]` of the interface, if the document has one.
    pub fn mentioned_net(&self, index: usize, mac: [u8; 6], location: &str) -> Option<&Net> {
        self.net.get(self.number_of_net(index, mac, location)?)
    }

    /// The number of the interface's `[[net]]`, if the document has one.
    pub fn number_of_net(&self, index: usize, mac: [u8; 6], location: &str) -> Option<usize> {
        let matches = |(place, net): &(usize, &Net)| match (&net.device, net.mac, net.index) {
            (Some(device), ..) => device.is_port(index, location, mac),
            (None, Some(wanted), _) => wanted.0 == mac,
            (None, None, Some(wanted)) => usize::from(wanted) == index,
            (None, None, None) => *place == index,
        };
        self.net.iter().enumerate().find(matches).map(|(number, _)| number)
    }

    /// Services that every host may use because they have no `hosts`, by path or name. Bridges are never listed: their
    /// keys name their only peer.
    pub fn open_to_everybody(&self) -> Vec<String> {
        let mut open = Vec::new();
        if self.rnbd.enabled && self.roce.enabled {
            let exports = self.exports();
            let exports = exports.iter().filter(|export| export.hosts.is_empty());
            open.extend(exports.map(|export| format!("export {}", export.name)));
        }
        let all = |one: &&Subsystem| one.hosts.iter().any(HostNqn::is_all);
        let is_open = |one: &&Subsystem| {
            one.networks.is_empty() && !one.dhchap.is_required() && !one.tls.is_required()
        };
        let subsystems = self.subsystem.iter().filter(all).filter(is_open);
        open.extend(subsystems.map(|one| format!("subsystem {}", one.nqn)));
        let rules = self.rule.iter().filter(|rule| rule.hosts.is_empty());
        open.extend(rules.map(|rule| format!("rule {}", rule.name)));
        if self.smc.services && self.smc.hosts.is_empty() {
            open.push("smc.services".into());
        }
        // The measurement servers have no list of hosts, and let every client write to their memory.
        if self.roce.enabled && self.roce.services {
            open.push("roce.services".into());
        }
        // Without a rendezvous only the listed peers are admitted.
        let peers = self.usnic.iter().filter(|u| u.hosts.is_empty() && u.rendezvous.is_some());
        open.extend(peers.map(|usnic| format!("usnic {}", usnic.name)));
        if self.http.enabled && self.http.hosts.is_empty() {
            open.push("http".into());
        }
        open
    }

    /// The exports: `[[export]]`, or without any, each volume under its own name to all hosts.
    pub fn exports(&self) -> Vec<Export> {
        if !self.export.is_empty() {
            return self.export.clone();
        }
        let read_only = self.volume.iter().filter(|volume| volume.read_only);
        let read_only: BTreeSet<&str> = read_only.map(|volume| volume.name.as_str()).collect();
        let export = |volume: &Name| Export {
            read_only: read_only.contains(volume.as_str()),
            ..Export::of(
                volume.as_str().parse().expect("a volume's name is an export name"),
                volume.clone(),
            )
        };
        let alone = self.volume_names().filter(|name| self.mirror_of(name.as_str()).is_none());
        alone.map(export).collect()
    }
}

impl Http {
    /// The TCP port, with or without TLS.
    pub fn port(&self, tls: bool) -> u16 {
        self.port.unwrap_or(if tls { 443 } else { 80 })
    }

    /// The authorities that vouch for names of clients, if they are given.
    pub fn authorities(&self) -> Option<Result<Authorities, String>> {
        Some(Authorities::from_pem(self.client_ca.as_ref()?.as_str()))
    }

    /// The configured certificate and key, if both are given.
    pub fn pair(&self) -> Option<Result<Pair, PairError>> {
        let (certificate, key) = (self.certificate.as_ref()?, self.key.as_ref()?);
        Some(Pair::from_pem(certificate.as_str(), key.as_str()))
    }
}

impl Net {
    /// Whether the interface uses DHCPv4.
    pub fn dhcp(&self) -> bool {
        self.address.contains(&Address::Dhcp)
    }

    /// Fixed addresses with their prefix lengths.
    pub fn fixed(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        self.address.iter().filter_map(|a| match *a {
            Address::Static(address, prefix) => Some((address, prefix)),
            Address::Dhcp => None,
        })
    }
}

impl Volume {
    /// Default size of a volume in memory.
    pub const DEFAULT_SIZE: u64 = 64 << 20;

    /// The volume of the built-in default.
    fn ram0() -> Volume {
        let name = "ram0".parse().expect("a name");
        Volume { name, size: None, disk: None, read_only: false }
    }

    /// Bytes of memory that the volume occupies.
    pub fn memory(&self) -> u64 {
        match &self.disk {
            Some(_) => 0,
            None => self.size.map_or(Self::DEFAULT_SIZE, |size| size.0),
        }
    }
}
