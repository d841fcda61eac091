# Prepares a QEMU machine as uhyve does (launch/src/uhyve). Entered in 32-bit mode, by PVH. AT&T syntax. Linked to
# 0x6000000 and loaded there, followed by the memory contents: 0x40000 bytes for address 0, then the image.

.section .text, "ax", @progbits
.code32
start:
    cli
    cld
    movl $(start + 0x1000), %esi
    xorl %edi, %edi
    movl $0x10000, %ecx
    rep movsl
    movl image_address, %edi
    movl image_words, %ecx
    rep movsl

    # Erases the firmware, whose tables the kernel would find. First the host bridge of q35 maps the firmware's
    # addresses to memory.
    movl $0x80000000, %ebx
    movl $0x90, %ecx
    movl $0x33333330, %esi
    call configure
    movl $0x94, %ecx
    movl $0x00333333, %esi
    call configure
    xorl %eax, %eax
    movl $0x40000, %edi
    movl $((0xa0000 - 0x40000) / 4), %ecx
    rep stosl
    movl $0xc0000, %edi
    movl $((0x100000 - 0xc0000) / 4), %ecx
    rep stosl

    # Finds the model and moves its port BARs to the hypercall ports.
    movl $0x80000000, %ebx
3:  movl %ebx, %eax
    movw $0xcf8, %dx
    outl %eax, %dx
    movw $0xcfc, %dx
    inl %dx, %eax
    cmpl $0x10411af4, %eax
    je 4f
    addl $0x800, %ebx          # the next device
    cmpl $0x80010000, %ebx
    jb 3b
    hlt
4:
    movl $0x18, %ecx
    movl $0x400, %esi
    call configure
    movl $0x1c, %ecx
    movl $0x800, %esi
    call configure
    movl $0x04, %ecx
    movl $7, %esi              # ports, memory, bus master
    call configure

    # Starts the other processors.
    cmpl $1, processors
    je 1f
    movl $trampoline, %esi
    movl $0x7000, %edi
    movl $(trampoline_end - trampoline), %ecx
    rep movsb
    movl $0x000c4500, 0xfee00300   # INIT to all but this
    call wait
    movl $0x000c4607, 0xfee00300   # STARTUP at 0x7000
    call wait
1:  xorl %esi, %esi
    jmp enter

# Writes %esi to configuration register %ecx of the function %ebx.
configure:
    leal (%ebx,%ecx), %eax
    movw $0xcf8, %dx
    outl %eax, %dx
    movl %esi, %eax
    movw $0xcfc, %dx
    outl %eax, %dx
    ret

wait:
    movl $3000000, %ecx
2:  loop 2b
    ret

# Enters the image on processor %esi.
enter:
    movl $0x20, %eax           # PAE
    movl %eax, %cr4
    movl $0x10000, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx     # EFER
    rdmsr
    orl $0x900, %eax           # LME, NXE
    wrmsr
    movl $0x80000031, %eax     # PG, NE, ET, PE
    movl %eax, %cr0
    lgdt its_segments
    ljmp $8, $long

.code64
long:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %esi, %esi
    movl $0x5000, %edi
    movl stack, %esp
    movl entry, %eax
    jmp *%rax

.code16
trampoline:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl 0x7000 + (our_segments - trampoline)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $8, $other
our_segments:
    .word 23
    .long segments
trampoline_end:

.code32
other:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl 0xfee00020, %esi
    shrl $24, %esi
    jmp enter

.balign 8
segments:
    .quad 0
    .quad 0x00cf9a000000ffff
    .quad 0x00cf92000000ffff
its_segments:
    .word 23
    .quad 0

# Parameters, filled in by start.rs.
.org 0xf00
image_address: .long 0
image_words: .long 0
processors: .long 0
stack: .long 0
entry: .long 0
