#include "crew.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace {

constexpr std::chrono::microseconds PATIENCE(50);  // how long to spin before sleeping

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Where those sleep who have waited for long.
struct Bed {
    std::mutex lock;
    std::condition_variable bell;
    std::atomic<int> sleepers{0};
};

Bed* bed;  // made with the crew and never deleted: somebody may sleep in it when the process ends

// After a change that somebody may wait for. Changes, this look at the sleepers and their last look at the word stand in
// one order for all threads, so nobody falls asleep beside a change.
void ring() {
    if (bed->sleepers.load() == 0) return;
    std::lock_guard<std::mutex> lock(bed->lock);
    bed->bell.notify_all();
}

// Until `ready` says so of the word's value.
template <class T, class Ready>
void await(const std::atomic<T>& word, Ready ready) {
    const auto until = std::chrono::steady_clock::now() + PATIENCE;
    do {
        for (int i = 0; i < 64; i++) {
            if (ready(word.load(std::memory_order_acquire))) return;
            pause_briefly();
        }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock<std::mutex> lock(bed->lock);
    bed->sleepers.fetch_add(1);
    bed->bell.wait(lock, [&] { return ready(word.load()); });
    bed->sleepers.fetch_sub(1);
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
        if (shares.size() < operations.size()) shares = std::vector<Share>(operations.size());
        for (size_t i = 0; i < operations.size(); i++) shares[i].reset();
        job = &operations;
        open.store(true);
        for (int i = 0; i + 1 < threads; i++) hands[i].calls.fetch_add(1);
        ring();
        work();
        // Nobody comes in any more, and who is still inside finds everything done.
        open.store(false);
        await(inside, [](int count) { return count == 0; });
    }

  private:
    void hire() {
        Hand& hand = hands.emplace_back();
        hand.thread = std::thread([this, &hand] {
            for (uint32_t seen = 0;; seen++) {
                await(hand.calls, [seen](uint32_t calls) { return calls != seen; });
                seen = hand.calls.load(std::memory_order_acquire) - 1;  // calls that came while it slept are one
                inside.fetch_add(1);
                if (open.load()) work();
                if (inside.fetch_sub(1) == 1) ring();
            }
        });
        hand.thread.detach();  // it sleeps until the process ends
    }

    void work() {
        for (size_t i = 0; i < job->size(); i++) (*job)[i](shares[i]);
    }

    std::mutex one_at_a_time;
    std::deque<Hand> hands;
    const std::vector<Operation>* job = nullptr;
    std::vector<Share> shares;
    // In one order for all threads: who raised `inside` and then finds `open` is waited for.
    std::atomic<bool> open{false};
    alignas(64) std::atomic<int> inside{0};
};

Crew* crew;  // never deleted: its threads may outlive everything else

// A forked child has none of its parent's threads, and perhaps locks that nobody will open.
void start_anew() {
    bed = new Bed;
    crew = new Crew;
}

Crew& the_crew() {
    static std::once_flag once;
    std::call_once(once, [] {
        start_anew();
        pthread_atfork(nullptr, nullptr, start_anew);
    });
    return *crew;
}

}  // namespace

void Share::wake() { ring(); }

void Share::wait(int count) const {
    await(done, [count](int now) { return now >= count; });
}

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
