// Paged attention on a CPU, as kernels.reference.paged_attention defines it, without gathering anything.
//
// One piece of work is one KV head of one request, a few of its queries and a stretch of its keys. All query heads that
// share the KV head are rows of the piece, so each key and value is read from memory once for all of them. Keys are taken
// 64 at a time with the online softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022): scores, a new
// maximum, what was summed so far scaled down, weighted values added. Long contexts of single queries are cut into
// stretches that are merged at the end. How a request is cut depends on the request alone, so neither its neighbours nor
// the number of threads can change a bit of its result.

#include <algorithm>
#include <memory>
#include <vector>

#include "vector.h"

namespace {

constexpr int KEYS = 64;       // keys in one round of the online softmax
constexpr int ROWS = 24;       // about as many rows (queries x heads of a group) as share a read of the keys
constexpr int MAX_ROWS = 128;  // a group of more heads than this is refused by the caller
constexpr int AHEAD = 12;      // keys asked for before they are needed: a cache is read in pieces too short to be guessed
constexpr int STRETCH = 512;   // keys of one piece of work, for a request that decodes

struct Call {
    const float* q;
    int64_t q_stride;
    const float* cache;
    const int64_t* tables;
    int64_t table_stride;
    int heads, kv_heads, head_dim, block_size, window;
    float scale;
    float* out;

    int group() const { return heads / kv_heads; }
    int64_t token() const { return 2 * int64_t(kv_heads) * head_dim; }
};

struct Piece {
    int request, kv_head, first_query, num_queries;  // queries are rows of q
    int first_position;                              // of the first query
    int from, to;                                    // keys
    int part, num_parts;                             // of the stretches that give one result
    int64_t scratch;                                 // where its part is kept, in rows of head_dim + 2; unused if it is the only one
};

inline void fetch(const float* row, int n) {
    for (int i = 0; i < n; i += 16) __builtin_prefetch(row + i);
}

// scores[r][0..3] = rows r of q times four keys.
template <int R>
inline void score4(const float* const* q, const float* const* k, int head_dim, float scale, float* const* scores) {
    v8 sums[R][4] = {};
    for (int i = 0; i < head_dim; i += 8) {
        v8 key[4] = {load(k[0] + i), load(k[1] + i), load(k[2] + i), load(k[3] + i)};
        for (int r = 0; r < R; r++) {
            v8 query = load(q[r] + i);
            for (int t = 0; t < 4; t++) sums[r][t] += query * key[t];
        }
    }
    for (int r = 0; r < R; r++)
        for (int t = 0; t < 4; t++) scores[r][t] = sum(sums[r][t]) * scale;
}

template <int R>
void score(const float* const* q, const float* const* keys, int num_keys, const Call& call, float* scores) {
    float* rows[R];
    int t = 0;
    for (; t + 4 <= num_keys; t += 4) {
        for (int ahead = t + AHEAD; ahead < std::min(t + AHEAD + 4, num_keys); ahead++) fetch(keys[ahead], call.head_dim);
        for (int r = 0; r < R; r++) rows[r] = scores + r * KEYS + t;
        score4<R>(q, keys + t, call.head_dim, call.scale, rows);
    }
    if (t == num_keys) return;
    // The last one to three keys: the final key stands in for those that are missing, and their scores are thrown away.
    const float* last[4];
    float spare[R][4];
    for (int i = 0; i < 4; i++) last[i] = keys[std::min(t + i, num_keys - 1)];
    for (int r = 0; r < R; r++) rows[r] = spare[r];
    score4<R>(q, last, call.head_dim, call.scale, rows);
    for (int r = 0; r < R; r++) std::copy(spare[r], spare[r] + (num_keys - t), scores + r * KEYS + t);
}

// out[r] += weights[r][t] * values[t], W vectors of the head at a time.
template <int R, int W>
inline void weigh(const float* weights, const float* const* values, int num_keys, int at, int head_dim, float* out) {
    v8 sums[R][W];
    for (int r = 0; r < R; r++)
        for (int w = 0; w < W; w++) sums[r][w] = load(out + r * head_dim + at + 8 * w);
    for (int t = 0; t < num_keys; t++) {
        v8 value[W];
        for (int w = 0; w < W; w++) value[w] = load(values[t] + at + 8 * w);
        for (int r = 0; r < R; r++) {
            v8 weight = all(weights[r * KEYS + t]);
            for (int w = 0; w < W; w++) sums[r][w] += weight * value[w];
        }
    }
    for (int r = 0; r < R; r++)
        for (int w = 0; w < W; w++) store(out + r * head_dim + at + 8 * w, sums[r][w]);
}

template <int R>
void weigh_all(const float* weights, const float* const* values, int num_keys, int head_dim, float* out) {
    int at = 0;
    for (; at + 32 <= head_dim; at += 32) weigh<R, 4>(weights, values, num_keys, at, head_dim, out);
    for (; at < head_dim; at += 8) weigh<R, 1>(weights, values, num_keys, at, head_dim, out);
}

// One row of scores becomes weights; sum and largest move on, and what was added up so far is scaled to the new largest.
void soften(float* row, int num_keys, float& top, float& total, float* out, int head_dim) {
    float next = std::max(top, largest(row, num_keys));
    if (next == -INFINITY) {  // nothing of these keys is visible
        std::fill(row, row + num_keys, 0.0f);
        return;
    }
    int padded = (num_keys + 7) / 8 * 8;
    std::fill(row + num_keys, row + padded, -INFINITY);
    v8 sums = {};
    for (int t = 0; t < padded; t += 8) {
        v8 weight = exp_negative(load(row + t) - all(next));
        store(row + t, weight);
        sums += weight;
    }
    float shrink = top == -INFINITY ? 0.0f : exp_negative(all(top - next))[0];
    total = total * shrink + sum(sums);
    if (shrink != 1.0f)
        for (int i = 0; i < head_dim; i += 8) store(out + i, load(out + i) * all(shrink));
    top = next;
}

void run(const Call& call, const Piece& piece, float* scratch) {
    const int group = call.group(), head_dim = call.head_dim, rows = piece.num_queries * group;
    const int64_t token = call.token();
    const float* q[MAX_ROWS];
    int64_t result[MAX_ROWS];  // where a row's result begins
    float top[MAX_ROWS], total[MAX_ROWS];
    float scores[MAX_ROWS * KEYS];
    thread_local std::vector<float> sums;
    sums.assign(size_t(rows) * head_dim, 0.0f);
    for (int r = 0; r < rows; r++) {
        const int64_t query = piece.first_query + r / group, head = piece.kv_head * group + r % group;
        q[r] = call.q + query * call.q_stride + head * head_dim;
        result[r] = (query * call.heads + head) * head_dim;
        top[r] = -INFINITY, total[r] = 0.0f;
    }
    const int64_t* table = call.tables + piece.request * call.table_stride;
    for (int begin = piece.from; begin < piece.to; begin += KEYS) {
        const int count = std::min(KEYS, piece.to - begin);
        const float *keys[KEYS], *values[KEYS];
        for (int t = 0; t < count; t++) {
            const int position = begin + t;
            const int64_t slot = table[position / call.block_size] * call.block_size + position % call.block_size;
            keys[t] = call.cache + slot * token + int64_t(piece.kv_head) * head_dim;
            values[t] = keys[t] + token / 2;
            if (t < AHEAD) fetch(keys[t], head_dim);
            fetch(values[t], head_dim);
        }
        int r = 0;
        for (; r + 3 <= rows; r += 3) score<3>(q + r, keys, count, call, scores + r * KEYS);
        for (; r < rows; r++) score<1>(q + r, keys, count, call, scores + r * KEYS);
        for (r = 0; r < rows; r++) {
            const int own = piece.first_position + r / group;
            const int oldest = call.window ? own - call.window + 1 : 0;
            float* row = scores + r * KEYS;
            for (int t = std::max(0, own + 1 - begin); t < count; t++) row[t] = -INFINITY;
            for (int t = 0; t < std::min(count, oldest - begin); t++) row[t] = -INFINITY;
            soften(row, count, top[r], total[r], &sums[r * head_dim], head_dim);
        }
        for (r = 0; r + 3 <= rows; r += 3) weigh_all<3>(scores + r * KEYS, values, count, head_dim, &sums[r * head_dim]);
        for (; r < rows; r++) weigh_all<1>(scores + r * KEYS, values, count, head_dim, &sums[r * head_dim]);
    }
    for (int r = 0; r < rows; r++) {
        const float* from = &sums[r * head_dim];
        if (piece.num_parts > 1) {
            float* part = scratch + (piece.scratch + r) * (head_dim + 2);
            part[0] = top[r], part[1] = total[r];
            std::copy(from, from + head_dim, part + 2);
        } else {
            for (int i = 0; i < head_dim; i++) call.out[result[r] + i] = from[i] / total[r];
        }
    }
}

// The stretches of one query and KV head: each is scaled to the largest score of all.
void merge(const Call& call, const Piece& first, const float* scratch) {
    const int group = call.group(), head_dim = call.head_dim, row = head_dim + 2;
    for (int g = 0; g < group; g++) {
        const float* parts = scratch + (first.scratch + g) * row;
        const int64_t next = int64_t(group) * row;
        float top = -INFINITY, total = 0.0f;
        for (int p = 0; p < first.num_parts; p++) top = std::max(top, parts[p * next]);
        float* to = call.out + (int64_t(first.first_query) * call.heads + first.kv_head * group + g) * head_dim;
        std::fill(to, to + head_dim, 0.0f);
        for (int p = 0; p < first.num_parts; p++) {
            const float* part = parts + p * next;
            const float factor = std::exp(part[0] - top);
            total += part[1] * factor;
            for (int i = 0; i < head_dim; i++) to[i] += part[2 + i] * factor;
        }
        for (int i = 0; i < head_dim; i++) to[i] /= total;
    }
}

std::vector<Piece> cut(const Call& call, const int32_t* query_start, const int32_t* seq_lens, int batch, int64_t& rows) {
    std::vector<Piece> pieces;
    const int tile = std::max(1, ROWS / call.group());
    rows = 0;
    for (int b = 0; b < batch; b++) {
        const int begin = query_start[b], end = query_start[b + 1], first = seq_lens[b] - (end - begin);
        for (int head = 0; head < call.kv_heads; head++) {
            for (int query = begin; query < end; query += tile) {
                const int count = std::min(tile, end - query), position = first + query - begin;
                const int from = call.window ? std::max(0, position - call.window + 1) : 0, to = position + count;
                const int parts = end - begin == 1 ? (to - from + STRETCH - 1) / STRETCH : 1;
                for (int p = 0; p < parts; p++) {
                    const int start = from + p * STRETCH, stop = p + 1 == parts ? to : start + STRETCH;
                    pieces.push_back({b, head, query, count, position, start, stop, p, parts, rows});
                    rows += parts > 1 ? call.group() : 0;
                }
            }
        }
    }
    return pieces;
}

}  // namespace

extern "C" void paged_attention(const float* q, int64_t q_stride, const float* cache, const int64_t* tables,
                                int64_t table_stride, const int32_t* query_start, const int32_t* seq_lens, int batch,
                                int heads, int kv_heads, int head_dim, int block_size, int window, float scale,
                                float* out, int threads) {
    Call call{q, q_stride, cache, tables, table_stride, heads, kv_heads, head_dim, block_size, window, scale, out};
    int64_t rows = 0;
    std::vector<Piece> pieces = cut(call, query_start, seq_lens, batch, rows);
    std::unique_ptr<float[]> scratch(new float[size_t(rows) * (head_dim + 2)]);
    const int count = int(pieces.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; i++) run(call, pieces[i], scratch.get());
    for (const Piece& piece : pieces)
        if (piece.num_parts > 1 && piece.part == 0) merge(call, piece, scratch.get());
}
