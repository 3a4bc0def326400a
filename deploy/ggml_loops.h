// Two loops of llama.cpp, written so that compilers make vector instructions of them. The build includes this file
// before every C++ file (deploy/wheel.py); it takes effect in llama.cpp's CPU backend alone.
//
// The maximum of a softmax is the same number as before, but its comparisons no longer wait for one another: compilers
// may not reorder them by themselves, since values may be infinite or no numbers. GELU was a table of half precision,
// read one value at a time.
#if defined(ggml_cpu_EXPORTS) && defined(__GNUC__) && !defined(__clang__)
#include "vec.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define FIRSTTOKEN_VECTOR_BYTES 64
#elif defined(__AVX__)
#define FIRSTTOKEN_VECTOR_BYTES 32
#else
#define FIRSTTOKEN_VECTOR_BYTES 16
#endif

typedef float firsttoken_floats __attribute__((vector_size(FIRSTTOKEN_VECTOR_BYTES)));
typedef uint32_t firsttoken_bits __attribute__((vector_size(FIRSTTOKEN_VECTOR_BYTES)));
constexpr int FIRSTTOKEN_LANES = FIRSTTOKEN_VECTOR_BYTES / sizeof(float);

inline static void firsttoken_vec_max_f32(const int n, float * result, const float * x) {
    firsttoken_floats highest = firsttoken_floats{} - INFINITY;
    float max = -INFINITY;
    int i = 0;
    for (; i + FIRSTTOKEN_LANES <= n; i += FIRSTTOKEN_LANES) {
        firsttoken_floats next;
        std::memcpy(&next, x + i, sizeof(next));
        highest = highest > next ? highest : next;
    }
    for (; i < n; ++i) {
        max = max > x[i] ? max : x[i];
    }
    for (int lane = 0; lane < FIRSTTOKEN_LANES; ++lane) {
        max = max > highest[lane] ? max : highest[lane];
    }
    *result = max;
}

// x / (1 + 2^t), which is x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
inline static firsttoken_floats firsttoken_gelu(const firsttoken_floats x) {
    const firsttoken_floats least = firsttoken_floats{} - 126.0f, most = firsttoken_floats{} + 126.0f;
    const float to_integer = 0x1.8p23f;  // added, it leaves the nearest integer in the lowest bits
    firsttoken_floats t = x * (-2.3022082f - 0.10294324f * x * x);
    t = t < least ? least : t;
    t = t > most ? most : t;
    const firsttoken_floats shifted = t + to_integer;
    const firsttoken_floats rest = t - (shifted - to_integer);
    const firsttoken_bits power = ((firsttoken_bits) shifted << 23) + 0x3f800000u;
    const firsttoken_floats fraction = 1.0f + rest * (0.69314718f + rest * (0.24022651f + rest * (0.05550411f +
        rest * (0.00961813f + rest * 0.00133336f))));
    return x / (1.0f + (firsttoken_floats) power * fraction);
}

inline static void firsttoken_vec_gelu_f32(const int n, float * y, const float * x) {
    firsttoken_floats values;
    int i = 0;
    for (; i + FIRSTTOKEN_LANES <= n; i += FIRSTTOKEN_LANES) {
        std::memcpy(&values, x + i, sizeof(values));
        values = firsttoken_gelu(values);
        std::memcpy(y + i, &values, sizeof(values));
    }
    for (; i < n; ++i) {
        y[i] = firsttoken_gelu(firsttoken_floats{} + x[i])[0];
    }
}

#define ggml_vec_max_f32 firsttoken_vec_max_f32
#define ggml_vec_gelu_f32 firsttoken_vec_gelu_f32
#endif
