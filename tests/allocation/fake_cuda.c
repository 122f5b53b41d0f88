/* CUDA's runtime and driver in one library, as far as shim.c calls them: a card of `fake_cap` bytes, which is this
 * process's own memory. A chunk is a memfd, so that one chunk can be mapped at two addresses and its bytes stay. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; void *win32; unsigned char flags[8]; } Properties;
typedef struct { uintptr_t address; size_t size; int pinned; } Plain;

enum { MOST = 4096 };
int64_t fake_cap = 1 << 30, fake_used, fake_pinned, fake_reserved, fake_mapped, fake_on_host;
int fake_host = 1, fake_devices = 1, fake_copy_error, fake_map_errors, fake_creates, fake_plain_frees, fake_last_error;
static Plain plain[MOST];
static struct { size_t size; int device, used; } made[MOST];

static int fits(size_t size) { return fake_used + (int64_t)size <= fake_cap; }

static void *pages(size_t size) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int begin(void **pointer, size_t size, int pinned) {
    for (int i = 0; i < MOST; i++)
        if (!plain[i].address) {
            if (!(*pointer = pages(size))) return 2;
            plain[i] = (Plain){(uintptr_t)*pointer, size, pinned};
            *(pinned ? &fake_pinned : &fake_used) += (int64_t)size;
            return 0;
        }
    return 2;
}

static int finish(void *pointer, int pinned) {
    for (int i = 0; i < MOST; i++)
        if (pointer && plain[i].address == (uintptr_t)pointer && plain[i].pinned == pinned) {
            *(pinned ? &fake_pinned : &fake_used) -= (int64_t)plain[i].size;
            munmap(pointer, plain[i].size);
            plain[i].address = 0;
            return 0;
        }
    return 1;
}

int cudaMalloc(void **pointer, size_t size) {
    if (!fits(size)) return fake_last_error = 2;
    return begin(pointer, size, 0);
}
int cudaFree(void *pointer) { fake_plain_frees++; return finish(pointer, 0); }
int cudaHostAlloc(void **pointer, size_t size, unsigned flags) { (void)flags; return begin(pointer, size, 1); }
int cudaFreeHost(void *pointer) { return finish(pointer, 1); }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceCount(int *count) { *count = fake_devices; return 0; }
int cudaGetLastError(void) { int r = fake_last_error; fake_last_error = 0; return r; }

int cuMemCreate(uint64_t *handle, size_t size, const Properties *p, uint64_t flags) {
    (void)flags;
    int device = p->location.type == 1;
    if (!device && !fake_host) return 1;
    if (device && !fits(size)) return 2;
    int fd = memfd_create("chunk", 0);
    if (fd < 0 || fd >= MOST || ftruncate(fd, (off_t)size)) return 2;
    made[fd].size = size, made[fd].device = device, made[fd].used = 1;
    __sync_fetch_and_add(&fake_creates, 1); /* several threads make host chunks */
    __sync_fetch_and_add(device ? &fake_used : &fake_on_host, (int64_t)size);
    *handle = (uint64_t)fd;
    return 0;
}
int cuMemRelease(uint64_t handle) {
    if (handle >= MOST || !made[handle].used) return 1;
    made[handle].used = 0;
    *(made[handle].device ? &fake_used : &fake_on_host) -= (int64_t)made[handle].size;
    return close((int)handle) ? 1 : 0;
}
int cuMemAddressReserve(uint64_t *address, size_t size, size_t a, uint64_t wanted, uint64_t flags) {
    (void)a, (void)wanted, (void)flags;
    void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return 2;
    fake_reserved += (int64_t)size, *address = (uint64_t)(uintptr_t)p;
    return 0;
}
int cuMemAddressFree(uint64_t address, size_t size) {
    fake_reserved -= (int64_t)size;
    return munmap((void *)(uintptr_t)address, size) ? 1 : 0;
}
int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
    (void)flags;
    if (fake_map_errors && !--fake_map_errors) return 999;
    if (handle >= MOST || !made[handle].used || made[handle].size != size) return 1;
    void *p = mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, (off_t)offset);
    if (p == MAP_FAILED) return 1;
    fake_mapped += (int64_t)size;
    return 0;
}
int cuMemUnmap(uint64_t address, size_t size) {
    void *p = mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    fake_mapped -= (int64_t)size;
    return p == MAP_FAILED ? 1 : 0;
}
int cuMemSetAccess(uint64_t address, size_t size, const void *access, size_t count) {
    (void)access, (void)count;
    return mprotect((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE) ? 1 : 0;
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
    (void)stream;
    if (fake_copy_error) return fake_copy_error;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    return 0;
}
int cuCtxSynchronize(void) { return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { (void)which, (void)device; *value = 0; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = (size_t)(fake_cap > fake_used ? fake_cap - fake_used : 0), *total = (size_t)fake_cap;
    return 0;
}

/* An interrupt that Python has not seen yet when memory is asked for. */
int fake_interrupted(int (*allocate)(void **, size_t), void **pointer, size_t size) {
    raise(SIGINT);
    return allocate(pointer, size);
}
