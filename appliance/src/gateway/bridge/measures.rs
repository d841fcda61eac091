//! The measuring tool of bridges, at both ends: `ntb measure` runs qperf's tests one after the other.

use crate::families::MEASURE;
use crate::gateway::plane_user::{PlaneUser, Setup};
use crate::gateway::storage::Storage;
use drivers::hal::Instant;
use perf_responders::ntb_perf::{Measured, NtbPerf};
use provider_set::ProviderSet;
use verbs::{ConnectionEvent, Ctx};

/// The tool over one bridge.
pub(super) struct Measure {
    pub tool: NtbPerf,
    /// The console waits for a result.
    pub is_ordered: bool,
}

/// The tool over all bridges of a plane, in their order.
pub(in crate::gateway) struct Measures {
    pub(super) all: Vec<Measure>,
}

impl Measures {
    /// Results of the last measurement over the bridge with this index.
    pub fn results(&self, place: usize) -> Vec<Measured> {
        self.all.get(place).map_or(Vec::new(), |measure| measure.tool.results.clone())
    }
}

impl PlaneUser for Measures {
    fn of(setup: &mut Setup<'_>) -> Option<Self> {
        if !MEASURE {
            return None;
        }
        let bridges = setup.ctx.provider.bridges().map(|ntrdma| Measure {
            tool: NtbPerf::new(ntrdma.local(), ntrdma.remote()),
            is_ordered: false,
        });
        let all: Vec<_> = bridges.collect();
        (!all.is_empty()).then_some(Measures { all })
    }

    fn on_connection(&mut self, event: &ConnectionEvent, ctx: &mut Ctx<'_, ProviderSet>) -> bool {
        self.all.iter_mut().any(|measure| measure.tool.handle_connection_event(event, ctx))
    }

    fn poll(&mut self, _: &mut Storage, ctx: &mut Ctx<'_, ProviderSet>) -> usize {
        self.all.iter_mut().map(|measure| measure.tool.poll(ctx)).sum()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn is_idle(&self) -> bool {
        true
    }
}
