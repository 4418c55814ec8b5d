// Paged attention on a CPU, as kernels.reference.paged_attention defines it, without gathering the cache.
//
// One piece of work is a KV head of one request, a few of its queries and a stretch of its keys, so each key and value is
// read from memory once for all query heads that share them. With one query it is several KV heads, whose keys lie side by
// side: memory is read fastest in one straight line. Keys are taken KEYS at a time with the online softmax
// (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022): scores, a new maximum, what was summed so far scaled
// down, weighted values added. Long contexts of single queries are cut into stretches that are merged at the end
// (Flash-Decoding, Dao et al. 2023). How a request is cut depends on the request alone, so neither its neighbours nor
// the number of threads can change a bit of its result. All layers of a step share one plan of the pieces.

#include "attention.h"

#include <algorithm>
#include <cmath>

#include "attention_rows.h"
#include "attention_tiles.h"
#include "crew.h"

namespace {

constexpr int ROWS = 96, MOST_ROWS = 192;  // about as many rows (queries x heads of a group) share a read of the keys
// Keys of one piece of work, for a request whose queries are one piece: of few rows and of many.
constexpr int SHORT = 256, STRETCH = 512;
constexpr int WIDTH = 256;  // numbers of the keys of a token that pieces of few rows read together

struct Requests {
    const int32_t *query_start, *seq_lens;
    int batch;
};

// Queries of a piece, of a request that has so many: alike, and not too few pieces for several threads.
int tile(int queries, int group) {
    const int most = std::max({1, ROWS / group, std::min(MOST_ROWS / group, queries / 4)});
    const int pieces = (queries + most - 1) / most;
    return (queries + pieces - 1) / pieces;
}

// Two threads have something to do even if there is one request.
int short_stretch(int keys) {
    const int parts = std::max(2, (keys + SHORT - 1) / SHORT);
    return std::max(1, ((keys + parts - 1) / parts + 31) / 32) * 32;
}

void cut(Plan& plan, const Requests& requests, int heads, int kv_heads, int window) {
    const int group = heads / kv_heads;
    int64_t rows = 0;
    plan.pieces.clear();
    plan.merges.clear();
    for (int b = 0; b < requests.batch; b++) {
        const int begin = requests.query_start[b], end = requests.query_start[b + 1];
        if (begin == end) continue;
        const int first = requests.seq_lens[b] - (end - begin), step = tile(end - begin, group);
        const bool few = (end - begin) * group < MANY;
        const int most = few ? std::clamp(WIDTH / plan.head_dim, 1, kv_heads) : 1;
        for (int head = 0; head < kv_heads; head += most) {
            for (int query = begin; query < end; query += step) {
                const int count = std::min(step, end - query), position = first + query - begin;
                const int from = window ? std::max(0, position - window + 1) : 0, to = std::max(from, position + count);
                const int stretch = few ? short_stretch(to - from) : STRETCH;
                const int parts = step == end - begin ? std::max(1, (to - from + stretch - 1) / stretch) : 1;
                const int heads_here = std::min(most, kv_heads - head);
                if (parts > 1) plan.merges.push_back(int(plan.pieces.size()));
                for (int p = 0; p < parts; p++) {
                    const int start = from + p * stretch, stop = p + 1 == parts ? to : start + stretch;
                    plan.pieces.push_back({b, head, heads_here, query, count, position, start, stop, p, parts, rows});
                    rows += parts > 1 ? heads_here * count * group : 0;
                }
            }
        }
    }
    plan.scratch.resize(size_t(rows) * (plan.head_dim + 2));
}

// The parts of each row: all are scaled to the largest score.
template <class T>
void merge(const Call<T>& call, const Plan& plan, const Piece& first) {
    const int head_dim = call.head_dim, rows = first.num_queries * call.group();
    const int64_t next = int64_t(first.num_heads) * rows * (head_dim + 2);
    for (int i = 0; i < first.num_heads * rows; i++) {
        const Piece one = first.of_head(i / rows, call.group());
        const int r = i % rows;
        const float* parts = plan.scratch.data() + (one.scratch + r) * (head_dim + 2);
        float top = -INFINITY, total = 0.0f;
        for (int p = 0; p < first.num_parts; p++) top = std::max(top, parts[p * next]);
        float* out = call.result(one, r);
        std::fill(out, out + head_dim, 0.0f);
        for (int p = 0; p < first.num_parts; p++) {
            const float* part = parts + p * next;
            if (part[1] == 0.0f) continue;  // the row sees none of these keys
            const float factor = std::exp2(part[0] - top);
            total += part[1] * factor;
            for (int i = 0; i < head_dim; i++) out[i] += part[2 + i] * factor;
        }
        if (total == 0.0f) continue;
        for (int i = 0; i < head_dim; i++) out[i] /= total;
    }
}

template <class T>
void run(const Call<T>& call, const Plan& plan, const Piece& piece) {
    if (piece.num_queries * call.group() < MANY) return attend_rows(call, plan, piece);
    attend_tiles(call, plan, piece);
}

template <class T>
void attend(Tape* tape, int threads, const Plan* plan, const Call<T>& call) {
    submit(tape, threads, {
        [=](Share& share) {
            share.take(int(plan->pieces.size()), 1, [&](int i, int) { run(call, *plan, plan->pieces[i]); });
        },
        [=](Share& share) {
            share.take(int(plan->merges.size()), 1, [&](int i, int) { merge(call, *plan, plan->pieces[plan->merges[i]]); });
        },
    });
}

}  // namespace

extern "C" {

Plan* attention_plan_new() { return new Plan; }

void attention_plan_free(Plan* plan) { delete plan; }

// query_start [batch + 1] and seq_lens [batch] are read when the operation runs.
void attention_plan(Tape* tape, int threads, Plan* plan, const int32_t* query_start, const int32_t* seq_lens, int batch,
                    int heads, int kv_heads, int head_dim, int window) {
    plan->head_dim = head_dim;
    const Requests requests{query_start, seq_lens, batch};
    submit(tape, threads, {[=](Share& share) {
        share.take(1, 1, [&](int, int) { cut(*plan, requests, heads, kv_heads, window); });
    }});
}

// q [num_tokens, heads, head_dim] with rows q_stride apart, tables [batch, …] with rows table_stride apart, out like q
// but without gaps. window 0: every token sees all before it. The plan must have been made for the same heads and window.
void paged_attention(Tape* tape, int threads, const Plan* plan, const float* q, int64_t q_stride, const void* cache,
                     int cache_is_half, const int64_t* tables, int64_t table_stride, int heads, int kv_heads,
                     int head_dim, int block_size, int window, float scale, float* out) {
    const auto with = [&](auto* numbers) {
        attend(tape, threads, plan,
               Call<std::decay_t<decltype(*numbers)>>{q, q_stride, numbers, tables, table_stride, heads, kv_heads,
                                                             head_dim, block_size, window, scale, out});
    };
    if (cache_is_half) return with(static_cast<const half*>(cache));
    with(static_cast<const float*>(cache));
}
}
