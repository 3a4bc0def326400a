#pragma once
#include <immintrin.h>
#include <stdint.h>

inline static void ggml_cpu_fp16_to_fp32(const uint16_t * x, float * y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = _cvtsh_ss(x[i]);
}
