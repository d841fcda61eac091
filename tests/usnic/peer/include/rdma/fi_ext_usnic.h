/* The part of libfabric's usNIC extensions that the BTL needs.
 * Debian's libfabric-dev lacks this header, so it was written from the BTL's uses of it. */
#ifndef ISTHMUS_FI_EXT_USNIC_H
#define ISTHMUS_FI_EXT_USNIC_H

#include <stddef.h>
#include <stdint.h>
#include <net/if.h>
#include <rdma/fabric.h>

#define FI_EXT_USNIC_INFO_VERSION 1
#define FI_USNIC_FABRIC_OPS_1 "fabric_ops 1"
#define FI_USNIC_AV_OPS_1     "av_ops 1"

struct fi_usnic_info_v1 {
	uint32_t ui_link_speed;          /* Mb/s */
	uint32_t ui_netmask_be;
	char     ui_ifname[IFNAMSIZ];
	uint32_t ui_num_vf;
	uint32_t ui_qp_per_vf;
	uint32_t ui_cq_per_vf;
};

struct fi_usnic_info {
	uint32_t ui_version;
	union {
		struct fi_usnic_info_v1 v1;
	} ui;
};

struct fi_usnic_ops_fabric {
	size_t size;
	int (*getinfo)(uint32_t version, struct fid_fabric *fabric, struct fi_usnic_info *info);
};

struct fi_usnic_ops_av {
	size_t size;
	int (*get_distance)(struct fid_av *av, void *addr, int *metric);
};

#endif
