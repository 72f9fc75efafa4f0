/*
 * Host program of the test: stands in for the three functions of libflexio that an archive calls, packs arguments by the
 * registered functions, and prints what it sees, one line each.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shared.h"

struct flexio_app;
struct flexio_app_attr {
	const char *app_name;
	void *app_ptr;
	size_t app_bsize;
	char *app_sig_sec_name;
};

typedef void(func_t)(void);
typedef void(pack_t)(void *argbuf, va_list ap);

extern struct flexio_app *app_of_the_test;
func_t nothing, scalars, thirteen, by_value, counted, order;

static struct {
	func_t *stub;
	const char *name;
	size_t size;
	pack_t *pack;
} known[16];
static unsigned int count;
static int handle;

int flexio_app_create(struct flexio_app_attr *attr, struct flexio_app **app)
{
	const unsigned char *elf = attr->app_ptr;

	printf("create %s %s %d\n", attr->app_name, memcmp(elf, "\177ELF", 4) ? "?" : "ELF",
	       attr->app_sig_sec_name == NULL);
	*app = (struct flexio_app *)&handle;
	return 0;
}

int flexio_func_pup_register(struct flexio_app *app, const char *name, const char *unpack, func_t *stub, size_t size,
			     pack_t *pack)
{
	printf("register %s %s %zu %d\n", name, unpack, size, app == (struct flexio_app *)&handle);
	known[count].stub = stub;
	known[count].name = name;
	known[count].size = size;
	known[count++].pack = pack;
	return 0;
}

int flexio_app_destroy(struct flexio_app *app)
{
	printf("destroy %d\n", app == (struct flexio_app *)&handle);
	return 0;
}

/* As a library starts a function: by the address of its stub, with a variable list. */
static void start(func_t *stub, ...)
{
	static unsigned char buffer[4096 + 1];
	va_list ap;

	for (unsigned int at = 0; at < count; at++) {
		if (known[at].stub != stub)
			continue;
		memset(buffer, 0xee, sizeof(buffer));
		va_start(ap, stub);
		known[at].pack(buffer, ap);
		va_end(ap);
		printf("start %s ", known[at].name);
		for (size_t byte = 0; byte < known[at].size; byte++)
			printf("%02x", buffer[byte]);
		printf("%s\n", buffer[known[at].size] == 0xee ? "" : " beyond the buffer");
	}
}

int main(void)
{
	struct pair pair = {0};
	packed_t packed = {0x5a, 0x123456789abcdef0, 0xbeef};
	struct nested nested;
	struct small small;
	struct wide wide;
	struct floats floats = {1, 2, 3};
	uint64_t big = 0xfedcba9876543210;

	pair.a = 0x01020304;
	pair.b = 0x1122334455667788;
	memset(&nested, 0, sizeof(nested));
	nested.pairs[0].a = 77;
	nested.pairs[1].b = 88;
	nested.either.number = 2.5;
	nested.low = 5;
	nested.high = 4097;
	nested.grid[1][2] = -3;
	nested.name = (const char *)0x4321;
	memset(&small, 0, sizeof(small));
	small.f = 9.0f;
	small.s = -2;
	memset(&wide, 0, sizeof(wide));
	wide.a = 1000;
	wide.b = 2000;

	printf("main %d\n", app_of_the_test == (struct flexio_app *)&handle);
	start(nothing);
	start(scalars, (int8_t)-5, (uint16_t)60000, -7, big, (_Bool)1, 1.25f, -0.0 + 2.75, (void *)0x1234, BLUE,
	      (handle_t)99);
	start(thirteen, (uint64_t)1, (uint64_t)2, (uint64_t)3, (uint64_t)4, (uint64_t)5, (uint64_t)6, (uint64_t)7,
	      (uint32_t)0xffffffff, (uint64_t)9, (uint64_t)10, (uint64_t)11, (uint64_t)12, big);
	start(by_value, (handle_t)42, pair, packed, nested, small, wide, floats);
	start(counted, (uint64_t)5);
	start(counted, (uint64_t)6);
	return 0;
}
