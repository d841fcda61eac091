//! Secrets of hosts, and the proofs that a subsystem demands of them.

use crate::controller::ControllerView;
use crate::discovery::DISCOVERY_NQN;
use crate::subsystem::SubsystemConfig;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;
use nvme_auth::{
    Channel, ConfiguredPsk, DhchapSecret, GeneratedPsk, Identity, Policy, TargetConfig,
};
use tls_psk::Psk;

/// Generated TLS keys that are kept (1.5 MiB), and those of a host. A host that returns makes one for each of its
/// controllers at once, and Linux asks for no other if its key is gone before its last queue is connected.
const GENERATED: usize = 4096;
const GENERATED_PER_HOST: usize = 64;
/// How long a generated TLS key is kept (Linux keeps its own for as long).
const GENERATED_LIFE: Duration = Duration::from_secs(3600);

/// Whether a subsystem demands a proof of all its hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Of those that have a secret for it.
    #[default]
    Optional,
    /// Of all: a host without a secret is refused.
    Required,
}

/// Secrets of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeys {
    /// Its NQN.
    pub nqn: String,
    /// Its secret of DH-HMAC-CHAP.
    pub dhchap: Option<DhchapSecret>,
    /// The controller's secret, with which this host lets the controller authenticate.
    pub controller: Option<DhchapSecret>,
    /// Its TLS key.
    pub tls: Option<ConfiguredPsk>,
}

impl ControllerView {
    /// Whether its host has proven what a subsystem with these secrets of hosts demands.
    pub fn has_proven(&self, config: &SubsystemConfig, hosts: Vec<HostKeys>) -> bool {
        let mut keys = Keys::default();
        keys.set(hosts, TargetConfig::default());
        let demands = keys.demands(config, &self.host, self.proof.channel);
        demands.is_ok_and(|demands| {
            let in_clear = demands.policy == Policy::Required;
            !in_clear && (!demands.authenticates || self.proof.both_ways.is_some())
        })
    }
}

/// What a host has to do at a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demands {
    /// DH-HMAC-CHAP on each queue.
    pub authenticates: bool,
    /// Secure concatenation.
    pub policy: Policy,
}

/// Secrets of all hosts, and TLS keys that authentications have made.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// By NQN.
    hosts: Vec<HostKeys>,
    generated: Vec<Generated>,
    /// Preferences of DH-HMAC-CHAP.
    pub config: TargetConfig,
}

#[derive(Debug)]
struct Generated {
    key: GeneratedPsk,
    host: String,
    until: Instant,
}

impl Keys {
    /// Replaces all secrets; false if they are the same. When a host's secret changes, the TLS keys generated with the
    /// former secret are deleted, so that the former secret no longer admits a host. Of two entries with the same NQN
    /// the first counts; the check of the configuration reports the second.
    pub fn set(&mut self, mut hosts: Vec<HostKeys>, config: TargetConfig) -> bool {
        hosts.sort_by(|a, b| a.nqn.cmp(&b.nqn));
        hosts.dedup_by(|a, b| a.nqn == b.nqn);
        self.config = config;
        if self.hosts == hosts {
            return false;
        }
        let before = core::mem::replace(&mut self.hosts, hosts);
        let now = &self.hosts;
        fn secret<'a>(hosts: &'a [HostKeys], nqn: &str) -> Option<&'a DhchapSecret> {
            hosts.iter().find(|one| one.nqn == nqn)?.dhchap.as_ref()
        }
        self.generated.retain(|one| {
            let secret_now = secret(now, &one.host);
            secret_now.is_some() && secret_now == secret(&before, &one.host)
        });
        true
    }

    /// The secrets of a host.
    pub fn of(&self, nqn: &str) -> Option<&HostKeys> {
        let place = self.hosts.binary_search_by(|one| one.nqn.as_str().cmp(nqn)).ok()?;
        self.hosts.get(place)
    }

    /// Whether any host may use TLS.
    pub fn may_use_tls(&self) -> bool {
        !self.generated.is_empty() || self.hosts.iter().any(|one| one.tls.is_some())
    }

    /// What a host has to do at a subsystem over such a connection; otherwise a label of the reason why it is refused.
    pub fn demands(
        &self,
        config: &SubsystemConfig,
        host: &str,
        channel: Channel,
    ) -> Result<Demands, &'static str> {
        let keys = self.of(host);
        let has_secret = keys.is_some_and(|keys| keys.dhchap.is_some());
        let has_psk = keys.is_some_and(|keys| keys.tls.is_some());
        if config.dhchap == Demand::Required && !has_secret {
            return Err("dhchap_no_secret");
        }
        match channel {
            Channel::Clear if self.wants_tls(config, host) && !has_secret => Err("tls_required"),
            Channel::Clear => {
                let policy = match (self.wants_tls(config, host), has_secret) {
                    (true, _) => Policy::Required,
                    (false, true) => Policy::Allowed,
                    (false, false) => Policy::Never,
                };
                Ok(Demands { authenticates: has_secret, policy })
            }
            Channel::Tls if !has_psk => Err("tls_key_removed"),
            Channel::Tls => {
                let authenticates = config.dhchap == Demand::Required;
                Ok(Demands { authenticates, policy: Policy::Never })
            }
            // Its key is the result of an authentication.
            Channel::Generated if !has_secret => Err("dhchap_no_secret"),
            Channel::Generated => Ok(Demands { authenticates: false, policy: Policy::Allowed }),
        }
    }

    /// Whether a host cannot use a subsystem in clear. One that has a secret proves its name in clear as well.
    pub fn wants_tls(&self, config: &SubsystemConfig, host: &str) -> bool {
        let only_tls = |keys: &HostKeys| keys.tls.is_some() && keys.dhchap.is_none();
        config.tls == Demand::Required || self.of(host).is_some_and(only_tls)
    }

    /// Keeps a generated key, in place of the oldest if there are too many.
    pub fn keep(&mut self, key: GeneratedPsk, host: &str, now: Instant) {
        self.generated.retain(|one| one.until > now);
        let of_host = self.generated.iter().filter(|one| one.host == host).count();
        let oldest = match of_host >= GENERATED_PER_HOST {
            true => self.generated.iter().position(|one| one.host == host),
            false if self.generated.len() >= GENERATED => Some(0),
            false => None,
        };
        if let Some(oldest) = oldest {
            self.generated.remove(oldest);
        }
        self.generated.push(Generated { key, host: host.into(), until: now + GENERATED_LIFE });
    }

    /// The keys that a client may have under its identity, at most two.
    pub fn candidates<'a>(
        &self,
        identity: &Identity<'_>,
        mut subsystems: impl Iterator<Item = &'a SubsystemConfig>,
        now: Instant,
    ) -> Vec<Psk> {
        if identity.is_generated {
            let found = self
                .generated
                .iter()
                .find(|one| one.until > now && one.key.identity == identity.text);
            return found.map(|one| one.key.psk.clone()).into_iter().collect();
        }
        let is_served = identity.subsystem == DISCOVERY_NQN
            || subsystems.any(|it| it.nqn == identity.subsystem);
        let psk = self.of(identity.host).and_then(|keys| keys.tls.as_ref()).filter(|_| is_served);
        psk.map(|psk| psk.candidates(identity).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tls_psk::hash::{Hash, Secret};

    fn keep(keys: &mut Keys, host: &str, numbers: core::ops::Range<u32>) {
        for number in numbers {
            let identity = alloc::format!("NVMe1G01 {host} nqn.s {number}");
            let psk = Psk { hash: Hash::Sha256, key: Secret::zeros(32) };
            keys.keep(GeneratedPsk { identity, psk }, host, Instant::ZERO);
        }
    }

    #[test]
    fn host_with_many_controllers_keeps_their_keys_and_displaces_no_other_host() {
        let mut keys = Keys::default();
        let has = |keys: &Keys, identity: &str| {
            let identity = Identity::parse(identity.as_bytes()).unwrap();
            !keys.candidates(&identity, core::iter::empty(), Instant::ZERO).is_empty()
        };
        keep(&mut keys, "nqn.a", 0..60);
        assert!(has(&keys, "NVMe1G01 nqn.a nqn.s 0"));
        keep(&mut keys, "nqn.b", 0..10_000);
        assert!(has(&keys, "NVMe1G01 nqn.a nqn.s 0"));
        assert!(has(&keys, "NVMe1G01 nqn.b nqn.s 9999") && !has(&keys, "NVMe1G01 nqn.b nqn.s 0"));
        assert_eq!(keys.generated.len(), 60 + GENERATED_PER_HOST);
    }
}
