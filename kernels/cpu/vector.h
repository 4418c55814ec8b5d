// Eight floats at a time, in GCC's vector extensions: AVX2 where the build allows it, plain SSE2 or scalar code elsewhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));

static inline v8 load(const float* p) {
    v8 x;
    std::memcpy(&x, p, sizeof x);  // any alignment
    return x;
}

static inline void store(float* p, v8 x) { std::memcpy(p, &x, sizeof x); }

static inline v8 all(float x) { return v8{x, x, x, x, x, x, x, x}; }

static inline float sum(v8 x) {
    v8 y = x + __builtin_shuffle(x, i8{4, 5, 6, 7, 0, 1, 2, 3});
    return (y[0] + y[2]) + (y[1] + y[3]);
}

static inline float largest(const float* x, int n) {
    float m = -INFINITY;
    for (int i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

// e to the x for x <= 0 (0 below -87), after Cephes: x = n ln 2 + r, e^r by a polynomial, 2^n by the exponent's bits.
static inline v8 exp_negative(v8 x) {
    const v8 low = all(-87.0f);
    i8 tiny = x < low;
    x = tiny ? low : x;
    v8 y = x * all(1.44269504f) - all(0.5f);
    i8 n = __builtin_convertvector(y, i8);  // towards zero, so the nearest integer of x / ln 2
    v8 f = __builtin_convertvector(n, v8);
    v8 r = x - f * all(0.693359375f) + f * all(2.12194440e-4f);
    v8 p = all(1.9875691500e-4f);
    p = p * r + all(1.3981999507e-3f);
    p = p * r + all(8.3334519073e-3f);
    p = p * r + all(4.1665795894e-2f);
    p = p * r + all(1.6666665459e-1f);
    p = p * r + all(5.0000001201e-1f);
    p = p * r * r + r + all(1.0f);
    i8 bits = (n + 127) << 23;
    v8 power;
    std::memcpy(&power, &bits, sizeof power);
    return tiny ? v8{} : p * power;
}
