/* Messages of more than 2 GiB between two ranks, which the service processes move if the communicator's info asks. It knows only MPI,
 * and compares every word. Each rank prints "rank R has N messages" at the end: how many sends and receives they can serve. The first
 * error is printed on standard error and aborts the job.
 */
#include "mpi_side.h"
#include <string.h>

/* Numbers of half a message: two are 2 GiB and 4 KiB. */
enum { HALF = (1 << 27) + 256, TIMES = 2, ROOM = 2 * HALF + 512 };

/* Number `at` of a message. */
static uint64_t word(size_t at, int time)
{
	return (uint64_t)at * 0x9e3779b97f4a7c15u + (uint64_t)time;
}

int main(int count, char **words)
{
	int provided, time, at, swapped_places[2] = { 1, 0 }, ones[2] = { 1, 1 };
	MPI_Datatype half, bytes, whole, swapped;
	uint64_t *data = NULL;
	MPI_Status status;
	MPI_Info info;
	MPI_Comm comm;

	MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	running = "large";
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Info_create(&info);
	MPI_Info_set(info, "xgvmi_messages", "65536");
	MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
	MPI_Type_contiguous(HALF, MPI_DOUBLE, &half);
	MPI_Type_contiguous(8 * HALF, MPI_BYTE, &bytes);
#if MPI_VERSION >= 4
	MPI_Type_contiguous_c(16 * (MPI_Count)HALF, MPI_BYTE, &whole);
#else
	MPI_Type_contiguous(2, bytes, &whole);
#endif
	MPI_Type_indexed(2, ones, swapped_places, half, &swapped);
	MPI_Type_commit(&half);
	MPI_Type_commit(&bytes);
	MPI_Type_commit(&whole);
	MPI_Type_commit(&swapped);
	if (rank == 0 || rank == ranks - 1)
		data = allocate((size_t)ROOM * sizeof(*data));
	for (time = 0; time < TIMES; time++) {
		size_t place;

		if (rank == 0) {
			for (place = 0; place < 2 * (size_t)HALF; place++)
				data[place] = word(place, time);
			/* One element has all, the second time in another order than it lies. */
			MPI_Send(data, 1, time ? swapped : whole, ranks - 1, time, comm);
		} else if (rank == ranks - 1) {
			memset(data, 0xee, (size_t)ROOM * sizeof(*data));
			MPI_Recv(data, time ? ROOM : 2, time ? MPI_DOUBLE : bytes, 0, time, comm, &status);
			MPI_Get_count(&status, MPI_DOUBLE, &at);
			if (at != 2 * HALF)
				fail("%d numbers, not %d", at, 2 * HALF);
			for (place = 0; place < 2 * (size_t)HALF; place++) {
				size_t from = time ? (place + HALF) % (2 * (size_t)HALF) : place;

				if (data[place] != word(from, time))
					fail("number %zu of message %d is wrong", place, time);
			}
			for (; place < ROOM; place++)
				if (data[place] != 0xeeeeeeeeeeeeeeeeu)
					fail("number %zu behind message %d has changed", place, time);
		}
	}
	free(data);
	MPI_Type_free(&half);
	MPI_Type_free(&bytes);
	MPI_Type_free(&whole);
	MPI_Type_free(&swapped);
	for (at = 0; at < ranks; at++) {
		if (at == rank) {
			printf("rank %d has %d messages\n", rank, rank == 0 || rank == ranks - 1 ? TIMES : 0);
			fflush(stdout);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Comm_free(&comm);
	MPI_Info_free(&info);
	MPI_Finalize();
	return 0;
}
