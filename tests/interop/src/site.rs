//! The appliance's image and a stock Linux client beside it, and scenarios that run on both.

use anyhow::{Context, Result};
use launch::guest::{Guest, Wire};
use launch::qemu::{Nic, Spec, Vm};

use crate::{address, boot_client, networked_gateway_spec, storage, system, unmap};

/// Enables the responders of measuring tools.
pub const SERVICES: &str = "isthmus.roce.services=true";

/// The appliance's image in QEMU at 10.0.0.1 (fd00::1), and a guest as its client.
pub struct Site {
    /// The appliance, at its prompt.
    pub gateway: Vm,
    /// 10.0.0.2 (fd00::2)
    pub client: Guest,
    // Must outlive the machines.
    _wires: Vec<Wire>,
}

impl Site {
    /// Boots both, the appliance with `words` on its command line.
    pub fn boot(mtu: u16, words: &str) -> Result<Site> {
        Site::with_networks(1, mtu, words)
    }

    /// As `boot`, with interfaces of both on several networks: 10.0.N.0/24 and fd00:0:0:N::/64, N
    /// counting from 0.
    pub fn with_networks(networks: usize, mtu: u16, words: &str) -> Result<Site> {
        Site::with_client(networks, mtu, words, |spec| spec)
    }

    /// As `with_networks`, with a client that `more` extends.
    pub fn with_client(
        networks: usize,
        mtu: u16,
        words: &str,
        more: impl FnOnce(Spec) -> Spec,
    ) -> Result<Site> {
        let wires = (0..networks).map(|_| Wire::new()).collect::<Result<Vec<_>>>()?;
        let nics = wires.iter().map(Wire::datagrams).collect();
        let mut site = Site::between(nics, (mtu, mtu), words, |spec| spec, more)?;
        site._wires = wires;
        Ok(site)
    }

    /// As `with_client`, on wires that the caller keeps, with an MTU and an extension for each machine.
    pub fn between(
        nics: Vec<(Nic, Nic)>,
        mtus: (u16, u16),
        words: &str,
        more_gateway: impl FnOnce(Spec) -> Spec,
        more_client: impl FnOnce(Spec) -> Spec,
    ) -> Result<Site> {
        let networks = nics.len();
        let (ours, theirs): (Vec<Nic>, Vec<Nic>) = nics.into_iter().unzip();
        let gateway = networked_gateway_spec(networks, mtus.0, words)?.first_mac(1);
        let mut gateway = more_gateway(ours.into_iter().fold(gateway, Spec::nic)).start()?;
        gateway.wait_ready()?;
        let addresses: Vec<String> = (0..networks).map(|n| address(n, 2)).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let client = system()?.spec("client", &addresses, mtus.1).first_mac(0x20);
        let client = boot_client(more_client(theirs.into_iter().fold(client, Spec::nic)))?;
        Ok(Site::of(gateway, client))
    }

    /// A site of two running machines, on wires that the caller keeps.
    pub fn of(gateway: Vm, client: Guest) -> Site {
        Site { gateway, client, _wires: Vec::new() }
    }

    /// Boots both with a wire between them. Each of `others` is a further interface of the appliance, with its own
    /// network.
    pub fn beside(
        wire: (Nic, Nic),
        others: impl ExactSizeIterator<Item = Nic>,
        words: &str,
    ) -> Result<Site> {
        let gateway = networked_gateway_spec(1 + others.len(), 1500, words)?.first_mac(1);
        let mut gateway = others.fold(gateway.nic(wire.0), Spec::nic).start()?;
        gateway.wait_ready()?;
        let client = system()?.spec("client", &[&address(0, 2)], 1500).first_mac(0x20);
        Ok(Site::of(gateway, boot_client(client.nic(wire.1))?))
    }

    /// Boots both and runs `scenario`. If it fails, the error has the appliance's log and fabric metrics.
    pub fn run_scenario(
        mtu: u16,
        words: &str,
        scenario: impl FnOnce(&mut Site) -> Result<()>,
    ) -> Result<()> {
        let mut site = Site::boot(mtu, words)?;
        let result = scenario(&mut site);
        result
            .with_context(|| evidence(&mut site.gateway, &mut site.client))
            .with_context(|| format!("with an MTU of {mtu}"))
    }

    /// As [`Site::run_scenario`], with /dev/rnbd0 mapped before and unmapped after.
    pub fn run_mapped(
        mtu: u16,
        words: &str,
        scenario: impl FnOnce(&mut Guest) -> Result<()>,
    ) -> Result<()> {
        Site::run_scenario(mtu, words, |site| {
            storage::map_ram0(&mut site.client)?;
            scenario(&mut site.client)?;
            unmap(&mut site.client, 0)
        })
    }
}

/// Diagnostics of an appliance and its client, for the error of a failed scenario.
pub fn evidence(gateway: &mut Vm, client: &mut Guest) -> String {
    let counted = "timeout 10 wget -q -O - http://10.0.0.1/metrics | \
                   grep -E '^isthmus_(roce|port)' | grep -v ' 0$'
                   rdma statistic show; dmesg | grep -E 'rnbd|rtrs|rxe' | tail -n 10";
    let counted = client.sh(counted).unwrap_or_else(|error| format!("{error:#}"));
    let log = gateway.run("show log").map_or_else(|error| format!("{error:#}"), |log| log.text);
    format!("the appliance's metrics, and the client's:\n{counted}\nthe appliance's log:\n{log}")
}
