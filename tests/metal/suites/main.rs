//! Tests of drivers on models of their devices, with a module for each driver.

mod bad_registers;
mod dma_engine;
mod dsa;
mod enic;
mod intel_nic;
mod ioat;
mod ixgbe;
mod mlx5;
mod mlx5_queues;
mod mlx5_verbs;
mod network_card;
mod nic_queues;
mod ntb;
mod ntb_netdev;
mod ntb_trust;
mod nvme;
mod nvme_chance;
mod nvme_command_sets;
mod nvme_queues;
mod ptdma;
mod rapidio;
mod tsi721;
mod uhyve;
mod vmxnet3;
