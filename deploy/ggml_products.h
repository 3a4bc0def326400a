// Matrix products in Q8_0 on CPUs with AVX2 and nothing newer. Included like ggml_loops.h.
//
// llama.cpp multiplies blocks of 32 numbers and sums them across the lanes of a register, for a single row column by
// column, for more in tiles of 4 columns and 2 rows, and waits for memory at the beginning of each tile. Here the weights
// of the next tile are fetched meanwhile, and scales and absolute values are made once for all columns and rows of a
// tile. Every number is rounded as before, to the last bit.
//
// For encoders, a lane is a column: weights are reordered, once per product, so that the numbers of a block lie in pairs
// of 16 bits, as vpmaddwd takes them, and a tile of 16 columns and 6 rows fills the registers. The sum of a block is an
// integer and the same number as before; only the rounding of the sum of blocks differs. It pays off from some 30 rows
// on. So logits would depend on the size of the batch, which nobody must notice of a language model: a thread says when
// it runs an encoder.
#if defined(ggml_cpu_EXPORTS) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && \
    !defined(__AVX512F__) && !defined(__AVXVNNI__) && defined(__GNUC__) && !defined(__clang__)
#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml-cpu-impl.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// Hidden, so that each library has one of its own.
__attribute__((visibility("hidden"))) inline thread_local bool firsttoken_encodes = false;

extern "C" __attribute__((used, weak, visibility("default"))) void firsttoken_encoding(bool encodes) {
    firsttoken_encodes = encodes;
}

namespace {

constexpr int64_t FIRSTTOKEN_ROWS_MIN = 32;
constexpr int64_t FIRSTTOKEN_PAIRS = QK8_0 / 2;
constexpr int64_t FIRSTTOKEN_SIDES = 2;  // registers of 8 columns
constexpr int64_t FIRSTTOKEN_COLUMNS = 8 * FIRSTTOKEN_SIDES;
constexpr int FIRSTTOKEN_ROWS = 6;

inline __m256i firsttoken_half(const block_q8_0 & block, const int half) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) (block.qs + half * FIRSTTOKEN_PAIRS)));
}

inline void firsttoken_transpose(__m256i (&x)[8]) {
    __m256i y[8];
    for (int i = 0; i < 8; i += 4) {
        const __m256i low = _mm256_unpacklo_epi32(x[i], x[i + 1]), low2 = _mm256_unpacklo_epi32(x[i + 2], x[i + 3]);
        const __m256i high = _mm256_unpackhi_epi32(x[i], x[i + 1]), high2 = _mm256_unpackhi_epi32(x[i + 2], x[i + 3]);
        y[i] = _mm256_unpacklo_epi64(low, low2);
        y[i + 1] = _mm256_unpackhi_epi64(low, low2);
        y[i + 2] = _mm256_unpacklo_epi64(high, high2);
        y[i + 3] = _mm256_unpackhi_epi64(high, high2);
    }
    for (int i = 0; i < 4; ++i) {
        x[i] = _mm256_permute2x128_si256(y[i], y[i + 4], 0x20);
        x[i + 4] = _mm256_permute2x128_si256(y[i], y[i + 4], 0x31);
    }
}

// Rows of blocks: the pairs of each row, and its scales.
struct firsttoken_activations {
    std::vector<int32_t> pairs;  // [rows, blocks, FIRSTTOKEN_PAIRS]
    std::vector<float> scales;   // [rows, blocks]

    void read(const block_q8_0 * rows, const int64_t stride, const int64_t count, const int64_t blocks) {
        pairs.resize(count * blocks * FIRSTTOKEN_PAIRS);
        scales.resize(count * blocks);
        __m256i * to = (__m256i *) pairs.data();
        float * scale = scales.data();
        for (int64_t row = 0; row < count; ++row) {
            for (const block_q8_0 * block = rows + row * stride, * end = block + blocks; block < end; ++block) {
                *scale++ = _cvtsh_ss(block->d);
                _mm256_storeu_si256(to++, firsttoken_half(*block, 0));
                _mm256_storeu_si256(to++, firsttoken_half(*block, 1));
            }
        }
    }
};

// A pair of each of 8 columns.
struct firsttoken_pairs {
    __m256i columns;
};

// As many columns as a tile has.
struct firsttoken_weights {
    std::vector<firsttoken_pairs> pairs;  // [blocks, FIRSTTOKEN_PAIRS, FIRSTTOKEN_SIDES]
    std::vector<float> scales;   // [blocks, FIRSTTOKEN_COLUMNS]

    void read(const block_q8_0 * columns, const int64_t stride, const int64_t blocks) {
        pairs.resize(blocks * FIRSTTOKEN_PAIRS * FIRSTTOKEN_SIDES);
        scales.resize(blocks * FIRSTTOKEN_COLUMNS);
        for (int64_t block = 0; block < blocks; ++block) {
            for (int part = 0; part < 2 * FIRSTTOKEN_SIDES; ++part) {
                const int side = part / 2, half = part % 2;
                __m256i x[8];
                for (int i = 0; i < 8; ++i) {
                    x[i] = firsttoken_half(columns[(8 * side + i) * stride + block], half);
                }
                firsttoken_transpose(x);
                for (int i = 0; i < 8; ++i) {
                    pairs[(block * FIRSTTOKEN_PAIRS + 8 * half + i) * FIRSTTOKEN_SIDES + side].columns = x[i];
                }
            }
            for (int i = 0; i < FIRSTTOKEN_COLUMNS; ++i) {
                scales[block * FIRSTTOKEN_COLUMNS + i] = _cvtsh_ss(columns[i * stride + block].d);
            }
        }
    }
};

template <int ROWS>
__attribute__((noinline)) void firsttoken_tile(const int32_t * x, const float * x_scales, const firsttoken_weights & w,
                                               const int64_t blocks, float * out, const int64_t stride) {
    const firsttoken_pairs * pairs = w.pairs.data();
    __m256 sums[ROWS][FIRSTTOKEN_SIDES] = {};
    for (int64_t block = 0; block < blocks; ++block) {
        __m256i dots[ROWS][FIRSTTOKEN_SIDES] = {};
        for (int64_t pair = block * FIRSTTOKEN_PAIRS; pair < (block + 1) * FIRSTTOKEN_PAIRS; ++pair) {
            const __m256i left = pairs[FIRSTTOKEN_SIDES * pair].columns;
            const __m256i right = pairs[FIRSTTOKEN_SIDES * pair + 1].columns;
#pragma GCC unroll 6
            for (int row = 0; row < ROWS; ++row) {
                const __m256i value = _mm256_set1_epi32(x[row * blocks * FIRSTTOKEN_PAIRS + pair]);
                const __m256i to_left = _mm256_madd_epi16(value, left), to_right = _mm256_madd_epi16(value, right);
                // Row by row and in place: otherwise GCC loads all values first, and has no registers left for sums.
                __asm__ volatile("vpaddd %1, %0, %0" : "+x"(dots[row][0]) : "x"(to_left));
                __asm__ volatile("vpaddd %1, %0, %0" : "+x"(dots[row][1]) : "x"(to_right));
            }
        }
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; ++row) {
            const __m256 x_scale = _mm256_set1_ps(x_scales[row * blocks + block]);
            for (int side = 0; side < FIRSTTOKEN_SIDES; ++side) {
                const __m256 w_scale = _mm256_loadu_ps(&w.scales[block * FIRSTTOKEN_COLUMNS + 8 * side]);
                const __m256 scales = _mm256_mul_ps(x_scale, w_scale);
                sums[row][side] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[row][side]), scales, sums[row][side]);
            }
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int side = 0; side < FIRSTTOKEN_SIDES; ++side) {
            _mm256_storeu_ps(out + row * stride + 8 * side, sums[row][side]);
        }
    }
}

template <int ROWS = FIRSTTOKEN_ROWS>
void firsttoken_rows(const int64_t rows, const int32_t * x, const float * x_scales, const firsttoken_weights & w,
                     const int64_t blocks, float * out, const int64_t stride) {
    if (rows >= ROWS) {
        firsttoken_tile<ROWS>(x, x_scales, w, blocks, out, stride);
    } else if constexpr (ROWS > 1) {
        firsttoken_rows<ROWS - 1>(rows, x, x_scales, w, blocks, out, stride);
    }
}

constexpr int64_t FIRSTTOKEN_TILE = 4;  // columns whose blocks are summed across lanes
constexpr int64_t FIRSTTOKEN_LINE = 64;

inline float firsttoken_sum(const __m256 x) {
    const __m128 four = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The products of a block of each of 4 columns with one row, added to their sums.
inline __attribute__((always_inline)) void firsttoken_add(__m256 (&sums)[FIRSTTOKEN_TILE], const __m256 scales,
                                                          const __m256i (&w)[FIRSTTOKEN_TILE],
                                                          const __m256i (&w_abs)[FIRSTTOKEN_TILE], const __m256i x) {
    const __m256 scale[] = {_mm256_permute_ps(scales, 0x00), _mm256_permute_ps(scales, 0x55),
                            _mm256_permute_ps(scales, 0xaa), _mm256_permute_ps(scales, 0xff)};
    for (int i = 0; i < FIRSTTOKEN_TILE; ++i) {
        const __m256i pairs = _mm256_maddubs_epi16(w_abs[i], _mm256_sign_epi8(x, w[i]));
        const __m256i fours = _mm256_madd_epi16(_mm256_set1_epi16(1), pairs);
        sums[i] = _mm256_fmadd_ps(scale[i], _mm256_cvtepi32_ps(fours), sums[i]);
    }
}

// 4 columns with some rows. The first rows leave the columns' scales to the others, and fetch the next columns.
template <int ROWS, bool FIRST>
__attribute__((noinline)) void firsttoken_columns(const block_q8_0 * columns, const int64_t lda, float * w_scales,
                                                  const block_q8_0 * rows, const int64_t ldb, const float * x_scales,
                                                  const int64_t blocks, float * out, const int64_t ldc) {
    const char * next = (const char *) (columns + FIRSTTOKEN_TILE * lda);
    __m256 sums[ROWS][FIRSTTOKEN_TILE] = {};
    for (int64_t block = 0; block < blocks; ++block) {
        __m256i w[FIRSTTOKEN_TILE], w_abs[FIRSTTOKEN_TILE];
        for (int i = 0; i < FIRSTTOKEN_TILE; ++i) {
            w[i] = _mm256_loadu_si256((const __m256i *) columns[i * lda + block].qs);
            w_abs[i] = _mm256_abs_epi8(w[i]);
        }
        if constexpr (FIRST) {
            const char * fetched = next + FIRSTTOKEN_TILE * sizeof(block_q8_0) * block;
            for (int line = 0; line < 3; ++line) {
                _mm_prefetch(fetched + line * FIRSTTOKEN_LINE, _MM_HINT_T0);
            }
            const uint64_t low = columns[block].d | (uint64_t) columns[lda + block].d << 16;
            const uint64_t high = columns[2 * lda + block].d | (uint64_t) columns[3 * lda + block].d << 16;
            _mm_storeu_ps(w_scales + FIRSTTOKEN_TILE * block, _mm_cvtph_ps(_mm_cvtsi64_si128(low | high << 32)));
        }
        const __m256 w_scale = _mm256_broadcast_ps((const __m128 *) (w_scales + FIRSTTOKEN_TILE * block));
        for (int row = 0; row < ROWS; ++row) {
            const __m256 scales = _mm256_mul_ps(w_scale, _mm256_broadcast_ss(x_scales + row * blocks + block));
            firsttoken_add(sums[row], scales, w, w_abs, _mm256_loadu_si256((const __m256i *) rows[row * ldb + block].qs));
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int i = 0; i < FIRSTTOKEN_TILE; ++i) {
            out[row * ldc + i] = firsttoken_sum(sums[row][i]);
        }
    }
}

struct firsttoken_q8_0 : block_q8_0 {};  // for which llama.cpp's own loops are compiled

template <typename A, typename B, typename C> class tinyBLAS_Q0_AVX;

// Defined before llama.cpp's general class of this name, it takes that one's place for Q8_0.
template <> class tinyBLAS_Q0_AVX<block_q8_0, block_q8_0, float> {
  public:
    // C [n, m] = B [n, k] x A [m, k], with k in blocks; thread `ith` of `nth`.
    tinyBLAS_Q0_AVX(int64_t k, const block_q8_0 * A, int64_t lda, const block_q8_0 * B, int64_t ldb, float * C,
                    int64_t ldc, int ith, int nth)
        : A(A), B(B), C(C), k(k), lda(lda), ldb(ldb), ldc(ldc), ith(ith), nth(nth) {}

    template <typename Block = firsttoken_q8_0> void matmul(int64_t m, int64_t n) {
        if (firsttoken_encodes && n >= FIRSTTOKEN_ROWS_MIN && m % FIRSTTOKEN_COLUMNS == 0) {
            encode(m / FIRSTTOKEN_COLUMNS, n);
        } else if (m % FIRSTTOKEN_TILE == 0) {
            multiply(m / FIRSTTOKEN_TILE, n);
        } else {
            tinyBLAS_Q0_AVX<Block, Block, float> usual{
                k, (const Block *) A, lda, (const Block *) B, ldb, C, ldc, ith, nth};
            usual.matmul(m, n);
        }
    }

    void multiply(int64_t tiles, int64_t n) {
        static thread_local std::vector<float> x_scales, w_scales;
        x_scales.resize(n * k);
        w_scales.resize(FIRSTTOKEN_TILE * k);
        for (int64_t row = 0; row < n; ++row) {
            for (int64_t block = 0; block < k; ++block) {
                x_scales[row * k + block] = _cvtsh_ss(B[row * ldb + block].d);
            }
        }
        for (int64_t tile = tiles * ith / nth; tile < tiles * (ith + 1) / nth; ++tile) {
            const block_q8_0 * columns = A + tile * FIRSTTOKEN_TILE * lda;
            float * out = C + tile * FIRSTTOKEN_TILE;
            const auto first = n > 1 ? firsttoken_columns<2, true> : firsttoken_columns<1, true>;
            first(columns, lda, w_scales.data(), B, ldb, x_scales.data(), k, out, ldc);
            for (int64_t row = 2; row < n; row += 2) {
                const auto rest = row + 1 < n ? firsttoken_columns<2, false> : firsttoken_columns<1, false>;
                rest(columns, lda, w_scales.data(), B + row * ldb, ldb, &x_scales[row * k], k, out + row * ldc, ldc);
            }
        }
    }

  private:
    void encode(int64_t panels, int64_t n) {
        static thread_local firsttoken_activations x;
        static thread_local firsttoken_weights w;
        x.read(B, ldb, n, k);
        for (int64_t panel = panels * ith / nth; panel < panels * (ith + 1) / nth; ++panel) {
            w.read(A + panel * FIRSTTOKEN_COLUMNS * lda, lda, k);
            for (int64_t row = 0; row < n; row += FIRSTTOKEN_ROWS) {
                firsttoken_rows<>(n - row, &x.pairs[row * k * FIRSTTOKEN_PAIRS], &x.scales[row * k], w, k,
                                  C + row * ldc + panel * FIRSTTOKEN_COLUMNS, ldc);
            }
        }
    }

    const block_q8_0 * const A;
    const block_q8_0 * const B;
    float * const C;
    const int64_t k, lda, ldb, ldc;
    const int ith, nth;
};

}  // namespace

// llama.cpp has no tiles for a single row.
extern "C" bool firsttoken_usual_sgemm(const ggml_compute_params *, int64_t, int64_t, int64_t, const void *, int64_t,
                                       const void *, int64_t, void *, int64_t, int, int, int);

extern "C" __attribute__((weak)) bool llamafile_sgemm(const ggml_compute_params * params, int64_t m, int64_t n,
                                                      int64_t k, const void * A, int64_t lda, const void * B,
                                                      int64_t ldb, void * C, int64_t ldc, int Atype, int Btype,
                                                      int Ctype) {
    if (n != 1 || m % FIRSTTOKEN_TILE != 0 || Atype != GGML_TYPE_Q8_0 || Btype != Atype || Ctype != GGML_TYPE_F32) {
        return firsttoken_usual_sgemm(params, m, n, k, A, lda, B, ldb, C, ldc, Atype, Btype, Ctype);
    }
    tinyBLAS_Q0_AVX<block_q8_0, block_q8_0, float> product{
        k, (const block_q8_0 *) A, lda, (const block_q8_0 *) B, ldb, (float *) C, ldc, params->ith, params->nth};
    product.multiply(m / FIRSTTOKEN_TILE, n);
    return true;
}
#define llamafile_sgemm firsttoken_usual_sgemm
#endif
