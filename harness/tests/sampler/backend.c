/* A ggml backend for tests: the CPU's under another name, which brings a sampler of its own. Built against no header:
 * what it needs of ggml's structures is copied from the CPU's at run time, so that it fits every build.
 *
 * With MISTAKE defined it takes the last of equal maxima; with REFUSE it says that it cannot. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern void * ggml_backend_dev_by_name(const char * name);
extern void * ggml_backend_dev_init(void * device, const char * params);
extern void * ggml_backend_dev_backend_reg(void * device);
extern void * ggml_backend_reg_get_proc_address(void * reg, const char * name);
extern void   ggml_backend_tensor_get(const void * tensor, void * data, size_t offset, size_t size);
extern int64_t ggml_nelements(const void * tensor);

struct registry {
    int api_version;
    const char * (*get_name)(void * reg);
    size_t (*get_device_count)(void * reg);
    void * (*get_device)(void * reg, size_t index);
    void * (*get_proc_address)(void * reg, const char * name);
    void * context;
};

/* Fifteen functions, the registry and a context, and room for what later versions may add. */
#define DEVICE_WORDS 18
enum { NAME = 0, DESCRIPTION = 1, TYPE = 3, INIT = 5 };

static struct registry registry;
static void * device[DEVICE_WORDS];
static void * cpu;

static const char * registry_name(void * reg) { (void) reg; return "Test"; }
static size_t device_count(void * reg) { (void) reg; return 1; }
static void * get_device(void * reg, size_t index) { (void) reg; return index == 0 ? device : NULL; }
static const char * device_name(void * dev) { (void) dev; return "Test0"; }
static const char * device_description(void * dev) { (void) dev; return "the CPU, for tests"; }
static int device_type(void * dev) { (void) dev; return 1; /* a GPU */ }

/* The CPU's backend, which from now on is of this device. */
static void * init_backend(void * dev, const char * params) {
    void ** backend = ggml_backend_dev_init(cpu, params);
    for (int i = 0; backend != NULL && i < 64; i++) {
        if (backend[i] == cpu) {
            backend[i] = dev;
            break;
        }
    }
    return backend;
}

#ifndef REFUSE
/* One row in f64. */
static void sample_row(const float * z, int64_t n, float u, float inv_temp, int * argmax, float * entropy, int * sampled) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
#ifdef MISTAKE
        if (z[i] >= z[best]) best = i;
#else
        if (z[i] > z[best]) best = i;
#endif
    }
    double total = 0.0, mean = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double d = ((double) z[i] - z[best]) * inv_temp, e = exp(d);
        total += e;
        if (e > 0.0) mean += d * e;
    }
    double sum = 0.0;
    int64_t drawn = n - 1;
    for (int64_t i = 0; i < n; i++) {
        sum += exp(((double) z[i] - z[best]) * inv_temp);
        if (sum >= u * total) {
            drawn = i;
            break;
        }
    }
    *argmax = (int) best;
    *entropy = (float) (log(total) - mean / total);
    *sampled = (int) drawn;
}
#endif

static bool diffusion_sample(void * logits, const float * u, int * argmax, float * entropy, int * sampled, int n_tokens, float inv_temp) {
#ifdef REFUSE
    (void) logits; (void) u; (void) argmax; (void) entropy; (void) sampled; (void) n_tokens; (void) inv_temp;
    return false;
#else
    int64_t vocab = ggml_nelements(logits) / n_tokens;
    float * row = malloc(sizeof(float) * (size_t) vocab);
    if (row == NULL) return false;
    for (int i = 0; i < n_tokens; i++) {
        ggml_backend_tensor_get(logits, row, sizeof(float) * (size_t) (vocab * i), sizeof(float) * (size_t) vocab);
        sample_row(row, vocab, u[i], inv_temp, argmax + i, entropy + i, sampled + i);
    }
    free(row);
    return true;
#endif
}

static void * proc_address(void * reg, const char * name) {
    (void) reg;
    if (strcmp(name, "ggml_backend_test_diffusion_sample") == 0) {
        bool (*found)(void *, const float *, int *, float *, int *, int, float) = diffusion_sample;
        void * address;
        memcpy(&address, &found, sizeof address);
        return address;
    }
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name);
}

#define PUT(index, type, function)                              \
    do {                                                        \
        type pointer = function;                                \
        memcpy(&device[index], &pointer, sizeof pointer);       \
    } while (0)

typedef const char * (*text_function)(void *);
typedef int (*type_function)(void *);
typedef void * (*init_function)(void *, const char *);

__attribute__((visibility("default"))) void * ggml_backend_init(void) {
    cpu = ggml_backend_dev_by_name("CPU");
    if (cpu == NULL) return NULL;
    void * cpu_registry = ggml_backend_dev_backend_reg(cpu);
    registry = (struct registry) {
        *(int *) cpu_registry, registry_name, device_count, get_device, proc_address, NULL,
    };
    memcpy(device, cpu, sizeof device);
    PUT(NAME, text_function, device_name);
    PUT(DESCRIPTION, text_function, device_description);
    PUT(TYPE, type_function, device_type);
    PUT(INIT, init_function, init_backend);
    for (int i = 0; i < DEVICE_WORDS; i++) {
        if (device[i] == cpu_registry) device[i] = &registry;
    }
    return &registry;
}
