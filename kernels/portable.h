// What CUDA and Metal spell differently, so that arithmetic on single values is written once, in `.h` files.
// These files use `exp`, `sqrt` and `tanh` of floats, which both languages have.
#pragma once
#ifdef __METAL_VERSION__
#include <metal_stdlib>
using namespace metal;
#define FUNCTION inline
#else
#define FUNCTION __device__ __forceinline__
#endif
