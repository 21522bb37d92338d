// Kernels: the two operations of a decode step that torch alone does not run at the speed of
// memory on a CPU, products of a few rows with a weight matrix and attention over the cache.
//
// A product reads its weights once, whatever the number of rows: each thread walks its own part of
// the matrix tile by tile, asks for the next tile while it multiplies this one, and keeps R x N dot
// products in registers. Weights stay as torch holds them, [out, in], so there is no second copy.
// Stored values (float, double, bfloat16) are widened to Compute before any arithmetic.
//
// Threads come from the OpenMP runtime that torch has loaded: one pool, not two that fight.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <omp.h>

namespace {

constexpr int OUTS_FOR_ONE_ROW = 8;
#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, ROWS_AT_ONCE = 6, OUTS_AT_ONCE = 4;  // 32 vector registers
#else
constexpr int VECTOR_BYTES = 32, ROWS_AT_ONCE = 4, OUTS_AT_ONCE = 2;  // 16 vector registers
#endif
constexpr long LARGEST_HEAD = 512, LINE_BYTES = 64, TILE_BYTES = 128 * 1024;  // a tile stays in a core's own cache

struct bfloat16 {
    uint16_t bits;
};

template <typename C> struct Vector {
    static constexpr int lanes = VECTOR_BYTES / sizeof(C);
    typedef C type __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(C)), may_alias));
};

template <typename S> struct ComputeOf { typedef S type; };
template <> struct ComputeOf<bfloat16> { typedef float type; };

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(bfloat16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}
inline void store(float *to, float value) { *to = value; }
inline void store(double *to, double value) { *to = value; }
inline void store(bfloat16 *to, float value) {  // to the nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    to->bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename C> typename Vector<C>::type load(const C *from) {
    return *reinterpret_cast<const typename Vector<C>::type *>(from);
}
inline Vector<float>::type load(const bfloat16 *from) {
    constexpr int lanes = Vector<float>::lanes;
    typedef uint16_t Halves __attribute__((vector_size(lanes * 2), aligned(2), may_alias));
    typedef uint32_t Words __attribute__((vector_size(lanes * 4)));
    const Words words = __builtin_convertvector(*reinterpret_cast<const Halves *>(from), Words) << 16;
    return reinterpret_cast<const Vector<float>::type &>(words);
}

// Halves are added to halves down to two lanes, which compilers turn into shuffles.
template <typename C, int lanes = Vector<C>::lanes, typename V> inline C sum(V vector) {
    if constexpr (lanes == 2) {
        return vector[0] + vector[1];
    } else {
        typedef C Half __attribute__((vector_size(lanes / 2 * sizeof(C)), aligned(sizeof(C))));
        Half halves[2];
        std::memcpy(halves, &vector, sizeof halves);
        return sum<C, lanes / 2>(halves[0] + halves[1]);
    }
}

// exp(x) for x <= 0, to rounding: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2].
template <typename C> inline C exponential(C x) {
    constexpr bool single = sizeof(C) == 4;
    constexpr C least = single ? C(-87) : C(-708);
    x = x < least ? least : x;
    const C n = std::floor(x * C(1.4426950408889634074) + C(0.5));
    const C rest = (x - n * C(0.693145751953125)) - n * C(1.42860682030941723212e-6);
    C power = C(1);
    for (int order = single ? 7 : 13; order > 0; --order) power = C(1) + rest * power / C(order);
    if constexpr (single) {
        const int32_t bits = (int32_t(n) + 127) << 23;
        C scale;
        std::memcpy(&scale, &bits, sizeof scale);
        return power * scale;
    } else {
        const int64_t bits = (int64_t(n) + 1023) << 52;
        C scale;
        std::memcpy(&scale, &bits, sizeof scale);
        return power * scale;
    }
}

// out[n][r] = weights[r] . rows[n] for R outputs and N rows; asks for `ahead` bytes from `next` on.
template <int R, int N, typename W, typename C>
inline void dot_products(const W *weights, const C *rows, long in, C (&out)[N][R],
                         const char *next, long ahead) {
    typedef typename Vector<C>::type V;
    constexpr int lanes = Vector<C>::lanes;
    V sums[R][N] = {};
    const long steps = in / lanes, lines = (ahead + LINE_BYTES - 1) / LINE_BYTES;
    long credit = 0;
    for (long step = 0; step < steps; ++step) {
        for (credit += lines; credit >= steps; credit -= steps, next += LINE_BYTES)
            __builtin_prefetch(next, 0, 2);
        V row[N];
        for (int n = 0; n < N; ++n) row[n] = load(rows + n * in + step * lanes);
        for (int r = 0; r < R; ++r) {
            const V weight = load(weights + r * in + step * lanes);
            for (int n = 0; n < N; ++n) sums[r][n] += weight * row[n];
        }
    }
    for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) {
            C total = sum<C>(sums[r][n]);
            for (long i = steps * lanes; i < in; ++i) total += C(widen(weights[r * in + i])) * rows[n * in + i];
            out[n][r] = total;
        }
}

template <typename S, typename C> struct Product {
    const S *weights;  // [outs, in]
    const S *bias;     // [outs] or null
    const S *residual; // [num_rows, outs] or null: added to the result
    const C *rows;     // [num_rows, in], ready to multiply
    S *results;        // [num_rows, outs]
    long num_rows, in, outs;

    template <int R, int N, typename W>
    void group(const W *tile, long out, long row, const char *next, long ahead) const {
        C found[N][R];
        dot_products<R, N>(tile, rows + row * in, in, found, next, ahead);
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r) {
                const long at = (row + n) * outs + out + r;
                C value = found[n][r];
                if (bias) value += widen(bias[out + r]);
                if (residual) value += widen(residual[at]);
                store(results + at, value);
            }
    }

    template <int R, typename W>
    void groups(int count, const W *tile, long out, long row, const char *next, long ahead) const {
        switch (count) {
        case 1: return group<R, 1>(tile, out, row, next, ahead);
        case 2: return group<R, 2>(tile, out, row, next, ahead);
        case 3: return group<R, 3>(tile, out, row, next, ahead);
        case 4: return group<R, 4>(tile, out, row, next, ahead);
#if defined(__AVX512F__)
        case 5: return group<R, 5>(tile, out, row, next, ahead);
        case 6: return group<R, 6>(tile, out, row, next, ahead);
#endif
        }
    }

    // Outputs first:last of every row, R at a time.
    template <int R, typename W> void tile(const W *tile, long first, long last, const char *next) const {
        const long passes = (num_rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
        const long ahead = R * in * long(sizeof(S)) / passes;
        for (long pass = 0; pass < passes; ++pass) {
            const long row = num_rows * pass / passes;
            const int count = int(num_rows * (pass + 1) / passes - row);
            long out = first;
            for (; out + R <= last; out += R, next += ahead)
                groups<R>(count, tile + (out - first) * in, out, row, next, ahead);
            for (; out < last; ++out) groups<1>(count, tile + (out - first) * in, out, row, next, 0);
        }
    }

    // This thread's share of the outputs. One row reads more weights side by side; few rows need a
    // weight in registers once; more rows come back to it in this core's cache, tile by tile.
    void share(long first, long last, C *widened) const {
        if (num_rows == 1) return tiles<OUTS_FOR_ONE_ROW>(first, last, OUTS_FOR_ONE_ROW, nullptr);
        if (num_rows <= ROWS_AT_ONCE) return tiles<OUTS_AT_ONCE>(first, last, OUTS_AT_ONCE, nullptr);
        const long size = TILE_BYTES / (in * long(sizeof(C))) / OUTS_AT_ONCE * OUTS_AT_ONCE;
        tiles<OUTS_AT_ONCE>(first, last, std::max<long>(OUTS_AT_ONCE, size), widened);
    }

    template <int R> void tiles(long first, long last, long size, C *widened) const {
        for (long out = first; out < last; out += size) {
            const long end = std::min(last, out + size);
            const S *at = weights + out * in;
            const char *next = reinterpret_cast<const char *>(weights + end * in);
            if (widened) {
                for (long i = 0; i < (end - out) * in; ++i) widened[i] = widen(at[i]);
                tile<R>(widened, out, end, next);
            } else {
                tile<R>(at, out, end, next);
            }
        }
    }
};

// The sum of all words: as fast a read as there is, for it computes nothing else. Each thread reads
// eight pages side by side, because the hardware fetches ahead in each of them.
uint64_t read(const uint64_t *words, long count, int threads) {
    typedef uint64_t V __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
    constexpr long lanes = VECTOR_BYTES / 8, streams = 8, page = 4096 / 8;
    uint64_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        const long team = omp_get_num_threads(), me = omp_get_thread_num();
        const long last = count * (me + 1) / team;
        long at = count * me / team;
        V sums[streams] = {};
        for (; at + streams * page <= last; at += streams * page)
            for (long i = 0; i < page; i += lanes)
                for (long stream = 0; stream < streams; ++stream)
                    sums[stream] += *reinterpret_cast<const V *>(words + at + stream * page + i);
        for (; at < last; ++at) total += words[at];
        for (const V &sum : sums)
            for (long lane = 0; lane < lanes; ++lane) total += sum[lane];
    }
    return total;
}

enum Prologue { PLAIN = 0, NORM = 1, SWIGLU = 2 };

// One row as it goes into the product: as it is, RMS-normed, or silu(first half) * second half.
template <typename S, typename C>
void prepare(const S *row, const S *gains, C epsilon, int prologue, long in, C *ready) {
    if (prologue == SWIGLU) {
        for (long i = 0; i < in; ++i) {
            const C gate = widen(row[i]), decay = exponential<C>(gate < 0 ? gate : -gate);
            const C sigmoid = (gate < 0 ? decay : C(1)) / (C(1) + decay);
            ready[i] = gate * sigmoid * widen(row[in + i]);
        }
        return;
    }
    C squares = 0;
    for (long i = 0; i < in; ++i) {
        ready[i] = widen(row[i]);
        squares += ready[i] * ready[i];
    }
    if (prologue == PLAIN) return;
    const C scale = C(1) / std::sqrt(squares / in + epsilon);
    for (long i = 0; i < in; ++i) ready[i] *= scale * widen(gains[i]);
}

template <typename S>
void product(const S *weights, const S *bias, const S *rows, const S *gains, const S *residual,
             S *results, void *scratch, double epsilon, int prologue, long num_rows, long in,
             long outs, int threads) {
    typedef typename ComputeOf<S>::type C;
    C *ready = static_cast<C *>(scratch);  // [num_rows, in], then a tile for each thread
    const long row_size = prologue == SWIGLU ? 2 * in : in;
    const long tile_size = std::max<long>(TILE_BYTES / long(sizeof(C)), OUTS_AT_ONCE * in);
    const Product<S, C> whole = {weights, bias, residual, ready, results, num_rows, in, outs};
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long row = 0; row < num_rows; ++row)
            prepare<S, C>(rows + row * row_size, gains, C(epsilon), prologue, in, ready + row * in);
        const long team = omp_get_num_threads(), me = omp_get_thread_num();
        const long groups = (outs + OUTS_FOR_ONE_ROW - 1) / OUTS_FOR_ONE_ROW;
        const long first = groups * me / team * OUTS_FOR_ONE_ROW;
        const long last = std::min(outs, groups * (me + 1) / team * OUTS_FOR_ONE_ROW);
        C *widened = sizeof(S) == sizeof(C) ? nullptr : ready + num_rows * in + me * tile_size;
        whole.share(first, last, widened);
    }
}

template <typename S> struct Attention {
    typedef typename ComputeOf<S>::type C;
    const S *qkv;                  // [B, (H + 2K) D], not yet turned
    const S *query_norm, *key_norm; // [D] or null
    const S *cosines, *sines;      // [capacity, D], sines signed
    S *keys, *values;              // [slots, K, capacity, D]
    const int64_t *slots, *positions; // [B]
    S *attended;                   // [B, H D]
    double epsilon;
    long batch, num_heads, num_kv_heads, head_dim, capacity, window, turns;

    void turn(const S *head, const S *norm, long position, C *turned) const {
        C plain[LARGEST_HEAD];
        prepare<S, C>(head, norm, C(epsilon), norm ? NORM : PLAIN, head_dim, plain);
        if (!turns) {
            std::copy(plain, plain + head_dim, turned);
            return;
        }
        const long half = head_dim / 2;
        const S *cosine = cosines + position * head_dim, *sine = sines + position * head_dim;
        for (long i = 0; i < head_dim; ++i)
            turned[i] = plain[i] * widen(cosine[i]) + plain[(i + half) % head_dim] * widen(sine[i]);
    }

    // One sequence and one KV head: caches the new key and value, then attends for its query heads.
    void one(long sequence, long kv_head, C *scores) const {
        const long groups = num_heads / num_kv_heads, position = positions[sequence];
        const S *row = qkv + sequence * (num_heads + 2 * num_kv_heads) * head_dim;
        const long at = (slots[sequence] * num_kv_heads + kv_head) * capacity;
        S *head_keys = keys + at * head_dim, *head_values = values + at * head_dim;
        C turned[LARGEST_HEAD];
        turn(row + (num_heads + kv_head) * head_dim, key_norm, position, turned);
        for (long i = 0; i < head_dim; ++i) store(head_keys + position * head_dim + i, turned[i]);
        const S *value = row + (num_heads + num_kv_heads + kv_head) * head_dim;
        std::copy(value, value + head_dim, head_values + position * head_dim);
        const long first = window ? std::max(0L, position + 1 - window) : 0, seen = position + 1 - first;
        for (long group = 0; group < groups; ++group) {
            const long head = kv_head * groups + group;
            turn(row + head * head_dim, query_norm, position, turned);
            attend(turned, head_keys + first * head_dim, head_values + first * head_dim, seen, scores,
                   attended + (sequence * num_heads + head) * head_dim);
        }
    }

    void attend(C *query, const S *seen_keys, const S *seen_values, long seen, C *scores,
                S *result) const {
        typedef typename Vector<C>::type V;
        constexpr int lanes = Vector<C>::lanes;
        const C scale = C(1) / std::sqrt(C(head_dim));
        C largest = -std::numeric_limits<C>::max();
        for (long token = 0; token < seen; ++token) {
            const S *key = seen_keys + token * head_dim;
            __builtin_prefetch(key + 16 * head_dim);
            V sums = {};
            long i = 0;
            for (; i + lanes <= head_dim; i += lanes) sums += load(query + i) * load(key + i);
            C score = sum<C>(sums);
            for (; i < head_dim; ++i) score += query[i] * widen(key[i]);
            scores[token] = score * scale;
            largest = std::max(largest, scores[token]);
        }
        C total = 0;
        for (long token = 0; token < seen; ++token) {
            scores[token] = exponential<C>(scores[token] - largest);
            total += scores[token];
        }
        C mixed[LARGEST_HEAD] = {};
        long token = 0;
        for (; token + 4 <= seen; token += 4) {
            const S *value = seen_values + token * head_dim;
            const C *weight = scores + token;
            __builtin_prefetch(value + 16 * head_dim);
            for (long i = 0; i < head_dim; ++i)
                mixed[i] += weight[0] * widen(value[i]) + weight[1] * widen(value[head_dim + i]) +
                            weight[2] * widen(value[2 * head_dim + i]) +
                            weight[3] * widen(value[3 * head_dim + i]);
        }
        for (; token < seen; ++token)
            for (long i = 0; i < head_dim; ++i)
                mixed[i] += scores[token] * widen(seen_values[token * head_dim + i]);
        for (long i = 0; i < head_dim; ++i) store(result + i, mixed[i] / total);
    }

    void all(C *scores, int threads) const {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
        for (long sequence = 0; sequence < batch; ++sequence)
            for (long kv_head = 0; kv_head < num_kv_heads; ++kv_head)
                one(sequence, kv_head, scores + omp_get_thread_num() * capacity);
    }
};

} // namespace

#define EXPORT(S, suffix)                                                                          \
    extern "C" void product_##suffix(                                                              \
        const S *weights, const S *bias, const S *rows, const S *gains, const S *residual,         \
        S *results, void *scratch, double epsilon, int prologue, long num_rows, long in,           \
        long outs, int threads) {                                                                  \
        product<S>(weights, bias, rows, gains, residual, results, scratch, epsilon, prologue,      \
                   num_rows, in, outs, threads);                                                   \
    }                                                                                              \
    extern "C" void attention_##suffix(                                                            \
        const S *qkv, const S *query_norm, const S *key_norm, const S *cosines, const S *sines,    \
        S *keys, S *values, const int64_t *slots, const int64_t *positions, S *attended,           \
        void *scores, double epsilon, long batch, long num_heads, long num_kv_heads,               \
        long head_dim, long capacity, long window, long turns, int threads) {                      \
        const Attention<S> step = {qkv,   query_norm, key_norm,  cosines,      sines,              \
                                   keys,  values,     slots,     positions,    attended,           \
                                   epsilon, batch,    num_heads, num_kv_heads, head_dim,           \
                                   capacity, window,  turns};                                      \
        step.all(static_cast<typename ComputeOf<S>::type *>(scores), threads);                     \
    }

extern "C" uint64_t read_words(const uint64_t *words, long count, int threads) {
    return read(words, count, threads);
}

EXPORT(float, float32)
EXPORT(double, float64)
EXPORT(bfloat16, bfloat16)
