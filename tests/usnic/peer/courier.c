/*
 * courier SOCKET: takes the place of one rank under mpirun, for a program without MPI and PMIx that listens at this Unix
 * socket. It exchanges addresses between PMIx and the program, and takes part in the fences of the other ranks.
 * Lines to the program:    name JOB RANK           the program's own name
 *                          peer HEX JOB RANK       one for each other rank
 *                          go                      MPI_Init of the other ranks is about to return
 *                          quit                    the other ranks have entered MPI_Finalize
 * Lines from it:           modex HEX               its first line
 *                          ready                   after the last peer, when it has added all peers
 */
#include <ctype.h>
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Framework, component and version of the BTL: its key for the addresses of other ranks. */
#define KEY "btl.usnic.4.1"

static pmix_proc_t me;

static void check(int wrong, const char *what)
{
	if (wrong) {
		fprintf(stderr, "courier: %s\n", what);
		exit(2);
	}
}

static void fence(bool collect)
{
	pmix_info_t info;
	pmix_proc_t all;

	PMIX_PROC_CONSTRUCT(&all);
	PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
	PMIX_INFO_CONSTRUCT(&info);
	PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
	check(PMIx_Fence(&all, 1, &info, 1) != PMIX_SUCCESS, "PMIx_Fence failed");
	PMIX_INFO_DESTRUCT(&info);
}

static void publish(const char *digits)
{
	uint8_t modex[1024];
	unsigned byte;
	size_t n = 0;
	pmix_value_t value;

	for (; n < sizeof modex && isxdigit((unsigned char)*digits) && sscanf(digits, "%2x", &byte) == 1; digits += 2)
		modex[n++] = byte;
	PMIX_VALUE_CONSTRUCT(&value);
	value.type = PMIX_BYTE_OBJECT;
	value.data.bo.bytes = (char *)modex;
	value.data.bo.size = n;
	check(PMIx_Put(PMIX_GLOBAL, KEY, &value) != PMIX_SUCCESS, "PMIx_Put of the modex failed");
	check(PMIx_Commit() != PMIX_SUCCESS, "PMIx_Commit of the modex failed");
}

static void send_peers(FILE *program)
{
	unsigned size, rank;
	pmix_proc_t who;
	pmix_value_t *got;
	size_t i;

	PMIX_LOAD_PROCID(&who, me.nspace, PMIX_RANK_WILDCARD);
	check(PMIx_Get(&who, PMIX_JOB_SIZE, NULL, 0, &got) != PMIX_SUCCESS, "PMIx has no job size");
	size = got->data.uint32;
	fprintf(program, "name %s %u\n", me.nspace, me.rank);
	for (rank = 0; rank < size; rank++) {
		PMIX_LOAD_PROCID(&who, me.nspace, rank);
		if (rank == me.rank || PMIx_Get(&who, KEY, NULL, 0, &got) != PMIX_SUCCESS)
			continue;
		fprintf(program, "peer ");
		for (i = 0; i < got->data.bo.size; i++)
			fprintf(program, "%02x", (uint8_t)got->data.bo.bytes[i]);
		fprintf(program, " %s %u\n", me.nspace, rank);
	}
	fprintf(program, "go\n");
	fflush(program);
}

int main(int argc, char **argv)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	char line[4096];
	FILE *from, *to;

	check(argc < 2 || strlen(argv[1]) >= sizeof at.sun_path, "the argument must be a socket");
	strcpy(at.sun_path, argv[1]);
	check(PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS, "PMIx_Init failed");
	check(connect(s, (struct sockaddr *)&at, sizeof at) < 0, "connecting to the socket failed");
	from = fdopen(s, "r");
	to = fdopen(dup(s), "w");
	check(!fgets(line, sizeof line, from) || strncmp(line, "modex ", 6), "the program sent no modex");
	publish(line + 6);
	fence(true);                    /* the exchange of addresses */
	send_peers(to);
	check(!fgets(line, sizeof line, from) || strncmp(line, "ready", 5), "the program has ended");
	fence(false);                   /* the end of MPI_Init */
	fence(false);                   /* MPI_Finalize */
	fprintf(to, "quit\n");
	fclose(to);
	PMIx_Finalize(NULL, 0);
	return 0;
}
