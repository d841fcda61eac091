//! The appliance's metrics, read by a guest over HTTP.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use launch::guest::Guest;

/// All samples of one scrape, by name with labels as in the text.
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Scrapes the appliance at 10.0.0.1.
    pub fn read(guest: &mut Guest) -> Result<Metrics> {
        let text = guest.sh("wget -q -O - http://10.0.0.1/metrics")?;
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| line.rsplit_once(' '));
        let values = samples.map(|(name, value)| Ok((name.to_string(), value.parse()?)));
        Ok(Metrics(values.collect::<Result<_>>()?))
    }

    /// A sample by name and labels, without the prefix `isthmus_`: `roce_dropped_total{reason="icrc"}`.
    pub fn get(&self, name: &str) -> Result<f64> {
        let value = self.0.get(&format!("isthmus_{name}"));
        value.copied().with_context(|| format!("there is no metric {name}"))
    }

    /// Bytes that the appliance uses: the heap, and the used part of the arena.
    pub fn memory(&self) -> Result<f64> {
        let arena = self.get("arena_size_bytes")? - self.get("arena_free_bytes")?;
        Ok(arena + self.get("memory_heap_bytes")?)
    }

    /// Fails unless a counter has grown by at least `by`.
    pub fn grew(&self, before: &Metrics, name: &str, by: f64) -> Result<()> {
        let (was, is) = (before.get(name)?, self.get(name)?);
        ensure!(is >= was + by, "{name} was {was} and is {is}, which is less than {by} more");
        Ok(())
    }

    /// Fails unless a value is unchanged.
    pub fn same(&self, before: &Metrics, name: &str) -> Result<()> {
        let (was, is) = (before.get(name)?, self.get(name)?);
        ensure!(is == was, "{name} was {was} and is {is}");
        Ok(())
    }
}
