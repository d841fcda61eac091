//! Stock Linux guests as peers, a module for each suite, in one program: linked once, and not for each suite.
//! `./isthmus test SUITE` runs the cases of one module.

mod captures;
mod enic;
mod inprocess;
mod ixgbe;
mod lab_selftest;
mod messaging;
mod mlx5;
mod models;
mod ntb_bridges;
mod ntb_chain;
mod ntb_hw;
mod ntb_netdev;
mod passthrough;
mod paths;
mod perf;
mod perf_lossy;
mod perf_tools;
mod rapidio;
mod relay;
mod remote;
mod remote_faults;
mod remote_mirror;
mod rnbd_faults;
mod rnbd_soak;
mod roce_hostile;
mod rtrs_hostile;
mod smc;
mod smc_faults;
mod smc_hostile;
mod smc_links;
mod smc_scale;
mod smc_scenarios;
mod smc_version1;
mod storage;
mod storage_cores;
