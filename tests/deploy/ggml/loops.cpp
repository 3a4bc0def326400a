#include "vec.h"

extern "C" float maximum(int n, const float * x) {
    float s;
    ggml_vec_max_f32(n, &s, x);
    return s;
}
extern "C" void gelu(int n, float * y, const float * x) { ggml_vec_gelu_f32(n, y, x); }
#if defined(ggml_vec_max_f32) || defined(__clang__)  // for which they are not written
extern "C" int replaced() { return 1; }
#else
extern "C" int replaced() { return 0; }
#endif
