/* A peer of the appliance in a Linux guest, over /dev/rio_cm. The ioctls have the layout of the kernel's
 * include/uapi/linux/rio_cm_cdev.h, which Debian's headers lack.
 *
 *   rio_cm peers                        lists the ids of end points
 *   rio_cm echo ID CHANNEL ROUNDS       messages of many sizes to an echo service, and ROUNDS of the longest; checks every byte
 *   rio_cm serve CHANNEL CONNECTIONS    echoes messages of that many connections
 *   rio_cm ping ID CHANNEL BYTES ROUNDS  messages of that many bytes, header included, one after the other
 *   rio_cm many ID CHANNEL COUNT ROUNDS  COUNT channels at a time to an echo service, a message on each in each round
 *   rio_cm crowd CHANNEL                echoes messages of any number of clients, until it is killed
 *   rio_cm hold ID CHANNEL              connects, and waits until the connection ends
 *   rio_cm knock ID CHANNEL             tries to connect to a channel without a listener
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct channel { uint16_t id, remote_channel, remote_destid; uint8_t mport; };
struct message { uint16_t channel, size; uint32_t timeout_ms; uint64_t bytes; };
struct acceptance { uint16_t channel, pad; uint32_t timeout_ms; };

#define EP_GET_LIST_SIZE _IOWR('c', 1, uint32_t)
#define EP_GET_LIST      _IOWR('c', 2, uint32_t)
#define CHAN_CREATE      _IOWR('c', 3, uint16_t)
#define CHAN_CLOSE       _IOW('c', 4, uint16_t)
#define CHAN_BIND        _IOW('c', 5, struct channel)
#define CHAN_LISTEN      _IOW('c', 6, uint16_t)
#define CHAN_ACCEPT      _IOWR('c', 7, struct acceptance)
#define CHAN_CONNECT     _IOW('c', 8, struct channel)
#define CHAN_SEND        _IOW('c', 9, struct message)
#define CHAN_RECEIVE     _IOWR('c', 10, struct message)

enum { HEADER = 20, MOST = 4096 };

static int device;
static unsigned char out[MOST], in[MOST];

static void die(const char *what)
{
	fprintf(stderr, "rio_cm: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint16_t create(uint16_t number)
{
	if (ioctl(device, CHAN_CREATE, &number))
		die("create");
	return number;
}

static void send_message(uint16_t channel, int size)
{
	struct message message = { channel, size, 0, (uintptr_t)out };

	while (ioctl(device, CHAN_SEND, &message)) {
		if (errno != EBUSY)
			die("send");
		usleep(200);
	}
}

/* Receives a message. Returns its length with the header, which states the length; 0 at the end of the connection. */
static int receive_message(uint16_t channel, uint32_t timeout_ms)
{
	struct message message = { channel, MOST, timeout_ms, (uintptr_t)in };

	if (ioctl(device, CHAN_RECEIVE, &message)) {
		if (errno == ECONNRESET || errno == ENODEV)
			return 0;
		die("receive");
	}
	return in[16] << 8 | in[17];
}

static void end(uint16_t channel)
{
	if (ioctl(device, CHAN_CLOSE, &channel))
		die("close");
}

static void round_trip(uint16_t channel, int seed, int size)
{
	for (int i = HEADER; i < size; i++)
		out[i] = seed * 31 + i * 7 + (i >> 8);
	send_message(channel, size);
	int received = receive_message(channel, 10000);
	if (received != size || memcmp(in + HEADER, out + HEADER, size - HEADER)) {
		fprintf(stderr, "rio_cm: sent %d bytes, received %d, or the data differs\n", size, received);
		exit(1);
	}
}

static void echo(int id, int channel, int rounds)
{
	static const int sizes[] = { 20, 21, 24, 25, 27, 28, 31, 32, 64, 256, 1000, 4088, 4089, 4095, 4096 };
	int count = sizeof sizes / sizeof *sizes;
	struct channel to = { create(0), channel, id, 0 };

	if (ioctl(device, CHAN_CONNECT, &to))
		die("connect");
	for (int i = 0; i < count; i++)
		round_trip(to.id, i, sizes[i]);
	for (int i = 0; i < rounds; i++)
		round_trip(to.id, i, MOST);
	end(to.id);
	printf("%d messages came back as they were\n", count + rounds);
}

static void ping(int id, int channel, int size, int rounds)
{
	struct channel to = { create(0), channel, id, 0 };

	if (ioctl(device, CHAN_CONNECT, &to))
		die("connect");
	for (int i = 0; i < rounds; i++)
		round_trip(to.id, i, size);
	end(to.id);
	printf("%d messages came back as they were\n", rounds);
}

static void serve(int number, int connections)
{
	struct channel here = { create(number), 0, 0, 0 };
	uint16_t listener = here.id;

	if (ioctl(device, CHAN_BIND, &here) || ioctl(device, CHAN_LISTEN, &listener))
		die("listen");
	while (connections--) {
		struct acceptance accepted = { listener, 0, 60000 };
		int size;

		if (ioctl(device, CHAN_ACCEPT, &accepted))
			die("accept");
		while ((size = receive_message(accepted.channel, 60000))) {
			memcpy(out, in, MOST);
			send_message(accepted.channel, size);
		}
	}
}

static void many(int id, int number, int count, int rounds)
{
	uint16_t *channels = calloc(count, sizeof *channels);
	static unsigned char wanted[MOST];

	for (int n = 0; n < count; n++) {
		struct channel to = { create(0), number, id, 0 };
		if (ioctl(device, CHAN_CONNECT, &to))
			die("connect");
		channels[n] = to.id;
	}
	for (int round = 0; round < rounds; round++) {
		for (int answer = 0; answer < 2; answer++) {
			for (int n = 0; n < count; n++) {
				int size = HEADER + 1 + (n * 397 + round * 1009) % (MOST - HEADER);
				unsigned char *to = answer ? wanted : out;
				for (int i = HEADER; i < size; i++)
					to[i] = n * 31 + round * 5 + i * 7 + (i >> 8);
				if (!answer) {
					send_message(channels[n], size);
					continue;
				}
				int received = receive_message(channels[n], 30000);
				if (received != size || memcmp(in + HEADER, wanted + HEADER, size - HEADER)) {
					fprintf(stderr, "rio_cm: sent %d bytes on channel %d, received %d, or the data differs\n", size, n, received);
					exit(1);
				}
			}
		}
	}
	for (int n = 0; n < count; n++)
		end(channels[n]);
	printf("%d messages came back as they were\n", count * rounds);
}

static void crowd(int number)
{
	struct channel here = { create(number), 0, 0, 0 };
	uint16_t listener = here.id;

	signal(SIGCHLD, SIG_IGN);
	if (ioctl(device, CHAN_BIND, &here) || ioctl(device, CHAN_LISTEN, &listener))
		die("listen");
	printf("listens\n");
	fflush(stdout);
	for (;;) {
		struct acceptance accepted = { listener, 0, 60000 };
		int size;

		if (ioctl(device, CHAN_ACCEPT, &accepted)) {
			if (errno == ETIME)
				continue;
			die("accept");
		}
		if (fork())
			continue;
		while ((size = receive_message(accepted.channel, 600000))) {
			memcpy(out, in, MOST);
			send_message(accepted.channel, size);
		}
		_exit(0);
	}
}

static void hold(int id, int number)
{
	struct channel to = { create(0), number, id, 0 };

	if (ioctl(device, CHAN_CONNECT, &to))
		die("connect");
	printf("connected\n");
	fflush(stdout);
	receive_message(to.id, 600000);
	printf("ended\n");
}

static void peers(void)
{
	uint32_t count = 0;

	if (ioctl(device, EP_GET_LIST_SIZE, &count))
		die("list");
	/* Exactly as many as there are: with more room the kernel crashes. */
	uint32_t *list = calloc(count + 2, sizeof *list);
	list[0] = count;
	if (ioctl(device, EP_GET_LIST, list))
		die("list");
	for (uint32_t i = 0; i < list[0]; i++)
		printf("%u\n", list[2 + i]);
}

static void knock(int id, int channel)
{
	struct channel to = { create(0), channel, id, 0 };

	if (!ioctl(device, CHAN_CONNECT, &to)) {
		printf("connected\n");
		return;
	}
	printf("%s\n", strerror(errno));
}

int main(int count, char **words)
{
	int numbers[4] = { 0 };

	for (int i = 0; i < 4 && i + 2 < count; i++)
		numbers[i] = atoi(words[i + 2]);
	if (count < 2 || (device = open("/dev/rio_cm", O_RDWR)) < 0)
		die("/dev/rio_cm");
	if (!strcmp(words[1], "peers"))
		peers();
	else if (!strcmp(words[1], "echo"))
		echo(numbers[0], numbers[1], numbers[2]);
	else if (!strcmp(words[1], "serve"))
		serve(numbers[0], numbers[1]);
	else if (!strcmp(words[1], "ping"))
		ping(numbers[0], numbers[1], numbers[2], numbers[3]);
	else if (!strcmp(words[1], "many"))
		many(numbers[0], numbers[1], numbers[2], numbers[3]);
	else if (!strcmp(words[1], "crowd"))
		crowd(numbers[0]);
	else if (!strcmp(words[1], "hold"))
		hold(numbers[0], numbers[1]);
	else if (!strcmp(words[1], "knock"))
		knock(numbers[0], numbers[1]);
	else
		return 2;
	return 0;
}
