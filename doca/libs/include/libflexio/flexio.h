/*
 * FlexIO: registration of programs of the DPA, and files that assign execution units.
 */
#ifndef FLEXIO_H
#define FLEXIO_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <libflexio/flexio_ver.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum flexio_status {
	FLEXIO_STATUS_SUCCESS = 0,
	FLEXIO_STATUS_FAILED = 1,
	FLEXIO_STATUS_TIMEOUT = 2,
	FLEXIO_STATUS_FATAL_ERR = 3,
} flexio_status;

struct flexio_app;
struct flexio_resource;

/* A program: its name, and its ELF file. */
struct flexio_app_attr {
	const char *app_name;
	const void *app_ptr;
	size_t app_bsize;
	const char *app_sig_sec_name;
};

/* A function of the program for the host, which has another type there. */
typedef void(flexio_func_t)(void);
/* Packs the arguments of a variable list. */
typedef void(flexio_func_arg_pack_fn_t)(void *buffer, va_list arguments);

/* The archives of dpacc call these. An error is FLEXIO_STATUS_FAILED, and a line on standard error. */
flexio_status flexio_app_create(struct flexio_app_attr *attributes, struct flexio_app **app);
flexio_status flexio_app_destroy(struct flexio_app *app);
flexio_status flexio_func_pup_register(struct flexio_app *app,
				       const char *name,
				       const char *unpack_name,
				       flexio_func_t *stub,
				       size_t argument_bytes,
				       flexio_func_arg_pack_fn_t *pack);

/* Execution units of a program. A file of at most 1 MiB has lines such as `my_app: 3, 8-11`. FLEXIO_STATUS_FAILED, and a line
 * on standard error, if it has no line for the key, or a bad one. */
flexio_status flexio_resources_create(const char *key, const char *text, size_t length, struct flexio_resource **resource);
flexio_status flexio_resources_destroy(struct flexio_resource *resource);
uint32_t flexio_resources_get_eus_num(struct flexio_resource *resource);
/* In ascending order; valid as long as the resource. */
uint32_t *flexio_resources_get_eus(struct flexio_resource *resource);
/* Groups of units: none. */
uint32_t flexio_resources_get_eugs_num(struct flexio_resource *resource);

#ifdef __cplusplus
}
#endif

#endif
