/*
 * Preloaded into a program of another processor under a user-mode emulator: programs of that processor which it starts run under
 * the emulator as well. A machine with binfmt_misc does the same. XGVMI_FOREIGN_EMULATOR names the emulator.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_MAX = 64 };

/* Whether the file is a program of this processor. */
static int is_own(const char *file) {
  Elf64_Ehdr head;
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  int read_all = fd >= 0 && read(fd, &head, sizeof head) == (ssize_t)sizeof head;
  if (fd >= 0)
    close(fd);
  return read_all && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_machine == EM_AARCH64;
}

/* The words with the emulator in front of them; 0 if they are too many. */
static int with_emulator(const char *file, char *const words[], char *to[WORDS_MAX]) {
  size_t count = 0;
  to[0] = getenv("XGVMI_FOREIGN_EMULATOR");
  to[1] = (char *)file;
  while (words[count] != NULL && count + 2 < WORDS_MAX) {
    if (count > 0)
      to[count + 1] = words[count];
    count++;
  }
  to[count + 1] = NULL;
  return to[0] != NULL && words[count] == NULL;
}

/* The device's library calls this function for all of its kind. */
int execvpe(const char *file, char *const words[], char *const variables[]) {
  char *more[WORDS_MAX];
  if (is_own(file)) {
    if (!with_emulator(file, words, more)) {
      errno = E2BIG;
      return -1;
    }
    return execve(more[0], more, variables);
  }
  int (*next)(const char *, char *const[], char *const[]) =
      (int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, "execvpe");
  return next(file, words, variables);
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const words[], char *const variables[]) {
  char *more[WORDS_MAX];
  if (is_own(file)) {
    if (!with_emulator(file, words, more))
      return E2BIG;
    return posix_spawn(pid, more[0], actions, attributes, more, variables);
  }
  int (*next)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]) =
      (int (*)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
               char *const[]))dlsym(RTLD_NEXT, "posix_spawnp");
  return next(pid, file, actions, attributes, words, variables);
}
