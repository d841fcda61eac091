//! Two Linux guests with each other: checks the peers that the other suites run against the appliance.
use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::smc::wait_listening;
use interop_tests::{Pair, map, unmap};

#[test]
fn linux_maps_a_volume_of_linux() -> Result<()> {
    let mut pair = Pair::boot(1500)?;
    pair.server.sh("modprobe rnbd-server && modprobe brd rd_nr=1 rd_size=65536")?;
    pair.client.sh("modprobe rnbd-client")?;
    map(&mut pair.client, "s1", "ip:10.0.0.2@ip:10.0.0.1", "/dev/ram0", "")?;
    pair.client.sh("dd if=/dev/urandom of=/tmp/a bs=126976 count=4
         dd if=/tmp/a of=/dev/rnbd0 bs=126976 oflag=direct
         dd if=/dev/rnbd0 of=/tmp/b bs=126976 count=4 iflag=direct
         cmp /tmp/a /tmp/b")?;
    let written = pair.client.sh("sha256sum < /tmp/a")?;
    let stored = pair.server.sh("dd if=/dev/ram0 bs=126976 count=4 2>/dev/null | sha256sum")?;
    ensure!(stored == written, "the server's data differ from the client's");
    unmap(&mut pair.client, 0)
}

#[test]
fn the_rdma_tools_work_between_linux_guests() -> Result<()> {
    let mut pair = Pair::boot(1500)?;
    pair.server.sh("rping -s -a 10.0.0.1 -C 10 >/tmp/rping 2>&1 &")?;
    let listens = "rdma resource show cm_id | grep -q LISTEN";
    pair.server.wait_until(listens, Duration::from_secs(30))?;
    pair.client.sh("rping -c -a 10.0.0.1 -C 10")?;
    pair.server.sh("ibv_rc_pingpong -g 1 -n 100 >/tmp/pingpong 2>&1 &")?;
    // The TCP port on which ibv_rc_pingpong exchanges queue pairs.
    wait_listening(&mut pair.server, 18515)?;
    pair.client.sh("ibv_rc_pingpong -g 1 -n 100 10.0.0.1")?;
    Ok(())
}
