//! Objects of remote volumes over NBD, and what a volume can do.

use crate::appliance::Appliance;
use crate::pieces::Entry;
use crate::report::Value;
use drivers::hal::{Features, Geometry};
use nbd::wire::flag;

/// A remote volume over NBD.
pub struct NbdStatus<'a> {
    /// Name of the volume.
    pub name: &'a str,
    /// Name of the export on the server.
    pub export: String,
    /// Address in use.
    pub address: String,
    /// Settings.
    pub settings: nbd::Settings,
    /// Geometry of the volume.
    pub geometry: Geometry,
    /// State and counts.
    pub status: nbd::Status,
}

/// `/nbd-client`.
pub(crate) fn report(appliance: &dyn Appliance) -> Value {
    let entry = |one: &NbdStatus<'_>| -> Entry { (one.name.to_string().into(), volume(one)) };
    Value::Object(appliance.remote().nbd.iter().map(entry).collect())
}

fn volume(one: &NbdStatus<'_>) -> Value {
    let (status, settings) = (&one.status, &one.settings);
    let failure = status.last_failure.map(|failure| failure.to_string());
    let stats = &status.stats;
    let stats = Value::object([
        ("reads", stats.reads.into()),
        ("read_bytes", stats.read_bytes.into()),
        ("writes", stats.writes.into()),
        ("written_bytes", stats.written_bytes.into()),
        ("flushes", stats.flushes.into()),
        ("others", stats.others.into()),
        ("errors", stats.errors.into()),
        ("replays", stats.replays.into()),
        ("connects", stats.connects.into()),
        ("failures", stats.failures.into()),
        ("losses", stats.losses.into()),
    ]);
    let structured = status.export.map(|export| export.structured);
    let multi = status.export.map(|export| export.offers(flag::MULTI_CONN));
    let mut entries: Vec<Entry> = vec![
        ("state".into(), status.state.as_str().into()),
        ("export".into(), one.export.clone().into()),
        ("address".into(), one.address.clone().into()),
        ("connections".into(), format!("{} of {}", status.ready, settings.connections).into()),
        ("several_connections".into(), multi.into()),
        ("structured_replies".into(), structured.into()),
        ("size".into(), Value::Bytes(one.geometry.sectors.saturating_mul(512))),
        ("requests".into(), status.requests.into()),
        ("last_failure".into(), failure.into()),
    ];
    entries.extend(abilities(&one.geometry, Some(one)));
    entries.push(("stats".into(), stats));
    Value::Object(entries)
}

/// What a volume can do, and what it cannot: nothing is emulated. `nbd` is its remote, if it is one over NBD.
pub(crate) fn abilities(geometry: &Geometry, nbd: Option<&NbdStatus<'_>>) -> Vec<Entry> {
    let has = |feature| geometry.features.contains(feature);
    let sectors = |feature, sectors: u32| match has(feature) {
        true => Value::Bytes(u64::from(sectors) * 512),
        false => "no".into(),
    };
    let export = nbd.and_then(|one| one.status.export);
    let flush = match (export, has(Features::VOLATILE_CACHE)) {
        (_, true) => "yes",
        (Some(export), _) if export.offers(flag::FLUSH) || export.offers(flag::FUA) => {
            "not needed: every write is durable (FUA)"
        }
        (Some(_), _) => "no: the server promises nothing about a power cut",
        (None, _) => "not needed",
    };
    let mut entries: Vec<Entry> = vec![
        ("block".into(), geometry.logical_block.into()),
        ("preferred_block".into(), geometry.physical_block.into()),
        ("flush".into(), flush.into()),
        ("discard".into(), sectors(Features::DISCARD, geometry.max_discard_sectors)),
        ("write_zeroes".into(), sectors(Features::WRITE_ZEROES, geometry.max_write_zeroes_sectors)),
    ];
    if let Some(export) = export {
        let fua = match (export.offers(flag::FUA), export.offers(flag::FLUSH)) {
            (true, _) => "yes",
            (false, true) => "no: a write and a flush",
            (false, false) => "no",
        };
        entries.insert(3, ("fua".into(), fua.into()));
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use nbd::{Client, Settings};

    #[test]
    fn volume_says_what_it_cannot_do() {
        let client = Client::<u32>::new(Settings::default(), "disk").unwrap();
        let mut status = client.status();
        let text = |flags: u16| {
            let flags = flags | flag::HAS_FLAGS;
            let (block, preferred, payload, structured) = (4096, 4096, 4096, true);
            let export =
                nbd::Export { size: 1 << 20, flags, block, preferred, payload, structured };
            status.export = Some(export);
            let geometry = export.geometry(false, false);
            let (name, settings) = ("far", *client.settings());
            let (export, address) = (String::new(), String::new());
            let one = NbdStatus { name, export, address, settings, geometry, status };
            Value::Object(abilities(&geometry, Some(&one))).to_json()
        };
        let mut text = text;
        let bare = text(0);
        for part in ["\"block\":4096", "\"fua\":\"no\"", "\"discard\":\"no\"", "promises nothing"] {
            assert!(bare.contains(part), "{part}: {bare}");
        }
        let cached = text(flag::FLUSH | flag::TRIM);
        for part in ["\"flush\":\"yes\"", "a write and a flush", "\"discard\":134217728"] {
            assert!(cached.contains(part), "{part}: {cached}");
        }
        assert!(text(flag::FUA).contains("every write is durable"));
    }
}
