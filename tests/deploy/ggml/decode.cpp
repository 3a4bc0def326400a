#include <math.h>
#include <string.h>

#include "ggml-cpu-impl.h"

static int times_usual = 0;

extern "C" bool ggml_compute_forward_mul_mat_tiled(const ggml_compute_params *, ggml_tensor *) {
    ++times_usual;
    return false;
}
#undef ggml_compute_forward_mul_mat_tiled  // the header may have given it another name

// Rows of a stream are split among threads, as llama.cpp does it.
extern "C" void ggml_compute_forward_soft_max(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * x = dst->src[0], * mask = dst->src[1];
    float * sums = (float *) params->wdata;
    for (int64_t i = 0; i < dst->ne[3] * dst->ne[2]; ++i) {
        const int64_t stream = i / dst->ne[2], head = i % dst->ne[2];
        for (int64_t row = params->ith; row < dst->ne[1]; row += params->nth) {
            const char * from = (const char *) x->data + row * x->nb[1] + head * x->nb[2] + stream * x->nb[3];
            const char * seen = (const char *) mask->data + row * mask->nb[1] + stream % mask->ne[3] * mask->nb[3];
            char * to = (char *) dst->data + row * dst->nb[1] + head * dst->nb[2] + stream * dst->nb[3];
            float sum = 0;
            for (int64_t cell = 0; cell < dst->ne[0]; ++cell) {
                sum += sums[cell] = expf(((const float *) from)[cell] + ((const float *) seen)[cell]);
            }
            for (int64_t cell = 0; cell < dst->ne[0]; ++cell) {
                ((float *) to)[cell] = sums[cell] / sum;
            }
        }
    }
}
#undef ggml_compute_forward_soft_max

static ggml_tensor tensor(ggml_type type, size_t bytes, void * data, int64_t a, int64_t b, int64_t c, int64_t d) {
    return {type, {a, b, c, d}, {bytes, a * bytes, a * b * bytes, a * b * c * bytes}, {}, {}, data};
}

// Keys lie as [streams, cells, groups, size] or, like values, as [streams, groups, cells, size].
extern "C" bool multiply(int64_t size, int64_t cells, int64_t groups, int64_t heads, int64_t rows, int64_t streams,
                         bool by_cell, ggml_fp16_t * k, float * q, float * out, int ith, int nth) {
    ggml_tensor keys = tensor(GGML_TYPE_F16, 2, k, size, cells, groups, streams);
    if (by_cell) {
        keys.nb[1] = groups * size * 2, keys.nb[2] = size * 2;
    }
    ggml_tensor queries = tensor(GGML_TYPE_F32, 4, q, size, rows, heads, streams);
    ggml_tensor result = tensor(GGML_TYPE_F32, 4, out, cells, rows, heads, streams);
    result.src[0] = &keys, result.src[1] = &queries;
    const ggml_compute_params params{ith, nth, nullptr, false};
    return ggml_compute_forward_mul_mat_tiled(&params, &result);
}

extern "C" void soft_max(int64_t cells, int64_t rows, int64_t heads, int64_t streams, float * x, float * mask,
                         float * y, int ith, int nth) {
    ggml_tensor scores = tensor(GGML_TYPE_F32, 4, x, cells, rows, heads, streams);
    ggml_tensor seen = tensor(GGML_TYPE_F32, 4, mask, cells, rows, 1, streams);
    ggml_tensor result = tensor(GGML_TYPE_F32, 4, y, cells, rows, heads, streams);
    result.src[0] = &scores, result.src[1] = &seen;
    float buffer[cells];
    const ggml_compute_params params{ith, nth, buffer, false};
    ggml_compute_forward_soft_max(&params, &result);
}
extern "C" int usual() { return times_usual; }
