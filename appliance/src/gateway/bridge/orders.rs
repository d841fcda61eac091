//! What management orders of bridges: a reset of the link, and `ntb measure`, what qperf would measure over the bridge,
//! one test after the other.

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

/// Takes a link down at the operator's word; requests under way wait until it is back.
#[cold]
pub(in crate::gateway) fn reset(
    plane: &mut DataPlane,
    workers: &mut [Worker],
    name: Option<&str>,
) -> Result<(), String> {
    let found = place(&plane.bridges, name).map(|place| plane.reset_bridge(place));
    let is_up = match (found, elsewhere(workers, name)) {
        (Ok(reset), _) => reset,
        (Err(why), None) => return Err(why),
        (Err(_), Some((worker, place, is_up))) => {
            let order = move |plane: &mut DataPlane| _ = plane.reset_bridge(place);
            if is_up && !workers[worker].tell(order) {
                return Err("its core is busy: try again".into());
            }
            is_up
        }
    };
    is_up.then_some(()).ok_or_else(|| "the link is not up".into())
}

/// The bridge of that name, or the first, of another loop than the first: which of these, its place there, and whether
/// its link is up.
fn elsewhere(workers: &[Worker], name: Option<&str>) -> Option<(usize, usize, bool)> {
    workers.iter().enumerate().find_map(|(number, worker)| {
        let told = worker.bridges();
        let place = told.iter().position(|one| name.is_none_or(|name| one.name == name))?;
        Some((number, place, told.get(place)?.link == ntrdma::State::Up))
    })
}

impl DataPlane {
    /// Takes the link of the bridge at a place down; false if it is not up.
    #[cold]
    fn reset_bridge(&mut self, place: usize) -> bool {
        let rdma_stack = self.rdma_stack.as_mut();
        let ntrdma = rdma_stack.and_then(|stack| stack.providers.ntrdma_mut(place));
        ntrdma.is_some_and(Ntrdma::reset_link)
    }
}

/// Measures over the bridge of that name, or the first, for so long each test.
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
        elsewhere(workers, name).map_or(why, |(worker, ..)| {
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

/// What the console is told once it is over.
#[cold]
#[inline(never)]
pub(in crate::gateway) fn measured_news(plane: &mut DataPlane) -> Option<Progress> {
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
