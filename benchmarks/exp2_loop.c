/* The C loop that fa4verify.exp2 is measured against: FA4's exp2 over consecutive float32 bit patterns, and the
 * errors of the results against a float64 polynomial. Built by benchmarks/test_exp2.py with -O3 -march=native.
 *
 * Evaluation is written with AVX-512 intrinsics where the processor has them (an addition that rounds down is one
 * instruction), else left to the compiler. Statistics, with the intrinsics alone: largest relative error and the block
 * where it is, sum, sum of squares, results whose bf16 and fp16 rounding differs from that of the reference, steps down.
 * No ulp histogram and no e4m3, which the measured side has as well: they would only slow the loop down.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { BLOCK = 1024 };
static const float MAGIC = 12582912.0f;

static inline void block(uint32_t first, float *restrict out, int size, const float *c, int degree) {
#ifdef __AVX512F__
    const __m512 magic = _mm512_set1_ps(MAGIC), lowest = _mm512_set1_ps(-127.0f);
    __m512 p0[8];
    for (int k = 0; k <= degree; k++) p0[k] = _mm512_set1_ps(c[k]);
    __m512i code = _mm512_add_epi32(_mm512_set1_epi32((int)first),
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
#pragma GCC unroll 2
    for (int i = 0; i < size; i += 16) {
        __m512 y = _mm512_max_ps(_mm512_castsi512_ps(code), lowest);
        __m512 r = _mm512_add_round_ps(y, magic, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        __m512 f = _mm512_sub_ps(y, _mm512_sub_ps(r, magic));
        __m512 p = p0[degree];
        for (int k = degree - 1; k >= 0; k--) p = _mm512_fmadd_ps(p, f, p0[k]);
        __m512i bits = _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(r), 23), _mm512_castps_si512(p));
        _mm512_storeu_ps(out + i, _mm512_castsi512_ps(bits));
        code = _mm512_add_epi32(code, _mm512_set1_epi32(16));
    }
#else /* |x| < 2^22 only */
    for (int i = 0; i < size; i++) {
        uint32_t code = first + (uint32_t)i, q;
        float x;
        memcpy(&x, &code, 4);
        float y = x > -127.0f ? x : -127.0f, n = floorf(y), r = n + MAGIC, f = y - n, p = c[degree];
        for (int k = degree - 1; k >= 0; k--) p = fmaf(p, f, c[k]);
        memcpy(&code, &r, 4);
        memcpy(&q, &p, 4);
        code = (code << 23) + q;
        memcpy(out + i, &code, 4);
    }
#endif
}

/* A constant degree lets the compiler unroll Horner's rule. */
static inline void any_block(uint32_t first, float *out, int size, const float *c, int degree) {
    switch (degree) {
    case 1: block(first, out, size, c, 1); break;
    case 2: block(first, out, size, c, 2); break;
    case 3: block(first, out, size, c, 3); break;
    case 4: block(first, out, size, c, 4); break;
    case 5: block(first, out, size, c, 5); break;
    default: block(first, out, size, c, degree);
    }
}

/* count is a multiple of `room`, which is a multiple of 16; the results of the last `room` inputs stay in out. */
void evaluate(uint32_t first, uint64_t count, float *out, int room, const float *c, int degree) {
    for (uint64_t done = 0; done < count; done += (uint64_t)room)
        any_block(first + (uint32_t)done, out, room, c, degree);
}

/* exp(f ln 2), |f| <= 1/2: Taylor's 13 terms, relative error below 1e-16. */
static const double TERMS[13] = {
    1.0, 6.931471805599453e-1, 2.402265069591007e-1, 5.550410866482158e-2, 9.618129107628477e-3,
    1.3333558146428443e-3, 1.5403530393381606e-4, 1.5252733804059840e-5, 1.3215486790144307e-6,
    1.0178086009239699e-7, 7.0549116208011233e-9, 4.4455382718708114e-10, 2.5678435993488202e-11};

#ifdef __AVX512F__
typedef __m512d doubles;
typedef __m512i longs;

static inline doubles cut(doubles x, int bits) {
    longs u = _mm512_castpd_si512(x), odd = _mm512_and_si512(_mm512_srli_epi64(u, bits), _mm512_set1_epi64(1));
    u = _mm512_add_epi64(_mm512_add_epi64(u, odd), _mm512_set1_epi64((1ll << (bits - 1)) - 1));
    return _mm512_castsi512_pd(_mm512_and_si512(u, _mm512_set1_epi64(~((1ll << bits) - 1))));
}

static inline doubles to_fp16(doubles x) {
    const doubles magic = _mm512_set1_pd(6755399441055744.0 / 16777216.0); /* its ulp is 2^-24 */
    __mmask8 tiny = _mm512_cmp_pd_mask(x, _mm512_set1_pd(0x1p-14), _CMP_LT_OQ);
    return _mm512_mask_sub_pd(cut(x, 42), tiny, _mm512_add_pd(x, magic), magic);
}
#endif

/* figures: largest relative error, its input's bits, sum, sum of squares, bf16 and fp16 mismatches, steps down.
 * Negative x in [-126, -0]; count is a multiple of BLOCK. */
void statistics(uint32_t first, uint64_t count, const float *c, int degree, double *figures) {
    float buffer[BLOCK + 16];
    double worst = 0, total = 0, square = 0;
    uint64_t where = 0, bf16 = 0, fp16 = 0, down = 0;
    float *y = buffer + 16;
    y[BLOCK - 1] = 0x1p120f;
    for (uint64_t done = 0; done < count; done += BLOCK) {
        uint32_t begin = first + (uint32_t)done;
        double peak = 0, sum = 0, squares = 0;
        uint64_t b = 0, h = 0;
        int d = 0;
        y[-1] = y[BLOCK - 1];
        any_block(begin, y, BLOCK, c, degree);
        for (int i = 0; i < BLOCK; i++) d += y[i] > y[i - 1];
#ifdef __AVX512F__
        const doubles whole = _mm512_set1_pd(6755399441055744.0), one = _mm512_set1_pd(1.0);
        doubles peaks = _mm512_setzero_pd(), sums = peaks, more = peaks;
        longs code = _mm512_add_epi64(_mm512_set1_epi64(begin), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
        for (int i = 0; i < BLOCK; i += 8) {
            doubles x = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_cvtepi64_epi32(code)));
            doubles shifted = _mm512_add_pd(x, whole), f = _mm512_sub_pd(x, _mm512_sub_pd(shifted, whole));
            doubles p = _mm512_set1_pd(TERMS[12]);
            for (int k = 11; k >= 0; k--) p = _mm512_fmadd_pd(p, f, _mm512_set1_pd(TERMS[k]));
            longs up = _mm512_slli_epi64(_mm512_castpd_si512(shifted), 52);
            doubles exact = _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(p), up));
            doubles got = _mm512_cvtps_pd(_mm256_loadu_ps(y + i));
            doubles error = _mm512_sub_pd(_mm512_div_pd(got, exact), one);
            peaks = _mm512_max_pd(peaks, _mm512_abs_pd(error));
            sums = _mm512_add_pd(sums, error);
            more = _mm512_fmadd_pd(error, error, more);
            b += (uint64_t)__builtin_popcount(_mm512_cmp_pd_mask(cut(got, 45), cut(exact, 45), _CMP_NEQ_UQ));
            h += (uint64_t)__builtin_popcount(_mm512_cmp_pd_mask(to_fp16(got), to_fp16(exact), _CMP_NEQ_UQ));
            code = _mm512_add_epi64(code, _mm512_set1_epi64(8));
        }
        peak = _mm512_reduce_max_pd(peaks), sum = _mm512_reduce_add_pd(sums), squares = _mm512_reduce_add_pd(more);
#endif
        if (peak > worst) worst = peak, where = begin;
        total += sum, square += squares, bf16 += b, fp16 += h, down += (uint64_t)d;
    }
    figures[0] = worst, figures[1] = (double)where, figures[2] = total, figures[3] = square;
    figures[4] = (double)bf16, figures[5] = (double)fp16, figures[6] = (double)down;
}
