// A compiled step's lines: each a function of words, some of which are addresses that change from call to call.
#include "common.h"

struct Reference {
    int64_t at, source, offset;  // bytes into the words; the number of the memory; bytes into it
};
struct Line {
    void (*function)(const int64_t* words);
    char* words;
    const Reference* references;
    int64_t count;
    const int32_t* failures;  // those of all threads, and the function that takes this thread's; see common.h
    int32_t (*take_failures)();
};

// Runs lines one after another. The first that finds no memory for its work ends them; the result is its number, else -1.
extern "C" int64_t NAMED(run_lines)(const Line* lines, int64_t count, char* words, const int64_t* sources) {
    for (int64_t k = 0; k < count; ++k) {
        const Line& line = lines[k];
        for (const Reference* r = line.references; r < line.references + line.count; ++r)
            *reinterpret_cast<int64_t*>(words + r->at) = sources[r->source] + r->offset;
        line.function(reinterpret_cast<const int64_t*>(line.words));
        if (line.failures && *line.failures && line.take_failures()) return k;
    }
    return -1;
}

// The addresses of arrays' values, from the places of the words that hold them.
extern "C" void NAMED(take_addresses)(int64_t* addresses, const int64_t* const* places, int64_t count) {
    for (int64_t k = 0; k < count; ++k) addresses[k] = *places[k];
}
