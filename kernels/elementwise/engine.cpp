// One pass over arrays: formulas one after the other on blocks that stay in L1, and sums or greatest values of what they give.
#include "rows.h"

// A function of formula.h.
template <class T>
using Formula = void (*)(const T* const* in, const int64_t* masks, T* out, int64_t count, int32_t past_caches);

static constexpr index_t BLOCK = 1024, MOST_ARGUMENTS = 4;
enum Kind { REAL = 0, BOOL = 1 };

// The numbers that `engine.py` writes. A slot holds the block of a value; all axes are those of the broadcast arrays, as few as
// there can be.
struct Plan {
    int64_t size, rank, inputs, numbers, steps, outputs, slots, value, block;  // the slot of what is put together; values at once
};
struct Input {
    int64_t kind, slot, is_contiguous;  // then a stride for each axis, in values
};
struct Step {
    int64_t formula, slot, arguments[MOST_ARGUMENTS];
};
struct Output {
    int64_t kind, slot, is_read;  // by a step after it
};

template <class To, class From>
static inline void copy_run(const From* from, index_t step, index_t count, To* to) {
    if (step == 1)
        for (index_t k = 0; k < count; ++k) to[k] = To(from[k]);
    else if (step == 0) std::fill_n(to, count, To(*from));
    else
        for (index_t k = 0; k < count; ++k) to[k] = To(from[k * step]);
}

// Copies `count` values of a strided array, those from the place `from` in the order of its axes.
template <class To, class From>
static void gather(const From* values, const int64_t* shape, const int64_t* strides, index_t rank, index_t from, index_t count, To* to) {
    index_t place[64];  // NumPy's arrays have no more axes
    for (index_t axis = rank; axis-- > 0; from /= shape[axis]) {
        place[axis] = from % shape[axis];
        values += place[axis] * strides[axis];
    }
    const index_t last = rank - 1, period = shape[last];
    const bool is_row = std::all_of(strides, strides + last, [](int64_t stride) { return stride == 0; });
    if (is_row && rank > 1 && count > 2 * period) {  // each copy doubles what there is
        const index_t rest = period - place[last];
        copy_run(values, strides[last], rest, to);
        copy_run(values - place[last] * strides[last], strides[last], period, to + rest);
        for (index_t done = rest + period; done < count;) {
            const index_t back = done / period * period, copied = std::min(back, count - done);
            std::copy_n(to + done - back, copied, to + done);
            done += copied;
        }
        return;
    }
    for (;;) {
        const index_t run = std::min(count, shape[last] - place[last]);
        copy_run(values, strides[last], run, to);
        to += run, count -= run;
        if (count == 0) return;
        values -= place[last] * strides[last];
        place[last] = 0;
        for (index_t axis = last; axis-- > 0;) {
            values += strides[axis];
            if (++place[axis] < shape[axis]) break;
            values -= shape[axis] * strides[axis];
            place[axis] = 0;
        }
    }
}

// Values that are 1 or 0 as bools.
template <class T>
static void store_bools(const T* values, index_t count, uint8_t* to) {
    index_t k = 0;
    for (; k + Vector<T>::lanes <= count; k += Vector<T>::lanes) {
        typedef uint8_t bytes __attribute__((vector_size(Vector<T>::lanes)));
        const bytes converted = __builtin_convertvector(load(values + k), bytes);
        std::memcpy(to + k, &converted, sizeof(converted));
    }
    for (; k < count; ++k) to[k] = uint8_t(values[k]);
}

// The values of a plan, block by block; each thread has its own.
template <class T>
class Pass {
  public:
    Pass(const int64_t* plan, void* const* arrays, const double* numbers)
        : plan_(*reinterpret_cast<const Plan*>(plan)), shape_(plan + sizeof(Plan) / sizeof(int64_t)), arrays_(arrays),
          inputs_(shape_ + plan_.rank), number_slots_(inputs_ + plan_.inputs * input_length()),
          steps_(reinterpret_cast<const Step*>(number_slots_ + plan_.numbers)),
          outputs_(reinterpret_cast<const Output*>(steps_ + plan_.steps)), memory_(plan_.slots * BLOCK), at_(plan_.slots), masks_(plan_.slots, -1) {
        for (index_t k = 0; k < plan_.slots; ++k) at_[k] = own(k);
        for (index_t k = 0; k < plan_.numbers; ++k) {
            std::fill_n(own(number_slots_[k]), Vector<T>::lanes, T(numbers[k]));
            masks_[number_slots_[k]] = 0;
        }
    }

    // Computes the values from `from` on; returns those that are put together.
    const T* block(index_t from, index_t count) {
        for (index_t k = 0; k < plan_.inputs; ++k) {
            const int64_t* strides = inputs_ + k * input_length();
            const Input& input = *reinterpret_cast<const Input*>(strides);
            strides += sizeof(Input) / sizeof(int64_t);
            if (input.kind == BOOL) gather(static_cast<const uint8_t*>(arrays_[k]), shape_, strides, plan_.rank, from, count, own(input.slot));
            else if (input.is_contiguous) at_[input.slot] = static_cast<T*>(arrays_[k]) + from;
            else gather(static_cast<const T*>(arrays_[k]), shape_, strides, plan_.rank, from, count, own(input.slot));
        }
        for (index_t k = 0; k < plan_.outputs; ++k)
            if (outputs_[k].kind == REAL) at_[outputs_[k].slot] = static_cast<T*>(result(k)) + from;
        for (index_t k = 0; k < plan_.steps; ++k) {
            const Step& step = steps_[k];
            const T* in[MOST_ARGUMENTS];
            int64_t masks[MOST_ARGUMENTS];
            for (index_t n = 0; n < MOST_ARGUMENTS; ++n) in[n] = at_[step.arguments[n]], masks[n] = masks_[step.arguments[n]];
            reinterpret_cast<Formula<T>>(step.formula)(in, masks, at_[step.slot], count, past_caches(step.slot));
        }
        for (index_t k = 0; k < plan_.outputs; ++k) {
            if (outputs_[k].kind == BOOL) store_bools(at_[outputs_[k].slot], count, static_cast<uint8_t*>(result(k)) + from);
        }
        return at_[plan_.value];
    }

    ~Pass() {
        if (go_past_caches<T>(plan_.size)) end_past_caches();
    }

  private:
    index_t input_length() const { return sizeof(Input) / sizeof(int64_t) + plan_.rank; }
    T* own(index_t slot) const { return memory_.data() + slot * BLOCK; }
    void* result(index_t k) const { return arrays_[plan_.inputs + k]; }
    bool past_caches(index_t slot) const {
        if (!go_past_caches<T>(plan_.size)) return false;
        for (index_t k = 0; k < plan_.outputs; ++k)
            if (outputs_[k].slot == slot) return outputs_[k].kind == REAL && !outputs_[k].is_read;
        return false;
    }

    const Plan& plan_;
    const int64_t* shape_;
    void* const* arrays_;
    const int64_t *inputs_, *number_slots_;
    const Step* steps_;
    const Output* outputs_;
    Aligned<T> memory_;
    std::vector<T*> at_;
    std::vector<int64_t> masks_;  // see formula.h
};

template <class T>
static double sum_of(const T* values, index_t count) {
    RowSum<T> sum;
    each_vector<T>(count, [&](index_t k, const auto& lanes, auto number) { sum.add(lanes.load(values + k), number); });
    return double(sum.sum());
}

// The greatest or least of two, NaN if one of them is.
struct Greater {
    template <class V>
    V operator()(V a, V b) const { return (a >= b) | (a != a) ? a : b; }
};
struct Less {
    template <class V>
    V operator()(V a, V b) const { return (a <= b) | (a != a) ? a : b; }
};
struct Sum {
    template <class V>
    V operator()(V a, V b) const { return a + b; }
};

template <class T, class Chosen>
static double extreme_of(const T* values, index_t count, const Chosen& chosen) {
    using vector = typename Vector<T>::type;
    vector parts[SUMS];
    std::fill_n(parts, SUMS, vector{} + values[0]);
    each_vector<T>(count, [&](index_t k, const auto& lanes, auto n) { parts[n] = chosen(parts[n], lanes.load(values + k, values[0])); });
    return double(folded<T>(chosen(chosen(parts[0], parts[1]), chosen(parts[2], parts[3])), chosen));
}

enum How { OF_SUM = 0, OF_GREATEST = 1, OF_LEAST = 2 };

// Of few values one after the other: of more, four vectors at a time.
template <class T, class Together>
static double of_few(const T* values, index_t count, const Together& together) {
    T result = values[0];
    for (index_t k = 1; k < count; ++k) result = together(result, values[k]);
    return double(result);
}

template <class T>
static double put_together(int64_t how, const T* values, index_t count) {
    const bool few = count <= 32;
    if (how == OF_SUM) return few ? of_few(values, count, Sum()) : sum_of(values, count);
    if (how == OF_GREATEST) return few ? of_few(values, count, Greater()) : extreme_of(values, count, Greater());
    return few ? of_few(values, count, Less()) : extreme_of(values, count, Less());
}

// What is put together of each row of `width` values: in `out`, or of rows longer than a block in `parts`, one for each block.
template <class T>
static void reduce_rows(const int64_t* plan, void* const* arrays, const double* numbers, T* out, double* parts, int64_t rows,
                        int64_t width, int64_t how, int threads) {
    const index_t at_once = std::max<index_t>(BLOCK / width, 1), blocks = (width + BLOCK - 1) / BLOCK;
    in_parts((rows + at_once - 1) / at_once * blocks, threads, [=](index_t first, index_t last) {
        Pass<T> pass(plan, arrays, numbers);
        for (index_t k = first; k < last; ++k) {
            if (blocks > 1) {
                const index_t begin = k % blocks * BLOCK, count = std::min(BLOCK, width - begin);
                parts[k] = put_together(how, pass.block(k / blocks * width + begin, count), count);
                continue;
            }
            const index_t end = std::min((k + 1) * at_once, rows);
            const T* values = pass.block(k * at_once * width, (end - k * at_once) * width);
            for (index_t row = k * at_once; row < end; ++row, values += width) out[row] = T(put_together(how, values, width));
        }
    });
}

// Puts each of some values together with another one.
template <class T, class Together>
static inline void put_beside(T* values, const T* others, index_t count, const Together& together) {
    each_vector<T>(count, [&](index_t k, const auto& lanes, auto) {
        lanes.store(values + k, together(lanes.load(values + k), lanes.load(others + k)));
    });
}

// What is put together of each column over `length` rows, for each of the matrices: a part for each `at_once` rows.
template <class T, class Together>
static void reduce_columns(const int64_t* plan, void* const* arrays, const double* numbers, T* parts, index_t matrices, index_t length,
                           index_t columns, index_t at_once, int threads, const Together& together) {
    const index_t chunk = std::min(columns, BLOCK), chunks = (columns + BLOCK - 1) / BLOCK, of_length = (length + at_once - 1) / at_once;
    const index_t lines = std::max<index_t>(BLOCK / chunk, 1);  // rows of a block, which are put together side by side
    in_parts(matrices * of_length * chunks, threads, [=](index_t first, index_t last) {
        Pass<T> pass(plan, arrays, numbers);
        for (index_t k = first; k < last; ++k) {
            const index_t matrix = k / (of_length * chunks), part = k / chunks % of_length, column = k % chunks * BLOCK;
            const index_t count = std::min(chunk, columns - column), begin = part * at_once, end = std::min(begin + at_once, length);
            T line[BLOCK], *out = parts + (matrix * of_length + part) * columns + column;
            for (index_t row = begin; row < end; row += lines) {
                const index_t values = std::min(lines, end - row) * count;
                const T* x = pass.block((matrix * length + row) * columns + column, values);
                if (row == begin) std::copy_n(x, values, line);
                else put_beside(line, x, values, together);
            }
            for (index_t rows = std::min(lines, end - begin); rows > 1;) {
                const index_t kept = (rows + 1) / 2;
                put_beside(line, line + kept * count, (rows - kept) * count, together);
                rows = kept;
            }
            std::copy_n(line, count, out);
        }
    });
}

// One formula of contiguous arrays and numbers, on several threads.
template <class T>
static void run_one(int64_t formula, const T* const* in, const int64_t* masks, index_t arguments, T* out, index_t size, int threads) {
    const bool past_caches = go_past_caches<T>(size);
    in_parts((size + BLOCK - 1) / BLOCK, threads, [=](index_t first, index_t last) {
        const index_t begin = first * BLOCK, end = std::min(last * BLOCK, size);
        const T* own[MOST_ARGUMENTS];
        for (index_t n = 0; n < arguments; ++n) own[n] = in[n] + (begin & masks[n]);
        reinterpret_cast<Formula<T>>(formula)(own, masks, out + begin, end - begin, past_caches);
        if (past_caches) end_past_caches();
    });
}

extern "C" void NAMED(elementwise)(const int64_t* plan, void* const* arrays, const double* numbers, int32_t threads) {
    guarded([=] {
        const index_t size = reinterpret_cast<const Plan*>(plan)->size, block = reinterpret_cast<const Plan*>(plan)->block;
        in_parts((size + block - 1) / block, threads, [=](index_t first, index_t last) {
            Pass<T> pass(plan, arrays, numbers);
            for (index_t k = first; k < last; ++k) pass.block(k * block, std::min(block, size - k * block));
        });
    });
}

extern "C" void NAMED(run_one)(int64_t formula, const T* const* in, const int64_t* masks, int64_t arguments, T* out,
                               int64_t size, int32_t threads) {
    run_one(formula, in, masks, arguments, out, size, threads);
}

extern "C" void NAMED(reduce_rows)(const int64_t* plan, void* const* arrays, const double* numbers, T* out,
                                   double* parts, int64_t rows, int64_t width, int64_t how, int32_t threads) {
    guarded([=] { reduce_rows(plan, arrays, numbers, out, parts, rows, width, how, threads); });
}

extern "C" void NAMED(reduce_columns)(const int64_t* plan, void* const* arrays, const double* numbers, T* parts,
                                      int64_t matrices, int64_t length, int64_t columns, int64_t at_once, int64_t how,
                                      int32_t threads) {
    guarded([=] {
        const auto reduce = [=](auto together) {
            reduce_columns(plan, arrays, numbers, parts, matrices, length, columns, at_once, threads, together);
        };
        how == OF_SUM ? reduce(Sum()) : how == OF_GREATEST ? reduce(Greater()) : reduce(Less());
    });
}
BY_WORDS(elementwise)
BY_WORDS(run_one)
BY_WORDS(reduce_rows)
BY_WORDS(reduce_columns)
