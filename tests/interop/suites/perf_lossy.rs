//! Measuring tools of stock Linux on a faulty fabric: lost and reordered frames, a flapping link, a peer that loses
//! power, and many connections in sequence.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use interop_tests::metrics::Metrics;
use interop_tests::relay::Relay;
use interop_tests::tools::{BANDWIDTH, Gids, LATENCY, perftest, pingpong, rping, rping_command};
use interop_tests::{SERVICES, Site, client, gateway_spec};
use launch::guest::{Guest, Wire};
use launch::qemu::Vm;

/// Memory use of the appliance: free bytes of the arena for sessions, and used bytes of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    arena_free: u64,
    heap_used: u64,
}

impl Memory {
    fn of(gateway: &mut Vm) -> Result<Memory> {
        let memory = gateway.run("show memory --json")?.json()?;
        let number = |key: &str| {
            memory[key].as_u64().with_context(|| format!("there is no {key} in {memory}"))
        };
        Ok(Memory { arena_free: number("arena_free")?, heap_used: number("heap_used")? })
    }
}

/// Waits until the memory of all sessions is free again.
fn wait_for_arena(gateway: &mut Vm, before: Memory, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let now = Memory::of(gateway)?;
        if now.arena_free == before.arena_free {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{now:?} after {limit:?}, {before:?} before");
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Waits until memory use has not changed for 5 s.
fn settled(gateway: &mut Vm) -> Result<Memory> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut last = (Memory::of(gateway)?, Instant::now());
    while last.1.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(500));
        let now = Memory::of(gateway)?;
        if now != last.0 {
            last = (now, Instant::now());
        }
        ensure!(Instant::now() < deadline, "memory use keeps changing: {now:?}");
    }
    Ok(last.0)
}

/// Of the frames to Linux, 2 % are lost, and 2 % are swapped with the next.
#[test]
fn the_tools_measure_a_bad_cable() -> Result<()> {
    let relay = Relay::rough(50, 50)?;
    let (first, second) = relay.ends();
    let mut gateway = gateway_spec(1500, SERVICES)?.nic(first).first_mac(1).start()?;
    gateway.wait_ready()?;
    let mut guest = client(second, 1500)?;
    let gids = Gids::of(&mut guest)?;
    rping(&mut guest, &[64, 65535], 50)?;
    pingpong(&mut guest, gids, &[4096])?;
    perftest(&mut guest, &BANDWIDTH, &["-s 65536 -n 20", "-R -s 65536 -n 20"])?;
    perftest(&mut guest, &LATENCY, &["-s 4096 -n 50"])?;
    let metrics = Metrics::read(&mut guest)?;
    ensure!(metrics.get("roce_retries_total")? > 0.0, "the appliance retransmitted nothing");
    let lost = relay.stop()?;
    ensure!(lost > 20, "only {lost} frames were lost");
    Ok(())
}

#[test]
fn connection_survives_a_flapping_link() -> Result<()> {
    let mut site = Site::boot(1500, SERVICES)?;
    let before = Memory::of(&mut site.gateway)?;
    let guest = &mut site.client;
    // 4096 bytes, so that each line is as long as one write of rping.
    guest.sh("rping -c -v -V -a 10.0.0.1 -S 4096 >/tmp/rping 2>&1 & echo $! >/tmp/pid")?;
    let pings = "grep -c '^ping data: rdma-ping-' /tmp/rping";
    guest.wait_until(&format!("[ $({pings}) -ge 20 ]"), Duration::from_secs(60))?;
    for _ in 0..3 {
        // The appliance's end: Linux's own RDMA device keeps its port up.
        let name = serde_json::json!({"name": "net0", "up": false});
        site.gateway.qmp.execute("set_link", name)?;
        // Time down, and then time up.
        std::thread::sleep(Duration::from_millis(1500));
        let name = serde_json::json!({"name": "net0", "up": true});
        site.gateway.qmp.execute("set_link", name)?;
        std::thread::sleep(Duration::from_secs(3));
    }
    let (guest, more) = (&mut site.client, format!("[ $({pings}) -ge $(($(cat /tmp/n) + 20)) ]"));
    guest.sh(&format!("{pings} >/tmp/n"))?;
    let stopped = "the connection did not continue";
    guest.wait_until(&more, Duration::from_secs(60)).context(stopped)?;
    guest.sh("! grep -E 'mismatch|failed|DISCONNECT' /tmp/rping; kill $(cat /tmp/pid)")?;
    site.gateway.run("show log")?.contains("net0: link down")?.contains("net0: link up")?;
    wait_for_arena(&mut site.gateway, before, Duration::from_secs(90))
}

#[test]
fn peer_reconnects_after_power_loss() -> Result<()> {
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let mut gateway = gateway_spec(1500, SERVICES)?.nic(first).first_mac(1).start()?;
    gateway.wait_ready()?;
    let before = Memory::of(&mut gateway)?;
    let writes = "roce_packets_total{direction=\"receive\",kind=\"write\"}";
    let answers = "roce_packets_total{direction=\"transmit\",kind=\"read_response\"}";
    for (transfer, packets) in [("ib_write_bw", writes), ("ib_read_bw -R", answers)] {
        let mut guest: Guest = client(second.clone(), 1500)?;
        let idle = Metrics::read(&mut guest)?.get(packets)?;
        guest.sh(&format!("{transfer} -d rxe0 -F -D 120 10.0.0.1 >/dev/null 2>&1 &"))?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while Metrics::read(&mut guest)?.get(packets)? < idle + 200.0 {
            ensure!(Instant::now() < deadline, "`{transfer}` does not transfer");
            std::thread::sleep(Duration::from_millis(200));
        }
        guest.vm.kill();
        drop(guest);
        let mut guest = client(second.clone(), 1500)?;
        // The appliance may still have connections to queue pairs whose numbers the peer reuses. They end
        // once the new connections are established.
        let patience = Duration::from_secs(60);
        guest.wait_until(&rping_command("10.0.0.1", 4096, 5), patience)?;
        for words in ["", "-R"] {
            let transfer =
                format!("timeout 60 ib_write_bw -d rxe0 -F -s 65536 -n 50 {words} 10.0.0.1");
            guest.wait_until(&transfer, patience)?;
        }
        drop(guest);
    }
    // The appliance has detected by itself that the peers are gone.
    wait_for_arena(&mut gateway, before, Duration::from_secs(300))
}

#[test]
fn a_thousand_connections_leave_nothing_behind() -> Result<()> {
    let mut site = Site::boot(1500, SERVICES)?;
    let connect = |guest: &mut Guest, hundreds: u32| -> Result<()> {
        let one = rping_command("10.0.0.1", 64, 1);
        let all = format!(
            "i=0; while [ $i -lt 100 ]; do {{ {one}; }} || {{ echo turn $i; exit 1; }}; i=$((i+1)); done"
        );
        for hundred in 0..hundreds {
            let (status, said) = guest.try_sh(&all, Duration::from_secs(300))?;
            ensure!(status == 0, "rping failed in hundred {hundred}: {said}");
        }
        Ok(())
    };
    // The first connections allocate tables that stay allocated.
    connect(&mut site.client, 1)?;
    let before = settled(&mut site.gateway)?;
    let pairs = Metrics::read(&mut site.client)?;
    connect(&mut site.client, 10)?;
    wait_for_arena(&mut site.gateway, before, Duration::from_secs(60))?;
    let after = settled(&mut site.gateway)?;
    println!("before {before:?}, after {after:?}");
    Metrics::read(&mut site.client)?.same(&pairs, "roce_queue_pairs")?;
    // The log and the slack of tables vary; a leak of a hundred bytes for each connection would show.
    let grown = after.heap_used.saturating_sub(before.heap_used);
    ensure!(grown < 64 << 10, "the heap has grown: {before:?}, {after:?}");
    Ok(())
}
