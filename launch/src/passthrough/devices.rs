//! `./isthmus devices`: the PCI functions of this host.

use anyhow::Result;

use super::host::{Function, Host};
use super::refusal::refusals;

/// One row of the table.
type Row = [String; 7];

/// Prints a row for each function: its kind, its driver, Isthmus's driver for it, and whether it may be taken from
/// Linux.
pub fn devices(host: &Host) -> Result<()> {
    for line in table(host)? {
        println!("{line}");
    }
    Ok(())
}

/// The lines of the table.
pub(super) fn table(host: &Host) -> Result<Vec<String>> {
    let header = ["address", "group", "id", "driver", "isthmus", "what", "run --device"];
    let mut rows: Vec<Row> = vec![header.map(String::from)];
    for function in host.functions()? {
        rows.push(row(host, &function)?);
    }
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &Row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    Ok(rows.iter().map(line).collect())
}

fn row(host: &Host, function: &Function) -> Result<Row> {
    let dash = || "-".to_string();
    let may = match function.isthmus {
        None => dash(),
        Some(_) => {
            let refusals = refusals(host, &[function.address])?;
            let why: Vec<&str> = refusals.iter().map(|one| one.why.as_str()).collect();
            if why.is_empty() { "yes".into() } else { format!("no: {}", why.join("; ")) }
        }
    };
    let (vendor, device) = function.id;
    let of = function.physical.map(|physical| format!(", virtual function of {physical}"));
    Ok([
        function.address.to_string(),
        function.group.map_or_else(dash, |group| group.to_string()),
        format!("{vendor:04x}:{device:04x}"),
        function.driver.clone().unwrap_or_else(dash),
        function.isthmus.map_or_else(dash, |(name, _)| name.to_string()),
        format!("{}{}", function.what, of.unwrap_or_default()),
        may,
    ])
}
