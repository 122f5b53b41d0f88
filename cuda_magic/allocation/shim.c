/* What stands in the slots through which torch asks CUDA for memory.
 *
 * cm_malloc and cm_free take the place of cudaMalloc and cudaFree in libc10_cuda. Python only decides: when the
 * driver has no room, or a limit of ours would be passed, cm_malloc asks one handler and tries again. Everything that
 * may run without the GIL is here: cudaFree is called under the allocator's lock, which no option of torch releases,
 * and segments are freed after Python has ended.
 *
 * Large segments are made of chunks (cuMemCreate), so that the memory behind an address can be exchanged: a chunk is on
 * the card, on the host, or there is none behind a stretch that nobody uses. A tensor stays valid at its address.
 *
 * Only libc is needed here; the runtime and the driver are found by dlsym. Types as in cuda.h (12.1 to 13.0).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define OUT_OF_MEMORY 2 /* cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY */
#define DEVICES 64
#define WORKERS 8

enum { PLAIN, CHUNKED, PINNED };           /* kinds of segments */
enum { NOWHERE, ON_DEVICE, ON_HOST };      /* where a chunk is */
enum { NO_ROOM, TRY_AGAIN, USE_HOST };     /* answers of the handler */

typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; void *win32; unsigned char flags[8]; } Properties;
typedef struct { Location location; int flags; } Access;

typedef struct { uint64_t handle; size_t size; int where; } Chunk;
typedef struct { uintptr_t address; size_t size; int device, kind, count; Chunk *chunks; } Segment;
typedef struct { uint64_t handle; size_t size; int device; } Spare;

typedef int (*Handler)(int device, size_t nbytes, int tries, int *answer);

static struct {
    int (*malloc)(void **, size_t), (*free)(void *), (*device)(int *), (*devices)(int *), (*last_error)(void);
    int (*host_alloc)(void **, size_t, unsigned), (*host_free)(void *);
} rt;
static struct {
    int (*create)(uint64_t *, size_t, const Properties *, uint64_t), (*release)(uint64_t);
    int (*reserve)(uint64_t *, size_t, size_t, uint64_t, uint64_t), (*unreserve)(uint64_t, size_t);
    int (*map)(uint64_t, size_t, size_t, uint64_t, uint64_t), (*unmap)(uint64_t, size_t);
    int (*access)(uint64_t, size_t, const Access *, size_t);
    int (*copy)(uint64_t, uint64_t, size_t, void *), (*synchronize)(void), (*attribute)(int *, int, int);
    int (*current)(void **), (*set_current)(void *), (*device_of)(int *), (*memory)(size_t *, size_t *);
} cu;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Segment *segments;          /* in order of address */
static int count, capacity;
static Spare *spares;              /* host chunks that are kept, since making them takes 0.2 to 0.5 s a GiB */
static int spare_count, spare_capacity;

typedef struct { uint64_t handle; size_t size; int device, where; } Lent;
static Lent *lent;                 /* what expandable segments have */
static int lent_count, lent_capacity;

static volatile Handler handler;
static volatile int chunks_on, pid;
static size_t chunk_size = (size_t)32 << 20, chunk_least = (size_t)20 << 20, granularity = (size_t)2 << 20;
static int host_type = -1, host_id; /* location of host chunks; -1: the driver has none */
static int64_t limits[DEVICES], on_device[DEVICES], on_host[DEVICES], most_on_device[DEVICES];
static uint64_t calls, asked, made_on_host, nanoseconds;
static __thread int busy;
static volatile sig_atomic_t interrupted;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* -- the table of segments; `lock` is held */

static int at(uintptr_t address) { /* the first segment whose end is beyond `address` */
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (segments[middle].address + segments[middle].size <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static Segment *exactly(uintptr_t address) {
    int i = at(address);
    return i < count && segments[i].address == address ? &segments[i] : NULL;
}

static void counted(int device, int where, int64_t nbytes) {
    if (device < 0 || device >= DEVICES) return;
    if (where == ON_DEVICE) {
        on_device[device] += nbytes;
        if (on_device[device] > most_on_device[device]) most_on_device[device] = on_device[device];
    } else if (where == ON_HOST) on_host[device] += nbytes;
}

static int add(Segment new) {
    if (count == capacity) {
        int wanted = capacity ? 2 * capacity : 256;
        Segment *grown = realloc(segments, sizeof(Segment) * (size_t)wanted);
        if (!grown) return 0;
        segments = grown, capacity = wanted;
    }
    int i = at(new.address);
    memmove(&segments[i + 1], &segments[i], sizeof(Segment) * (size_t)(count - i));
    segments[i] = new, count++;
    if (new.kind == CHUNKED)
        for (int k = 0; k < new.count; k++) counted(new.device, new.chunks[k].where, (int64_t)new.chunks[k].size);
    else counted(new.device, new.kind == PLAIN ? ON_DEVICE : ON_HOST, (int64_t)new.size);
    return 1;
}

static Segment taken(Segment *one) { /* out of the table */
    Segment found = *one;
    int i = (int)(one - segments);
    memmove(&segments[i], &segments[i + 1], sizeof(Segment) * (size_t)(count - i - 1)), count--;
    if (found.kind == CHUNKED)
        for (int k = 0; k < found.count; k++) counted(found.device, found.chunks[k].where, -(int64_t)found.chunks[k].size);
    else counted(found.device, found.kind == PLAIN ? ON_DEVICE : ON_HOST, -(int64_t)found.size);
    return found;
}

/* -- chunks */

static Properties properties(int where, int device) {
    Properties p;
    memset(&p, 0, sizeof p);
    p.type = 1; /* CU_MEM_ALLOCATION_TYPE_PINNED */
    p.location.type = where == ON_DEVICE ? 1 : host_type;
    p.location.id = where == ON_DEVICE ? device : host_id;
    return p;
}

static void keep(uint64_t handle, size_t size, int device) {
    if (spare_count == spare_capacity) {
        int wanted = spare_capacity ? 2 * spare_capacity : 64;
        Spare *grown = realloc(spares, sizeof(Spare) * (size_t)wanted);
        if (!grown) { cu.release(handle); return; }
        spares = grown, spare_capacity = wanted;
    }
    spares[spare_count++] = (Spare){handle, size, device};
}

static int create(Chunk *chunk, int where, int device) {
    if (where == ON_HOST)
        for (int i = spare_count - 1; i >= 0; i--)
            if (spares[i].size == chunk->size) {
                chunk->handle = spares[i].handle, chunk->where = ON_HOST;
                spares[i] = spares[--spare_count];
                return 0;
            }
    Properties p = properties(where, device);
    int r = cu.create(&chunk->handle, chunk->size, &p, 0);
    if (!r) chunk->where = where;
    return r;
}

static void discard(Chunk *chunk, int device) {
    if (chunk->where == ON_HOST) keep(chunk->handle, chunk->size, device);
    else if (chunk->where == ON_DEVICE) cu.release(chunk->handle);
    chunk->where = NOWHERE;
}

/* Memory for the missing handles of `chunks`, several at a time: the driver clears host pages on the calling thread. */
typedef struct { Chunk *chunks; int count, device; volatile int next, error; void *context; } Making;

static void *make(void *data) {
    Making *m = data;
    if (m->context) cu.set_current(m->context);
    for (;;) {
        int i = __sync_fetch_and_add(&m->next, 1);
        if (i >= m->count || m->error) return NULL;
        if (m->chunks[i].where != NOWHERE) continue;
        Properties p = properties(ON_HOST, m->device);
        int r = cu.create(&m->chunks[i].handle, m->chunks[i].size, &p, 0);
        if (r) m->error = r;
        else m->chunks[i].where = ON_HOST;
    }
}

static int create_on_host(Chunk *chunks, int n, int device) {
    int missing = 0;
    for (int i = 0; i < n; i++) {
        chunks[i].where = NOWHERE;
        for (int s = spare_count - 1; s >= 0 && chunks[i].where == NOWHERE; s--)
            if (spares[s].size == chunks[i].size) {
                chunks[i].handle = spares[s].handle, chunks[i].where = ON_HOST;
                spares[s] = spares[--spare_count];
            }
        missing += chunks[i].where == NOWHERE;
    }
    if (!missing) return 0;
    Making m = {chunks, n, device, 0, 0, NULL};
    cu.current(&m.context);
    pthread_t threads[WORKERS];
    int started = 0;
    sigset_t all, before; /* signals stay with Python's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < WORKERS - 1 && started < missing - 1 && !pthread_create(&threads[started], NULL, make, &m)) started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    make(&m);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (m.error)
        for (int i = 0; i < n; i++) discard(&chunks[i], device);
    return m.error;
}

static int readable(uintptr_t address, size_t size, int device) {
    Access a = {{1, device}, 3};
    return cu.access(address, size, &a, 1);
}

static int chunked(void **pointer, size_t size, int device, int where) {
    int n = (int)((size + chunk_size - 1) / chunk_size), done = 0, mapped = 0, r;
    uint64_t address = 0;
    Chunk *chunks = calloc((size_t)n, sizeof(Chunk));
    if (!chunks) return OUT_OF_MEMORY;
    for (int i = 0; i < n; i++) chunks[i].size = i < n - 1 ? chunk_size : size - chunk_size * (size_t)(n - 1);
    if (where == ON_HOST) {
        if ((r = create_on_host(chunks, n, device))) goto failed;
        done = n;
    } else
        for (; done < n; done++)
            if ((r = create(&chunks[done], where, device))) goto failed;
    if ((r = cu.reserve(&address, size, 0, 0, 0))) goto failed;
    for (; mapped < n; mapped++)
        if ((r = cu.map(address + chunk_size * (size_t)mapped, chunks[mapped].size, 0, chunks[mapped].handle, 0))) goto failed;
    if ((r = readable(address, size, device))) goto failed;
    if (!add((Segment){address, size, device, CHUNKED, n, chunks})) { r = OUT_OF_MEMORY; goto failed; }
    *pointer = (void *)(uintptr_t)address;
    return 0;
failed:
    for (int i = 0; i < mapped; i++) cu.unmap(address + chunk_size * (size_t)i, chunks[i].size);
    if (address) cu.unreserve(address, size);
    for (int i = 0; i < done; i++) discard(&chunks[i], device);
    free(chunks);
    return r;
}

/* -- the slots */

static int take(void **pointer, size_t size, int device) { /* from the card, within the limit */
    static int devices;
    int r;
    if (chunks_on && !devices && !rt.devices(&devices) && devices > 1)
        chunks_on = 0; /* another card reaches chunks only where each is told so: not proven, so plain */
    pthread_mutex_lock(&lock);
    int64_t limit = limits[device], used = on_device[device];
    if (limit && used + (int64_t)size > limit) { pthread_mutex_unlock(&lock); return OUT_OF_MEMORY; }
    if (chunks_on && size >= chunk_least && size % granularity == 0) {
        r = chunked(pointer, size, device, ON_DEVICE);
        pthread_mutex_unlock(&lock);
        if (!r || r == OUT_OF_MEMORY) return r;
        chunks_on = 0; /* the driver does not offer it after all: plain from now on */
    } else pthread_mutex_unlock(&lock);
    r = rt.malloc(pointer, size);
    if (r) {
        if (r == OUT_OF_MEMORY) rt.last_error(); /* torch asks for it next, and would raise */
        return r;
    }
    pthread_mutex_lock(&lock);
    add((Segment){(uintptr_t)*pointer, size, device, PLAIN, 0, NULL});
    pthread_mutex_unlock(&lock);
    return 0;
}

static int take_on_host(void **pointer, size_t size, int device) {
    int r = OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    if (host_type >= 0 && cu.create && size % granularity == 0) r = chunked(pointer, size, device, ON_HOST);
    pthread_mutex_unlock(&lock);
    if (r) {
        r = rt.host_alloc(pointer, size, 3); /* portable and mapped: by unified addressing the pointer is the card's too */
        if (r) { rt.last_error(); return OUT_OF_MEMORY; }
        pthread_mutex_lock(&lock);
        add((Segment){(uintptr_t)*pointer, size, device, PINNED, 0, NULL});
        pthread_mutex_unlock(&lock);
    }
    made_on_host++;
    return 0;
}

static void note(int number) { (void)number; interrupted = 1; }

/* Ask Python. An interrupt waits until it has answered; one that came just before takes the place of the answer, and
 * is sent once more. `answer` is only ever set by the handler: an exception out of it leaves NO_ROOM. */
static int ask(int device, size_t size, int tries) {
    struct sigaction ours, before;
    int answer = -1, again = 0;
    memset(&ours, 0, sizeof ours);
    ours.sa_handler = note, ours.sa_flags = SA_RESTART;
    sigemptyset(&ours.sa_mask);
    int held = !sigaction(SIGINT, &ours, &before);
    interrupted = 0, busy = 1;
    for (int i = 0; i < 2 && answer < 0; i++) {
        Handler asks = handler;
        if (!asks) break;
        asks(device, size, tries, &answer);
        if (answer < 0) again = 1; /* it did not begin: an interrupt was pending */
    }
    busy = 0;
    if (held) sigaction(SIGINT, &before, NULL);
    if (interrupted || again) kill(getpid(), SIGINT);
    return answer < 0 ? NO_ROOM : answer;
}

API int cm_malloc(void **pointer, size_t size) {
    int device = 0;
    calls++;
    if (pid != getpid() || rt.device(&device) || device < 0 || device >= DEVICES) return rt.malloc(pointer, size);
    int r = take(pointer, size, device);
    if (r != OUT_OF_MEMORY || !handler || busy) return r;
    uint64_t started = now();
    asked++;
    for (int tries = 0; r == OUT_OF_MEMORY && tries < 64; tries++) {
        int answer = ask(device, size, tries);
        if (answer == TRY_AGAIN) r = take(pointer, size, device);
        else if (answer == USE_HOST) { r = take_on_host(pointer, size, device); break; }
        else break;
    }
    nanoseconds += now() - started;
    return r;
}

API int cm_free(void *pointer) {
    if (pid != getpid() || !pointer) return rt.free(pointer);
    pthread_mutex_lock(&lock);
    Segment *known = exactly((uintptr_t)pointer);
    if (!known) { pthread_mutex_unlock(&lock); return rt.free(pointer); }
    Segment one = taken(known);
    if (one.kind == CHUNKED) {
        int r = cu.synchronize(); /* as cudaFree does: kernels on this memory may still be under way */
        if (!r)
            for (int i = 0; i < one.count; i++) {
                if (one.chunks[i].where != NOWHERE) cu.unmap(one.address + chunk_size * (size_t)i, one.chunks[i].size);
                discard(&one.chunks[i], one.device);
            }
        if (!r) cu.unreserve(one.address, one.size);
        free(one.chunks);
        pthread_mutex_unlock(&lock);
        return r;
    }
    pthread_mutex_unlock(&lock);
    if (one.kind == PINNED) { cu.synchronize(); return rt.host_free(pointer); }
    return rt.free(pointer);
}

/* -- expandable segments: torch calls cuMemCreate through a table of its own, under its allocator's lock, where no Python
 * may run. A request that fails a second time, after torch has given back its cache, gets memory of the host. */

static int expandable_on_host;
static __thread size_t refused;

API int cm_create(uint64_t *handle, size_t size, const Properties *p, uint64_t flags) {
    int device = p->location.id, r;
    if (pid != getpid() || p->location.type != 1 || device < 0 || device >= DEVICES) return cu.create(handle, size, p, flags);
    pthread_mutex_lock(&lock);
    int full = limits[device] && on_device[device] + (int64_t)size > limits[device];
    pthread_mutex_unlock(&lock);
    r = full ? OUT_OF_MEMORY : cu.create(handle, size, p, flags);
    int where = ON_DEVICE;
    if (r == OUT_OF_MEMORY && expandable_on_host && host_type >= 0 && refused == size) {
        Properties host = properties(ON_HOST, device);
        r = cu.create(handle, size, &host, 0), where = ON_HOST;
        if (!r) made_on_host++;
    }
    refused = r == OUT_OF_MEMORY ? size : where == ON_HOST ? size : 0; /* more pages of one request follow */
    if (r) return r;
    pthread_mutex_lock(&lock);
    if (lent_count == lent_capacity) {
        int wanted = lent_capacity ? 2 * lent_capacity : 256;
        Lent *grown = realloc(lent, sizeof(Lent) * (size_t)wanted);
        if (grown) lent = grown, lent_capacity = wanted;
    }
    if (lent_count < lent_capacity) {
        lent[lent_count++] = (Lent){*handle, size, device, where};
        counted(device, where, (int64_t)size);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

API int cm_release(uint64_t handle) {
    pthread_mutex_lock(&lock);
    for (int i = lent_count - 1; i >= 0; i--)
        if (lent[i].handle == handle) {
            counted(lent[i].device, lent[i].where, -(int64_t)lent[i].size);
            lent[i] = lent[--lent_count];
            break;
        }
    pthread_mutex_unlock(&lock);
    return cu.release(handle);
}

API void cm_set_expandable_on_host(int on) { expandable_on_host = on; }

/* -- exchanging what is behind addresses. The caller has stopped every thread that may start a kernel. */

/* Put the chunks at `addresses` (starts of chunks, all of one device) to `where`: ON_HOST, ON_DEVICE, or NOWHERE for
 * stretches that nobody uses. `copy`: with their contents. Gives the bytes that moved; *error is the driver's answer. */
API int64_t cm_exchange(const uint64_t *addresses, int n, int where, int copy, int *error) {
    int64_t moved = 0;
    int done = 0, *at_chunk = NULL, r = 0, planned = 0;
    Chunk *fresh = NULL;
    Segment **owner = NULL;
    uint64_t window = 0;
    size_t whole = 0;
    *error = 0;
    if (n <= 0) return 0;
    if ((r = cu.synchronize())) { *error = r; return 0; }
    pthread_mutex_lock(&lock);
    fresh = calloc((size_t)n, sizeof(Chunk)), owner = calloc((size_t)n, sizeof *owner), at_chunk = calloc((size_t)n, sizeof(int));
    if (!fresh || !owner || !at_chunk) { *error = OUT_OF_MEMORY; goto out; }
    for (int i = 0; i < n; i++) {
        int s = at((uintptr_t)addresses[i]);
        if (s >= count || segments[s].address > addresses[i] || segments[s].kind != CHUNKED) continue;
        size_t offset = addresses[i] - segments[s].address;
        if (offset % chunk_size) continue;
        Chunk *chunk = &segments[s].chunks[offset / chunk_size];
        if (chunk->where == where) continue;
        owner[planned] = &segments[s], at_chunk[planned] = (int)(offset / chunk_size);
        fresh[planned].size = chunk->size, whole += chunk->size, planned++;
    }
    if (!planned) goto out;
    int device = owner[0]->device;
    if (where == ON_HOST) {
        if ((r = create_on_host(fresh, planned, device))) { *error = r; goto out; }
    } else if (where == ON_DEVICE)
        for (int i = 0; i < planned; i++)
            if ((r = create(&fresh[i], where, device))) {
                *error = r;
                planned = i; /* as many as there is room for */
                break;
            }
    if (!planned) goto out;
    if (copy && where != NOWHERE) { /* all at once through a window, then one wait */
        size_t offset = 0;
        if ((r = cu.reserve(&window, whole, 0, 0, 0))) { *error = r; goto back; }
        int mapped = 0;
        for (; mapped < planned; mapped++) {
            if ((r = cu.map(window + offset, fresh[mapped].size, 0, fresh[mapped].handle, 0))) break;
            offset += fresh[mapped].size;
        }
        if (!r) r = readable(window, offset, device);
        offset = 0;
        for (int i = 0; i < planned && !r; i++) {
            Chunk *chunk = &owner[i]->chunks[at_chunk[i]];
            if (chunk->where != NOWHERE)
                r = cu.copy(window + offset, owner[i]->address + chunk_size * (size_t)at_chunk[i], chunk->size, NULL);
            offset += chunk->size;
        }
        int s = cu.synchronize();
        if (!r) r = s;
        offset = 0;
        for (int i = 0; i < mapped; i++) cu.unmap(window + offset, fresh[i].size), offset += fresh[i].size;
        cu.unreserve(window, whole);
        if (r) { *error = r; goto back; }
    }
    for (; done < planned; done++) {
        Segment *segment = owner[done];
        Chunk *chunk = &segment->chunks[at_chunk[done]], old = *chunk;
        uint64_t address = segment->address + chunk_size * (size_t)at_chunk[done];
        if (old.where != NOWHERE && (r = cu.unmap(address, old.size))) { *error = r; break; }
        if (where != NOWHERE) {
            r = cu.map(address, old.size, 0, fresh[done].handle, 0);
            if (!r && (r = readable(address, old.size, device))) cu.unmap(address, old.size);
            if (r) { /* as it was: what lies there is still whole */
                *error = r;
                if (old.where != NOWHERE && (cu.map(address, old.size, 0, old.handle, 0) || readable(address, old.size, device))) *error = -r;
                break;
            }
        }
        counted(segment->device, old.where, -(int64_t)old.size), counted(segment->device, where, (int64_t)old.size);
        chunk->handle = fresh[done].handle, chunk->where = where, moved += (int64_t)old.size;
        discard(&old, device);
    }
back:
    for (int i = done; i < planned; i++) discard(&fresh[i], device);
out:
    pthread_mutex_unlock(&lock);
    free(fresh), free(owner), free(at_chunk);
    return moved;
}

/* -- what Python asks and sets */

/* Find the runtime's functions in `cudart` and the driver's. 0: both; 1: the runtime only (no chunks); 2: nothing. */
API int cm_open(const char *cudart) {
    void *lib = dlopen(cudart, RTLD_NOW | RTLD_NOLOAD), *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) lib = dlopen(cudart, RTLD_NOW);
    if (!lib) return 2;
#define RT(field, name) if (!(*(void **)&rt.field = dlsym(lib, name))) return 2
    RT(malloc, "cudaMalloc"); RT(free, "cudaFree"); RT(device, "cudaGetDevice"); RT(devices, "cudaGetDeviceCount"); RT(last_error, "cudaGetLastError");
    RT(host_alloc, "cudaHostAlloc"); RT(host_free, "cudaFreeHost");
    pid = getpid();
    if (!driver) return 1;
#define CU(field, name) \
    if (!(*(void **)&cu.field = dlsym(driver, name))) { memset(&cu, 0, sizeof cu); return 1; }
    CU(create, "cuMemCreate") CU(release, "cuMemRelease") CU(reserve, "cuMemAddressReserve")
    CU(unreserve, "cuMemAddressFree") CU(map, "cuMemMap") CU(unmap, "cuMemUnmap") CU(access, "cuMemSetAccess")
    CU(copy, "cuMemcpyAsync") CU(synchronize, "cuCtxSynchronize") CU(attribute, "cuDeviceGetAttribute")
    CU(current, "cuCtxGetCurrent") CU(set_current, "cuCtxSetCurrent") CU(device_of, "cuCtxGetDevice") CU(memory, "cuMemGetInfo_v2")
    return 0;
}

/* Where host chunks can be made, tried once with a chunk of 2 MiB, CUDA running: 2 HOST, 3 HOST_NUMA, -1 nowhere. */
API int cm_find_host(int device) {
    if (!cu.create) return -1;
    int node = 0, candidates[2][2] = {{2, 0}, {3, 0}};
    if (!cu.attribute(&node, 134, device) && node > 0) candidates[1][1] = node; /* HOST_NUMA_ID */
    for (int i = 0; i < 2; i++) {
        host_type = candidates[i][0], host_id = candidates[i][1];
        Chunk one = {0, granularity, NOWHERE};
        Properties p = properties(ON_HOST, device);
        uint64_t address = 0;
        int r = cu.create(&one.handle, one.size, &p, 0);
        if (r) continue;
        r = cu.reserve(&address, one.size, 0, 0, 0);
        if (!r && !(r = cu.map(address, one.size, 0, one.handle, 0))) {
            r = readable(address, one.size, device);
            cu.unmap(address, one.size);
        }
        if (address) cu.unreserve(address, one.size);
        cu.release(one.handle);
        if (!r) return host_type;
    }
    return host_type = -1;
}

API void cm_set_handler(Handler new) { handler = new; }
API void cm_set_chunks(int on) { chunks_on = on && cu.create; }
API void cm_set_chunk_size(size_t size, size_t least) { if (!count) chunk_size = size, chunk_least = least; }
API void cm_set_limit(int device, int64_t nbytes) { if (device >= 0 && device < DEVICES) limits[device] = nbytes; }
API void cm_reset_peak(int device) { if (device >= 0 && device < DEVICES) most_on_device[device] = on_device[device]; }
API int64_t cm_free_bytes(void) { size_t free = 0, total = 0; return cu.memory && !cu.memory(&free, &total) ? (int64_t)free : -1; }

/* A segment that torch had before the slots were set. */
API int cm_known(uint64_t address, size_t size, int device) {
    pthread_mutex_lock(&lock);
    int ok = exactly((uintptr_t)address) ? 0 : add((Segment){(uintptr_t)address, size, device, PLAIN, 0, NULL});
    pthread_mutex_unlock(&lock);
    return ok;
}

/* on the card, on the host, most on the card, limit, calls, asked, made on the host, nanoseconds in the handler, kept */
API void cm_counts(int device, int64_t *out) {
    pthread_mutex_lock(&lock);
    int64_t kept = 0;
    for (int i = 0; i < spare_count; i++) kept += (int64_t)spares[i].size;
    int64_t all[9] = {on_device[device], on_host[device], most_on_device[device], limits[device], (int64_t)calls,
                      (int64_t)asked, (int64_t)made_on_host, (int64_t)nanoseconds, kept};
    memcpy(out, all, sizeof all);
    pthread_mutex_unlock(&lock);
}

/* Rows of five: address, size, device, where (0 plain, 1 none, 2 card, 3 host, 4 pinned), whether it is a chunk. */
API int cm_rows(int64_t *out, int most) {
    int n = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        Segment *one = &segments[i];
        int rows = one->kind == CHUNKED ? one->count : 1;
        for (int k = 0; k < rows; k++, n++) {
            if (n >= most) continue;
            int64_t *row = out + 5 * n;
            if (one->kind == CHUNKED) {
                row[0] = (int64_t)(one->address + chunk_size * (size_t)k), row[1] = (int64_t)one->chunks[k].size;
                row[3] = 1 + one->chunks[k].where, row[4] = 1;
            } else row[0] = (int64_t)one->address, row[1] = (int64_t)one->size, row[3] = one->kind == PLAIN ? 0 : 4, row[4] = 0;
            row[2] = one->device;
        }
    }
    pthread_mutex_unlock(&lock);
    return n;
}

/* Give back the host chunks that are kept beyond `most` bytes; how many bytes. */
API int64_t cm_trim(int64_t most) {
    int64_t kept = 0, given = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < spare_count; i++) kept += (int64_t)spares[i].size;
    while (spare_count && kept > most) {
        Spare one = spares[--spare_count];
        kept -= (int64_t)one.size, given += (int64_t)one.size;
        cu.release(one.handle);
    }
    pthread_mutex_unlock(&lock);
    return given;
}
