//! `show usnic`: the report on interfaces and peers, and the tables of their counters.

use crate::appliance::Appliance;
use crate::report::Value;
use crate::status::{MpiStatus, UdpEngineStatus, UsnicPeer, UsnicStatus};
use usnic::wire::modex::Modex;
use usnic::{Counters, InterfaceCounters, State};

/// A counter of an endpoint. Counters up to `max_rcvd_window_size` have the names of the BTL's statistics
/// (`btl_usnic_stats`).
pub(crate) type Counted = (&'static str, fn(&Counters) -> u64);

pub(crate) const COUNTERS: [Counted; 29] = [
    ("num_total_sends", |c| c.num_total_sends),
    ("num_resends", |c| c.num_resends),
    ("num_timeout_retrans", |c| c.num_timeout_retrans),
    ("num_fast_retrans", |c| c.num_fast_retrans),
    ("num_chunk_sends", |c| c.num_chunk_sends),
    ("num_frag_sends", |c| c.num_frag_sends),
    ("num_ack_sends", |c| c.num_ack_sends),
    ("num_total_recvs", |c| c.num_total_recvs),
    ("num_dup_recvs", |c| c.num_dup_recvs),
    ("num_oow_low_recvs", |c| c.num_oow_low_recvs),
    ("num_oow_high_recvs", |c| c.num_oow_high_recvs),
    ("num_frag_recvs", |c| c.num_frag_recvs),
    ("num_chunk_recvs", |c| c.num_chunk_recvs),
    ("num_badfrag_recvs", |c| c.num_badfrag_recvs),
    ("num_ack_recvs", |c| c.num_ack_recvs),
    ("num_old_dup_acks", |c| c.num_old_dup_acks),
    ("num_dup_acks", |c| c.num_dup_acks),
    ("max_sent_window_size", |c| c.max_sent_window_size),
    ("max_rcvd_window_size", |c| c.max_rcvd_window_size),
    ("messages_received", |c| c.messages_received),
    ("fragments_sent", |c| c.fragments_sent),
    ("puts_received", |c| c.puts_received),
    ("puts_refused", |c| c.puts_refused),
    ("acks_of_unsent", |c| c.acks_of_unsent),
    ("malformed", |c| c.malformed),
    ("other_senders", |c| c.other_senders),
    ("large_on_priority", |c| c.large_on_priority),
    ("no_room", |c| c.no_room),
    ("after_failure", |c| c.after_failure),
];

/// A counter of an interface: its name in reports, its metric, the metric's help, and its value.
pub(crate) type OfInterface =
    (&'static str, &'static str, &'static str, fn(&InterfaceCounters) -> u64);

pub(crate) const INTERFACE_COUNTERS: [OfInterface; 5] = [
    (
        "num_unk_recvs",
        "isthmus_usnic_unknown_senders_total",
        "Datagrams from an address or port that belongs to no peer.",
        |c| c.num_unk_recvs,
    ),
    ("pings_answered", "isthmus_usnic_pings_answered_total", "PINGs answered, from peers.", |c| {
        c.pings_answered
    }),
    (
        "pings_ignored",
        "isthmus_usnic_pings_ignored_total",
        "PINGs dropped: from unknown senders or of another version, and answers without a PING.",
        |c| c.pings_ignored,
    ),
    ("pings_sent", "isthmus_usnic_pings_sent_total", "PINGs sent.", |c| c.pings_sent),
    ("ping_acks", "isthmus_usnic_ping_answers_total", "Answers to PINGs sent.", |c| c.ping_acks),
];

/// The report of `show usnic`.
pub(crate) fn report(appliance: &dyn Appliance) -> Value {
    told(&appliance.udp_engines())
}

/// The report for readers without the token. It omits the values by which the engine and its peers identify each other,
/// because a host that knows them can impersonate a peer.
pub(crate) fn public_report(appliance: &dyn Appliance) -> Value {
    without_identity(report(appliance))
}

/// Keys of values by which peers identify each other.
const IDENTITY: [&str; 9] = [
    "data_port",
    "priority_port",
    "ping_port",
    "rendezvous",
    "sender",
    "isn",
    "for_peers",
    "modex_from",
    "put_sink",
];

/// A report without the values of [`IDENTITY`].
fn without_identity(value: Value) -> Value {
    match value {
        Value::List(items) => Value::list(items.into_iter().map(without_identity)),
        Value::Object(mut entries) => {
            entries.retain(|(name, _)| !IDENTITY.contains(&name.as_ref()));
            let public = |(name, value)| (name, without_identity(value));
            Value::Object(entries.into_iter().map(public).collect())
        }
        other => other,
    }
}

/// The interfaces of engines.
pub fn told(engines: &[UdpEngineStatus<'_>]) -> Value {
    let all = engines.iter().map(|engine| &engine.usnic);
    Value::list(all.flat_map(|one| (0..one.interfaces.len()).map(|number| one.interface(number))))
}

impl UsnicStatus<'_> {
    fn interface(&self, number: usize) -> Value {
        let (config, ours) = self.interfaces[number];
        let modex = ours.modex();
        let counters = self.engine.interface_counters(number).copied().unwrap_or_default();
        let mut entries: Vec<(_, Value)> = vec![
            ("name".into(), Value::display(&config.name)),
            ("net".into(), format!("net.{}", config.net).into()),
            ("address".into(), Value::display(ours.address)),
            ("data_port".into(), ours.data_port.into()),
            ("priority_port".into(), ours.priority_port.into()),
            ("ping_port".into(), config.ping_port.into()),
            ("rendezvous".into(), config.rendezvous.into()),
            ("sender".into(), Value::display(config.sender)),
            ("isn".into(), ours.isn.into()),
            ("mtu".into(), ours.mtu.into()),
            ("layout".into(), Value::display(config.layout)),
            ("services".into(), Value::list(config.services.iter().map(Value::display))),
            // In the format in which btlpeer prints its own modex.
            ("for_peers".into(), format!("modex {modex}").into()),
            ("memory_free".into(), Value::Bytes(self.engine.memory_available() as u64)),
        ];
        let counted = INTERFACE_COUNTERS.iter();
        entries
            .extend(counted.map(|(name, _, _, value)| ((*name).into(), value(&counters).into())));
        let peers = self.peers.iter().filter(|peer| peer.interface == number);
        entries.push(("peers".into(), Value::list(peers.map(|peer| self.peer(peer)))));
        Value::Object(entries)
    }

    fn state(&self, peer: &UsnicPeer<'_>) -> String {
        let state = peer.endpoint.and_then(|endpoint| self.engine.state(endpoint));
        match (state, peer.not_admitted) {
            (None, Some(why)) if peer.config.rendezvous.is_some() => format!("waits: {why}"),
            (None, None) if peer.config.rendezvous.is_some() => "requests the modex".into(),
            (Some(State::Failed(why)), _) => format!("failed: {why}"),
            (Some(State::Open), _) => "open".into(),
            (Some(State::Closing), _) => "closing".into(),
            (Some(State::Closed), _) => "closed".into(),
            (None, Some(why)) => format!("not admitted: {why}"),
            (None, None) => "gone".into(),
        }
    }

    fn modex_from(&self, peer: &UsnicPeer<'_>) -> String {
        match peer.config.rendezvous {
            _ if peer.has_come => "rendezvous".into(),
            Some(at) => format!("rendezvous at {at}"),
            None => "configuration".into(),
        }
    }

    fn peer(&self, peer: &UsnicPeer<'_>) -> Value {
        let endpoint = peer.endpoint;
        let modex = peer.modex;
        let port = |of: fn(&Modex) -> u16| Value::from(modex.as_ref().map(of));
        let (window, backlog) =
            endpoint.and_then(|endpoint| self.engine.backlog(endpoint)).unwrap_or_default();
        let (small, large) =
            endpoint.and_then(|endpoint| self.engine.connectivity(endpoint)).unwrap_or_default();
        let ping_port = modex.map_or(0, |modex| modex.ping_port);
        let pings = match (ping_port, small, large) {
            (0, ..) => "no connectivity checker",
            (_, false, false) => "not answered yet",
            (_, true, false) => "small ones answered",
            (_, _, true) => "answered",
        };
        let sink = |(address, bytes): (u64, usize)| format!("{address:#x}, {bytes} bytes");
        let counts = &peer.counts;
        let mut entries: Vec<(_, Value)> = vec![
            ("name".into(), Value::display(&peer.config.name)),
            ("sender".into(), Value::display(peer.config.sender)),
            ("state".into(), self.state(peer).into()),
            ("modex_from".into(), self.modex_from(peer).into()),
            ("address".into(), modex.map(|modex| modex.address.to_string()).into()),
            ("data_port".into(), port(|modex| modex.data_port)),
            ("priority_port".into(), port(|modex| modex.priority_port)),
            ("ping_port".into(), port(|modex| modex.ping_port)),
            ("pings".into(), pings.into()),
            ("put_sink".into(), peer.sink.map(sink).into()),
            ("window".into(), window.into()),
            ("backlog_bytes".into(), backlog.into()),
            ("messages".into(), counts.messages.into()),
            ("bytes".into(), counts.bytes.into()),
            ("echoed".into(), counts.echoed.into()),
            ("unserved".into(), counts.unserved.into()),
        ];
        if peer.has_several {
            let others = self.peers.iter().filter(|other| {
                other.process == peer.process && other.config.name != peer.config.name
            });
            let names = others.map(|other| Value::display(&other.config.name));
            entries.push(("one_process_with".into(), Value::list(names)));
        }
        if let Some(MpiStatus { counters, under_way: (under_way, waiting) }) = peer.mpi {
            entries.extend([
                ("mpi_eager".into(), counters.eager.into()),
                ("mpi_rendezvous".into(), counters.rendezvous.into()),
                ("mpi_bytes".into(), counters.bytes.into()),
                ("mpi_refused".into(), counters.refused.into()),
                ("mpi_under_way".into(), (under_way as u64).into()),
                ("mpi_waiting".into(), (waiting as u64).into()),
            ]);
        }
        let counters = endpoint.and_then(|endpoint| self.engine.counters(endpoint));
        let counters = counters.copied().unwrap_or_default();
        entries
            .extend(COUNTERS.iter().map(|(name, value)| ((*name).into(), value(&counters).into())));
        Value::Object(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_report_omits_peer_identities() {
        let peer = [("name", "a".into()), ("sender", "1.1".into()), ("put_sink", "0x1".into())];
        let interface = [
            ("isn", 5u8.into()),
            ("mtu", 9000u16.into()),
            ("peers", Value::list([Value::object(peer)])),
        ];
        let public = without_identity(Value::list([Value::object(interface)]));
        assert_eq!(public.to_json(), "[{\"mtu\":9000,\"peers\":[{\"name\":\"a\"}]}]");
    }
}
