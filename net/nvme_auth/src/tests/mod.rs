//! Tests: vectors of Linux and libnvme and of independent computations, host against target, and hostile peers.

mod exchange;
mod hostile;
mod text;
mod vectors;

use crate::{
    Answer, Channel, Concatenation, DhGroup, DhchapSecret, Hash, Host, HostConfig, Policy,
    Sequence, Target, TargetConfig, TargetKeys,
};
use drivers::hal::Instant;
use netsim::Rng;
use std::boxed::Box;
use std::time::Duration;
use std::vec::Vec;

pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:7f3c1c1e-0000-4000-8000-000000000001";
pub const SUBSYSTEM: &str = "nqn.2024-01.org.example:volumes";
pub const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// A generator with a seed.
pub fn random(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut rng = Rng::new(seed);
    move |into: &mut [u8]| into.iter_mut().for_each(|byte| *byte = rng.within(0..256) as u8)
}

/// Both ends with their secrets.
pub struct World {
    pub host_secret: DhchapSecret,
    pub controller_secret: Option<DhchapSecret>,
    pub config: TargetConfig,
    pub target: Target,
    pub host: Host,
    pub sequences: [Sequence; 2],
    pub random: Box<dyn FnMut(&mut [u8])>,
}

pub fn host_config(group: DhGroup, hash: Hash) -> HostConfig {
    HostConfig {
        hashes: [hash].into(),
        groups: [group].into(),
        concatenation: Concatenation::None,
        timeout: Duration::from_secs(30),
    }
}

impl World {
    /// `mutual`: the host challenges the controller.
    pub fn new(offer: HostConfig, mutual: bool, channel: Channel, policy: Policy) -> World {
        let mut random = random(7);
        let host_secret = DhchapSecret::generate(Some(Hash::Sha256), &mut random);
        let controller = DhchapSecret::generate(None, &mut random);
        let controller = mutual.then_some(controller);
        let config = TargetConfig { groups: DhGroup::ALL.into(), ..TargetConfig::default() };
        let sequences = [Sequence::new(&mut random), Sequence::new(&mut random)];
        let keys = (&host_secret, controller.as_ref());
        let host = Host::new(HOST, SUBSYSTEM, offer, keys, 0x1234, NOW);
        World {
            target: Target::new(HOST, SUBSYSTEM, true, channel, policy),
            host,
            controller_secret: controller,
            host_secret,
            config,
            sequences,
            random: Box::new(random),
        }
    }

    /// Passes a message of the host to the target.
    pub fn send(&mut self, message: &[u8]) -> bool {
        let keys =
            TargetKeys { host: &self.host_secret, controller: self.controller_secret.as_ref() };
        let sequence = &mut self.sequences[0];
        self.target.receive(message, keys, &self.config, sequence, &mut *self.random, NOW)
    }

    /// The target's message, after its work.
    pub fn fetch(&mut self) -> Vec<u8> {
        while self.target.work(10) {}
        match self.target.fetch(4096) {
            Answer::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }

    pub fn give(&mut self, message: &[u8]) {
        self.host.receive(message, &mut self.sequences[1], &mut *self.random, NOW);
        while self.host.work(10) {}
    }

    /// One step: the host sends or fetches. False if it does neither.
    pub fn step(&mut self) -> bool {
        if let Some(message) = self.host.outgoing().map(Vec::from) {
            assert!(self.send(&message), "{:?}", self.target);
            self.host.sent();
        } else if self.host.wants_message() {
            let mut message = self.fetch();
            // As the host fetches into a buffer of 4 KiB.
            message.resize(4096, 0);
            self.give(&message);
        } else {
            return false;
        }
        true
    }

    pub fn run(&mut self) {
        while self.step() {}
    }
}
