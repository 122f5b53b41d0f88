/* A small libnvidia-ml.so.1 for tests. It answers from a control file (one "key value" a line), read again whenever
 * it is replaced, so that a test can change a card, break any call and mend it while the library is in use.
 *
 *   devices 2 | driver 580.65.06 | cuda 13000
 *   name.0 NVIDIA H200            fields of device 0; "name.0.1" are those of its MIG instance 1
 *   total.0 / used.0 / reserved.0 bytes;  util.0 percent;  temp.0 Celsius;  power.0, limit.0 milliwatts
 *   hot.0 Celsius; clock.0, fast.0 MHz; held.0 bits of the clock's event reasons
 *   proc.0.0 PID BYTES            compute process 0 of device 0 (BYTES -1: not available);  gproc.0.0 graphics
 *   nproc.0 1 | ngproc.0 0 | mig.0 1 | nmig.0 2
 *   error.nvmlDeviceGetName 3     the call fails with this code;  error.nvmlDeviceGetName.0 for one device only
 *   error.any.0 15                every call on device 0 fails
 *   error.nvmlDeviceGetName hang  it never returns;  crash: SIGSEGV;  slow 300: it takes 300 ms
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 4096
#define CALLS 128
typedef struct { char key[96]; char value[160]; } Row;
typedef struct { char id[16]; } Handle;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { char legacy[16]; unsigned domain, bus, device, pci, sub; char id[32]; } Pci;
typedef struct { unsigned version, sensor; int temperature; } TemperatureV;

static Row rows[ROWS];
static int row_count;
static struct stat seen;
static Handle handles[256];
static int handle_count;
static struct { char name[64]; long count; } calls[CALLS];
static int initialised;
static pid_t owner;

static void reload(void) {
    const char *path = getenv("CUDA_MAGIC_FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now)) { row_count = 0; return; }
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_size == seen.st_size) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[320];
    row_count = 0;
    while (fgets(line, sizeof line, file) && row_count < ROWS) {
        line[strcspn(line, "\n")] = 0;
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = 0;
        snprintf(rows[row_count].key, sizeof rows[0].key, "%.95s", line);
        snprintf(rows[row_count++].value, sizeof rows[0].value, "%.159s", space + 1);
    }
    fclose(file);
    seen = now;
}

static const char *get(const char *key, const char *id) {
    char full[96];
    if (id) snprintf(full, sizeof full, "%s.%s", key, id); else snprintf(full, sizeof full, "%s", key);
    for (int i = 0; i < row_count; i++) if (!strcmp(rows[i].key, full)) return rows[i].value;
    return NULL;
}

static unsigned long long number(const char *key, const char *id, unsigned long long otherwise) {
    const char *text = get(key, id);
    return text ? (unsigned long long)strtoll(text, NULL, 10) : otherwise;
}

static int enter(const char *name, const char *id) {
    int i = 0;
    while (i < CALLS - 1 && calls[i].name[0] && strcmp(calls[i].name, name)) i++;
    snprintf(calls[i].name, sizeof calls[0].name, "%s", name);
    calls[i].count++;
    reload();
    char key[96];
    snprintf(key, sizeof key, "error.%s", name);
    const char *code = id ? get(key, id) : NULL;
    if (!code) code = get(key, NULL);
    if (!code && id) code = get("error.any", id);
    if (code && !strcmp(code, "hang")) while (1) pause();
    if (code && !strcmp(code, "crash")) raise(SIGSEGV);
    if (code && !strncmp(code, "slow ", 5)) { usleep(1000 * atoi(code + 5)); code = NULL; }
    if (code) return atoi(code);
    if (strncmp(name, "nvmlInit", 8) && (!initialised || owner != getpid())) return 1;
    return 0;
}

static Handle *handle(const char *id) {
    for (int i = 0; i < handle_count; i++) if (!strcmp(handles[i].id, id)) return &handles[i];
    if (handle_count == 256) return NULL;
    snprintf(handles[handle_count].id, sizeof handles[0].id, "%s", id);
    return &handles[handle_count++];
}

static int text(const char *value, char *out, unsigned size) {
    if (!value) return 3;
    if (strlen(value) + 1 > size) return 7;
    strcpy(out, value);
    return 0;
}

/* For the tests themselves: how often a call was made (all calls for NULL), and forget the counts. */
long fake_calls(const char *name) {
    long sum = 0;
    for (int i = 0; i < CALLS && calls[i].name[0]; i++) if (!name || !strcmp(calls[i].name, name)) sum += calls[i].count;
    return sum;
}
void fake_reset(void) { memset(calls, 0, sizeof calls); memset(&seen, 0, sizeof seen); initialised = 0; }

#define ENTER(id) do { int code_ = enter(__func__, id); if (code_) return code_; } while (0)

static int start(const char *name) {
    int code = enter(name, NULL);
    if (code) return code;
    initialised++; owner = getpid();
    return 0;
}
int nvmlInit_v2(void) { return start(__func__); }
int nvmlInit(void) { return start(__func__); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return start(__func__); }
int nvmlShutdown(void) { ENTER(NULL); initialised--; return 0; }

const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER(NULL); const char *v = get("driver", NULL); return text(v ? v : "580.65.06", out, size);
}
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { ENTER(NULL); return text("13.580.65.06", out, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(NULL); *out = (int)number("cuda", NULL, 13000); return 0; }
int nvmlSystemGetCudaDriverVersion(int *out) { ENTER(NULL); *out = (int)number("cuda", NULL, 13000); return 0; }
int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    ENTER(NULL); char key[32]; snprintf(key, sizeof key, "%u", pid);
    const char *v = get("process", key); return v ? text(v, out, size) : 6;
}
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(NULL); *out = (unsigned)number("devices", NULL, 0); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **out) {
    char id[16]; snprintf(id, sizeof id, "%u", index);
    ENTER(id);
    if (index >= number("devices", NULL, 0)) return 2;
    *out = handle(id);
    return *out ? 0 : 20;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **out) {
    ENTER(NULL);
    for (unsigned i = 0; i < number("devices", NULL, 0); i++) {
        char id[16]; snprintf(id, sizeof id, "%u", i);
        const char *own = get("uuid", id);
        if (own && !strcmp(own, uuid)) { *out = handle(id); return 0; }
    }
    return 6;
}
int nvmlDeviceGetIndex(Handle *d, unsigned *out) { ENTER(d->id); *out = (unsigned)atoi(d->id); return 0; }
int nvmlDeviceGetMinorNumber(Handle *d, unsigned *out) { ENTER(d->id); *out = (unsigned)atoi(d->id); return 0; }
int nvmlDeviceGetName(Handle *d, char *out, unsigned size) { ENTER(d->id); return text(get("name", d->id), out, size); }
int nvmlDeviceGetUUID(Handle *d, char *out, unsigned size) { ENTER(d->id); return text(get("uuid", d->id), out, size); }
int nvmlDeviceGetPciInfo_v3(Handle *d, Pci *out) {
    ENTER(d->id); memset(out, 0, sizeof *out); out->bus = (unsigned)atoi(d->id) + 1;
    const char *v = get("bus", d->id);
    if (v) snprintf(out->id, sizeof out->id, "%s", v);
    else snprintf(out->id, sizeof out->id, "00000000:%02X:00.0", out->bus);
    return 0;
}
int nvmlDeviceGetMemoryInfo(Handle *d, Memory *out) { /* version 1 counts the driver's part as used */
    ENTER(d->id);
    if (!get("total", d->id)) return 3;
    out->total = number("total", d->id, 0);
    out->used = number("used", d->id, 0) + number("reserved", d->id, 0);
    out->free = out->total - out->used;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(Handle *d, MemoryV2 *out) {
    ENTER(d->id);
    if (out->version != 0x02000028) return 25;
    if (!get("total", d->id)) return 3;
    out->total = number("total", d->id, 0);
    out->used = number("used", d->id, 0);
    out->reserved = number("reserved", d->id, 0);
    out->free = number("free", d->id, out->total - out->used - out->reserved);
    return 0;
}
int nvmlDeviceGetUtilizationRates(Handle *d, Utilization *out) {
    ENTER(d->id); if (!get("util", d->id)) return 3;
    out->gpu = (unsigned)number("util", d->id, 0); out->memory = 0; return 0;
}
int nvmlDeviceGetTemperature(Handle *d, int sensor, unsigned *out) {
    (void)sensor; ENTER(d->id); if (!get("temp", d->id)) return 3; *out = (unsigned)number("temp", d->id, 0); return 0;
}
int nvmlDeviceGetTemperatureV(Handle *d, TemperatureV *out) {
    ENTER(d->id); if (!get("temp", d->id)) return 3; out->temperature = (int)number("temp", d->id, 0); return 0;
}
int nvmlDeviceGetPowerUsage(Handle *d, unsigned *out) {
    ENTER(d->id); if (!get("power", d->id)) return 3; *out = (unsigned)number("power", d->id, 0); return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(Handle *d, unsigned *out) {
    ENTER(d->id); if (!get("limit", d->id)) return 3; *out = (unsigned)number("limit", d->id, 0); return 0;
}
int nvmlDeviceGetTemperatureThreshold(Handle *d, int kind, unsigned *out) {
    ENTER(d->id); if (kind != 1 || !get("hot", d->id)) return 3; *out = (unsigned)number("hot", d->id, 0); return 0;
}
int nvmlDeviceGetClockInfo(Handle *d, int kind, unsigned *out) {
    ENTER(d->id); if (kind != 1 || !get("clock", d->id)) return 3; *out = (unsigned)number("clock", d->id, 0); return 0;
}
int nvmlDeviceGetMaxClockInfo(Handle *d, int kind, unsigned *out) {
    ENTER(d->id); if (kind != 1 || !get("fast", d->id)) return 3; *out = (unsigned)number("fast", d->id, 0); return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(Handle *d, unsigned long long *out) {
    ENTER(d->id); if (!get("held", d->id)) return 3; *out = (unsigned long long)number("held", d->id, 0); return 0;
}
int nvmlDeviceGetComputeMode(Handle *d, int *out) { ENTER(d->id); *out = (int)number("mode", d->id, 0); return 0; }
int nvmlDeviceGetCudaComputeCapability(Handle *d, int *major, int *minor) {
    ENTER(d->id); const char *v = get("cc", d->id);
    if (!v || sscanf(v, "%d %d", major, minor) != 2) { *major = 9; *minor = 0; }
    return 0;
}
static int processes(Handle *d, unsigned *count, Process *out, const char *what, const char *how_many) {
    unsigned n = (unsigned)number(how_many, d->id, 0), room = *count;
    *count = n;
    if (!n) return 0;
    if (!out || room < n) return 7;
    for (unsigned i = 0; i < n; i++) {
        char id[32]; snprintf(id, sizeof id, "%s.%u", d->id, i);
        const char *v = get(what, id); long long pid = 0, used = -1;
        if (v) sscanf(v, "%lld %lld", &pid, &used);
        out[i].pid = (unsigned)pid; out[i].used = (unsigned long long)used;
        out[i].gi = out[i].ci = 0xFFFFFFFFu;
    }
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle *d, unsigned *n, Process *out) {
    ENTER(d->id); return processes(d, n, out, "proc", "nproc");
}
int nvmlDeviceGetComputeRunningProcesses_v2(Handle *d, unsigned *n, Process *out) {
    ENTER(d->id); return processes(d, n, out, "proc", "nproc");
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle *d, unsigned *n, Process *out) {
    ENTER(d->id); return processes(d, n, out, "gproc", "ngproc");
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(Handle *d, unsigned *n, Process *out) {
    ENTER(d->id); return processes(d, n, out, "gproc", "ngproc");
}
int nvmlDeviceGetMigMode(Handle *d, unsigned *current, unsigned *pending) {
    ENTER(d->id); if (!get("mig", d->id)) return 3;
    *current = *pending = (unsigned)number("mig", d->id, 0); return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(Handle *d, unsigned *out) {
    ENTER(d->id); *out = (unsigned)number("nmig", d->id, 0); return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Handle *d, unsigned index, Handle **out) {
    ENTER(d->id);
    char id[16]; snprintf(id, sizeof id, "%.8s.%u", d->id, index);
    if (!get("total", id)) return 6;
    *out = handle(id);
    return *out ? 0 : 20;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle *d, Handle **out) {
    ENTER(d->id); char id[16]; snprintf(id, sizeof id, "%s", d->id);
    char *dot = strchr(id, '.'); if (dot) *dot = 0; *out = handle(id); return 0;
}
int nvmlDeviceGetPcieThroughput(Handle *d, int counter, unsigned *out) { /* the real one sleeps for 20 ms */
    (void)counter; ENTER(d->id); usleep(20000); *out = 0; return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(Handle *a, Handle *b, int *level) {
    ENTER(a->id);
    char key[64];
    snprintf(key, sizeof key, "topo.%.15s", a->id);
    *level = (int)number(key, b->id, 50);
    return 0;
}
int nvmlDeviceGetNvLinkState(Handle *h, unsigned link, unsigned *active) {
    ENTER(h->id); *active = link < number("nvlinks", h->id, 0); return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Handle *h, unsigned link, unsigned *type) {
    ENTER(h->id); (void)link; *type = get("nvlinkto", h->id) ? 0 : 2; return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle *h, unsigned link, Pci *pci) {
    ENTER(h->id); (void)link; snprintf(pci->id, sizeof pci->id, "%s", get("nvlinkto", h->id)); return 0;
}
