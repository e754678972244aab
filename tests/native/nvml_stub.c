/* A stand-in for libnvidia-ml.so.1, enough for the real pynvml: two GPUs, the second lost; with STUB_HANGS it never answers. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define GPU_IS_LOST 15

typedef struct { int index; } device;
static device gpus[2] = {{0}, {1}};

int nvmlInit_v2(void) {
#ifdef STUB_HANGS
    for (;;) pause();
#endif
    return SUCCESS;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "550.54.15"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **gpu) {
    *gpu = &gpus[index];
    return index == 1 ? GPU_IS_LOST : SUCCESS;
}
int nvmlDeviceGetUUID(device *gpu, char *text, unsigned size) { snprintf(text, size, "GPU-000%d", gpu->index); return SUCCESS; }
int nvmlDeviceGetName(device *gpu, char *text, unsigned size) { (void)gpu; snprintf(text, size, "Stub H100"); return SUCCESS; }
int nvmlDeviceGetSerial(device *gpu, char *text, unsigned size) { (void)gpu; snprintf(text, size, "4711"); return SUCCESS; }
int nvmlDeviceGetMinorNumber(device *gpu, unsigned *minor) { *minor = gpu->index + 2; return SUCCESS; }

/* nvmlPciInfo_t of nvml.h: busIdLegacy, domain, bus, device, ids, busId. */
struct pci { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char id[32]; };
int nvmlDeviceGetPciInfo_v3(device *gpu, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", 0x3B + gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(device *gpu, int type, int counter, unsigned long long *count) {
    (void)gpu, (void)type;
    *count = counter ? 9 : 1;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(device *gpu, int sensor, unsigned *celsius) { (void)gpu, (void)sensor; *celsius = 41; return SUCCESS; }
int nvmlDeviceGetPowerUsage(device *gpu, unsigned *milliwatt) { (void)gpu; *milliwatt = 123500; return SUCCESS; }
int nvmlDeviceGetRemappedRows(device *gpu, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    (void)gpu;
    *correctable = 3, *uncorrectable = 1, *pending = 1, *failed = 0;
    return SUCCESS;
}
int nvmlDeviceGetPcieReplayCounter(device *gpu, unsigned *count) { (void)gpu, (void)count; return NOT_SUPPORTED; }
