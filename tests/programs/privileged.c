/* Prints what a privileged (setuid) program sees of the device: one line, "secure=.. uid=.. euid=..
 * library=.. device=..", for tests/system/privileged.rs.
 *
 *   privileged                     prints the line
 *   privileged UID PROGRAM         changes permanently to this user and executes PROGRAM
 */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* True if the emulator's library is in this process. */
static int library(void)
{
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");

    if (!maps) {
        fprintf(stderr, "open /proc/self/maps: %s\n", strerror(errno));
        exit(2);
    }
    while (fgets(line, sizeof(line), maps))
        found |= strstr(line, "libbfemu_preload") != NULL;
    fclose(maps);
    return found;
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        uid_t user = (uid_t)atol(argv[1]);

        if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user)) {
            fprintf(stderr, "become user %s: %s\n", argv[1], strerror(errno));
            return 2;
        }
        execl(argv[2], argv[2], (char *)NULL);
        fprintf(stderr, "exec %s: %s\n", argv[2], strerror(errno));
        return 2;
    }
    printf("secure=%lu uid=%u euid=%u library=%d device=%d\n", getauxval(AT_SECURE), getuid(), geteuid(), library(),
           access("/sys/class/infiniband/mlx5_0", F_OK) == 0);
    return 0;
}
