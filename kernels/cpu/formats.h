// How weights are stored, and how each format is read.
//
// A matrix is [out, in], row by row. Float formats are arrays of their elements. The whole-number formats hold a row in
// blocks of 32 numbers q that stand for q · scale + offset:
//
//   int8   one scale a row (float, beside the numbers); rows are filled up with zeros to whole blocks
//   int4   planar: 16 bytes a block (low halves are its first 16 numbers), beside them a scale and an offset (two halves)
//          for each group of 32 or 64 numbers
//   q8_0   GGUF: half scale, 32 bytes
//   q4_0   GGUF: half scale, 16 bytes of q + 8
//   q4_1   GGUF: half scale, half offset, 16 bytes
#pragma once

#include "vector.h"

enum Format { F32, F16, BF16, INT8, INT4, Q8_0, Q4_0, Q4_1 };

constexpr int BLOCK = 32;
constexpr int AHEAD = 1024;  // bytes that are asked for before they are needed

struct Weight {
    int format, out, in;
    int group;  // of int4: numbers that share a scale
    const char* data;
    const char* scales;  // of int8 and int4
    int64_t row_bytes;

    const char* row(int n) const { return data + n * row_bytes; }
    int blocks() const { return (in + BLOCK - 1) / BLOCK; }
};

// Each reader knows one whole-number format: `numbers` unpacks block b of a row, `scales` gives that block's scale and
// offset. WHOLE_ROW: there is one scale a row, to be applied at the end.

struct Scales {
    float scale, offset;
};

struct Int8 {
    static constexpr bool WHOLE_ROW = true, OFFSET = false;
    const int8_t* at;
    float row_scale;
    Int8(const Weight& w, int n) : at((const int8_t*)w.row(n)), row_scale(((const float*)w.scales)[n]) {}
    void fetch(int b) const { __builtin_prefetch(at + b * BLOCK + AHEAD); }
    Halves numbers(int b) const { return from_bytes(at + b * BLOCK); }
    Scales scales(int) const { return {1.0f, 0.0f}; }
};

template <int GROUP>
struct Int4 {
    static constexpr bool WHOLE_ROW = false, OFFSET = true;
    static constexpr float row_scale = 1.0f;
    const uint8_t* at;
    const half* pairs;
    Int4(const Weight& w, int n)
        : at((const uint8_t*)w.row(n)), pairs((const half*)w.scales + int64_t(n) * (w.in / GROUP) * 2) {}
    void fetch(int b) const { __builtin_prefetch(at + b * 16 + AHEAD); }
    Halves numbers(int b) const { return from_nibbles(at + b * 16); }
    Scales scales(int b) const { return both(pairs + b / (GROUP / BLOCK) * 2); }
    static Scales both(const half* p) { return {to_float(p[0]), to_float(p[1])}; }
};

template <int BYTES, int HEAD>  // of a block, of what stands before its numbers
struct Gguf {
    static constexpr bool WHOLE_ROW = false, OFFSET = HEAD == 4;
    static constexpr float row_scale = 1.0f;
    const char* at;
    Gguf(const Weight& w, int n) : at(w.row(n)) {}
    void fetch(int b) const { __builtin_prefetch(at + b * BYTES + AHEAD); }
    Halves numbers(int b) const {
        const char* from = at + b * BYTES + HEAD;
        if (BYTES == 34) return from_bytes((const int8_t*)from);
        Halves found = from_nibbles((const uint8_t*)from);
        if (!OFFSET) found.even -= 8, found.odd -= 8;
        return found;
    }
    Scales scales(int b) const {
        const char* from = at + b * BYTES;
        return {to_float(load_as<half>(from)), OFFSET ? to_float(load_as<half>(from + 2)) : 0.0f};
    }
};

typedef Gguf<34, 2> Gguf8;
typedef Gguf<18, 2> Gguf4;
typedef Gguf<20, 4> Gguf4Offset;

// Calls f with the reader of a whole-number weight's format as its template argument.
#define WITH_READER(weight, f, ...)                                                                  \
    switch ((weight).format) {                                                                       \
        case INT8: f<Int8>(__VA_ARGS__); break;                                                      \
        case INT4:                                                                                   \
            if ((weight).group == 32) f<Int4<32>>(__VA_ARGS__);                                      \
            else f<Int4<64>>(__VA_ARGS__);                                                           \
            break;                                                                                   \
        case Q8_0: f<Gguf8>(__VA_ARGS__); break;                                                     \
        case Q4_0: f<Gguf4>(__VA_ARGS__); break;                                                     \
        default: f<Gguf4Offset>(__VA_ARGS__);                                                        \
    }
