//! `ntb measure` of the console: what qperf would measure over the bridge, one test after the other.

use crate::console::{Managed, Progress};
use crate::families::{self, MEASURE};
use crate::gateway::bridge::Bridge;
use crate::gateway::plane::DataPlane;
use crate::gateway::worker::Worker;
use core::time::Duration;
use management::ntb::measured;
use perf_responders::ntb_perf::NtbPerf;
use provider_set::ProviderSet;
use verbs::EngineContext;

/// Measures over the bridge of that name, or the first, for so long each test.
#[cold]
#[inline(never)]
pub(in crate::gateway) fn start(
    plane: &mut DataPlane,
    workers: &[Worker],
    name: Option<&str>,
    time: Duration,
) -> Result<Managed, String> {
    if !MEASURE {
        return Err(families::missing("measure"));
    }
    let place = super::place(&plane.bridges, name).map_err(|why| {
        super::elsewhere(workers, name).map_or(why, |(worker, ..)| {
            let core = workers[worker].core;
            format!(
                "core {core} has the bridge: measure from the other machine, or have core 0 own it"
            )
        })
    })?;
    let started = change(plane, place, &mut |measure, ctx| measure.start(time, ctx));
    started.ok_or("there is no bridge")?;
    if let Some(bridge) = plane.bridges.get_mut(place) {
        bridge.measuring = true;
    }
    Ok(Managed::Started)
}

/// Measures no more, if anything is measured.
pub(in crate::gateway) fn cancel(plane: &mut DataPlane) {
    for place in 0..plane.bridges.len() {
        change(plane, place, &mut NtbPerf::cancel);
    }
}

#[inline(never)]
fn change(
    plane: &mut DataPlane,
    place: usize,
    order: &mut dyn FnMut(&mut NtbPerf, &mut EngineContext<'_, ProviderSet>),
) -> Option<()> {
    let DataPlane { bridges, rdma_stack, arena, now, rng, .. } = plane;
    let (bridge, rdma_stack) = (bridges.get_mut(place)?, rdma_stack.as_mut()?);
    let provider = &mut rdma_stack.providers;
    let measure = bridge.measure.as_mut()?;
    order(measure, &mut EngineContext { provider, arena, now: *now, rng: &mut **rng });
    Some(())
}

/// What the console is told once it is over.
#[cold]
#[inline(never)]
pub(in crate::gateway) fn poll(plane: &mut DataPlane) -> Option<Progress> {
    let mut bridges = plane.bridges.iter_mut().filter(|bridge| bridge.measuring);
    let (measuring, measure) = bridges.find_map(|bridge| {
        let Bridge { measuring, measure, .. } = &mut **bridge;
        let measure = measure.as_mut()?;
        (!measure.is_running()).then_some((measuring, measure))
    })?;
    *measuring = false;
    Some(Progress::Done(match measure.failure() {
        Some((test, why)) => Err(format!("{test}: {why}")),
        None => Ok(measured(&measure.results).to_text().trim_end().into()),
    }))
}
