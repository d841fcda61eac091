//! The appliance as a client of a stock Linux server, whose volume it exports again.
use std::time::Duration;

use anyhow::Result;
use interop_tests::remote::{self, run_scenario, wait_for};
use interop_tests::{map, storage, unmap};

#[test]
fn a_volume_of_linux_is_exported_again() -> Result<()> {
    remote::chain("always_invalidate=Y")
}

/// Maps, reads and unmaps a remote volume from the console.
#[test]
fn a_remote_is_added_and_removed_while_it_runs() -> Result<()> {
    let site = interop_tests::Site::boot(1500, "isthmus.volume.0.size=1MiB")?;
    run_scenario(site, |site| {
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
        gateway
            .run("write /rtrs-client/gw/max_reconnect_attempts x")?
            .contains("-1 for no limit")?;
        gateway
            .run("write /rtrs-client/gw/add_path ip:10.0.0.1@ip:10.0.0.2")?
            .contains("has a path")?;
        map(&mut site.client, "s1", storage::PATH, "far", "")?;
        gateway.run("remote remove far")?.contains("has far open")?;
        // The console reads while the client has the volume mapped.
        let reads = "remote read far count=2000 size=4KiB depth=32";
        gateway.run(reads)?.contains("2000 reads of 4096 bytes")?;
        site.client.sh("cmp /dev/rnbd0 /dev/ram0")?;
        unmap(&mut site.client, 0)?;
        gateway.run("remote remove far")?.contains("in force now")?;
        let gone = "[ -z \"$(ls /sys/class/rtrs-server/ 2>/dev/null | grep gw)\" ]";
        site.client.wait_until(gone, Duration::from_secs(40))
    })
}
