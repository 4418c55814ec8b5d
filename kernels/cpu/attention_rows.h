// Attention of a piece with few rows, as in decoding: bound by reading keys and values, which are read where they lie.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "vector.h"

constexpr int AHEAD = 12;  // positions asked for before they are needed: a cache is read in pieces too short to be guessed

// Asks for the keys and values of a piece, line after line, a few at a time: a processor waits for few lines at once, and
// when it asks for more, everything stands still.
template <class T>
class Asked {
  public:
    Asked(const Call<T>& call, const Piece& piece, const int64_t* table)
        : call(call), piece(piece), table(table), position(piece.from) {
        lines = (piece.num_heads * call.head_dim * int(sizeof(T)) + 63) / 64;
        if (position < piece.to) begin();
    }

    void some(int count) {
        for (; count > 0 && position < piece.to; count--) {
            __builtin_prefetch(at + (line < lines ? line : line - lines) * 64);
            if (++line == lines) at += call.token() / 2 * sizeof(T);
            if (line == 2 * lines && ++position < piece.to) begin();
        }
    }

    void up_to(int end) {
        while (position < std::min(end, piece.to)) some(2 * lines - line);
    }

    // How many lines to ask for at each of `calls` times while `keys` keys are worked on.
    int share(int keys, int calls) const { return (2 * lines * keys + calls - 1) / calls; }

  private:
    void begin() { at = (const char*)call.key(piece, table, position), line = 0; }

    const Call<T>& call;
    const Piece& piece;
    const int64_t* table;
    int position, line = 0, lines;
    const char* at = nullptr;
};

// scores[r][0..3] = rows r of q times four keys.
template <int R, class T>
inline void score4(const float* const* q, const T* const* k, int head_dim, float scale, float* const* scores) {
    v8 sums[R][4] = {};
    for (int i = 0; i < head_dim; i += 8) {
        v8 query[R];  // twelve sums, three of these and one key: of sixteen
        for (int r = 0; r < R; r++) query[r] = load(q[r] + i);
        for (int t = 0; t < 4; t++) {
            const v8 key = load(k[t] + i);
            for (int r = 0; r < R; r++) sums[r][t] += query[r] * key;
        }
    }
    for (int r = 0; r < R; r++) {
        sum_four(sums[r][0], sums[r][1], sums[r][2], sums[r][3], scores[r]);
        for (int t = 0; t < 4; t++) scores[r][t] *= scale;
    }
}

// Before each four keys, ask(their number).
template <int R, class T, class F>
void score(const float* const* q, const T* const* keys, int num_keys, int head_dim, float scale, float* scores, F ask) {
    float* rows[R];
    int t = 0;
    for (; t + 4 <= num_keys; t += 4) {
        ask(t);
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

// out[r] += weights[r][t] * values[t], W vectors of the head at a time. At each fourth key, ask(its number).
template <int R, int W, class T, class F>
inline void weigh(const float* weights, const T* const* values, int num_keys, int at, int head_dim, float* out, F ask) {
    v8 sums[R][W];
    for (int r = 0; r < R; r++)
        for (int w = 0; w < W; w++) sums[r][w] = load(out + r * head_dim + at + 8 * w);
    for (int t = 0; t < num_keys; t++) {
        if (t % 4 == 0) ask(t);
        v8 weight[R];
        for (int r = 0; r < R; r++) weight[r] = all(weights[r * KEYS + t]);
        for (int w = 0; w < W; w++) {
            const v8 value = load(values[t] + at + 8 * w);
            for (int r = 0; r < R; r++) sums[r][w] += weight[r] * value;
        }
    }
    for (int r = 0; r < R; r++)
        for (int w = 0; w < W; w++) store(out + r * head_dim + at + 8 * w, sums[r][w]);
}

template <int R, class T, class F>
void weigh_all(const float* weights, const T* const* values, int num_keys, int head_dim, float* out, F ask) {
    int at = 0;
    for (; at + 32 <= head_dim; at += 32) weigh<R, 4>(weights, values, num_keys, at, head_dim, out, ask);
    for (; at < head_dim; at += 8) weigh<R, 1>(weights, values, num_keys, at, head_dim, out, ask);
}

template <class T>
void attend_rows(const Call<T>& call, const Plan& plan, const Piece& piece) {
    const int group = call.group(), head_dim = call.head_dim, rows = piece.num_queries * group, heads = piece.num_heads;
    const float scale = call.scale * LOG2_E;
    const int64_t* table = call.tables + piece.request * call.table_stride;
    thread_local std::vector<float> room;
    room.assign(size_t(heads) * rows * (head_dim + 2), 0.0f);
    float *sums = room.data(), *top = sums + size_t(heads) * rows * head_dim, *total = top + heads * rows;
    std::fill(top, total, -INFINITY);
    Asked<T> asked(call, piece, table);
    const int passes = heads * (rows / 3 + rows % 3) * (1 + (head_dim + 31) / 32);  // over a round's keys
    const int lines = asked.share(KEYS, passes * KEYS / 4);
    for (int begin = piece.from; begin < piece.to; begin += KEYS) {
        const int count = std::min(KEYS, piece.to - begin);
        for (int head = 0; head < heads; head++) {
            const Piece one = piece.of_head(head, group);
            const float* q[MANY];
            const T *keys[KEYS], *values[KEYS];
            float scores[MANY * KEYS];
            for (int r = 0; r < rows; r++) q[r] = call.query(one, r);
            for (int t = 0; t < count; t++) keys[t] = call.key(one, table, begin + t), values[t] = keys[t] + call.token() / 2;
            // These keys and values if nobody has yet, and some of the next ones while these are worked on.
            const auto ask = [&](int t) { asked.up_to(begin + t + AHEAD), asked.some(lines); };
            int r = 0;
            for (; r + 3 <= rows; r += 3) score<3>(q + r, keys, count, head_dim, scale, scores + r * KEYS, ask);
            for (; r < rows; r++) score<1>(q + r, keys, count, head_dim, scale, scores + r * KEYS, ask);
            float* of_head = sums + head * rows * head_dim;
            for (r = 0; r < rows; r++) {
                const int own = piece.first_position + r / group, oldest = call.window ? own - call.window + 1 : 0;
                const int from = std::max(0, oldest - begin), to = std::min(count, own + 1 - begin), at = head * rows + r;
                const float shrink = soften(scores + r * KEYS, count, from, to, top[at], total[at]);
                if (shrink != 1.0f)
                    for (int i = r * head_dim; i < (r + 1) * head_dim; i += 8)
                        store(of_head + i, load(of_head + i) * all(shrink));
            }
            for (r = 0; r + 3 <= rows; r += 3)
                weigh_all<3>(scores + r * KEYS, values, count, head_dim, of_head + r * head_dim, ask);
            for (; r < rows; r++) weigh_all<1>(scores + r * KEYS, values, count, head_dim, of_head + r * head_dim, ask);
        }
    }
    for (int i = 0; i < heads * rows; i++)
        finish(call, plan, piece.of_head(i / rows, group), i % rows, top[i], total[i], sums + i * head_dim);
}
