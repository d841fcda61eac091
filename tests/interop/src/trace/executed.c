/* QEMU TCG plugin: how often each instruction of a range of addresses was executed, in a shared file of 64-bit
 * numbers, one for each byte of the range, so that they can be read while the guest runs. For guests of one CPU.
 * Use: -plugin executed.so,counts=FILE,begin=0xADDRESS,end=0xADDRESS */
#include "plugin.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile uint64_t *times;
static uint64_t begin, end;

struct block {
    size_t instructions;
    volatile uint64_t *of[];
};

static void executed(unsigned int vcpu, void *data)
{
    (void)vcpu;
    const struct block *block = data;
    for (size_t i = 0; i < block->instructions; i++)
        ++*block->of[i];
}

static void count(struct qemu_plugin_tb *tb)
{
    size_t instructions = qemu_plugin_tb_n_insns(tb);
    /* QEMU does not say when it has no more use for one: they stay. */
    struct block *block = malloc(sizeof *block + instructions * sizeof block->of[0]);
    if (!block)
        abort();
    block->instructions = 0;
    for (size_t i = 0; i < instructions; i++) {
        uint64_t address = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, i));
        if (address >= begin && address < end)
            block->of[block->instructions++] = times + (address - begin);
    }
    if (block->instructions)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, QEMU_PLUGIN_CB_NO_REGS, block);
    else
        free(block);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
    (void)info;
    if (argc != 3 || strncmp(argv[0], "counts=", 7) != 0 || strncmp(argv[1], "begin=", 6) != 0 ||
        strncmp(argv[2], "end=", 4) != 0)
        return -1;
    begin = strtoull(argv[1] + 6, NULL, 0);
    end = strtoull(argv[2] + 4, NULL, 0);
    if (begin >= end)
        return -1;
    size_t bytes = (end - begin) * sizeof *times;
    int file = open(argv[0] + 7, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, bytes) != 0)
        return -1;
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return -1;
    times = mapped;
    count_from_now_on(id);
    return 0;
}
