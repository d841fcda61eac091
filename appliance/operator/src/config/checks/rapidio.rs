//! Cross-section validation of `[[rapidio]]`.

use super::report::Report;
use crate::config::device_name::DeviceName;
use crate::config::rapidio::{Rapidio, RapidioRole};
use crate::config::schema::Config;

/// Checks RapidIO ports against each other.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    for (i, one) in config.rapidio.iter().enumerate() {
        let place = |i: usize, one: &Rapidio| match &one.device {
            Some(DeviceName::Position(position)) => Ok(usize::from(*position)),
            Some(device) => Err(device.clone()),
            None => Ok(i),
        };
        let mut earlier = config.rapidio[..i].iter().enumerate();
        if let Some((j, _)) = earlier.find(|(j, other)| place(*j, other) == place(i, one)) {
            report.add(format!("rapidio.{i}"), format!("the same port as rapidio.{j}"), "");
        }
        let named =
            matches!(&one.device, None | Some(DeviceName::Position(_) | DeviceName::Location(_)));
        if !named {
            let reason = "a RapidIO port has no serial number and no MAC address".into();
            report.add(format!("rapidio.{i}.device"), reason, "\"pci:…\" or a position");
        }
        if !matches!(one.id_size, 8 | 16) {
            let reason = format!("{} is not a size of ids", one.id_size);
            report.add(format!("rapidio.{i}.id_size"), reason, "8 or 16");
        }
        let most = if one.id_size == 16 { 0xfffe } else { 0xfe };
        let path = format!("rapidio.{i}.id");
        match (one.role, one.id) {
            (RapidioRole::Host, None) => {
                let reason = "a host needs an id".into();
                report.missing(path, reason, &format!("0 to {most}"));
            }
            (RapidioRole::Agent, Some(_)) => {
                report.add(path, "an agent gets its id from the host".into(), "no id");
            }
            (RapidioRole::Host, Some(id)) if id > most => {
                report.add(path, format!("{id} is out of range"), &format!("0 to {most}"));
            }
            _ => {}
        }
    }
}
