# The entry point under uhyve, in 64-bit mode (hermit-entry, entry version 4): rdi = boot information, esi = number of
# the processor. All processors enter here at once, with the one stack that uhyve provides for the first processor. They
# get the same page tables and segments as from the other entry points. AT&T syntax.

.section .text.isthmus_entry, "ax", @progbits
.code64
# Sets up the parts of the mode that uhyve does not, and the stub's page tables and segments.
.macro boot_take_over
    movl $boot_top_table, %eax
    movq %rax, %cr3
    movl $0xc0000080, %ecx     # EFER
    rdmsr
    orl $0x900, %eax           # LME, NXE
    wrmsr
    movq %cr0, %rax
    andl $0x9fffffff, %eax     # caches on
    orl $0x80010001, %eax      # PG, WP, PE
    movq %rax, %cr0
    lgdt boot_gdt_pointer
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
.endm

.global isthmus_uhyve
isthmus_uhyve:
    cli
    cld
    testl %esi, %esi
    jnz 7f
    leaq boot_stack_end(%rip), %rsp
    boot_make_tables
    boot_take_over
    pushq $8
    leaq 6f(%rip), %rax
    pushq %rax
    lretq
6:  xorl %ebp, %ebp
    call isthmus_stub_uhyve
    ud2

    # The other processors wait until the first one has made the tables and ended the stub. The kernel gives each
    # processor a stack.
7:  pause
    cmpl $0, isthmus_first_is_done(%rip)
    je 7b
    boot_take_over
    ljmpl *boot_far_start(%rip)

.section .rodata.isthmus_entry, "a", @progbits
.balign 8
boot_far_start:
    .long _start
    .short 8

.section .bss.isthmus_entry, "aw", @nobits
.balign 4
.global isthmus_first_is_done
isthmus_first_is_done: .skip 4
