/*
 * Command lines. A parameter has a short name (-name), a long name (--name), or both; a value follows as the next word or
 * after "=". The library adds -h/--help, -v/--version, -l/--log-level and --sdk-log-level.
 *
 * One command line at a time: doca_argp_init, the parameters, doca_argp_start, doca_argp_destroy.
 */
#ifndef DOCA_ARGP_H
#define DOCA_ARGP_H

#include <stdbool.h>

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum doca_argp_type {
	DOCA_ARGP_TYPE_UNKNOWN = 0,
	/* The callback gets a `char *` with the word, which it may change. */
	DOCA_ARGP_TYPE_STRING = 1,
	/* The callback gets an `int *`. Decimal, or hexadecimal with 0x. */
	DOCA_ARGP_TYPE_INT = 2,
	/* The callback gets a `bool *` with true. No value follows. */
	DOCA_ARGP_TYPE_BOOLEAN = 3,
};

struct doca_argp_param;

/* Handles a value. `config` is the pointer of doca_argp_init. An error ends doca_argp_start with this error. */
typedef doca_error_t (*doca_argp_param_cb_t)(void *value, void *config);
/* Checks the configuration after all parameters. */
typedef doca_error_t (*doca_argp_validation_cb_t)(void *config);

/* Begins. `program_name` is for the help; NULL takes the first word of the command line. DOCA_ERROR_BAD_STATE if another
 * command line is in use. */
doca_error_t doca_argp_init(const char *program_name, void *config);
/* Frees all registered parameters. */
doca_error_t doca_argp_destroy(void);
/* Reads the words and calls the callbacks, in the order of the words. DOCA_ERROR_INVALID_VALUE for an unknown name, a missing or bad
 * value, or a missing mandatory parameter; --help and --version end the process with status 0. */
doca_error_t doca_argp_start(int argc, char **argv);

/* A parameter. It belongs to the program until it is registered, then to the library. */
doca_error_t doca_argp_param_create(struct doca_argp_param **param);
doca_error_t doca_argp_param_destroy(struct doca_argp_param *param);
void doca_argp_param_set_short_name(struct doca_argp_param *param, const char *name);
void doca_argp_param_set_long_name(struct doca_argp_param *param, const char *name);
/* Shown in the help for the value, and as its text. */
void doca_argp_param_set_arguments(struct doca_argp_param *param, const char *arguments);
void doca_argp_param_set_description(struct doca_argp_param *param, const char *description);
void doca_argp_param_set_callback(struct doca_argp_param *param, doca_argp_param_cb_t callback);
void doca_argp_param_set_type(struct doca_argp_param *param, enum doca_argp_type type);
/* doca_argp_start fails without this parameter. */
void doca_argp_param_set_mandatory(struct doca_argp_param *param);
/* The parameter may occur more than once. */
void doca_argp_param_set_multiplicity(struct doca_argp_param *param);
/* Registers a parameter. DOCA_ERROR_INVALID_VALUE without name, description, callback or type; DOCA_ERROR_ALREADY_EXIST if a name is in
 * use; DOCA_ERROR_FULL after 256 parameters. */
doca_error_t doca_argp_register_param(struct doca_argp_param *param);
doca_error_t doca_argp_register_validation_callback(doca_argp_validation_cb_t callback);
/* Level of the program's lines: that of --log-level, or the default. */
doca_error_t doca_argp_get_log_level(int *log_level);

#ifdef __cplusplus
}
#endif

#endif
