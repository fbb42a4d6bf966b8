/* The passes over memory that PyTorch has no single operation for; see __init__.py. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* What this was compiled from. */
const char *sources(void)
{
    return SOURCES;
}

enum { TOP, LOW, NORMALISER, ENTROPY, SUM, LABEL, TOP_TIES, LOW_TIES, COUNT, EXCESS, SQUARES };
enum { MASS = 2, OWN = 3 }; /* of distributions, after TOP and LOW */
enum { LANES = 16, TILE = 128, SHORT = 32, LINE = 64, AHEAD = 1024 };
#define FARTHEST (-1000) /* exp of it is 0, also times it; -infinity times 0 would be NaN */
#define DEEPEST ((REAL)-1e38) /* finite in single precision, for the same reason */
#define INLINE static inline __attribute__((always_inline))

/* Numbers below the normal ones are a hundred times slower; here they may as well be 0. */
INLINE unsigned int flush_denormals(void)
{
#ifdef __SSE__
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    return mode;
#else
    return 0;
#endif
}

INLINE void restore_denormals(unsigned int mode)
{
#ifdef __SSE__
    _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

/* exp(x) for x <= 0, to 2 units in the last place, and 0 where it is below the normal numbers.
 * x = n ln 2 + r, with ln 2 in two parts to keep r exact; at the bound the bits of 2^n are those of 0. */
INLINE float exponential_float(float x)
{
    const float bounded = x > -88.0f ? x : -88.0f;
    const int32_t power = (int32_t)(bounded * 1.44269504f - 0.5f); /* to the nearest, as x <= 0 */
    const float r = (bounded - power * 0.693359375f) + power * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const int32_t bits = (power + 127) * (1 << 23);
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

INLINE double exponential_double(double x)
{
    const double bounded = x > -709.0 ? x : -709.0;
    const int32_t power = (int32_t)(bounded * 1.4426950408889634 - 0.5);
    const double r = (bounded - power * 0.693145751953125) - power * 1.42860682030941723212e-6;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const int64_t bits = (int64_t)(power + 1023) * (1LL << 52);
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* tanh(x) for x >= 0: in single precision a quotient of polynomials, to a few units in the last place. */
INLINE float tangent_float(float x)
{
    const float bounded = x < 7.9053111f ? x : 7.9053111f, square = bounded * bounded;
    float p = -2.76076847742355e-16f;
    p = p * square + 2.00018790482477e-13f;
    p = p * square + -8.60467152213735e-11f;
    p = p * square + 5.12229709037114e-08f;
    p = p * square + 1.48572235717979e-05f;
    p = p * square + 6.37261928875436e-04f;
    p = p * square + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * square + 1.18534705686654e-04f;
    q = q * square + 2.26843463243900e-03f;
    q = q * square + 4.89352518554385e-03f;
    return bounded * p / q;
}

INLINE double tangent_double(double x)
{
    const double e = exponential_double(-2 * x);
    return (1 - e) / (1 + e);
}

/* Comparisons are compiled as if NaN did not exist, so that they vectorise; bits tell it. */
INLINE int is_nan_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

INLINE int is_nan_double(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}

#define REAL float
#define NAME(name) name##_float
#include "softmax.inc"
#include "smooth.inc"
#undef REAL
#undef NAME

#define REAL double
#define NAME(name) name##_double
#include "softmax.inc"
#include "smooth.inc"
