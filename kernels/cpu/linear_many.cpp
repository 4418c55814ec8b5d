// Float weights, many rows: a panel of sixteen outputs' weights in the nearest cache, and tiles of rows that are multiplied with it.
// The layout and its reasons: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).

#include <memory>

#include "linear.h"

namespace {

constexpr int DEPTH = 256;  // numbers along in of a panel of floats

struct Tiles {  // what a thread needs for one piece of work
    alignas(64) float panel[DEPTH * OUTPUTS];
    alignas(64) float sums[MOST_ROWS * OUTPUTS];
};

void write(const Product& p, int first, int count, int first_out, const float* sums) {
    const int outs = std::min(OUTPUTS, p.weight.out - first_out);
    for (int m = 0; m < count; m++)
        for (int n = 0; n < outs; n++)
            p.out[(first + m) * p.out_stride + first_out + n] = sums[m * OUTPUTS + n] + p.bias_of(first_out + n);
}

// panel[k][16]; outputs past the last are zero

template <class T>
void float_panel(const Weight& w, int first_out, int from, int count, float* panel) {
    for (int side = 0; side < OUTPUTS; side += 8) {
        const int outs = std::clamp(w.out - first_out - side, 0, 8);
        const T* rows[8];
        for (int i = 0; i < outs; i++) rows[i] = (const T*)w.row(first_out + side + i) + from;
        int k = 0;
        for (; k + 8 <= count; k += 8) {
            v8 m[8] = {};
            for (int i = 0; i < outs; i++) m[i] = load(rows[i] + k);
            transpose(m);
            for (int i = 0; i < 8; i++) store(panel + (k + i) * OUTPUTS + side, m[i]);
        }
        for (; k < count; k++)
            for (int i = 0; i < 8; i++) panel[k * OUTPUTS + side + i] = i < outs ? to_float(rows[i][k]) : 0.0f;
    }
}

// sums[m][16] += x[m][…] · panel
template <int M>
void float_tile(const float* x, int64_t stride, const float* panel, int count, float* sums) {
    v8 a[M], b[M];
    for (int m = 0; m < M; m++) a[m] = load(sums + m * OUTPUTS), b[m] = load(sums + m * OUTPUTS + 8);
    for (int k = 0; k < count; k++) {
        const v8 first = load(panel + k * OUTPUTS), second = load(panel + k * OUTPUTS + 8);
        for (int m = 0; m < M; m++) {
            const v8 one = all(x[m * stride + k]);
            a[m] += one * first, b[m] += one * second;
        }
    }
    for (int m = 0; m < M; m++) store(sums + m * OUTPUTS, a[m]), store(sums + m * OUTPUTS + 8, b[m]);
}

template <class T>
void floats_of(const Product& p, int first, int count, int first_out, Tiles& tiles) {
    for (int from = 0; from < p.weight.in; from += DEPTH) {
        const int depth = std::min(DEPTH, p.weight.in - from);
        float_panel<T>(p.weight, first_out, from, depth, tiles.panel);
        const float* x = p.x + first * p.x_stride + from;
        int m = 0;
        for (; m + 6 <= count; m += 6)
            float_tile<6>(x + m * p.x_stride, p.x_stride, tiles.panel, depth, tiles.sums + m * OUTPUTS);
        for (; m + 2 <= count; m += 2)
            float_tile<2>(x + m * p.x_stride, p.x_stride, tiles.panel, depth, tiles.sums + m * OUTPUTS);
        if (m < count) float_tile<1>(x + m * p.x_stride, p.x_stride, tiles.panel, depth, tiles.sums + m * OUTPUTS);
    }
}

}  // namespace

void many_rows(const Product& p, int first, int count, int first_out) {
    static thread_local std::unique_ptr<Tiles> tiles(new Tiles);
    std::fill(tiles->sums, tiles->sums + count * OUTPUTS, 0.0f);
    switch (p.weight.format) {
        case F32: floats_of<float>(p, first, count, first_out, *tiles); break;
        case F16: floats_of<half>(p, first, count, first_out, *tiles); break;
        default: floats_of<bfloat>(p, first, count, first_out, *tiles);
    }
    write(p, first, count, first_out, tiles->sums);
}
