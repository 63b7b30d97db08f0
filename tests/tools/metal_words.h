// Metal's words as Clang reads them: nothing here runs. An address space that does not fit is an error, as in Metal.
#define __METAL_VERSION__ 310
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define THREADGROUP_MEMORY static __attribute__((address_space(3)))
#define thread

typedef unsigned uint;
typedef int int32_t;
typedef unsigned long size_t;
struct uint3 { uint x, y, z; };
typedef _Float16 float16_t;
typedef __bf16 bfloat16_t;

namespace metal {
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
float simd_sum(float);
float simd_max(float);
float simd_min(float);
float exp(float);
float log(float);
float sqrt(float);
float tanh(float);
float fabs(float);
}  // namespace metal
