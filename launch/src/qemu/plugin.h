/* The part of QEMU's TCG plugin interface that our plugins use: docs/devel/tcg-plugins and include/qemu/qemu-plugin.h.
 * No Debian package has that header, so its declarations are repeated here. They are the same in every version of the
 * interface from 1 (QEMU 7.2) on, except that since 7 (QEMU 11) the translation callback gets user data after the block
 * instead of the plugin's id before it. API_VERSION is the version that the installed QEMU accepts. */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };

#if API_VERSION >= 7
typedef void (*translated_cb)(struct qemu_plugin_tb *tb, void *userdata);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated_cb cb, void *userdata);
#else
typedef void (*translated_cb)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated_cb cb);
#endif
typedef void (*executed_cb)(unsigned int vcpu, void *userdata);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, executed_cb cb,
                                          enum qemu_plugin_cb_flags flags, void *userdata);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);

EXPORT int qemu_plugin_version = API_VERSION;

/* Defined by the plugin. Called for each translated block: instructions that are executed one after the other. */
static void count(struct qemu_plugin_tb *tb);

#if API_VERSION >= 7
static void translated(struct qemu_plugin_tb *tb, void *userdata)
{
    (void)userdata;
    count(tb);
}

static void count_from_now_on(qemu_plugin_id_t id)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
}
#else
static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    count(tb);
}

static void count_from_now_on(qemu_plugin_id_t id)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
}
#endif
