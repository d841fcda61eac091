//! DH-HMAC-CHAP of queues: who gets in, who does not, and what either costs.

use super::*;
use crate::keys::HostKeys;
use nvme_auth::{
    Concatenation, DhGroup, DhchapSecret, GeneratedPsk, Hash, Host, HostConfig, Outcome, Sequence,
    TargetConfig,
};

pub const ATR: u64 = 1 << 17;
pub const ASCR: u64 = 1 << 18;
/// Authentication is required.
pub const REQUIRED: u16 = 0x191;
const INTERRUPTED: u16 = 0x21;

pub fn secret(seed: u64) -> DhchapSecret {
    DhchapSecret::generate(Some(Hash::Sha256), &mut *random(seed))
}

/// The secrets of [`HOST`].
pub fn keys(host: Option<u64>, controller: Option<u64>) -> HostKeys {
    HostKeys {
        nqn: HOST.into(),
        dhchap: host.map(secret),
        controller: controller.map(secret),
        tls: None,
    }
}

pub fn offer(group: DhGroup) -> HostConfig {
    HostConfig {
        hashes: [Hash::Sha384, Hash::Sha256].into(),
        groups: [group].into(),
        concatenation: Concatenation::None,
        timeout: Duration::from_secs(60),
    }
}

fn auth_command(fctype: u8, bytes: usize) -> Sqe {
    let sqe = Sqe::new(0x7f).with(4, &[fctype]).with(41, &[1, 1, 0xe9]);
    sqe.with(44, &(bytes as u32).to_le_bytes())
}

impl Lab {
    pub fn secure(&mut self, dhchap: Demand, tls: Demand, keys: Vec<HostKeys>) {
        let config = SubsystemConfig { dhchap, tls, ..subsystem(vec![namespace(1, "ram0")]) };
        self.target.set_keys(keys, TargetConfig::default());
        self.target.configure(vec![config], &self.volumes);
        self.run();
    }

    /// A target that demands a secret.
    fn demanding(keys: HostKeys) -> Lab {
        let mut lab = Lab::new();
        lab.secure(Demand::Required, Demand::Optional, vec![keys]);
        lab
    }

    pub fn auth_send(&mut self, link: usize, message: &[u8]) -> u16 {
        let window = self.memory(message);
        let sqe = auth_command(5, message.len());
        let status = self.execute(link, sqe, window, Carry::InCapsule).status;
        self.arena.free(window);
        status
    }

    pub fn auth_receive(&mut self, link: usize) -> Result<Vec<u8>, u16> {
        self.fetch(link, auth_command(6, 4096), 4096)
    }

    /// Authenticates a queue as a host does. Returns all messages of the host as well.
    pub fn authenticate(
        &mut self,
        link: usize,
        offer: HostConfig,
        secrets: (&DhchapSecret, Option<&DhchapSecret>),
    ) -> (Outcome, Vec<Vec<u8>>, Option<GeneratedPsk>) {
        let mut random = random(link as u64 + 77);
        let mut sequence = Sequence::new(&mut *random);
        let mut host = Host::new(HOST, SUBSYSTEM, offer, secrets, 9, self.now);
        let mut sent = Vec::new();
        loop {
            if let Some(message) = host.outgoing().map(Vec::from) {
                assert_eq!(self.auth_send(link, &message), 0);
                host.sent();
                sent.push(message);
            } else if host.wants_message() {
                let message = self.auth_receive(link).unwrap();
                host.receive(&message, &mut sequence, &mut *random, self.now);
                while host.work(1000) {}
            } else {
                return (host.outcome().unwrap(), sent, host.take_generated());
            }
        }
    }

    /// Whether DH-HMAC-CHAP with this secret succeeds.
    fn passes(&mut self, link: usize, seed: u64) -> bool {
        let (outcome, ..) = self.authenticate(link, offer(DhGroup::Null), (&secret(seed), None));
        matches!(outcome, Outcome::Authenticated { .. })
    }

    /// Connects an admin queue, without what follows. Returns the link and the result.
    pub fn begin(&mut self, tls: Option<Session>) -> (usize, Completion) {
        let link = self.dial_over(tls).expect("a place");
        let data = connect_data(7, 0xffff, SUBSYSTEM, HOST);
        (link, self.connect(link, Sqe::connect(0, 32, 5000, false), &data))
    }

    /// Connects and authenticates an admin queue and an I/O queue.
    fn authenticated(&mut self, seed: u64) -> (usize, usize) {
        let (admin, completion) = self.begin(None);
        assert_eq!((completion.status, completion.result & ATR), (0, ATR));
        assert!(self.passes(admin, seed));
        assert_eq!(self.simple(admin, Sqe::property_set(CC, ENABLE)).status, 0);
        let io = self.io(1, completion.result as u16).unwrap();
        assert!(self.passes(io, seed));
        (admin, io)
    }

    fn proofs(&self) -> Vec<&'static str> {
        self.target.controllers().map(|one| one.proof.name()).collect()
    }
}

#[test]
fn queue_takes_nothing_but_authentication_before_it_has_succeeded() {
    for group in [DhGroup::Null, DhGroup::Ffdhe2048] {
        let mut lab = Lab::demanding(keys(Some(1), None));
        let (admin, completion) = lab.begin(None);
        assert_eq!((completion.status, completion.result), (0, ATR | 1));
        let refused = |lab: &mut Lab, link: usize, sqe: Sqe| {
            assert_eq!(lab.simple(link, sqe).status, REQUIRED, "{sqe:?}");
        };
        refused(&mut lab, admin, Sqe::property_set(CC, ENABLE));
        refused(&mut lab, admin, Sqe::property_get(0, true));
        refused(&mut lab, admin, Sqe::new(0x0c));
        assert_eq!(lab.fetch(admin, Sqe::identify(1, 0), 4096), Err(REQUIRED));
        let (outcome, ..) = lab.authenticate(admin, offer(group), (&secret(1), None));
        assert_eq!(outcome, Outcome::Authenticated { mutually: false });
        assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, 0);
        let io = lab.io(1, 1).unwrap();
        assert_eq!(lab.fetch(io, read(0, 8), 4096), Err(REQUIRED));
        refused(&mut lab, io, Sqe::new(FLUSH).nsid(1));
        assert!(lab.passes(io, 1));
        assert!(lab.fetch(io, read(0, 8), 4096).is_ok());
        assert_eq!(lab.proofs(), ["DH-HMAC-CHAP"]);
        let counts = lab.target.security_counts();
        assert_eq!((counts.authenticated, counts.failed, counts.pending), (2, 0, 0));
        assert_eq!(lab.refusals(), [""; 0]);
    }
}

#[test]
fn controller_proves_its_name_as_well_if_the_host_wants_it() {
    let mut lab = Lab::demanding(keys(Some(1), Some(2)));
    let (admin, _) = lab.begin(None);
    let secrets = (secret(1), secret(2));
    let (outcome, ..) =
        lab.authenticate(admin, offer(DhGroup::Ffdhe2048), (&secrets.0, Some(&secrets.1)));
    assert_eq!(outcome, Outcome::Authenticated { mutually: true });
    assert_eq!(lab.proofs(), ["DH-HMAC-CHAP both ways"]);
    // A host that has another secret of the controller does not trust it.
    let (admin, _) = lab.begin(None);
    let wrong = secret(3);
    let (outcome, ..) = lab.authenticate(admin, offer(DhGroup::Null), (&secrets.0, Some(&wrong)));
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
    assert_eq!(lab.refusals(), ["dhchap_failed"]);
    assert_eq!(lab.simple(admin, Sqe::property_get(CSTS, false)).status, REQUIRED);
    // Without a controller's secret, the host's wish cannot be fulfilled.
    let mut lab = Lab::demanding(keys(Some(1), None));
    let (admin, _) = lab.begin(None);
    let (outcome, ..) =
        lab.authenticate(admin, offer(DhGroup::Null), (&secrets.0, Some(&secrets.1)));
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
}

#[test]
fn wrong_secret_is_refused_and_the_connection_ends() {
    let mut lab = Lab::demanding(keys(Some(1), None));
    let (admin, _) = lab.begin(None);
    assert!(!lab.passes(admin, 2));
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, REQUIRED);
    assert_eq!(lab.auth_send(admin, &[0; 80]), 0x400c, "a failed queue takes no message");
    assert_eq!(lab.auth_receive(admin), Err(0x400c));
    assert_eq!(lab.refusals(), ["dhchap_failed"]);
    assert!(lab.is_open(admin), "the host reads its failure before the end");
    lab.wait(5);
    assert!(!lab.is_open(admin));
    assert_eq!((lab.target.queues(), lab.target.controllers().count()), (0, 0));
    let counts = lab.target.security_counts();
    assert_eq!((counts.authenticated, counts.failed, counts.pending), (0, 1, 0));
    lab.authenticated(1);
}

#[test]
fn host_without_a_secret_is_refused_where_one_is_demanded() {
    let mut lab = Lab::new();
    lab.secure(Demand::Required, Demand::Optional, vec![]);
    let (_, completion) = lab.begin(None);
    assert_eq!((completion.status, completion.result), (0x4182, 512 | 1 << 16));
    assert_eq!(lab.refusals(), ["dhchap_no_secret"]);
    assert_eq!(lab.target.proof_of(SUBSYSTEM, HOST), Err("dhchap_no_secret"));
    // Where none is demanded, only those that have one need it.
    lab.secure(Demand::Optional, Demand::Optional, vec![]);
    assert_eq!(lab.begin(None).1.result, 1);
    assert_eq!(lab.proofs(), ["by name only"]);
    lab.secure(Demand::Optional, Demand::Optional, vec![keys(Some(1), None)]);
    assert_eq!(lab.begin(None).1.result & ATR, ATR);
}

#[test]
fn recorded_reply_is_worth_nothing() {
    let mut lab = Lab::demanding(keys(Some(1), None));
    let (admin, _) = lab.begin(None);
    let (outcome, sent, _) = lab.authenticate(admin, offer(DhGroup::Null), (&secret(1), None));
    assert!(matches!(outcome, Outcome::Authenticated { .. }));
    let (other, _) = lab.begin(None);
    assert_eq!(lab.auth_send(other, &sent[0]), 0);
    lab.auth_receive(other).unwrap();
    assert_eq!(lab.auth_send(other, &sent[1]), 0);
    let answer = lab.auth_receive(other).unwrap();
    assert_eq!(answer[..2], [0, 0xf1], "Failure1");
    assert_eq!(lab.simple(other, Sqe::property_set(CC, ENABLE)).status, REQUIRED);
    // Nor does a Reply without a challenge count.
    let (third, _) = lab.begin(None);
    assert_eq!(lab.auth_send(third, &sent[1]), 0);
    assert_eq!(lab.auth_receive(third).unwrap()[..2], [0, 0xf1]);
}

#[test]
fn host_authenticates_again_while_its_requests_are_executed() {
    let mut lab = Lab::bare(Settings::default());
    let held = lab.add_slow("ram0", 8, |_| {});
    lab.secure(Demand::Required, Demand::Optional, vec![keys(Some(1), None)]);
    let (admin, io) = lab.authenticated(1);
    let data = lab.memory(&pattern(4096, 1));
    let cid = lab.send(io, write(0, 8), data, Carry::InCapsule);
    lab.run();
    assert_eq!(lab.links[io].host.take(cid), None);
    for link in [admin, io] {
        let half = offer(DhGroup::Ffdhe2048);
        let host = Host::new(HOST, SUBSYSTEM, half, (&secret(1), None), 5, lab.now);
        assert_eq!(lab.auth_send(link, host.outgoing().unwrap()), 0);
        // In between other commands go on.
        let sqe = if link == io { Sqe::new(FLUSH).nsid(1) } else { Sqe::property_get(CSTS, false) };
        let between = lab.send(link, sqe, Window::empty(), Carry::None);
        lab.run();
        held.borrow_mut().complete(Ok(()));
        lab.run();
        assert_eq!(lab.links[link].host.take(between).unwrap().status, 0);
        assert!(lab.passes(link, 1));
    }
    assert_eq!(lab.links[io].host.take(cid).unwrap().status, 0);
    // The operator has changed the secret: the connection stays, and the new one counts.
    lab.secure(Demand::Required, Demand::Optional, vec![keys(Some(2), None)]);
    assert!(lab.is_open(admin) && lab.is_open(io));
    assert!(lab.passes(admin, 2));
    assert!(!lab.passes(io, 1));
    assert_eq!(lab.fetch(io, read(0, 8), 4096), Err(REQUIRED));
    lab.wait(5);
    assert!(lab.is_open(admin) && !lab.is_open(io));
}

#[test]
fn configuration_that_demands_more_ends_connections_that_have_proven_less() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    lab.secure(Demand::Optional, Demand::Optional, vec![keys(Some(1), None)]);
    assert!(!lab.is_open(admin) && !lab.is_open(io));
    assert_eq!(lab.refusals(), ["proof_demanded"]);
    let (admin, io) = lab.authenticated(1);
    lab.secure(Demand::Required, Demand::Optional, vec![keys(Some(1), None)]);
    assert!(lab.is_open(admin) && lab.is_open(io));
    lab.secure(Demand::Required, Demand::Optional, vec![]);
    assert!(!lab.is_open(admin) && !lab.is_open(io));
    lab.secure(Demand::Required, Demand::Optional, vec![keys(Some(1), None)]);
    let (admin, io) = lab.authenticated(1);
    lab.secure(Demand::Required, Demand::Required, vec![keys(Some(1), None)]);
    assert!(!lab.is_open(admin) && !lab.is_open(io));
}

/// A station that knows a host's names takes the place of its I/O queue, and has no secret.
#[test]
fn io_queue_without_authentication_neither_keeps_a_controller_nor_its_place() {
    let mut lab = Lab::demanding(keys(Some(1), None));
    let (admin, _) = lab.begin(None);
    assert!(lab.passes(admin, 1));
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, 0);
    let stranger = lab.io(1, 1).unwrap();
    assert_eq!(lab.io(1, 1).unwrap_err().status, 0x181, "the host tries again");
    for _ in 0..3 {
        assert_eq!(lab.simple(stranger, Sqe::new(FLUSH).nsid(1)).status, REQUIRED);
        lab.wait(4);
    }
    assert!(!lab.is_open(admin));
    assert_eq!(lab.refusals().last().unwrap(), "keep_alive_timeout");
}

#[test]
fn authentication_that_is_not_completed_ends_after_30_seconds() {
    let mut lab = Lab::demanding(keys(Some(1), None));
    let (silent, _) = lab.begin(None);
    let (half, _) = lab.begin(None);
    let negotiate =
        Host::new(HOST, SUBSYSTEM, offer(DhGroup::Ffdhe2048), (&secret(1), None), 1, lab.now);
    for _ in 0..25 {
        // A host that begins anew each second gets no more time.
        assert_eq!(lab.auth_send(half, negotiate.outgoing().unwrap()), 0);
        assert_eq!(lab.target.security_counts().pending, 1);
        lab.wait(1);
    }
    assert!(lab.is_open(silent) && lab.is_open(half));
    lab.wait(7);
    assert!(!lab.is_open(silent) && !lab.is_open(half));
    assert_eq!(lab.refusals(), ["dhchap_slow", "dhchap_slow"]);
    assert_eq!((lab.target.security_counts().pending, lab.target.queues()), (0, 0));
}

#[test]
fn unfinished_authentications_of_a_host_are_limited_and_leave_nothing_behind() {
    let mut lab = Lab::demanding(keys(Some(1), None));
    let free = lab.arena.available();
    let negotiate =
        Host::new(HOST, SUBSYSTEM, offer(DhGroup::Null), (&secret(1), None), 1, lab.now);
    let negotiate = negotiate.outgoing().unwrap().to_vec();
    let mut statuses = Vec::new();
    for _ in 0..64 {
        let (link, completion) = lab.begin(None);
        assert_eq!(completion.status, 0);
        statuses.push(lab.auth_send(link, &negotiate));
    }
    assert_eq!(statuses.iter().filter(|status| **status == 0).count(), 32);
    assert!(statuses[32..].iter().all(|status| *status == INTERRUPTED));
    assert_eq!(lab.target.security_counts().pending, 32);
    // A queue that was not authenticated counts as one without a Connect.
    assert!(lab.dial().is_none());
    assert!(lab.refusals().contains(&"authentications".to_string()));
    lab.from = Ipv4Addr::new(10, 0, 0, 3).into();
    lab.authenticated(1);
    for link in 0..64 {
        lab.cut(link);
    }
    assert_eq!(lab.target.security_counts().pending, 0);
    for link in 64..lab.links.len() {
        lab.cut(link);
    }
    assert_eq!((lab.target.queues(), lab.arena.available() > free - (128 << 10)), (0, true));
}

#[test]
fn address_that_fails_again_and_again_is_slowed() {
    let mut lab = Lab::demanding(keys(Some(1), None));
    let negotiate =
        Host::new(HOST, SUBSYSTEM, offer(DhGroup::Null), (&secret(2), None), 1, lab.now);
    let negotiate = negotiate.outgoing().unwrap().to_vec();
    for _ in 0..6 {
        let (link, _) = lab.begin(None);
        assert!(!lab.passes(link, 2));
        lab.cut(link);
    }
    let (link, _) = lab.begin(None);
    assert_eq!(lab.auth_send(link, &negotiate), INTERRUPTED);
    assert!(lab.refusals().contains(&"slowed".to_string()));
    let here = lab.from;
    lab.from = Ipv4Addr::new(10, 0, 0, 3).into();
    lab.authenticated(1);
    lab.from = here;
    lab.wait(2);
    let (link, _) = lab.begin(None);
    assert!(lab.passes(link, 1), "the right secret after the delay");
}

#[test]
fn malformed_authentication_commands_are_refused() {
    let mut lab = Lab::demanding(keys(Some(1), None));
    let (admin, _) = lab.begin(None);
    let message = lab.memory(&[0; 80]);
    for sqe in [
        auth_command(5, 79),
        auth_command(5, 0),
        auth_command(5, 80).with(41, &[0]),
        auth_command(5, 80).with(42, &[2]),
        auth_command(5, 80).with(43, &[0xea]),
    ] {
        assert_eq!(lab.execute(admin, sqe, message, Carry::InCapsule).status, 0x4002, "{sqe:?}");
    }
    assert_eq!(lab.fetch(admin, auth_command(6, 4095), 4096), Err(0x4002));
    assert_eq!(lab.fetch(admin, auth_command(6, 65536), 65536), Err(0x4002), "too long");
    assert_eq!(lab.simple(admin, auth_command(6, 0)).status, 0x4002, "no buffer");
    assert_eq!(lab.auth_receive(admin), Err(0x400c), "there is no message");
    // A buffer that is too short for the challenge loses nothing.
    let host = Host::new(HOST, SUBSYSTEM, offer(DhGroup::Null), (&secret(1), None), 1, lab.now);
    assert_eq!(lab.auth_send(admin, host.outgoing().unwrap()), 0);
    assert_eq!(lab.fetch(admin, auth_command(6, 16), 16), Err(0x4002));
    assert_eq!(lab.auth_receive(admin).unwrap()[..2], [1, 1]);
    assert!(lab.passes(admin, 1));
}

#[test]
fn key_exchange_takes_a_share_of_many_rounds() {
    let mut lab = Lab::demanding(keys(Some(1), None));
    let (admin, _) = lab.begin(None);
    let host =
        Host::new(HOST, SUBSYSTEM, offer(DhGroup::Ffdhe3072), (&secret(1), None), 1, lab.now);
    let message = lab.memory(host.outgoing().unwrap());
    let length = message.len();
    lab.links[admin].host.submit(auth_command(5, length), message, Carry::InCapsule).unwrap();
    let buffer = lab.arena.alloc(4096, 4).unwrap();
    let cid = lab.send(admin, auth_command(6, 4096), buffer, Carry::In);
    // The commands arrive, and no round follows.
    let mut bytes = vec![0; 4096];
    let n = lab.links[admin].host.connection.transmit(&mut bytes);
    let mut queue = lab.links[admin].queue.take().unwrap();
    lab.context(|target, ctx| assert_eq!(queue.receive(&bytes[..n], target, ctx), n));
    lab.links[admin].queue = Some(queue);
    let mut rounds = 0;
    while lab.target.deadline() == Some(Instant::ZERO) {
        lab.context(|target, ctx| target.poll(ctx));
        rounds += 1;
    }
    assert!((20..60).contains(&rounds), "{rounds}");
    lab.run();
    assert_eq!(lab.links[admin].host.take(cid).unwrap().status, 0);
}
