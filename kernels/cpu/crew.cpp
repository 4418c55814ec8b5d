#include "crew.h"

#include <pthread.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr std::chrono::microseconds PATIENCE(50);  // how long to spin before sleeping

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// Until `word` is no longer `seen`.
void await(const std::atomic<uint32_t>& word, uint32_t seen) {
    const auto until = std::chrono::steady_clock::now() + PATIENCE;
    do {
        for (int i = 0; i < 64; i++) {
            if (word.load(std::memory_order_acquire) != seen) return;
            pause_briefly();
        }
    } while (std::chrono::steady_clock::now() < until);
    while (word.load(std::memory_order_acquire) == seen) word.wait(seen, std::memory_order_acquire);
}

struct Hand {
    std::atomic<uint32_t> calls{0};  // raised to wake it
    std::thread thread;
};

class Crew {
  public:
    void run(const std::vector<Operation>& operations, int threads) {
        std::lock_guard<std::mutex> turn(one_at_a_time);
        while (int(hands.size()) < threads - 1) hire();
        job = &operations;
        members = threads;
        if (shares.size() < operations.size()) shares = std::vector<Share>(operations.size());
        for (int i = 0; i + 1 < threads; i++) {
            hands[i].calls.fetch_add(1, std::memory_order_release);
            hands[i].calls.notify_one();
        }
        work();
    }

  private:
    void hire() {
        Hand& hand = hands.emplace_back();
        hand.thread = std::thread([this, &hand] {
            for (uint32_t seen = 0;; seen++) {
                await(hand.calls, seen);
                work();
            }
        });
        hand.thread.detach();  // it sleeps until the process ends
    }

    void work() {
        // After the last barrier the caller may be gone and the operations with it: nothing of them is read then.
        const Operation* operations = job->data();
        const size_t count = job->size();
        const int threads = members;
        for (size_t i = 0; i < count; i++) {
            operations[i](shares[i]);
            const uint32_t seen = phase.load(std::memory_order_relaxed);
            if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < threads) {
                await(phase, seen);
                continue;
            }
            arrived.store(0, std::memory_order_relaxed);
            shares[i].next.store(0, std::memory_order_relaxed);
            phase.store(seen + 1, std::memory_order_release);
            phase.notify_all();
        }
    }

    std::mutex one_at_a_time;
    std::deque<Hand> hands;
    const std::vector<Operation>* job = nullptr;
    int members = 1;
    std::vector<Share> shares;
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<uint32_t> phase{0};
};

Crew* crew;  // never deleted: its threads may outlive everything else

// A forked child has none of its parent's threads, and perhaps a lock that nobody will open.
void start_anew() { crew = new Crew; }

Crew& the_crew() {
    static std::once_flag once;
    std::call_once(once, [] {
        start_anew();
        pthread_atfork(nullptr, nullptr, start_anew);
    });
    return *crew;
}

}  // namespace

void carry_out(const std::vector<Operation>& operations, int threads) {
    if (!operations.empty()) the_crew().run(operations, std::max(threads, 1));
}

void submit(Tape* tape, int threads, std::vector<Operation> operations) {
    if (tape == nullptr) return carry_out(operations, threads);
    for (Operation& operation : operations) tape->operations.push_back(std::move(operation));
}

extern "C" {

Tape* tape_new() { return new Tape; }

void tape_free(Tape* tape) { delete tape; }

int tape_length(const Tape* tape) { return int(tape->operations.size()); }

void tape_run(const Tape* tape, int threads) { carry_out(tape->operations, threads); }
}
