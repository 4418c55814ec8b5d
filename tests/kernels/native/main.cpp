// driver [race|overrun]: all tests, or one fault that the sanitizer must find.
#include <cstring>

#include "driver.h"

int main(int argc, char** argv) {
    if (argc > 1 && std::strcmp(argv[1], "race") == 0) return seeded_race(), 0;
    if (argc > 1 && std::strcmp(argv[1], "overrun") == 0) return seeded_overrun(), 0;
    test_crew();
    test_attention();
    test_linear();
    test_layers();
    std::puts("all tests passed");
}
