/* Declarations that the files of the provider share. */
#ifndef ISTHMUS_PROVIDER_H
#define ISTHMUS_PROVIDER_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
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

#define PREFIX 64           /* bytes before the payload, in memory only */
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
                     struct shim_rx *rx; unsigned rsize, rhead, rtail;
                     long loss; uint64_t random; };

long env_num(const char *name, long dflt);
int cq_open(struct fid_domain *d, struct fi_cq_attr *attr, struct fid_cq **out, void *context);
int ep_open(struct fid_domain *d, struct fi_info *info, struct fid_ep **out, void *context);
int eq_open(struct fid_fabric *fab, struct fi_eq_attr *attr, struct fid_eq **out, void *context);
int av_open(struct fid_domain *d, struct fi_av_attr *attr, struct fid_av **out, void *context);
int free_close(struct fid *f);

#endif
