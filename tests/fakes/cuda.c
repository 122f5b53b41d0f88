/* A small libcuda.so.1 for tests: the calls that a start makes, answered as environment variables say.
 *
 *   FAKE_CUINIT 2            what cuInit answers (0)      FAKE_CUDA_COUNT 4     devices (1)
 *   FAKE_CUDA_API 12020      cuDriverGetVersion (13000)   FAKE_CUDA_CC 61       compute capability of each (90)
 *   FAKE_CUDA_ALLOC 2        cuMemAlloc's answer (0)      FAKE_CUDA_CONTEXT 2   a new context's answer (0)
 *   FAKE_CUDA_NO_PEERS 1     no device reaches another    FAKE_CUDA_INTEGRATED 1
 *   FAKE_CUDA_HANG 1         cuInit never returns         FAKE_CUDA_CRASH 11    cuInit ends the process by this signal
 *   FAKE_CUDA_NAME_CRASH 11  the same in cuDeviceGetName  FAKE_CUDA_EXIT 7      cuInit ends the process by exit(7)
 *   FAKE_CUDA_PRINT 1        cuInit prints on stdout      FAKE_CUDA_LOG TEXT    cuInit writes it to CUDA_LOG_FILE
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int started;

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value && *value ? atoi(value) : otherwise;
}

int cuDriverGetVersion(int *version) { *version = setting("FAKE_CUDA_API", 13000); return 0; }

int cuInit(unsigned flags) {
    (void)flags;
    while (setting("FAKE_CUDA_HANG", 0)) pause();
    if (setting("FAKE_CUDA_CRASH", 0)) raise(setting("FAKE_CUDA_CRASH", 0) == 1 ? SIGSEGV : setting("FAKE_CUDA_CRASH", 0));
    if (setting("FAKE_CUDA_EXIT", 0)) _exit(setting("FAKE_CUDA_EXIT", 0));
    if (setting("FAKE_CUDA_PRINT", 0)) { printf("{\"code\": 0, \"device_count\": 8}\n"); fflush(stdout); }
    if (getenv("FAKE_CUDA_LOG") && getenv("CUDA_LOG_FILE")) {
        FILE *log = fopen(getenv("CUDA_LOG_FILE"), "w");
        if (log) { fprintf(log, "%s\n", getenv("FAKE_CUDA_LOG")); fclose(log); }
    }
    int code = setting("FAKE_CUINIT", 0);
    started = code == 0;
    return code;
}

int cuDeviceGetCount(int *count) {
    if (!started) return 3;
    *count = setting("FAKE_CUDA_COUNT", 1);
    return 0;
}

int cuDeviceGet(int *device, int index) {
    if (index >= setting("FAKE_CUDA_COUNT", 1)) return 101;
    *device = index;
    return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
    if (setting("FAKE_CUDA_NAME_CRASH", 0)) raise(setting("FAKE_CUDA_NAME_CRASH", 0));
    snprintf(name, length, "Fake GPU %d", device);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *total, int device) { (void)device; *total = (size_t)24 << 30; return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int capability = setting("FAKE_CUDA_CC", 90);
    switch (attribute) {
    case 18: *value = setting("FAKE_CUDA_INTEGRATED", 0); return 0;
    case 20: *value = 0; return 0;
    case 33: *value = device + 1; return 0;
    case 34: case 50: *value = 0; return 0;
    case 75: *value = capability / 10; return 0;
    case 76: *value = capability % 10; return 0;
    }
    return 1;
}

int cuDeviceCanAccessPeer(int *can, int a, int b) {
    (void)a; (void)b;
    *can = !setting("FAKE_CUDA_NO_PEERS", 0);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(long)(device + 1);
    return setting("FAKE_CUDA_CONTEXT", 0);
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    (void)size;
    *address = 0x1000;
    return setting("FAKE_CUDA_ALLOC", 0);
}
int cuMemFree_v2(unsigned long long address) { (void)address; return 0; }
