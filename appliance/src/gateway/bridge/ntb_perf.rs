//! `ntb measure` of the console: what qperf would measure over the bridge, one test after the other.

use crate::console::{Managed, Progress};
use crate::families::{self, MEASURE};
use crate::gateway::bridge::Bridge;
use crate::gateway::plane::DataPlane;
use crate::gateway::state::State;
use crate::report::Value;
use core::time::Duration;
use perf_responders::ntb_perf::{Figure, Measured, NtbPerf};
use provider_set::ProviderSet;
use verbs::EngineContext;

/// Longest test, in seconds.
const LONGEST: u64 = 60;

/// What was measured last, a row for each test; None if nothing was.
#[cold]
#[inline(never)]
pub(super) fn table(measure: &NtbPerf) -> Value {
    if measure.results.is_empty() {
        return Value::None;
    }
    let row = |&Measured { name, figure }: &Measured| {
        let figure = match figure {
            Figure::Bandwidth(rate) => ("bytes_per_second", rate.into()),
            Figure::Latency(nanos) => ("nanoseconds", nanos.into()),
        };
        Value::object([("test", name.into()), figure])
    };
    Value::list(measure.results.iter().map(row))
}

/// Carries an order of the console's out: to measure over the bridge of that name, or the first, for so many seconds, or
/// for one.
#[cold]
#[inline(never)]
pub(in crate::gateway) fn act(state: &mut State, words: &[&str]) -> Result<Managed, String> {
    let (name, words) = match words {
        [name, rest @ ..] if name.starts_with("ntb") => (Some(*name), rest),
        _ => (None, words),
    };
    let seconds = match words {
        [] => Some(1),
        [word] => word.parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds)),
        _ => None,
    };
    let time = seconds.map(Duration::from_secs);
    let time = time.ok_or("accepted: for how many seconds each test runs, 1 to 60")?;
    if !MEASURE {
        return Err(families::missing("measure"));
    }
    let place = super::place(&state.plane.bridges, name).map_err(|why| {
        let elsewhere = state.bridge_elsewhere(name);
        elsewhere.map_or(why, |(worker, ..)| {
            let core = state.workers[worker].core;
            format!(
                "core {core} has the bridge: measure from the other machine, or have core 0 own it"
            )
        })
    })?;
    let started = change(state, place, &mut |measure, ctx| measure.start(time, ctx));
    started.ok_or("there is no bridge")?;
    if let Some(bridge) = state.plane.bridges.get_mut(place) {
        bridge.measuring = true;
    }
    Ok(Managed::Started)
}

/// Measures no more, if anything is measured.
pub(in crate::gateway) fn cancel(state: &mut State) {
    for place in 0..state.plane.bridges.len() {
        change(state, place, &mut NtbPerf::cancel);
    }
}

#[inline(never)]
fn change(
    state: &mut State,
    place: usize,
    order: &mut dyn FnMut(&mut NtbPerf, &mut EngineContext<'_, ProviderSet>),
) -> Option<()> {
    let DataPlane { bridges, rdma_stack, arena, now, rng, .. } = &mut state.plane;
    let (bridge, rdma_stack) = (bridges.get_mut(place)?, rdma_stack.as_mut()?);
    let provider = &mut rdma_stack.providers;
    let measure = bridge.measure.as_mut()?;
    order(measure, &mut EngineContext { provider, arena, now: *now, rng: &mut **rng });
    Some(())
}

/// What the console is told once it is over.
#[cold]
#[inline(never)]
pub(in crate::gateway) fn poll(state: &mut State) -> Option<Progress> {
    let mut bridges = state.plane.bridges.iter_mut().filter(|bridge| bridge.measuring);
    let (measuring, measure) = bridges.find_map(|bridge| {
        let Bridge { measuring, measure, .. } = &mut **bridge;
        let measure = measure.as_mut()?;
        (!measure.is_running()).then_some((measuring, measure))
    })?;
    *measuring = false;
    Some(Progress::Done(match measure.failure() {
        Some((test, why)) => Err(format!("{test}: {why}")),
        None => Ok(table(measure).to_text().trim_end().into()),
    }))
}
