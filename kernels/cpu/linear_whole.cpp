// Whole-number weights: tiles of a few rows times a panel of sixteen outputs.

#include <memory>

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

constexpr int UNPACKED_BYTES = OUTPUTS * BLOCK * 2;

inline s16 both(const int16_t* p) {
    const int32_t two = load_as<int32_t>(p);
    return (s16)i8{two, two, two, two, two, two, two, two};
}

template <int M>
struct Sums {
    v8 a[M], b[M];
};

// All lines of a block that is needed soon. To ask for some of them would be worse than to ask for none: the processor then
// loses sight of where reading goes.
template <class Source>
inline void fetch(const char* w) {
    for (int at = 0; at < OUTPUTS * BLOCK * Source::BITS / 8; at += 64) __builtin_prefetch(w + AHEAD + at);
}

template <>
inline void fetch<Unpacked>(const char*) {}  // lies in the nearest cache

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
template <class Source, int M>
inline void tile(const Weight& weight, int panel, const char* w, int64_t w_step, int first, int last, const int16_t* x,
                 int apart, const float* sums_of_x, Sums<M>& sums) {
    if (weight.group_blocks == 0) {
        i8 p[M] = {}, q[M] = {};
        for (int b = first; b < last; b++, w += w_step, x += apart) {
            fetch<Source>(w);
            add_block<Source, M>(w, x, p, q);
            if ((b + 1) % STRETCH && b + 1 < last) continue;
            for (int m = 0; m < M; m++) sums.a[m] += floats(p[m]), sums.b[m] += floats(q[m]), p[m] = q[m] = i8{};
        }
        return;
    }
    for (int b = first; b < last; b++, w += w_step, x += apart, sums_of_x += TOGETHER) {
        i8 p[M] = {}, q[M] = {};
        fetch<Source>(w);
        add_block<Source, M>(w, x, p, q);
        const half* at = weight.group_scales(panel, b);
        const v8 scale = load(at), scale2 = load(at + 8);
        for (int m = 0; m < M; m++) sums.a[m] += floats(p[m]) * scale, sums.b[m] += floats(q[m]) * scale2;
        if (weight.offsets == NONE) continue;
        const bool stored = weight.offsets == STORED;
        const v8 offset = stored ? load(at + 16) : scale * all(-8.0f), offset2 = stored ? load(at + 24) : scale2 * all(-8.0f);
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
template <class Source, int M>
void few(const Product& p, int row, int panel) {
    const Rounded& x = p.rounded;
    Sums<M> sums = {};
    tile<Source, M>(p.weight, panel, p.weight.panel(panel), p.weight.block_bytes(), 0, x.blocks,
                    x.group(0) + row * BLOCK, x.rows_of(0) * BLOCK, x.group_sums(0) + row, sums);
    write<M>(p, row, panel * OUTPUTS, sums);
}

template <class Source>
void few_of(const Product& p, int panel) {
    int row = 0;
    for (; row + 3 <= p.rows; row += 3) few<Source, 3>(p, row, panel);
    if (row + 2 <= p.rows) few<Source, 2>(p, row, panel), row += 2;
    if (row < p.rows) few<Source, 1>(p, row, panel);
}

// Many rows: a stretch of the panel is unpacked once, and all rows' sums wait between stretches.
struct Room {
    alignas(64) char panel[STRETCH * UNPACKED_BYTES];
    alignas(64) float sums[MOST_ROWS * OUTPUTS];
};

template <int M>
void go_on(const Product& p, int panel, const Room& room, int from, int to, int first, int m, float* kept) {
    const Rounded& x = p.rounded;
    const int apart = x.rows_of(first) * BLOCK;
    Sums<M> sums;
    for (int i = 0; i < M; i++) sums.a[i] = load(kept + i * OUTPUTS), sums.b[i] = load(kept + i * OUTPUTS + 8);
    tile<Unpacked, M>(p.weight, panel, room.panel, UNPACKED_BYTES, from, to, x.group(first) + from * apart + m * BLOCK,
                      apart, x.group_sums(first) + from * TOGETHER + m, sums);
    if (to == x.blocks) return write<M>(p, first + m, panel * OUTPUTS, sums);
    for (int i = 0; i < M; i++) store(kept + i * OUTPUTS, sums.a[i]), store(kept + i * OUTPUTS + 8, sums.b[i]);
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

void many(const Product& p, int first, int count, int panel) {
    static thread_local std::unique_ptr<Room> room(new Room);
    std::fill(room->sums, room->sums + count * OUTPUTS, 0.0f);
    const int blocks = p.rounded.blocks;
    const int64_t step = p.weight.block_bytes();
    for (int from = 0; from < blocks; from += STRETCH) {
        const int to = std::min(from + STRETCH, blocks);
        const char* w = p.weight.panel(panel) + from * step;
        if (p.weight.bits == 8) unpack_stretch<Bits8>(w, step, to - from, room->panel);
        else unpack_stretch<Bits4>(w, step, to - from, room->panel);
        for (int start = 0; start < count; start += TOGETHER) {
            const int rows = p.rounded.rows_of(first + start);
            float* kept = room->sums + start * OUTPUTS;
            int m = 0;
            for (; m + 3 <= rows; m += 3) go_on<3>(p, panel, *room, from, to, first + start, m, kept + m * OUTPUTS);
            if (m + 2 <= rows) go_on<2>(p, panel, *room, from, to, first + start, m, kept + m * OUTPUTS), m += 2;
            if (m < rows) go_on<1>(p, panel, *room, from, to, first + start, m, kept + m * OUTPUTS);
        }
    }
}

constexpr int UNPACKED_FROM = 12;  // rows from which unpacking once pays

}  // namespace

void whole_rows(const Product& p, int first, int count, int panel) {
    if (p.rows >= UNPACKED_FROM) many(p, first, count, panel);
    else if (p.weight.bits == 8) few_of<Bits8>(p, panel);
    else few_of<Bits4>(p, panel);
}
