#include <stdint.h>

#include "ggml-common.h"
#include "ggml-cpu-impl.h"

static int times_usual = 0;

namespace {
template <typename TA, typename TB, typename TC> class tinyBLAS_Q0_AVX {
  public:
    tinyBLAS_Q0_AVX(int64_t, const TA *, int64_t, const TB *, int64_t, TC *, int64_t, int, int) {}
    void matmul(int64_t, int64_t) { ++times_usual; }
};
}  // namespace

extern "C" bool llamafile_sgemm(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a,
                                int64_t lda, const void * b, int64_t ldb, void * c, int64_t ldc, int, int, int) {
    if (n < 2) {
        ++times_usual;
        return false;
    }
    tinyBLAS_Q0_AVX<block_q8_0, block_q8_0, float> product{
        k, (const block_q8_0 *) a, lda, (const block_q8_0 *) b, ldb, (float *) c, ldc, params->ith, params->nth};
    product.matmul(m, n);
    return true;
}
#undef llamafile_sgemm  // the header may have given it another name

extern "C" void multiply(int64_t m, int64_t n, int64_t k, const block_q8_0 * a, const block_q8_0 * b, float * c,
                         int ith, int nth) {
    const ggml_compute_params params{ith, nth};
    llamafile_sgemm(&params, m, n, k, a, k, b, k, c, m, GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, GGML_TYPE_F32);
}
extern "C" int usual() { return times_usual; }
