// Kernels: the two operations of a decode step that torch alone does not run at the speed of
// memory on a CPU, products of a few rows with a weight matrix and attention over the cache.
//
// A product reads its weights once, whatever the number of rows: each thread walks its own part of
// the matrix tile by tile and asks for the next tile while it multiplies this one. Few rows keep
// R x N dot products in registers, each summed across a vector at its end; many are laid side by
// side, one vector of rows for each input, and need no such sums. Weights stay as torch holds them,
// [out, in], so there is no second copy. Stored values (float, double, bfloat16) are widened to
// Compute before any arithmetic.
//
// Threads come from the OpenMP runtime that torch has loaded: one pool, not two that fight.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <omp.h>
#include <type_traits>
#include <vector>

namespace {

constexpr int OUTS_FOR_ONE_ROW = 8;
constexpr int OUTS_BESIDE = 6, PHASES = 2; // 12 sums: none waits for the one before it
constexpr long OUTS_IN_STEP = 24, PIECE = 72; // outputs; whole numbers of all the above
#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, ROWS_AT_ONCE = 6, OUTS_AT_ONCE = 4; // 32 vector registers
#else
constexpr int VECTOR_BYTES = 32, ROWS_AT_ONCE = 4, OUTS_AT_ONCE = 2; // 16 vector registers
#endif
constexpr long LARGEST_HEAD = 512, TILE_TOKENS = 64, LINE_BYTES = 64,
               TILE_BYTES = 128 * 1024, // a tile stays in a core's own cache
               OUTS_IN_TILE = 12;       // a whole number of those that are computed at once

struct bfloat16 {
    uint16_t bits;
};

template <typename C> struct Vector {
    static constexpr int lanes = VECTOR_BYTES / sizeof(C);
    typedef C type __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(C)), may_alias));
    typedef std::conditional_t<sizeof(C) == 4, int32_t, int64_t> Bit;
    typedef Bit bits __attribute__((vector_size(VECTOR_BYTES)));
};

template <typename S> struct ComputeOf {
    typedef S type;
};
template <> struct ComputeOf<bfloat16> {
    typedef float type;
};

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
inline void store(bfloat16 *to, float value) { // to the nearest, ties to even
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
    const Words words = __builtin_convertvector(*reinterpret_cast<const Halves *>(from), Words)
                        << 16;
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

// The sums of four vectors at once, which takes half the shuffles of four sums in turn.
template <typename C, int lanes = Vector<C>::lanes, typename V>
inline void four_sums(const V (&v)[4], C *sums) {
    if constexpr (lanes > 4) {
        typedef C Half __attribute__((vector_size(lanes / 2 * sizeof(C)), aligned(sizeof(C))));
        Half added[4], halves[2];
        for (int i = 0; i < 4; ++i) {
            std::memcpy(halves, &v[i], sizeof halves);
            added[i] = halves[0] + halves[1];
        }
        four_sums<C, lanes / 2>(added, sums);
    } else {
        static_assert(lanes == 4);
#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
        const auto one = PICK(v[0], v[1], 0, 4, 2, 6) + PICK(v[0], v[1], 1, 5, 3, 7);
        const auto two = PICK(v[2], v[3], 0, 4, 2, 6) + PICK(v[2], v[3], 1, 5, 3, 7);
        const auto all = PICK(one, two, 0, 1, 4, 5) + PICK(one, two, 2, 3, 6, 7);
        std::memcpy(sums, &all, 4 * sizeof(C));
#else
        for (int i = 0; i < 4; ++i)
            sums[i] = (v[i][0] + v[i][1]) + (v[i][2] + v[i][3]);
#endif
    }
}

// exp(x) for x <= 0, to a few roundings: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2].
template <typename C> inline typename Vector<C>::type exponential(typename Vector<C>::type x) {
    typedef typename Vector<C>::type V;
    typedef typename Vector<C>::bits Bits;
    constexpr bool single = sizeof(C) == 4;
    constexpr C least = single ? C(-87) : C(-708);
    constexpr int bias = single ? 127 : 1023, mantissa = single ? 23 : 52;
    x = x < least ? V{} + least : x;
    const Bits n = __builtin_convertvector(x * C(1.4426950408889634074) - C(0.5), Bits); // to 0
    const V whole = __builtin_convertvector(n, V);
    const V rest = (x - whole * C(0.693145751953125)) - whole * C(1.42860682030941723212e-6);
    V power = V{} + C(1);
    for (int order = single ? 7 : 13; order > 0; --order)
        power = C(1) + rest * power * (C(1) / C(order));
    const Bits scale = (n + bias) << mantissa;
    return power * reinterpret_cast<const V &>(scale);
}

// out[n][r] = weights[r] . rows[n] for R outputs and N rows; asks for `ahead` bytes from `next` on.
template <int R, int N, typename W, typename C>
inline void dot_products(const W *weights, const C *rows, long stride, long in, C (&out)[N][R],
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
        for (int n = 0; n < N; ++n)
            row[n] = load(rows + n * stride + step * lanes);
        for (int r = 0; r < R; ++r) {
            const V weight = load(weights + r * in + step * lanes);
            for (int n = 0; n < N; ++n)
                sums[r][n] += weight * row[n];
        }
    }
    for (int n = 0; n < N; ++n) {
        if constexpr (R % 4 == 0) {
            for (int r = 0; r < R; r += 4) {
                const V four[4] = {sums[r][n], sums[r + 1][n], sums[r + 2][n], sums[r + 3][n]};
                four_sums<C>(four, out[n] + r);
            }
        } else {
            for (int r = 0; r < R; ++r)
                out[n][r] = sum<C>(sums[r][n]);
        }
        for (long i = steps * lanes; i < in; ++i)
            for (int r = 0; r < R; ++r)
                out[n][r] += C(widen(weights[r * in + i])) * rows[n * stride + i];
    }
}

// found[r][n] = weights[r] . row n for R outputs and a vector of rows, of which `beside` holds one
// value each for every input; asks for `ahead` bytes from `next` on. Inputs go to `PHASES` sums in
// turn, so that no sum waits for the one before it.
template <int R, typename W, typename C>
inline void products_beside(const W *weights, const C *beside, long in,
                            C (&found)[R][Vector<C>::lanes], const char *next, long ahead) {
    typedef typename Vector<C>::type V;
    constexpr long lanes = Vector<C>::lanes;
    V sums[PHASES][R] = {};
    const long steps = in / lanes, lines = (ahead + LINE_BYTES - 1) / LINE_BYTES;
    long credit = 0;
    for (long step = 0; step < steps; ++step, weights += lanes) {
        for (credit += lines; credit >= steps; credit -= steps, next += LINE_BYTES)
            __builtin_prefetch(next, 0, 2);
#pragma GCC unroll 16
        for (long i = 0; i < lanes; ++i, beside += lanes) {
            const V rows = load(beside);
            for (int r = 0; r < R; ++r)
                sums[i % PHASES][r] += rows * widen(weights[r * in + i]);
        }
    }
    for (long i = 0; i < in % lanes; ++i, beside += lanes)
        for (int r = 0; r < R; ++r)
            sums[0][r] += load(beside) * widen(weights[r * in + i]);
    for (int r = 0; r < R; ++r) {
        for (int phase = 1; phase < PHASES; ++phase)
            sums[0][r] += sums[phase][r];
        std::memcpy(found[r], &sums[0][r], sizeof(V));
    }
}

// Where the rows of a product lie, ready to multiply: those that go side by side, and the others.
// Rows one after another begin in different sets of a cache, also where `in` is a power of two.
template <typename C> struct Rows {
    static constexpr long lanes = Vector<C>::lanes;
    long count, in;
    C *first;

    // Whole vectors of rows, and one that is nearly whole.
    long beside() const {
        if (count <= ROWS_AT_ONCE)
            return 0;
        return 4 * (count % lanes) >= 3 * lanes ? count : count / lanes * lanes;
    }
    long vectors() const { return (beside() + lanes - 1) / lanes; }
    long stride() const { return in + lanes; }
    C *vector(long number) const { return first + number * in * lanes; } // [in, lanes]
    C *row(long number) const { return vector(vectors()) + number * stride(); }
    C *end() const { return row(count); }

    // Lays one input of the rows side by side; lanes without a row are zero.
    void lay(long i) const {
        for (long n = 0; n < vectors() * lanes; ++n)
            vector(n / lanes)[i * lanes + n % lanes] = n < count ? row(n)[i] : C(0);
    }
};

template <typename S, typename C> struct Product {
    const S *weights;  // [outs, in]
    const S *bias;     // [outs] or null
    const S *residual; // [num_rows, outs] or null: added to the result
    Rows<C> rows;
    S *results;        // [num_rows, outs]
    long num_rows, in, outs;

    // An output of a row: the product, the bias, the residual.
    void finish(long row, long out, C value) const {
        const long at = row * outs + out;
        if (bias)
            value += widen(bias[out]);
        if (residual)
            value += widen(residual[at]);
        store(results + at, value);
    }

    template <int R, typename W>
    void group_beside(const W *tile, long out, long row, const char *next, long ahead) const {
        constexpr long lanes = Vector<C>::lanes;
        C found[R][lanes];
        products_beside<R>(tile, rows.vector(row / lanes), in, found, next, ahead);
        for (long n = 0; n < std::min(lanes, num_rows - row); ++n)
            for (int r = 0; r < R; ++r)
                finish(row + n, out + r, found[r][n]);
    }

    template <int R, int N, typename W>
    void group(const W *tile, long out, long row, const char *next, long ahead) const {
        C found[N][R];
        dot_products<R, N>(tile, rows.row(row), rows.stride(), in, found, next, ahead);
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r)
                finish(row + n, out + r, found[n][r]);
    }

    template <int R, typename W>
    void groups(int count, const W *tile, long out, long row, const char *next, long ahead) const {
        switch (count) {
        case 1:
            return group<R, 1>(tile, out, row, next, ahead);
        case 2:
            return group<R, 2>(tile, out, row, next, ahead);
        case 3:
            return group<R, 3>(tile, out, row, next, ahead);
        case 4:
            return group<R, 4>(tile, out, row, next, ahead);
#if defined(__AVX512F__)
        case 5:
            return group<R, 5>(tile, out, row, next, ahead);
        case 6:
            return group<R, 6>(tile, out, row, next, ahead);
#endif
        }
    }

    // Outputs first:last of a vector of rows; where to ask on.
    template <typename W>
    const char *tile_beside(const W *tile, long first, long last, long row,
                            const char *next) const {
        const long count = std::min<long>(Vector<C>::lanes, num_rows - row);
        const long ahead = OUTS_BESIDE * in * long(sizeof(S)) * count / num_rows;
        long out = first;
        for (; out + OUTS_BESIDE <= last; out += OUTS_BESIDE, next += ahead)
            group_beside<OUTS_BESIDE>(tile + (out - first) * in, out, row, next, ahead);
        for (; out < last; ++out)
            group_beside<1>(tile + (out - first) * in, out, row, next, 0);
        return next;
    }

    // Outputs first:last of every row, R at a time where rows do not go side by side.
    template <int R, typename W>
    void tile(const W *tile, long first, long last, const char *next) const {
        const long beside = rows.beside(), left = num_rows - beside;
        for (long row = 0; row < beside; row += Vector<C>::lanes)
            next = tile_beside(tile, first, last, row, next);
        const long passes = (left + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
        for (long pass = 0; pass < passes; ++pass) {
            const long row = beside + left * pass / passes;
            const int count = int(beside + left * (pass + 1) / passes - row);
            const long ahead = R * in * long(sizeof(S)) * count / num_rows;
            long out = first;
            for (; out + R <= last; out += R, next += ahead)
                groups<R>(count, tile + (out - first) * in, out, row, next, ahead);
            for (; out < last; ++out)
                groups<1>(count, tile + (out - first) * in, out, row, next, 0);
        }
    }

    // This thread's share of the outputs. One row reads more weights side by side; few rows need a
    // weight in registers once; more rows come back to it in this core's cache, tile by tile.
    void share(long first, long last, C *widened) const {
        if (num_rows == 1)
            return tiles<OUTS_FOR_ONE_ROW>(first, last, OUTS_FOR_ONE_ROW, nullptr);
        if (num_rows <= ROWS_AT_ONCE)
            return tiles<OUTS_AT_ONCE>(first, last, OUTS_AT_ONCE, nullptr);
        const long size = TILE_BYTES / (in * long(sizeof(C))) / OUTS_IN_TILE * OUTS_IN_TILE;
        tiles<OUTS_AT_ONCE>(first, last, std::max<long>(OUTS_IN_TILE, size), widened);
    }

    template <int R> void tiles(long first, long last, long size, C *widened) const {
        for (long out = first; out < last; out += size) {
            const long end = std::min(last, out + size);
            const S *at = weights + out * in;
            const char *next = reinterpret_cast<const char *>(weights + end * in);
            if (widened) {
                for (long i = 0; i < (end - out) * in; ++i)
                    widened[i] = widen(at[i]);
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
        for (; at < last; ++at)
            total += words[at];
        for (const V &sum : sums)
            for (long lane = 0; lane < lanes; ++lane)
                total += sum[lane];
    }
    return total;
}

enum Prologue { PLAIN = 0, NORM = 1, SWIGLU = 2 };

template <typename C> inline typename Vector<C>::type silu(typename Vector<C>::type x) {
    const auto decay = exponential<C>(x < 0 ? x : -x);
    return x * (x < 0 ? decay : decay - decay + C(1)) / (C(1) + decay);
}

// One row as it goes into the product: as it is, RMS-normed, or silu(first half) * second half.
template <typename S, typename C>
void prepare(const S *row, const S *gains, C epsilon, int prologue, long in, C *ready) {
    if (prologue == SWIGLU) {
        constexpr long lanes = Vector<C>::lanes;
        long i = 0;
        for (; i + lanes <= in; i += lanes) {
            const auto gated = silu<C>(load(row + i)) * load(row + in + i);
            std::memcpy(ready + i, &gated, sizeof gated);
        }
        for (; i < in; ++i)
            ready[i] = silu<C>(typename Vector<C>::type{} + widen(row[i]))[0] * widen(row[in + i]);
        return;
    }
    C squares = 0;
    for (long i = 0; i < in; ++i) {
        ready[i] = widen(row[i]);
        squares += ready[i] * ready[i];
    }
    if (prologue == PLAIN)
        return;
    const C scale = C(1) / std::sqrt(squares / in + epsilon);
    for (long i = 0; i < in; ++i)
        ready[i] *= scale * widen(gains[i]);
}

template <typename S>
void product(const S *weights, const S *bias, const S *rows, const S *gains, const S *residual,
             S *results, void *scratch, double epsilon, int prologue, long num_rows, long in,
             long outs, int threads) {
    typedef typename ComputeOf<S>::type C;
    if (!num_rows)
        return;
    const Rows<C> ready = {num_rows, in, static_cast<C *>(scratch)}; // then a tile for each thread
    const long row_size = prologue == SWIGLU ? 2 * in : in;
    const long tile_size = std::max<long>(TILE_BYTES / long(sizeof(C)), OUTS_IN_TILE * in);
    const Product<S, C> whole = {weights, bias, residual, ready, results, num_rows, in, outs};
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long row = 0; row < num_rows; ++row)
            prepare<S, C>(rows + row * row_size, gains, C(epsilon), prologue, in, ready.row(row));
        if (ready.beside()) {
#pragma omp for schedule(static)
            for (long i = 0; i < in; ++i)
                ready.lay(i);
        }
        const long team = omp_get_num_threads(), me = omp_get_thread_num();
        C *widened = sizeof(S) == sizeof(C) ? nullptr : ready.end() + me * tile_size;
        // Most of the outputs in one run a thread, for memory is fastest in long runs; the rest in
        // pieces to whoever is done first, for no two cores are equally fast on a shared machine.
        const long run = outs * 3 / 4 / team / OUTS_IN_STEP * OUTS_IN_STEP, rest = run * team;
        whole.share(me * run, (me + 1) * run, widened);
#pragma omp for schedule(dynamic, 1) nowait
        for (long out = rest; out < outs; out += PIECE)
            whole.share(out, std::min(outs, out + PIECE), widened);
    }
}

// Rows as they go into a product of many rows, which torch runs.
template <typename S>
void prepare_all(const S *rows, const S *gains, S *ready, double epsilon, int prologue,
                 long num_rows, long in, int threads) {
    typedef typename ComputeOf<S>::type C;
    const long row_size = prologue == SWIGLU ? 2 * in : in;
#pragma omp parallel num_threads(threads)
    {
        std::vector<C> wide(in);
#pragma omp for schedule(static)
        for (long row = 0; row < num_rows; ++row) {
            prepare<S, C>(rows + row * row_size, gains, C(epsilon), prologue, in, wide.data());
            for (long i = 0; i < in; ++i)
                store(ready + row * in + i, wide[i]);
        }
    }
}

// Consecutive tokens of one head in one block of the cache.
template <typename S> struct Run {
    const S *first;
    long tokens;
};

// The tokens that a core works on at a time: as many runs as the blocks they lie in.
template <typename S> struct Tile {
    Run<S> runs[TILE_TOKENS];
    long num_runs = 0, tokens = 0;
};

// Asks for the tokens of a tile one after another, so that memory works while another is computed:
// the `groups` query heads that pass over that other ask for one token in `groups` each.
template <typename S> struct Ahead {
    const Tile<S> &tile;
    const long groups, head_dim;
    long run = 0, token = 0, passed = 0;

    void pass(long tokens) {
        for (passed += tokens; passed >= groups && run < tile.num_runs; passed -= groups) {
            const char *bytes =
                reinterpret_cast<const char *>(tile.runs[run].first + token * head_dim);
            for (long i = 0; i < head_dim * long(sizeof(S)); i += LINE_BYTES)
                __builtin_prefetch(bytes + i, 0, 2);
            if (++token == tile.runs[run].tokens)
                ++run, token = 0;
        }
    }
};

template <typename S> struct Attention {
    typedef typename ComputeOf<S>::type C;
    const S *qkv;                      // [B, (H + 2K) D], not yet turned
    const S *query_norm, *key_norm;    // [D] or null
    const S *cosines, *sines;          // [capacity, D], sines signed
    S *keys, *values;                  // [num_blocks, K, block_tokens, D]
    const int64_t *blocks, *positions; // [B, most_blocks], [B]
    S *attended;                       // [B, H D]
    double epsilon;
    long batch, num_heads, num_kv_heads, head_dim, block_tokens, most_blocks, most_seen, window,
        turns;

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
            turned[i] = plain[i] * widen(cosine[i]);
        for (long i = 0; i < half; ++i) {
            turned[i] += plain[i + half] * widen(sine[i]);
            turned[i + half] += plain[i] * widen(sine[i + half]);
        }
    }

    // Where a token of one KV head lies in the keys and in the values.
    long place(const int64_t *table, long kv_head, long token) const {
        const long block = table[token / block_tokens], offset = token % block_tokens;
        return ((block * num_kv_heads + kv_head) * block_tokens + offset) * head_dim;
    }

    // Tokens first:last of one KV head, or as many of them as a tile holds.
    void cut(const S *cached, const int64_t *table, long kv_head, long first, long last,
             Tile<S> &tile) const {
        last = std::min(last, first + TILE_TOKENS);
        tile.num_runs = 0;
        tile.tokens = last - first;
        while (first < last) {
            const long count = std::min(last - first, block_tokens - first % block_tokens);
            tile.runs[tile.num_runs++] = {cached + place(table, kv_head, first), count};
            first += count;
        }
    }

    long first_seen(long sequence) const {
        return window ? std::max(0L, positions[sequence] + 1 - window) : 0;
    }

    // The first keys of the KV head after this one, which may be another sequence's.
    void cut_after(long sequence, long kv_head, Tile<S> &tile) const {
        tile.num_runs = 0;
        if (++kv_head == num_kv_heads)
            kv_head = 0, ++sequence;
        if (sequence < batch)
            cut(keys, blocks + sequence * most_blocks, kv_head, first_seen(sequence),
                positions[sequence] + 1, tile);
    }

    // One sequence and one KV head: caches the new key and value, then attends for its query heads,
    // tile by tile, so that memory is read once for all of them. The last keys ask for the first
    // values, and the last values for the keys that this core comes to next.
    void one(long sequence, long kv_head, C *scratch) const {
        const long groups = num_heads / num_kv_heads, position = positions[sequence];
        const S *row = qkv + sequence * (num_heads + 2 * num_kv_heads) * head_dim;
        const int64_t *table = blocks + sequence * most_blocks;
        C *queries = scratch, *mixed = queries + groups * head_dim,
          *scores = mixed + groups * head_dim;

        const long here = place(table, kv_head, position);
        turn(row + (num_heads + kv_head) * head_dim, key_norm, position, queries);
        for (long i = 0; i < head_dim; ++i)
            store(keys + here + i, queries[i]);
        const S *value = row + (num_heads + num_kv_heads + kv_head) * head_dim;
        std::copy(value, value + head_dim, values + here);

        const long first = first_seen(sequence), end = position + 1;
        const C scale = C(1) / std::sqrt(C(head_dim));
        for (long group = 0; group < groups; ++group) {
            C *query = queries + group * head_dim;
            turn(row + (kv_head * groups + group) * head_dim, query_norm, position, query);
            for (long i = 0; i < head_dim; ++i)
                query[i] *= scale;
        }
        Tile<S> tiles[2], *tile = tiles, *next = tiles + 1;
        cut(keys, table, kv_head, first, end, *tile);
        for (long token = first; token < end; token += TILE_TOKENS, std::swap(tile, next)) {
            const bool more = token + TILE_TOKENS < end;
            cut(more ? keys : values, table, kv_head, more ? token + TILE_TOKENS : first, end,
                *next);
            Ahead<S> ahead = {*next, groups, head_dim};
            for (long group = 0; group < groups; ++group)
                score(queries + group * head_dim, *tile, ahead,
                      scores + group * score_size() + token - first);
        }
        for (long group = 0; group < groups; ++group)
            normalise(scores + group * score_size(), end - first);
        std::fill(mixed, mixed + groups * head_dim, C(0));
        for (long token = first; token < end; token += TILE_TOKENS, std::swap(tile, next)) {
            if (token + TILE_TOKENS < end)
                cut(values, table, kv_head, token + TILE_TOKENS, end, *next);
            else
                cut_after(sequence, kv_head, *next);
            Ahead<S> ahead = {*next, groups, head_dim};
            for (long group = 0; group < groups; ++group)
                mix(scores + group * score_size() + token - first, *tile, ahead,
                    mixed + group * head_dim);
        }
        S *result = attended + (sequence * num_heads + kv_head * groups) * head_dim;
        for (long i = 0; i < groups * head_dim; ++i)
            store(result + i, mixed[i]);
    }

    void score(const C *query, const Tile<S> &tile, Ahead<S> &ahead, C *scores) const {
        for (long run = 0; run < tile.num_runs; scores += tile.runs[run++].tokens)
            score_run(query, tile.runs[run].first, tile.runs[run].tokens, ahead, scores);
    }

    void score_run(const C *query, const S *keys, long tokens, Ahead<S> &ahead, C *scores) const {
        typedef typename Vector<C>::type V;
        constexpr int lanes = Vector<C>::lanes;
        const long whole = head_dim / lanes * lanes;
        for (long token = 0; token < tokens; token += 4) {
            const int count = int(std::min(4L, tokens - token));
            ahead.pass(count);
            const S *key[4];
            for (int t = 0; t < 4; ++t)
                key[t] = keys + (token + std::min(t, count - 1)) * head_dim;
            V sums[4] = {};
            for (long i = 0; i < whole; i += lanes)
                for (int t = 0; t < 4; ++t)
                    sums[t] += load(query + i) * load(key[t] + i);
            C found[4];
            four_sums<C>(sums, found);
            for (int t = 0; t < count; ++t) {
                for (long i = whole; i < head_dim; ++i)
                    found[t] += query[i] * widen(key[t][i]);
                scores[token + t] = found[t];
            }
        }
    }

    // Scores to shares of 1; what lies beyond them up to a whole vector is overwritten.
    static void normalise(C *scores, long seen) {
        typedef typename Vector<C>::type V;
        constexpr long lanes = Vector<C>::lanes;
        const C largest = *std::max_element(scores, scores + seen);
        const long padded = (seen + lanes - 1) / lanes * lanes;
        std::fill(scores + seen, scores + padded, std::numeric_limits<C>::lowest() / 4);
        V totals = {};
        for (long token = 0; token < padded; token += lanes) {
            const V share = exponential<C>(load(scores + token) - largest);
            std::memcpy(scores + token, &share, sizeof share);
            totals += share;
        }
        const C scale = C(1) / sum<C>(totals);
        for (long token = 0; token < seen; ++token)
            scores[token] *= scale;
    }

    void mix(const C *weights, const Tile<S> &tile, Ahead<S> &ahead, C *mixed) const {
        constexpr int lanes = Vector<C>::lanes;
        ahead.pass(tile.tokens);
        long i = 0;
        for (; i + 4 * lanes <= head_dim; i += 4 * lanes)
            mix_columns<4>(weights, tile, i, mixed + i);
        for (; i + lanes <= head_dim; i += lanes)
            mix_columns<1>(weights, tile, i, mixed + i);
        for (; i < head_dim; ++i) {
            const C *weight = weights;
            for (long run = 0; run < tile.num_runs; ++run)
                for (long t = 0; t < tile.runs[run].tokens; ++t)
                    mixed[i] += *weight++ * widen(tile.runs[run].first[t * head_dim + i]);
        }
    }

    // M vectors of the mixture, from column i on, stay in registers while the tokens pass.
    template <int M>
    void mix_columns(const C *weights, const Tile<S> &tile, long i, C *mixed) const {
        typedef typename Vector<C>::type V;
        constexpr int lanes = Vector<C>::lanes;
        V sums[M];
        for (int m = 0; m < M; ++m)
            sums[m] = load(mixed + m * lanes);
        for (long run = 0; run < tile.num_runs; ++run) {
            const S *columns = tile.runs[run].first + i;
            for (long token = 0; token < tile.runs[run].tokens; ++token) {
                const C weight = *weights++;
                for (int m = 0; m < M; ++m)
                    sums[m] += weight * load(columns + token * head_dim + m * lanes);
            }
        }
        for (int m = 0; m < M; ++m)
            std::memcpy(mixed + m * lanes, &sums[m], sizeof(V));
    }

    // Scratch of one thread: queries and mixtures of a KV head's groups, and their scores.
    long score_size() const { return most_seen + Vector<C>::lanes; }
    long scratch_size() const { return num_heads / num_kv_heads * (2 * head_dim + score_size()); }

    void all(C *scratch, int threads) const {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
        for (long sequence = 0; sequence < batch; ++sequence)
            for (long kv_head = 0; kv_head < num_kv_heads; ++kv_head)
                one(sequence, kv_head, scratch + omp_get_thread_num() * scratch_size());
    }
};

} // namespace

#define EXPORT(S, suffix)                                                                          \
    extern "C" void product_##suffix(const S *weights, const S *bias, const S *rows,               \
                                     const S *gains, const S *residual, S *results, void *scratch, \
                                     double epsilon, int prologue, long num_rows, long in,         \
                                     long outs, int threads) {                                     \
        product<S>(weights, bias, rows, gains, residual, results, scratch, epsilon, prologue,      \
                   num_rows, in, outs, threads);                                                   \
    }                                                                                              \
    extern "C" void prepare_##suffix(const S *rows, const S *gains, S *ready, double epsilon,      \
                                     int prologue, long num_rows, long in, int threads) {          \
        prepare_all<S>(rows, gains, ready, epsilon, prologue, num_rows, in, threads);              \
    }                                                                                              \
    extern "C" void attention_##suffix(                                                            \
        const S *qkv, const S *query_norm, const S *key_norm, const S *cosines, const S *sines,    \
        S *keys, S *values, const int64_t *blocks, const int64_t *positions, S *attended,          \
        void *scratch, double epsilon, long batch, long num_heads, long num_kv_heads,              \
        long head_dim, long block_tokens, long most_blocks, long most_seen, long window,           \
        long turns, int threads) {                                                                 \
        const Attention<S> step = {qkv,          query_norm,   key_norm,  cosines,  sines,         \
                                   keys,         values,       blocks,    positions, attended,     \
                                   epsilon,      batch,        num_heads, num_kv_heads, head_dim,  \
                                   block_tokens, most_blocks,  most_seen, window,   turns};        \
        step.all(static_cast<typename ComputeOf<S>::type *>(scratch), threads);                    \
    }

extern "C" uint64_t read_words(const uint64_t *words, long count, int threads) {
    return read(words, count, threads);
}

EXPORT(float, float32)
EXPORT(double, float64)
EXPORT(bfloat16, bfloat16)
