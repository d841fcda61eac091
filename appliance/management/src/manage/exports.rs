//! Console commands for exports.

use super::options::Options;
use super::{limits, openness};
use crate::appliance::{Appliance, Told};
use crate::config::{self, Export};
use crate::console::Managed;
use crate::orders::Order;
use crate::report::Value;
use crate::words::{at_once, lines};
use net::hosts::Hosts;
use storage::rnbd::server::Server;
use storage::volume::Volumes;

pub(super) fn rows(server: &Server, volumes: &Volumes) -> Vec<Value> {
    let list = server.exports().iter().map(|export| {
        let allow = export.allow.iter().map(|name| name.as_str().to_string().into());
        Value::object([
            ("name", export.name.as_str().to_string().into()),
            ("volume", volumes.name(export.volume).unwrap_or_default().to_string().into()),
            ("read_only", export.read_only.into()),
            ("sessions", Value::list(allow)),
            ("hosts", Value::display(&export.hosts)),
            ("limits", limits::text(&export.limiter.limits()).into()),
            ("delayed", export.limiter.delays().0.into()),
            ("delayed_s", export.limiter.delays().1.as_secs().into()),
        ])
    });
    list.collect()
}

/// Exports to serve, with their access and whether they are served: at most `count` from index `from`.
pub(crate) fn wanted(appliance: &dyn Appliance, from: usize, count: usize) -> Vec<Value> {
    let storage = appliance.storage();
    if !appliance.document().config().rnbd.enabled {
        return Vec::new();
    }
    let served = |name: &str| {
        storage
            .server
            .is_some_and(|server| server.exports().iter().any(|e| e.name.as_str() == name))
    };
    let wanted = appliance.wanted_exports();
    let rows = wanted.into_iter().skip(from).take(count).map(|export| {
        Value::object([
            ("name", Value::display(&export.name)),
            ("volume", Value::display(&export.volume)),
            ("read_only", export.read_only.into()),
            ("sessions", Value::list(export.sessions.iter().map(Value::display))),
            ("served", served(export.name.as_str()).into()),
            ("hosts", Value::display(Hosts::new(export.hosts))),
        ])
    });
    rows.collect()
}

/// The wanted exports, as a configuration can define them, and the volumes on disks that it lacks for that. An export of
/// a volume that is removed at the next boot is left out.
pub(crate) fn implied(appliance: &dyn Appliance) -> (Vec<Export>, Vec<config::Volume>) {
    let mut exports = appliance.wanted_exports();
    let named: Vec<config::Name> = exports.iter().map(|export| export.volume.clone()).collect();
    let found = appliance.undeclared(&named);
    let config = appliance.document().config();
    exports.retain(|export| {
        let mut names = config.volume_names().chain(found.iter().map(|volume| &volume.name));
        names.any(|name| *name == export.volume)
    });
    (exports, found)
}

/// Changes the exports of the configuration and applies them. Without `[[export]]` each volume is exported: those
/// implied exports are written into the configuration first.
fn edit_exports(
    appliance: &mut dyn Appliance,
    change: impl FnOnce(&mut Vec<Export>) -> Result<(), String>,
) -> Result<(), String> {
    let (mut exports, _) = implied(appliance);
    change(&mut exports)?;
    // A volume on a disk may be absent from the configuration. An export that names it adds it.
    let named: Vec<config::Name> = exports.iter().map(|export| export.volume.clone()).collect();
    let mut volumes = appliance.document().config().volume.clone();
    volumes.extend(appliance.undeclared(&named));
    appliance
        .document_mut()
        .edit(|config| (config.export, config.volume) = (exports, volumes))
        .map_err(|problems| lines(&problems))?;
    appliance.carry_out(Order::ApplyExports).map(drop)
}

pub(super) fn change(appliance: &mut dyn Appliance, words: &[&str], add: bool) -> Told {
    let options = Options::parse(words, &["ro", "rw"])?;
    let name: crate::config::ExportName = options.name.parse()?;
    let volume = options.volume.map(str::parse).transpose()?;
    let sessions = match options.sessions {
        None => None,
        Some("all") => Some(Vec::new()),
        Some(list) => Some(list.split(',').map(str::parse).collect::<Result<_, String>>()?),
    };
    let hosts = match options.hosts {
        None => None,
        Some("all") => Some(Vec::new()),
        Some(list) => Some(list.split(',').map(str::parse).collect::<Result<_, String>>()?),
    };
    let read_only = match (options.has("ro"), options.has("rw")) {
        (false, false) => None,
        (ro, _) => Some(ro),
    };
    edit_exports(appliance, |exports| {
        if add {
            if exports.iter().any(|export| export.name == name) {
                return Err(format!("export {name} already exists; change it with `export set`"));
            }
            let volume = match volume.clone() {
                Some(volume) => volume,
                None => name.as_str().parse()?,
            };
            exports.push(Export::of(name.clone(), volume));
        }
        let export = exports.iter_mut().find(|export| export.name == name);
        let export = export.ok_or_else(|| format!("there is no export {name}"))?;
        export.volume = volume.unwrap_or_else(|| export.volume.clone());
        export.read_only = read_only.unwrap_or(export.read_only);
        export.sessions = sessions.unwrap_or_else(|| export.sessions.clone());
        export.hosts = hosts.unwrap_or_else(|| export.hosts.clone());
        options.limits.apply(export)
    })?;
    Ok(done(appliance, &name))
}

/// Reply to a change of an export, with warnings about access that remains.
fn done(appliance: &dyn Appliance, name: &config::ExportName) -> Managed {
    let exports = appliance.wanted_exports();
    let volume = exports.iter().find(|export| export.name == *name);
    let warnings = volume.map(|export| openness::warnings(appliance, name, &export.volume));
    with_warnings(warnings.unwrap_or_default())
}

/// The reply [`at_once`], followed by warnings.
pub(super) fn with_warnings(warnings: String) -> Managed {
    match at_once() {
        Managed::Told(text) => Managed::Told(text + &warnings),
        started @ Managed::Started => started,
    }
}

pub(super) fn remove(appliance: &mut dyn Appliance, name: &str) -> Told {
    let gone = appliance.wanted_exports().into_iter().find(|export| export.name.as_str() == name);
    edit_exports(appliance, |exports| {
        let before = exports.len();
        exports.retain(|export| export.name.as_str() != name);
        match exports.len() {
            after if after == before => Err(format!("there is no export {name:?}")),
            0 => Err(
                "cannot remove the last export: without any, every volume is exported to all hosts"
                    .into(),
            ),
            _ => Ok(()),
        }
    })?;
    let warnings = gone.map(|gone| openness::warnings(appliance, &gone.name, &gone.volume));
    Ok(with_warnings(warnings.unwrap_or_default()))
}
