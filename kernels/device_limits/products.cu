// How fast the tensor cores multiply when nothing has to be read: eight independent sums a warp, from sm_80 on.
//
// Each of `rounds` is 8 products of a warp: 16 x 8 x 16 in bfloat16, 16 x 8 x 8 in TF32. `never` is written only if the
// sums are a number that they never are.
#include "../common.cuh"

constexpr int SUMS = 8;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ __forceinline__ void multiply_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#define PRODUCTS(MULTIPLY)                                                         \
    float d[SUMS][4] = {};                                                         \
    const unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {threadIdx.x + 1, 5};     \
    for (int round = 0; round < rounds; ++round)                                   \
        for (int k = 0; k < SUMS; ++k) MULTIPLY(d[k], a, b);                       \
    float sum = 0;                                                                 \
    for (int k = 0; k < SUMS; ++k) sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];   \
    if (sum == 1e-30f) *never = sum;
#else
#define PRODUCTS(MULTIPLY)
#endif

extern "C" __global__ void products_bf16(float* never, int rounds) { PRODUCTS(multiply_bf16) }
extern "C" __global__ void products_tf32(float* never, int rounds) { PRODUCTS(multiply_tf32) }
