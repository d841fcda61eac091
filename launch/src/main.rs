//! The host program behind `./isthmus`: builds, boots, tests and measures the appliance.
fn main() {}
