// The choice of the next token: the likeliest, or one drawn by a random number after top_k, top_p and min_p.
//
// A vocabulary is cut into stretches, which the threads share: first the largest and smallest logit of each, then the sum
// of its weights e^((logit - largest) / temperature), in doubles. Without a filter the drawn number falls into a stretch,
// and only that one is looked through. With filters, columns are needed in order of likelihood, but seldom many: each is
// given a level, its distance from the likeliest in coarse steps, and levels are ranked in growing portions until the
// filters are through or the number is reached.

#include <algorithm>
#include <vector>

#include "crew.h"
#include "vector.h"

namespace {

typedef double d4 __attribute__((vector_size(32)));
typedef int64_t l4 __attribute__((vector_size(32)));
typedef uint8_t b32 __attribute__((vector_size(32)));

constexpr int STRETCH = 1024;  // columns
constexpr int LEVELS = 255;    // the last byte is for columns that are never drawn
// Behind the likeliest, a weight below e^-64 changes no sum of doubles, so no number falls upon it.
constexpr double FARTHEST = 64;

inline d4 every(double x) { return d4{x, x, x, x}; }

// e to the -d for d >= 0, nearly to the last bit (0 from 708 on): -d = n ln 2 + r, e^r by its series, 2^n by the
// exponent's bits.
inline d4 exp_minus(d4 d) {
    const d4 shifted = d * every(-1.4426950408889634) + every(6755399441055744.0);  // 1.5 · 2^52: whole numbers
    const d4 n = shifted - every(6755399441055744.0);
    const d4 r = -d - n * every(6.93147180369123816490e-01) - n * every(1.90821492927058770002e-10);
    d4 p = every(1.0 / 6227020800);  // 1 / 13!
    for (double coefficient : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                               1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
        p = p * r + every(coefficient);
    l4 bits = (l4)shifted;  // their lowest hold n
    bits = (bits << 52) + ((l4)every(1.0));
    return d < every(708.0) ? p * (d4)bits : d4{};
}

// One bit for each byte.
inline uint32_t highest_bits(b32 bytes) {
#if defined(__AVX2__)
    typedef char c32 __attribute__((vector_size(32)));
    return __builtin_ia32_pmovmskb256((c32)bytes);
#else
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) {
        const uint64_t eight = (((l4)bytes)[i] >> 7) & 0x0101010101010101;
        bits |= uint32_t(eight * 0x0102040810204080 >> 56) << 8 * i;
    }
    return bits;
#endif
}

// The columns of one row of logits, likeliest first, as far as they were asked for. Each thread has one.
struct Ranking {
    std::vector<uint64_t> entries, moved;  // of one portion: how unlikely, then the column
    std::vector<int> columns;
    std::vector<double> distances, weights, sums;

    void start(int vocab) {
        entries.resize(std::max(entries.size(), size_t(vocab)));
        columns.clear(), distances.clear(), weights.clear(), sums.clear();
    }

    // The first `count` entries ascending. Columns come in order, so sorting by the upper half, stably, is enough.
    void sort(int count) {
        if (count < 256) return std::sort(entries.begin(), entries.begin() + count);
        moved.resize(std::max(moved.size(), entries.size()));
        for (int shift = 32; shift < 64; shift += 8) {
            int starts[257] = {};
            for (int i = 0; i < count; i++) starts[(entries[i] >> shift & 255) + 1]++;
            if (starts[(entries[0] >> shift & 255) + 1] == count) continue;  // all alike in this digit
            for (int digit = 0; digit < 256; digit++) starts[digit + 1] += starts[digit];
            for (int i = 0; i < count; i++) moved[starts[entries[i] >> shift & 255]++] = entries[i];
            std::swap(entries, moved);
        }
    }

    // Adds the first `count` entries. Columns as likely as each other stand in order, also where only rounding made them
    // so.
    void add(int count, const float* logits, double largest, double temperature) {
        sort(count);
        const size_t begin = columns.size(), end = begin + count;
        columns.resize(end), distances.resize(end), weights.resize(end);
        for (int i = 0; i < count; i++) {
            columns[begin + i] = int(entries[i] & 0xffffffff);
            distances[begin + i] = (largest - logits[columns[begin + i]]) / temperature;
        }
        for (size_t i = begin, next; i < end; i = next) {
            for (next = i + 1; next < end && distances[next] == distances[i];) next++;
            int *first = columns.data() + i, *last = columns.data() + next;
            if (next > i + 1 && !std::is_sorted(first, last)) std::sort(first, last);
        }
        for (size_t i = begin; i < end; i += 4) {
            d4 four = {};
            const size_t most = std::min<size_t>(4, end - i);
            std::memcpy(&four, &distances[i], most * sizeof(double));
            four = exp_minus(four);
            std::memcpy(&weights[i], &four, most * sizeof(double));
        }
    }
};

thread_local Ranking ranking;

// Larger floats first.
inline uint64_t entry(float logit, int column) {
    uint32_t bits;
    std::memcpy(&bits, &logit, 4);
    bits = bits >> 31 ? bits : ~bits ^ 0x80000000u;
    return uint64_t(bits) << 32 | uint32_t(column);
}

struct Extremes {
    float largest, smallest;  // largest is not a number where any logit is none

    void with(Extremes other) {
        largest = other.largest > largest || other.largest != other.largest ? other.largest : largest;
        smallest = other.smallest < smallest ? other.smallest : smallest;
    }
};

struct Sampling {
    const float* logits;
    int64_t stride;
    int rows, vocab;
    const double* temperature;
    const int64_t* top_k;
    const double *top_p, *min_p, *u;
    char* state;  // of each row: the stretches' sums and extremes, the columns' levels
    int64_t* ids;

    int stretches() const { return (vocab + STRETCH - 1) / STRETCH; }
    int64_t row_bytes() const { return int64_t(stretches()) * (sizeof(double) + sizeof(Extremes) + STRETCH); }
    double* sums(int r) const { return (double*)(state + r * row_bytes()); }
    Extremes* extremes(int r) const { return (Extremes*)(sums(r) + stretches()); }
    uint8_t* levels(int r) const { return (uint8_t*)(extremes(r) + stretches()); }

    const float* row(int r) const { return logits + r * stride; }
    bool limited(int r) const { return top_k[r] > 0 && top_k[r] < vocab; }
    bool filtered(int r) const { return top_k[r] > 0 || top_p[r] < 1 || min_p[r] > 0; }

    Extremes whole(int r) const {
        Extremes found = extremes(r)[0];
        for (int s = 1; s < stretches(); s++) found.with(extremes(r)[s]);
        return found;
    }

    // ---- first: the extremes of a stretch ----

    void look(int r, int s) const {
        const float* x = row(r) + s * STRETCH;
        const int count = std::min(STRETCH, vocab - s * STRETCH);
        v8 high = all(-INFINITY), low = all(INFINITY);
        i8 strange = {};
        int i = 0;
        for (; i + 8 <= count; i += 8) {
            const v8 here = load(x + i);
            high = here > high ? here : high, low = here < low ? here : low;
            strange |= here != here;
        }
        Extremes found{-INFINITY, INFINITY};
        for (int lane = 0; lane < 8; lane++) found.with({strange[lane] ? NAN : high[lane], low[lane]});
        for (; i < count; i++) found.with({x[i], x[i]});
        extremes(r)[s] = found;
    }

    // ---- second: the weights of a stretch ----

    // How far eight columns lie behind the likeliest; infinitely far beyond the vocabulary.
    void distances(int r, int first, double largest, d4 (&d)[2]) const {
        typedef float v4 __attribute__((vector_size(16)));
        float some[8];
        const float* x = row(r) + first;
        if (first + 8 > vocab) {
            for (int i = 0; i < 8; i++) some[i] = first + i < vocab ? x[i] : -INFINITY;
            x = some;
        }
        for (int h = 0; h < 2; h++)
            d[h] = (every(largest) - __builtin_convertvector(load_as<v4>(x + 4 * h), d4)) / every(temperature[r]);
    }

    void weigh(int r, int s, Extremes all) const {
        if (temperature[r] == 0 || !std::isfinite(all.largest)) return;
        const double range = (double(all.largest) - all.smallest) / temperature[r];
        const double steps = range > 1e-290 ? (LEVELS - 0.5) / std::min(range, FARTHEST) : 0;
        const bool ranked = filtered(r), summed = !limited(r);
        uint8_t* level = levels(r);
        d4 sum[2] = {};
        for (int first = s * STRETCH; first < (s + 1) * STRETCH; first += 8) {
            d4 d[2];
            distances(r, first, all.largest, d);
            for (int h = 0; h < 2; h++) {
                if (summed) sum[h] += exp_minus(d[h]);
                if (!ranked) continue;
                const d4 step = d[h] * every(steps), most = every(LEVELS);
                typedef int32_t i4 __attribute__((vector_size(16)));
                typedef uint8_t b16 __attribute__((vector_size(16)));
                b16 whole = (b16)__builtin_convertvector(step < most ? step : most, i4);
                whole = __builtin_shuffle(whole, b16{0, 4, 8, 12});
                std::memcpy(level + first + 4 * h, &whole, 4);
            }
        }
        sum[0] += sum[1];
        sums(r)[s] = (sum[0][0] + sum[0][2]) + (sum[0][1] + sum[0][3]);
    }

    // ---- third: the choice ----

    void choose(int r) const {
        const Extremes all = whole(r);
        if (temperature[r] == 0) ids[r] = first_of(r, all.largest);
        else if (!std::isfinite(all.largest)) ids[r] = last_resort(r, all.largest);
        else ids[r] = filtered(r) ? draw_ranked(r, all.largest) : draw_any(r, all.largest);
    }

    int first_of(int r, float wanted) const {
        const auto is_it = [wanted](float x) { return x == wanted || (wanted != wanted && x != x); };
        int column = 0;
        while (!is_it(extremes(r)[column / STRETCH].largest)) column += STRETCH;
        while (!is_it(row(r)[column])) column++;
        return column;
    }

    // Where logits are infinite or no numbers there are no probabilities, and the last in order is taken.
    int last_resort(int r, float largest) const {
        int column = vocab - 1;
        if (filtered(r) && largest == INFINITY)
            while (column > 0 && row(r)[column] == INFINITY) column--;
        return row(r)[column] == INFINITY ? vocab - 1 : column;
    }

    int draw_any(int r, float largest) const {
        const double* sum = sums(r);
        double total = 0, before = 0, running = 0;
        for (int s = 0; s < stretches(); s++) total += sum[s];
        const double target = u[r] * total;
        int found = 0;
        for (int s = 0; s < stretches() && running <= target; s++) {
            if (sum[s] > 0) found = s, before = running;
            running += sum[s];
        }
        // Rounding may push the target past the last column that has any weight.
        int last = 0;
        for (int first = found * STRETCH; first < (found + 1) * STRETCH; first += 8) {
            d4 d[2];
            distances(r, first, largest, d);
            for (int h = 0; h < 2; h++) {
                const d4 weights = exp_minus(d[h]);
                for (int lane = 0; lane < 4; lane++) {
                    if (weights[lane] > 0) last = first + 4 * h + lane;
                    before += weights[lane];
                    if (before > target) return last;
                }
            }
        }
        return last;
    }

    // Adds the columns of some levels to the ranking.
    void rank(int r, int begin, int end, float largest) const {
        int count = 0;
        const uint8_t* level = levels(r);
        const b32 low = b32{} + uint8_t(begin), high = b32{} + uint8_t(end);
        for (int i = 0; i < stretches() * STRETCH; i += 32) {
            const b32 here = load_as<b32>(level + i);
            const b32 wanted = (b32)((here >= low) & (here < high));
            for (uint32_t left = highest_bits(wanted); left; left &= left - 1) {
                const int column = i + __builtin_ctz(left);
                ranking.entries[count++] = entry(row(r)[column], column);
            }
        }
        ranking.add(count, row(r), largest, temperature[r]);
    }

    int draw_ranked(int r, float largest) const {
        ranking.start(vocab);
        const size_t most = limited(r) ? top_k[r] : vocab;
        int begin = 0, end = 8;
        const auto more = [&] {
            if (begin == LEVELS) return false;
            rank(r, begin, end, largest);
            begin = end, end = std::min(end + 1 + end / 3, LEVELS);
            return true;
        };
        double total = 0;
        if (limited(r)) {
            while (ranking.columns.size() < most && more()) {}
            for (size_t i = 0; i < std::min(most, ranking.columns.size()); i++) total += ranking.weights[i];
        } else {
            for (int s = 0; s < stretches(); s++) total += sums(r)[s];
        }
        double sum = 0;
        const double least = min_p[r] * (1 / total);  // the likeliest weighs 1
        std::vector<double>& kept = ranking.sums;
        while (kept.size() < most && (kept.size() < ranking.columns.size() || more())) {
            if (kept.size() == ranking.columns.size()) continue;  // nobody had these levels
            const double p = ranking.weights[kept.size()] / total, next = sum + p;
            if (!kept.empty() && (next - p >= top_p[r] || p < least)) break;
            kept.push_back(sum = next);
        }
        const size_t found = std::upper_bound(kept.begin(), kept.end(), u[r] * sum) - kept.begin();
        return ranking.columns[std::min(found, kept.size() - 1)];
    }
};

constexpr int GRAIN = 4;  // stretches
// Logits that are weighed: below that, waking a second thread takes longer than the work.
constexpr int64_t WORTH_SHARING = 1 << 15;

// Of operations that run now; on a tape the options are not there yet.
int crew_for(const Sampling& job, int threads) {
    int64_t work = 0;
    for (int r = 0; r < job.rows; r++) work += job.temperature[r] == 0 ? job.vocab / 16 : job.vocab;
    return work < WORTH_SHARING ? 1 : threads;
}

}  // namespace

extern "C" {

// The bytes of state that a row of logits needs.
int64_t sample_state(int vocab) { return Sampling{nullptr, 0, 0, vocab}.row_bytes(); }

void sample(Tape* tape, int threads, const float* logits, int64_t stride, int rows, int vocab, const double* temperature,
            const int64_t* top_k, const double* top_p, const double* min_p, const double* u, char* state, int64_t* ids) {
    const Sampling job{logits, stride, rows, vocab, temperature, top_k, top_p, min_p, u, state, ids};
    const int stretches = job.stretches();
    submit(tape, tape ? threads : crew_for(job, threads), {
        [=](Share& share) {
            share.take(rows * stretches, GRAIN, [&](int begin, int end) {
                for (int i = begin; i < end; i++) job.look(i / stretches, i % stretches);
            });
        },
        [=](Share& share) {
            share.take(rows * stretches, GRAIN, [&](int begin, int end) {
                Extremes all = job.whole(begin / stretches);
                for (int i = begin; i < end; i++) {
                    if (i > begin && i % stretches == 0) all = job.whole(i / stretches);
                    job.weigh(i / stretches, i % stretches, all);
                }
            });
        },
        [=](Share& share) {
            share.take(rows, 1, [&](int begin, int) { job.choose(begin); });
        },
    });
}
}
