/*
 * A libfabric provider that answers to the name "usnic" and needs no Cisco VIC:
 * each FI_EP_DGRAM endpoint is an ordinary kernel UDP socket, one interface is one fabric.
 * It offers what Open MPI's btl/usnic asks for and nothing more: FI_MSG with a 64-byte
 * message prefix, context CQs, an event-driven FI_AV_MAP, the two "ops" tables.
 *
 * Environment:
 *   USNIC_SHIM_IF     comma list of interfaces (default: every IPv4 interface that is up, but lo;
 *                     with lo set USNIC_SHIM_MTU too: its own is too large for the modex)
 *   USNIC_SHIM_SPEED  link speed in Mb/s for the modex          (10000)
 *   USNIC_SHIM_RING   entries of the send and receive rings      (4095)
 *   USNIC_SHIM_TTL    IPv4 time to live                          (8, as the VIC library writes)
 *   USNIC_SHIM_MTU    overrides the interface MTU
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>
#include <rdma/fi_ext_usnic.h>

#define PREFIX 64           /* bytes in front of the payload, in memory only */
#define BATCH 32            /* datagrams per recvmmsg */
#define EVENTS 8192         /* entries of an event queue */

struct shim_fabric { struct fid_fabric f; char ifname[IFNAMSIZ]; };
struct shim_domain { struct fid_domain f; struct shim_fabric *fabric; };
struct shim_mr     { struct fid_mr f; };
struct shim_eq     { struct fid_eq f; int fd; unsigned head, tail; struct { uint32_t ev; struct fi_eq_entry e; } q[EVENTS]; };
struct shim_av     { struct fid_av f; struct shim_eq *eq; };
struct shim_ep;
struct shim_cq     { struct fid_cq f; struct shim_ep *ep; void **done; unsigned size, head, tail;
                     void *err_ctx; int has_err; };
struct shim_tx     { const void *buf; size_t len; struct sockaddr_in *to; void *ctx; };
struct shim_rx     { void *buf; size_t len; void *ctx; };
struct shim_ep     { struct fid_ep f; struct shim_cq *cq; int fd;
                     struct shim_tx *tx; unsigned tsize, thead, ttail;
                     struct shim_rx *rx; unsigned rsize, rhead, rtail; };

static long env_num(const char *name, long dflt)
{
	const char *s = getenv(name);
	return s && *s ? strtol(s, NULL, 0) : dflt;
}

static int if_mtu(const char *ifname)
{
	struct ifreq r;
	int fd = socket(AF_INET, SOCK_DGRAM, 0), mtu = 1500;

	memset(&r, 0, sizeof r);
	snprintf(r.ifr_name, sizeof r.ifr_name, "%s", ifname);
	if (fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0)
		mtu = r.ifr_mtu;
	if (fd >= 0)
		close(fd);
	return (int)env_num("USNIC_SHIM_MTU", mtu);
}

/* ---- completion queue ---- */

static void cq_push(struct shim_cq *cq, void *ctx)
{
	if (cq->tail - cq->head >= cq->size) {
		fprintf(stderr, "usnic-shim: completion queue overrun\n");
		abort();
	}
	cq->done[cq->tail++ % cq->size] = ctx;
}

/* Sends what is queued. Returns when the queue is empty or the socket is full. */
static void ep_flush(struct shim_ep *ep)
{
	while (ep->thead != ep->ttail) {
		struct shim_tx *t = &ep->tx[ep->thead % ep->tsize];
		ssize_t r = sendto(ep->fd, t->buf, t->len, MSG_DONTWAIT, (struct sockaddr *)t->to, sizeof *t->to);

		if (r < 0 && (errno == EAGAIN || errno == ENOBUFS))
			return;
		cq_push(ep->cq, t->ctx);
		ep->thead++;
	}
}

static void ep_receive(struct shim_ep *ep)
{
	struct mmsghdr m[BATCH];
	struct iovec v[BATCH];
	unsigned room = ep->cq->size - (ep->cq->tail - ep->cq->head), n = ep->rtail - ep->rhead;
	int i, got;

	if (n > room)
		n = room;
	if (n > BATCH)
		n = BATCH;
	if (!n || ep->cq->has_err)
		return;
	memset(m, 0, n * sizeof *m);
	for (i = 0; i < (int)n; i++) {
		struct shim_rx *r = &ep->rx[(ep->rhead + i) % ep->rsize];
		v[i].iov_base = (char *)r->buf + PREFIX;
		v[i].iov_len = r->len - PREFIX;
		m[i].msg_hdr.msg_iov = &v[i];
		m[i].msg_hdr.msg_iovlen = 1;
	}
	got = recvmmsg(ep->fd, m, n, MSG_DONTWAIT, NULL);
	for (i = 0; i < got; i++) {
		struct shim_rx *r = &ep->rx[ep->rhead++ % ep->rsize];
		if (m[i].msg_hdr.msg_flags & MSG_TRUNC) {
			ep->cq->err_ctx = r->ctx;       /* one at a time is enough here */
			ep->cq->has_err = 1;
		} else {
			cq_push(ep->cq, r->ctx);
		}
	}
}

static ssize_t cq_read(struct fid_cq *f, void *buf, size_t count)
{
	struct shim_cq *cq = (struct shim_cq *)f;
	struct fi_cq_entry *e = buf;
	size_t n = 0;

	if (cq->ep) {
		if (cq->ep->thead != cq->ep->ttail)
			ep_flush(cq->ep);
		if (cq->tail == cq->head || count > 1)
			ep_receive(cq->ep);
	}
	while (n < count && cq->head != cq->tail)
		e[n++].op_context = cq->done[cq->head++ % cq->size];
	if (n)
		return n;
	return cq->has_err ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t cq_readerr(struct fid_cq *f, struct fi_cq_err_entry *e, uint64_t flags)
{
	struct shim_cq *cq = (struct shim_cq *)f;

	(void)flags;
	if (!cq->has_err)
		return -FI_EAGAIN;
	memset(e, 0, sizeof *e);
	e->op_context = cq->err_ctx;
	e->err = e->prov_errno = FI_ETRUNC;
	cq->has_err = 0;
	return 1;
}

static int cq_close(struct fid *f)
{
	struct shim_cq *cq = (struct shim_cq *)f;

	free(cq->done);
	free(cq);
	return 0;
}

static struct fi_ops cq_fi = { .size = sizeof cq_fi, .close = cq_close };
static struct fi_ops_cq cq_ops = { .size = sizeof cq_ops, .read = cq_read, .readerr = cq_readerr };

static int cq_open(struct fid_domain *d, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
	struct shim_cq *cq;

	(void)d;
	if (attr->format != FI_CQ_FORMAT_CONTEXT)
		return -FI_ENOSYS;
	cq = calloc(1, sizeof *cq);
	cq->size = (attr->size ? attr->size : 8192) + BATCH;
	cq->done = calloc(cq->size, sizeof *cq->done);
	cq->f.fid.fclass = FI_CLASS_CQ;
	cq->f.fid.context = context;
	cq->f.fid.ops = &cq_fi;
	cq->f.ops = &cq_ops;
	*out = &cq->f;
	return 0;
}

/* ---- endpoint ---- */

static ssize_t ep_recv(struct fid_ep *f, void *buf, size_t len, void *desc, fi_addr_t src, void *ctx)
{
	struct shim_ep *ep = (struct shim_ep *)f;

	(void)desc; (void)src;
	if (ep->rtail - ep->rhead >= ep->rsize)
		return -FI_EAGAIN;
	ep->rx[ep->rtail++ % ep->rsize] = (struct shim_rx){ buf, len, ctx };
	return 0;
}

static ssize_t ep_recvmsg(struct fid_ep *f, const struct fi_msg *m, uint64_t flags)
{
	(void)flags;
	return ep_recv(f, m->msg_iov[0].iov_base, m->msg_iov[0].iov_len, NULL, FI_ADDR_UNSPEC, m->context);
}

static ssize_t ep_send(struct fid_ep *f, const void *buf, size_t len, void *desc, fi_addr_t to, void *ctx)
{
	struct shim_ep *ep = (struct shim_ep *)f;

	(void)desc;
	if (ep->ttail - ep->thead >= ep->tsize)
		return -FI_EAGAIN;
	ep->tx[ep->ttail++ % ep->tsize] =
		(struct shim_tx){ (const char *)buf + PREFIX, len - PREFIX, (struct sockaddr_in *)(uintptr_t)to, ctx };
	ep_flush(ep);
	return 0;
}

static int ep_getname(fid_t f, void *addr, size_t *len)
{
	struct shim_ep *ep = (struct shim_ep *)f;
	struct sockaddr_in sin;
	socklen_t sl = sizeof sin;

	if (getsockname(ep->fd, (struct sockaddr *)&sin, &sl))
		return -errno;
	memcpy(addr, &sin, *len < sizeof sin ? *len : sizeof sin);
	*len = sizeof sin;
	return 0;
}

static int ep_bind(struct fid *f, struct fid *b, uint64_t flags)
{
	struct shim_ep *ep = (struct shim_ep *)f;

	(void)flags;
	if (b->fclass == FI_CLASS_CQ) {
		ep->cq = (struct shim_cq *)b;
		ep->cq->ep = ep;
	}
	return 0;
}

static int ep_control(struct fid *f, int cmd, void *arg)
{
	(void)f; (void)arg;
	return cmd == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static int ep_close(struct fid *f)
{
	struct shim_ep *ep = (struct shim_ep *)f;

	if (ep->cq)
		ep->cq->ep = NULL;
	close(ep->fd);
	free(ep->tx);
	free(ep->rx);
	free(ep);
	return 0;
}

static struct fi_ops ep_fi = { .size = sizeof ep_fi, .close = ep_close, .bind = ep_bind, .control = ep_control };
static struct fi_ops_ep ep_ops = { .size = sizeof ep_ops };
static struct fi_ops_cm ep_cm = { .size = sizeof ep_cm, .getname = ep_getname };
static struct fi_ops_msg ep_msg = { .size = sizeof ep_msg, .recv = ep_recv, .recvmsg = ep_recvmsg, .send = ep_send };

static int ep_open(struct fid_domain *d, struct fi_info *info, struct fid_ep **out, void *context)
{
	struct shim_domain *dom = (struct shim_domain *)d;
	struct shim_ep *ep = calloc(1, sizeof *ep);
	int ttl = (int)env_num("USNIC_SHIM_TTL", 8), big = 32 << 20, pmtu = IP_PMTUDISC_DONT;
	struct sockaddr_in sin = *(struct sockaddr_in *)info->src_addr;

	ep->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	setsockopt(ep->fd, SOL_IP, IP_TTL, &ttl, sizeof ttl);
	setsockopt(ep->fd, SOL_IP, IP_MTU_DISCOVER, &pmtu, sizeof pmtu);
	if (setsockopt(ep->fd, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof big))
		setsockopt(ep->fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
	if (setsockopt(ep->fd, SOL_SOCKET, SO_SNDBUFFORCE, &big, sizeof big))
		setsockopt(ep->fd, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
	sin.sin_family = AF_INET;
	if (bind(ep->fd, (struct sockaddr *)&sin, sizeof sin)) {
		int e = errno;
		close(ep->fd);
		free(ep);
		return -e;
	}
	setsockopt(ep->fd, SOL_SOCKET, SO_BINDTODEVICE, dom->fabric->ifname, strlen(dom->fabric->ifname) + 1);
	ep->tsize = info->tx_attr && info->tx_attr->size ? info->tx_attr->size : 4095;
	ep->rsize = info->rx_attr && info->rx_attr->size ? info->rx_attr->size : 4095;
	ep->tx = calloc(ep->tsize, sizeof *ep->tx);
	ep->rx = calloc(ep->rsize, sizeof *ep->rx);
	ep->f.fid.fclass = FI_CLASS_EP;
	ep->f.fid.context = context;
	ep->f.fid.ops = &ep_fi;
	ep->f.ops = &ep_ops;
	ep->f.cm = &ep_cm;
	ep->f.msg = &ep_msg;
	*out = &ep->f;
	return 0;
}

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
	(void)timeout;                  /* every event here is there before anybody waits for it */
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

static int eq_open(struct fid_fabric *fab, struct fi_eq_attr *attr, struct fid_eq **out, void *context)
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

static int free_close(struct fid *f)
{
	free(f);
	return 0;
}

static struct fi_ops av_fi = { .size = sizeof av_fi, .close = free_close, .bind = av_bind, .ops_open = av_ops_open };
static struct fi_ops_av av_ops = { .size = sizeof av_ops, .insert = av_insert, .remove = av_remove, .straddr = av_straddr };

static int av_open(struct fid_domain *d, struct fi_av_attr *attr, struct fid_av **out, void *context)
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

/* ---- memory, domain, fabric ---- */

static struct fi_ops mr_fi = { .size = sizeof mr_fi, .close = free_close };

static int mr_reg(struct fid *f, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
		  uint64_t flags, struct fid_mr **out, void *context)
{
	struct shim_mr *mr = calloc(1, sizeof *mr);

	(void)f; (void)buf; (void)len; (void)access; (void)offset; (void)key; (void)flags;
	mr->f.fid.fclass = FI_CLASS_MR;
	mr->f.fid.context = context;
	mr->f.fid.ops = &mr_fi;
	*out = &mr->f;
	return 0;
}

static int dom_bind(struct fid *f, struct fid *b, uint64_t flags)
{
	(void)f; (void)b; (void)flags;
	return 0;
}

static struct fi_ops dom_fi = { .size = sizeof dom_fi, .close = free_close, .bind = dom_bind };
static struct fi_ops_domain dom_ops = { .size = sizeof dom_ops, .av_open = av_open, .cq_open = cq_open, .endpoint = ep_open };
static struct fi_ops_mr dom_mr = { .size = sizeof dom_mr, .reg = mr_reg };

static int dom_open(struct fid_fabric *fab, struct fi_info *info, struct fid_domain **out, void *context)
{
	struct shim_domain *d = calloc(1, sizeof *d);

	(void)info;
	d->fabric = (struct shim_fabric *)fab;
	if (info->domain_attr && info->domain_attr->name)
		snprintf(d->fabric->ifname, IFNAMSIZ, "%s", info->domain_attr->name);
	d->f.fid.fclass = FI_CLASS_DOMAIN;
	d->f.fid.context = context;
	d->f.fid.ops = &dom_fi;
	d->f.ops = &dom_ops;
	d->f.mr = &dom_mr;
	*out = &d->f;
	return 0;
}

static int fab_info(uint32_t version, struct fid_fabric *f, struct fi_usnic_info *u)
{
	struct shim_fabric *fab = (struct shim_fabric *)f;
	struct ifaddrs *list, *i;

	memset(u, 0, sizeof *u);
	u->ui_version = version;
	u->ui.v1.ui_link_speed = (uint32_t)env_num("USNIC_SHIM_SPEED", 10000);
	snprintf(u->ui.v1.ui_ifname, IFNAMSIZ, "%s", fab->ifname);
	u->ui.v1.ui_num_vf = 64;
	u->ui.v1.ui_qp_per_vf = 8;
	u->ui.v1.ui_cq_per_vf = 16;
	if (getifaddrs(&list))
		return -errno;
	for (i = list; i; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && !strcmp(i->ifa_name, fab->ifname)) {
			u->ui.v1.ui_netmask_be = ((struct sockaddr_in *)i->ifa_netmask)->sin_addr.s_addr;
			break;
		}
	freeifaddrs(list);
	return 0;
}

static struct fi_usnic_ops_fabric fab_ext = { sizeof fab_ext, fab_info };

static int fab_ops_open(struct fid *f, const char *name, uint64_t flags, void **ops, void *context)
{
	(void)f; (void)flags; (void)context;
	if (strcmp(name, FI_USNIC_FABRIC_OPS_1))
		return -FI_EINVAL;
	*ops = &fab_ext;
	return 0;
}

static struct fi_ops fab_fi = { .size = sizeof fab_fi, .close = free_close, .ops_open = fab_ops_open };
static struct fi_ops_fabric fab_ops = { .size = sizeof fab_ops, .domain = dom_open, .eq_open = eq_open };

static int shim_open_fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
	struct shim_fabric *f = calloc(1, sizeof *f);

	(void)attr;
	f->f.fid.fclass = FI_CLASS_FABRIC;
	f->f.fid.context = context;
	f->f.fid.ops = &fab_fi;
	f->f.ops = &fab_ops;
	*out = &f->f;
	return 0;
}

static int wanted(const char *ifname, int loopback)
{
	const char *s = getenv("USNIC_SHIM_IF");
	size_t n = strlen(ifname);

	if (!s || !*s)
		return !loopback;
	while (*s) {
		size_t k = strcspn(s, ",");
		if (k == n && !memcmp(s, ifname, n))
			return 1;
		s += k + (s[k] == ',');
	}
	return 0;
}

static int shim_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
			const struct fi_info *hints, struct fi_info **out)
{
	struct ifaddrs *list, *i;
	struct fi_info *first = NULL, **tail = &first;
	size_t ring = (size_t)env_num("USNIC_SHIM_RING", 4095);
	char name[64];

	(void)node; (void)service; (void)flags; (void)version;
	if (hints && hints->ep_attr && hints->ep_attr->type != FI_EP_UNSPEC && hints->ep_attr->type != FI_EP_DGRAM)
		return -FI_ENODATA;
	if (!hints || !(hints->mode & FI_MSG_PREFIX))
		return -FI_ENODATA;
	if (getifaddrs(&list))
		return -errno;
	for (i = list; i; i = i->ifa_next) {
		struct sockaddr_in *sin = (struct sockaddr_in *)i->ifa_addr, *mine;
		uint32_t mask;
		struct fi_info *info;

		if (!sin || sin->sin_family != AF_INET || !(i->ifa_flags & IFF_UP) || !wanted(i->ifa_name, i->ifa_flags & IFF_LOOPBACK))
			continue;
		if (hints->src_addr && ((struct sockaddr_in *)hints->src_addr)->sin_addr.s_addr != sin->sin_addr.s_addr)
			continue;
		if (hints->domain_attr && hints->domain_attr->name && strcmp(hints->domain_attr->name, i->ifa_name))
			continue;
		mask = ((struct sockaddr_in *)i->ifa_netmask)->sin_addr.s_addr;
		info = fi_allocinfo();
		info->caps = FI_MSG | FI_SEND | FI_RECV;
		info->mode = FI_MSG_PREFIX;
		info->addr_format = FI_SOCKADDR_IN;
		mine = calloc(1, sizeof *mine);
		mine->sin_family = AF_INET;
		mine->sin_addr = sin->sin_addr;
		if (hints->src_addr)
			mine->sin_port = ((struct sockaddr_in *)hints->src_addr)->sin_port;
		info->src_addr = mine;
		info->src_addrlen = sizeof *mine;
		info->tx_attr->caps = FI_MSG | FI_SEND;
		info->tx_attr->mode = FI_MSG_PREFIX;
		info->tx_attr->iov_limit = 1;
		info->tx_attr->size = hints->tx_attr && hints->tx_attr->size ? hints->tx_attr->size : ring;
		info->rx_attr->caps = FI_MSG | FI_RECV;
		info->rx_attr->mode = FI_MSG_PREFIX;
		info->rx_attr->iov_limit = 1;
		info->rx_attr->size = hints->rx_attr && hints->rx_attr->size ? hints->rx_attr->size : ring;
		info->ep_attr->type = FI_EP_DGRAM;
		info->ep_attr->protocol = FI_PROTO_UDP;
		info->ep_attr->max_msg_size = if_mtu(i->ifa_name) - 28 + PREFIX;
		info->ep_attr->msg_prefix_size = PREFIX;
		info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 1;
		info->domain_attr->name = strdup(i->ifa_name);
		info->domain_attr->threading = FI_THREAD_ENDPOINT;
		info->domain_attr->control_progress = FI_PROGRESS_AUTO;
		info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
		info->domain_attr->mr_mode = FI_MR_BASIC;
		snprintf(name, sizeof name, "%s/%d", inet_ntoa((struct in_addr){ sin->sin_addr.s_addr & mask }),
			 __builtin_popcount(mask));
		info->fabric_attr->name = strdup(name);
		*tail = info;
		tail = &info->next;
	}
	freeifaddrs(list);
	*out = first;
	return first ? 0 : -FI_ENODATA;
}

static struct fi_provider shim = {
	.version = FI_VERSION(1, 0),
	.fi_version = FI_VERSION(1, 17),
	.name = "usnic",
	.getinfo = shim_getinfo,
	.fabric = shim_open_fabric,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	return &shim;
}
