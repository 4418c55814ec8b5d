// The C++ tests that run without Python, so that sanitizers see every access. One file a topic; main.cpp calls each.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

constexpr int THREADS[] = {1, 2, 4, 8};

// Unlike assert it is never compiled away.
#define CHECK(holds)                                                            \
    do {                                                                        \
        if (!(holds)) {                                                         \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds);    \
            std::_Exit(1);                                                      \
        }                                                                       \
    } while (0)

// Numbers of -1 … 1, on memory of exactly their size.
inline std::vector<float> drawn(size_t count, std::mt19937& random) {
    std::vector<float> numbers(count);
    for (float& x : numbers) x = std::uniform_real_distribution<float>(-1, 1)(random);
    return numbers;
}

struct Tape;
extern "C" {
Tape* tape_new();
void tape_free(Tape*);
int tape_length(const Tape*);
void tape_run(const Tape*, int threads);
}

void test_crew();
void test_attention();
void test_linear();
void test_layers();

// Faults that a sanitizer must find; without one they may go unseen.
void seeded_race();
void seeded_overrun();
