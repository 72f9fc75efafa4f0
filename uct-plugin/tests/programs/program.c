/* Plays the part of UCP: opens modules and calls each of their operations once. With LIBUCT it opens
 * the memory domains through libuct.
 * Arguments: "+FILE" loads a library, "-" unloads it again; "=MODULE" uses a module and leaves its
 * memory domain open; "*" forks: the child does what follows until "/" and exits, then the parent
 * goes on behind it; "~" loads the next module without using it; "@FILE" copies this process's counter file; "#" prints how many descriptors of
 * counter files are open; any other one is a module to be used. */

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef signed char status_t;

typedef struct {
    void **ops;
} md_t;

typedef struct {
    uint64_t field_mask;
    unsigned flags;
    void *memh, *comp;
} dereg_params_t;

typedef struct {
    uint64_t field_mask;
    unsigned flags;
} pack_params_t;

typedef struct {
    uint64_t field_mask, flags;
    size_t mkey_size;
} attach_params_t;

#ifdef LIBUCT
status_t uct_md_open(const void *component, const char *name, const void *config, md_t **md_p);

static md_t *md_open(void *module)
{
    md_t *md = NULL;

    return uct_md_open(dlsym(module, "fake_component"), "fake", NULL, &md) == 0 ? md : NULL;
}
#else
static md_t *md_open(void *module)
{
    md_t *(*open)(void) = dlsym(module, "fake_md_open");

    return open();
}
#endif

static void show(const char *what, status_t status, const void *bytes, size_t length)
{
    size_t at;

    printf("%s status %d", what, status);
    for (at = 0; at < length; ++at) {
        printf(" %02x", ((const unsigned char*)bytes)[at]);
    }
    printf("\n");
}

static void use(md_t *md, int is_closed)
{
    status_t (*query)(md_t*, void*)                                                 = md->ops[1];
    status_t (*reg)(md_t*, void*, size_t, void*, void**)                            = md->ops[5];
    status_t (*dereg)(md_t*, dereg_params_t*)                                       = md->ops[6];
    status_t (*pack)(md_t*, void*, void*, size_t, pack_params_t*, void*)            = md->ops[8];
    status_t (*attach)(md_t*, const void*, attach_params_t*, void**)                = md->ops[9];
    void (*close)(md_t*)                                                            = md->ops[0];
    static const unsigned char pooled[14]  = {251, 1, 0, 0, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8};
    static const unsigned char private[14] = {3, 1, 0, 0, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8};
    static char attr[1024];
    unsigned char key[16]         = {0};
    pack_params_t plain           = {0, 4};
    pack_params_t exported        = {1, 4};
    pack_params_t invalidatable   = {1, 1};
    dereg_params_t none           = {0, 0, NULL, NULL};
    attach_params_t attach_params = {2, 0, 14};
    void *memh                    = NULL;

    show("md_query", query(md, attr), NULL, 0);
    show("mem_reg nothing", reg(md, (void*)0x10000, 0, NULL, &memh), NULL, 0);
    show("mem_reg", reg(md, (void*)0x10000, 4096, NULL, &memh), NULL, 0);
    show("mkey_pack", pack(md, memh, (void*)0x10000, 4096, &plain, key), key, 8);
    show("mkey_pack invalidatable",
         pack(md, memh, (void*)0x10000, 4096, &invalidatable, key), key, 8);
    show("mkey_pack exported", pack(md, memh, (void*)0x10000, 4096, &exported, key), key, 14);
    show("mkey_pack exported again", pack(md, memh, (void*)0x10000, 4096, &exported, key), key, 14);
    show("mem_dereg nothing", dereg(md, &none), NULL, 0);
    dereg_params_t dereg_params = {1, 0, memh, NULL};
    show("mem_dereg", dereg(md, &dereg_params), NULL, 0);
    show("mem_attach pooled", attach(md, pooled, &attach_params, &memh), NULL, 0);
    show("mkey_pack imported", pack(md, memh, (void*)0x10000, 4096, &plain, key), key, 8);
    dereg_params.memh = memh;
    show("mem_dereg imported", dereg(md, &dereg_params), NULL, 0);
    show("mem_attach private", attach(md, private, &attach_params, &memh), NULL, 0);
    dereg_params.memh = memh;
    show("mem_dereg imported", dereg(md, &dereg_params), NULL, 0);
    if (is_closed) {
        close(md);
    }
}

static void copy_counters(const char *to)
{
    char command[4096];

    snprintf(command, sizeof(command), "cat /dev/shm/xgvmi-%d/%d > '%s' 2>/dev/null", geteuid(),
             getpid(), to);
    system(command);
}

static void count_descriptors(void)
{
    char path[64], target[4096];
    int at, count = 0;

    for (at = 0; at < 256; ++at) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", at);
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        if (length > 0) {
            target[length] = 0;
            count += strstr(target, "/dev/shm/xgvmi-") != NULL;
        }
    }
    printf("%d descriptors\n", count);
}

int main(int argc, char **argv)
{
    void *last = NULL;
    int at, is_child = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (at = 1; at < argc; ++at) {
        if (!strcmp(argv[at], "-")) {
            dlclose(last);
            continue;
        }
        if (!strcmp(argv[at], "*")) {
            pid_t child = fork();
            is_child    = child == 0;
            if (!is_child) {
                waitpid(child, NULL, 0);
                while (strcmp(argv[at], "/")) {
                    ++at;
                }
            }
            continue;
        }
        if (!strcmp(argv[at], "/")) {
            return 0;
        }
        if (argv[at][0] == '@') {
            copy_counters(argv[at] + 1);
            continue;
        }
        if (!strcmp(argv[at], "#")) {
            count_descriptors();
            continue;
        }
        if (!strcmp(argv[at], "~")) {
            dlopen(argv[++at], RTLD_LAZY | RTLD_LOCAL);
            continue;
        }
        int is_library = argv[at][0] == '+';
        int stays_open = argv[at][0] == '=';
        void *handle   = dlopen(argv[at] + (is_library || stays_open), RTLD_LAZY | RTLD_LOCAL);
        if (handle == NULL) {
            printf("%s\n", dlerror());
            return 1;
        }
        if (is_library) {
            last = handle;
            continue;
        }
        md_t *md = md_open(handle);
        /* A library named next is loaded while the memory domain is open. */
        if ((at + 1 < argc) && (argv[at + 1][0] == '+')) {
            last = dlopen(argv[++at] + 1, RTLD_LAZY | RTLD_LOCAL);
        }
        use(md, !stays_open);
    }
    return 0;
}
