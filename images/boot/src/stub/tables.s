# Shared by all entry points: page tables, segments, the first stack. AT&T syntax.

# Makes the page tables: the first 4 GiB, one to one.
.macro boot_make_tables
    # first 2 MiB
    movl $boot_first_table, %ebx
    movl $0x3, %eax            # present, writable
    xorl %ecx, %ecx
1:  movl %eax, (%ebx,%ecx,8)
    addl $0x1000, %eax
    incl %ecx
    cmpl $512, %ecx
    jb 1b

    # 0 to 4 GiB
    movl $isthmus_page_directories, %ebx
    movl $0x83, %eax           # present, writable, large
    xorl %ecx, %ecx
2:  movl %eax, (%ebx,%ecx,8)
    addl $0x200000, %eax
    incl %ecx
    cmpl $2048, %ecx
    jb 2b
    movl $boot_first_table, %eax
    orl $3, %eax
    movl %eax, (%ebx)

    movl $isthmus_directory_pointers, %ebx
    movl $isthmus_page_directories, %eax
    orl $3, %eax
    xorl %ecx, %ecx
3:  movl %eax, (%ebx,%ecx,8)
    addl $0x1000, %eax
    incl %ecx
    cmpl $4, %ecx
    jb 3b
    movl $isthmus_directory_pointers, %eax
    orl $3, %eax
    movl %eax, boot_top_table
.endm

# Goes to boot_too_old if the processor has no 64-bit mode or cannot forbid execution of pages. Keeps edi and esi.
.macro boot_check_processor
    pushfl                     # only a processor with CPUID can change this flag (bit 21)
    popl %eax
    movl %eax, %ecx
    xorl $0x200000, %eax
    pushl %eax
    popfl
    pushfl
    popl %eax
    xorl %ecx, %eax
    testl $0x200000, %eax
    jz boot_too_old
    movl $0x80000000, %eax
    cpuid
    cmpl $0x80000001, %eax
    jb boot_too_old
    movl $0x80000001, %eax
    cpuid
    andl $0x20100000, %edx     # LM, NX
    cmpl $0x20100000, %edx
    jne boot_too_old
.endm

.section .rodata.isthmus_entry, "a", @progbits
.balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff   # 64-bit code
    .quad 0x00cf92000000ffff   # data
boot_gdt_pointer:
    .short 23
    .long boot_gdt
    .long 0
boot_too_old_text:
    .asciz "isthmus: cannot boot: the processor is too old: it has no 64-bit mode with NX; give the machine a newer one\r\n"

.section .bss.isthmus_entry, "aw", @nobits
.balign 4096
boot_top_table: .skip 4096
.global isthmus_directory_pointers
isthmus_directory_pointers: .skip 4096
.global isthmus_page_directories
isthmus_page_directories: .skip 4096 * 4
boot_first_table: .skip 4096
# The stub's stack becomes the kernel's first stack, which is 32 KiB. The page below is unmapped later.
.global isthmus_stack_guard
isthmus_stack_guard: .skip 4096
.global isthmus_stack
isthmus_stack: .skip 0x8000
boot_stack_end:
