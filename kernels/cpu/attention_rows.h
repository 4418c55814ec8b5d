// Attention of a piece with few rows, as in decoding: bound by reading keys and values, which are read where they lie.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "vector.h"

constexpr int AHEAD = 12;  // keys asked for before they are needed: a cache is read in pieces too short to be guessed

// scores[r][0..3] = rows r of q times four keys.
template <int R, class T>
inline void score4(const float* const* q, const T* const* k, int head_dim, float scale, float* const* scores) {
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

template <int R, class T>
void score(const float* const* q, const T* const* keys, int num_keys, int head_dim, float scale, float* scores) {
    float* rows[R];
    int t = 0;
    for (; t + 4 <= num_keys; t += 4) {
        for (int ahead = t + AHEAD; ahead < std::min(t + AHEAD + 4, num_keys); ahead++) fetch(keys[ahead], head_dim);
        for (int r = 0; r < R; r++) rows[r] = scores + r * KEYS + t;
        score4<R>(q, keys + t, head_dim, scale, rows);
    }
    if (t == num_keys) return;
    // The last one to three keys: the final key stands in for those that are missing, and their scores are thrown away.
    const T* last[4];
    float spare[R][4];
    for (int i = 0; i < 4; i++) last[i] = keys[std::min(t + i, num_keys - 1)];
    for (int r = 0; r < R; r++) rows[r] = spare[r];
    score4<R>(q, last, head_dim, scale, rows);
    for (int r = 0; r < R; r++) std::copy(spare[r], spare[r] + (num_keys - t), scores + r * KEYS + t);
}

// out[r] += weights[r][t] * values[t], W vectors of the head at a time.
template <int R, int W, class T>
inline void weigh(const float* weights, const T* const* values, int num_keys, int at, int head_dim, float* out) {
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

template <int R, class T>
void weigh_all(const float* weights, const T* const* values, int num_keys, int head_dim, float* out) {
    int at = 0;
    for (; at + 32 <= head_dim; at += 32) weigh<R, 4>(weights, values, num_keys, at, head_dim, out);
    for (; at < head_dim; at += 8) weigh<R, 1>(weights, values, num_keys, at, head_dim, out);
}

template <class T>
void attend_rows(const Call<T>& call, const Plan& plan, const Piece& piece) {
    const int group = call.group(), head_dim = call.head_dim, rows = piece.num_queries * group;
    const float* q[MANY];
    float top[MANY], total[MANY];
    float scores[MANY * KEYS];
    const float scale = call.scale * LOG2_E;
    thread_local std::vector<float> sums;
    sums.assign(size_t(rows) * head_dim, 0.0f);
    for (int r = 0; r < rows; r++) q[r] = call.query(piece, r), top[r] = -INFINITY, total[r] = 0.0f;
    const int64_t* table = call.tables + piece.request * call.table_stride;
    for (int begin = piece.from; begin < piece.to; begin += KEYS) {
        const int count = std::min(KEYS, piece.to - begin);
        const T *keys[KEYS], *values[KEYS];
        for (int t = 0; t < count; t++) {
            keys[t] = call.key(piece, table, begin + t);
            values[t] = keys[t] + call.token() / 2;
            if (t < AHEAD) fetch(keys[t], head_dim);
            fetch(values[t], head_dim);
        }
        int r = 0;
        for (; r + 3 <= rows; r += 3) score<3>(q + r, keys, count, head_dim, scale, scores + r * KEYS);
        for (; r < rows; r++) score<1>(q + r, keys, count, head_dim, scale, scores + r * KEYS);
        for (r = 0; r < rows; r++) {
            const int own = piece.first_position + r / group, oldest = call.window ? own - call.window + 1 : 0;
            const int from = std::max(0, oldest - begin), to = std::min(count, own + 1 - begin);
            const float shrink = soften(scores + r * KEYS, count, from, to, top[r], total[r]);
            if (shrink != 1.0f)
                for (int i = 0; i < head_dim; i += 8)
                    store(&sums[r * head_dim + i], load(&sums[r * head_dim + i]) * all(shrink));
        }
        for (r = 0; r + 3 <= rows; r += 3) weigh_all<3>(scores + r * KEYS, values, count, head_dim, &sums[r * head_dim]);
        for (; r < rows; r++) weigh_all<1>(scores + r * KEYS, values, count, head_dim, &sums[r * head_dim]);
    }
    for (int r = 0; r < rows; r++) finish(call, plan, piece, r, top[r], total[r], &sums[r * head_dim]);
}
