/* Calls the library's own interface in a process without a device, and shows how the compiler lays
 * its structure out. Argument: the library, to be found by its name as a plugin of UCX is. */

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "xgvmi.h"

#define FIELDS(_) \
    _(pool_hits) _(pool_misses) _(pool_keys) _(pool_in_use) _(exports) _(exports_left) \
    _(releases) _(releases_failed) _(alias_hits) _(alias_misses) _(alias_stale) _(aliases) \
    _(imports) _(imports_left) _(imports_released) _(exporters) _(arena_ranges) _(arena_zeroed) \
    _(arena_bytes) _(arena_retired) _(arena_registrations) _(arena_left) \
    _(kept_hits) _(kept_now) _(kept_bytes)
#define SHOW(_field) \
    printf(#_field " %zu %zu\n", offsetof(struct xgvmi_stats, _field), \
           sizeof(((struct xgvmi_stats*)0)->_field));

static void *library;

static void *find(const char *name)
{
    void *function = dlsym(RTLD_DEFAULT, name);

    return ((function == NULL) && (library != NULL)) ? dlsym(library, name) : function;
}

int main(int argc, char **argv)
{
    struct {
        struct xgvmi_stats stats;
        unsigned char later[16];
    } stats;
    unsigned char buffer[64] = {0};
    int status;
    /* That the types fit is for the compiler to say. */
    ssize_t (*announce)(void*, size_t)             = (__typeof__(&xgvmi_announce))NULL;
    ssize_t (*announce_keys)(void*, size_t, uint32_t) = (__typeof__(&xgvmi_announce_keys))NULL;
    int64_t (*accept)(const void*, size_t)         = (__typeof__(&xgvmi_accept))NULL;
    int (*get_stats)(struct xgvmi_stats*, size_t)  = (__typeof__(&xgvmi_stats))NULL;
    const char *(*version)(void)                   = (__typeof__(&xgvmi_version))NULL;

    printf("size %zu %zu\n", sizeof(struct xgvmi_stats), (size_t)8);
    FIELDS(SHOW)
    if (argc > 1) {
        dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
        library = dlopen("libuct_ib_mlx5_xgvmi.so.0", RTLD_LAZY | RTLD_NOLOAD);
    }
    announce  = find("xgvmi_announce");
    announce_keys = find("xgvmi_announce_keys");
    accept    = find("xgvmi_accept");
    get_stats = find("xgvmi_stats");
    version   = find("xgvmi_version");
    if (!announce || !announce_keys || !accept || !get_stats || !version) {
        printf("not found\n");
        return 1;
    }
    printf("version %s\n", version());
    printf("announce %d %d %d\n", announce(NULL, 0) == -ENODEV,
           announce(buffer, sizeof(buffer)) == -ENODEV, announce(NULL, 1) == -EINVAL);
    printf("announce_keys %d %d %d\n", announce_keys(NULL, 0, 4) == -ENODEV,
           announce_keys(buffer, sizeof(buffer), 0) == -ENODEV,
           announce_keys(NULL, 1, 4) == -EINVAL);
    printf("accept %d %d %d\n", accept(buffer, sizeof(buffer)) == -EBADMSG,
           accept(buffer, 0) == -EBADMSG, accept(NULL, 0) == -EINVAL);
    /* A newer program, and an older one. */
    memset(&stats, 0xee, sizeof(stats));
    status = get_stats(&stats.stats, sizeof(stats));
    printf("newer %d %llu %d %d\n", status, (unsigned long long)stats.stats.imports_left, stats.later[0], stats.later[15]);
    memset(&stats, 0xee, sizeof(stats));
    status = get_stats(&stats.stats, 16);
    printf("older %d %llu %d\n", status, (unsigned long long)stats.stats.pool_misses,
           stats.stats.pool_keys == 0);
    printf("null %d\n", get_stats(NULL, 8) == -EINVAL);
    return 0;
}
