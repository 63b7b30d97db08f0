// The threads of the C++ kernels: one team in a process. It sleeps between calls.
//
// Measured on machines of two cores: to start and join a thread costs 100 to 110 us at each call, to wake a sleeping one 10 to
// 40 us. A thread that has just worked looks for more for a while and then sleeps, so that calls in a row need no wake.
//
// The system's own functions stand here, because <thread>, <mutex> and their like take the compiler longer than a small kernel.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

using index_t = int64_t;

namespace duoln {

static const int64_t MICROSECOND = 1000;  // times are in nanoseconds
// A thread without work spins for SPIN, yields its core until PATIENCE is over, and sleeps. If the caller lost its core, or
// waited for the last part, for longer than LOST, the machine may be crowded: threads sleep right after SPIN for the next
// SHORT_CROWD, and for four times as long whenever that happens again within SOON. A long part looks like a lost core; beside
// such parts a wake costs little.
static const int64_t SPIN = 20 * MICROSECOND, PATIENCE = 300 * MICROSECOND, LOST = 2000 * MICROSECOND;
static const int64_t SHORT_CROWD = 10000 * MICROSECOND, LONG_CROWD = 1000000 * MICROSECOND, SOON = 100000 * MICROSECOND;

static inline int64_t now(clockid_t clock = CLOCK_MONOTONIC) {
    timespec time;
    clock_gettime(clock, &time);
    return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

static inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// True if `ready` came true within some microseconds.
template <class Ready>
static bool spin_until(const Ready& ready, int64_t most = SPIN) {
    for (const int64_t end = now() + most; now() < end; relax())
        if (ready()) return true;
    return ready();
}

// The time until which the machine counts as crowded. Beside another process, a thread that stays awake makes the system take the
// core of one that works.
inline std::atomic<int64_t> crowded_until{0}, crowded_for{0};

inline void note_crowd() {
    const int64_t time = now(), before = crowded_for;
    crowded_for = time < crowded_until + SOON ? std::min(4 * before, LONG_CROWD) : SHORT_CROWD;
    crowded_until = time + crowded_for;
}

// True if `ready` came true before it is time to sleep.
template <class Ready>
static bool awake_until(const Ready& ready) {
    if (spin_until(ready)) return true;
    const int64_t end = now() + PATIENCE;
    for (int64_t time = now(); time > crowded_until && time < end; time = now()) {
        sched_yield();
        if (ready()) return true;
    }
    return ready();
}

// Threads that sleep until a condition is true.
class Sleepers {
public:
    ~Sleepers() {
        pthread_cond_destroy(&woken_);
        pthread_mutex_destroy(&mutex_);
    }
    template <class Ready>
    void sleep_until(const Ready& ready) {
        pthread_mutex_lock(&mutex_);
        ++count_;
        while (!ready()) pthread_cond_wait(&woken_, &mutex_);
        --count_;
        pthread_mutex_unlock(&mutex_);
    }
    // Wakes up to `most` of them, after their condition is true.
    void wake(int most) {
        if (count_ == 0) return;
        pthread_mutex_lock(&mutex_);  // no thread is between its last look at the condition and its sleep
        for (int k = std::min<int>(count_, most); k > 0; --k) pthread_cond_signal(&woken_);
        pthread_mutex_unlock(&mutex_);
    }

private:
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t woken_ = PTHREAD_COND_INITIALIZER;
    std::atomic<int> count_{0};
};

// Threads that take the parts of one job at a time. A part belongs to whoever takes it first, the caller too: a thread
// that wakes late, because another process has its core, takes nothing, and nobody waits for it. The caller takes the first parts
// and the others the last ones, so that a core finds in its own L2 what it read in the call before.
class Team {
public:
    using Call = void (*)(const void* work, index_t first, index_t last);

    // Calls `call` for `parts` parts of `count` on up to `threads` threads, and those that have just ended a part of the job before;
    // false if another caller has the team.
    bool run(index_t count, int parts, int threads, Call call, const void* work) {
        if (busy_.exchange(true)) return false;
        start(threads - 1);
        call_ = call;
        work_ = work;
        count_ = count;
        parts_ = parts;
        unfinished_ = parts;
        places_ = threads - 1;
        front_ = 0;
        back_ = parts;
        left_ = parts;  // from here on the team takes parts
        idle_.wake(threads - 1);
        const int64_t begin = now(), ran = now(CLOCK_THREAD_CPUTIME_ID);
        take_parts([this] { return front_++; });
        const int64_t end = now(), away = end - begin - (now(CLOCK_THREAD_CPUTIME_ID) - ran);
        const auto finished = [this] { return unfinished_ == 0; };
        if (!awake_until(finished)) caller_.sleep_until(finished);
        if (away > LOST || now() - end > LOST) note_crowd();
        busy_ = false;
        return true;
    }

private:
    // Signals belong to the threads of Python, except those of a thread's own faults, whose handlers tell where it was. Where the
    // system gives no more threads, those that there are do the work.
    void start(int threads) {
        if (started_ >= threads) return;
        sigset_t blocked, before;
        sigfillset(&blocked);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, fault);
        pthread_sigmask(SIG_SETMASK, &blocked, &before);
        pthread_t thread;
        for (; started_ < threads && pthread_create(&thread, nullptr, work, this) == 0; ++started_) pthread_detach(thread);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    // Decrements `n` unless it is 0; returns the value before.
    static int take_one(std::atomic<int>& n) {
        int count = n;
        while (count > 0 && !n.compare_exchange_weak(count, count - 1)) {
        }
        return count;
    }

    // The description of the job is read after a part of it was taken: until that part is finished, the job is not over.
    template <class Next>
    void take_parts(const Next& next) {
        while (take_one(left_) > 0) {
            const index_t part = next();
            call_(work_, count_ * part / parts_, count_ * (part + 1) / parts_);
            if (unfinished_.fetch_sub(1) == 1) caller_.wake(1);
        }
    }

    static void* work(void* self) {
        Team& team = *static_cast<Team*>(self);
        const auto wanted = [&] { return team.left_ > 0 && team.places_ > 0; };
        for (;;) {
            if (!awake_until(wanted)) team.idle_.sleep_until(wanted);
            if (take_one(team.places_) > 0) team.take_parts([&] { return --team.back_; });
        }
    }

    Sleepers idle_, caller_;
    std::atomic<bool> busy_{false};
    std::atomic<int> left_{0}, places_{0}, unfinished_{0}, front_{0}, back_{0};
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
// It is null where there is no memory for one.
inline Team* team() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { current = nullptr; });
    (void)registered;
    Team* known = current;
    if (!known) {
        Team* made = new (std::nothrow) Team;
        if (!made || current.compare_exchange_strong(known, made)) return made;
        delete made;
    }
    return known;
}

// Runs a job on the team, see Team::run; false if there is none. If a part finds too little memory, the others are finished, and the
// caller gets the error.
template <class Work>
static bool run_parts(index_t count, int parts, int threads, const Work& work) {
    struct Job {
        const Work& work;
        std::atomic<bool> failed{false};
    } job{work};
    const auto call = [](const void* kept, index_t first, index_t last) {
        Job& job = *static_cast<Job*>(const_cast<void*>(kept));
        try {
            job.work(first, last);
        } catch (const std::bad_alloc&) {
            job.failed = true;
        }
    };
    Team* const own = team();
    const bool ran = own && own->run(count, parts, threads, call, &job);
    if (job.failed) throw std::bad_alloc();
    return ran;
}

}  // namespace duoln

// Calls work(k, k + 1) for each of `parts`, on as many threads if they wake in time; false if another caller has the team.
template <class Work>
static bool on_team(int parts, const Work& work) {
    return duoln::run_parts(parts, parts, parts, work);
}

// Calls work(first, last) for parts of `count` on up to `threads` threads. The parts decide nothing but who does what: a
// result that adds up over rows is added up in blocks that do not depend on them. Parts may run one after the other, so none
// may wait for another. There are more parts than threads, so that one whose core is slow or taken leaves its rest to others.
template <class Work>
static void in_parts(index_t count, int threads, const Work& work) {
    static constexpr int EACH = 4;
    if (count <= 0) return;
    const int parts = int(std::min<index_t>(count, index_t(threads) * EACH));
    if (threads <= 1 || parts <= 1 || !duoln::run_parts(count, parts, std::min(threads, parts), work))
        work(index_t(0), count);
}
