// Products of activations with weights: x [rows, in] times weightᵀ [in, out].
//
// Few rows (decoding): each weight is read from memory once and multiplied with all rows while it is near; the time is
// that of reading the weights. Many rows (prompts, large batches): sixteen outputs' weights are unpacked into a panel that
// lies in the nearest cache, and tiles of rows are multiplied with it; the time is that of multiplying.
//
// Whole-number weights meet activations that were rounded to whole numbers of 16 bits: products of pairs are added exactly
// in 32 bits (pmaddwd), twice as many an instruction as floats, and 16 bits leave nothing visible of the rounding. A
// block's sum fits, 32 · 128 · 32767 < 2^31, and so does that of a stretch of numbers with one scale a row:
// 384 · 127 · 32767 < 2^31. Blocks and stretches are added as floats.
#pragma once

#include <algorithm>

#include "crew.h"
#include "formats.h"

constexpr int STRETCH = 12;   // blocks that are added up in whole numbers where a row has one scale
constexpr int TOGETHER = 24;  // rows of rounded activations that lie together

// Activations rounded to whole numbers: groups of up to 24 rows, in a group block after block, in a block row after row.
// So the rows that meet one block of weights are neighbours.
struct Rounded {
    int16_t* numbers;  // [groups][blocks][rows of the group][32]
    float* scales;     // [rows]: what one step is worth
    float* sums;       // [groups][blocks][24]: of the numbers of a block
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

constexpr int MOST_ROWS = 8 * TOGETHER;  // of one piece of work

// Float weights, all rows times the outputs begin … end - 1.
void few_rows(const Product& product, int begin, int end);

// Float weights, the rows first … first + count - 1 times sixteen outputs; count is at most MOST_ROWS.
void many_rows(const Product& product, int first, int count, int first_out);

// Whole numbers, the same; `first` is a multiple of TOGETHER.
void whole_rows(const Product& product, int first, int count, int panel);
