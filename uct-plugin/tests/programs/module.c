/* A module with the shape of UCX's mlx5 and no device: says which of its operations was called with
 * what. NAME is put before each line; WRONG_SLOT misplaces an operation; NO_KEYS leaves out the
 * capability; KEY_BYTES is the size of an exported key; WRONG_PD gives the memory domain another
 * context than its protection domain has; CONSTANT_TABLE puts the operations into memory that the
 * loader protects; PROVIDERS gives it the table of a patched UCX, and is what
 * a registration there is answered with. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef NAME
#define NAME "ucx"
#endif
#ifndef KEY_BYTES
#define KEY_BYTES 14
#endif

typedef signed char status_t;

typedef struct {
    void *ops, *component, **pd, *context;
} md_t;

typedef struct {
    uint32_t lkey, rkey, flags;
} memh_t;

typedef struct {
    uint64_t field_mask;
    unsigned flags;
    void *memh, *comp;
} dereg_params_t;

typedef struct {
    uint64_t field_mask;
    unsigned flags;
} pack_params_t;

#ifdef PROVIDERS
/* As in patches/master/0001-provider-of-keys.patch. */
typedef struct {
    uint32_t abi_version, size;
    void (*md_query)(md_t *md, const void *attr);
    void (*md_close)(md_t *md);
    void (*mem_reg)(md_t *md, memh_t *memh, void *address, size_t length);
    status_t (*mem_dereg)(md_t *md, const dereg_params_t *params);
    status_t (*mkey_pack)(md_t *md, memh_t *memh, const pack_params_t *params, void *buffer);
    status_t (*mem_attach)(md_t *md, const void *key, void *params, memh_t **memh_p);
} provider_t;

static const provider_t *provider;

status_t uct_ib_mlx5_xgvmi_register(const provider_t *ops)
{
    if (PROVIDERS != 0) {
        return PROVIDERS;
    }
    if (ops->abi_version != 1 || ops->size != sizeof(*ops)) {
        return -22;
    }
    provider = ops;
    return 0;
}

#define TELL(_call) do { if (provider != NULL) { provider->_call; } } while (0)
#define ASK(_call) \
    do { \
        status_t status = (provider != NULL) ? provider->_call : -22; \
        if (status != -22) { \
            return status; \
        } \
    } while (0)
#else
#define TELL(_call)
#define ASK(_call)
#endif

void uct_ib_mlx5_devx_md_close(md_t *md)
{
    printf(NAME " md_close\n");
    TELL(md_close(md));
    free(md->pd);
    free(md);
}

status_t uct_ib_mlx5_devx_md_query(md_t *md, char *attr)
{
    printf(NAME " md_query\n");
#ifndef NO_KEYS
    *(uint64_t*)(attr + 24) = 1 << 9;
#endif
    *(uint64_t*)(attr + 264) = KEY_BYTES;
    TELL(md_query(md, attr));
    return 0;
}

status_t uct_ib_mlx5_devx_mem_reg(md_t *md, void *address, size_t length, const void *params,
                                  memh_t **memh_p)
{
    printf(NAME " mem_reg %p %zu %p\n", address, length, params);
    if (length == 0) {
        return -5;
    }
    *memh_p          = calloc(1, 256);
    (*memh_p)->lkey  = 0x4100;
    (*memh_p)->rkey  = 0x4100;
    TELL(mem_reg(md, *memh_p, address, length));
    return 0;
}

status_t uct_ib_mlx5_devx_mem_dereg(md_t *md, const dereg_params_t *params)
{
    printf(NAME " mem_dereg %lx\n", (long)params->field_mask);
    if (!(params->field_mask & 1)) {
        return -5;
    }
    ASK(mem_dereg(md, params));
    free(params->memh);
    return 0;
}

status_t uct_ib_mlx5_devx_mkey_pack(md_t *md, memh_t *memh, void *address, size_t length,
                                    const pack_params_t *params, void *buffer)
{
    unsigned flags = (params->field_mask & 1) ? params->flags : 0;

    if ((flags & 4) || (memh->flags & 8)) {
        ASK(mkey_pack(md, memh, params, buffer));
    }
    if (flags & 4) {
        printf(NAME " mkey_pack exported %p %zu\n", address, length);
        memset(buffer, 0xee, KEY_BYTES);
    } else {
        printf(NAME " mkey_pack %p %zu\n", address, length);
    }
    if (!(flags & 4)) {
        *(uint64_t*)buffer = ((uint64_t)UINT32_MAX << 32) | memh->rkey;
    }
    return flags & 1 ? -5 : 0;
}

status_t uct_ib_mlx5_devx_mem_attach(md_t *md, const void *key, void *params, memh_t **memh_p)
{
    printf(NAME " mem_attach %x\n", *(const unsigned char*)key);
    ASK(mem_attach(md, key, params, memh_p));
    *memh_p          = calloc(1, 256);
    (*memh_p)->lkey  = 0x5100;
    (*memh_p)->rkey  = 0x5100;
    (*memh_p)->flags = 1 << 3;
    return 0;
}

static status_t other(void)
{
    return -22;
}

#ifdef CONSTANT_TABLE
#define TABLE const
#else
#define TABLE
#endif

static void *TABLE ops[16] = {
    uct_ib_mlx5_devx_md_close,
    uct_ib_mlx5_devx_md_query,
    other,
    other,
    other,
    uct_ib_mlx5_devx_mem_reg,
    uct_ib_mlx5_devx_mem_dereg,
    other,
#ifdef WRONG_SLOT
    other,
#else
    uct_ib_mlx5_devx_mkey_pack,
#endif
    uct_ib_mlx5_devx_mem_attach,
    other,
};

#ifdef OTHER_ENTRY
#define uct_ib_md_ops_devx_entry OTHER_ENTRY
#endif

/* Before 1.18 it was shorter, and something else is behind it. */
#ifdef SHORT_ENTRY
struct {
    const char *name;
    void *TABLE *ops;
    void *something, *else_;
} uct_ib_md_ops_devx_entry = {"fake", ops, NULL, (void*)0x12345678};
#else

struct {
    void *prev, *next;
    const char *name;
    void *TABLE *ops;
} uct_ib_md_ops_devx_entry = {NULL, NULL, "fake", ops};
#endif

md_t *fake_md_open(void)
{
    static int context;
    md_t *md    = calloc(1, 4096);
    md->ops     = ops;
    md->pd      = calloc(1, 64);
    md->context = &context;
#ifndef WRONG_PD
    md->pd[0]   = &context;
#endif
    return md;
}

/* The component of the memory domain, for a program that opens it through libuct. */
static status_t component_md_open(const char *name, const void *config, md_t **md_p)
{
    *md_p = fake_md_open();
    return 0;
}

struct {
    status_t (*md_open)(const char *name, const void *config, md_t **md_p);
} fake_component = {component_md_open};

/* What the library takes from libucs. */

void ucs_log_dispatch(const char *file, unsigned line, const char *function, unsigned level,
                      void *component, const char *format, ...)
{
    va_list args;

    printf("log %u ", level);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

typedef struct list_link {
    struct list_link *prev, *next;
} list_link_t;

typedef struct {
    const char *name, *value, *doc;
    size_t offset;
    int (*read)(const char *text, void *to, const void *arg);
    void *write, *clone, *release, *help, *more, *arg;
} field_t;

typedef struct {
    const char *name, *prefix;
    field_t *table;
    size_t size;
    list_link_t list;
    uint8_t flags;
} entry_t;

list_link_t ucs_config_global_list = {&ucs_config_global_list, &ucs_config_global_list};
int ucs_global_opts[64]            = {2};

int ucs_config_sscanf_bool(const char *text, void *to, const void *arg)
{
    *(int*)to = text[0] == 'y';
    return 1;
}

int ucs_config_sscanf_uint(const char *text, void *to, const void *arg)
{
    return sscanf(text, "%u", (unsigned*)to);
}

int ucs_config_sscanf_time(const char *text, void *to, const void *arg)
{
    char unit[3] = "";

    if (sscanf(text, "%lf%2s", (double*)to, unit) < 1) {
        return 0;
    }
    *(double*)to *= (unit[0] == 'm') ? 1e-3 : 1;
    return 1;
}

int ucs_config_sscanf_memunits(const char *text, void *to, const void *arg)
{
    return sscanf(text, "%zu", (size_t*)to);
}

int ucs_config_sscanf_string(const char *text, void *to, const void *arg)
{
    *(char**)to = strdup(text);
    return 1;
}

int ucs_config_sscanf_enum(const char *text, void *to, const void *arg)
{
    const char *const *words = arg;
    unsigned at;

    for (at = 0; words[at] != NULL; ++at) {
        if (!strcmp(words[at], text)) {
            *(unsigned*)to = at;
            return 1;
        }
    }
    return 0;
}

void ucs_config_sprintf_bool(void) {}
void ucs_config_sprintf_uint(void) {}
void ucs_config_sprintf_time(void) {}
void ucs_config_sprintf_memunits(void) {}
void ucs_config_sprintf_string(void) {}
void ucs_config_sprintf_enum(void) {}
void ucs_config_clone_int(void) {}
void ucs_config_clone_uint(void) {}
void ucs_config_clone_ulong(void) {}
void ucs_config_clone_double(void) {}
void ucs_config_clone_string(void) {}
void ucs_config_help_generic(void) {}
void ucs_config_help_enum(void) {}
void ucs_config_release_nop(void) {}
void ucs_config_release_string(void) {}
void ucs_config_doc_nop(void) {}

status_t ucs_config_parser_fill_opts(void *opts, entry_t *entry, const char *prefix, int lenient)
{
    char name[128];
    field_t *field;

    for (field = entry->table; field->name != NULL; ++field) {
        snprintf(name, sizeof(name), "%s%s%s", prefix, entry->prefix, field->name);
        const char *text = getenv(name) ? getenv(name) : field->value;
        if (field->read(text, (char*)opts + field->offset, field->arg) != 1) {
            return -5;
        }
    }
    return 0;
}
