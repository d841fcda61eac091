//! The disk from which this program was started. The program reports to the appliance which one it is, and whether a
//! configuration was saved on it, because only the firmware knows from which disk the machine has booted.

use alloc::format;
use alloc::string::String;
use core::ptr::NonNull;
use core::slice;

use efi::partition_table::{self, LOOK};
use release::layout;
use uefi::boot::{
    self, AllocateType, MemoryType, OpenProtocolAttributes, OpenProtocolParams, PAGE_SIZE,
    ScopedProtocol,
};
use uefi::proto::device_path::{DevicePath, DevicePathNodeEnum};
use uefi::proto::loaded_image::LoadedImage;
use uefi::proto::media::block::BlockIO;
use uefi::proto::{ProtocolPointer, unsafe_protocol};
use uefi::{Handle, Status};

/// Result with an error text for the console.
pub type Result<T> = core::result::Result<T, &'static str>;

/// The disk from which this program was started.
pub struct OwnDisk {
    handle: Handle,
    /// Its first bytes.
    start: &'static [u8],
    block: usize,
}

impl OwnDisk {
    /// Finds the disk. None if this program was loaded from a network, or from a medium without partitions.
    pub fn find() -> Option<OwnDisk> {
        let ours = open::<LoadedImage>(boot::image_handle())?.device()?;
        let path = open::<DevicePath>(ours)?;
        let last = path.node_iter().last()?;
        if !matches!(last.as_enum(), Ok(DevicePathNodeEnum::MediaHardDrive(_))) {
            return None;
        }
        let disk = without_last(&path, usize::from(last.length()))?;
        let is_it = |handle: &Handle| {
            open::<DevicePath>(*handle).is_some_and(|path| without_last(&path, 0) == Some(disk))
        };
        let handle = boot::find_handles::<BlockIO>().ok()?.into_iter().find(is_it)?;
        let mut device = open::<BlockIO>(handle)?;
        let block = device.media().block_size() as usize;
        if !block.is_power_of_two() || !(512..=layout::BLOCK).contains(&block) {
            return None;
        }
        let start = pages(LOOK)?;
        read(&mut device, 0, start).ok()?;
        Some(OwnDisk { handle, start, block })
    }

    /// The protocol that reads and writes it.
    pub fn device(&self) -> Option<ScopedProtocol<BlockIO>> {
        open(self.handle)
    }

    /// Offset and length in bytes of its partition of a type.
    pub fn partition(&self, kind: &[u8; 16]) -> Option<(u64, u64)> {
        partition_table::partition(self.start, self.block, kind)
    }

    /// Word for the appliance's command line, with the disk's location in the appliance's notation.
    pub fn word(&self) -> String {
        let place = self.place();
        let place = place.as_deref().unwrap_or("unknown");
        let saved = if self.has_saved() { ",saved" } else { "" };
        format!("isthmus-disk={place}{saved}")
    }

    fn place(&self) -> Option<String> {
        let path = open::<DevicePath>(self.handle)?;
        let mut below: &DevicePath = &path;
        let controller = boot::locate_device_path::<PciIo>(&mut below).ok()?;
        let [segment, bus, device, function] = open::<PciIo>(controller)?.location()?;
        let mut nodes = below.node_iter();
        let unit = match nodes.next().map(|node| node.as_enum()) {
            None => String::new(),
            Some(Ok(DevicePathNodeEnum::MessagingScsi(scsi))) => {
                format!("/{}:{}", scsi.target_id(), scsi.logical_unit_number())
            }
            Some(Ok(DevicePathNodeEnum::MessagingNvmeNamespace(namespace))) => {
                format!("/{}", namespace.namespace_identifier())
            }
            // Directly at a port of an AHCI controller (UEFI 2.10, 10.3.4.6): no port multiplier is in between.
            Some(Ok(DevicePathNodeEnum::MessagingSata(sata)))
                if sata.port_multiplier_port_number() & 0x8000 != 0 =>
            {
                format!("/port{}", sata.hba_port_number())
            }
            // The disk is behind another controller, for which the appliance has no driver.
            Some(_) => return None,
        };
        let none_below = nodes.next().is_none();
        none_below.then(|| format!("pci:{segment:04x}:{bus:02x}:{device:02x}.{function:x}{unit}"))
    }

    /// Whether its partition for the configuration contains a document, or cannot be read.
    fn has_saved(&self) -> bool {
        let kind = layout::config_type_on_disk();
        let Some((offset, _)) = self.partition(&kind) else { return false };
        let (Some(mut device), Some(block)) = (self.device(), pages(layout::BLOCK)) else {
            return true;
        };
        layout::CONFIG_SLOTS.iter().any(|slot| {
            let readable = read(&mut device, offset + slot, block).is_ok();
            !readable || block.iter().any(|&byte| byte != 0)
        })
    }
}

/// The bytes of a device path without its last `last` bytes.
fn without_last(path: &DevicePath, last: usize) -> Option<&[u8]> {
    let all = path.as_bytes();
    // The path ends with an end node of four bytes.
    all.get(..all.len().checked_sub(last + 4)?)
}

/// Reads from a device; offset and length are multiples of its block size.
pub fn read(device: &mut BlockIO, at: u64, into: &mut [u8]) -> Result<()> {
    let media = device.media();
    let (id, block) = (media.media_id(), u64::from(media.block_size()));
    device.read_blocks(id, at / block, into).map_err(|_| "a read of the disk failed")
}

/// Opens a protocol of a handle, without exclusive access.
pub fn open<P: ProtocolPointer + ?Sized>(handle: Handle) -> Option<ScopedProtocol<P>> {
    let params = OpenProtocolParams { handle, agent: boot::image_handle(), controller: None };
    // SAFETY: no device is removed while this program runs: it does not wait for events, and requests nothing from the
    // firmware that would remove one.
    unsafe { boot::open_protocol(params, OpenProtocolAttributes::GetProtocol) }.ok()
}

/// Pages of the firmware's memory, never freed.
pub fn pages(length: usize) -> Option<&'static mut [u8]> {
    let count = length.div_ceil(PAGE_SIZE);
    let memory: NonNull<u8> =
        boot::allocate_pages(AllocateType::AnyPages, MemoryType::LOADER_DATA, count).ok()?;
    // SAFETY: the pages are newly allocated, exclusively owned, `count` in number, and never freed; zeros are valid
    // bytes.
    unsafe {
        memory.write_bytes(0, count * PAGE_SIZE);
        Some(slice::from_raw_parts_mut(memory.as_ptr(), length))
    }
}

/// The used part of `EFI_PCI_IO_PROTOCOL` (UEFI 2.10, 14.4).
#[repr(C)]
#[unsafe_protocol("4cf5b200-68b8-4ca5-9eec-b23e3f50029a")]
struct PciIo {
    /// PollMem, PollIo, Mem, Io and Pci with two each, CopyMem, Map, Unmap, AllocateBuffer, FreeBuffer, Flush.
    others: [usize; 14],
    get_location: unsafe extern "efiapi" fn(
        this: *const PciIo,
        segment: *mut usize,
        bus: *mut usize,
        device: *mut usize,
        function: *mut usize,
    ) -> Status,
}

impl PciIo {
    /// Segment, bus, device and function.
    fn location(&self) -> Option<[usize; 4]> {
        let [mut segment, mut bus, mut device, mut function] = [0; 4];
        // SAFETY: the protocol is open, the function belongs to it, and each pointer is to a number of the right size.
        let status = unsafe {
            (self.get_location)(self, &mut segment, &mut bus, &mut device, &mut function)
        };
        (status == Status::SUCCESS).then_some([segment, bus, device, function])
    }
}
