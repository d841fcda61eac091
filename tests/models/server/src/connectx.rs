//! ConnectX functions and the cable between them.

use super::{PatchCable, Wire, hexadecimal, serve_with};
use anyhow::Result;
use clap::Args;
use models::Function;
use models::mlx5::{self, Mlx5};
use std::path::PathBuf;

/// Options of the model of ConnectX.
#[derive(Args)]
pub struct Options {
    /// The Unix sockets to listen on
    #[arg(num_args = 1..=4, required = true)]
    sockets: Vec<PathBuf>,
    /// PCI device id, hexadecimal: 1015, 1017 and 101d are physical functions, 1016 and 1018 virtual ones
    #[arg(long, default_value = "1018", value_parser = hexadecimal)]
    device: u16,
    /// The last byte but one of the MAC addresses
    #[arg(long, default_value_t = 2)]
    number: u8,
    /// MTU of the port
    #[arg(long, default_value_t = 9000)]
    mtu: u16,
    /// Report no RoCE capability
    #[arg(long)]
    no_roce: bool,
    /// Priorities with flow control, a bit for each
    #[arg(long, default_value_t = 0)]
    flow_control: u8,
    /// Priorities with congestion control (ECN), a bit for each; without it the firmware does not report them
    #[arg(long)]
    marks: Option<u8>,
    /// Delay of command completions in microseconds
    #[arg(long)]
    late: Option<u64>,
    /// Complete commands out of order
    #[arg(long)]
    out_of_order: bool,
    /// Pages of 4 KiB that the firmware wants before INIT_HCA; cards want 10,000 and more
    #[arg(long, default_value_t = 700)]
    pages: u32,
    /// Fault to inject into the first function
    #[arg(long, value_parser = mlx5::Fault::named)]
    fault: Option<mlx5::Fault>,
    /// Connect the only function's wire to another process: frames as datagrams, from the Unix socket OURS to PEER
    #[arg(long, num_args = 2, value_names = ["OURS", "PEER"])]
    wire: Option<Vec<PathBuf>>,
}

impl Options {
    /// Serves the functions, each on its socket.
    pub fn serve(self) -> Result<()> {
        let wire = match self.wire.as_deref() {
            Some([ours, peer]) => Some(Wire::new(ours, peer.clone())?),
            _ => None,
        };
        let mut cable = PatchCable::new(self.sockets.len(), wire);
        let mut functions = Vec::new();
        for (number, socket) in self.sockets.into_iter().enumerate() {
            let [a, b, c, d, _, _] = mlx5::MAC;
            let mac = [a, b, c, d, self.number, 1 + number as u8];
            let settings = mlx5::Config {
                device: self.device,
                mac,
                mtu: self.mtu,
                flow_control: self.flow_control,
                marks: self.marks,
                roce: !self.no_roce,
                pages: [33, self.pages, 300],
                ..Default::default()
            };
            let mut nic = Mlx5::new(settings).with_cable(cable.end(number));
            self.late.into_iter().for_each(|late| nic.inject(mlx5::Fault::Late(1000 * late)));
            if self.out_of_order {
                nic.inject(mlx5::Fault::OutOfOrder);
            }
            let fault = self.fault.filter(|_| number == 0);
            fault.into_iter().for_each(|fault| nic.inject(fault));
            functions.push((socket, Box::new(nic) as Box<dyn Function>));
        }
        serve_with(functions, || cable.turn())
    }
}
