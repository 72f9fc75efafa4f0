/* Three-dimensional Fourier transforms of waves on MPI_COMM_WORLD: by FFTW's own MPI transforms, and by pencils, whose
 * transpositions are MPI_Alltoallv or two MPI_Ialltoallv at a time on rows and columns of a grid of ranks. "overlap": each
 * MPI_Ialltoallv has one half of a pencil's rows, while the other half is transformed; no call of MPI in between. Compares every
 * element with the waves' known spectrum, and after the way back with the waves. It knows only MPI and FFTW.
 *
 *   mpi_fft fftw|pencils ROUNDS [GRID]
 *
 * GRID is the place of the only grid. Each round has fresh buffers; the first one is not timed. Rank 0 prints a line of JSON for
 * each grid and way: microseconds of a transform there and back, of it in the calls of MPI and of processor time (means of the
 * ranks; not known of FFTW's own calls), and the bytes that were compared and are right.
 */
#include <complex.h>
#include <fftw3-mpi.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
	{ { 128, 96, 80 }, 2, 2 },
};

enum way { BLOCKING, AT_ONCE, OVERLAP, FFTW, END };

static const char *const WAYS[END] = { "MPI_Alltoallv", "MPI_Ialltoallv", "overlap", "FFTW" };

static int rank, ranks;
static uint64_t verified;

/* Seconds of all timed transforms, of them in calls of MPI, and of this process's processor time. */
static struct {
	double whole, calls, processor;
} took;

static void stop(const char *why)
{
	fprintf(stderr, "rank %d: %s\n", rank, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static double processor_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Starts or ends (`sign` 1) the time of a transform. */
static void time_it(int sign)
{
	took.whole += sign * MPI_Wtime();
	took.processor += sign * processor_s();
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
static void by_fftw(const struct grid *grid)
{
	ptrdiff_t rows, first, columns, from, length;
	fftw_plan there, back;
	element *data;
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
	time_it(-1);
	fftw_execute(there);
	time_it(1);
	for (y = 0; y < columns; y++)
		for (x = 0; x < grid->size[0]; x++)
			for (z = 0; z < grid->size[2]; z++) {
				int at[3] = { x, y + (int)from, z };

				compare(data[(y * grid->size[0] + x) * grid->size[2] + z], spectrum(grid, at), volume(grid), at);
			}
	time_it(-1);
	fftw_execute(back);
	time_it(1);
	for (x = 0; x < rows; x++)
		for (y = 0; y < grid->size[1]; y++)
			for (z = 0; z < grid->size[2]; z++) {
				int at[3] = { x + (int)first, y, z };

				compare(data[(x * grid->size[1] + y) * grid->size[2] + z] / volume(grid), sample(grid, at), 10, at);
			}
	fftw_destroy_plan(there);
	fftw_destroy_plan(back);
	fftw_free(data);
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
	double began;
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
	began = MPI_Wtime();
	if (waits)
		MPI_Alltoallv(exchange->send, exchange->counts, exchange->counts + parts, MPI_C_DOUBLE_COMPLEX,
			      exchange->receive, exchange->counts + 2 * parts, exchange->counts + 3 * parts,
			      MPI_C_DOUBLE_COMPLEX, of->comm);
	else
		MPI_Ialltoallv(exchange->send, exchange->counts, exchange->counts + parts, MPI_C_DOUBLE_COMPLEX,
			       exchange->receive, exchange->counts + 2 * parts, exchange->counts + 3 * parts,
			       MPI_C_DOUBLE_COMPLEX, of->comm, &exchange->request);
	took.calls += MPI_Wtime() - began;
}

/* `out` has the indices (outer, what is divided now, what is whole now). */
static void end(struct exchange *exchange, const struct directions *of, struct view out, int waits)
{
	int parts, mine, at, outer, divided, whole, place = 0;
	double began = MPI_Wtime();

	MPI_Comm_size(of->comm, &parts);
	MPI_Comm_rank(of->comm, &mine);
	if (!waits)
		MPI_Wait(&exchange->request, MPI_STATUS_IGNORE);
	took.calls += MPI_Wtime() - began;
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

/* Rows of `length` elements, `count` of them for each outer index. */
struct rows {
	element *data;
	int length, count, sign;
};

/* Transforms the rows of some of the outer indices. */
static void transform_of(const struct rows *rows, int from, int to)
{
	size_t first = (size_t)from * (size_t)rows->count * (size_t)rows->length;

	transform(rows->data + first, rows->length, (to - from) * rows->count, rows->sign);
}

/* Transforms the rows `before`, transposes, and transforms the rows `after`, in halves of the outer indices. Either may
 * be NULL: halves of y's rows are those of one of the two transpositions. While a transposition is under way, the other half is packed, and with OVERLAP it is transformed.
 */
static void transpose(const struct directions *of, const struct rows *before, struct view in, struct view out,
		      const struct rows *after, int outer, enum way way)
{
	struct exchange halves[HALVES];
	int half, at;

	if (before && way != OVERLAP)
		transform_of(before, 0, outer);
	for (half = 0; half < HALVES; half++) {
		int from = start(outer, HALVES, half), to = from + part(outer, HALVES, half);

		if (before && way == OVERLAP)
			transform_of(before, from, to);
		begin(&halves[half], of, in, from, to, way == BLOCKING);
	}
	for (at = 0; at < HALVES; at++) {
		/* Otherwise the last one first: ranks may complete them in any order. */
		half = way == OVERLAP ? at : HALVES - 1 - at;
		end(&halves[half], of, out, way == BLOCKING);
		if (after && way == OVERLAP)
			transform_of(after, halves[half].from, halves[half].to);
	}
	if (after && way != OVERLAP)
		transform_of(after, 0, outer);
}

/* Pencils along x, then y, then z, and back. */
static void by_pencils(const struct grid *grid, enum way way)
{
	int nx = grid->size[0], ny = grid->size[1], nz = grid->size[2];
	int sizes[2] = { grid->rows, grid->columns }, none[2] = { 0, 0 }, place[2], x, y, z;
	MPI_Comm cartesian, row, column;

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
	struct rows x_rows = { along_x, nx, ys, FFTW_FORWARD }, y_rows = { along_y, ny, xs, FFTW_FORWARD };
	struct rows z_rows = { along_z, nz, yz, FFTW_FORWARD };

	for (z = 0; z < zs; z++)
		for (y = 0; y < ys; y++)
			for (x = 0; x < nx; x++)
				along_x[(z * ys + y) * nx + x] = sample(grid, (int[]){ x, y + y0, z + z0 });
	time_it(-1);
	transpose(&y_to_x, &x_rows, xs_of, ys_of, &y_rows, zs, way);
	transpose(&z_to_y, NULL, ys_by_x, zs_of, &z_rows, xs, way);
	time_it(1);
	for (x = 0; x < xs; x++)
		for (y = 0; y < yz; y++)
			for (z = 0; z < nz; z++) {
				int at[3] = { x + x0, y + yz0, z };

				compare(along_z[(x * yz + y) * nz + z], spectrum(grid, at), volume(grid), at);
			}
	x_rows.sign = y_rows.sign = z_rows.sign = FFTW_BACKWARD;
	time_it(-1);
	transpose(&y_to_z, &z_rows, zs_of, ys_by_x, NULL, xs, way);
	transpose(&x_to_y, &y_rows, ys_of, xs_of, &x_rows, zs, way);
	time_it(1);
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
}

static void tell(enum way way, const struct grid *grid, int rounds)
{
	double mine[2] = { took.calls, took.processor }, sums[2], longest;
	uint64_t all;

	MPI_Reduce(&took.whole, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	MPI_Reduce(mine, sums, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Reduce(&verified, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	verified = 0;
	if (rank != 0)
		return;
	printf("{\"how\":\"%s\",\"grid\":[%d,%d,%d],\"us\":%.1f,\"cpu_us\":%.1f,", WAYS[way], grid->size[0], grid->size[1],
	       grid->size[2], longest / rounds * 1e6, sums[1] / ranks / rounds * 1e6);
	if (way != FFTW)
		printf("\"calls_us\":%.1f,", sums[0] / ranks / rounds * 1e6);
	printf("\"verified_bytes\":%llu}\n", (unsigned long long)all);
}

int main(int argc, char **argv)
{
	const int grids = sizeof(GRIDS) / sizeof(*GRIDS);
	int rounds, round, at, only;

	MPI_Init(&argc, &argv);
	fftw_mpi_init();
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	rounds = argc < 3 ? 0 : atoi(argv[2]);
	only = argc < 4 ? -1 : atoi(argv[3]);
	if (argc > 4 || ranks != 4 || rounds < 1 || only >= grids)
		stop("usage, with four ranks: mpi_fft fftw|pencils ROUNDS [GRID]");
	for (at = 0; at < grids; at++) {
		int is_fftw = !strcmp(argv[1], "fftw"), way;

		for (way = is_fftw ? FFTW : BLOCKING; way < (is_fftw ? END : FFTW) && (only < 0 || only == at); way++) {
			for (round = 0; round <= rounds; round++) {
				if (round <= 1)
					memset(&took, 0, sizeof(took));
				if (way == FFTW)
					by_fftw(&GRIDS[at]);
				else
					by_pencils(&GRIDS[at], way);
			}
			tell(way, &GRIDS[at], rounds);
		}
	}
	fftw_mpi_cleanup();
	MPI_Finalize();
	return 0;
}
