// The threads that carry out operations, and the tape on which operations are recorded to be carried out again.
//
// An operation is called by every thread of the crew at once; the threads share its work by taking pieces of it until
// none is left, so a thread that the machine holds up costs little. The next operation begins when all have ended the
// one before. Whoever waits spins for a moment and then sleeps, so more threads than processors, or a busy machine, only
// make things slower in proportion. What a piece computes never depends on who takes it.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

// The pieces of one operation's work, handed out in order.
struct Share {
    std::atomic<int> next{0};

    // f(begin, end) for stretches of at most `grain` of 0 … count - 1.
    template <class F>
    void take(int count, int grain, F f) {
        for (;;) {
            const int begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) return;
            f(begin, std::min(begin + grain, count));
        }
    }
};

typedef std::function<void(Share&)> Operation;

struct Tape {
    std::vector<Operation> operations;
};

// Carries out operations one after the other with so many threads, the caller among them. Calls from several threads
// take turns.
void carry_out(const std::vector<Operation>& operations, int threads);

// What each kernel's C function does with its work: onto the tape if there is one, else at once.
void submit(Tape* tape, int threads, std::vector<Operation> operations);
