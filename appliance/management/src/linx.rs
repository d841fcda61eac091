//! `show linx`: the links and their counters.

use crate::appliance::Appliance;
use crate::config::{self, LinxTransport};
use crate::report::Value;
use ::linx::{LinkStatus, Phase};

/// All links.
pub(crate) fn report(appliance: &dyn Appliance) -> Value {
    let links = appliance.linx().into_iter().flat_map(|linx| linx.links);
    Value::list(links.map(|(settings, status)| row(settings, status.as_ref())))
}

fn row(settings: &config::Linx, status: Option<&LinkStatus>) -> Value {
    let peer = match settings.transport {
        LinxTransport::Tcp => settings.address.map(|address| address.to_string()),
        LinxTransport::Riocm => settings.peer_id.map(|id| format!("id {id}")),
    };
    let counter = |value: fn(&LinkStatus) -> u64| -> Value { status.map(value).into() };
    let agreed = status.and_then(|status| status.riocm.as_ref());
    Value::object([
        ("name", settings.name.to_string().into()),
        ("transport", settings.transport.to_string().into()),
        ("peer", peer.into()),
        ("state", status.map_or("down", |status| phase(status.phase)).into()),
        ("version", counter(|status| status.version.into())),
        ("mtu", agreed.map(|riocm| u64::from(riocm.agreed.mtu)).into()),
        ("why", status.and_then(|status| status.why).map(|why| why.to_string()).into()),
        ("unsent", counter(|status| status.unsent as u64)),
        ("our_names", counter(|status| status.addresses.0 as u64)),
        ("peer_names", counter(|status| status.addresses.1 as u64)),
        ("peer_hunts", counter(|status| status.hunts as u64)),
        ("ups", counter(|status| status.counters.ups)),
        ("sent", counter(|status| status.counters.sent)),
        ("received", counter(|status| status.counters.received)),
        ("dropped", counter(|status| status.counters.inbox_full)),
    ])
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Down => "down",
        Phase::AwaitInit | Phase::AwaitReply => "coming up",
        Phase::Up => "up",
    }
}
