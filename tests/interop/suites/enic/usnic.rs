//! usNIC over the interface: the image on the model, and the stock `btl/usnic` of Open MPI at the other end of its
//! wire.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::image_spec;
use launch::qemu::{Machine, Nic, Program};
use usnic::wire::modex::Modex;
use usnic_tests::stock::{self, Stock};
use usnic_tests::wire::{APPLIANCE, PORTS, Wire};

use super::{counter, model};

const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PATIENCE: Duration = Duration::from_secs(120);

fn ask(stock: &mut Stock, order: &str, answer: &str) -> Result<String> {
    stock.tell(order)?;
    let line = stock.wait(answer, PATIENCE, || std::thread::sleep(Duration::from_millis(1)));
    line.with_context(|| format!("after {order:?}"))
}

/// Messages of one and of many packets are echoed, and PUTs arrive. Filters steer the two UDP ports of usNIC to the
/// second queue.
#[test]
fn stock_btl_exchanges_messages_with_the_image() -> Result<()> {
    for mtu in [1500u16, 9000] {
        let wire = Wire::new()?;
        let Nic::Dgram { ours, peer } = wire.nic() else { anyhow::bail!("no datagrams") };
        let [ours, peer] = [ours, peer].map(|path| path.display().to_string());
        let vic = model(&["--number", "1", "--wire", &ours, &peer])?;
        let options = stock::Options { mtu, eager_limit: Some(1 << 20), ..Default::default() };
        let mut stock = Stock::start(&options)?;
        let modex = wire.join(&stock.modex, PEER);
        let [priority, data, ping] = PORTS;
        let text = format!(
            "[[net]]\naddress = \"{APPLIANCE}/24\"\nmtu = {mtu}\n[[usnic]]\nname = \"mpi\"\nnet = 0\n\
             address = \"{APPLIANCE}\"\ndata_port = {data}\npriority_port = {priority}\nping_port = {ping}\n\
             sender = \"1.0\"\nservices = [\"echo\", \"put-sink\"]\ntag = 65\n[[usnic.peer]]\nname = \"node-1\"\n\
             sender = \"1.1\"\nmodex = \"{modex}\"\n"
        );
        let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
        let mut vm = spec.vfio_user(&vic.socket()).config(&text).start()?;
        vm.wait_ready()?;
        vm.run("show devices")?.contains("enic")?.contains("link up")?;
        vm.run("show log")?.contains(&format!("UDP port {data} (usnic) has a receive queue"))?;
        let reply = vm.run("show usnic")?;
        let line =
            reply.text.lines().find_map(|line| line.split_once("modex ").map(|(_, hex)| hex));
        let modex: Modex = line.context("`show usnic` has no modex")?.trim().parse()?;
        ask(&mut stock, &format!("peer {} 1 0", wire.translated(&modex)), "peer ok")?;
        vm.run("usnic ping node-1")?.contains("large PING answered")?;
        let mut all = 0;
        for (count, size) in [(1, 1), (500, 64), (100, 1440), (100, 5000), (5, 1 << 20)] {
            let line = ask(&mut stock, &format!("send {count} {size}"), "sent")?;
            ensure!(line.contains(&format!("done {count} acknowledged 1")), "{line}");
            all += count;
            let line = ask(&mut stock, &format!("recv {all} 60"), "received")?;
            ensure!(line.starts_with(&format!("received {all} bad 0")), "{size} bytes: {line}");
        }
        ask(&mut stock, &format!("put {} 250000 6", 1u64 << 40), "put")?;
        let crc = crc32fast::hash(&usnic_tests::pattern::put(6, 250_000));
        vm.run("usnic look node-1 0 250000")?.contains(&format!("crc32 {crc:08x}"))?;
        let [from, to] = wire.counts()?;
        drop(vm);
        let counters = vic.counters()?;
        ensure!(counter(&counters, "function0.complaints")? == 0, "{counters}");
        // The other frames are PINGs and non-usNIC traffic.
        let [received, steered] =
            ["received", "steered"].map(|name| counter(&counters, &format!("function0.{name}")));
        let (received, steered) = (received?, steered?);
        ensure!(steered > 0 && received - steered < 20, "{to} datagrams to the image, {counters}");
        println!(
            "MTU {mtu}: {from} datagrams from the image, {to} to it, {steered} by the second queue"
        );
    }
    Ok(())
}
