/* Three-dimensional Fourier transforms of waves on MPI_COMM_WORLD: by FFTW's own MPI transforms, and by pencils, whose
 * transpositions are MPI_Alltoallv or two MPI_Ialltoallv at a time on rows and columns of a grid of ranks. Compares every
 * element with the waves' known spectrum, and after the way back with the waves. It knows only MPI and FFTW.
 *
 *   mpi_fft fftw|pencils ROUNDS
 *
 * Each round has fresh buffers. Rank 0 prints a line of JSON for each grid: microseconds of a transform there and back, and
 * the bytes that were compared and are right.
 */
#include <complex.h>
#include <fftw3-mpi.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAVES = 3, HALVES = 2 };

typedef double complex element;

/* Elements in each direction, and ranks in rows and columns. Some ranks have nothing of the last ones. */
struct grid {
	int size[3], rows, columns;
};

static const struct grid GRIDS[] = {
	{ { 64, 60, 50 }, 2, 2 },
	{ { 33, 17, 29 }, 4, 1 },
	{ { 21, 35, 3 }, 1, 4 },
	{ { 5, 7, 2 }, 2, 2 },
};

static const char *const WAYS[] = { "MPI_Alltoallv", "MPI_Ialltoallv", "FFTW" };

static int rank, ranks;
static uint64_t verified;

static void stop(const char *why)
{
	fprintf(stderr, "rank %d: %s\n", rank, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static element *fresh(size_t elements)
{
	/* At least one: an empty part has a buffer, too. */
	element *memory = fftw_alloc_complex(elements + 1);

	if (!memory)
		stop("no memory");
	memset(memory, 0xee, (elements + 1) * sizeof(*memory));
	return memory;
}

static int part(int length, int parts, int at)
{
	return length / parts + (at < length % parts);
}

static int start(int length, int parts, int at)
{
	return at * (length / parts) + (at < length % parts ? at : length % parts);
}

/* Frequencies and size of a wave. Small grids have some of them twice. */
static void wave(const struct grid *grid, int number, int frequency[3], element *amplitude)
{
	int axis;

	for (axis = 0; axis < 3; axis++)
		frequency[axis] = (number * (axis + 3) + axis) % grid->size[axis];
	*amplitude = 1.0 + number - 0.5 * number * I;
}

static element sample(const struct grid *grid, const int at[3])
{
	element sum = 0;
	int number;

	for (number = 0; number < WAVES; number++) {
		int frequency[3], axis;
		double phase = 0;
		element amplitude;

		wave(grid, number, frequency, &amplitude);
		for (axis = 0; axis < 3; axis++)
			phase += (double)((long)frequency[axis] * at[axis] % grid->size[axis]) / grid->size[axis];
		sum += amplitude * cexp(2 * M_PI * I * phase);
	}
	return sum;
}

static double volume(const struct grid *grid)
{
	return (double)grid->size[0] * grid->size[1] * grid->size[2];
}

static element spectrum(const struct grid *grid, const int at[3])
{
	element sum = 0;
	int number;

	for (number = 0; number < WAVES; number++) {
		int frequency[3];
		element amplitude;

		wave(grid, number, frequency, &amplitude);
		if (!memcmp(frequency, at, sizeof(frequency)))
			sum += amplitude * volume(grid);
	}
	return sum;
}

static void compare(element found, element expected, double scale, const int at[3])
{
	char text[160];

	if (!(cabs(found - expected) <= 1e-10 * scale)) {
		snprintf(text, sizeof(text), "element %d %d %d is %g%+gi, not %g%+gi", at[0], at[1], at[2], creal(found),
			 cimag(found), creal(expected), cimag(expected));
		stop(text);
	}
	verified += sizeof(found);
}

/* FFTW's slabs: the first direction is divided, or after a transform to transposed output the second one. */
static double by_fftw(const struct grid *grid)
{
	ptrdiff_t rows, first, columns, from, length;
	fftw_plan there, back;
	element *data;
	double began, took;
	int x, y, z;

	length = fftw_mpi_local_size_3d_transposed(grid->size[0], grid->size[1], grid->size[2], MPI_COMM_WORLD, &rows, &first,
						   &columns, &from);
	data = fresh((size_t)length);
	there = fftw_mpi_plan_dft_3d(grid->size[0], grid->size[1], grid->size[2], data, data, MPI_COMM_WORLD, FFTW_FORWARD,
				     FFTW_ESTIMATE | FFTW_MPI_TRANSPOSED_OUT);
	back = fftw_mpi_plan_dft_3d(grid->size[0], grid->size[1], grid->size[2], data, data, MPI_COMM_WORLD, FFTW_BACKWARD,
				    FFTW_ESTIMATE | FFTW_MPI_TRANSPOSED_IN);
	if (!there || !back)
		stop("FFTW has no plan");
	for (x = 0; x < rows; x++)
		for (y = 0; y < grid->size[1]; y++)
			for (z = 0; z < grid->size[2]; z++)
				data[(x * grid->size[1] + y) * grid->size[2] + z] =
					sample(grid, (int[]){ x + (int)first, y, z });
	began = MPI_Wtime();
	fftw_execute(there);
	took = MPI_Wtime() - began;
	for (y = 0; y < columns; y++)
		for (x = 0; x < grid->size[0]; x++)
			for (z = 0; z < grid->size[2]; z++) {
				int at[3] = { x, y + (int)from, z };

				compare(data[(y * grid->size[0] + x) * grid->size[2] + z], spectrum(grid, at), volume(grid), at);
			}
	began = MPI_Wtime();
	fftw_execute(back);
	took += MPI_Wtime() - began;
	for (x = 0; x < rows; x++)
		for (y = 0; y < grid->size[1]; y++)
			for (z = 0; z < grid->size[2]; z++) {
				int at[3] = { x + (int)first, y, z };

				compare(data[(x * grid->size[1] + y) * grid->size[2] + z] / volume(grid), sample(grid, at), 10, at);
			}
	fftw_destroy_plan(there);
	fftw_destroy_plan(back);
	fftw_free(data);
	return took;
}

/* A local array with indices (outer, divided, whole), in any order. */
struct view {
	element *data;
	int outer, divided, whole;
};

/* A transposition that is under way, of some of the outer indices: what was divided becomes whole, and the other way round. */
struct exchange {
	element *send, *receive;
	int *counts;
	int from, to;
	MPI_Request request;
};

struct directions {
	MPI_Comm comm;
	/* Lengths of the direction that is divided before, and of the one that is divided after. */
	int before, after;
};

static void begin(struct exchange *exchange, const struct directions *of, struct view in, int from, int to, int waits)
{
	int parts, mine, at, outer, place = 0, other = 0;
	int divided, whole;

	MPI_Comm_size(of->comm, &parts);
	MPI_Comm_rank(of->comm, &mine);
	exchange->from = from;
	exchange->to = to;
	exchange->counts = calloc(4 * (size_t)parts, sizeof(*exchange->counts));
	if (!exchange->counts)
		stop("no memory");
	divided = part(of->before, parts, mine);
	exchange->send = fresh((size_t)(to - from) * (size_t)divided * (size_t)of->after);
	exchange->receive = fresh((size_t)(to - from) * (size_t)of->before * (size_t)part(of->after, parts, mine));
	for (at = 0; at < parts; at++) {
		int first = start(of->after, parts, at), count = part(of->after, parts, at), inner;
		int *counts = exchange->counts;

		counts[at] = (to - from) * divided * count;
		counts[parts + at] = place;
		counts[2 * parts + at] = (to - from) * part(of->before, parts, at) * part(of->after, parts, mine);
		counts[3 * parts + at] = other;
		other += counts[2 * parts + at];
		for (outer = from; outer < to; outer++)
			for (whole = first; whole < first + count; whole++)
				for (inner = 0; inner < divided; inner++)
					exchange->send[place++] =
						in.data[outer * in.outer + inner * in.divided + whole * in.whole];
	}
	if (waits)
		MPI_Alltoallv(exchange->send, exchange->counts, exchange->counts + parts, MPI_C_DOUBLE_COMPLEX,
			      exchange->receive, exchange->counts + 2 * parts, exchange->counts + 3 * parts,
			      MPI_C_DOUBLE_COMPLEX, of->comm);
	else
		MPI_Ialltoallv(exchange->send, exchange->counts, exchange->counts + parts, MPI_C_DOUBLE_COMPLEX,
			       exchange->receive, exchange->counts + 2 * parts, exchange->counts + 3 * parts,
			       MPI_C_DOUBLE_COMPLEX, of->comm, &exchange->request);
}

/* `out` has the indices (outer, what is divided now, what is whole now). */
static void end(struct exchange *exchange, const struct directions *of, struct view out, int waits)
{
	int parts, mine, at, outer, divided, whole, place = 0;

	MPI_Comm_size(of->comm, &parts);
	MPI_Comm_rank(of->comm, &mine);
	if (!waits)
		MPI_Wait(&exchange->request, MPI_STATUS_IGNORE);
	for (at = 0; at < parts; at++) {
		int first = start(of->before, parts, at), count = part(of->before, parts, at);

		for (outer = exchange->from; outer < exchange->to; outer++)
			for (divided = 0; divided < part(of->after, parts, mine); divided++)
				for (whole = first; whole < first + count; whole++)
					out.data[outer * out.outer + divided * out.divided + whole * out.whole] =
						exchange->receive[place++];
	}
	fftw_free(exchange->send);
	fftw_free(exchange->receive);
	free(exchange->counts);
}

static void transform(element *data, int length, int count, int sign)
{
	fftw_plan plan;

	if (!count)
		return;
	plan = fftw_plan_many_dft(1, &length, count, data, NULL, 1, length, data, NULL, 1, length, sign, FFTW_ESTIMATE);
	if (!plan)
		stop("FFTW has no plan");
	fftw_execute(plan);
	fftw_destroy_plan(plan);
}

/* Transposes, in halves of the outer indices: while one is under way, the other one is packed. */
static void transpose(const struct directions *of, struct view in, struct view out, int outer, int waits)
{
	struct exchange halves[HALVES];
	int half;

	for (half = 0; half < HALVES; half++)
		begin(&halves[half], of, in, start(outer, HALVES, half), start(outer, HALVES, half) + part(outer, HALVES, half),
		      waits);
	/* The last one first: ranks may complete them in any order. */
	for (half = HALVES - 1; half >= 0; half--)
		end(&halves[half], of, out, waits);
}

/* Pencils along x, then y, then z, and back. */
static double by_pencils(const struct grid *grid, int waits)
{
	int nx = grid->size[0], ny = grid->size[1], nz = grid->size[2];
	int sizes[2] = { grid->rows, grid->columns }, none[2] = { 0, 0 }, place[2], x, y, z;
	MPI_Comm cartesian, row, column;
	double began, took;

	MPI_Cart_create(MPI_COMM_WORLD, 2, sizes, none, 0, &cartesian);
	MPI_Cart_coords(cartesian, rank, 2, place);
	MPI_Cart_sub(cartesian, (int[]){ 1, 0 }, &row);
	MPI_Cart_sub(cartesian, (int[]){ 0, 1 }, &column);

	int zs = part(nz, sizes[1], place[1]), ys = part(ny, sizes[0], place[0]);
	int xs = part(nx, sizes[0], place[0]), yz = part(ny, sizes[1], place[1]);
	int z0 = start(nz, sizes[1], place[1]), y0 = start(ny, sizes[0], place[0]);
	int x0 = start(nx, sizes[0], place[0]), yz0 = start(ny, sizes[1], place[1]);
	element *along_x = fresh((size_t)zs * (size_t)ys * (size_t)nx);
	element *along_y = fresh((size_t)zs * (size_t)xs * (size_t)ny);
	element *along_z = fresh((size_t)xs * (size_t)yz * (size_t)nz);
	struct directions y_to_x = { row, ny, nx }, x_to_y = { row, nx, ny };
	struct directions z_to_y = { column, nz, ny }, y_to_z = { column, ny, nz };
	/* (z, y, x), (z, x, y), (x, z, y) of the same array, and (x, y, z). */
	struct view xs_of = { along_x, ys * nx, nx, 1 }, ys_of = { along_y, xs * ny, ny, 1 };
	struct view ys_by_x = { along_y, ny, xs * ny, 1 }, zs_of = { along_z, yz * nz, nz, 1 };

	for (z = 0; z < zs; z++)
		for (y = 0; y < ys; y++)
			for (x = 0; x < nx; x++)
				along_x[(z * ys + y) * nx + x] = sample(grid, (int[]){ x, y + y0, z + z0 });
	began = MPI_Wtime();
	transform(along_x, nx, zs * ys, FFTW_FORWARD);
	transpose(&y_to_x, xs_of, ys_of, zs, waits);
	transform(along_y, ny, zs * xs, FFTW_FORWARD);
	transpose(&z_to_y, ys_by_x, zs_of, xs, waits);
	transform(along_z, nz, xs * yz, FFTW_FORWARD);
	took = MPI_Wtime() - began;
	for (x = 0; x < xs; x++)
		for (y = 0; y < yz; y++)
			for (z = 0; z < nz; z++) {
				int at[3] = { x + x0, y + yz0, z };

				compare(along_z[(x * yz + y) * nz + z], spectrum(grid, at), volume(grid), at);
			}
	began = MPI_Wtime();
	transform(along_z, nz, xs * yz, FFTW_BACKWARD);
	transpose(&y_to_z, zs_of, ys_by_x, xs, waits);
	transform(along_y, ny, zs * xs, FFTW_BACKWARD);
	transpose(&x_to_y, ys_of, xs_of, zs, waits);
	transform(along_x, nx, zs * ys, FFTW_BACKWARD);
	took += MPI_Wtime() - began;
	for (z = 0; z < zs; z++)
		for (y = 0; y < ys; y++)
			for (x = 0; x < nx; x++) {
				int at[3] = { x, y + y0, z + z0 };

				compare(along_x[(z * ys + y) * nx + x] / volume(grid), sample(grid, at), 10, at);
			}
	fftw_free(along_x);
	fftw_free(along_y);
	fftw_free(along_z);
	MPI_Comm_free(&row);
	MPI_Comm_free(&column);
	MPI_Comm_free(&cartesian);
	return took;
}

static void tell(const char *how, const struct grid *grid, double took)
{
	double longest;
	uint64_t all;

	MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	MPI_Reduce(&verified, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	verified = 0;
	if (rank == 0)
		printf("{\"how\":\"%s\",\"grid\":[%d,%d,%d],\"us\":%.1f,\"verified_bytes\":%llu}\n", how, grid->size[0],
		       grid->size[1], grid->size[2], longest * 1e6, (unsigned long long)all);
}

int main(int argc, char **argv)
{
	int rounds, round;
	size_t at;

	MPI_Init(&argc, &argv);
	fftw_mpi_init();
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc != 3 || ranks != 4)
		stop("usage, with four ranks: mpi_fft fftw|pencils ROUNDS");
	rounds = atoi(argv[2]);
	for (at = 0; at < sizeof(GRIDS) / sizeof(*GRIDS); at++) {
		int way, first = strcmp(argv[1], "fftw") ? 0 : 2, last = first == 2 ? 3 : 2;

		for (way = first; way < last; way++) {
			double took = 0;

			for (round = 0; round < rounds; round++)
				took += way == 2 ? by_fftw(&GRIDS[at]) : by_pencils(&GRIDS[at], way == 0);
			tell(WAYS[way], &GRIDS[at], took / rounds);
		}
	}
	fftw_mpi_cleanup();
	MPI_Finalize();
	return 0;
}
