// Rounding activations, and sharing a product's work.

#include "linear.h"

namespace {

constexpr int FEW = 12;  // rows up to which weights are multiplied as they are read

// Eight numbers, or as many as there are and zeros.
inline v8 load_some(const float* x, int count) {
    if (count >= 8) return load(x);
    v8 some = {};
    for (int i = 0; i < count; i++) some[i] = x[i];
    return some;
}

// x · most / max |x|, to the nearest, so one step is worth max |x| / most. A row of zeros stays zero.
void round_row(const float* x, int in, float most, const Rounded& to, int row) {
    v8 tops = {}, nothing = {};  // nothing times what is not finite is not a number, and then the row's scale is none
    for (int i = 0; i < in; i += 8) {
        const v8 some = load_some(x + i, in - i), size = some < 0 ? -some : some;
        tops = size > tops ? size : tops, nothing += some * all(0.0f);
    }
    const float top = largest((const float*)&tops, 8), factor = top > 0.0f ? most / top : 0.0f;
    to.scales[row] = top / most + sum(nothing);
    const int first = row / TOGETHER * TOGETHER, apart = to.rows_of(first) * BLOCK;
    int16_t* numbers = to.group(first) + (row - first) * BLOCK;
    float* sums = to.group_sums(first) + row - first;
    for (int b = 0; b * BLOCK < in; b++, numbers += apart, sums += TOGETHER) {
        i8 total = {};
        alignas(32) int32_t whole[BLOCK];
        for (int i = 0; i < BLOCK; i += 8) {
            const int at = b * BLOCK + i;
            const i8 rounded = nearest(load_some(x + at, in - at) * all(factor));
            store(whole + i, rounded), total += rounded;
        }
        for (int i = 0; i < 16; i++) numbers[i] = int16_t(whole[2 * i]), numbers[16 + i] = int16_t(whole[2 * i + 1]);
        *sums = float(sum(total));
    }
}

void multiply(const Product& product, Share& share) {
    if (product.rows <= FEW) {
        const int grain = std::clamp(product.weight.out / 16 / 4 * 4, 16, 128);
        share.take(product.weight.out, grain, [&](int begin, int end) { few_rows(product, begin, end); });
        return;
    }
    const int panels = (product.weight.out + OUTPUTS - 1) / OUTPUTS;
    const int stretches = (product.rows + MOST_ROWS - 1) / MOST_ROWS;
    share.take(panels * stretches, 1, [&](int piece, int) {
        const int first = piece / panels * MOST_ROWS;
        many_rows(product, first, std::min(MOST_ROWS, product.rows - first), piece % panels * OUTPUTS);
    });
}

}  // namespace

extern "C" {

void linear_floats(Tape* tape, int threads, int format, int out, int in, const char* data, int64_t row_bytes,
                   const float* bias, const float* x, int64_t x_stride, int rows, float* result, int64_t result_stride) {
    const Product product{{format, out, in, 0, data, nullptr, row_bytes}, bias, x, x_stride, {}, rows, result, result_stride};
    submit(tape, threads, {[=](Share& share) { multiply(product, share); }});
}

// With room for the rounded rows, see `Rounded`: numbers [rows · blocks · 32], row_scales [rows], sums [rows up to a
// multiple of 24, blocks].
void linear_numbers(Tape* tape, int threads, int format, int out, int in, int group, const char* data, int64_t row_bytes,
                    const char* scales, const float* bias, const float* x, int64_t x_stride, int most, int16_t* numbers,
                    float* row_scales, float* sums, int rows, float* result, int64_t result_stride) {
    const Weight weight{format, out, in, group, data, scales, row_bytes};
    const Product product{weight, bias, nullptr, 0, {numbers, row_scales, sums, rows, weight.blocks()}, rows, result, result_stride};
    submit(tape, threads, {[=](Share& share) {
                               share.take(rows, std::max(1, 8192 / in), [&](int begin, int end) {
                                   for (int row = begin; row < end; row++)
                                       round_row(x + row * x_stride, in, float(most), product.rounded, row);
                               });
                           },
                           [=](Share& share) { multiply(product, share); }});
}
}
