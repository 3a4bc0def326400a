// Attention of single rows, as in steps that continue conversations. Included like ggml_loops.h.
//
// Without flash attention, llama.cpp splits a softmax among threads by the rows of a stream. Here this is a single one,
// for which all other threads would wait. So they share the heads and streams.
#if defined(ggml_cpu_EXPORTS) && defined(__GNUC__) && !defined(__clang__)
#include "ggml-cpu-impl.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" void firsttoken_usual_soft_max(const ggml_compute_params *, ggml_tensor *);

extern "C" __attribute__((weak)) void ggml_compute_forward_soft_max(const ggml_compute_params * params,
                                                                    ggml_tensor * dst) {
    const ggml_tensor * scores = dst->src[0], * mask = dst->src[1];
    float bias;  // of ALiBi; it differs by head, as do sinks, in src[2]
    std::memcpy(&bias, dst->op_params + 1, sizeof(bias));
    if (params->nth == 1 || dst->ne[1] != 1 || bias != 0.0f || dst->src[2] || (mask && mask->ne[2] != 1)) {
        firsttoken_usual_soft_max(params, dst);
        return;
    }
    static thread_local std::vector<float> buffer;
    buffer.resize(dst->ne[0]);
    ggml_compute_params alone = *params;
    alone.ith = 0, alone.nth = 1;
    alone.wdata = buffer.data();
    ggml_tensor from = *scores, to = *dst, seen = mask ? *mask : ggml_tensor{};
    to.src[0] = &from;
    to.src[1] = mask ? &seen : nullptr;
    from.ne[3] = to.ne[3] = seen.ne[3] = 1;
    const int64_t heads = dst->ne[2], rows = heads * dst->ne[3];
    const int64_t end = rows * (params->ith + 1) / params->nth;
    for (int64_t row = rows * params->ith / params->nth; row < end; row += to.ne[2]) {
        const int64_t stream = row / heads, head = row % heads;
        from.ne[2] = to.ne[2] = std::min(heads - head, end - row);
        from.data = (char *) scores->data + head * scores->nb[2] + stream * scores->nb[3];
        to.data = (char *) dst->data + head * dst->nb[2] + stream * dst->nb[3];
        if (mask) {
            seen.data = (char *) mask->data + stream % mask->ne[3] * mask->nb[3];
        }
        firsttoken_usual_soft_max(&alone, &to);
    }
}
#define ggml_compute_forward_soft_max firsttoken_usual_soft_max
#endif

// llama.cpp multiplies keys, values and other matrices in half precision with a single row number by number, and
// converts both sides each time. With AVX2 and nothing newer, each cell is read and converted once for all heads that
// share it, and the next cells are fetched meanwhile. Every number is rounded as before, to the last bit.
#if defined(ggml_cpu_EXPORTS) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && \
    !defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#include "ggml-cpu-impl.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

constexpr int FIRSTTOKEN_SUMS = 4;                      // registers of a product, as in llama.cpp
constexpr int FIRSTTOKEN_NUMBERS = 8 * FIRSTTOKEN_SUMS; // multiplied at once: of a cell, a cache line
constexpr int FIRSTTOKEN_HEADS = 3;                     // multiplied at once: all their sums stay in registers
constexpr int FIRSTTOKEN_CELLS = 4;                     // whose last sums are added up together

struct firsttoken_floats8 {
    __m256 values;  // aligned
};

inline __m128 firsttoken_halves(const __m256 x) {
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

// FIRSTTOKEN_CELLS cells of `size` numbers, `stride` bytes apart, by HEADS rows, which follow each other.
template <int HEADS>
__attribute__((noinline)) void firsttoken_cells(const char * cells, const size_t stride, const float * rows,
                                                const int64_t size, char * out, const size_t out_stride) {
    __m256 totals[FIRSTTOKEN_CELLS][HEADS];
#pragma GCC unroll 1
    for (int cell = 0; cell < FIRSTTOKEN_CELLS; ++cell, cells += stride) {
        __m256 sums[HEADS][FIRSTTOKEN_SUMS] = {};
        for (int64_t i = 0; i < size; i += FIRSTTOKEN_NUMBERS) {
            const ggml_fp16_t * numbers = (const ggml_fp16_t *) cells + i;
            _mm_prefetch((const char *) numbers + FIRSTTOKEN_CELLS * stride, _MM_HINT_T0);
#pragma GCC unroll 4
            for (int sum = 0; sum < FIRSTTOKEN_SUMS; ++sum) {
                const __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (numbers + 8 * sum)));
#pragma GCC unroll 3
                for (int head = 0; head < HEADS; ++head) {
                    const __m256 y = _mm256_load_ps(rows + head * size + i + 8 * sum);
                    sums[head][sum] = _mm256_fmadd_ps(x, y, sums[head][sum]);
                }
            }
        }
        for (int head = 0; head < HEADS; ++head) {
            const __m256 even = _mm256_add_ps(sums[head][0], sums[head][2]);
            totals[cell][head] = _mm256_add_ps(even, _mm256_add_ps(sums[head][1], sums[head][3]));
        }
    }
    for (int head = 0; head < HEADS; ++head, out += out_stride) {
        const __m128 low = _mm_hadd_ps(firsttoken_halves(totals[0][head]), firsttoken_halves(totals[1][head]));
        const __m128 high = _mm_hadd_ps(firsttoken_halves(totals[2][head]), firsttoken_halves(totals[3][head]));
        _mm_storeu_ps((float *) out, _mm_hadd_ps(low, high));
    }
}

// To half precision and back.
inline void firsttoken_round(const float * from, float * to, const int64_t count) {
    for (int64_t i = 0; i < count; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_store_ps(to + i, _mm256_cvtph_ps(half));
    }
}

// A matrix [streams, groups, cells, size], each group of which is multiplied with a row of each of its heads.
class firsttoken_product {
  public:
    static bool covers(const ggml_tensor * dst) {
        const ggml_tensor * matrix = dst->src[0], * row = dst->src[1];
        return matrix->type == GGML_TYPE_F16 && row->type == GGML_TYPE_F32 && row->ne[1] == 1 &&
            matrix->ne[0] % FIRSTTOKEN_NUMBERS == 0 && matrix->ne[1] % FIRSTTOKEN_CELLS == 0;
    }

    firsttoken_product(const ggml_tensor * dst, std::vector<firsttoken_floats8> & buffer)
        : dst(dst), matrix(dst->src[0]), row(dst->src[1]), size(matrix->ne[0]), heads(row->ne[2] / matrix->ne[2]),
          rounded_stream(matrix->ne[2], -1) {
        buffer.resize(row->ne[2] * size / 8);
        rounded = (float *) buffer.data();
    }

    // The share of a thread, in the order of memory: cells of keys lie beside those of other groups, of values beside
    // those of their own.
    void multiply(const int ith, const int nth) {
        const bool groups_first = matrix->nb[2] < matrix->nb[1];
        const int64_t groups = matrix->ne[2], tiles = matrix->ne[1] / FIRSTTOKEN_CELLS;
        const int64_t near = groups_first ? groups : tiles, far = groups_first ? tiles : groups;
        const int64_t all = row->ne[3] * far * near, end = all * (ith + 1) / nth;
        int64_t at = all * ith / nth;
        int64_t stream = at / near / far, i = at / near % far, j = at % near;
        for (; at < end; ++at) {
            multiply(stream, groups_first ? j : i, groups_first ? i : j);
            if (++j == near) {
                j = 0;
                if (++i == far) {
                    i = 0;
                    ++stream;
                }
            }
        }
    }

  private:
    void multiply(const int64_t stream, const int64_t group, const int64_t tile) {
        const float * rows = round(stream, group);
        const int64_t cell = tile * FIRSTTOKEN_CELLS, matrix_stream = stream / (row->ne[3] / matrix->ne[3]);
        const char * cells = (const char *) matrix->data + matrix_stream * matrix->nb[3] + group * matrix->nb[2] +
            cell * matrix->nb[1];
        char * out = (char *) dst->data + stream * dst->nb[3] + group * heads * dst->nb[2] + cell * sizeof(float);
        for (int64_t head = 0, count; head < heads; head += count) {
            const int64_t left = heads - head;
            count = left == 1 ? 1 : left == 2 || left % FIRSTTOKEN_HEADS == 1 ? 2 : FIRSTTOKEN_HEADS;
            const auto product = count == 1 ? firsttoken_cells<1> : count == 2 ? firsttoken_cells<2> :
                firsttoken_cells<FIRSTTOKEN_HEADS>;
            product(cells, matrix->nb[1], rows + head * size, size, out + head * dst->nb[2], dst->nb[2]);
        }
    }

    // The rows of a group, rounded when the thread first needs them.
    const float * round(const int64_t stream, const int64_t group) {
        float * to = rounded + group * heads * size;
        if (rounded_stream[group] != stream) {
            rounded_stream[group] = stream;
            const char * from = (const char *) row->data + stream * row->nb[3] + group * heads * row->nb[2];
            for (int64_t head = 0; head < heads; ++head) {
                firsttoken_round((const float *) (from + head * row->nb[2]), to + head * size, size);
            }
        }
        return to;
    }

    const ggml_tensor * const dst, * const matrix, * const row;
    const int64_t size, heads;
    std::vector<int64_t> rounded_stream;  // by group
    float * rounded;
};

}  // namespace

// llama.cpp asks this one first for each product.
extern "C" bool firsttoken_usual_mul_mat_tiled(const ggml_compute_params *, ggml_tensor *);

extern "C" __attribute__((weak)) bool ggml_compute_forward_mul_mat_tiled(const ggml_compute_params * params,
                                                                        ggml_tensor * dst) {
    if (params->use_ref || !firsttoken_product::covers(dst)) {
        return firsttoken_usual_mul_mat_tiled(params, dst);
    }
    static thread_local std::vector<firsttoken_floats8> buffer;
    firsttoken_product(dst, buffer).multiply(params->ith, params->nth);
    return true;
}
#define ggml_compute_forward_mul_mat_tiled firsttoken_usual_mul_mat_tiled
#endif
