#pragma once
#include <stddef.h>
#include <stdint.h>

typedef uint16_t ggml_fp16_t;
enum ggml_type { GGML_TYPE_F32 = 0, GGML_TYPE_F16 = 1, GGML_TYPE_Q8_0 = 8 };
struct ggml_tensor {
    enum ggml_type type;
    int64_t ne[4];
    size_t nb[4];
    int32_t op_params[16];
    struct ggml_tensor * src[10];
    void * data;
};
struct ggml_compute_params {
    int ith, nth;
    void * wdata;
    bool use_ref;
};
