// Paged attention on a CPU: how a step's work is cut into pieces, and what the kernels of a piece are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

constexpr int KEYS = 64;       // keys in one round of the online softmax
constexpr int MAX_ROWS = 128;  // rows of a piece; a group of more heads than this is refused by the caller

// One KV head of one request, some of its queries and a stretch of its keys. All query heads that share the KV head are
// rows of the piece: row r is query r / group and head r % group of the group.
struct Piece {
    int request, kv_head, first_query, num_queries;  // queries are rows of q
    int first_position;                              // of the first query; negative where nothing is seen
    int from, to;                                    // keys
    int part, num_parts;                             // of the stretches that give one result
    int64_t scratch;  // where its part is kept, in rows of head_dim + 2; unused if it is the only one
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

// What a row of a piece has come to: its result, or its part of one.
template <class T>
void finish(const Call<T>& call, const Plan& plan, const Piece& piece, int row, float top, float total, const float* sums) {
    const int head_dim = call.head_dim;
    if (piece.num_parts > 1) {
        float* part = plan.scratch.data() + (piece.scratch + row) * (head_dim + 2);
        part[0] = top, part[1] = total;
        for (int i = 0; i < head_dim; i++) part[2 + i] = sums[i];
        return;
    }
    const float factor = total == 0.0f ? 0.0f : 1.0f / total;  // a row that sees no key gives zeros
    float* out = call.result(piece, row);
    for (int i = 0; i < head_dim; i++) out[i] = sums[i] * factor;
}
