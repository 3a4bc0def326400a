#pragma once

static void simd_gemm(float * c, const float * a, const float * b, int m, int k, int n) {
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j)
            for (int l = 0; l < k; ++l) c[i * n + j] += a[i * k + l] * b[l * n + j];
}
