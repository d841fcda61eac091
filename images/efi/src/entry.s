# Switches from UEFI's 64-bit mode to the state that a PVH entry expects: 32-bit protected mode, paging off, flat
# segments, ebx = start info (Xen docs/misc/pvh.pandoc). Runs at any address below 4 GiB that is mapped to
# itself, with a few bytes of stack. Never returns.
#   esi = address of the start info, edx = address of the entry
    .global efi_enter_pvh
efi_enter_pvh:
    cli
    cld
    lea rax, [rip + 3f]
    mov [rip + 4f + 2], rax
    lgdt [rip + 4f]
    lea rax, [rip + 2f]
    push 0x08
    push rax
    retfq
    .code32
2:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov fs, eax
    mov gs, eax
    mov eax, cr0
    and eax, 0x7fffffff
    mov cr0, eax
    # Clear EFER.LME only now, because with paging enabled that raises #GP.
    mov edi, edx
    mov ecx, 0xc0000080
    rdmsr
    and eax, 0xfffffeff
    wrmsr
    xor eax, eax
    mov cr4, eax
    mov ebx, esi
    jmp edi
    .code64
    .balign 8
3:
    .quad 0
    .quad 0x00cf9a000000ffff
    .quad 0x00cf92000000ffff
4:
    .short 23
    .quad 0
    .global efi_enter_pvh_end
efi_enter_pvh_end:
