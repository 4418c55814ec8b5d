// Rounding activations, and sharing a product's work.

#include "linear.h"

namespace {

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
        for (int i = 0; i < BLOCK; i += 8) {
            const int at = b * BLOCK + i;
            const i8 rounded = nearest(load_some(x + at, in - at) * all(factor));
            store(numbers + i, __builtin_convertvector(rounded, s8)), total += rounded;
        }
        *sums = float(sum(total));
    }
}

void multiply(const Product& product, Share& share) {
    const auto rows_of = product.weight.format == WHOLE ? whole_rows : float_rows;
    const int panels = product.weight.panels(), stretches = (product.rows + MOST_ROWS - 1) / MOST_ROWS;
    // Few rows are a matter of reading, and a processor foresees long stretches of memory better than short ones.
    const int grain = product.rows < MOST_ROWS ? std::clamp(panels / 16, 1, 8) : 1;
    share.take(panels * stretches, grain, [&](int begin, int end) {
        for (int piece = begin; piece < end; piece++) {
            const int first = piece / panels * MOST_ROWS;
            rows_of(product, first, std::min(MOST_ROWS, product.rows - first), piece % panels);
        }
    });
}

}  // namespace

extern "C" {

void linear_floats(Tape* tape, int threads, int format, int out, int in, const char* data, const float* bias,
                   const float* x, int64_t x_stride, int rows, float* result, int64_t result_stride) {
    const Weight weight{format, out, in, data, 0, 0, NONE, nullptr};
    const Product product{weight, bias, x, x_stride, {}, rows, result, result_stride};
    submit(tape, threads, {[=](Share& share) { multiply(product, share); }});
}

// With room for the rounded rows, see `Rounded`: numbers [rows · blocks · 32], row_scales [rows], sums [rows up to a
// multiple of 3, blocks].
void linear_whole(Tape* tape, int threads, int out, int in, const char* data, int bits, int group_blocks, int offsets,
                  const char* scales, const float* bias, const float* x, int64_t x_stride, int most, int16_t* numbers,
                  float* row_scales, float* sums, int rows, float* result, int64_t result_stride) {
    const Weight weight{WHOLE, out, in, data, bits, group_blocks, offsets, scales};
    const Rounded rounded{numbers, row_scales, sums, rows, weight.blocks()};
    const Product product{weight, bias, nullptr, 0, rounded, rows, result, result_stride};
    submit(tape, threads, {[=](Share& share) {
                               share.take(rows, std::max(1, 8192 / in), [&](int begin, int end) {
                                   for (int row = begin; row < end; row++)
                                       round_row(x + row * x_stride, in, float(most), rounded, row);
                               });
                           },
                           [=](Share& share) { multiply(product, share); }});
}
}
