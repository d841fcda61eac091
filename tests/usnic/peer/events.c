/* Event queues and address vectors. */
#include "provider.h"

/* ---- event queue, address vector ---- */

static ssize_t eq_read(struct fid_eq *f, uint32_t *ev, void *buf, size_t len, uint64_t flags)
{
	struct shim_eq *eq = (struct shim_eq *)f;

	(void)flags;
	if (eq->head == eq->tail)
		return -FI_EAGAIN;
	*ev = eq->q[eq->head % EVENTS].ev;
	memcpy(buf, &eq->q[eq->head % EVENTS].e, len < sizeof(struct fi_eq_entry) ? len : sizeof(struct fi_eq_entry));
	eq->head++;
	return sizeof(struct fi_eq_entry);
}

static ssize_t eq_sread(struct fid_eq *f, uint32_t *ev, void *buf, size_t len, int timeout, uint64_t flags)
{
	(void)timeout;                  /* every event is queued before the caller waits for it */
	return eq_read(f, ev, buf, len, flags);
}

static ssize_t eq_readerr(struct fid_eq *f, struct fi_eq_err_entry *e, uint64_t flags)
{
	(void)f; (void)e; (void)flags;
	return -FI_EAGAIN;
}

static int eq_control(struct fid *f, int cmd, void *arg)
{
	if (cmd != FI_GETWAIT)
		return -FI_ENOSYS;
	*(int *)arg = ((struct shim_eq *)f)->fd;
	return 0;
}

static int eq_close(struct fid *f)
{
	close(((struct shim_eq *)f)->fd);
	free(f);
	return 0;
}

static struct fi_ops eq_fi = { .size = sizeof eq_fi, .close = eq_close, .control = eq_control };
static struct fi_ops_eq eq_ops = { .size = sizeof eq_ops, .read = eq_read, .sread = eq_sread, .readerr = eq_readerr };

int eq_open(struct fid_fabric *fab, struct fi_eq_attr *attr, struct fid_eq **out, void *context)
{
	struct shim_eq *eq = calloc(1, sizeof *eq);

	(void)fab;
	eq->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (attr->size == 0 || attr->size > EVENTS)
		attr->size = EVENTS;
	eq->f.fid.fclass = FI_CLASS_EQ;
	eq->f.fid.context = context;
	eq->f.fid.ops = &eq_fi;
	eq->f.ops = &eq_ops;
	*out = &eq->f;
	return 0;
}

static int av_insert(struct fid_av *f, const void *addr, size_t count, fi_addr_t *out, uint64_t flags, void *context)
{
	struct shim_av *av = (struct shim_av *)f;
	const struct sockaddr_in *sin = addr;
	size_t i;

	(void)flags;
	for (i = 0; i < count; i++) {
		struct sockaddr_in *copy = malloc(sizeof *copy);
		*copy = sin[i];
		out[i] = (fi_addr_t)(uintptr_t)copy;
	}
	if (av->eq) {
		unsigned n = av->eq->tail++ % EVENTS;
		av->eq->q[n].ev = FI_AV_COMPLETE;
		av->eq->q[n].e = (struct fi_eq_entry){ .fid = &f->fid, .context = context, .data = count };
		return 0;
	}
	return (int)count;
}

static int av_remove(struct fid_av *f, fi_addr_t *addr, size_t count, uint64_t flags)
{
	(void)f; (void)flags;
	while (count--)
		free((void *)(uintptr_t)addr[count]);
	return 0;
}

static const char *av_straddr(struct fid_av *f, const void *addr, char *buf, size_t *len)
{
	const struct sockaddr_in *sin = addr;
	char ip[INET_ADDRSTRLEN];
	int n;

	(void)f;
	inet_ntop(AF_INET, &sin->sin_addr, ip, sizeof ip);
	n = snprintf(buf, *len, "%s:%u", ip, ntohs(sin->sin_port));
	*len = n + 1;
	return buf;
}

static int av_distance(struct fid_av *f, void *addr, int *metric)
{
	(void)f; (void)addr;
	*metric = 0;
	return 0;
}

static struct fi_usnic_ops_av av_ext = { sizeof av_ext, av_distance };

static int av_ops_open(struct fid *f, const char *name, uint64_t flags, void **ops, void *context)
{
	(void)f; (void)flags; (void)context;
	if (strcmp(name, FI_USNIC_AV_OPS_1))
		return -FI_EINVAL;
	*ops = &av_ext;
	return 0;
}

static int av_bind(struct fid *f, struct fid *b, uint64_t flags)
{
	(void)flags;
	if (b->fclass == FI_CLASS_EQ)
		((struct shim_av *)f)->eq = (struct shim_eq *)b;
	return 0;
}

int free_close(struct fid *f)
{
	free(f);
	return 0;
}

static struct fi_ops av_fi = { .size = sizeof av_fi, .close = free_close, .bind = av_bind, .ops_open = av_ops_open };
static struct fi_ops_av av_ops = { .size = sizeof av_ops, .insert = av_insert, .remove = av_remove, .straddr = av_straddr };

int av_open(struct fid_domain *d, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
	struct shim_av *av = calloc(1, sizeof *av);

	(void)d; (void)attr;
	av->f.fid.fclass = FI_CLASS_AV;
	av->f.fid.context = context;
	av->f.fid.ops = &av_fi;
	av->f.ops = &av_ops;
	*out = &av->f;
	return 0;
}

