# The entry points, in 32-bit mode: PVH (ebx = hvm_start_info) and Multiboot2 (eax = magic, ebx =
# information). They map the first 4 GiB one to one (4 KiB pages for the first 2 MiB, because the kernel
# remaps the page in which its other processors start; 2 MiB pages above) and call
# isthmus_stub(magic, information) in long mode. AT&T syntax.

# Xen ELF note XEN_ELFNOTE_PHYS32_ENTRY: the PVH entry point (8 bytes, since the file is ELF64).
.section .note.Xen, "a", @note
.balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad isthmus_pvh

# The Multiboot2 header, wrapped into a note so that the linker puts it within the file's first 32 KiB.
.section .note.isthmus.multiboot2, "a", @note
.balign 8
    .long 8, (header_end - header_start), 2
    .asciz "isthmus"
    .balign 8
header_start:
    .long 0xe85250d6, 0, (header_end - header_start), -(0xe85250d6 + (header_end - header_start))
    # requested, optional: memory map (6), command line (1), screen (8), ACPI root pointer old (14) and new (15)
    .balign 8
1:  .short 1, 1
    .long 2f - 1b
    .long 6, 1, 8, 14, 15
2:  .balign 8
    # entry address
3:  .short 3, 0
    .long 4f - 3b
    .long isthmus_multiboot2
4:  .balign 8
    .short 0, 0
    .long 8
header_end:
    .balign 8

.section .text.isthmus_entry, "ax", @progbits
.code32
.global isthmus_pvh
isthmus_pvh:
    movl $0x336ec578, %eax     # the magic of hvm_start_info, to distinguish the two protocols
.global isthmus_multiboot2
isthmus_multiboot2:
    cli
    cld
    movl %eax, %edi
    movl %ebx, %esi
    movl $boot_stack_end, %esp

    boot_check_processor
    boot_make_tables

    movl %cr4, %eax
    orl $0x20, %eax            # PAE
    movl %eax, %cr4
    movl $boot_top_table, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx     # EFER
    rdmsr
    orl $0x900, %eax           # LME, NXE
    wrmsr
    movl %cr0, %eax
    andl $0x9fffffff, %eax     # caches on
    orl $0x80010001, %eax      # PG, WP, PE
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmp $8, $boot_long_mode

# The processor lacks what this code needs: says so on COM1 and on a screen in text mode, and stops.
boot_too_old:
    movl $boot_too_old_text, %esi
    movl $0xb8000, %edi        # the first line of the screen, white on red
6:  movzbl (%esi), %ebx
    testl %ebx, %ebx
    jz 9f
    cmpl $0x20, %ebx
    jb 7f
    movb %bl, (%edi)
    movb $0x4f, 1(%edi)
    addl $2, %edi
7:  movl $100000, %ecx         # an absent UART never becomes ready
8:  movw $0x3fd, %dx
    inb %dx, %al
    testb $0x20, %al
    loopz 8b
    movw $0x3f8, %dx
    movb %bl, %al
    outb %al, %dx
    incl %esi
    jmp 6b
9:  movl $0x12, %eax           # QEMU's isa-debug-exit, as in `fatal`
    movw $0xf4, %dx
    outl %eax, %dx
10: cli
    hlt
    jmp 10b

.code64
boot_long_mode:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movl %edi, %edi
    movl %esi, %esi
    leaq boot_stack_end(%rip), %rsp
    xorl %ebp, %ebp
    call isthmus_stub
5:  cli
    hlt
    jmp 5b
