/* Replaces a program's TCP sockets over IPv4 by AF_SMC sockets, as smc_run of smc-tools does, which Debian lacks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

int socket(int domain, int type, int protocol)
{
	static int (*real)(int, int, int);
	if (!real)
		real = dlsym(RTLD_NEXT, "socket");
	int stream = (type & 0xf) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
	return domain == AF_INET && stream ? real(AF_SMC, type, 0) : real(domain, type, protocol);
}
