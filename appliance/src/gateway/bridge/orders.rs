//! Executes management orders for bridges: a reset of the link, and `ntb measure`, which runs qperf's tests over the
//! bridge one after the other.

use super::{Bridge, place};
use crate::console::{Managed, Progress};
use crate::families::{self, MEASURE};
use crate::gateway::plane::DataPlane;
use crate::gateway::worker::Worker;
use core::time::Duration;
use management::ntb::measured;
use ntrdma::Ntrdma;
use perf_responders::ntb_perf::NtbPerf;
use provider_set::ProviderSet;
use verbs::EngineContext;

/// Takes a link down for the operator. Requests in flight wait until it is up again.
#[cold]
pub(in crate::gateway) fn reset(
    plane: &mut DataPlane,
    workers: &mut [Worker],
    name: Option<&str>,
) -> Result<(), String> {
    let found = place(&plane.bridges, name).map(|place| plane.reset_bridge(place));
    let is_up = match (found, find_in_workers(workers, name)) {
        (Ok(reset), _) => reset,
        (Err(why), None) => return Err(why),
        (Err(_), Some((worker, place, is_up))) => {
            let order = move |plane: &mut DataPlane| _ = plane.reset_bridge(place);
            if is_up && !workers[worker].send_order(order) {
                return Err("its core is busy: try again".into());
            }
            is_up
        }
    };
    is_up.then_some(()).ok_or_else(|| "the link is not up".into())
}

/// Finds the bridge `name`, or the first one, on other loops than the first. Returns the index of the worker, the index
/// of the bridge there, and whether its link is up.
fn find_in_workers(workers: &[Worker], name: Option<&str>) -> Option<(usize, usize, bool)> {
    workers.iter().enumerate().find_map(|(number, worker)| {
        let bridges = worker.bridges();
        let place = bridges.iter().position(|one| name.is_none_or(|name| one.name == name))?;
        Some((number, place, bridges.get(place)?.link == ntrdma::State::Up))
    })
}

impl DataPlane {
    /// Takes the link of a bridge down. False if it is not up.
    #[cold]
    fn reset_bridge(&mut self, place: usize) -> bool {
        let rdma_stack = self.rdma_stack.as_mut();
        let ntrdma = rdma_stack.and_then(|stack| stack.providers.ntrdma_mut(place));
        ntrdma.is_some_and(Ntrdma::reset_link)
    }
}

/// Starts to measure over the bridge `name`, or the first one. Each test takes `time`.
#[cold]
#[inline(never)]
pub(in crate::gateway) fn measure(
    plane: &mut DataPlane,
    workers: &[Worker],
    name: Option<&str>,
    time: Duration,
) -> Result<Managed, String> {
    if !MEASURE {
        return Err(families::missing("measure"));
    }
    let place = place(&plane.bridges, name).map_err(|why| {
        find_in_workers(workers, name).map_or(why, |(worker, ..)| {
            let core = workers[worker].core;
            format!(
                "core {core} owns the bridge: measure from the other machine, or assign the bridge to core 0"
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

/// Cancels all measurements.
pub(in crate::gateway) fn end_measuring(plane: &mut DataPlane) {
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

/// The result of a finished measurement, for the console.
#[cold]
#[inline(never)]
pub(in crate::gateway) fn measure_result(plane: &mut DataPlane) -> Option<Progress> {
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
