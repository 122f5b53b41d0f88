/* A library with a slot for each of three functions: two that it calls, and one whose address it gives. For the tests
 * of slots.py; tiny.x86_64.elf and tiny.aarch64.elf are made of it by zig 0.17.1:
 *   python -m ziglang cc -target MACHINE-linux-gnu.2.17 -O2 -fPIC -shared -s -Wl,-z,lazy -o tiny.MACHINE.elf tiny.c */
#include <stdlib.h>
#include <unistd.h>

void *ask(size_t size) { return malloc(size); }
int who(void) { return getpid(); }
pid_t (*parent(void))(void) { return getppid; }
