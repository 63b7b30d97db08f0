// The threads of the C++ kernels: one team in a process. It sleeps between calls.
//
// Measured on machines of two cores: to start and join a thread costs 100 to 110 us at each call, to wake a sleeping one 10 to
// 40 us. A thread that has just worked looks for more for a while and then sleeps, so that calls in a row need no wake.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

using index_t = int64_t;

namespace duoln {

using Clock = std::chrono::steady_clock;
// A thread spins for SPIN, offers its core to others again and again until PATIENCE is over, and sleeps. If the caller was off
// its core, or waited for the last part, for longer than LOST, no thread stays awake after SPIN for the next CROWDED. A long
// part looks like a lost core; beside such parts a wake costs little.
static constexpr std::chrono::microseconds SPIN{20}, PATIENCE{300}, LOST{2000};
static constexpr std::chrono::seconds CROWDED{1};

static inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Whether `ready` came true within some microseconds.
template <class Ready>
static bool spin_until(const Ready& ready, std::chrono::microseconds most = SPIN) {
    for (const auto end = Clock::now() + most; Clock::now() < end; relax())
        if (ready()) return true;
    return ready();
}

// When the machine will no longer count as crowded. Beside another process, a thread that stays awake makes the system take
// the core of one that works.
inline std::atomic<Clock::rep> crowded_until{0};

inline void note_crowd() { crowded_until = (Clock::now() + CROWDED).time_since_epoch().count(); }

// Whether `ready` came true before it is time to sleep.
template <class Ready>
static bool awake_until(const Ready& ready) {
    if (spin_until(ready)) return true;
    const auto begin = Clock::now();
    while (Clock::now().time_since_epoch().count() > crowded_until && Clock::now() < begin + PATIENCE) {
        std::this_thread::yield();
        if (ready()) return true;
    }
    return ready();
}

// How long this thread has run.
static inline std::chrono::nanoseconds time_on_cores() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Threads that take the parts of one job at a time. A part belongs to whoever takes it first, the caller too: a thread
// that wakes late, because another process has its core, takes nothing, and nobody waits for it.
class Team {
public:
    using Call = void (*)(const void* work, index_t first, index_t last);

    // Calls `call` for `parts` parts of `count` on up to `threads` threads; false if another caller has the team.
    bool run(index_t count, int parts, int threads, Call call, const void* work) {
        if (busy_.exchange(true)) return false;
        start(threads - 1);
        call_ = call;
        work_ = work;
        count_ = count;
        parts_ = parts;
        unfinished_ = parts;
        places_ = threads - 1;
        left_ = parts;  // from here on the team takes parts
        if (const int asleep = sleeping_; asleep > 0) {
            std::lock_guard<std::mutex> lock(mutex_);  // nobody is between its last look at left_ and its sleep
            for (int k = std::min(asleep, threads - 1); k > 0; --k) wake_.notify_one();
        }
        const auto begin = Clock::now();
        const auto ran = time_on_cores();
        take_parts();
        const auto end = Clock::now();
        const auto away = end - begin - (time_on_cores() - ran);
        const auto finished = [this] { return unfinished_ == 0; };
        if (!awake_until(finished)) {
            std::unique_lock<std::mutex> lock(mutex_);
            caller_sleeps_ = true;
            finished_.wait(lock, finished);
            caller_sleeps_ = false;
        }
        if (away > LOST || Clock::now() - end > LOST) note_crowd();
        busy_ = false;
        return true;
    }

private:
    // Signals belong to the threads of Python. Where the system gives no more threads, those that there are do the work.
    void start(int threads) {
        if (started_ >= threads) return;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (; started_ < threads; ++started_) std::thread([this] { work(); }).detach();
        } catch (const std::system_error&) {
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    // Takes one of `n`, if there is one; gives how many there were.
    static int take_one(std::atomic<int>& n) {
        int count = n;
        while (count > 0 && !n.compare_exchange_weak(count, count - 1)) {
        }
        return count;
    }

    // What describes the job is read after a part of it was taken: until that part is finished, the job is not over.
    void take_parts() {
        while (const int left = std::max(take_one(left_), 0)) {
            const index_t part = parts_ - left;
            call_(work_, count_ * part / parts_, count_ * (part + 1) / parts_);
            if (unfinished_.fetch_sub(1) == 1 && caller_sleeps_) {
                std::lock_guard<std::mutex> lock(mutex_);
                finished_.notify_one();
            }
        }
    }

    void work() {
        const auto wanted = [this] { return left_ > 0 && places_ > 0; };
        for (;;) {
            if (!awake_until(wanted)) {
                std::unique_lock<std::mutex> lock(mutex_);
                ++sleeping_;
                wake_.wait(lock, wanted);
                --sleeping_;
            }
            if (take_one(places_) > 0) take_parts();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, finished_;
    std::atomic<bool> busy_{false}, caller_sleeps_{false};
    std::atomic<int> left_{0}, places_{0}, unfinished_{0}, sleeping_{0};
    int started_ = 0;  // this and the job belong to the caller that set busy_
    Call call_ = nullptr;
    const void* work_ = nullptr;
    index_t count_ = 0;
    int parts_ = 0;
};

// g++ makes `inline` variables of all libraries one on Linux, so they share the team. Elsewhere each library has its own.
inline std::atomic<Team*> current{nullptr};

// The team lives until the process ends, which ends its threads too. A forked child has only the thread that forked, so it
// forgets the team of its parent and makes one of its own.
inline Team& team() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { current = nullptr; });
    (void)registered;
    Team* known = current;
    if (!known) {
        Team* made = new Team;
        if (current.compare_exchange_strong(known, made)) return *made;
        delete made;
    }
    return *known;
}

}  // namespace duoln

// Calls work(k, k + 1) for each of `parts`, on as many threads if they wake in time; false if another caller has the team.
template <class Work>
static bool on_team(int parts, const Work& work) {
    const auto call = [](const void* kept, index_t first, index_t last) {
        (*static_cast<const Work*>(kept))(first, last);
    };
    return duoln::team().run(parts, parts, parts, call, &work);
}

// Calls work(first, last) for parts of `count` on up to `threads` threads. The parts decide nothing but who does what: a
// result that adds up over rows is added up in blocks that do not depend on them. Parts may run one after the other, so none
// may wait for another. There are more parts than threads, so that one whose core is slow or taken leaves its rest to others.
template <class Work>
static void in_parts(index_t count, int threads, const Work& work) {
    static constexpr int EACH = 4;
    if (count <= 0) return;
    const auto call = [](const void* kept, index_t first, index_t last) {
        (*static_cast<const Work*>(kept))(first, last);
    };
    const int parts = int(std::min<index_t>(count, index_t(threads) * EACH));
    if (threads <= 1 || parts <= 1 || !duoln::team().run(count, parts, std::min(threads, parts), call, &work))
        work(index_t(0), count);
}
