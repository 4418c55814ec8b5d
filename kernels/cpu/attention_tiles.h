// Attention of a piece with many rows, as in prefill: bound by arithmetic. KEYS keys and values at a time are copied to
// where they can be read in order, the keys turned so that neighbouring keys are lanes; many rows pay for the copy. Both
// products then go by tiles of BLOCK rows and LANES columns whose sums never leave the registers.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "attention.h"
#include "vector.h"

constexpr int BLOCK = 6, LANES = 16;  // twelve vectors of sums, two of columns, one of a row's number: of sixteen

// Where a piece is worked on. Rows are rounded up to whole blocks, `width`, the head's numbers, to whole strips of LANES.
struct Desk {
    int rows, width;
    float* q;                     // [rows / BLOCK][head_dim][BLOCK], times the scale
    float* keys;                  // [KEYS / LANES][head_dim][LANES]
    float* values;                // [width / LANES][KEYS][LANES]
    float* scores;                // [rows][KEYS], then weights
    float* sums;                  // [rows][width]
    float *top, *total, *shrink;  // [rows]
};

// The memory of one thread, kept from piece to piece.
class Workspace {
  public:
    Desk fit(int num_rows, int head_dim) {
        Desk desk{};
        desk.rows = (num_rows + BLOCK - 1) / BLOCK * BLOCK, desk.width = (head_dim + LANES - 1) / LANES * LANES;
        const size_t rows = desk.rows;
        const std::pair<float**, size_t> parts[] = {
            {&desk.q, rows * head_dim},      {&desk.keys, size_t(KEYS) * head_dim},
            {&desk.values, size_t(KEYS) * desk.width}, {&desk.scores, rows * KEYS},
            {&desk.sums, rows * desk.width}, {&desk.top, rows},
            {&desk.total, rows},             {&desk.shrink, rows},
        };
        size_t needed = 0;
        for (const auto& [part, size] : parts) needed += whole(size);
        if (needed > capacity) {
            memory.reset(new (std::align_val_t(64)) float[needed]);
            capacity = needed;
        }
        float* at = memory.get();
        for (const auto& [part, size] : parts) *part = at, at += whole(size);
        return desk;
    }

  private:
    static size_t whole(size_t size) { return (size + 15) / 16 * 16; }  // lines of the processor's cache

    struct Free {
        void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
    };
    std::unique_ptr<float[], Free> memory;
    size_t capacity = 0;
};

// The keys which the rows of a block see among those of a tile: first (a whole strip) to last, exclusive.
struct Seen {
    int from, to;
};

template <class T>
struct Tiles {
    const Call<T>& call;
    const Piece& piece;
    const Desk desk;
    const int group = call.group(), head_dim = call.head_dim, rows = piece.num_queries * group;
    const int64_t* table = call.tables + piece.request * call.table_stride;

    void begin() {
        const float scale = call.scale * LOG2_E;
        for (int r = 0; r < rows; r++) fetch(call.query(piece, r), head_dim);
        for (int r = 0; r < desk.rows; r++) {
            float* to = desk.q + r / BLOCK * BLOCK * head_dim + r % BLOCK;
            const float* from = call.query(piece, std::min(r, rows - 1));
            for (int i = 0; i < head_dim; i++) to[i * BLOCK] = from[i] * scale;
            desk.top[r] = -INFINITY, desk.total[r] = 0.0f, desk.shrink[r] = 1.0f;
        }
        std::memset(desk.sums, 0, sizeof(float) * desk.rows * desk.width);
        std::memset(desk.values, 0, sizeof(float) * KEYS * desk.width);
    }

    // Keys and values of `count` positions from `first` on. Columns past them are zeros.
    void copy(int first, int count) {
        const T* keys[KEYS];
        for (int t = 0; t < count; t++) keys[t] = call.key(piece, table, first + t);
        for (int t = 0; t < (count + LANES - 1) / LANES * LANES; t += 8) {
            float* to = desk.keys + t / LANES * LANES * head_dim + t % LANES;
            for (int i = 0; i < head_dim; i += 8) {
                v8 m[8];
                for (int j = 0; j < 8; j++) m[j] = t + j < count ? load(keys[t + j] + i) : v8{};
                transpose(m);
                for (int j = 0; j < 8; j++) store(to + (i + j) * LANES, m[j]);
            }
        }
        for (int t = 0; t < count; t++) {
            const T* value = keys[t] + call.token() / 2;
            for (int i = 0; i < head_dim; i += 8)
                store(desk.values + (i / LANES * KEYS + t) * LANES + i % LANES, load(value + i));
        }
    }

    // Keys and values of positions that come next are asked for while there is work to do.
    void ask_for(int first, int count) {
        for (int position = first; position < std::min(first + count, piece.to); position++) {
            const T* key = call.key(piece, table, position);
            fetch(key, head_dim);
            fetch(key + call.token() / 2, head_dim);
        }
    }

    Seen seen_by(int row, int first, int count) const {
        const int own = piece.first_position + row / group, oldest = call.window ? own - call.window + 1 : 0;
        return {std::max(0, oldest - first), std::min(count, own + 1 - first)};
    }

    Seen seen_by_block(int row, int first, int count) const {
        const Seen upper = seen_by(row, first, count);
        const Seen lower = seen_by(std::min(row + BLOCK, rows) - 1, first, count);
        const int from = upper.from / LANES * LANES;
        return {from, std::max(from, lower.to)};
    }

    void score(int row, const Seen& seen) {
        for (int t = seen.from; t < seen.to; t += LANES) {
            const float *q = desk.q + row * head_dim, *keys = desk.keys + t * head_dim;
            v8 sums[BLOCK][2] = {};
            for (int i = 0; i < head_dim; i++, q += BLOCK, keys += LANES) {
                const v8 a = load(keys), b = load(keys + 8);
                for (int r = 0; r < BLOCK; r++) {
                    const v8 query = all(q[r]);
                    sums[r][0] += query * a;
                    sums[r][1] += query * b;
                }
            }
            for (int r = 0; r < BLOCK; r++) {
                store(desk.scores + (row + r) * KEYS + t, sums[r][0]);
                store(desk.scores + (row + r) * KEYS + t + 8, sums[r][1]);
            }
        }
    }

    void weigh(int row, const Seen& seen) {
        for (int at = 0; at < desk.width; at += LANES) {
            const float *values = desk.values + at * KEYS, *weights = desk.scores + row * KEYS;
            float* to = desk.sums + row * desk.width + at;
            v8 sums[BLOCK][2];
            for (int r = 0; r < BLOCK; r++)
                for (int w = 0; w < 2; w++) sums[r][w] = load(to + r * desk.width + 8 * w) * all(desk.shrink[row + r]);
            for (int t = seen.from; t < seen.to; t++) {
                const v8 a = load(values + t * LANES), b = load(values + t * LANES + 8);
                for (int r = 0; r < BLOCK; r++) {
                    const v8 weight = all(weights[r * KEYS + t]);
                    sums[r][0] += weight * a;
                    sums[r][1] += weight * b;
                }
            }
            for (int r = 0; r < BLOCK; r++)
                for (int w = 0; w < 2; w++) store(to + r * desk.width + 8 * w, sums[r][w]);
        }
    }

    void run(int first, int count) {
        copy(first, count);
        const int ahead = (KEYS * BLOCK + rows - 1) / rows;  // positions of the next tile for each block of rows
        for (int row = 0; row < rows; row += BLOCK) {
            ask_for(first + KEYS + row / BLOCK * ahead, ahead);
            const Seen block = seen_by_block(row, first, count);
            score(row, block);
            for (int r = row; r < std::min(row + BLOCK, rows); r++) {
                const Seen own = seen_by(r, first, count);
                float* scores = desk.scores + r * KEYS + block.from;
                desk.shrink[r] = soften(scores, block.to - block.from, own.from - block.from, own.to - block.from,
                                         desk.top[r], desk.total[r]);
            }
        }
        for (int row = 0; row < rows; row += BLOCK) weigh(row, seen_by_block(row, first, count));
    }
};

template <class T>
void attend_tiles(const Call<T>& call, const Plan& plan, const Piece& piece) {
    thread_local Workspace space;
    const Desk desk = space.fit(piece.num_queries * call.group(), call.head_dim);
    Tiles<T> tiles{call, piece, desk};
    tiles.begin();
    for (int first = piece.from; first < piece.to; first += KEYS) tiles.run(first, std::min(KEYS, piece.to - first));
    for (int r = 0; r < tiles.rows; r++)
        finish(call, plan, piece, r, desk.top[r], desk.total[r], desk.sums + r * desk.width);
}
