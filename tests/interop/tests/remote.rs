//! The appliance as a client of a stock Linux server: what it maps there, it exports again.
use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::metrics::Metrics;
use interop_tests::remote::{self, path, tell, wait_for, words};
use interop_tests::{map, storage, unmap};

/// A stock client, the appliance, a stock server: checksums hold, and the server's disk holds what the
/// client wrote.
fn chain(parameters: &str) -> Result<()> {
    tell(remote::site(1, parameters, &words(0, 0, ""))?, |site| {
        let guest = &mut site.client;
        map(guest, "s1", storage::PATH, "far", "")?;
        storage::fio_verifies(guest, 16, 32)?;
        storage::ext4_keeps_its_data(guest, 16)?;
        storage::flushes_and_discards(guest)?;
        guest.sh("cmp /dev/rnbd0 /dev/ram0")?;
        unmap(guest, 0)?;
        let stats = remote::object(
            &mut site.gateway,
            &format!("{}/paths/{}/stats/rdma", remote::SESSION, path(0)),
        )?;
        let count = |key: &str| stats[key].as_u64().unwrap_or(0);
        ensure!(count("rd_cnt") > 100 && count("wr_cnt") > 100, "{stats}");
        ensure!(count("wr_bytes") > 16 << 20 && count("errors") == 0, "{stats}");
        // The same over HTTP.
        let guest = &mut site.client;
        let policy = guest.sh("wget -q -O - http://10.0.0.1/api/rtrs-client/gw/mp_policy")?;
        ensure!(policy.contains("min-inflight"), "{policy}");
        let metrics = Metrics::read(guest)?;
        let labels = format!("session=\"gw\",path=\"{}\"", path(0));
        let sample = |name: &str| metrics.get(&format!("rtrs_client_path_{name}{{{labels}}}"));
        ensure!(sample("up")? == 1.0 && sample("written_bytes_total")? > 1e6);
        ensure!(metrics.get("remote_open{volume=\"far\"}")? == 1.0);
        Ok(())
    })
}

#[test]
fn a_volume_of_linux_is_exported_again() -> Result<()> {
    chain("always_invalidate=Y")
}

#[test]
fn a_volume_of_linux_with_fixed_keys_is_exported_again() -> Result<()> {
    chain("always_invalidate=N")
}

/// Mapped, read and unmapped from the console.
#[test]
fn a_remote_is_added_and_removed_while_it_runs() -> Result<()> {
    let site = interop_tests::Site::boot(1500, "isthmus.volume.0.size=1MiB")?;
    tell(site, |site| {
        remote::serve(&mut site.client, "")?;
        let gateway = &mut site.gateway;
        let add = "remote add far sessname=gw path=ip:10.0.0.1@ip:10.0.0.2 device_path=/dev/ram0";
        gateway
            .run(&format!("{add} access_mode=best"))?
            .contains("accepted: ro, rw or migration")?;
        gateway.run(add)?.contains("in force now")?;
        gateway.run(add)?.contains("error")?;
        let patience = Duration::from_secs(20);
        wait_for(gateway, "remote list csv", "far,gw,/dev/ram0,open,67108864", patience)?;
        gateway.run("cat /rtrs-client/gw/mp_policy")?.contains("min-inflight (MI: 1)")?;
        gateway.run("write /rtrs-client/gw/mp_policy rr")?.lacks("error")?;
        gateway.run("cat /rtrs-client/gw/mp_policy")?.contains("round-robin (RR: 0)")?;
        gateway.run("write /rtrs-client/gw/max_reconnect_attempts 5")?.lacks("error")?;
        gateway.run("cat /rtrs-client/gw/max_reconnect_attempts")?.contains("5")?;
        gateway.run("write /rtrs-client/gw/max_reconnect_attempts x")?.contains("-1 for no end")?;
        gateway
            .run("write /rtrs-client/gw/add_path ip:10.0.0.1@ip:10.0.0.2")?
            .contains("has a path")?;
        map(&mut site.client, "s1", storage::PATH, "far", "")?;
        gateway.run("remote remove far")?.contains("has far open")?;
        // The console reads beside the client.
        let reads = "remote read far count=2000 size=4KiB depth=32";
        gateway.run(reads)?.contains("2000 reads of 4096 bytes")?;
        site.client.sh("cmp /dev/rnbd0 /dev/ram0")?;
        unmap(&mut site.client, 0)?;
        gateway.run("remote remove far")?.contains("in force now")?;
        let gone = "[ -z \"$(ls /sys/class/rtrs-server/ 2>/dev/null | grep gw)\" ]";
        site.client.wait_until(gone, Duration::from_secs(40))
    })
}
