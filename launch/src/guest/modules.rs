//! Builds the modules of RTRS and RNBD, of RapidIO, of non-transparent bridges, and of DMA engines from Debian's kernel
//! source, because Debian's kernels lack them. The source is unchanged. Each family is built in one directory, so that
//! its modules see each other's headers and symbols. `idxd`, which Debian has, is built again for CPUs without
//! MOVDIR64B.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::packages::Kernel;
use crate::{command, workspace};

/// Modules that are built together.
struct Family {
    name: &'static str,
    /// Paths in the kernel's source.
    sources: &'static [&'static str],
    /// The build directory. The files of `flat`, which names files and directories, are moved there.
    place: &'static str,
    flat: &'static [&'static str],
    /// The object files of each module (from the Makefiles of the source).
    kbuild: &'static str,
    /// The contents of `isthmus.h`, which `kbuild` includes.
    header: &'static str,
    /// The number of modules.
    count: usize,
}

const FAMILIES: [Family; 5] = [
    Family {
        name: "rtrs and rnbd",
        sources: &["drivers/infiniband/ulp/rtrs", "drivers/block/rnbd"],
        place: "together",
        flat: &["drivers/infiniband/ulp/rtrs", "drivers/block/rnbd"],
        kbuild: "\
ccflags-y += -I$(src)
rtrs-core-y := rtrs.o
rtrs-client-y := rtrs-clt.o rtrs-clt-stats.o rtrs-clt-sysfs.o rtrs-clt-trace.o
rtrs-server-y := rtrs-srv.o rtrs-srv-stats.o rtrs-srv-sysfs.o rtrs-srv-trace.o
rnbd-client-y := rnbd-clt.o rnbd-clt-sysfs.o
rnbd-server-y := rnbd-srv.o rnbd-srv-sysfs.o rnbd-srv-trace.o
obj-m += rtrs-core.o rtrs-client.o rtrs-server.o rnbd-client.o rnbd-server.o
",
        header: "",
        count: 5,
    },
    // The numbers are Kconfig's defaults. The driver of the bridge includes a header by a path out of its directory.
    Family {
        name: "RapidIO",
        sources: &["drivers/rapidio", "drivers/net/rionet.c", "drivers/dma/dmaengine.h"],
        place: "drivers/rapidio",
        flat: &["drivers/net/rionet.c"],
        kbuild: "\
ccflags-y += -DCONFIG_RAPIDIO_DISC_TIMEOUT=30 -DCONFIG_RAPIDIO_DMA_ENGINE=1
ccflags-y += -DCONFIG_RIONET_TX_SIZE=128 -DCONFIG_RIONET_RX_SIZE=128
rapidio-y := rio.o rio-access.o rio-driver.o rio-sysfs.o
tsi721_mport-y := devices/tsi721.o devices/tsi721_dma.o
obj-m += rapidio.o rio-scan.o rio_cm.o tsi721_mport.o rionet.o switches/idt_gen2.o
",
        header: "",
        count: 6,
    },
    Family {
        name: "NTB",
        sources: &["drivers/ntb", "drivers/net/ntb_netdev.c", "drivers/pci/switch/switchtec.c"],
        place: "drivers/ntb",
        flat: &["drivers/net/ntb_netdev.c", "drivers/pci/switch/switchtec.c"],
        kbuild: "\
ntb-y := core.o
ntb_hw_intel-y := hw/intel/ntb_hw_gen1.o hw/intel/ntb_hw_gen3.o hw/intel/ntb_hw_gen4.o
obj-m += ntb.o ntb_hw_intel.o hw/amd/ntb_hw_amd.o switchtec.o hw/mscc/ntb_hw_switchtec.o
obj-m += ntb_transport.o ntb_netdev.o test/ntb_pingpong.o test/ntb_tool.o test/ntb_perf.o
",
        header: "",
        count: 10,
    },
    // Both include headers of the parent directory. The RapidIO modules need a header of this directory.
    Family {
        name: "DMA engine",
        sources: &["drivers/dma/ptdma", "drivers/dma/dmatest.c", "drivers/dma/virt-dma.h"],
        place: "drivers/dma",
        flat: &[],
        kbuild: "\
ptdma-y := ptdma/ptdma-dev.o ptdma/ptdma-dmaengine.o ptdma/ptdma-pci.o ptdma/ptdma-debugfs.o
obj-m += ptdma.o dmatest.o
",
        header: "",
        count: 2,
    },
    // idxd under another name, with unchanged source. MOVDIR64B, which QEMU's TCG lacks, is not required, and eight
    // stores replace it. The store of the operation and flags is the last, because the model's server waits for it.
    Family {
        name: "idxd",
        sources: &["drivers/dma/idxd", "drivers/dma/dmaengine.h"],
        place: "drivers/dma/idxd",
        flat: &[],
        kbuild: "\
CFLAGS_init.o := -include $(src)/isthmus.h
CFLAGS_submit.o := -include $(src)/isthmus.h
idxd_stores-y := init.o irq.o device.o sysfs.o submit.o dma.o cdev.o debugfs.o defaults.o perfmon.o
obj-m += idxd_stores.o
",
        header: "\
#include <linux/io.h>
#include <linux/cpufeature.h>
#undef X86_FEATURE_MOVDIR64B
#define X86_FEATURE_MOVDIR64B X86_FEATURE_ALWAYS
static inline void isthmus_eight_stores(void __iomem *to, const u64 *words)
{
	for (int n = 7; n >= 0; n--)
		writeq(words[n], to + 8 * n);
}
#define iosubmit_cmds512(to, from, count) isthmus_eight_stores(to, (const void *)(from))
",
        count: 1,
    },
];

/// The inputs of the build, for the cache.
pub fn recipe() -> String {
    FAMILIES.map(|family| [family.kbuild, family.header].concat()).concat()
}

/// Builds modules in `work`, with the headers and source that were unpacked to `sysroot`, and returns the module files,
/// without debugging information: of RTRS and RNBD, or of every family. Modules that exist in `work` are not built
/// again.
pub fn build(
    kernel: &Kernel,
    sysroot: &Path,
    work: &Path,
    only_storage: bool,
) -> Result<Vec<PathBuf>> {
    let headers = sysroot.join(format!("usr/src/linux-headers-{}", kernel.release));
    if !work.exists() {
        move_headers(&headers, sysroot)?;
        fs::create_dir_all(work)?;
        unpack_source(sysroot, work)?;
    }
    let wanted = if only_storage { &FAMILIES[..1] } else { &FAMILIES[..] };
    let mut all = Vec::new();
    for family in wanted {
        all.extend(family.build(&headers, work)?);
    }
    Ok(all)
}

/// Unpacks the source of every family from the archive in the package of the kernel's source.
fn unpack_source(sysroot: &Path, work: &Path) -> Result<()> {
    let archive = fs::read_dir(sysroot.join("usr/src"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().ends_with(".tar.xz"))
        .context("the package with the kernel's source has no archive in it")?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(work).arg("-xf").arg(archive).args(["--strip-components=1", "--wildcards"]);
    // Each path once: tar finds no file for the second of two equal patterns.
    let sources: BTreeSet<&&str> = FAMILIES.iter().flat_map(|family| family.sources).collect();
    tar.args(sources.iter().map(|path| format!("*/{path}")));
    command::run_quietly("unpacking the kernel's source", &mut tar)
}

impl Family {
    fn build(&self, headers: &Path, work: &Path) -> Result<Vec<PathBuf>> {
        let place = work.join(self.place);
        fs::create_dir_all(&place)?;
        let done = place.join(".built");
        if done.exists() {
            return self.modules(&place);
        }
        for source in self.flat {
            for path in files(&work.join(source))? {
                if path.extension().is_some_and(|ending| ending == "c" || ending == "h") {
                    fs::rename(&path, place.join(path.file_name().context("a file has a name")?))?;
                }
            }
        }
        fs::write(place.join("Kbuild"), self.kbuild)?;
        if !self.header.is_empty() {
            fs::write(place.join("isthmus.h"), self.header)?;
        }
        let mut make = Command::new("make");
        make.arg("-C").arg(headers).arg(format!("M={}", place.display())).args(["-j2", "modules"]);
        // objtool, which comes with the headers, is linked with a library that may be unpacked.
        make.env("LD_LIBRARY_PATH", workspace::target().join("tools/elf"));
        command::run_quietly(&format!("building the {} modules", self.name), &mut make)?;
        let modules = self.modules(&place)?;
        command::run(Command::new("strip").arg("-g").args(&modules))?;
        fs::write(done, "")?;
        Ok(modules)
    }

    /// The modules that were built in `place`.
    fn modules(&self, place: &Path) -> Result<Vec<PathBuf>> {
        let mut modules = Vec::new();
        collect_modules(place, &mut modules)?;
        if modules.len() != self.count {
            let (found, wanted) = (modules.len(), self.count);
            bail!("the build made {found} modules instead of {wanted} in {}", place.display());
        }
        Ok(modules)
    }
}

/// The file itself, or the files in the directory.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
}

fn collect_modules(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_modules(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "ko") {
            found.push(path);
        }
    }
    Ok(())
}

/// Adapts the headers, which expect to be in /usr/src. Removes the kernel image among them, which is only for BTF:
/// BTF needs another tool, and modules load without it.
fn move_headers(headers: &Path, sysroot: &Path) -> Result<()> {
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile)?;
    fs::write(
        &makefile,
        text.replace("include /usr/src", &format!("include {}/usr/src", sysroot.display())),
    )?;
    match fs::remove_file(headers.join("vmlinux")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
