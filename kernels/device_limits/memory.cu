// Reading, writing and copying memory, and doing nothing: the limits that other kernels are measured against.
#include "common.cuh"

#define AT(VALUES, I) (reinterpret_cast<float4*>(const_cast<float*>(VALUES))[I])  // four values

ENTRY(device_copy) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) AT(y, i) = AT(x, i);
}

ENTRY(device_write) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        AT(y, i) = make_float4(1, 2, 3, 4);
}

// The sum of a thread's values is written only if it is a number that it never is, so only reads are left.
ENTRY(device_read) {
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const float4 v = AT(x, i);
        sum += v.x + v.y + v.z + v.w;
    }
    if (sum == 1e-30f) *never = sum;
}

ENTRY(device_nothing) {}
