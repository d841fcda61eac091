//! The findings of a probe: printed at once, and collected for a bug report.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::passthrough::Function;

/// sysfs attributes of a function that describe its connection.
const ATTRIBUTES: [&str; 9] = [
    "revision",
    "subsystem_vendor",
    "subsystem_device",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "numa_node",
    "resource",
];

/// The findings so far.
#[derive(Default)]
pub struct Report {
    text: String,
}

impl Report {
    /// Prints a line and adds it to the report.
    pub fn print(&mut self, line: &str) {
        println!("{line}");
        self.keep(line);
    }

    /// Adds a line to the report only.
    pub fn keep(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Adds Linux's description of the function.
    pub fn identify(&mut self, function: &Function) {
        let (vendor, device) = function.id;
        let group = function.group.map_or("none".into(), |group| group.to_string());
        self.print(&format!(
            "{}: {} {vendor:04x}:{device:04x}, class {:06x}, IOMMU group {group}",
            function.address, function.what, function.class
        ));
        self.keep(&format!("isthmus {}", env!("CARGO_PKG_VERSION")));
        let kernel = fs::read_to_string("/proc/version").unwrap_or_default();
        self.keep(kernel.trim());
        for name in ATTRIBUTES {
            if let Ok(text) = fs::read_to_string(function.directory().join(name)) {
                self.keep(&format!("{name}: {}", text.trim().replace('\n', "\n  ")));
            }
        }
    }

    /// Adds the configuration space in the layout of `lspci -xxxx`.
    pub fn config(&mut self, bytes: &[u8]) {
        self.keep("configuration space:");
        for (line, part) in bytes.chunks(16).enumerate() {
            let bytes: Vec<String> = part.iter().map(|byte| format!("{byte:02x}")).collect();
            self.keep(&format!("{:02x}: {}", line * 16, bytes.join(" ")));
        }
    }

    /// Writes the report to a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(path, &self.text).with_context(|| format!("could not write {}", path.display()))
    }
}
