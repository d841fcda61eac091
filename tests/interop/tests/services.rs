//! The tools with which operators measure a fabric, on stock Linux, against the appliance's engines.

use anyhow::{Context, Result, ensure};
use interop_tests::client;
use interop_tests::engines::{Engines, Setup};
use launch::guest::Guest;

/// Runs `story` on a guest at the other end of the engines' wire.
fn tell(mtu: usize, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    let engines = Engines::start(Setup { mtu, ..Setup::default() })?;
    let told = client(engines.nic(), mtu as u16).and_then(|mut guest| story(&mut guest));
    let report = engines.stop()?;
    told.with_context(|| format!("the engines said {report:#?}"))
}

/// The index of the guest's RoCEv2 GID of that address.
fn gid_index(guest: &mut Guest, gid: &str) -> Result<String> {
    let gids = "/sys/class/infiniband/rxe0/ports/1/gids";
    let index = guest.sh(&format!("grep -l {gid} {gids}/* | sed 's,.*/,,' | head -1"))?;
    ensure!(!index.trim().is_empty(), "the guest has no GID {gid}");
    Ok(index.trim().to_string())
}

const V4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0002";
const V6: &str = "fd00:0000:0000:0000:0000:0000:0000:0002";

#[test]
fn ibv_rc_pingpong() -> Result<()> {
    for mtu in [1500, 9000] {
        tell(mtu, |guest| {
            for (gid, server) in [(V4, "10.0.0.1"), (V6, "fd00::1"), (V6, "10.0.0.1")] {
                let index = gid_index(guest, gid)?;
                for size in [1, 1024, 4096, 8 << 20] {
                    let count = if size > 65536 { 2 } else { 200 };
                    let words = format!("-g {index} -s {size} -n {count} {server}");
                    guest.sh(&format!("ibv_rc_pingpong {words}"))?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}
