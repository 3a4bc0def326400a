#pragma once
#include <stdint.h>

#define QK8_0 32
typedef struct {
    uint16_t d;  // half precision
    int8_t qs[QK8_0];
} block_q8_0;
