// The differences in spelling of CUDA, Metal and C++, so that arithmetic on single values is written once, in `.h` files.
// CUDA and Metal have it for float; in C++ every FUNCTION and STRUCT is a template over the type `real`.
#pragma once
#if defined(__METAL_VERSION__)
#include <metal_stdlib>
using namespace metal;
#define FUNCTION inline
#elif defined(CPU_KERNEL)
#define FUNCTION template <class real> static inline
#else
#define FUNCTION __device__ __forceinline__
#endif

#ifdef CPU_KERNEL
#define STRUCT template <class real> struct
#define OF(name) name<real>
#else
#define STRUCT struct
#define OF(name) name
#define exponential exp
#define hyperbolic_tangent tanh
typedef float real;
#endif
