/* The passes over memory that PyTorch has no single operation for; see __init__.py. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What this was compiled from. */
const char *sources(void)
{
    return SOURCES;
}

/* What is kept of a softmax, in the order of `softmax_kernel.NUMBERS`. */
enum {
    LABEL, TOP, TOTAL, ENTROPY, HIGHEST, TOP_TIES, NORMALISER, /* always */
    RANGE, EXCESS, SQUARES, NUMBER, LOW_TIES,                  /* with a margin */
    MASS,                                                      /* of soft targets */
    NUMBERS
};
/* In the place of what belongs to a margin, because no loss needs two of them. */
enum { BRIER = RANGE, TILT };
enum { FOLLOWING = RANGE, FOLLOWING_TIES, BEHIND };
enum { DISTANCE = RANGE };
/* What is read beside the numbers that are always there, and how many are kept then. */
enum { NOTHING, MARGIN, SCORE, FOLLOWER, NEIGHBOURS };
static const int KEPT[] = {RANGE, MASS, TILT + 1, BEHIND + 1, DISTANCE + 1};
enum { LARGEST, SMALLEST, SUM, OWN }; /* of a distribution */
enum { LANES = 16, TILE = 128, SHORT = 32, LINE = 64, AHEAD = 1024 };
#define FARTHEST (-1000) /* exp of it is 0, also times it; -infinity times 0 would be NaN */
#define BELOW_ALL ((REAL)-3e38) /* no logit that matters is below it, in either precision */
#define INLINE static inline __attribute__((always_inline))

#include "math.inc"

#define REAL float
#define NAME(name) name##_float
#include "softmax.inc"
#include "distribution.inc"
#include "histogram.inc"
#include "smoothing.inc"
#undef REAL
#undef NAME

#define REAL double
#define NAME(name) name##_double
#include "softmax.inc"
#include "distribution.inc"
#include "histogram.inc"
#include "smoothing.inc"
