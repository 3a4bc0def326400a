// What our headers use of llama.cpp's, written plainly.
#pragma once
#include <math.h>

inline static void ggml_vec_max_f32(const int n, float * s, const float * x) {
    *s = -INFINITY;
    for (int i = 0; i < n; ++i) *s = fmaxf(*s, x[i]);
}
inline static void ggml_vec_gelu_f32(const int n, float * y, const float * x) {
    for (int i = 0; i < n; ++i) y[i] = x[i] / 2 * (1 + tanh(0.7978845608 * (x[i] + 0.044715 * pow(x[i], 3))));
}
inline static void ggml_vec_scale_f32(const int n, float * y, const float factor) {
    for (int i = 0; i < n; ++i) y[i] *= factor;
}
inline static double ggml_vec_soft_max_f32(const int n, float * y, const float * x, float max) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += y[i] = expf(x[i] - max);
    return sum;
}
