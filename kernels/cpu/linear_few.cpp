// Float weights, a few rows: tiles of N outputs by M rows, so that what is loaded serves several products and sums end together.

#include "linear.h"

namespace {

// Where a tile's results go: sums[n][m] of outputs `first` + n and rows `row` + m.
template <int N, int M>
inline void write(const Product& p, int first, int row, const float (&found)[N][M]) {
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            p.out[(row + m) * p.out_stride + first + n] = found[n][m] + p.bias_of(first + n);
}

template <int N, int M>
inline void add_lanes(const v8 (&sums)[N][M], float (&found)[N][M]) {
    const v8* flat = &sums[0][0];
    float* to = &found[0][0];
    if constexpr (N * M % 4 == 0)
        for (int i = 0; i < N * M; i += 4) sum_four(flat[i], flat[i + 1], flat[i + 2], flat[i + 3], to + i);
    else
        for (int i = 0; i < N * M; i++) to[i] = sum(flat[i]);
}

template <class T>
struct Floats {
    template <int N, int M>
    static void tile(const Product& p, int first, int row) {
        const T* w[N];
        const float* x[M];
        for (int n = 0; n < N; n++) w[n] = (const T*)p.weight.row(first + n);
        for (int m = 0; m < M; m++) x[m] = p.x + (row + m) * p.x_stride;
        v8 sums[N][M] = {};
        const int in = p.weight.in;
        int k = 0;
        for (; k + 8 <= in; k += 8)
            for (int n = 0; n < N; n++) {
                const v8 weight = load(w[n] + k);
                for (int m = 0; m < M; m++) sums[n][m] += weight * load(x[m] + k);
            }
        float found[N][M];
        add_lanes(sums, found);
        for (; k < in; k++)
            for (int n = 0; n < N; n++)
                for (int m = 0; m < M; m++) found[n][m] += to_float(w[n][k]) * x[m][k];
        write(p, first, row, found);
    }
};

// All rows, four, two or one at a time, times N outputs.
template <class Kind, int N>
void rows_of(const Product& p, int first) {
    int row = 0;
    for (; row + 4 <= p.rows; row += 4) Kind::template tile<N, 4>(p, first, row);
    if (row + 2 <= p.rows) Kind::template tile<N, 2>(p, first, row), row += 2;
    if (row < p.rows) Kind::template tile<N, 1>(p, first, row);
}

template <class Kind>
void outputs_of(const Product& p, int begin, int end) {
    int n = begin;
    // One row is a matter of reading alone, and a processor foresees one long stretch of memory better than several.
    if (p.rows > 1)
        for (; n + 2 <= end; n += 2) rows_of<Kind, 2>(p, n);
    for (; n < end; n++) rows_of<Kind, 1>(p, n);
}

}  // namespace

void few_rows(const Product& product, int begin, int end) {
    switch (product.weight.format) {
        case F32: outputs_of<Floats<float>>(product, begin, end); break;
        case F16: outputs_of<Floats<half>>(product, begin, end); break;
        default: outputs_of<Floats<bfloat>>(product, begin, end);
    }
}
