// Eight floats or sixteen short integers at a time, in GCC's vector extensions: AVX2, FMA and F16C where the build
// allows them, plain SSE2 or scalar code elsewhere. What the extensions cannot say has one function each.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef int16_t s16 __attribute__((vector_size(32)));
typedef int16_t s8 __attribute__((vector_size(16)));

template <class T>
static inline T load_as(const void* p) {
    T x;
    std::memcpy(&x, p, sizeof x);  // any alignment
    return x;
}

static inline v8 load(const float* p) { return load_as<v8>(p); }
static inline s16 load(const int16_t* p) { return load_as<s16>(p); }

template <class T, class V>
static inline void store(T* p, V x) {
    std::memcpy(p, &x, sizeof x);
}

static inline v8 all(float x) { return v8{x, x, x, x, x, x, x, x}; }

static inline v8 floats(i8 x) { return __builtin_convertvector(x, v8); }

static inline float sum(v8 x) {
    v8 y = x + __builtin_shuffle(x, i8{4, 5, 6, 7, 0, 1, 2, 3});
    return (y[0] + y[2]) + (y[1] + y[3]);
}

// The sums of four vectors, each added in the order that `sum` has.
static inline void sum_four(v8 a, v8 b, v8 c, v8 d, float* to) {
    const i8 low = {0, 1, 2, 3, 8, 9, 10, 11}, high = {4, 5, 6, 7, 12, 13, 14, 15};
    const v8 ab = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
    const v8 cd = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, high);
    const v8 s = __builtin_shuffle(ab, cd, i8{0, 1, 8, 9, 4, 5, 12, 13}) + __builtin_shuffle(ab, cd, i8{2, 3, 10, 11, 6, 7, 14, 15});
    const v8 t = s + __builtin_shuffle(s, i8{1, 0, 3, 2, 5, 4, 7, 6});
    to[0] = t[0], to[1] = t[4], to[2] = t[2], to[3] = t[6];
}

static inline int32_t sum(i8 x) {
    i8 y = x + __builtin_shuffle(x, i8{4, 5, 6, 7, 0, 1, 2, 3});
    return (y[0] + y[2]) + (y[1] + y[3]);
}

static inline float largest(const float* x, int n) {
    float m = -INFINITY;
    for (int i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

// Products of neighbours, added in pairs: r[i] = a[2i] b[2i] + a[2i+1] b[2i+1].
static inline i8 multiply_pairs(s16 a, s16 b) {
#if defined(__AVX2__)
    return (i8)__builtin_ia32_pmaddwd256(a, b);
#else
    i8 r;
    for (int i = 0; i < 8; i++) r[i] = int32_t(a[2 * i]) * b[2 * i] + int32_t(a[2 * i + 1]) * b[2 * i + 1];
    return r;
#endif
}

// -- floats of 16 bits, kept as what their bits are --

typedef uint16_t half;

struct bfloat {
    uint16_t bits;
};

static inline float to_float(half h) {
#if defined(__F16C__)
    return __builtin_ia32_vcvtph2ps(s8{int16_t(h)})[0];
#else
    const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = h & 0x7fff;
    uint32_t bits = sign | (magnitude << 13);
    float x;
    if (magnitude >= 0x7c00) {  // infinity, not a number
        bits |= 0x7f800000u;
        std::memcpy(&x, &bits, 4);
        return x;
    }
    std::memcpy(&x, &bits, 4);
    return x * 0x1p112f;  // the exponents' offsets differ by 112; subnormal numbers come out right as well
#endif
}

static inline half to_half(float x) {
#if defined(__F16C__)
    typedef float v4 __attribute__((vector_size(16)));
    return half(__builtin_ia32_vcvtps2ph(v4{x}, 0)[0]);  // to the nearest, ties to even
#else
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
    if (magnitude < 0x38800000) {                       // subnormal: adding 1/2 leaves the rounded digits at the end
        float shifted, wide;
        std::memcpy(&shifted, &magnitude, 4);
        wide = shifted + 0.5f;
        uint32_t found;
        std::memcpy(&found, &wide, 4);
        return sign | (found - 0x3f000000);
    }
    return sign | ((magnitude - 0x38000000 + 0x0fff + ((magnitude >> 13) & 1)) >> 13);
#endif
}

static inline v8 load(const half* p) {
#if defined(__F16C__)
    return (v8)__builtin_ia32_vcvtph2ps256(load_as<s8>(p));
#else
    v8 x;
    for (int i = 0; i < 8; i++) x[i] = to_float(p[i]);
    return x;
#endif
}

static inline v8 load(const bfloat* p) {
    typedef uint16_t c8 __attribute__((vector_size(16)));
    const i8 bits = __builtin_convertvector(load_as<c8>(p), i8) << 16;
    return load_as<v8>(&bits);
}

static inline float to_float(float x) { return x; }

static inline float to_float(bfloat b) {
    const uint32_t bits = uint32_t(b.bits) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// The nearest whole numbers, ties to even.
static inline i8 nearest(v8 x) {
#if defined(__AVX2__)
    return (i8)__builtin_ia32_cvtps2dq256(x);
#else
    i8 r;
    for (int i = 0; i < 8; i++) r[i] = int32_t(std::lrint(x[i]));
    return r;
#endif
}

// e to the x for x <= 0 (0 below -87), after Cephes: x = n ln 2 + r, e^r by a polynomial, 2^n by the exponent's bits.
static inline v8 exp_negative(v8 x) {
    const v8 low = all(-87.0f);
    i8 tiny = x < low;
    x = tiny ? low : x;
    v8 y = x * all(1.44269504f) - all(0.5f);
    i8 n = __builtin_convertvector(y, i8);  // towards zero, so the nearest integer of x / ln 2
    v8 f = floats(n);
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

static inline v8 larger(v8 x, v8 y) { return x > y ? x : y; }  // y where x is not a number

// 2 to the x for x <= 0, within 2 of the last digit (0 below -126): 2^n by adding to the exponent's bits, n = x rounded.
static inline v8 exp2_negative(v8 x) {
    const v8 large = all(12582912.0f);  // as in round_to_even; its last bits are n then
    const v8 n = x + large, f = x - (n - large);
    v8 p = all(1.535336188319500e-4f);
    p = p * f + all(1.339887440266574e-3f);
    p = p * f + all(9.618437357674640e-3f);
    p = p * f + all(5.550332471162809e-2f);
    p = p * f + all(2.402264791363012e-1f);
    p = p * f + all(6.931472028550421e-1f);
    p = p * f + all(1.0f);
    const i8 power = (load_as<i8>(&n) << 23) + load_as<i8>(&p);
    return x < all(-126.0f) ? v8{} : load_as<v8>(&power);
}

// Rows become columns: eight rows of eight numbers of 32 bits.
static inline void transpose(v8 (&m)[8]) {
    v8 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shuffle(m[i], m[i + 1], i8{0, 8, 1, 9, 4, 12, 5, 13});
        a[i + 1] = __builtin_shuffle(m[i], m[i + 1], i8{2, 10, 3, 11, 6, 14, 7, 15});
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = __builtin_shuffle(a[i + j], a[i + j + 2], i8{0, 1, 8, 9, 4, 5, 12, 13});
            b[i + 2 * j + 1] = __builtin_shuffle(a[i + j], a[i + j + 2], i8{2, 3, 10, 11, 6, 7, 14, 15});
        }
    for (int i = 0; i < 4; i++) {
        m[i] = __builtin_shuffle(b[i], b[i + 4], i8{0, 1, 2, 3, 8, 9, 10, 11});
        m[i + 4] = __builtin_shuffle(b[i], b[i + 4], i8{4, 5, 6, 7, 12, 13, 14, 15});
    }
}
