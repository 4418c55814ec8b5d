// Every piece is done once and in order of operations, by any number of threads, from several callers, after a fork.
#include "crew.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "driver.h"

namespace {

constexpr int PIECES = 37, STEPS = 5, REPLAYS = 200;

// Each operation reads its neighbour's number from the one before: wrong unless that has ended everywhere.
struct Relay {
    std::vector<int> now = std::vector<int>(PIECES, 0), next = now;
    Tape* tape = tape_new();

    Relay() {
        for (int step = 0; step < STEPS; step++) {
            submit(tape, 1, {[this](Share& share) {
                                 share.take(PIECES, 3, [this](int begin, int end) {
                                     for (int i = begin; i < end; i++) next[i] = now[(i + 1) % PIECES] + 1;
                                 });
                             },
                             [this](Share& share) {
                                 share.take(PIECES, 1, [this](int i, int) { now[i] = next[i]; });
                             }});
        }
        CHECK(tape_length(tape) == 2 * STEPS);
    }
    ~Relay() { tape_free(tape); }

    void run(int threads, int replays) {
        const int before = now[0];
        for (int i = 0; i < replays; i++) tape_run(tape, threads);
        for (int number : now) CHECK(number == before + STEPS * replays);
    }
};

#if !defined(__SANITIZE_THREAD__)  // it does not follow a child of a process with threads
void test_fork() {
    Relay relay;
    relay.run(4, 10);
    const pid_t child = fork();
    if (child == 0) {
        relay.run(4, 10);
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    relay.run(4, 10);
}
#endif

}  // namespace

void test_crew() {
    Relay relay;
    for (int threads : THREADS) relay.run(threads, REPLAYS);
    for (int threads : {8, 1, 4, 2}) relay.run(threads, REPLAYS / 10);
    carry_out({}, 4);
    std::thread other([] {
        Relay own;
        own.run(4, REPLAYS);
    });
    relay.run(2, REPLAYS);
    other.join();
#if !defined(__SANITIZE_THREAD__)
    test_fork();
#endif
}

// Two threads count in the same plain number, each in a piece that waits for the other; often, for a race may pass unseen.
void seeded_race() {
    int count = 0;
    for (int turn = 0; turn < 100; turn++) {
        std::atomic<int> there{0};
        carry_out({[&](Share& share) {
                      share.take(2, 1, [&](int i, int) {
                          there.fetch_add(1);
                          while (there.load() < 2) std::this_thread::yield();
                          for (int k = 0; k < 1000; k++) count += i + k;
                      });
                  }},
                  2);
    }
    std::printf("%d\n", count);
}
