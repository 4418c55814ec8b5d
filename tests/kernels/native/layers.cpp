// Norms, rotation and SwiGLU on arrays of exactly their size, against loops over single numbers.
#include <cmath>

#include "driver.h"
#include "vector.h"

extern "C" {
void rms_norm(Tape*, int threads, const float* x, int64_t x_stride, float* residual, const float* weight, float eps,
              int rows, int width, float* out);
void silu_mul(Tape*, int threads, const float* gate_up, int rows, int width, float* out);
void rope_and_write(Tape*, int threads, float* qkv, const int64_t* positions, const float* cos, const float* sin,
                    const int64_t* slots, char* cache, int cache_is_half, int rows, int heads, int kv_heads,
                    int head_dim, const float* q_norm, const float* k_norm, float eps);
}

namespace {

bool close(double a, double b) { return std::fabs(a - b) <= 1e-5 * (1 + std::fabs(b)); }

void norms(int rows, int width, int threads, std::mt19937& random) {
    const std::vector<float> x = drawn(size_t(rows) * width, random), weight = drawn(width, random);
    std::vector<float> residual = drawn(x.size(), random), out(x.size());
    std::vector<float> sum(x.size());
    for (size_t i = 0; i < x.size(); i++) sum[i] = x[i] + residual[i];
    rms_norm(nullptr, threads, x.data(), width, residual.data(), weight.data(), 1e-5f, rows, width, out.data());
    for (int r = 0; r < rows; r++) {
        double squares = 0;
        for (int i = 0; i < width; i++) squares += double(sum[r * width + i]) * sum[r * width + i];
        for (int i = 0; i < width; i++) {
            CHECK(residual[r * width + i] == sum[r * width + i]);
            CHECK(close(out[r * width + i], sum[r * width + i] / std::sqrt(squares / width + 1e-5) * weight[i]));
        }
    }
}

void swiglu(int rows, int width, int threads, std::mt19937& random) {
    const std::vector<float> both = drawn(size_t(rows) * 2 * width, random);
    std::vector<float> out(size_t(rows) * width);
    silu_mul(nullptr, threads, both.data(), rows, width, out.data());
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++) {
            const double gate = both[r * 2 * width + i], up = both[r * 2 * width + width + i];
            CHECK(close(out[r * width + i], gate / (1 + std::exp(-gate)) * up));
        }
}

// Turned by no angle, so keys and values reach the cache as they are; a slot below zero reaches nothing.
void writes(int rows, int threads, bool halves, std::mt19937& random) {
    constexpr int heads = 3, kv_heads = 1, head_dim = 10, width = (heads + 2 * kv_heads) * head_dim;
    std::vector<float> qkv = drawn(size_t(rows) * width, random);
    const std::vector<float> before = qkv, cos(head_dim / 2 * 4, 1.0f), sin(head_dim / 2 * 4, 0.0f);
    std::vector<int64_t> positions(rows), slots(rows);
    for (int r = 0; r < rows; r++) positions[r] = r % 4, slots[r] = r == 1 ? -1 : rows - 1 - r;
    std::vector<char> cache(size_t(rows) * 2 * kv_heads * head_dim * (halves ? 2 : 4));
    rope_and_write(nullptr, threads, qkv.data(), positions.data(), cos.data(), sin.data(), slots.data(), cache.data(),
                   halves, rows, heads, kv_heads, head_dim, nullptr, nullptr, 0);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * kv_heads * head_dim; i++) {
            const size_t at = size_t(rows - 1 - r) * 2 * kv_heads * head_dim + i;
            const float found = halves ? to_float(load_as<half>(&cache[2 * at])) : load_as<float>(&cache[4 * at]);
            const float wanted = r == 1 ? 0.0f : before[r * width + heads * head_dim + i];
            CHECK(std::fabs(found - wanted) <= (halves ? 1e-3 : 0.0));
        }
}

}  // namespace

void test_layers() {
    std::mt19937 random(5);
    for (int threads : THREADS)
        for (int rows : {1, 3, 70})
            for (int width : {1, 8, 13, 600}) norms(rows, width, threads, random), swiglu(rows, width, threads, random);
    for (int threads : THREADS)
        for (bool halves : {false, true}) writes(900, threads, halves, random), writes(2, threads, halves, random);
}
