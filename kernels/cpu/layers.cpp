// The small operations between the products: embedding, norms, rotation and writing of keys and values, SwiGLU.

#include <algorithm>

#include "crew.h"
#include "formats.h"

namespace {

constexpr int64_t WORTH_SHARING = 1 << 15;  // numbers: below that, waking a second thread takes longer than the work

int crew_for(int64_t numbers, int threads) { return numbers < WORTH_SHARING ? 1 : threads; }

int grain(int64_t width) { return int(std::max<int64_t>(1, 4096 / std::max<int64_t>(width, 1))); }

float mean_square(const float* x, int width) {
    v8 squares = {};
    int i = 0;
    for (; i + 8 <= width; i += 8) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < width; i++) total += x[i] * x[i];
    return total / width;
}

void normalize(const float* x, const float* weight, float eps, int width, float* out) {
    const float factor = 1.0f / std::sqrt(mean_square(x, width) + eps);
    int i = 0;
    for (; i + 8 <= width; i += 8) store(out + i, load(x + i) * all(factor) * load(weight + i));
    for (; i < width; i++) out[i] = x[i] * factor * weight[i];
}

inline v8 silu(v8 x) {
    const v8 e = exp_negative(x < 0 ? x : -x), inverse = all(1.0f) / (all(1.0f) + e);
    return x * (x < 0 ? e * inverse : inverse);
}

template <class T>
void embed_floats(const Weight& w, int64_t token, float* out) {
    const T* from = (const T*)w.panel(int(token / OUTPUTS)) + token % OUTPUTS;
    for (int k = 0; k < w.in; k++) out[k] = to_float(from[k * OUTPUTS]);
}

// From a panel: of each pair and word only this output's numbers.
void embed_whole(const Weight& w, int64_t token, float* out) {
    const int panel = int(token / OUTPUTS), n = int(token % OUTPUTS), side = n / 8, place = n % 8 * 2;
    const char* data = w.panel(panel);
    for (int k = 0; k < w.in; k++) {
        const int block = k / BLOCK, pair = k % BLOCK / 2, i = place + k % 2;
        const char* at = data + int64_t(block) * w.block_bytes();
        int number;
        if (w.bits == 8) number = ((const int8_t*)at)[pair * 32 + 2 * i + side];
        else number = load_as<uint16_t>(at + pair / 2 * 32 + 2 * i) >> (pair % 2 * 8 + side * 4) & 15;
        if (w.group_blocks == 0) {
            out[k] = number * w.row_scale(int(token));
            continue;
        }
        const half* scales = w.group_scales(panel, block);
        const float scale = to_float(scales[n]);
        const bool stored = w.offsets == STORED || w.offsets == ZEROS;
        float offset = stored ? to_float(scales[OUTPUTS + n]) : w.offsets == NONE ? 0.0f : -8.0f * scale;
        if (w.offsets == ZEROS) offset = -offset * scale;
        out[k] = number * scale + offset;
    }
}

struct Rotation {
    float* qkv;  // [rows, heads + 2 kv_heads, head_dim]
    const int64_t* positions;
    const float *cos, *sin;  // [positions, head_dim / 2]
    const int64_t* slots;    // below 0: not written
    char* cache;
    int cache_is_half, rows, heads, kv_heads, head_dim;
    const float *q_norm, *k_norm;  // [head_dim] or null
    float eps;

    void turn(float* head, int64_t position) const {
        const int half_dim = head_dim / 2;
        const float *c = cos + position * half_dim, *s = sin + position * half_dim;
        for (int i = 0; i < half_dim; i++) {
            const float x = head[i], y = head[half_dim + i];
            head[i] = x * c[i] - y * s[i], head[half_dim + i] = y * c[i] + x * s[i];
        }
    }

    void row(int r) const {
        float* at = qkv + int64_t(r) * (heads + 2 * kv_heads) * head_dim;
        for (int h = 0; h < heads + kv_heads; h++) {
            float* head = at + h * head_dim;
            if (q_norm) normalize(head, h < heads ? q_norm : k_norm, eps, head_dim, head);
            turn(head, positions[r]);
        }
        if (slots[r] < 0) return;
        const float* kv = at + heads * head_dim;  // keys and values side by side, as in the cache
        const int64_t count = 2 * int64_t(kv_heads) * head_dim;
        if (cache_is_half) {
            half* to = (half*)cache + slots[r] * count;
            for (int64_t i = 0; i < count; i++) to[i] = to_half(kv[i]);
        } else {
            std::memcpy((float*)cache + slots[r] * count, kv, count * sizeof(float));
        }
    }
};

}  // namespace

extern "C" {

// out = norm(x) · weight; with a residual x is added to it first, and the sum is what is normalized.
void rms_norm(Tape* tape, int threads, const float* x, int64_t x_stride, float* residual, const float* weight, float eps,
              int rows, int width, float* out) {
    submit(tape, crew_for(int64_t(rows) * width, threads), {[=](Share& share) {
               share.take(rows, grain(width), [&](int begin, int end) {
                   for (int64_t r = begin; r < end; r++) {
                       const float* from = x + r * x_stride;
                       if (residual) {
                           float* to = residual + r * width;
                           for (int i = 0; i < width; i++) to[i] += from[i];
                           from = to;
                       }
                       normalize(from, weight, eps, width, out + r * width);
                   }
               });
           }});
}

void silu_mul(Tape* tape, int threads, const float* gate_up, int rows, int width, float* out) {
    submit(tape, crew_for(int64_t(rows) * width, threads), {[=](Share& share) {
               share.take(rows, grain(width), [&](int begin, int end) {
                   for (int64_t r = begin; r < end; r++) {
                       const float *gate = gate_up + r * 2 * width, *up = gate + width;
                       float* to = out + r * width;
                       int i = 0;
                       for (; i + 8 <= width; i += 8) store(to + i, silu(load(gate + i)) * load(up + i));
                       for (; i < width; i++) to[i] = silu(all(gate[i]))[0] * up[i];
                   }
               });
           }});
}

static void embed(Tape* tape, int threads, const Weight& w, const int64_t* tokens, int rows, float* result) {
    submit(tape, crew_for(int64_t(rows) * w.in, threads), {[=](Share& share) {
               share.take(rows, grain(w.in), [&](int begin, int end) {
                   for (int64_t r = begin; r < end; r++) {
                       float* to = result + r * w.in;
                       switch (w.format) {
                           case F32: embed_floats<float>(w, tokens[r], to); break;
                           case F16: embed_floats<half>(w, tokens[r], to); break;
                           case BF16: embed_floats<bfloat>(w, tokens[r], to); break;
                           default: embed_whole(w, tokens[r], to);
                       }
                   }
               });
           }});
}

void embed_from_floats(Tape* tape, int threads, int format, int out, int in, const char* data,
                       const int64_t* tokens, int rows, float* result) {
    embed(tape, threads, {format, out, in, data, 0, 0, NONE, nullptr}, tokens, rows, result);
}

void embed_from_whole(Tape* tape, int threads, int out, int in, const char* data, int bits, int group_blocks,
                      int offsets, const char* scales, const int64_t* tokens, int rows, float* result) {
    embed(tape, threads, {WHOLE, out, in, data, bits, group_blocks, offsets, scales}, tokens, rows, result);
}

void rope_and_write(Tape* tape, int threads, float* qkv, const int64_t* positions, const float* cos, const float* sin,
                    const int64_t* slots, char* cache, int cache_is_half, int rows, int heads, int kv_heads,
                    int head_dim, const float* q_norm, const float* k_norm, float eps) {
    const Rotation rotation{qkv,  positions, cos,      sin,      slots,  cache,  cache_is_half,
                            rows, heads,     kv_heads, head_dim, q_norm, k_norm, eps};
    const int width = (heads + 2 * kv_heads) * head_dim;
    submit(tape, crew_for(int64_t(rows) * width, threads), {[=](Share& share) {
               share.take(rows, grain(width), [&](int begin, int end) {
                   for (int r = begin; r < end; r++) rotation.row(r);
               });
           }});
}
}
