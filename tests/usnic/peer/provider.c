/*
 * A libfabric provider with the name "usnic" that needs no Cisco VIC:
 * each FI_EP_DGRAM endpoint is an ordinary kernel UDP socket, each interface is a fabric.
 * It implements only the features that Open MPI's btl/usnic requests: FI_MSG with a 64-byte
 * message prefix, context CQs, an event-driven FI_AV_MAP, the two "ops" tables.
 *
 * Environment:
 *   USNIC_SHIM_IF     comma list of interfaces (default: every IPv4 interface that is up, except lo;
 *                     with lo also set USNIC_SHIM_MTU, because lo's MTU is too large for the modex)
 *   USNIC_SHIM_SPEED  link speed in Mb/s for the modex          (10000)
 *   USNIC_SHIM_RING   entries of the send and receive rings      (4095)
 *   USNIC_SHIM_TTL    IPv4 time to live                          (8, as in the VIC library)
 *   USNIC_SHIM_MTU    overrides the interface MTU
 *   USNIC_SHIM_LOSS   thousandths of received datagrams that are dropped (0)
 *   USNIC_SHIM_SEED   seed that selects them
 */
#include "provider.h"

long env_num(const char *name, long dflt)
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
