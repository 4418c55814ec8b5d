// Products of ragged shapes against loops over single numbers; every array is exactly as large as it must be. The
// embedding reads the same weights number by number, so it says what a panel's bytes mean.
#include <cmath>
#include <cstring>

#include "driver.h"
#include "linear.h"

extern "C" {
void linear_floats(Tape*, int threads, int format, int out, int in, const char* data, const float* bias, const float* x,
                   int64_t x_stride, int rows, float* result, int64_t result_stride);
void linear_whole(Tape*, int threads, int out, int in, const char* data, int bits, int group_blocks, int offsets,
                  const char* scales, const float* bias, const float* x, int64_t x_stride, int most, int16_t* numbers,
                  float* row_scales, float* sums, int rows, float* result, int64_t result_stride);
void embed_from_floats(Tape*, int threads, int format, int out, int in, const char* data, const int64_t* tokens, int rows,
                       float* result);
void embed_from_whole(Tape*, int threads, int out, int in, const char* data, int bits, int group_blocks, int offsets,
                      const char* scales, const int64_t* tokens, int rows, float* result);
}

namespace {

constexpr int ROWS[] = {1, 2, 3, 5, 11, 12, 13, 24, 26, 50};
constexpr int BYTES[] = {4, 2, 2};  // of float formats

struct Matrix {
    int format, out, in, bits = 0, group_blocks = 0, offsets = NONE;
    std::vector<char> data;
    std::vector<char> scales;
    std::vector<float> values;  // [out, in], as the embedding reads them

    bool whole() const { return format == WHOLE; }

    void read() {
        std::vector<int64_t> tokens(out);
        for (int n = 0; n < out; n++) tokens[n] = n;
        values.resize(size_t(out) * in);
        if (whole())
            embed_from_whole(nullptr, 2, out, in, data.data(), bits, group_blocks, offsets, scales.data(), tokens.data(),
                             out, values.data());
        else
            embed_from_floats(nullptr, 2, format, out, in, data.data(), tokens.data(), out,
                              values.data());
    }
};

Matrix floats_of(int format, int out, int in, std::mt19937& random) {
    Matrix m{format, out, in};
    const size_t numbers = size_t((out + OUTPUTS - 1) / OUTPUTS * OUTPUTS) * in;
    m.data.resize(numbers * BYTES[format]);
    for (size_t i = 0; i < numbers; i++) {
        const float x = std::uniform_real_distribution<float>(-1, 1)(random);
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        const uint16_t top = uint16_t(bits >> 16), nearest = to_half(x);
        const void* from = format == F32 ? (const void*)&x : format == F16 ? (const void*)&nearest : (const void*)&top;
        std::memcpy(&m.data[i * BYTES[format]], from, BYTES[format]);
    }
    m.read();
    return m;
}

Matrix whole_of(int out, int in, int bits, int group_blocks, int offsets, std::mt19937& random) {
    Matrix m{WHOLE, out, in, bits, group_blocks, offsets};
    const int panels = (out + OUTPUTS - 1) / OUTPUTS, blocks = (in + BLOCK - 1) / BLOCK;
    m.data.resize(size_t(panels) * blocks * OUTPUTS * BLOCK * bits / 8);
    for (char& byte : m.data) byte = char(random());
    if (group_blocks == 0) {
        const std::vector<float> scales = drawn(size_t(out), random);
        m.scales.assign((const char*)scales.data(), (const char*)(scales.data() + out));
    } else {
        const int count = panels * (blocks / group_blocks) * OUTPUTS * (offsets == STORED ? 2 : 1);
        for (int i = 0; i < count; i++) {
            const half h = to_half(std::uniform_real_distribution<float>(-0.1f, 0.1f)(random));
            m.scales.insert(m.scales.end(), (const char*)&h, (const char*)&h + 2);
        }
    }
    m.read();
    return m;
}

void check(const Matrix& m, int rows, int threads, bool biased, std::mt19937& random) {
    std::vector<float> x = drawn(size_t(rows) * m.in, random), bias = drawn(size_t(m.out), random);
    const int blocks = (m.in + BLOCK - 1) / BLOCK;
    std::vector<int16_t> numbers(size_t(rows) * blocks * BLOCK);
    std::vector<float> scales(rows), sums(size_t((rows + TOGETHER - 1) / TOGETHER * TOGETHER) * blocks);
    std::vector<float> out(size_t(rows) * m.out);
    Tape* tape = tape_new();
    const float* added = biased ? bias.data() : nullptr;
    if (m.whole())
        linear_whole(tape, threads, m.out, m.in, m.data.data(), m.bits, m.group_blocks, m.offsets, m.scales.data(), added,
                     x.data(), m.in, 32767, numbers.data(), scales.data(), sums.data(), rows, out.data(), m.out);
    else
        linear_floats(tape, threads, m.format, m.out, m.in, m.data.data(), added,
                      x.data(), m.in, rows, out.data(), m.out);
    for (int turn = 0; turn < 2; turn++) {
        const std::vector<float> fresh = drawn(x.size(), random);
        std::copy(fresh.begin(), fresh.end(), x.begin());
        std::fill(out.begin(), out.end(), NAN);
        tape_run(tape, threads);
        for (int r = 0; r < rows; r++)
            for (int n = 0; n < m.out; n++) {
                double exact = biased ? bias[n] : 0, size = 1e-6 + std::fabs(exact);
                for (int k = 0; k < m.in; k++) {
                    const double product = double(x[size_t(r) * m.in + k]) * m.values[size_t(n) * m.in + k];
                    exact += product, size += std::fabs(product);
                }
                CHECK(std::fabs(out[size_t(r) * m.out + n] - exact) <= 2e-4 * size);
            }
    }
    tape_free(tape);
}

}  // namespace

void test_linear() {
    std::mt19937 random(3);
    std::vector<Matrix> matrices;
    for (int format : {F32, F16, BF16})
        for (int in : {1, 9, 64, 270}) matrices.push_back(floats_of(format, 21, in, random));
    for (int bits : {8, 4}) {
        matrices.push_back(whole_of(5, 32, bits, 1, NONE, random));
        matrices.push_back(whole_of(33, 14 * 32, bits, 1, STORED, random));
        matrices.push_back(whole_of(16, 128, bits, 2, STORED, random));
        matrices.push_back(whole_of(20, 64, bits, 1, MINUS_EIGHT, random));
    }
    matrices.push_back(whole_of(18, 13 * 32, 8, 0, NONE, random));
    int turn = 0;
    for (const Matrix& matrix : matrices)
        for (int rows : ROWS) check(matrix, rows, THREADS[turn % 4], turn % 3 == 0, random), turn++;
}
