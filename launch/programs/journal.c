/*
 * journal write DEVICE FIRST BLOCKS FILE NUMBER: writes numbers from NUMBER on to blocks of 4 KiB of a device, with
 * O_DIRECT. FILE gets a journal of each write before it is issued, and of each write that the device has acknowledged as
 * durable, by a flush or by a write with RWF_DSYNC.
 *
 *     w BLOCK NUMBER    this number is about to be written to all of this block
 *     d BLOCK NUMBER    this number is durable in this block
 *
 * It ends when a request fails.
 *
 * journal check DEVICE FILE: reads the blocks of the journal. Each sector must have the number that is durable in its
 * block, or one that was written later.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK = 4096, SECTOR = 512, MOST = 4096 };

static uint32_t *data;

static int write_until_error(int device, long first, long blocks, FILE *journal, uint32_t number)
{
	static uint32_t completed[MOST];

	setlinebuf(journal);
	srandom(number + first + getpid());
	for (;;) {
		long block = random() % blocks;
		int through = random() % 4 == 0;
		struct iovec part = { data, BLOCK };

		number++;
		for (int n = 0; n < BLOCK / 4; n++)
			data[n] = number;
		fprintf(journal, "w %ld %u\n", first + block, number);
		if (pwritev2(device, &part, 1, (first + block) * BLOCK, through ? RWF_DSYNC : 0) != BLOCK)
			return 1;
		completed[block] = through ? 0 : number;
		if (through)
			fprintf(journal, "d %ld %u\n", first + block, number);
		if (random() % 6)
			continue;
		if (fdatasync(device))
			return 1;
		for (long n = 0; n < blocks; n++)
			if (completed[n])
				fprintf(journal, "d %ld %u\n", first + n, completed[n]);
		memset(completed, 0, sizeof completed);
	}
}

struct write {
	long block;
	uint32_t number;
};

static int check(int device, FILE *journal)
{
	static uint32_t durable[MOST];
	static char known[MOST];
	struct write *writes = NULL;
	size_t count = 0, room = 0, blocks = 0, are_durable = 0;
	char what;
	long block;
	uint32_t number;

	while (fscanf(journal, " %c %ld %u", &what, &block, &number) == 3) {
		if (block < 0 || block >= MOST)
			return 2;
		if (what == 'd') {
			durable[block] = number;
			continue;
		}
		if (count == room)
			writes = realloc(writes, (room = 2 * room + 1024) * sizeof *writes);
		if (!writes)
			return 2;
		writes[count++] = (struct write){ block, number };
		known[block] = 1;
	}
	for (block = 0; block < MOST; block++) {
		if (!known[block])
			continue;
		blocks++;
		are_durable += durable[block] != 0;
		if (pread(device, data, BLOCK, block * BLOCK) != BLOCK)
			return 2;
		for (int sector = 0; sector < BLOCK / SECTOR; sector++) {
			uint32_t *found = data + sector * SECTOR / 4;
			int good = *found == durable[block];

			for (size_t n = 0; n < count && !good; n++)
				good = writes[n].block == block && writes[n].number == *found && *found > durable[block];
			for (int n = 1; n < SECTOR / 4; n++)
				good &= found[n] == *found;
			if (!good) {
				printf("block %ld, sector %d has %u, and %u was durable\n", block, sector, *found,
				       durable[block]);
				return 1;
			}
		}
	}
	printf("%zu writes to %zu blocks, of which %zu are durable\n", count, blocks, are_durable);
	return 0;
}

int main(int argc, char **argv)
{
	int writes = argc == 7 && !strcmp(argv[1], "write");

	if (posix_memalign((void **)&data, BLOCK, BLOCK) || (!writes && (argc != 4 || strcmp(argv[1], "check"))))
		return 2;
	int device = open(argv[2], O_DIRECT | (writes ? O_RDWR : O_RDONLY));
	FILE *journal = fopen(argv[writes ? 5 : 3], writes ? "a" : "r");

	if (device < 0 || !journal)
		return 2;
	if (!writes)
		return check(device, journal);
	long blocks = atol(argv[4]);

	if (blocks < 1 || blocks > MOST)
		return 2;
	return write_until_error(device, atol(argv[3]), blocks, journal, atol(argv[6]));
}
