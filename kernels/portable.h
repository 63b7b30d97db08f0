// The words in which CUDA and Metal differ, so that arithmetic on single values is written once, in `.h` files.
// What follows it uses `exp`, `sqrt` and `tanh` of floats, which both languages have.
#pragma once
#ifdef __METAL_VERSION__
#include <metal_stdlib>
using namespace metal;
#define FUNCTION inline
#else
#define FUNCTION __device__ __forceinline__
#endif
