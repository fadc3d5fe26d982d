/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - conversions of the floating dtypes to float32, of the wide ones back, and the uses of each
 * dtype. */
#ifndef ZD_BASE_DTYPE_H
#define ZD_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#include <zerod.h>

/* Whether gradients can have the dtype: any floating dtype. */
bool zd_dtype_reducible(enum zerod_dtype dtype);
/* Whether gradients can be reduced into the dtype: float32, float16, bfloat16. A float8 would lose the sum in
 * its rounding. */
bool zd_dtype_holds_sums(enum zerod_dtype dtype);

float zd_bf16_to_f32(uint16_t bits);
uint16_t zd_f32_to_bf16(float value); /* rounds to nearest even; nan remains nan */
float zd_f16_to_f32(uint16_t bits);
uint16_t zd_f32_to_f16(float value); /* rounds to nearest even; overflow to inf; nan remains nan */
float zd_e4m3_to_f32(
        uint8_t bits); /* float8_e4m3, which has no infinity (OCP's E4M3, PyTorch's float8_e4m3fn) */
float zd_e5m2_to_f32(uint8_t bits);

#endif
