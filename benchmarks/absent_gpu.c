/* A CUDA runtime with one device on which nothing runs: as much of it as torch asks of fake tensors.
 * Memory and kernels are not there, so that whatever would compute fails. benchmarks/absent_gpu.py
 * compiles it and loads it before torch, so that torch's calls come here. */
#include <cuda_runtime_api.h>
#include <string.h>

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

/* An H200. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *device, int number) {
  memset(device, 0, sizeof *device);
  strcpy(device->name, "NVIDIA H200");
  device->major = 9;
  device->minor = 0;
  device->totalGlobalMem = 141000000000;
  device->multiProcessorCount = 132;
  device->regsPerMultiprocessor = 65536;
  device->maxThreadsPerMultiProcessor = 2048;
  device->maxThreadsPerBlock = 1024;
  device->sharedMemPerBlock = 48 << 10;
  device->sharedMemPerBlockOptin = 227 << 10;
  device->sharedMemPerMultiprocessor = 228 << 10;
  device->l2CacheSize = 60 << 20;
  device->warpSize = 32;
  return cudaSuccess;
}

/* Streams and events: any address but null, which is the default stream's. */
static char somewhere;
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  *stream = (void *)&somewhere;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = (void *)&somewhere;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = 0;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return cudaSuccess;
}

/* Of the driver, which torch looks up by name: whether the device has a context. */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return 0;
}
