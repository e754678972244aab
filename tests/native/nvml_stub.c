/*
 * A stand-in for libnvidia-ml.so.1, enough for the real pynvml: a double for what this machine lacks, the driver.
 *
 * STATE_FILE names a text file of lines "GPU NAME VALUE" (whole numbers), read when NVML is initialised; GPU -1 is the
 * driver's own: "-1 count 4" makes four GPUs, "-1 hang 1" a driver that never answers. A GPU's names are the arguments of
 * value() below, and "lost". A counter without a line is 0; "pcie_replay" without a line is not supported.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef STATE_FILE
#error "STATE_FILE names the file with the GPUs' state"
#endif

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define GPU_IS_LOST 15
#define MOST 16

typedef struct { int index; } device;
static device gpus[MOST];

static struct { int gpu; char name[32]; long long value; } state[256];
static int known;

static long long value(int gpu, const char *name, long long otherwise) {
    for (int i = 0; i < known; i++)
        if (state[i].gpu == gpu && !strcmp(state[i].name, name)) return state[i].value;
    return otherwise;
}

int nvmlInit_v2(void) {
    FILE *file = fopen(STATE_FILE, "re");

    for (known = 0; file && known < 256; known++)
        if (fscanf(file, "%d %31s %lld", &state[known].gpu, state[known].name, &state[known].value) != 3) break;
    if (file) fclose(file);
    for (int i = 0; i < MOST; i++) gpus[i].index = i;
    while (value(-1, "hang", 0)) pause();
    return SUCCESS;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "550.54.15"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = value(-1, "count", 2); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **gpu) {
    *gpu = &gpus[index % MOST];
    return value(index, "lost", 0) ? GPU_IS_LOST : SUCCESS;
}
int nvmlDeviceGetUUID(device *gpu, char *text, unsigned size) {
    char host[64] = "";

    gethostname(host, sizeof host - 1);
    snprintf(text, size, "GPU-%s-%04d", host, gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetName(device *gpu, char *text, unsigned size) { (void)gpu; snprintf(text, size, "Stub H100"); return SUCCESS; }
int nvmlDeviceGetSerial(device *gpu, char *text, unsigned size) { snprintf(text, size, "471%d", gpu->index); return SUCCESS; }
int nvmlDeviceGetMinorNumber(device *gpu, unsigned *minor) { *minor = value(gpu->index, "minor", gpu->index); return SUCCESS; }

/* nvmlPciInfo_t of nvml.h: busIdLegacy, domain, bus, device, ids, busId. */
struct pci { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char id[32]; };
int nvmlDeviceGetPciInfo_v3(device *gpu, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", 0x3B + gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(device *gpu, int type, int counter, unsigned long long *count) {
    (void)type;
    *count = value(gpu->index, counter ? "ecc_aggregate" : "ecc_volatile", 0);
    return SUCCESS;
}
int nvmlDeviceGetTemperature(device *gpu, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = value(gpu->index, "temperature", 41);
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(device *gpu, unsigned *milliwatt) { *milliwatt = value(gpu->index, "milliwatt", 123500); return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device *gpu, unsigned long long *reasons) {
    *reasons = value(gpu->index, "event_reasons", 0);
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(device *gpu, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    *correctable = value(gpu->index, "remapped_correctable", 0);
    *uncorrectable = value(gpu->index, "remapped_uncorrectable", 0);
    *pending = value(gpu->index, "remap_pending", 0);
    *failed = value(gpu->index, "remap_failure", 0);
    return SUCCESS;
}
int nvmlDeviceGetPcieReplayCounter(device *gpu, unsigned *count) {
    long long replays = value(gpu->index, "pcie_replay", -1);

    *count = replays;
    return replays < 0 ? NOT_SUPPORTED : SUCCESS;
}
