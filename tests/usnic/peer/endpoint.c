/* Endpoints, which are kernel UDP sockets, and their completion queues. */
#include "provider.h"

/* ---- completion queue ---- */

static void cq_push(struct shim_cq *cq, void *ctx)
{
	if (cq->tail - cq->head >= cq->size) {
		fprintf(stderr, "usnic-shim: completion queue overrun\n");
		abort();
	}
	cq->done[cq->tail++ % cq->size] = ctx;
}

/* Sends queued datagrams. Returns when the queue is empty or the socket is full. */
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

/* Whether to drop a received datagram. */
static int is_lost(struct shim_ep *ep)
{
	ep->random ^= ep->random << 13;
	ep->random ^= ep->random >> 7;
	ep->random ^= ep->random << 17;
	return (long)(ep->random % 1000) < ep->loss;
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
		if (ep->loss && is_lost(ep)) {
			ep->rx[ep->rtail++ % ep->rsize] = *r;
			continue;
		}
		if (m[i].msg_hdr.msg_flags & MSG_TRUNC) {
			ep->cq->err_ctx = r->ctx;       /* one error at a time suffices */
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

int cq_open(struct fid_domain *d, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
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

int ep_open(struct fid_domain *d, struct fi_info *info, struct fid_ep **out, void *context)
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
	ep->loss = env_num("USNIC_SHIM_LOSS", 0);
	ep->random = 0x9e3779b97f4a7c15 * (2 * (uint64_t)env_num("USNIC_SHIM_SEED", 0) + 1);
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

