/* Uses AF_SMC in a Linux guest and lists its sockets, because Debian lacks smc-tools.
 *
 *   smc eid NAME                        makes NAME an enterprise ID of this host
 *   smc sockets                         lists SMC sockets: state, mode, local and remote port, reason
 *   smc serve PORT [tcp]                echoes
 *   smc flood ADDRESS PORT              sends for ever and reads nothing
 *   smc echo ADDRESS PORT BYTES ROUNDS CONNECTIONS [word...]
 *                                       sends and reads back BYTES in each round; words:
 *       tcp     plain TCP           early   close without a half-close      hold[=N] wait N (2) s before the end
 *       linger0 close with SO_LINGER 0                                      urgent  end with an urgent byte among others
 *       time    print the milliseconds of the slowest round   seconds=N start no round after N seconds
 *       together  connect one after the other, and begin the rounds when all are connected
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/smc.h>
#include <linux/smc_diag.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE 65536

static void die(const char *what)
{
	fprintf(stderr, "smc: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* --- netlink --- */

static union {
	struct nlmsghdr head;
	char bytes[65536];
} message;

static void begin(int type, int flags, int body)
{
	memset(&message, 0, sizeof message);
	message.head.nlmsg_len = NLMSG_LENGTH(body);
	message.head.nlmsg_type = type;
	message.head.nlmsg_flags = NLM_F_REQUEST | flags;
}

static void attribute(int type, const void *data, int length)
{
	struct nlattr *at = (void *)(message.bytes + NLMSG_ALIGN(message.head.nlmsg_len));
	at->nla_type = type;
	at->nla_len = NLA_HDRLEN + length;
	memcpy((char *)at + NLA_HDRLEN, data, length);
	message.head.nlmsg_len = NLMSG_ALIGN(message.head.nlmsg_len) + NLA_ALIGN(at->nla_len);
}

/* Sends the message and passes each reply to `show`. Returns the errno of the kernel's reply. */
static int ask(int fd, void (*show)(struct nlmsghdr *))
{
	if (send(fd, &message, message.head.nlmsg_len, 0) < 0)
		die("netlink");
	int want_ack = message.head.nlmsg_flags & (NLM_F_ACK | NLM_F_DUMP);
	for (;;) {
		int length = recv(fd, &message, sizeof message, 0);
		if (length < 0)
			die("netlink");
		struct nlmsghdr *one = &message.head;
		for (; NLMSG_OK(one, length); one = NLMSG_NEXT(one, length)) {
			if (one->nlmsg_type == NLMSG_ERROR)
				return -((struct nlmsgerr *)NLMSG_DATA(one))->error;
			if (one->nlmsg_type == NLMSG_DONE)
				return 0;
			if (show)
				show(one);
			if (!want_ack)
				return 0;
		}
	}
}

static int family;

static void find_family(struct nlmsghdr *answer)
{
	int left = answer->nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN);
	char *at = (char *)NLMSG_DATA(answer) + GENL_HDRLEN;
	while (left > NLA_HDRLEN) {
		struct nlattr *one = (void *)at;
		if (one->nla_type == CTRL_ATTR_FAMILY_ID)
			memcpy(&family, at + NLA_HDRLEN, 2);
		at += NLA_ALIGN(one->nla_len);
		left -= NLA_ALIGN(one->nla_len);
	}
}

static void generic(int type, int flags, int command)
{
	begin(type, flags, GENL_HDRLEN);
	struct genlmsghdr *head = NLMSG_DATA(&message.head);
	head->cmd = command;
	head->version = 1;
}

static int add_eid(const char *name)
{
	char eid[33];
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC);
	generic(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY);
	attribute(CTRL_ATTR_FAMILY_NAME, SMC_GENL_FAMILY_NAME, sizeof SMC_GENL_FAMILY_NAME);
	errno = ask(fd, find_family);
	if (!family)
		die("the module smc is not loaded");
	/* Exactly 32 characters and a NUL. */
	snprintf(eid, sizeof eid, "%-32s", name);
	generic(family, NLM_F_ACK, SMC_NETLINK_ADD_UEID);
	attribute(SMC_NLA_EID_TABLE_ENTRY, eid, sizeof eid);
	errno = ask(fd, NULL);
	if (errno)
		die("adding the EID");
	return 0;
}

static const char *state_name(int state)
{
	static const char *late[] = {"PEERCLOSEWAIT1", "PEERCLOSEWAIT2", "APPCLOSEWAIT1", "APPCLOSEWAIT2",
				     "APPFINCLOSEWAIT", "PEERFINCLOSEWAIT", "PEERABORTWAIT", "PROCESSABORT"};
	switch (state) {
	case 1: return "ACTIVE";
	case 2: return "INIT";
	case 7: return "CLOSED";
	case 10: return "LISTEN";
	}
	return state >= 20 && state < 28 ? late[state - 20] : "?";
}

static void show_socket(struct nlmsghdr *answer)
{
	struct smc_diag_msg *one = NLMSG_DATA(answer);
	const char *mode = one->diag_mode == SMC_DIAG_MODE_SMCR ? "SMCR" :
			   one->diag_mode == SMC_DIAG_MODE_SMCD ? "SMCD" : "TCP";
	printf("%s %s %u %u", state_name(one->diag_state), mode, ntohs(one->id.idiag_sport),
	       ntohs(one->id.idiag_dport));
	int left = answer->nlmsg_len - NLMSG_LENGTH(sizeof *one);
	char *at = (char *)(one + 1);
	while (left > NLA_HDRLEN) {
		struct nlattr *part = (void *)at;
		if (part->nla_type == SMC_DIAG_FALLBACK) {
			struct smc_diag_fallback *why = (void *)(at + NLA_HDRLEN);
			printf(" %08x", why->reason);
		}
		at += NLA_ALIGN(part->nla_len);
		left -= NLA_ALIGN(part->nla_len);
	}
	printf("\n");
}

static int list_sockets(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);
	begin(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, sizeof(struct smc_diag_req));
	struct smc_diag_req *request = NLMSG_DATA(&message.head);
	request->diag_family = AF_SMC;
	request->diag_ext = 1 << (SMC_DIAG_FALLBACK - 1);
	errno = ask(fd, show_socket);
	if (errno)
		die("listing sockets");
	return 0;
}

/* --- echo --- */

static struct sockaddr_in target;
static size_t bytes;
static int rounds, tcp, early, hold, linger0, urgent, timed, together;
static int failed;
static long slowest, seconds;
static pthread_mutex_t connecting = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all_connected;

static long milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int new_socket(void)
{
	int fd = socket(tcp ? AF_INET : AF_SMC, SOCK_STREAM, 0);
	if (fd < 0)
		die("socket");
	return fd;
}

static char pattern(size_t at, long seed)
{
	return (unsigned)(at * 2654435761u + seed * 40503u) >> 24;
}

static void *fail(long number, const char *what)
{
	fprintf(stderr, "smc: connection %ld: %s: %s\n", number, what, strerror(errno));
	failed = 1;
	return NULL;
}

/* One round: sends and reads back at the same time, as far as the socket allows. */
static const char *one_round(int fd, long number, size_t from)
{
	static __thread char out[PIECE], in[PIECE];
	size_t sent = from, got = from, end = from + bytes;
	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (got < end) {
		struct pollfd ready = {.fd = fd, .events = POLLIN | (sent < end ? POLLOUT : 0)};
		errno = ETIMEDOUT;
		if (poll(&ready, 1, 30000) <= 0)
			return "poll";
		if (sent < end && ready.revents & POLLOUT) {
			size_t count = end - sent < PIECE ? end - sent : PIECE;
			for (size_t n = 0; n < count; n++)
				out[n] = pattern(sent + n, number);
			ssize_t done = send(fd, out, count, MSG_NOSIGNAL);
			if (done < 0 && errno != EAGAIN)
				return "send";
			sent += done > 0 ? done : 0;
		}
		if (ready.revents & (POLLIN | POLLHUP | POLLERR)) {
			ssize_t done = recv(fd, in, PIECE, 0);
			if (done == 0)
				return "early end";
			if (done < 0 && errno != EAGAIN)
				return "recv";
			for (ssize_t n = 0; n < done; n++)
				if (in[n] != pattern(got + n, number))
					return "wrong data";
			got += done > 0 ? done : 0;
		}
	}
	fcntl(fd, F_SETFL, 0);
	return NULL;
}

/* Whether an urgent byte between others comes back in its place. */
static int urgent_in_its_place(int fd)
{
	char back[11];
	return send(fd, "before", 6, 0) == 6 && send(fd, "U", 1, MSG_OOB) == 1 && send(fd, "then", 4, 0) == 4 &&
	       recv(fd, back, sizeof back, MSG_WAITALL) == sizeof back && !memcmp(back, "beforeUthen", sizeof back);
}

static void *client(void *argument)
{
	long number = (long)argument;
	char rest[64];
	int fd = new_socket();
	if (together)
		pthread_mutex_lock(&connecting);
	if (connect(fd, (void *)&target, sizeof target)) {
		/* The other threads would wait at the barrier forever. */
		if (together)
			die("connect");
		return fail(number, "connect");
	}
	if (together) {
		pthread_mutex_unlock(&connecting);
		pthread_barrier_wait(&all_connected);
	}
	long began = milliseconds(), last = began;
	for (int round = 0; round < rounds && (!seconds || last < began + 1000 * seconds); round++) {
		const char *what = one_round(fd, number, round * bytes);
		if (what)
			return fail(number, what);
		long now = milliseconds();
		slowest = now - last > slowest ? now - last : slowest;
		last = now;
	}
	if (hold)
		sleep(hold);
	if (urgent && !urgent_in_its_place(fd))
		return fail(number, "urgent");
	if (linger0) {
		struct linger none = {1, 0};
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
	} else if (!early) {
		shutdown(fd, SHUT_WR);
		ssize_t got = recv(fd, rest, sizeof rest, 0);
		if (got != 0)
			return fail(number, "no end after a half-close");
	}
	close(fd);
	return NULL;
}

static void *serve_one(void *argument)
{
	int fd = (long)argument;
	char *piece = malloc(PIECE);
	ssize_t got;
	while ((got = recv(fd, piece, PIECE, 0)) > 0)
		for (ssize_t sent = 0, done; sent < got; sent += done)
			if ((done = send(fd, piece + sent, got - sent, MSG_NOSIGNAL)) < 0)
				goto end;
end:
	close(fd);
	free(piece);
	return NULL;
}

static void serve(int port)
{
	int fd = new_socket(), on = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
	if (bind(fd, (void *)&any, sizeof any) || listen(fd, 128))
		die("listen");
	for (;;) {
		pthread_t thread;
		int one = accept(fd, NULL, NULL);
		if (one < 0)
			die("accept");
		pthread_create(&thread, NULL, serve_one, (void *)(long)one);
		pthread_detach(thread);
	}
}

static void set_target(char **words)
{
	target.sin_family = AF_INET;
	target.sin_port = htons(atoi(words[3]));
	inet_pton(AF_INET, words[2], &target.sin_addr);
}

static void flood(void)
{
	static char piece[PIECE];
	int fd = new_socket();
	if (connect(fd, (void *)&target, sizeof target))
		die("connect");
	while (send(fd, piece, sizeof piece, MSG_NOSIGNAL) > 0)
		;
	die("send");
}

int main(int count, char **words)
{
	pthread_t threads[512];
	signal(SIGPIPE, SIG_IGN);
	if (count == 3 && !strcmp(words[1], "eid"))
		return add_eid(words[2]);
	if (count == 2 && !strcmp(words[1], "sockets"))
		return list_sockets();
	if (count >= 3 && !strcmp(words[1], "serve")) {
		tcp = count > 3;
		serve(atoi(words[2]));
	}
	if (count == 4 && !strcmp(words[1], "flood")) {
		set_target(words);
		flood();
	}
	if (count < 7 || strcmp(words[1], "echo")) {
		fprintf(stderr, "smc: eid NAME | sockets | serve PORT | echo ADDRESS PORT BYTES ROUNDS CONNECTIONS [word...]\n");
		return 2;
	}
	set_target(words);
	bytes = strtoul(words[4], NULL, 0);
	rounds = atoi(words[5]);
	long connections = atoi(words[6]);
	for (int n = 7; n < count; n++) {
		tcp |= !strcmp(words[n], "tcp");
		early |= !strcmp(words[n], "early");
		if (!strncmp(words[n], "hold", 4))
			hold = words[n][4] ? atoi(words[n] + 5) : 2;
		linger0 |= !strcmp(words[n], "linger0");
		urgent |= !strcmp(words[n], "urgent");
		timed |= !strcmp(words[n], "time");
		together |= !strcmp(words[n], "together");
		if (!strncmp(words[n], "seconds=", 8))
			seconds = atoi(words[n] + 8);
	}
	if (connections > 512)
		return 2;
	if (together)
		pthread_barrier_init(&all_connected, NULL, connections);
	for (long n = 0; n < connections; n++)
		pthread_create(&threads[n], NULL, client, (void *)n);
	for (long n = 0; n < connections; n++)
		pthread_join(threads[n], NULL);
	if (!failed && timed)
		printf("slowest round %ld ms\n", slowest);
	if (!failed)
		printf("fine\n");
	return failed;
}
