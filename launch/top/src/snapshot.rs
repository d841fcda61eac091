//! One round of reports of an appliance, and the thread that fetches them.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use launch::remote::{Appliance, Failure};
use serde_json::Value;

use crate::sections::{LOG, SECTIONS, STATUS};

/// Rounds between two fetches of the log.
const LOG_ROUNDS: u32 = 5;

/// Reports by path.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the report of everything was fetched.
    pub at: Instant,
    /// Reports by path, or why one of them is missing.
    pub pages: BTreeMap<&'static str, Result<Value, String>>,
}

impl Snapshot {
    /// A report; null if it is missing.
    pub fn page(&self, path: &str) -> &Value {
        self.pages.get(path).and_then(|page| page.as_ref().ok()).unwrap_or(&Value::Null)
    }

    /// Why a report is missing.
    pub fn missing(&self, path: &str) -> Option<&str> {
        self.pages.get(path)?.as_ref().err().map(String::as_str)
    }

    /// Seconds since the start of the appliance.
    pub fn uptime(&self) -> f64 {
        self.page(STATUS)["version"]["uptime_seconds"].as_f64().unwrap_or(0.0)
    }
}

/// Fetches all reports but those in `kept`, which are taken from there. An error if the appliance does not answer, or
/// refuses access.
pub fn fetch(
    appliance: &Appliance,
    kept: &[&'static str],
    last: Option<&Snapshot>,
) -> Result<Snapshot, Failure> {
    let mut snapshot = Snapshot { at: Instant::now(), pages: BTreeMap::new() };
    for path in std::iter::once(STATUS).chain(SECTIONS.iter().map(|section| section.path)) {
        if snapshot.pages.contains_key(path) {
            continue;
        }
        let old = last.filter(|_| kept.contains(&path)).and_then(|last| last.pages.get(path));
        let page = match old {
            Some(old) => old.clone(),
            None => ask(appliance, path)?,
        };
        snapshot.pages.insert(path, page);
    }
    if let Some(why) = snapshot.missing(STATUS) {
        return Err(Failure::Unreachable(why.into()));
    }
    Ok(snapshot)
}

/// A report, or why it is missing although the appliance answers.
fn ask(appliance: &Appliance, path: &str) -> Result<Result<Value, String>, Failure> {
    match appliance.fetch(path) {
        Ok(body) => Ok(serde_json::from_slice(&body)
            .map_err(|error| format!("the appliance sent no JSON: {error}"))),
        Err(failure @ Failure::Refused(status, _))
            if path != STATUS && !matches!(status, 401 | 403) =>
        {
            Ok(Err(failure.to_string()))
        }
        Err(failure) => Err(failure),
    }
}

/// What the user orders the thread to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Fetch at once.
    Fetch,
    /// Fetch nothing until the next order.
    Pause,
}

/// Fetches a round each `period`, and sends it, until the receiver is gone. Access that was refused is not asked for
/// again before an order: each attempt is a refusal in the log of the appliance.
pub fn run(
    appliance: &Appliance,
    period: Duration,
    orders: &Receiver<Order>,
    rounds: &SyncSender<Result<Snapshot, Failure>>,
) {
    let mut last: Option<Snapshot> = None;
    let mut count = 0;
    loop {
        let kept: &[_] = if count % LOG_ROUNDS == 0 { &[] } else { &[LOG] };
        let round = fetch(appliance, kept, last.as_ref());
        count = if round.is_ok() { count + 1 } else { 0 };
        let mut waits = matches!(round, Err(Failure::Refused(401 | 403, _)));
        last = round.as_ref().ok().cloned();
        if rounds.send(round).is_err() {
            return;
        }
        loop {
            let order = match waits {
                true => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => orders.recv_timeout(period),
            };
            match order {
                Ok(Order::Pause) => waits = true,
                Ok(Order::Fetch) | Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
