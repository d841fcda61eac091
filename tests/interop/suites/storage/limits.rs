//! Limits of a host: a session or connection above the limit is refused and reported once, and a released slot can be
//! used again.

use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::metrics::Metrics;
use interop_tests::{Site, map, storage, unmap};

/// `limit` allows one session of a stock client with one CPU, which has two connections. The second session is refused,
/// and counted under `what` and `reason`.
fn one_session_is_allowed(limit: &str, what: &str, reason: &str) -> Result<()> {
    Site::run_scenario(1500, &format!("isthmus.limits.{limit}"), |site| {
        let counter = format!("refused_total{{what=\"{what}\",reason=\"{reason}\"}}");
        let client = &mut site.client;
        client.sh("modprobe rnbd-client")?;
        map(client, "s1", storage::PATH, "ram0", "")?;
        ensure!(Metrics::read(client)?.get(&counter).is_err(), "a refusal was counted too early");
        let second = map(client, "s2", storage::PATH, "ram0", "access_mode=ro");
        ensure!(second.is_err(), "a second session was accepted");
        site.gateway.run("show refused")?.contains(reason)?.contains("10.0.0.2")?;
        site.gateway.run("show log")?.contains(&format!("limits.{reason}"))?;
        ensure!(
            Metrics::read(&mut site.client)?.get(&counter)? == 1.0,
            "not one refusal was counted"
        );
        // The first session works as before, and another session can take its slot when it ends.
        let client = &mut site.client;
        client.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
        unmap(client, 0)?;
        client.wait_until("! ls /sys/class/rtrs-client | grep s1", Duration::from_secs(20))?;
        map(client, "s3", storage::PATH, "ram0", "")?;
        client.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
        unmap(client, 0)
    })
}

#[test]
fn sessions_of_a_host_are_limited() -> Result<()> {
    one_session_is_allowed("sessions_per_host=1", "connection", "sessions_per_host")
}

#[test]
fn connections_of_a_host_are_limited() -> Result<()> {
    one_session_is_allowed("connections_per_host=3", "rdma_connection", "connections_per_host")
}
