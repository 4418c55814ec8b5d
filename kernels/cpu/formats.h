// How weights [out, in] lie in memory.
//
// They lie in panels of sixteen outputs, so that one load serves sixteen results, nothing is added across a register, and
// every batch reads memory in one straight line. `out` is filled up to whole panels with zeros.
//
//   floats: sixteen a number of `in`
//
// Whole numbers come in pairs of neighbours along `in`: A is the vector of sixteen numbers out 0: (k, k+1), out 1:
// (k, k+1), … out 7, B the same of outs 8 … 15. `in` is filled up to whole blocks of 32 with zeros.
//
//   8 bits: 32 bytes a pair of k; byte 2i is number i of A, byte 2i + 1 number i of B
//   4 bits: 32 bytes two pairs of k; 16-bit word i is A | B << 4 | next A << 8 | next B << 12, each at number i
//
// Beside them, for each panel and group of numbers along `in`: sixteen scales (halves), then sixteen offsets if there are
// any. Instead of stored offsets there may be stored zero points, each for an offset of −zero · scale, or all may be −8
// scales (numbers that were shifted to be positive). Or one float scale an output, for the whole row.
#pragma once

#include "vector.h"

enum Format { F32, F16, BF16, WHOLE };

constexpr int BLOCK = 32;
constexpr int AHEAD = 1024;  // bytes that are asked for before they are needed
constexpr int OUTPUTS = 16;

enum Offsets { NONE, STORED, MINUS_EIGHT, ZEROS };

struct Weight {
    int format, out, in;
    const char* data;
    // whole numbers:
    int bits, group_blocks, offsets;  // group_blocks: blocks that share a scale, 1 or 2; 0: one scale an output
    const char* scales;

    int panels() const { return (out + OUTPUTS - 1) / OUTPUTS; }
    int blocks() const { return (in + BLOCK - 1) / BLOCK; }
    int block_bytes() const { return OUTPUTS * BLOCK * bits / 8; }
    int64_t panel_bytes() const {
        return format == WHOLE ? int64_t(blocks()) * block_bytes() : int64_t(in) * OUTPUTS * (format == F32 ? 4 : 2);
    }
    const char* panel(int p) const { return data + p * panel_bytes(); }
    const half* group_scales(int p, int block) const {
        const int shift = group_blocks - 1, step = offsets == STORED || offsets == ZEROS ? 2 * OUTPUTS : OUTPUTS;
        return (const half*)scales + (int64_t(p) * (blocks() >> shift) + (block >> shift)) * step;
    }
    float row_scale(int n) const { return group_blocks ? 1.0f : ((const float*)scales)[n]; }
};
