// Reading, writing and copying memory, and doing nothing: the limits that other kernels are measured against.
#include "../common.cuh"

extern "C" __global__ void device_copy(const float4* __restrict__ x, float4* __restrict__ y, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) y[i] = x[i];
}

extern "C" __global__ void device_write(float4* __restrict__ y, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        y[i] = make_float4(1, 2, 3, 4);
}

// The sum of a thread's values is written only if it is a number that it never is, so only reads are left.
extern "C" __global__ void device_read(const float4* __restrict__ x, float* __restrict__ never, int count) {
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const float4 v = x[i];
        sum += v.x + v.y + v.z + v.w;
    }
    if (sum == 1e-30f) *never = sum;
}

extern "C" __global__ void device_nothing(int count) {}
