//! The appliance's metrics, as a guest on its network reads them over HTTP.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use launch::guest::Guest;

/// All samples of one moment, by name and labels as they are written.
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Asks the appliance at 10.0.0.1.
    pub fn read(guest: &mut Guest) -> Result<Metrics> {
        let text = guest.sh("wget -q -O - http://10.0.0.1/metrics")?;
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| line.rsplit_once(' '));
        let values = samples.map(|(name, value)| Ok((name.to_string(), value.parse()?)));
        Ok(Metrics(values.collect::<Result<_>>()?))
    }

    /// A sample. `roce_dropped_total{reason="icrc"}` is asked for as it stands, without `isthmus_`.
    pub fn get(&self, name: &str) -> Result<f64> {
        let value = self.0.get(&format!("isthmus_{name}"));
        value.copied().with_context(|| format!("there is no metric {name}"))
    }

    /// Bytes that the appliance uses: heap, and what is not free of the arena.
    pub fn memory(&self) -> Result<f64> {
        let arena = self.get("arena_size_bytes")? - self.get("arena_free_bytes")?;
        Ok(arena + self.get("memory_heap_bytes")?)
    }

    /// Fails unless a counter is at least `by` more than it was.
    pub fn grew(&self, before: &Metrics, name: &str, by: f64) -> Result<()> {
        let (was, is) = (before.get(name)?, self.get(name)?);
        ensure!(is >= was + by, "{name} was {was} and is {is}, which is not {by} more");
        Ok(())
    }

    /// Fails unless a value is what it was.
    pub fn same(&self, before: &Metrics, name: &str) -> Result<()> {
        let (was, is) = (before.get(name)?, self.get(name)?);
        ensure!(is == was, "{name} was {was} and is {is}");
        Ok(())
    }
}
