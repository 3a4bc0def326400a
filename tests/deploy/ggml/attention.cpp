#include <string.h>

#include "ggml-cpu-impl.h"

static int times_usual = 0;

static void ggml_compute_forward_flash_attn_ext_tiled(const ggml_compute_params *, ggml_tensor *, int, int) {
    ++times_usual;
}

// Numbers lie as [rows, heads, size]; `mask` is [rows, rows].
extern "C" void attend(int64_t rows, int64_t heads, int64_t size, float * q, ggml_fp16_t * k, ggml_fp16_t * v,
                       ggml_fp16_t * mask, float scale, float * out, int64_t ir0, int64_t ir1) {
    const auto tensor = [=](size_t bytes, void * data) {
        const size_t head = size * bytes;
        return ggml_tensor{GGML_TYPE_F16, {size, rows, heads, 1}, {bytes, heads * head, head, 0}, {}, {}, data};
    };
    ggml_tensor queries = tensor(4, q), keys = tensor(2, k), values = tensor(2, v), result = tensor(4, out);
    ggml_tensor masks{GGML_TYPE_F16, {rows, rows, 1, 1}, {2, size_t(2 * rows), 0, 0}, {}, {}, mask};
    ggml_tensor * sources[] = {&queries, &keys, &values, &masks};
    memcpy(result.src, sources, sizeof(sources));
    memcpy(result.op_params, &scale, sizeof(scale));
    result.ne[1] = heads, result.ne[2] = rows;
    result.nb[1] = size * 4;
    ggml_compute_params params;
    ggml_compute_forward_flash_attn_ext_tiled(&params, &result, ir0, ir1);
}
extern "C" int usual() { return times_usual; }
