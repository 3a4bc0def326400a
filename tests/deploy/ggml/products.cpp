#include <stdint.h>

#include "ggml-common.h"

static int times_usual = 0;

namespace {
template <typename TA, typename TB, typename TC> class tinyBLAS_Q0_AVX {
  public:
    tinyBLAS_Q0_AVX(int64_t, const TA *, int64_t, const TB *, int64_t, TC *, int64_t, int, int) {}
    void matmul(int64_t, int64_t) { ++times_usual; }
};
}  // namespace

extern "C" void multiply(int64_t m, int64_t n, int64_t k, const block_q8_0 * a, const block_q8_0 * b, float * c,
                         int ith, int nth) {
    tinyBLAS_Q0_AVX<block_q8_0, block_q8_0, float> product{k, a, k, b, k, c, m, ith, nth};
    product.matmul(m, n);
}
extern "C" int usual() { return times_usual; }
