//! Executes management orders for bridges: a reset of the link, and `ntb measure`, which runs qperf's tests over the
//! bridge one after the other.

use super::measures::Measure;
use super::place;
use crate::console::{Managed, Progress};
use crate::families::{self, MEASURE};
use crate::gateway::plane::DataPlane;
use crate::gateway::worker::Worker;
use core::time::Duration;
use management::ntb::measured;
use ntrdma::Ntrdma;
use provider_set::ProviderSet;
use verbs::Ctx;

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
    let started = change(plane, place, &mut |measure, ctx| {
        measure.tool.start(time, ctx);
        measure.is_ordered = true;
    });
    started.ok_or("there is no bridge")?;
    Ok(Managed::Started)
}

/// Cancels all measurements.
pub(in crate::gateway) fn end_measuring(plane: &mut DataPlane) {
    for place in 0..plane.bridges.len() {
        change(plane, place, &mut |measure, ctx| measure.tool.cancel(ctx));
    }
}

#[inline(never)]
fn change(
    plane: &mut DataPlane,
    place: usize,
    order: &mut dyn FnMut(&mut Measure, &mut Ctx<'_, ProviderSet>),
) -> Option<()> {
    let DataPlane { users, rdma_stack: Some(rdma_stack), arena, now, rng, .. } = plane else {
        return None;
    };
    let measure = users.bridge_measures.as_mut()?.all.get_mut(place)?;
    let provider = &mut rdma_stack.providers;
    order(measure, &mut Ctx { provider, arena, now: *now, rng: &mut **rng });
    Some(())
}

/// The result of a finished measurement, for the console.
#[cold]
#[inline(never)]
pub(in crate::gateway) fn measure_result(plane: &mut DataPlane) -> Option<Progress> {
    let measures = plane.users.bridge_measures.as_mut()?;
    let is_done = |measure: &&mut Measure| measure.is_ordered && !measure.tool.is_running();
    let measure = measures.all.iter_mut().find(is_done)?;
    measure.is_ordered = false;
    Some(Progress::Done(match measure.tool.failure() {
        Some((test, why)) => Err(format!("{test}: {why}")),
        None => Ok(measured(&measure.tool.results).to_text().trim_end().into()),
    }))
}
