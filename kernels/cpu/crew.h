// The threads that carry out operations, and the tape on which operations are recorded to be carried out again.
//
// An operation's work is cut into pieces, and whoever is there takes the next one. It is over when all its pieces are done,
// whoever did them: nobody waits for a thread that took none, so a busy machine that keeps a thread from running costs that
// thread's help and no more. Whoever waits for a piece spins for a moment and then sleeps. What a piece computes never
// depends on who takes it.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

// The pieces of one operation's work.
class Share {
  public:
    // f(begin, end) for stretches of at most `grain` of 0 … count - 1, by all threads together; returns when all are done.
    // An operation calls this once, and does nothing outside of f that could not be done twice or late.
    template <class F>
    void take(int count, int grain, F f) {
        for (;;) {
            const int begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) return wait(count);
            const int end = std::min(begin + grain, count);
            f(begin, end);
            if (done.fetch_add(end - begin) + end - begin == count) wake();
        }
    }

    void reset() {
        next.store(0, std::memory_order_relaxed);
        done.store(0, std::memory_order_relaxed);
    }

  private:
    void wait(int count) const;
    static void wake();

    alignas(64) std::atomic<int> next{0};
    std::atomic<int> done{0};
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
