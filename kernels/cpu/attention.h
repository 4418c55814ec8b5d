// Paged attention on a CPU: how a step's work is cut into pieces, and what the kernels of a piece are given.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "vector.h"

constexpr int KEYS = 64;  // keys in one round of the online softmax
constexpr int MANY = 12;  // from so many rows on a piece is worked on by tiles: copying the keys pays

// A KV head of one request (or a few neighbours), some of its queries and a stretch of its keys. All query heads that
// share the KV head are rows of the piece: row r is query r / group and head r % group of the group.
struct Piece {
    int request, kv_head, num_heads, first_query, num_queries;  // queries are rows of q
    int first_position;                              // of the first query; negative where nothing is seen
    int from, to;                                    // keys
    int part, num_parts;                             // of the stretches that give one result
    int64_t scratch;  // where its part is kept, in rows of head_dim + 2; unused if it is the only one

    Piece of_head(int head, int group) const {
        Piece one = *this;
        one.kv_head += head, one.num_heads = 1, one.scratch += head * num_queries * group;
        return one;
    }
};

struct Plan {
    int head_dim = 0;
    std::vector<Piece> pieces;
    std::vector<int> merges;             // pieces that are the first of several parts
    mutable std::vector<float> scratch;  // largest score, sum of weights and weighted values of each part's rows
};

// One layer's call. T is the type of the cache's numbers; whatever vector.h can load will do.
template <class T>
struct Call {
    const float* q;
    int64_t q_stride;
    const T* cache;  // [num_blocks, block_size, 2, kv_heads, head_dim]
    const int64_t* tables;
    int64_t table_stride;
    int heads, kv_heads, head_dim, block_size, window;
    float scale;
    float* out;

    int group() const { return heads / kv_heads; }
    int64_t token() const { return 2 * int64_t(kv_heads) * head_dim; }

    const float* query(const Piece& piece, int row) const {
        const int64_t head = piece.kv_head * group() + row % group();
        return q + (piece.first_query + row / group()) * q_stride + head * head_dim;
    }

    float* result(const Piece& piece, int row) const {
        const int64_t query = piece.first_query + row / group(), head = piece.kv_head * group() + row % group();
        return out + (query * heads + head) * head_dim;
    }

    // Where the keys of a position begin; its values lie half a token further.
    const T* key(const Piece& piece, const int64_t* table, int position) const {
        const int64_t slot = table[position / block_size] * block_size + position % block_size;
        return cache + slot * token() + int64_t(piece.kv_head) * head_dim;
    }
};

constexpr float LOG2_E = 1.44269504f;  // scores are multiplied by it, so that weights are powers of 2

template <class T>
inline void fetch(const T* row, int n) {
    for (int i = 0; i < n; i += 64 / int(sizeof(T))) __builtin_prefetch(row + i);
}

// One row of scores, of which those of from … to - 1 count, becomes weights up to the next multiple of 8; largest score
// and sum of weights move on. Returns what everything summed so far must be multiplied by.
inline float soften(float* row, int num_keys, int from, int to, float& top, float& total) {
    const int padded = (num_keys + 7) / 8 * 8;
    if (from >= to) {  // nothing of these keys is visible
        std::fill(row, row + padded, 0.0f);
        return 1.0f;
    }
    std::fill(row, row + from, -INFINITY);
    std::fill(row + to, row + padded, -INFINITY);
    v8 most = load(row);
    for (int t = 8; t < padded; t += 8) most = larger(load(row + t), most);
    float next = top;
    for (int i = 0; i < 8; i++) next = most[i] > next ? most[i] : next;
    v8 sums = {};
    for (int t = 0; t < padded; t += 8) {
        const v8 weight = exp2_negative(load(row + t) - all(next));
        store(row + t, weight);
        sums += weight;
    }
    const float shrink = exp2_negative(all(top - next))[0];
    total = total * shrink + sum(sums);
    top = next;
    return shrink;
}

// What a row of a piece has come to: its result, or its part of one.
template <class T>
void finish(const Call<T>& call, const Plan& plan, const Piece& piece, int row, float top, float total, const float* sums) {
    float factor = total == 0.0f ? 0.0f : 1.0f / total;  // a row that sees no key gives zeros
    float* out;
    if (piece.num_parts > 1) {
        out = plan.scratch.data() + (piece.scratch + row) * (call.head_dim + 2);
        *out++ = top, *out++ = total;
        factor = 1.0f;
    } else {
        out = call.result(piece, row);
    }
    for (int i = 0; i < call.head_dim; i += 8) store(out + i, load(sums + i) * all(factor));
}
