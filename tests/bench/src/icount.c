/* QEMU TCG plugin: counts the guest instructions that each virtual CPU executes, in a shared file of
 * 64-bit numbers, which can be read while the guest runs. The file holds 16 counts of all instructions, 16 counts
 * of instructions in a range of addresses, that range (first address, and end), a marked address, the most
 * instructions that a CPU has executed between two passages of the mark, and the count of each CPU at its last
 * passage. The reader may set the range and the mark at any time.
 * Use: -plugin icount.so,counters=FILE */
#include "plugin.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNTERS 16
#define BEGIN (2 * COUNTERS)
#define END (BEGIN + 1)
#define MARKER (END + 1)
#define LONGEST (MARKER + 1)
#define PASSED (LONGEST + 1)
#define NUMBERS (PASSED + COUNTERS)

static volatile uint64_t *counters;

/* A translation block: instructions that are executed one after the other. */
struct block {
    uint64_t address;
    uint64_t instructions;
};

static void executed(unsigned int vcpu, void *data)
{
    const struct block *block = data;
    if (counters[MARKER] && block->address == counters[MARKER]) {
        uint64_t now = counters[vcpu % COUNTERS];
        volatile uint64_t *passed = &counters[PASSED + vcpu % COUNTERS];
        if (*passed && now - *passed > counters[LONGEST])
            counters[LONGEST] = now - *passed;
        *passed = now;
    }
    counters[vcpu % COUNTERS] += block->instructions;
    if (block->address >= counters[BEGIN] && block->address < counters[END])
        counters[COUNTERS + vcpu % COUNTERS] += block->instructions;
}

static void count(struct qemu_plugin_tb *tb)
{
    /* QEMU does not report when it discards a translation block, so blocks are never freed: 16 bytes each. */
    struct block *block = malloc(sizeof *block);
    if (!block)
        abort();
    block->address = qemu_plugin_tb_vaddr(tb);
    block->instructions = qemu_plugin_tb_n_insns(tb);
    qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, QEMU_PLUGIN_CB_NO_REGS, block);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
    (void)info;
    if (argc != 1 || strncmp(argv[0], "counters=", 9) != 0)
        return -1;
    int file = open(argv[0] + 9, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, NUMBERS * sizeof *counters) != 0)
        return -1;
    void *mapped = mmap(NULL, NUMBERS * sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return -1;
    counters = mapped;
    count_from_now_on(id);
    return 0;
}
