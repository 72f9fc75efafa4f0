/*
 * Log lines of the program and of the library ("SDK").
 *
 * A backend takes the lines of the program (doca_log_backend_create_standard, _with_file) or of the library (..._sdk). Without
 * a backend of the library, its errors go to standard error. A line is written whole, also if several threads log.
 */
#ifndef DOCA_LOG_H
#define DOCA_LOG_H

#include <stdint.h>
#include <stdio.h>

#include <doca_error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A backend with a level writes the lines of this level and of those before it. */
enum doca_log_level {
	DOCA_LOG_LEVEL_DISABLE = 10,
	DOCA_LOG_LEVEL_CRIT = 20,
	DOCA_LOG_LEVEL_ERROR = 30,
	DOCA_LOG_LEVEL_WARNING = 40,
	DOCA_LOG_LEVEL_INFO = 50,
	DOCA_LOG_LEVEL_DEBUG = 60,
	DOCA_LOG_LEVEL_TRACE = 70,
};

struct doca_log_backend;

/* Lines of the program: from INFO to standard output, warnings and errors to standard error. A second call returns
 * DOCA_ERROR_ALREADY_EXIST. */
doca_error_t doca_log_backend_create_standard(void);
/* Lines of the program, and of the library, to a stream or a file descriptor, which stays open while the process runs. At most 16
 * backends exist (DOCA_ERROR_FULL). The level is INFO, for the library WARNING. Backends live as long as the process. */
doca_error_t doca_log_backend_create_with_file(FILE *file, struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_fd(int fd, struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_file_sdk(FILE *file, struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_fd_sdk(int fd, struct doca_log_backend **backend);

/* Level of a backend of the program, and of one of the library. The wrong kind, or a level that does not exist, gives
 * DOCA_ERROR_INVALID_VALUE. */
doca_error_t doca_log_backend_set_level_lower_limit(struct doca_log_backend *backend, uint32_t level);
doca_error_t doca_log_backend_set_sdk_level(struct doca_log_backend *backend, uint32_t level);

/* Level of all backends of the program, and of all of the library, also of later ones. */
doca_error_t doca_log_level_set_global_lower_limit(uint32_t level);
doca_error_t doca_log_level_set_global_sdk_limit(uint32_t level);

/* Adds a source of lines. DOCA_ERROR_FULL after 1024 sources. */
doca_error_t doca_log_register_source(const char *name, int *source);
/* Writes a line. `format` is that of printf; a line is cut after 4096 bytes. */
void doca_log(uint32_t level, int source, const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

/* Declares a source file as a source of lines. Once in each file that uses the macros below, before them. */
#define DOCA_LOG_REGISTER(SOURCE)                                                                                      \
	static int doca_log_source_id = -1;                                                                            \
	__attribute__((constructor)) static void doca_log_register_own_source(void)                                    \
	{                                                                                                              \
		(void)doca_log_register_source(#SOURCE, &doca_log_source_id);                                          \
	}                                                                                                              \
	struct doca_log_backend

#define DOCA_LOG(level, ...) doca_log(level, doca_log_source_id, __FILE__, __LINE__, __VA_ARGS__)
#define DOCA_LOG_CRIT(...) DOCA_LOG(DOCA_LOG_LEVEL_CRIT, __VA_ARGS__)
#define DOCA_LOG_ERR(...) DOCA_LOG(DOCA_LOG_LEVEL_ERROR, __VA_ARGS__)
#define DOCA_LOG_WARN(...) DOCA_LOG(DOCA_LOG_LEVEL_WARNING, __VA_ARGS__)
#define DOCA_LOG_INFO(...) DOCA_LOG(DOCA_LOG_LEVEL_INFO, __VA_ARGS__)
#define DOCA_LOG_DBG(...) DOCA_LOG(DOCA_LOG_LEVEL_DEBUG, __VA_ARGS__)
#define DOCA_LOG_TRC(...) DOCA_LOG(DOCA_LOG_LEVEL_TRACE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
