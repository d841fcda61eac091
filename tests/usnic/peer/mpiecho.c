/*
 * mpiecho ROUNDS SIZE...: rank 0 sends messages of these sizes to every other rank, receives their echoes, and compares.
 * It ends with several outstanding requests to rank 1. There is a barrier before and after. It prints one line for each
 * size, and "done" at the end.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(unsigned char *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++) {
		seed = seed * 1664525u + 1013904223u;
		bytes[i] = seed >> 24;
	}
}

static void compare(const unsigned char *a, const unsigned char *b, size_t length, int rank)
{
	if (memcmp(a, b, length)) {
		printf("%zu bytes differ, of rank %d\n", length, rank);
		fflush(stdout);
		MPI_Abort(MPI_COMM_WORLD, 9);
	}
}

static void echo(unsigned char *out, unsigned char *in, size_t length, int rank, int round)
{
	MPI_Status status;
	int count;

	fill(out, length, round * 31 + rank + length);
	memset(in, 0xa5, length);
	if (round % 2)
		MPI_Send(out, length, MPI_BYTE, rank, 7 + round, MPI_COMM_WORLD);
	else
		MPI_Ssend(out, length, MPI_BYTE, rank, 7 + round, MPI_COMM_WORLD);
	MPI_Recv(in, length, MPI_BYTE, rank, 7 + round, MPI_COMM_WORLD, &status);
	MPI_Get_count(&status, MPI_BYTE, &count);
	if ((size_t)count != length)
		MPI_Abort(MPI_COMM_WORLD, 8);
	compare(out, in, length, rank);
}

/* Several messages at a time. Long ones must not overtake others. */
static void many(unsigned char *out, unsigned char *in, size_t length, int rank)
{
	enum { COUNT = 8 };
	MPI_Request requests[2 * COUNT];
	size_t each = length / COUNT;

	fill(out, length, 99);
	for (int i = 0; i < COUNT; i++) {
		MPI_Irecv(in + i * each, each, MPI_BYTE, rank, 50, MPI_COMM_WORLD, &requests[i]);
		MPI_Isend(out + i * each, each, MPI_BYTE, rank, 50, MPI_COMM_WORLD, &requests[COUNT + i]);
	}
	MPI_Waitall(2 * COUNT, requests, MPI_STATUSES_IGNORE);
	compare(out, in, each * COUNT, rank);
}

int main(int argc, char **argv)
{
	int ranks, rounds = argc > 1 ? atoi(argv[1]) : 1;
	size_t most = 8;

	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 2; i < argc; i++)
		if (strtoul(argv[i], NULL, 0) > most)
			most = strtoul(argv[i], NULL, 0);
	unsigned char *out = malloc(most), *in = malloc(most);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 2; i < argc; i++) {
		size_t length = strtoul(argv[i], NULL, 0);
		double start = MPI_Wtime();
		for (int round = 0; round < rounds; round++)
			for (int rank = 1; rank < ranks; rank++)
				echo(out, in, length, rank, round);
		printf("%zu bytes: %.1f us a round\n", length, (MPI_Wtime() - start) / rounds * 1e6);
		fflush(stdout);
	}
	many(out, in, most < (1 << 22) ? most : 1 << 22, 1);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Finalize();
	printf("done\n");
	return 0;
}
