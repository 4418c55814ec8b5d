// Many rows: a panel of sixteen outputs' weights in the nearest cache, and tiles of rows that are multiplied with it.
// The layout and its reasons: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).

#include <memory>

#include "linear.h"

namespace {

constexpr int DEPTH = 256;  // numbers along in of a panel of floats

struct Tiles {  // what a thread needs for one piece of work
    alignas(64) float panel[DEPTH * OUTPUTS];
    static_assert(sizeof panel >= STRETCH * BLOCK * OUTPUTS * sizeof(int16_t));
    alignas(64) float scales[STRETCH * OUTPUTS];
    alignas(64) float offsets[STRETCH * OUTPUTS];
    alignas(64) float sums[MOST_ROWS * OUTPUTS];
};

void write(const Product& p, int first, int count, int first_out, const float* sums) {
    const int outs = std::min(OUTPUTS, p.weight.out - first_out);
    const bool rounded = p.weight.format > BF16, by_row = p.weight.format == INT8;
    for (int m = 0; m < count; m++) {
        float* out = p.out + (first + m) * p.out_stride + first_out;
        const float scale = rounded ? p.rounded.scales[first + m] : 1.0f;
        for (int n = 0; n < outs; n++) {
            const float factor = by_row ? scale * ((const float*)p.weight.scales)[first_out + n] : scale;
            out[n] = sums[m * OUTPUTS + n] * factor + p.bias_of(first_out + n);
        }
    }
}

// ---- floats: panel[k][16]; outputs past the last are zero ----

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

// ---- whole numbers: pairs along in stand together, panel[pair][16][2] ----

template <class Reader>
void number_panel(const Weight& w, int first_out, int first_block, int blocks, Tiles& tiles) {
    int32_t* panel = (int32_t*)tiles.panel;
    for (int side = 0; side < OUTPUTS; side += 8) {
        const int outs = std::clamp(w.out - first_out - side, 0, 8);
        for (int b = 0; b < blocks; b++) {
            v8 even[8] = {}, odd[8] = {};
            for (int i = 0; i < 8; i++) {
                Scales scales = {};
                if (i < outs) {
                    const Reader reader(w, first_out + side + i);
                    const Halves found = reader.numbers(first_block + b);
                    even[i] = (v8)found.even, odd[i] = (v8)found.odd;
                    scales = reader.scales(first_block + b);
                }
                tiles.scales[b * OUTPUTS + side + i] = scales.scale;
                tiles.offsets[b * OUTPUTS + side + i] = scales.offset;
            }
            transpose(even), transpose(odd);
            for (int i = 0; i < 8; i++) {
                store(panel + (b * 16 + i) * OUTPUTS + side, even[i]);
                store(panel + (b * 16 + 8 + i) * OUTPUTS + side, odd[i]);
            }
        }
    }
}

inline s16 pair(const int16_t* p) {
    const int32_t both = load_as<int32_t>(p);
    return (s16)i8{both, both, both, both, both, both, both, both};
}

// x: the rows' first block, `apart` numbers from one block to the next.
template <class Reader, int M>
void number_tile(const int16_t* x, int apart, const float* sums_of_x, const Tiles& tiles, int blocks, float* sums) {
    v8 a[M], b[M];
    for (int m = 0; m < M; m++) a[m] = load(sums + m * OUTPUTS), b[m] = load(sums + m * OUTPUTS + 8);
    constexpr int STEP = Reader::WHOLE_ROW ? STRETCH : 1;
    const int16_t* w = (const int16_t*)tiles.panel;
    for (int block = 0; block < blocks; block += STEP) {
        i8 p[M] = {}, q[M] = {};
        for (int i = 0; i < std::min(STEP, blocks - block); i++, x += apart)
            for (int k = 0; k < BLOCK; k += 2, w += 2 * OUTPUTS) {
                const s16 first = load(w), second = load(w + OUTPUTS);
                for (int m = 0; m < M; m++) {
                    const s16 one = pair(x + m * BLOCK + k);
                    p[m] += multiply_pairs(one, first), q[m] += multiply_pairs(one, second);
                }
            }
        const v8 scale = load(tiles.scales + block * OUTPUTS), scale2 = load(tiles.scales + block * OUTPUTS + 8);
        for (int m = 0; m < M; m++) {
            if constexpr (Reader::WHOLE_ROW) a[m] += floats(p[m]), b[m] += floats(q[m]);
            else a[m] += floats(p[m]) * scale, b[m] += floats(q[m]) * scale2;
        }
        if constexpr (Reader::OFFSET) {
            const v8 offset = load(tiles.offsets + block * OUTPUTS), offset2 = load(tiles.offsets + block * OUTPUTS + 8);
            for (int m = 0; m < M; m++) {
                const v8 one = all(sums_of_x[block * TOGETHER + m]);
                a[m] += one * offset, b[m] += one * offset2;
            }
        }
    }
    for (int m = 0; m < M; m++) store(sums + m * OUTPUTS, a[m]), store(sums + m * OUTPUTS + 8, b[m]);
}

template <class Reader>
void numbers_of(const Product& p, int first, int count, int first_out, Tiles& tiles) {
    const Rounded& x = p.rounded;
    for (int from = 0; from < x.blocks; from += STRETCH) {
        const int blocks = std::min(STRETCH, x.blocks - from);
        number_panel<Reader>(p.weight, first_out, from, blocks, tiles);
        for (int start = 0; start < count; start += TOGETHER) {
            const int rows = x.rows_of(first + start), apart = rows * BLOCK;
            const int16_t* numbers = x.group(first + start) + from * apart;
            const float* of_x = x.group_sums(first + start) + from * TOGETHER;
            float* sums = tiles.sums + start * OUTPUTS;
            int m = 0;
            for (; m + 3 <= rows; m += 3)
                number_tile<Reader, 3>(numbers + m * BLOCK, apart, of_x + m, tiles, blocks, sums + m * OUTPUTS);
            for (; m < rows; m++)
                number_tile<Reader, 1>(numbers + m * BLOCK, apart, of_x + m, tiles, blocks, sums + m * OUTPUTS);
        }
    }
}

}  // namespace

void many_rows(const Product& p, int first, int count, int first_out) {
    static thread_local std::unique_ptr<Tiles> tiles(new Tiles);
    std::fill(tiles->sums, tiles->sums + count * OUTPUTS, 0.0f);
    switch (p.weight.format) {
        case F32: floats_of<float>(p, first, count, first_out, *tiles); break;
        case F16: floats_of<half>(p, first, count, first_out, *tiles); break;
        case BF16: floats_of<bfloat>(p, first, count, first_out, *tiles); break;
        default: WITH_READER(p.weight, numbers_of, p, first, count, first_out, *tiles)
    }
    write(p, first, count, first_out, tiles->sums);
}
