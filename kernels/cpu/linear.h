// Products of activations with weights: x [rows, in] times weightᵀ [in, out].
//
// A panel of sixteen outputs' weights is read once for up to MOST_ROWS rows, a stretch of it at a time: tiles of rows are
// multiplied with the stretch while it lies in the nearest cache, and meanwhile the next one is asked for. So with few rows
// (decoding) the time is that of reading the weights, with many (prompts) that of multiplying.
//
// Whole-number weights meet activations that were rounded to whole numbers of 16 bits: products of pairs are added exactly
// in 32 bits (pmaddwd), twice as many an instruction as floats, and 16 bits leave nothing visible of the rounding. A
// block's sum fits, 32 · 128 · 32767 < 2^31, and so does that of a stretch of numbers with one scale a row:
// 384 · 127 · 32767 < 2^31. Blocks and stretches are added as floats.
#pragma once

#include <algorithm>
#include <type_traits>

#include "crew.h"
#include "formats.h"

constexpr int STRETCH = 12;   // blocks that are added up in whole numbers where a row has one scale
constexpr int TOGETHER = 3;   // rows of rounded activations that lie together, for they meet a block of weights together
constexpr int MOST_ROWS = 96;  // of one piece of work: their activations stay near

template <int N>
using Number = std::integral_constant<int, N>;

// Activations rounded to whole numbers: groups of three rows, in a group block after block, in a block row after row.
struct Rounded {
    int16_t* numbers;  // [groups][blocks][rows of the group][32]
    float* scales;     // [rows]: what one step is worth
    float* sums;       // [groups][blocks][3]: of the numbers of a block
    int rows, blocks;

    int rows_of(int first) const { return rows - first < TOGETHER ? rows - first : TOGETHER; }
    int16_t* group(int first) const { return numbers + int64_t(first) * blocks * BLOCK; }
    float* group_sums(int first) const { return sums + int64_t(first) * blocks; }
};

struct Product {
    Weight weight;
    const float* bias;  // [out] or null
    const float* x;     // [rows, in], for float weights
    int64_t x_stride;
    Rounded rounded;  // for whole-number weights
    int rows;
    float* out;
    int64_t out_stride;

    float bias_of(int n) const { return bias ? bias[n] : 0.0f; }
};

// The rows first … first + count - 1 times a panel; count is at most MOST_ROWS, and `first` a multiple of it.
void float_rows(const Product& product, int first, int count, int panel);
void whole_rows(const Product& product, int first, int count, int panel);
