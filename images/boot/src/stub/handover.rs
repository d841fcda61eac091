//! Entry into the kernel, which is linked into the same image (hermit-entry, entry version 4).

use crate::{BootInfo, fdt};
use core::mem::MaybeUninit;
use core::ptr::addr_of_mut;
use hermit_entry::boot_info::{
    BootInfo as HermitBootInfo, DeviceTreeAddress, HardwareInfo, LoadInfo, PlatformInfo,
    RawBootInfo, SerialPortBase, TlsInfo,
};

const COM1: u16 = 0x3f8;
const PT_TLS: u32 = 7;

unsafe extern "C" {
    /// The image's ELF header, defined by the linker; it is loaded with the first segment.
    static __ehdr_start: u8;
    /// The image's end, defined by the linker.
    static _end: u8;
    static isthmus_stack_guard: u8;
    static isthmus_stack: u8;
    fn _start(boot_info: &'static RawBootInfo, cpu: u32) -> !;
}

static mut DEVICE_TREE: fdt::Buffer = [0; 2048];
static mut RAW: MaybeUninit<RawBootInfo> = MaybeUninit::uninit();

/// First address of the image, and one past its last.
pub fn image() -> (u64, u64) {
    ((&raw const __ehdr_start) as u64, ((&raw const _end) as u64).next_multiple_of(4096))
}

/// Address of the page below the first stack.
pub fn stack_guard() -> u64 {
    (&raw const isthmus_stack_guard) as u64
}

/// Enters the kernel on the first processor, with `platform_info` as its platform.
pub fn enter_kernel(boot: &BootInfo, platform_info: PlatformInfo) -> ! {
    // SAFETY: the only processor, and this function is entered once.
    let device_tree = unsafe { &mut *addr_of_mut!(DEVICE_TREE) };
    fdt::write(device_tree, boot);
    let (start, end) = image();
    let info = HermitBootInfo {
        hardware_info: HardwareInfo {
            phys_addr_range: 0..0,
            serial_port_base: SerialPortBase::new(COM1),
            device_tree: DeviceTreeAddress::new(device_tree.as_ptr() as u64),
        },
        load_info: LoadInfo { kernel_image_addr_range: start..end, tls_info: tls_info() },
        platform_info,
    };
    // SAFETY: the only processor, and this function is entered once.
    let raw = unsafe { (*addr_of_mut!(RAW)).write(RawBootInfo::from(info)) };
    // SAFETY: the kernel expects the bottom of a 32 KiB stack in rsp (it adds the size itself) and its
    // arguments in rdi and rsi. The stub's frames on that stack are not used any more.
    unsafe {
        core::arch::asm!(
            "mov rsp, {stack}",
            "jmp {start}",
            stack = in(reg) &raw const isthmus_stack,
            start = sym _start,
            in("rdi") raw,
            in("rsi") 0u64,
            options(noreturn)
        )
    }
}

/// The template of thread-local storage, from the image's program headers.
fn tls_info() -> Option<TlsInfo> {
    let header = &raw const __ehdr_start;
    // SAFETY: the linker puts a valid ELF64 header there and the program headers within the first
    // segment; offsets are those of Elf64_Ehdr and Elf64_Phdr.
    unsafe {
        let u64_at = |at: *const u8| at.cast::<u64>().read_unaligned();
        let first = header.add(u64_at(header.add(32)) as usize);
        let count = header.add(56).cast::<u16>().read_unaligned();
        let headers = (0..usize::from(count)).map(|i| first.add(i * 56));
        let tls = headers.into_iter().find(|at| at.cast::<u32>().read_unaligned() == PT_TLS)?;
        Some(TlsInfo {
            start: u64_at(tls.add(16)),
            filesz: u64_at(tls.add(32)),
            memsz: u64_at(tls.add(40)),
            align: u64_at(tls.add(48)),
        })
    }
}
