//! The document: every key that there is, with its default and limits.

use super::cores::Cores;
use super::device_name::DeviceName;
use super::item::{Item as _, section};
use super::linx::Linx;
use super::messaging::{Rule, Smc};
use super::ntb::Ntb;
use super::rapidio::Rapidio;
use super::remote::{Mirror, Remote};
use super::usnic::Usnic;
use super::values::{
    Address, ConfigPlace, Ed25519Key, ExportName, Hostname, Mac, Name, OnPanic, Pem, PrivateKey,
    RoceBy, SessionName, Sha256, Size,
};
use core::net::{IpAddr, SocketAddr};
use log::LevelFilter;
use net::hosts::Network;
use net::tls::{Pair, PairError};
use smcr::engine::PnetId;

section! {
    /// Everything that an operator can configure.
    Config {
        /// `[system]`.
        system: System;
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
        /// `[[rule]]`.
        rule: Vec<Rule>;
    }
}

section! {
    /// The appliance as a whole.
    System {
        /// Its name in logs and towards DHCP servers.
        hostname: Hostname = "isthmus".parse().expect("a host name");
        /// Microseconds without work after which a loop halts until the next interrupt or
        /// deadline; 0 halts at once, 4294967295 practically never.
        idle_after_us: u32 = 100 => AtOnce;
        /// Least severe messages that are logged.
        log_level: LevelFilter = LevelFilter::Info => AtOnce;
        /// Where to send log messages (RFC 5424 over UDP).
        syslog: Option<SocketAddr> => AtOnce;
        /// What the appliance does after a panic or an exception.
        on_panic: OnPanic = OnPanic::Reboot => AtOnce;
        /// Seconds that the first loop may stand still until the machine's watchdog resets it; 0: any time.
        watchdog: u16 [0, 600] = 0 => AtOnce;
        /// The disk that keeps the configuration, said by another source than that disk.
        config_disk: Option<ConfigPlace>;
        /// Releases that are signed with this key are taken by `upgrade`; without it none.
        upgrade_key: Option<Ed25519Key> => AtOnce;
    }
}

section! {
    /// Memory.
    Memory {
        /// Memory for DMA, volumes and sessions; without it, what the machine can spare.
        arena: Option<Size> [1 << 20, 1 << 44];
    }
}

section! {
    /// The HTTP server with `/metrics`, `/healthz`, `/status` and `/api`.
    Http {
        /// Whether it runs.
        enabled: bool = true => AtOnce;
        /// Its TCP port; without it 80, with TLS 443.
        port: Option<u16> [1, 65535] => AtOnce;
        /// Connections that it serves on an interface at a time, a host half of them.
        connections: u16 [2, 256] = 16;
        /// Networks whose hosts may use it; none given: all.
        hosts: Vec<Network> => AtOnce;
        /// Addresses of ours that it listens on; none given: all.
        listen: Vec<IpAddr> => AtOnce;
        /// SHA-256 of the token with which hosts may write and have captures; without it nobody may.
        token_sha256: Option<Sha256> => AtOnce;
        /// Whether it speaks TLS, and nothing else.
        tls: bool = false;
        /// Whether `/readyz` answers 503 while a mirror does not hold everything twice.
        ready_needs_mirrors: bool = false => AtOnce;
        /// The certificate for that, perhaps with those that signed it; without it one that the appliance makes.
        certificate: Option<Pem>;
        /// The key of the certificate.
        key: Option<PrivateKey>;
    }
}

section! {
    /// What one host may have at a time, by its address.
    Limits {
        /// Sessions of storage clients, of the 64 that there may be; a session over several paths is one.
        sessions_per_host: u16 [1, 64] = 32;
        /// Connections: queue pairs of the RDMA connection manager, and TCP or SMC-R connections.
        connections_per_host: u32 [1, 65535] = 1024;
        /// Memory of its storage sessions; without it three quarters of what there is for sessions. Connections are limited by
        /// their number.
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
        /// Whether interfaces speak it.
        enabled: bool = true;
        /// Whether peers may measure against the appliance (rping, perftest, qperf).
        services: bool = false;
    }
}

section! {
    /// The storage gateway.
    Rnbd {
        /// Whether it serves.
        enabled: bool = true;
        /// The port of the RDMA connection manager that clients connect to.
        port: u16 [1, 65535] = 1234;
        /// Whether each I/O gets a fresh memory key that dies with it.
        always_invalidate: bool = true;
        /// Requests in flight per session.
        queue_depth: u16 [2, 4096] = 512;
        /// The queue depth that clients were given, where it is not what memory would give after a start; 0: as memory
        /// goes. `save` writes it: Linux gives a path up for good when the depth changes.
        offered_depth: u16 [0, 4096] = 0;
        /// Bytes per request in flight, a power of two.
        chunk_size: Size [8 << 10, 8 << 20] = Size(128 << 10);
        /// How many times over memory is promised to sessions. Beyond 1 they share it: a short
        /// moment slows clients down, whose NICs must survive retransmission.
        oversubscribe: u16 [1, 4096] = 1;
        /// Whether clients are told of secure erase. Linux's client (6.12) oopses if it is used.
        secure_erase: bool = false;
    }
}

section! {
    /// One network interface. Found by `device`, `mac` or `index`; with none of them, by its place in
    /// the list.
    Net {
        /// The interface, as `show interfaces` names it: `pci:0000:00:02.0` or `mac:…`.
        device: Option<DeviceName>;
        /// Number of the interface in the order of discovery.
        index: Option<u8> [0, 63];
        /// Hardware address of the interface.
        mac: Option<Mac>;
        /// Its addresses.
        address: Vec<Address> = vec![Address::Dhcp] => AtOnce;
        /// Default gateways, at most one per address family.
        gateway: Vec<IpAddr> => AtOnce;
        /// Largest packet in bytes; without it, what the device offers.
        mtu: Option<u16> [68, 9216];
        /// The VLAN that it is on: its frames have that tag. Without it they have none.
        vlan: Option<u16> [1, 4094];
        /// Number of the core whose loop takes its frames, or of several that share them; 0, the first, without it.
        core: Cores [0, 63];
        /// What does RoCE there; without it the card if it can, else the appliance.
        roce: Option<RoceBy>;
        /// The physical network that it is on: SMC-R has links over two interfaces of the same.
        pnetid: Option<PnetId>;
    }
}

section! {
    /// Storage: in memory, with `disk` a whole disk, with `disk` and `size` a part of one.
    Volume {
        /// Its name.
        name: Name;
        /// Its size; in memory 64MiB without it. A part of a disk is made or grows to have it.
        size: Option<Size> [512, 1 << 44];
        /// The disk, as `show disks` names it: `serial:…`, `pci:0000:03:00.0` or its position.
        disk: Option<DeviceName>;
        /// Whether writes are refused.
        read_only: bool = false;
    }
}

section! {
    /// A volume as clients see it. Without any `[[export]]`, each volume is exported by its name.
    Export {
        /// What clients open.
        name: ExportName => AtOnce;
        /// Name of the volume.
        volume: Name => AtOnce;
        /// Whether writes are refused.
        read_only: bool = false => AtOnce;
        /// Names of the sessions that may open it; none given: all.
        sessions: Vec<SessionName> => AtOnce;
        /// Networks whose hosts may open it; none given: all.
        hosts: Vec<Network> => AtOnce;
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
    /// The settings of the interface with this position, hardware address and location (as
    /// [`drivers::hal::Location`] is written); those of an interface that the document does not mention
    /// are DHCP.
    pub fn net(&self, index: usize, mac: [u8; 6], location: &str) -> Net {
        self.mentioned_net(index, mac, location).cloned().unwrap_or_default()
    }

    /// The same, if the document mentions the interface.
    pub fn mentioned_net(&self, index: usize, mac: [u8; 6], location: &str) -> Option<&Net> {
        self.net.get(self.number_of_net(index, mac, location)?)
    }

    /// The number by which the document has an interface, if it mentions that.
    pub fn number_of_net(&self, index: usize, mac: [u8; 6], location: &str) -> Option<usize> {
        let matches = |(place, net): &(usize, &Net)| match (&net.device, net.mac, net.index) {
            (Some(device), ..) => device.is_port(index, location, mac),
            (None, Some(wanted), _) => wanted.0 == mac,
            (None, None, Some(wanted)) => usize::from(wanted) == index,
            (None, None, None) => *place == index,
        };
        self.net.iter().enumerate().find(matches).map(|(number, _)| number)
    }

    /// What has no `hosts`, by its path or name: every host may use it. Bridges have one peer, whom their keys name.
    pub fn open_to_everybody(&self) -> Vec<String> {
        let mut open = Vec::new();
        if self.rnbd.enabled && self.roce.enabled {
            let exports = self.exports();
            let exports = exports.iter().filter(|export| export.hosts.is_empty());
            open.extend(exports.map(|export| format!("export {}", export.name)));
        }
        let rules = self.rule.iter().filter(|rule| rule.hosts.is_empty());
        open.extend(rules.map(|rule| format!("rule {}", rule.name)));
        if self.smc.services && self.smc.hosts.is_empty() {
            open.push("smc.services".into());
        }
        // The measuring tools have no list of hosts, and let whoever comes write into their memory.
        if self.roce.enabled && self.roce.services {
            open.push("roce.services".into());
        }
        // Without a rendezvous its peers are those that are listed.
        let peers = self.usnic.iter().filter(|u| u.hosts.is_empty() && u.rendezvous.is_some());
        open.extend(peers.map(|usnic| format!("usnic {}", usnic.name)));
        if self.http.enabled && self.http.hosts.is_empty() {
            open.push("http".into());
        }
        open
    }

    /// What is exported: `[[export]]`, or without any, each volume under its name to everybody.
    pub fn exports(&self) -> Vec<Export> {
        if !self.export.is_empty() {
            return self.export.clone();
        }
        let read_only = |name: &Name| self.volume.iter().any(|v| v.read_only && v.name == *name);
        let export = |volume: &Name| Export {
            name: volume.as_str().parse().expect("a volume's name is an export name"),
            volume: volume.clone(),
            read_only: read_only(volume),
            sessions: Vec::new(),
            hosts: Vec::new(),
        };
        let alone = self.volume_names().filter(|name| self.mirror_of(name.as_str()).is_none());
        alone.map(export).collect()
    }
}

impl Http {
    /// The port, if TLS is spoken (`tls`) or not.
    pub fn port(&self, tls: bool) -> u16 {
        self.port.unwrap_or(if tls { 443 } else { 80 })
    }

    /// The certificate and the key that are given, if they are.
    pub fn pair(&self) -> Option<Result<Pair, PairError>> {
        let (certificate, key) = (self.certificate.as_ref()?, self.key.as_ref()?);
        Some(Pair::from_pem(certificate.as_str(), key.as_str()))
    }
}

impl Net {
    /// Whether it asks a DHCPv4 server.
    pub fn dhcp(&self) -> bool {
        self.address.contains(&Address::Dhcp)
    }

    /// Its fixed addresses with their prefix lengths.
    pub fn fixed(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        self.address.iter().filter_map(|a| match *a {
            Address::Static(address, prefix) => Some((address, prefix)),
            Address::Dhcp => None,
        })
    }
}

impl Volume {
    /// Size of a volume in memory that does not say.
    pub const DEFAULT_SIZE: u64 = 64 << 20;

    /// The volume of the built-in default.
    fn ram0() -> Volume {
        let name = "ram0".parse().expect("a name");
        Volume { name, size: None, disk: None, read_only: false }
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> u64 {
        match &self.disk {
            Some(_) => 0,
            None => self.size.map_or(Self::DEFAULT_SIZE, |size| size.0),
        }
    }
}
