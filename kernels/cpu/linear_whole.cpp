// Whole-number weights: tiles of a few rows times a panel of sixteen outputs.

#include "linear.h"

namespace {

struct Pair {
    s16 a, b;  // outs 0 … 7 and 8 … 15, each with its numbers of k and k + 1
};

// A block of a panel as its sixteen pairs. Four bits come two pairs at a time.
struct Bits8 {
    static constexpr int BITS = 8;
    static constexpr int AT_ONCE = 1;
    static void unpack(const char* block, int k, Pair* to) {
        const s16 both = load_as<s16>(block + k * 32);
        to[0] = {(both << 8) >> 8, both >> 8};
    }
};

struct Bits4 {
    static constexpr int BITS = 4;
    static constexpr int AT_ONCE = 2;
    static void unpack(const char* block, int k, Pair* to) {
        typedef uint16_t u16 __attribute__((vector_size(32)));
        const u16 four = load_as<u16>(block + k * 16);
        to[0] = {s16(four & 15), s16((four >> 4) & 15)};
        to[1] = {s16((four >> 8) & 15), s16(four >> 12)};
    }
};

struct Unpacked {
    static constexpr int AT_ONCE = 1;
    static void unpack(const char* block, int k, Pair* to) {
        to[0] = {load_as<s16>(block + k * 64), load_as<s16>(block + k * 64 + 32)};
    }
};

constexpr int UNPACKED_FROM = 12;  // rows from which unpacking once pays
constexpr int UNPACKED_BYTES = OUTPUTS * BLOCK * 2;

inline s16 both(const int16_t* p) {
    const int32_t two = load_as<int32_t>(p);
    return (s16)i8{two, two, two, two, two, two, two, two};
}

// Rows in tiles: f(Number<rows of the tile>, its first row).
template <class F>
inline void each_tile(int count, F f) {
    int row = 0;
    for (; row + 3 <= count; row += 3) f(Number<3>(), row);
    if (row + 2 <= count) f(Number<2>(), row), row += 2;
    if (row < count) f(Number<1>(), row);
}

template <int M>
struct Sums {
    v8 a[M], b[M];
};

// Ask for lines that are needed soon, block by block: all of a block's, or some. With few rows some would be worse than
// none: the processor then loses sight of where reading goes.
template <class Source>
struct AllAhead {
    static constexpr int BYTES = OUTPUTS * BLOCK * Source::BITS / 8;
    const char* at;

    void ask() {
        for (int i = 0; i < BYTES; i += 64) __builtin_prefetch(at + i);
        at += BYTES;
    }
};

struct SomeAhead {
    const char* at;
    int step, lines;

    void ask() {
        for (int i = 0; i < lines; i++) __builtin_prefetch(at + i * 64);
        at += step;
    }
};

// One block, in whole numbers.
template <class Source, int M>
inline void add_block(const char* w, const int16_t* x, i8 (&p)[M], i8 (&q)[M]) {
#pragma GCC unroll 4
    for (int k = 0; k < BLOCK / 2; k += Source::AT_ONCE) {
        Pair pairs[Source::AT_ONCE];
        Source::unpack(w, k, pairs);
        for (int i = 0; i < Source::AT_ONCE; i++)
            for (int m = 0; m < M; m++) {
                const s16 one = both(x + m * BLOCK + 2 * (k + i));
                p[m] += multiply_pairs(one, pairs[i].a), q[m] += multiply_pairs(one, pairs[i].b);
            }
    }
}

// Blocks first … last - 1 of a panel times M rows; x and sums_of_x at the first block, x's blocks `apart` numbers apart.
template <class Source, int M, class Ahead>
inline void tile(const Weight& weight, int panel, const char* w, int64_t w_step, int first, int last, const int16_t* x,
                 int apart, const float* sums_of_x, Ahead ahead, Sums<M>& sums) {
    if (weight.group_blocks == 0) {
        i8 p[M] = {}, q[M] = {};
        for (int b = first; b < last; b++, w += w_step, x += apart) {
            ahead.ask();
            add_block<Source, M>(w, x, p, q);
            if ((b + 1) % STRETCH && b + 1 < last) continue;
            for (int m = 0; m < M; m++) sums.a[m] += floats(p[m]), sums.b[m] += floats(q[m]), p[m] = q[m] = i8{};
        }
        return;
    }
    for (int b = first; b < last; b++, w += w_step, x += apart, sums_of_x += TOGETHER) {
        i8 p[M] = {}, q[M] = {};
        ahead.ask();
        add_block<Source, M>(w, x, p, q);
        const half* at = weight.group_scales(panel, b);
        const v8 scale = load(at), scale2 = load(at + 8);
        for (int m = 0; m < M; m++) sums.a[m] += floats(p[m]) * scale, sums.b[m] += floats(q[m]) * scale2;
        if (weight.offsets == NONE) continue;
        v8 offset = all(-8.0f), offset2 = offset;
        if (weight.offsets != MINUS_EIGHT) offset = load(at + 16), offset2 = load(at + 24);
        if (weight.offsets == ZEROS) offset = -offset, offset2 = -offset2;
        if (weight.offsets != STORED) offset *= scale, offset2 *= scale2;
        for (int m = 0; m < M; m++) {
            const v8 one = all(sums_of_x[m]);
            sums.a[m] += one * offset, sums.b[m] += one * offset2;
        }
    }
}

template <int M>
void write(const Product& p, int row, int first_out, const Sums<M>& sums) {
    const int outs = std::min(OUTPUTS, p.weight.out - first_out);
    float scales[OUTPUTS] = {}, biases[OUTPUTS] = {};
    for (int n = 0; n < outs; n++) scales[n] = p.weight.row_scale(first_out + n), biases[n] = p.bias_of(first_out + n);
    for (int m = 0; m < M; m++) {
        const v8 scale = all(p.rounded.scales[row + m]);
        const v8 a = sums.a[m] * (scale * load(scales)) + load(biases);
        const v8 b = sums.b[m] * (scale * load(scales + 8)) + load(biases + 8);
        float* out = p.out + (row + m) * p.out_stride + first_out;
        if (outs == OUTPUTS) {
            store(out, a), store(out + 8, b);
            continue;
        }
        float line[OUTPUTS];
        store(line, a), store(line + 8, b);
        std::copy(line, line + outs, out);
    }
}

// Few rows: the panel is unpacked anew for every three rows; it lies in the nearest cache by then.
template <class Source>
void few(const Product& p, int first, int count, int panel) {
    const Rounded& x = p.rounded;
    const char* w = p.weight.panel(panel);
    const int step = p.weight.block_bytes();
    const AllAhead<Source> ahead{w + AHEAD};
    each_tile(count, [&](auto m, int row) {
        constexpr int M = decltype(m)::value;
        Sums<M> sums = {};
        row += first;
        tile<Source, M>(p.weight, panel, w, step, 0, x.blocks, x.group(row), M * BLOCK, x.group_sums(row), ahead, sums);
        write<M>(p, row, panel * OUTPUTS, sums);
    });
}

template <class Source>
void unpack_stretch(const char* w, int64_t step, int blocks, char* to) {
    for (int b = 0; b < blocks; b++, w += step)
        for (int k = 0; k < BLOCK / 2; k += Source::AT_ONCE) {
            Pair pairs[Source::AT_ONCE];
            Source::unpack(w, k, pairs);
            for (const Pair& pair : pairs) store(to, pair.a), store(to + 32, pair.b), to += 64;
        }
}

// Many rows: a stretch of the panel is unpacked once, and all rows' sums wait between stretches.
template <class Source>
void many(const Product& p, int first, int count, int panel) {
    alignas(64) char unpacked[STRETCH * UNPACKED_BYTES];
    alignas(64) float kept[MOST_ROWS * OUTPUTS];
    std::fill(kept, kept + count * OUTPUTS, 0.0f);
    const Rounded& x = p.rounded;
    const int step = p.weight.block_bytes(), tiles = (count + TOGETHER - 1) / TOGETHER;
    const int lines = (step / 64 + tiles - 1) / tiles;  // of each block of the next stretch, for each tile to ask for
    for (int from = 0; from < x.blocks; from += STRETCH) {
        const int to = std::min(from + STRETCH, x.blocks);
        const char* w = p.weight.panel(panel) + int64_t(from) * step;
        unpack_stretch<Source>(w, step, to - from, unpacked);
        SomeAhead ahead{w + (to - from) * step, step, lines};
        each_tile(count, [&](auto m, int row) {
            constexpr int M = decltype(m)::value;
            float* mine = kept + row * OUTPUTS;
            Sums<M> sums;
            for (int i = 0; i < M; i++) sums.a[i] = load(mine + i * OUTPUTS), sums.b[i] = load(mine + i * OUTPUTS + 8);
            row += first;
            tile<Unpacked, M>(p.weight, panel, unpacked, UNPACKED_BYTES, from, to, x.group(row) + from * M * BLOCK,
                              M * BLOCK, x.group_sums(row) + from * TOGETHER, ahead, sums);
            if (to == x.blocks) return write<M>(p, row, panel * OUTPUTS, sums);
            for (int i = 0; i < M; i++) store(mine + i * OUTPUTS, sums.a[i]), store(mine + i * OUTPUTS + 8, sums.b[i]);
            ahead.at += lines * 64;
            if (ahead.at >= w + (to - from + 1) * step) ahead.lines = 0;
        });
    }
}

template <class Source>
void rows_of(const Product& p, int first, int count, int panel) {
    p.rows < UNPACKED_FROM ? few<Source>(p, first, count, panel) : many<Source>(p, first, count, panel);
}

}  // namespace

void whole_rows(const Product& p, int first, int count, int panel) {
    p.weight.bits == 8 ? rows_of<Bits8>(p, first, count, panel) : rows_of<Bits4>(p, first, count, panel);
}
