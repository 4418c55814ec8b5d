// Blocks an SM holds at once, by NVIDIA's cuda_occupancy.h. A line in, a number out:
// capability's major and minor, shared bytes of an SM and of a block, registers of a thread, warps and shared bytes of a
// block.
#include <cstdio>

#include "cuda_occupancy.h"

int main() {
  int major, minor, registers, warps;
  size_t of_sm, of_block, shared;
  while (scanf("%d %d %zu %zu %d %d %zu", &major, &minor, &of_sm, &of_block, &registers, &warps, &shared) == 7) {
    cudaOccDeviceProp chip;
    chip.computeMajor = major;
    chip.computeMinor = minor;
    chip.maxThreadsPerBlock = 1024;
    chip.maxThreadsPerMultiprocessor = 2048;
    chip.regsPerBlock = chip.regsPerMultiprocessor = 65536;
    chip.warpSize = 32;
    chip.sharedMemPerBlock = 48 * 1024;
    chip.sharedMemPerMultiprocessor = of_sm;
    chip.numSms = 1;
    chip.sharedMemPerBlockOptin = of_block;
    chip.reservedSharedMemPerBlock = 1024;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = registers;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = of_block;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    cudaOccResult result;
    const cudaOccError error =
        cudaOccMaxActiveBlocksPerMultiprocessor(&result, &chip, &kernel, &state, warps * 32, shared);
    printf("%d\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
  }
}
