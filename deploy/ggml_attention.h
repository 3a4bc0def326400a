// Attention of encoders, written for batches of whole texts. Included like ggml_loops.h.
//
// llama.cpp computes it in tiles of 64 rows by 64: texts that share tiles are compared with each other and masked
// afterwards, and the mask is converted once for each head. Here each text is compared with itself alone, without a
// mask. For any other mask, llama.cpp's function is called.
#if defined(ggml_cpu_EXPORTS) && defined(__AVX__) && defined(__GNUC__) && !defined(__clang__)
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "simd-gemm.h"
#include "vec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

constexpr int64_t FIRSTTOKEN_QUERIES = 24;  // compared at once; like FIRSTTOKEN_WHOLE, a multiple of simd_gemm's rows
constexpr int64_t FIRSTTOKEN_WHOLE = 12;
constexpr int64_t FIRSTTOKEN_KEYS = 16;  // a text's keys are filled up to a multiple of this

// Where texts end that stand side by side, each of whose tokens sees all of its own text and nothing else. Empty if the
// mask is another, or if there is more to do than that.
inline static void firsttoken_find_texts(const ggml_tensor * dst, std::vector<int64_t> & ends) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * mask = dst->src[3];
    const int64_t n = q->ne[1];
    float options[3];  // scale, bias, cap; src[4] are sinks
    std::memcpy(options, dst->op_params, sizeof(options));
    ends.clear();
    if (!mask || dst->src[4] || options[1] != 0.0f || options[2] != 0.0f || k->ne[1] != n || q->ne[3] != 1 ||
        mask->ne[2] != 1 || mask->ne[3] != 1 || k->type != GGML_TYPE_F16 || v->type != GGML_TYPE_F16) {
        return;
    }
    constexpr ggml_fp16_t SEEN = 0, HIDDEN = 0xfc00;
    const auto row_of = [mask](int64_t row) {
        return (const ggml_fp16_t *) ((const char *) mask->data + row * mask->nb[1]);
    };
    const auto is_seen = [](ggml_fp16_t value) { return value == SEEN; };
    const auto is_hidden = [](ggml_fp16_t value) { return value == HIDDEN; };
    for (int64_t begin = 0; begin < n;) {
        const ggml_fp16_t * first = row_of(begin);
        const int64_t end = std::find_if_not(first + begin, first + n, is_seen) - first;
        bool is_text = end > begin && std::all_of(first, first + begin, is_hidden) &&
            std::all_of(first + end, first + n, is_hidden);
        for (int64_t row = begin + 1; is_text && row < end; ++row) {
            is_text = std::memcmp(first, row_of(row), n * sizeof(ggml_fp16_t)) == 0;
        }
        if (!is_text) {
            ends.clear();
            return;
        }
        ends.push_back(begin = end);
    }
}

// One head of the rows [from, to) of a text [begin, end).
inline static void firsttoken_attend(const ggml_tensor * dst, const int64_t head, const int64_t begin,
                                     const int64_t end, const int64_t from, const int64_t to) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2];
    const int64_t dk = k->ne[0], dv = v->ne[0], length = end - begin;
    const int64_t padded = (length + FIRSTTOKEN_KEYS - 1) / FIRSTTOKEN_KEYS * FIRSTTOKEN_KEYS;
    static thread_local std::vector<float> key, keys, values, queries, scores, results;
    key.resize(dk);
    keys.assign(dk * padded, 0.0f);
    values.assign(padded * dv, 0.0f);
    for (int64_t i = 0; i < length; ++i) {
        const char * k_row = (const char *) k->data + (begin + i) * k->nb[1] + head / (q->ne[2] / k->ne[2]) * k->nb[2];
        const char * v_row = (const char *) v->data + (begin + i) * v->nb[1] + head / (q->ne[2] / v->ne[2]) * v->nb[2];
        ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) k_row, key.data(), dk);
        ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) v_row, &values[i * dv], dv);
        for (int64_t d = 0; d < dk; ++d) {
            keys[d * padded + i] = key[d];
        }
    }
    float scale;
    std::memcpy(&scale, dst->op_params, sizeof(scale));
    for (int64_t row = from; row < to; row += FIRSTTOKEN_QUERIES) {
        const int64_t rows = std::min(FIRSTTOKEN_QUERIES, to - row);
        const int64_t whole = (rows + FIRSTTOKEN_WHOLE - 1) / FIRSTTOKEN_WHOLE * FIRSTTOKEN_WHOLE;
        queries.assign(whole * dk, 0.0f);
        scores.assign(whole * padded, 0.0f);
        results.assign(whole * dv, 0.0f);
        for (int64_t i = 0; i < rows; ++i) {
            const char * q_row = (const char *) q->data + (row + i) * q->nb[1] + head * q->nb[2];
            std::memcpy(&queries[i * dk], q_row, dk * sizeof(float));
        }
        ggml_vec_scale_f32(rows * dk, queries.data(), scale);
        simd_gemm(scores.data(), queries.data(), keys.data(), whole, dk, padded);
        float sums[FIRSTTOKEN_QUERIES];
        for (int64_t i = 0; i < rows; ++i) {
            float * x = &scores[i * padded], max;
            ggml_vec_max_f32(length, &max, x);
            sums[i] = ggml_vec_soft_max_f32(length, x, x, max);
            std::fill(x + length, x + padded, 0.0f);
        }
        simd_gemm(results.data(), scores.data(), values.data(), whole, padded, dv);
        for (int64_t i = 0; i < rows; ++i) {
            ggml_vec_scale_f32(dv, &results[i * dv], 1.0f / sums[i]);
            char * to_row = (char *) dst->data + ((row + i) * dst->ne[1] + head) * dst->nb[1];
            std::memcpy(to_row, &results[i * dv], dv * sizeof(float));
        }
    }
}

// llama.cpp's function of this name takes ints but is called with numbers of 64 bits: this overload fits better. It is
// a template so that the other, which is defined later, is looked up where this one is used.
template <typename Row>
inline static void ggml_compute_forward_flash_attn_ext_tiled(
    const ggml_compute_params * params, ggml_tensor * dst, Row ir0, Row ir1) {
    static thread_local std::vector<int64_t> ends;
    firsttoken_find_texts(dst, ends);
    if (ends.empty()) {
        using Usual = std::conditional_t<true, int, Row>;
        ggml_compute_forward_flash_attn_ext_tiled(params, dst, (Usual) ir0, (Usual) ir1);
        return;
    }
    const int64_t n = dst->src[0]->ne[1];
    for (int64_t head = ir0 / n; head * n < ir1; ++head) {
        int64_t begin = 0;
        for (const int64_t end : ends) {
            const int64_t from = std::max<int64_t>(begin, ir0 - head * n), to = std::min<int64_t>(end, ir1 - head * n);
            if (from < to) {
                firsttoken_attend(dst, head, begin, end, from, to);
            }
            begin = end;
        }
    }
}
#endif
