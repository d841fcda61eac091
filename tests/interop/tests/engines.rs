//! Stock Linux against the appliance's engines in this process.
use anyhow::Result;
use interop_tests::engines::{Engines, Setup};
use interop_tests::{client, map, unmap};

#[test]
fn linux_maps_ram0_and_reads_back_what_it_wrote() -> Result<()> {
    let engines = Engines::start(Setup::default())?;
    let mut guest = client(engines.nic(), 1500)?;
    guest.sh("ping -c 1 -W 5 10.0.0.1")?;
    guest.sh("modprobe rnbd-client")?;
    map(&mut guest, "s1", "ip:10.0.0.2@ip:10.0.0.1", "ram0", "")?;
    guest.sh("dd if=/dev/urandom of=/tmp/a bs=126976 count=4
         dd if=/tmp/a of=/dev/rnbd0 bs=126976 oflag=direct
         dd if=/dev/rnbd0 of=/tmp/b bs=126976 count=4 iflag=direct
         cmp /tmp/a /tmp/b")?;
    unmap(&mut guest, 0)?;
    println!("{:#?}", engines.stop()?);
    Ok(())
}

#[test]
fn rping_is_answered() -> Result<()> {
    let engines = Engines::start(Setup::default())?;
    let mut guest = client(engines.nic(), 1500)?;
    guest.sh("rping -c -a 10.0.0.1 -C 10 -S 4000 -V")?;
    guest.sh("rping -c -a fd00::1 -C 10 -S 4000 -V")?;
    Ok(())
}
