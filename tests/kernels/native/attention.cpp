// Attention on ragged batches against a loop over single numbers. The cache, the tables and the queries are exactly as
// large as they must be, and blocks that belong to nobody are not there, so that reading too far is an error.
#include <cmath>
#include <cstring>

#include "driver.h"
#include "vector.h"

struct Plan;
extern "C" {
Plan* attention_plan_new();
void attention_plan_free(Plan*);
void attention_plan(Tape*, int threads, Plan*, const int32_t* query_start, const int32_t* seq_lens, int batch,
                    int heads, int kv_heads, int head_dim, int window);
void paged_attention(Tape*, int threads, const Plan*, const float* q, int64_t q_stride, const void* cache,
                     int cache_is_half, const int64_t* tables, int64_t table_stride, int heads, int kv_heads,
                     int head_dim, int block_size, int window, float scale, float* out);
}

namespace {

struct Request {
    int length, queries;
};

struct Shape {
    int heads, kv_heads, head_dim, block_size, window;
};

struct Batch {
    Shape shape;
    std::vector<int32_t> starts{0}, lengths;
    std::vector<int64_t> tables;
    std::vector<float> q, cache, out;
    std::vector<half> halves;
    int width = 1;

    Batch(const Shape& shape, const std::vector<Request>& requests) : shape(shape) {
        std::mt19937 random(7);
        int blocks = 0;
        for (const Request& request : requests) {
            starts.push_back(starts.back() + request.queries);
            lengths.push_back(request.length);
            width = std::max(width, blocks_of(request.length));
        }
        tables.assign(requests.size() * width, 1 << 30);  // what lies past a request's blocks is not to be followed
        for (size_t b = 0; b < requests.size(); b++)
            for (int i = 0; i < blocks_of(lengths[b]); i++) tables[b * width + i] = blocks++;
        q = drawn(size_t(starts.back()) * shape.heads * shape.head_dim, random);
        cache = drawn(size_t(blocks) * shape.block_size * 2 * shape.kv_heads * shape.head_dim, random);
        for (float& x : cache) halves.push_back(to_half(x)), x = to_float(halves.back());
        out.assign(q.size(), NAN);
    }

    int blocks_of(int length) const { return (length + shape.block_size - 1) / shape.block_size; }
    float scale() const { return 1 / std::sqrt(float(shape.head_dim)); }

    void submit(Tape* tape, int threads, Plan* plan, bool half) {
        const auto& [heads, kv_heads, head_dim, block_size, window] = shape;
        attention_plan(tape, threads, plan, starts.data(), lengths.data(), int(lengths.size()), heads, kv_heads, head_dim,
                       window);
        const void* numbers = half ? static_cast<const void*>(halves.data()) : cache.data();
        paged_attention(tape, threads, plan, q.data(), heads * head_dim, numbers, half, tables.data(), width, heads,
                        kv_heads, head_dim, block_size, window, scale(), out.data());
    }

    const float* row(int b, int position, int kv_head, bool value) const {
        const int64_t slot = tables[b * width + position / shape.block_size] * shape.block_size +
                             position % shape.block_size;
        return &cache[((slot * 2 + value) * shape.kv_heads + kv_head) * shape.head_dim];
    }

    void check() const {
        const int group = shape.heads / shape.kv_heads, head_dim = shape.head_dim;
        for (size_t b = 0; b < lengths.size(); b++)
            for (int n = starts[b]; n < starts[b + 1]; n++)
                for (int head = 0; head < shape.heads; head++) {
                    const int own = lengths[b] - starts[b + 1] + n;
                    const int first = shape.window ? std::max(0, own - shape.window + 1) : 0;
                    const size_t at = (size_t(n) * shape.heads + head) * head_dim;
                    std::vector<double> expected(head_dim, 0.0);
                    double total = 0;
                    for (int t = first; t <= own; t++) {
                        double score = 0;
                        for (int i = 0; i < head_dim; i++) score += double(q[at + i]) * row(b, t, head / group, false)[i];
                        const double weight = std::exp(score * scale());
                        total += weight;
                        for (int i = 0; i < head_dim; i++) expected[i] += weight * row(b, t, head / group, true)[i];
                    }
                    for (int i = 0; i < head_dim; i++)
                        CHECK(std::fabs(out[at + i] - (total == 0 ? 0 : expected[i] / total)) < 1e-5);
                }
    }
};

const std::vector<Request> RAGGED = {{1, 1}, {600, 1}, {0, 0}, {0, 1}, {33, 33}, {130, 70}, {9, 0}, {3, 5}, {520, 6}};
const Shape SHAPES[] = {{6, 2, 16, 16, 0}, {3, 3, 8, 1, 0}, {7, 1, 24, 17, 5}, {8, 2, 8, 256, 70}, {4, 1, 40, 16, 1}};

}  // namespace

void test_attention() {
    for (const Shape& shape : SHAPES)
        for (const bool half : {false, true}) {
            Batch batch(shape, RAGGED);
            std::vector<float> first;
            Plan* plan = attention_plan_new();
            Tape* tape = tape_new();
            batch.submit(tape, 1, plan, half);
            for (int threads : THREADS) {
                std::fill(batch.out.begin(), batch.out.end(), NAN);
                batch.submit(nullptr, threads, plan, half);
                batch.check();
                if (first.empty()) first = batch.out;
                CHECK(std::memcmp(first.data(), batch.out.data(), first.size() * sizeof(float)) == 0);
                for (int replay = 0; replay < 3; replay++) {
                    std::fill(batch.out.begin(), batch.out.end(), NAN);
                    tape_run(tape, threads);
                    CHECK(std::memcmp(first.data(), batch.out.data(), first.size() * sizeof(float)) == 0);
                }
            }
            tape_free(tape);
            attention_plan_free(plan);
        }
}

// A request says it is one token longer than the cache is.
void seeded_overrun() {
    Batch batch({3, 3, 8, 16, 0}, {{32, 1}});
    batch.lengths[0]++;
    batch.tables.push_back(2);
    Plan* plan = attention_plan_new();
    batch.submit(nullptr, 1, plan, false);
    attention_plan_free(plan);
}
