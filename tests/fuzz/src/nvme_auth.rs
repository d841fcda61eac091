//! NVMe's in-band authentication: a target and a host whose messages are changed, repeated, cut and replaced, and the
//! text forms of their keys.

use crate::input::Input;
use ::nvme_auth::{
    Answer, Channel, Concatenation, ConfiguredPsk, DhGroup, DhchapSecret, Hash, Host, HostConfig,
    Identity, Outcome, Policy, Sequence, Target, TargetConfig, TargetKeys,
};
use drivers::hal::Instant;
use std::time::Duration;

const HOST: &str = "nqn.host";
const SUBSYSTEM: &str = "nqn.subsystem";

struct World {
    target: Target,
    host: Host,
    config: TargetConfig,
    secrets: [DhchapSecret; 2],
    /// Whether the host has its secret.
    has_secret: bool,
    sequence: Sequence,
    rng: netsim::Rng,
    now: Instant,
    /// The last message of the host and of the target.
    last: [Vec<u8>; 2],
}

impl World {
    fn new(choice: u8) -> World {
        let mut rng = netsim::Rng::new(u64::from(choice));
        let mut random = |into: &mut [u8]| fill(&mut rng, into);
        let secrets = [
            DhchapSecret::generate(Some(Hash::Sha256), &mut random),
            DhchapSecret::generate(None, &mut random),
        ];
        let other = DhchapSecret::generate(None, &mut random);
        let sequence = Sequence::new(&mut random);
        let has_secret = choice & 1 == 0;
        // The smallest group takes a millisecond, and is not in each input.
        let group = if choice & 12 == 12 { DhGroup::Ffdhe2048 } else { DhGroup::Null };
        let concatenation =
            if group == DhGroup::Null { Concatenation::None } else { Concatenation::New };
        let offer = HostConfig {
            hashes: [Hash::Sha256, Hash::Sha384, Hash::Sha512].into(),
            groups: [group].into(),
            concatenation,
            timeout: Duration::from_secs(20),
        };
        let own = if has_secret { &secrets[0] } else { &other };
        let controller = (choice & 2 == 0).then_some(&secrets[1]);
        let now = Instant::from_nanos(1_000_000_000);
        World {
            target: Target::new(HOST, SUBSYSTEM, true, Channel::Clear, Policy::Allowed),
            host: Host::new(HOST, SUBSYSTEM, offer, (own, controller), 7, now),
            config: TargetConfig::default(),
            secrets,
            has_secret,
            sequence,
            rng,
            now,
            last: [Vec::new(), Vec::new()],
        }
    }

    fn send(&mut self, message: &[u8]) {
        let keys = TargetKeys { host: &self.secrets[0], controller: Some(&self.secrets[1]) };
        let mut random = |into: &mut [u8]| fill(&mut self.rng, into);
        let (config, sequence) = (&self.config, &mut self.sequence);
        self.target.receive(message, keys, config, sequence, &mut random, self.now);
    }

    /// Passes a message to the host.
    fn give(&mut self, message: &[u8]) {
        let mut random = |into: &mut [u8]| fill(&mut self.rng, into);
        self.host.receive(message, &mut self.sequence, &mut random, self.now);
    }

    fn fetch(&mut self, allowed: usize) {
        if let Answer::Message(message) = self.target.fetch(allowed) {
            assert!(message.len() <= allowed && message.len() <= 16 + 2 * 64 + 256);
            self.last[1] = message;
        }
    }

    fn work(&mut self, count: u32) {
        self.target.work(count);
        self.host.work(count);
    }

    fn check(&mut self) {
        if self.target.is_authenticated() {
            assert!(self.has_secret, "a host without the secret is authenticated");
        }
        if self.target.take_generated().is_some() {
            assert!(self.has_secret, "a host without the secret has a TLS key");
        }
        if let Some(Outcome::Authenticated { mutually: true }) = self.host.outcome() {
            assert!(!self.last[1].is_empty(), "a silent controller is authenticated");
        }
        let unsettled = self.target.is_pending() && self.target.poll_timeout().is_none();
        assert!(!unsettled, "it waits without a deadline");
    }
}

fn fill(rng: &mut netsim::Rng, into: &mut [u8]) {
    into.iter_mut().for_each(|byte| *byte = rng.within(0..256) as u8);
}

/// A message with some bytes changed.
fn changed(message: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut message = message.to_vec();
    for _ in 0..input.byte() % 4 {
        let (at, value) = (usize::from(input.word()), input.byte());
        if let Some(byte) = message.get_mut(at) {
            *byte = value;
        }
    }
    match input.byte() {
        len @ 1..=127 => message.truncate(len.into()),
        len @ 128.. => message.resize(message.len() + usize::from(len), len),
        0 => (),
    }
    message
}

/// Performs events of the input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(input.byte());
    input.events(100, |input| {
        match input.byte() % 10 {
            // The host's message, as it is or changed.
            0 | 1 => {
                if let Some(message) = world.host.outgoing().map(Vec::from) {
                    world.send(&message);
                    world.last[0] = message;
                    world.host.sent();
                }
            }
            2 => {
                let message = world.host.outgoing().unwrap_or(&world.last[0]).to_vec();
                world.send(&changed(&message, input));
            }
            3 => {
                let len = input.byte().into();
                let message = input.take(len);
                world.send(message);
            }
            4 => world.fetch(usize::from(input.word())),
            // The target's message, as it is or changed.
            5 => {
                world.work(u32::MAX);
                world.work(u32::MAX);
                world.fetch(4096);
                let message = world.last[1].clone();
                world.give(&message);
                world.work(u32::MAX);
                world.work(u32::MAX);
            }
            6 => {
                let message = world.last[1].clone();
                world.give(&changed(&message, input));
            }
            7 => world.work(input.byte().into()),
            8 => {
                world.now = world.now + Duration::from_millis(u64::from(input.byte()) * 100);
                world.target.poll(world.now);
                world.host.poll(world.now);
            }
            _ => world.target.require(),
        }
        world.check();
    });
}

/// A complete authentication, and messages out of order.
pub fn corpus() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for choice in 0..16 {
        all.push(vec![choice, 0, 5, 0, 5, 0]);
        all.push(vec![choice, 0, 4, 0, 200, 5, 2, 1, 0, 20, 1, 0, 5]);
        all.push(vec![choice, 0, 5, 0, 0, 5, 0, 9, 2, 0, 0, 5, 8, 255]);
        all.push(vec![choice, 0, 6, 1, 0, 8, 9, 0, 0, 7, 3, 5, 0, 5, 0]);
    }
    let negotiate = [&[0, 0, 0, 0, 9, 0, 0, 1, 1, 0, 1, 1, 1][..], &[0; 29], &[0; 30]].concat();
    all.push([&[0, 3, 72][..], &negotiate, &[5, 3, 8, 1, 4, 0, 0, 9, 0, 0, 0]].concat());
    all
}

/// Reads text as a secret, a TLS key and an identity. A parsed one has the same text again.
pub fn keys(data: &[u8]) {
    if let Some(identity) = Identity::parse(data) {
        assert_eq!(identity.text.as_bytes(), data);
        assert!(identity.host.len() <= 223 && identity.subsystem.len() <= 223);
        let mut rng = netsim::Rng::new(1);
        let psk =
            ConfiguredPsk::generate(Hash::Sha256, &mut |into: &mut [u8]| fill(&mut rng, into));
        assert!(psk.candidates(&identity).count() <= 2);
    }
    let Ok(text) = str::from_utf8(data) else { return };
    let whole = |text: &str| if text.ends_with(':') { text.into() } else { format!("{text}:") };
    match DhchapSecret::parse(text) {
        Ok(secret) => assert_eq!(*secret.text(), whole(text)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    match ConfiguredPsk::parse(text) {
        Ok(psk) => assert_eq!(*psk.text(), whole(text)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

pub fn keys_corpus() -> Vec<Vec<u8>> {
    [
        "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
        "DHHC-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
        "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
        "NVMe0R01 nqn.host nqn.subsystem",
        "NVMe1R02 nqn.host nqn.subsystem iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
        "NVMe1G01 nqn.host nqn.subsystem iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
    ]
    .into_iter()
    .map(Vec::from)
    .collect()
}
