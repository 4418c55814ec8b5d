// Float weights: tiles of a few rows times a panel of sixteen outputs, a stretch of the panel at a time. The layout and its
// reasons: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
//
// Each result is added up from the first number to the last, whatever the number of rows.

#include "linear.h"

namespace {

constexpr int DEPTH = 64, DEEP = 256;  // numbers along in of a stretch, for a few rows and for many
constexpr int MANY = 48;

// Asks for a share of the stretch that comes next: a line after each `every` numbers.
struct Ahead {
    const char* line;
    int every;
};

// sums[m][16] += x[m][…] · panel
template <class T, int M>
void tile(const T* panel, const float* x, int64_t stride, int count, Ahead ahead, float* sums) {
    v8 a[M], b[M];
    for (int m = 0; m < M; m++) a[m] = load(sums + m * OUTPUTS), b[m] = load(sums + m * OUTPUTS + 8);
    for (int k = 0; k < count; ahead.line += 64) {
        __builtin_prefetch(ahead.line);
        for (const int until = std::min(k + ahead.every, count); k < until; k++, panel += OUTPUTS) {
            const v8 first = load(panel), second = load(panel + 8);
            for (int m = 0; m < M; m++) {
                const v8 one = all(x[m * stride + k]);
                a[m] += one * first, b[m] += one * second;
            }
        }
    }
    for (int m = 0; m < M; m++) store(sums + m * OUTPUTS, a[m]), store(sums + m * OUTPUTS + 8, b[m]);
}

template <class T>
void rows_of(const Product& p, int first, int count, const T* panel, float* sums) {
    const int tiles = (count + 5) / 6, every = tiles * 64 / int(OUTPUTS * sizeof(T));
    const int depth = count < MANY ? DEPTH : DEEP;
    for (int from = 0; from < p.weight.in; from += depth) {
        const int some = std::min(depth, p.weight.in - from), lines = (some + every - 1) / every;
        const T* w = panel + int64_t(from) * OUTPUTS;
        Ahead ahead{(const char*)(w + some * OUTPUTS), every};
        const float* x = p.x + first * p.x_stride + from;
        float* to = sums;
        int left = count;
        const auto rows = [&](auto m) {
            constexpr int M = decltype(m)::value;
            for (; left >= M; left -= M, x += M * p.x_stride, to += M * OUTPUTS, ahead.line += lines * 64)
                tile<T, M>(w, x, p.x_stride, some, ahead, to);
        };
        rows(Number<6>()), rows(Number<4>()), rows(Number<2>()), rows(Number<1>());
    }
}

}  // namespace

void float_rows(const Product& p, int first, int count, int panel) {
    alignas(64) float sums[MOST_ROWS * OUTPUTS];
    std::fill(sums, sums + count * OUTPUTS, 0.0f);
    const char* data = p.weight.panel(panel);
    switch (p.weight.format) {
        case F32: rows_of(p, first, count, (const float*)data, sums); break;
        case F16: rows_of(p, first, count, (const half*)data, sums); break;
        default: rows_of(p, first, count, (const bfloat*)data, sums);
    }
    const int outs = std::min(OUTPUTS, p.weight.out - panel * OUTPUTS);
    for (int m = 0; m < count; m++) {
        float* out = p.out + (first + m) * p.out_stride + panel * OUTPUTS;
        for (int n = 0; n < outs; n++) out[n] = sums[m * OUTPUTS + n] + p.bias_of(panel * OUTPUTS + n);
    }
}
